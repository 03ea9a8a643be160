"""Requests that were found to take what is others', to stop them, or to lose what they had."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.core.log.batch import build
from landbridge.core.log.store import Append, Trim
from landbridge.errors import (
    BadFrame,
    BadRequest,
    DocumentChanged,
    DocumentExists,
    Forbidden,
    LimitReached,
    StoreFull,
    TooLarge,
)
from landbridge.protocol import frames
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FaultyStore, attach, run_terminal
from tests.contracts.ways import Way
from tests.waiting import LIMIT, Reader, eventually


def one(payload: bytes) -> bytes:
    return bytes(build([payload], id=bytes(16), time=0))


async def test_a_stage_is_committed_by_the_one_whose_it_is(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal, subject="job", scopes=["publish:orders"]) as job:
        assert (await job.stages.commit(stage="q1", number=0, log=None, runs=[])).decided
        async with way.connect(terminal, subject="thief", scopes=["publish:mine"]) as thief:
            with pytest.raises(Forbidden):
                await thief.stages.commit(stage="q1", number=1 << 40, log=None, runs=[])
        assert (await job.stages.commit(stage="q1", number=1, log=None, runs=[])).decided


async def test_a_birth_in_the_far_future_counts_as_now() -> None:
    store = MemoryStore()
    async with run_terminal(store, port=0) as terminal, attach(terminal) as bus:
        await bus.ask(lambda n: frames.Publish(n, "orders", b"evil", 1, 0, 1 << 62), one(b"x"))
        found = terminal.broker.topics["orders"]
        await terminal.broker.write([Trim(found.log.number, 1)], unit=found.writer.unit)
    async with run_terminal(store, port=0) as terminal, attach(terminal) as bus:
        assert terminal.broker.topics["orders"].log.forgotten <= terminal.broker.clock()
        assert (await bus.publish("orders", b"y")).offset == 1


FAR, BEFORE = 253_402_300_800 * 1_000_000, -1


@pytest.mark.parametrize(
    "columns",
    [
        {"time": FAR},
        {"time": BEFORE},
        {"time": 0, "times": [0, FAR]},
        {"time": 0, "deliver_at": [0, 1 << 62]},
        {"time": 0, "expires_at": [BEFORE, 0]},
    ],
)
async def test_a_moment_that_no_calendar_has_is_not_stored(terminal: Terminal, columns: Any) -> None:
    """Whoever shows it, or fills it into a template, would fail for good."""
    async with attach(terminal) as bus:
        batch = bytes(build([b"1", b"2"], id=bytes(16), **columns))
        with pytest.raises(BadFrame):
            await bus.ask(lambda n: frames.Publish(n, "orders", b"p", 1), batch)
    async with attach(terminal) as bus:
        batch = bytes(build([b"1"], id=bytes(16), time=FAR - 1))
        await bus.ask(lambda n: frames.Publish(n, "orders", b"p", 1), batch)
    assert terminal.broker.topics["orders"].log.end == 1


@pytest.mark.parametrize("producer", [b"handover/1", b"stage/q/1", b"from:ter_x:1"])
async def test_no_client_calls_itself_as_the_terminal_does(terminal: Terminal, producer: bytes) -> None:
    async with attach(terminal) as bus:
        with pytest.raises(BadRequest):
            await bus.ask(lambda n: frames.Publish(n, "orders", producer, 1), one(b"x"))


async def test_a_deletion_that_is_refused_deletes_nothing() -> None:
    store = FaultyStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.publish("orders", b"0")
        await bus.groups.create("orders", "g")
        await terminal.broker.drain()
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            store.failing = True
            with pytest.raises(StoreFull):
                await bus.groups.delete("orders", "g", force=True)
            with pytest.raises(StoreFull):
                await bus.topics.delete("orders", force=True)
            store.failing = False
            assert (await bus.publish("orders", b"1")).offset == 1
            assert await reader.payloads(2) == [b"0", b"1"]
            await reader.subscription.flush()
        await bus.groups.delete("orders", "g")
        await bus.topics.delete("orders", force=True)
        assert (await bus.publish("orders", b"2")).offset == 0


async def test_a_repeat_of_what_is_stored_is_answered_whatever_becomes_of_the_commit() -> None:
    """Its answer was lost, and the disk is full when it is repeated."""

    class Full(FaultyStore):
        full = False

        async def commit(self, unit: int, epoch: int, writes: Any) -> Any:
            if self.full and any(isinstance(write, Append) for write in writes):
                raise self.error
            return await super().commit(unit, epoch, writes)

    store = Full(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus, attach(terminal) as other:
        batch = one(b"x")

        async def ask() -> None:
            await bus.ask(lambda n: frames.Publish(n, "orders", b"p", 1, 0), batch)
            await bus.ask(lambda n: frames.Transact(n, b"p", 1, 1, [("out", len(batch))], [], []), batch)

        await ask()
        store.full = True
        waiting = asyncio.ensure_future(other.publish("orders", b"no room"))
        await ask()
        store.full = False
        await waiting


async def test_redrive_reads_for_one_group_alone(terminal: Terminal) -> None:
    places = [("a.b", "c"), ("a", "b.c")]
    async with attach(terminal) as bus:
        for topic, group in places:
            await bus.groups.create(topic, group, dead_letter="letters")
            await bus.publish(topic, f"{topic}/{group}".encode())
            async with Reader(bus.subscribe(topic, group=group)) as reader:
                await (await reader.next()).bury("bad")
                floor = terminal.broker.table.group(topic, group).delivery
                await eventually(lambda floor=floor: floor.cursor.floor == 1)
        for topic, group in places:
            assert (await bus.groups.redrive(topic, group)).redriven == 1
            async with Reader(bus.subscribe(topic, group=group)) as reader:
                assert await reader.payloads(1) == [f"{topic}/{group}".encode()]


@pytest.mark.parametrize("name", ["$redrive.x", "ephemeral-1-2"])
async def test_groups_of_the_terminal_are_nobody_elses(terminal: Terminal, way: Way, name: str) -> None:
    async with way.connect(terminal) as bus:
        await bus.publish("orders", b"1")
        with pytest.raises(BadRequest):
            await bus.subscribe("orders", group=name).open()
        with pytest.raises(BadRequest):
            await bus.groups.create("orders", name)
        with pytest.raises(BadRequest):
            await bus.call("group.advance", topic="orders", name=name, to=1)


# -- documents ----------------------------------------------------------------------------------------


async def transact(bus: Any, *edits: frames.DocumentEdit) -> None:
    await bus.ask(lambda n: frames.Transact(n, b"p" * 16, n, 1, [], [], list(edits)))


def edit(key: str, value: bytes | None, expect: str | None = "") -> frames.DocumentEdit:
    return frames.DocumentEdit("things", "", key, value, expect)


async def test_a_transaction_with_many_documents_holds_nobody_up(terminal: Terminal) -> None:
    async with attach(terminal) as bus, attach(terminal) as other:
        with pytest.raises(LimitReached):
            await transact(bus, *(edit(f"{n}", b"\x01") for n in range(1201)))
        await transact(bus, *(edit(f"{n}", b"\x01") for n in range(1000)))
        async with asyncio.timeout(LIMIT):
            await other.publish("orders", b"1")


@pytest.mark.parametrize(
    "value",
    [b"\xc1", b"", b"\x91" * 5000 + b"\xc0", b"\xc4\x01a", b"\x81\x01\x02", b"\xcb\x7f\xf8" + bytes(6)],
)
async def test_a_document_is_a_json_value(terminal: Terminal, value: bytes) -> None:
    async with attach(terminal) as bus:
        with pytest.raises(BadRequest):
            await transact(bus, edit("a", value))
        assert await bus.documents.list("things") == []


async def test_versions_are_compared_within_a_transaction_too(terminal: Terminal) -> None:
    one, two = b"\x01", b"\x02"
    async with attach(terminal) as bus:
        with pytest.raises(DocumentExists):
            await transact(bus, edit("a", one), edit("a", two))
        made = await bus.documents.create("things", "a", 1)
        with pytest.raises(DocumentChanged):
            await transact(bus, edit("a", two, made.version), edit("a", one, made.version))
        with pytest.raises(BadRequest):
            await transact(bus, edit("a", two, None))
        with pytest.raises(BadRequest):
            await bus.documents.update("things", "b", 1, version="")
        assert (await bus.documents.read("things", "a")).value == 1


async def test_what_is_too_large_for_a_frame_ends_no_connection(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        with pytest.raises(TooLarge):
            await bus.documents.create("things", "a", "x" * (2 << 20))
        with pytest.raises(TooLarge):
            async with bus.transaction() as t:
                for number in range(5):
                    await t.create_document("things", f"{number}", "x" * 250_000)
        assert (await bus.publish("orders", b"1")).offset == 0
