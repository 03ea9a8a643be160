"""The writer: one group commit, formed when somebody asks for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from landbridge.core.log.store import PutDocument
from landbridge.stores.memory import MemoryStore
from landbridge.stores.writer import Commit, Writer, adding
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
