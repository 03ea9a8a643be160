"""The writer: one group commit, formed when somebody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from landbridge.core.log.store import Append, PutDocument
from landbridge.errors import BadRequest, StoreCorrupt, StoreFull
from landbridge.stores.memory import MemoryStore
from landbridge.stores.writer import Commit, NotLoaded, Writer, adding
from landbridge.testing import FaultyStore
from tests.waiting import eventually, turns


class Place:
    """A writer whose every commit carries what stands in ``along``."""

    def __init__(self, store: FaultyStore, epoch: int) -> None:
        self.store = store
        self.along: list[PutDocument] = []
        self.writer: Writer[Commit] = Writer(
            store, 0, epoch,
            begin=lambda: Commit(0), finish=self._finish, apply=lambda commit: None, most_bytes=1 << 20,
        )  # fmt: skip

    def _finish(self, commit: Commit) -> None:
        commit.writes += self.along
        self.along = []

    async def keys(self) -> list[str]:
        return [key for key, _ in await self.store.documents(0, "kind")]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    store = FaultyStore(MemoryStore())
    await store.open()
    yield Place(store, await store.claim(0))
    await store.close()


def document(key: str) -> Any:
    return PutDocument("kind", key, b"")


def giving(result: int, key: str) -> Callable[[Commit], int]:
    """Work that writes a document and has this result."""

    def work(commit: Commit) -> int:
        commit.writes.append(document(key))
        return result

    return work


async def test_what_only_goes_along_waits_until_somebody_asks(place: Place) -> None:
    await place.writer.put(adding([document("a")]))
    place.along.append(document("along"))
    await turns()
    assert await place.keys() == ["a"]
    assert place.writer.commits == 1
    await place.writer.put(adding([document("b")]))
    assert await place.keys() == ["a", "along", "b"]


async def test_who_asks_while_a_commit_is_under_way_gets_the_next_one(place: Place) -> None:
    place.store.gate.clear()
    done = place.writer.put(adding([document("a")]))
    await turns()
    place.along.append(document("along"))
    place.writer.poke()
    await turns()
    assert not done.done()
    place.store.gate.set()
    await place.writer.drain()
    assert await place.keys() == ["a", "along"]
    assert place.writer.commits == 2


async def test_what_goes_along_with_nothing_is_not_committed_after_every_commit(place: Place) -> None:
    """A commit whose end moves something that goes along must not cause another one, for ever."""

    def again(commit: Commit) -> None:
        commit.writes.append(document("a"))
        commit.on_stored.append(lambda: place.along.append(document("along")))

    await place.writer.put(again)
    await turns()
    assert place.writer.commits == 1
    place.writer.poke()
    await eventually(lambda: place.writer.commits == 2)
    assert await place.keys() == ["a", "along"]


async def test_who_hands_in_is_told_in_the_turn_in_which_the_commit_is_on_disk(place: Place) -> None:
    told: list[Any] = []
    place.store.gate.clear()
    done = place.writer.put(adding([document("a")]))
    place.writer.hand_in(giving(2, "b"), told.append)
    await turns()
    assert not told
    done.add_done_callback(lambda done: told.append("a turn later"))
    place.store.gate.set()
    await place.writer.drain()
    await turns()
    assert told == [2, "a turn later"]


async def test_ends_are_told_in_the_order_in_which_they_came(place: Place) -> None:
    """The next commit is formed before the callers of this one are told. What it refuses comes after."""
    told: list[Any] = []

    def refused(commit: Commit) -> int:
        raise BadRequest("no")

    place.store.gate.clear()
    place.writer.hand_in(giving(1, "a"), told.append)
    await turns()
    place.writer.hand_in(refused, told.append)
    place.writer.hand_in(giving(3, "b"), told.append)
    place.store.gate.set()
    await place.writer.drain()
    assert [type(result) for result in told] == [int, BadRequest, int]


async def test_a_caller_that_crashes_keeps_nobody_from_being_told(place: Place) -> None:
    told: list[Any] = []
    crashes: list[Any] = []

    def crash() -> None:
        raise ZeroDivisionError

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: crashes.append(context))
    place.writer.hand_in(giving(1, "a"), lambda result: crash())
    place.writer.hand_in(giving(2, "b"), told.append)
    await place.writer.drain()
    assert told == [2]
    assert [type(context["exception"]) for context in crashes] == [ZeroDivisionError]


async def test_a_commit_that_fails_is_told_to_all_who_have_handed_in(place: Place) -> None:
    told: list[Any] = []
    place.store.fail_on = {place.store.commits + 1}
    place.writer.hand_in(adding([document("a")]), told.append)
    place.writer.hand_in(adding([document("b")]), told.append)
    await place.writer.drain()
    assert [type(result) for result in told] == [StoreFull, StoreFull]


def appending(key: str) -> Any:
    """Work that needs room."""

    def work(commit: Commit) -> str:
        commit.need_room()
        commit.writes += [document(key), Append(1, 0, 1, 0, b"batch")]
        return key

    return work


async def test_work_that_needs_room_is_refused_while_the_store_is_low(place: Place) -> None:
    place.store.full = True
    refused, done = place.writer.put(appending("a")), place.writer.put(adding([document("b")]))
    with pytest.raises(StoreFull, match="no room"):
        await refused
    await done
    assert await place.keys() == ["b"]
    assert place.writer.commits == 1, "the refusal came while the commit was formed"
    place.store.full = False
    assert await place.writer.put(appending("a")) == "a"


async def test_a_commit_without_room_fails_only_what_needs_it(place: Place) -> None:
    """The disk is full in the very commit that finds it out."""
    undone: list[str] = []

    def settling(key: str) -> Any:
        def work(commit: Commit) -> str:
            commit.writes.append(document(key))
            commit.on_failed.append(lambda: undone.append(f"undo {key}"))
            commit.on_given_up.append(lambda: undone.append(f"give up {key}"))
            return key

        return work

    place.store.full = place.store.full_by_surprise = True
    place.store.gate.clear()
    first = place.writer.put(settling("a"))
    refused, last = place.writer.put(appending("b")), place.writer.put(settling("c"))
    await turns()
    late = place.writer.put(appending("d"))
    place.store.gate.set()
    for each in refused, late:
        with pytest.raises(StoreFull, match="no room"):
            await each
    assert [await first, await last] == ["a", "c"]
    assert await place.keys() == ["a", "c"]
    assert undone == ["undo c", "undo a"], "both are formed again"
    place.store.full = False
    assert await place.writer.put(appending("e")) == "e", "the next commit has room"


async def test_a_load_that_fails_beside_a_full_disk_fails_its_own_work_alone(place: Place) -> None:
    async def load() -> None:
        await turns()
        raise StoreCorrupt("damaged (as told)")

    def missing(commit: Commit) -> None:
        raise NotLoaded(load)

    place.store.full = place.store.full_by_surprise = True
    works = [place.writer.put(work) for work in (appending("a"), adding([document("b")]), missing)]
    done = await asyncio.gather(*works, return_exceptions=True)
    assert [type(each) for each in done] == [StoreFull, type(None), StoreCorrupt]
    assert await place.keys() == ["b"]
