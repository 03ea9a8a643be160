"""Searches of the console."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge.console import searching
from landbridge.testing import attach, run_terminal


async def test_a_search_by_a_costly_rule_lets_others_have_their_turns(
    monkeypatch: pytest.MonkeyPatch, crashes: list[Any]
) -> None:
    monkeypatch.setattr(searching, "TURN_WITHIN", -1.0)  # each message takes longer than a turn may
    test = searching.read_test("", "", '{"kind": "jsonpath", "path": "$.a[?@.b > 7]"}')
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with run_terminal() as terminal, attach(terminal) as bus:
        async with bus.publisher("orders") as publisher:
            for number in range(50):
                await publisher.send({"a": [{"b": number % 3}]})
        begun: list[int] = []

        def counted(batch: Any, index: int) -> bool:
            begun.append(turns)
            assert test is not None
            return test(batch, index)

        task = asyncio.ensure_future(other())
        found = await searching.search(bus, "orders", 0, counted)
        task.cancel()
        assert (found.scanned, found.messages, found.is_end) == (50, [], True)
        assert len(set(begun)) == 50, "a turn of others between any two messages"
