"""Documents: create, read, update by compared version, delete, list, watch; and in transactions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge.broker import documents
from landbridge.broker.server import Terminal
from landbridge.errors import (
    BadName,
    BadRequest,
    DocumentChanged,
    DocumentExists,
    Forbidden,
    LeaseLost,
    StoreFull,
    TooLarge,
    UnknownDocument,
)
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FaultyStore, attach, run_terminal
from tests.contracts.ways import Way
from tests.waiting import Reader


async def test_a_document_is_created_read_updated_and_deleted(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        made = await bus.documents.create("jobs", "nightly", {"at": "02:00", "runs": [1, 2]})
        found = await bus.documents.read("jobs", "nightly")
        assert (found.value, found.version, found.written_by) == (
            {"at": "02:00", "runs": [1, 2]},
            made.version,
            "test",
        )
        changed = await bus.documents.update("jobs", "nightly", None, version=made.version)
        assert changed.version != made.version
        assert (await bus.documents.read("jobs", "nightly")).value is None
        await bus.documents.delete("jobs", "nightly", version=changed.version)
        with pytest.raises(UnknownDocument):
            await bus.documents.read("jobs", "nightly")


async def test_of_two_writers_one_is_told(terminal: Terminal) -> None:
    async with attach(terminal) as one, attach(terminal) as other:
        with pytest.raises(UnknownDocument):
            await one.documents.update("jobs", "a", 1, version="1-1")
        made = await one.documents.create("jobs", "a", 1)
        with pytest.raises(DocumentExists):
            await other.documents.create("jobs", "a", 2)
        tries = await asyncio.gather(
            one.documents.update("jobs", "a", "one", version=made.version),
            other.documents.update("jobs", "a", "other", version=made.version),
            return_exceptions=True,
        )
        assert sum(isinstance(each, DocumentChanged) for each in tries) == 1
        with pytest.raises(DocumentChanged):
            await one.documents.delete("jobs", "a", version=made.version)
        await one.documents.delete("jobs", "a")
        with pytest.raises(UnknownDocument):
            await one.documents.delete("jobs", "a")


async def test_a_version_never_comes_again(tmp_path: Any, crashes: list[Any]) -> None:
    """Not after a deletion, and not after a restart: whoever holds an old version is refused."""
    versions = set()
    for _ in range(3):
        async with run_terminal(JournalStore(tmp_path / "bus")) as terminal, attach(terminal) as bus:
            for _ in range(3):
                versions.add((await bus.documents.create("jobs", "a", 1)).version)
                await bus.documents.delete("jobs", "a")
    assert len(versions) == 9


async def test_documents_survive_and_are_listed_by_key(tmp_path: Any, crashes: list[Any]) -> None:
    async with run_terminal(JournalStore(tmp_path / "bus")) as terminal, attach(terminal) as bus:
        for key in ("b/2", "b/10", "a", "b"):
            await bus.documents.create("jobs", key, key)
        await bus.documents.create("jobs-of-another-kind", "b", 1)
        await bus.documents.create("jobs", "b", "of a topic", topic="orders")
    async with run_terminal(JournalStore(tmp_path / "bus")) as terminal, attach(terminal) as bus:
        rows = await bus.documents.list("jobs")
        assert [(row.key, row.value) for row in rows] == [(key, key) for key in ("a", "b", "b/10", "b/2")]
        assert [row.key for row in await bus.documents.list("jobs", prefix="b/")] == ["b/10", "b/2"]
        assert [row.key for row in await bus.documents.list("jobs", limit=1)] == ["a", "b", "b/10", "b/2"]
        assert [row.value for row in await bus.documents.list("jobs", topic="orders")] == ["of a topic"]


async def test_large_documents_come_in_several_pages(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        for n in range(9):
            await bus.documents.create("jobs", f"{n}", "x" * 200_000)
        assert [row.key for row in await bus.documents.list("jobs")] == list("012345678")


async def test_what_can_not_be_is_refused(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        with pytest.raises(BadName):
            await bus.documents.create("no spaces", "a", 1)
        for key in ("", "a\nb", "x" * 513):
            with pytest.raises(BadRequest):
                await bus.documents.create("jobs", key, 1)
        with pytest.raises(TooLarge):
            await bus.documents.create("jobs", "a", "x" * (256 << 10))
        assert await bus.documents.list("jobs") == []


async def test_a_token_reaches_the_collections_of_its_scope(terminal: Terminal) -> None:
    async with attach(terminal, scopes=["documents:jobs.#", "publish:orders"]) as bus:
        await bus.documents.create("jobs.eu", "a", 1)
        for attempt in (
            bus.documents.create("rules", "a", 1),
            bus.documents.read("rules", "a"),
            bus.documents.list("rules"),
            bus.documents.delete("rules", "a"),
            bus.call("document.wait", collection="rules"),
        ):
            with pytest.raises(Forbidden):
                await attempt
        with pytest.raises(Forbidden):
            async with bus.transaction() as t:
                await t.publish("orders", b"1")
                await t.create_document("rules", "a", 1)
        assert "orders" not in terminal.broker.topics or terminal.broker.topics["orders"].log.end == 0


async def test_a_transaction_writes_documents_with_outputs_and_acks(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        await bus.publish("orders", b"1")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            async with bus.transaction() as t:
                await t.ack(message)
                await t.publish("bills", b"bill")
                await t.create_document("cursors", "g", {"last": 1}, topic="orders")
    async with attach(terminal) as plain:
        found = await plain.documents.read("cursors", "g", topic="orders")
        assert found.value == {"last": 1}
        assert terminal.broker.table.group("orders", "g").delivery.cursor.floor == 1
        assert terminal.broker.topics["bills"].log.end == 1


async def test_a_document_that_was_changed_stops_the_whole_transaction(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        made = await bus.documents.create("cursors", "g", 0, topic="orders")
        await bus.documents.update("cursors", "g", 1, version=made.version, topic="orders")
        await bus.publish("orders", b"1")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            with pytest.raises(DocumentChanged):
                async with bus.transaction() as t:
                    await t.ack(message)
                    await t.publish("orders", b"2")
                    await t.update_document("cursors", "g", 2, version=made.version, topic="orders")
            assert terminal.broker.topics["orders"].log.end == 1
            await message.ack()  # still this consumer's


async def test_a_lost_lease_leaves_the_document_as_it_was(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.publish("orders", b"1")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            await message.ack()
            with pytest.raises(LeaseLost):
                async with bus.transaction() as t:
                    await t.ack(message)
                    await t.create_document("cursors", "g", 1, topic="orders")
        assert await bus.documents.list("cursors", topic="orders") == []


async def test_a_document_that_lives_elsewhere_is_refused_in_a_transaction(terminal: Terminal) -> None:
    """In a store of several units, that is: topics whose units differ."""
    names = [f"t{n}" for n in range(20)]
    units = {name: terminal.broker.documents.unit_of(name) for name in names}
    here = names[0]
    there = next(name for name in names if units[name] != units[here])
    async with attach(terminal) as bus:
        await bus.publish(here, b"1")
        async with Reader(bus.subscribe(here, group="g")) as reader:
            message = await reader.next()
            with pytest.raises(BadRequest):
                async with bus.transaction() as t:
                    await t.ack(message)
                    await t.create_document("cursors", "g", 1, topic=there)
            await message.ack()


async def test_a_failed_commit_leaves_no_document_and_no_version(crashes: list[Any]) -> None:
    store = FaultyStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal, patience=0.1) as bus:
        made = await bus.documents.create("jobs", "a", 1)
        store.failing = True
        with pytest.raises(StoreFull):
            await bus.documents.update("jobs", "a", 2, version=made.version)
        store.failing = False
        assert (await bus.documents.read("jobs", "a")).value == 1
        await bus.documents.update("jobs", "a", 3, version=made.version)


async def test_a_watch_shows_what_is_there_and_then_each_change(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        made = await bus.documents.create("jobs", "a", 1)
        await bus.documents.create("jobs", "other", 1)
        watch = bus.documents.watch("jobs", prefix="a")
        async with asyncio.timeout(20):
            first = await anext(watch)
            assert (first.key, first.document and first.document.value) == ("a", 1)
            await bus.documents.create("jobs", "b", 1)
            await bus.documents.update("jobs", "a", 2, version=made.version)
            second = await anext(watch)
            assert second.document is not None
            assert (second.key, second.document.value) == ("a", 2)
            await bus.documents.delete("jobs", "a")
            third = await anext(watch)
            assert (third.key, third.document) == ("a", None)


async def test_a_watch_goes_on_after_a_restart(tmp_path: Any, crashes: list[Any]) -> None:
    """Numbers of changes begin anew with each start: a watch must not take one for another."""
    path = tmp_path / "bus"
    async with run_terminal(JournalStore(path), port=0) as terminal, attach(terminal) as bus:
        for key in "abc":
            await bus.documents.create("jobs", key, 1)
        watch = bus.documents.watch("jobs")
        assert [(await anext(watch)).key for _ in "abc"] == ["a", "b", "c"]
    async with run_terminal(JournalStore(path)) as terminal, attach(terminal) as bus:
        watch._noun.call = bus.call  # as after a reconnect
        await bus.documents.delete("jobs", "b")
        await bus.documents.create("jobs", "d", 1)
        async with asyncio.timeout(20):
            seen = {(change := await anext(watch)).key: change.document is not None for _ in range(2)}
        assert seen == {"b": False, "d": True}


async def test_a_watcher_hears_that_it_has_missed_changes(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many other collections were watched meanwhile, and then somebody else watches this one again."""
    monkeypatch.setattr(documents, "WATCHED", 2)
    async with attach(terminal) as bus:
        begun = await bus.documents.wait("mine", after="", within=0.0)
        for other in ("a", "b"):
            await bus.documents.wait(other, after="", within=0.0)
        await bus.documents.create("mine", "key", 1)
        await bus.documents.wait("mine", after="", within=0.0)
        assert (await bus.documents.wait("mine", after=begun.after, within=0.0)).missed
