"""Rules of a terminal that is killed again and again while messages pass: what a rule chooses is in its topic
once, in the order of its source, and a consumer gets all of it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec

from landbridge.client.bus import Bus
from landbridge.core.names import CONTENT_TOPIC, RULES_GROUP
from tests.system.test_promise import TerminalProcess
from tests.waiting import LIMIT, eventually

KILLS, RULES = 6, 12
#: Messages of a batch, and of each number that a rule asks for.
BATCH, KINDS = 40, 5


def match(number: int) -> dict[str, Any]:
    """Some rules choose the same messages, and some none."""
    return {"kind": [number % KINDS], "n": [{"numeric": [">=", number // KINDS]}]}


async def publish(
    terminal: TerminalProcess, source: str | None, sent: list[int], stop: asyncio.Event
) -> None:
    """Numbered messages, each batch until it is stored, whatever the terminal suffers meanwhile."""
    async with terminal.connect("shop") as bus:
        n = 0
        while not stop.is_set():
            async with bus.publisher(source) as out:
                for _ in range(BATCH):
                    await out.send({"n": n, "kind": n % KINDS, "pad": "x" * 50})
                    n += 1
            sent.append(n)


async def everything(bus: Bus, topic: str) -> list[int]:
    """The numbers that a topic's log has."""
    found: list[int] = []
    at, end = 0, 1
    while at < end:
        stretch = await bus.fetch(topic, at)
        end = stretch.end
        for fetched in stretch.batches:
            found += [msgspec.json.decode(payload)["n"] for payload in fetched.batch.payloads()]
            at = fetched.first + len(fetched.batch)
    return found


async def consume(terminal: TerminalProcess, topic: str, got: list[int]) -> None:
    async with terminal.connect("billing") as bus:
        async for message in bus.subscribe(topic, group="billing", prefetch=100):
            got.append(message.json()["n"])
            await message.ack()


async def test_nothing_is_lost_or_doubled_whatever_is_killed_when(tmp_path: Path) -> None:
    chance = random.Random(7)
    terminal = TerminalProcess(tmp_path / "bus")
    await terminal.start()
    try:
        async with asyncio.timeout(LIMIT), terminal.connect("admin") as admin:
            rules: dict[str, tuple[str, dict[str, Any]]] = {}
            for source in (CONTENT_TOPIC, "orders"):
                for number in range(RULES):
                    query = match(number)
                    rules[(await admin.rules.create(query, source)).rule] = source, query
            chosen = next(name for name, (source, _) in rules.items() if source == "orders")
            stop, got = asyncio.Event(), list[int]()
            sent: dict[str, list[int]] = {CONTENT_TOPIC: [], "orders": []}
            publishing = [
                asyncio.create_task(publish(terminal, None, sent[CONTENT_TOPIC], stop)),
                asyncio.create_task(publish(terminal, "orders", sent["orders"], stop)),
            ]
            consuming = asyncio.create_task(consume(terminal, chosen, got))
            for _ in range(KILLS):
                batches = len(sent["orders"]) + chance.randint(1, 12)
                await eventually(lambda batches=batches: len(sent["orders"]) >= batches)
                await terminal.kill()
                await terminal.start()
            stop.set()
            await asyncio.gather(*publishing)
            for source, counts in sent.items():
                await admin.messages.wait(source, counts[-1] - 1, "acked")
                assert await everything(admin, source) == list(range(counts[-1]))
                assert (await admin.groups.show(source, RULES_GROUP)).lag == 0
            for name, (source, query) in rules.items():
                (kind,), (least,) = query["kind"], (each["numeric"][1] for each in query["n"])
                wanted = [n for n in range(sent[source][-1]) if n % KINDS == kind and n >= least]
                assert await everything(admin, name) == wanted
            await admin.messages.wait(chosen, (await admin.rules.show(chosen)).end - 1, "acked")
            consuming.cancel()
            assert set(got) == set(await everything(admin, chosen))
    finally:
        await terminal.kill()
