"""Searches of the console."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge.console import searching
from landbridge.errors import BadRequest
from landbridge.testing import attach, run_terminal


@pytest.mark.parametrize("backwards", [False, True])
async def test_a_search_by_a_costly_rule_lets_others_have_their_turns(
    monkeypatch: pytest.MonkeyPatch, crashes: list[Any], backwards: bool
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
        if backwards:
            found = await searching.search_back(bus, "orders", 50, counted)
        else:
            found = await searching.search(bus, "orders", 0, counted)
        task.cancel()
        assert (found.scanned, found.messages, found.is_end) == (50, [], True)
        assert len(set(begun)) == 50, "a turn of others between any two messages"


@pytest.mark.parametrize(
    ("rows", "at_once", "most_scanned", "window"),
    [(7, 1 << 20, 50_000, 64), (7, 300, 50_000, 4), (1000, 900, 10, 64), (3, 1 << 20, 50_000, 1)],
)
async def test_a_search_backwards_finds_what_one_forwards_does(
    monkeypatch: pytest.MonkeyPatch,
    crashes: list[Any],
    rows: int,
    at_once: int,
    most_scanned: int,
    window: int,
) -> None:
    """Page by page, whatever the batches, the windows and the bounds of one search are."""
    monkeypatch.setattr(searching, "AT_ONCE", at_once)
    monkeypatch.setattr(searching, "MOST_SCANNED", most_scanned)
    monkeypatch.setattr(searching, "WINDOW", window)
    async with run_terminal() as terminal, attach(terminal) as bus:
        number = 0
        for size in (1, 5, 40, 2, 1, 17, 3, 30):
            async with bus.transaction() as transaction:
                for _ in range(size):
                    key = f"k{number % 3}"
                    await transaction.publish("orders", {"n": number, "x": "y" * (number % 50)}, key=key)
                    number += 1
        every = {offset: f"k{offset % 3}" for offset in range(number)}
        for chosen, end in (
            (None, number),
            (None, 60),
            ("k1", number),
            ("k1", 31),
            ("none", number),
            ("k0", 0),
        ):
            test = None if chosen is None else searching.read_test(chosen, "", "")
            wanted = [offset for offset in range(min(end, number)) if chosen in (None, every[offset])][::-1]
            seen: list[int] = []
            at, is_end = end, end == 0
            while not is_end:
                found = await searching.search_back(bus, "orders", at, test, rows)
                assert len(found.messages) <= rows
                assert found.scanned <= most_scanned
                assert found.is_end or found.next < at
                seen += [message.offset for message in found.messages]
                at, is_end = found.next, found.is_end
            assert seen == wanted
            assert all(message.key == every[message.offset] for message in found.messages)


async def test_where_a_search_backwards_begins(crashes: list[Any]) -> None:
    async with run_terminal() as terminal, attach(terminal) as bus:
        for number in range(5):
            await bus.publish("orders", {"n": number})
        begins = {"": 5, "latest": 5, "3": 4, "1,000": 1001, "earliest": 1, "2099-01-01T00:00:00Z": 5}
        for start, end in begins.items():
            assert await searching.end_at(bus, "orders", start) == end
        assert await searching.end_at(bus, "orders", "-2h") == 0
        with pytest.raises(BadRequest):
            await searching.end_at(bus, "orders", "nonsense")
        newest = await searching.last(bus, "orders")
        assert [message.offset for message in newest.messages] == [4, 3, 2, 1, 0]
        far = await searching.search_back(bus, "orders", 1001, None, 2)
        assert ([message.offset for message in far.messages], far.next, far.is_end) == ([4, 3], 3, False)
