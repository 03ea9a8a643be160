"""Feeds of a real process that is killed while it verifies, sends and ends: every subscription that was asked
for comes about, every message is sent at least once, signed, and nothing is left of what has ended."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import landbridge
from tests.ports import free_port
from tests.receivers import OK, Received, Receiver, says
from tests.subscribers import Subscriber
from tests.system.test_promise import end, line_of, start
from tests.waiting import LIMIT, eventually

KILLS, MESSAGES = 5, 40
ALL = MESSAGES * (KILLS + 1)


def _has_all(subscriber: Subscriber, first: int) -> bool:
    wanted = {b"%d" % number for number in range(first, ALL)}
    return wanted <= set(subscriber.bodies)


def _has(subscriber: Subscriber, messages: int) -> bool:
    return len(set(subscriber.bodies)) >= messages


async def _is_active(bus: Any, number: int) -> bool:
    rows = await bus.websub.list(topic="news")
    return sum(row.state == "active" and not row.waits_for for row in rows) == number


@pytest.mark.parametrize("ordered", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_subscriptions_and_messages_survive_kills(tmp_path: Path, ordered: bool) -> None:
    port, http_port, chance = free_port(), free_port(), random.Random(5)
    hub, feed = f"http://127.0.0.1:{http_port}/v1/websub", f"http://127.0.0.1:{http_port}/v1/feeds/news"
    steady, flaky, shy = Subscriber(secret="a"), Subscriber(secret="b"), Subscriber(verdict=says(503))
    async with steady, flaky, shy, httpx.AsyncClient(timeout=LIMIT) as http:
        for life in range(KILLS + 1):
            process = await start("websub_process.py", tmp_path / "bus", port, http_port)
            try:
                token = await line_of(process)
                async with landbridge.connect(f"lb://127.0.0.1:{port}", token=token) as bus:
                    if not life:
                        await bus.topics.create("news")
                        await bus.websub.open("news", ordered=ordered)
                        for each in (steady, flaky, shy):
                            form = {"hub.mode": "subscribe", "hub.topic": feed, "hub.callback": each.callback}
                            form |= {"hub.secret": each.secret} if each.secret else {}
                            assert (await http.post(hub, data=form)).status_code == 202
                        while not await _is_active(bus, 2):
                            await asyncio.sleep(0.02)
                    flaky.takes = says(500) if life % 2 else OK
                    async with bus.publisher("news") as out:
                        for number in range(MESSAGES):
                            await out.send(b"%d" % (life * MESSAGES + number))
                    if life < KILLS:
                        wanted = life * MESSAGES + chance.randint(1, MESSAGES)
                        await eventually(partial(_has, steady, wanted), f"{wanted} messages")
                        process.kill()
                        continue
                    await eventually(partial(_has_all, steady, 0), "every message was sent")
                    # The one that was never confirmed was asked all the time, and is still wanted.
                    assert not shy.got
                    shy.verdict = None
                    while not await _is_active(bus, 3):
                        await asyncio.sleep(0.02)
                    await bus.publish("news", b"last")
                    await eventually(lambda: b"last" in shy.bodies)
                    await bus.websub.close("news")
                    process.kill()
            finally:
                await end(process)
        process = await start("websub_process.py", tmp_path / "bus", port, http_port)
        try:
            token = await line_of(process)
            async with landbridge.connect(f"lb://127.0.0.1:{port}", token=token) as bus:
                while await bus.websub.list():
                    await asyncio.sleep(0.02)
                assert await bus.groups.list(topic="news") == []
        finally:
            await end(process)
    for each in (steady, flaky):
        assert all(each.is_signed(request) for request in each.got)
        assert each.denied
    ids: dict[bytes, str] = {}
    for request in steady.got:
        assert (
            ids.setdefault(request.body, request.headers["landbridge-id"]) == request.headers["landbridge-id"]
        )
    assert len(set(ids.values())) == len(ids)
    if ordered:
        firsts = list(dict.fromkeys(body for body in steady.bodies if body != b"last"))
        assert firsts == [b"%d" % number for number in range(ALL)]


@pytest.mark.slow
async def test_each_change_of_a_source_is_published_once_whatever_is_killed_when(tmp_path: Path) -> None:
    port, http_port, chance = free_port(), free_port(), random.Random(3)
    hub, pages = f"http://127.0.0.1:{http_port}/v1/websub", [b"0"]

    def answer(request: Received) -> bytes:
        if chance.random() < 0.2:
            return says(503)
        served.append(pages[-1])
        return says(200, "Content-Type: text/plain", body=pages[-1])

    served: list[bytes] = []
    async with Receiver(answer) as source, httpx.AsyncClient(timeout=LIMIT) as http:
        ping = {"hub.mode": "publish", "hub.url": source.url}
        for life in range(KILLS + 1):
            process = await start("websub_process.py", tmp_path / "bus", port, http_port)
            try:
                token = await line_of(process)
                async with landbridge.connect(f"lb://127.0.0.1:{port}", token=token) as bus:
                    if not life:
                        await bus.topics.create("news")
                        await bus.websub.open("news", source=source.url)
                    for _ in range(chance.randint(3, 10)):
                        pages.append(b"%d" % len(pages))
                        assert (await http.post(hub, data=ping)).status_code == 202
                        await eventually(lambda: pages[-1] in served)
                    if life < KILLS:
                        process.kill()  # as soon as the page was served: it is published, or not
                        continue
                    while (await bus.websub.read("news")).payload != pages[-1]:
                        await asyncio.sleep(0.02)
                    found = await bus.fetch("news", 0, 1 << 20)
            finally:
                await end(process)
    published = [payload for fetched in found.batches for payload in fetched.batch.payloads()]
    # In order, none twice, and the newest page is there.
    assert published == sorted(set(published), key=int)
    assert set(published) <= set(served)
    assert published[-1] == pages[-1]
