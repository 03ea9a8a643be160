"""Webhooks of a real process that is killed while it sends: every message at least once, in order where that
was asked for, signed."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import landbridge
from tests.ports import free_port
from tests.receivers import OK, Received, Receiver, says
from tests.system.test_promise import end, line_of, start
from tests.waiting import eventually

KILLS, MESSAGES = 5, 40
ALL = MESSAGES * (KILLS + 1)


def _has_all(receiver: Receiver) -> bool:
    return len(set(receiver.bodies)) == ALL


def _has(receiver: Receiver, requests: int) -> bool:
    return len(receiver.requests) >= requests


async def test_every_message_is_sent_at_least_once_whatever_is_killed_when(tmp_path: Path) -> None:
    port, chance = free_port(), random.Random(11)
    secrets: dict[str, str] = {}

    def answer(request: Received) -> bytes:
        return says(500) if chance.random() < 0.1 else OK

    async with Receiver(answer) as loose, Receiver(answer) as strict, Receiver(answer) as chosen:
        receivers = {"loose": loose, "strict": strict, "chosen": chosen}
        for life in range(KILLS + 1):
            process = await start("webhook_process.py", tmp_path / "bus", port)
            try:
                token = await line_of(process)
                async with landbridge.connect(f"lb://127.0.0.1:{port}", token=token) as bus:
                    if not life:
                        await bus.topics.create("orders")
                        for name, receiver in receivers.items():
                            options: dict[str, Any] = {"ordered": name != "loose"}
                            if name == "chosen":  # by a rule, which chooses every message
                                options["query"] = {"number": [{"numeric": [">=", 0]}]}
                            made = await bus.webhooks.create("orders", name, receiver.url, **options)
                            secrets[name] = made.secret
                    # Each message makes a request at least: so many are still to come.
                    wanted = len(strict.requests) + chance.randint(1, MESSAGES)
                    for number in range(MESSAGES):
                        await bus.publish("orders", b'{"number": %d}' % (life * MESSAGES + number))
                    if life < KILLS:
                        await eventually(partial(_has, strict, wanted), f"{wanted} requests")
                        process.kill()
                        continue
                    for receiver in receivers.values():
                        await eventually(partial(_has_all, receiver), "every message was sent")
            finally:
                await end(process)
    for ordered in (strict, chosen):
        firsts = list(dict.fromkeys(ordered.bodies))
        assert firsts == [b'{"number": %d}' % each for each in range(ALL)]
        # A repetition is of the message that was sent last, never of an older one.
        for before, after in zip(ordered.bodies, ordered.bodies[1:], strict=False):
            assert firsts.index(after) - firsts.index(before) in (0, 1)
    for name, receiver in receivers.items():
        ids: dict[bytes, str] = {}
        for request in receiver.requests:
            request.verify(secrets[name])
            assert ids.setdefault(request.body, request.id) == request.id
        assert len(set(ids.values())) == ALL
