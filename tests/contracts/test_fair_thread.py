"""A thread that is shared fairly: whoever comes seldom doesn't wait behind those who always want it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from threading import Event

import pytest

from landbridge.broker.fair_thread import FairThread
from tests.waiting import eventually, turns


@pytest.fixture
async def thread() -> AsyncIterator[FairThread]:
    found = FairThread("test")
    yield found
    found.close()


async def test_who_had_nothing_yet_is_next(thread: FairThread) -> None:
    done: list[str] = []
    gates = [Event() for _ in range(4)]

    def work(user: str, gate: Event) -> None:
        gate.wait()
        done.append(user)

    async def busy(user: str, mine: list[Event]) -> None:
        for gate in mine:
            await thread.run(user, partial(work, user, gate))

    first = asyncio.ensure_future(busy("a", [gates[0], gates[2]]))
    second = asyncio.ensure_future(busy("b", [gates[1], gates[3]]))
    await turns()
    gates[0].set()  # b is at work, and a waits for its second turn
    await eventually(lambda: done == ["a"])
    await turns()
    late = asyncio.ensure_future(busy("late", [gates[0]]))
    await turns()
    for gate in gates:
        gate.set()
    await asyncio.gather(first, second, late)
    assert done[:3] == ["a", "b", "late"]


async def test_who_asks_for_much_at_once_has_one_turn_at_a_time(thread: FairThread) -> None:
    done: list[str] = []
    gate = Event()
    first = asyncio.ensure_future(thread.run("a", gate.wait))
    await turns()
    many = [asyncio.ensure_future(thread.run("a", partial(done.append, "a"))) for _ in range(5)]
    await turns()
    other = asyncio.ensure_future(thread.run("b", partial(done.append, "b")))
    await turns()
    gate.set()
    await asyncio.gather(first, *many, other)
    assert done == ["b", "a", "a", "a", "a", "a"]


async def test_a_turn_that_is_not_wanted_any_more_is_passed_on(thread: FairThread) -> None:
    gate = Event()
    first = asyncio.ensure_future(thread.run("a", gate.wait))
    waiting = [asyncio.ensure_future(thread.run("b", lambda: 1)) for _ in range(3)]
    await turns()
    waiting[0].cancel()
    gate.set()
    assert await first
    assert await asyncio.gather(*waiting[1:]) == [1, 1]
    # Also one whose turn has come in the very moment.
    gate.clear()
    first = asyncio.ensure_future(thread.run("a", gate.wait))
    waiting = [asyncio.ensure_future(thread.run("b", lambda: 2)) for _ in range(2)]
    await turns()
    gate.set()
    first.add_done_callback(lambda _: waiting[0].cancel())
    await asyncio.wait([first, *waiting])
    assert await waiting[1] == 2
    assert await thread.run("c", lambda: 3) == 3


async def test_what_fails_is_told_and_the_next_one_begins(thread: FairThread) -> None:
    def fail() -> None:
        raise ValueError("no")

    failed, next_one = thread.run("a", fail), thread.run("b", lambda: 1)
    told, done = await asyncio.gather(failed, next_one, return_exceptions=True)
    assert (type(told), done) == (ValueError, 1)
