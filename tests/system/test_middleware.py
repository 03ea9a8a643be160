"""Compressed and checked batches of a terminal that is killed again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from landbridge.errors import InvalidMessage
from tests.system.test_promise import TerminalProcess

KILLS, MESSAGES = 3, 30_000
STAGES: Any = [{"stage": "authorise"}, {"stage": "validate"}, {"stage": "compress"}]


@pytest.mark.slow
async def test_what_was_let_through_is_stored_once_and_in_order(tmp_path: Path, crashes: list[Any]) -> None:
    async with TerminalProcess(tmp_path / "bus") as terminal:
        async with terminal.connect("maker") as bus:
            await bus.topics.create("orders", middleware=STAGES)
            await bus.types.register("orders", "default", schema={"required": ["n"]})

        async def publish() -> None:
            async with terminal.connect("client") as bus, bus.publisher("orders") as out:
                for n in range(MESSAGES):
                    await out.send({"n": n, "text": "some text that is the same in all of them"})

        publishing = asyncio.ensure_future(publish())
        for kill in range(1, KILLS + 1):
            await stored(terminal, kill * MESSAGES // (KILLS + 2))
            await terminal.kill()
            await terminal.start()
        await publishing
        async with terminal.connect("reader") as bus:
            with pytest.raises(InvalidMessage):
                await bus.publish("orders", {})
            at = 0
            while batches := (await bus.fetch("orders", at)).batches:
                for each in batches:
                    for index, payload in enumerate(each.batch.payloads()):
                        assert payload.startswith(b'{"n":%d,' % at)
                        assert each.batch.headers(index) == {"lb-producer": "test"}
                        at += 1
            assert at == MESSAGES
            assert (await bus.topics.show("orders")).bytes < 20 * MESSAGES


async def stored(terminal: TerminalProcess, count: int) -> None:
    """Wait until the topic has so many messages."""
    async with asyncio.timeout(60), terminal.connect("watcher") as bus:
        while (await bus.topics.show("orders")).end < count:
            await asyncio.sleep(0.005)
