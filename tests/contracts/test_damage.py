"""Damage stays small: whatever can't be read of one topic, group or document, everything else starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.core.log.store import DropLog, PutDocument, PutLedger
from landbridge.errors import StoreCorrupt, Unauthenticated
from landbridge.stores.journal.store import JournalFolder, JournalStore
from landbridge.testing import attach, run_terminal
from tests.waiting import Reader, eventually

GARBAGE = [b"", b"\xff\xfe garbage \x00", b"\x93\x01\x02\x03"]
IDS = ["empty", "garbage", "numbers"]


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """The store of a terminal that has been used."""
    async with run_terminal(JournalStore(tmp_path / "bus")) as terminal, attach(terminal) as bus:
        for topic in "orders", "sound":
            await bus.call("topic.create", name=topic)
            await bus.call("group.create", topic=topic, name="g")
            for number in range(4):
                await bus.publish(topic, b"%d" % number)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await (await reader.next()).ack(wait=True)
        await bus.documents.create("jobs", "a", 1)
        await bus.documents.create("jobs", "b", 2)
        await bus.call("token.create", subject="shop", scopes=["publish:#"], life=3600.0)
        await bus.call("status.levels", default="errors")
    return tmp_path / "bus"


def spoil(folder: Path, *writes: Any) -> None:
    store = JournalFolder(folder)
    store.open()
    store.commit(writes)
    store.close()


def documents(folder: Path, kind: str) -> dict[str, bytes]:
    store = JournalFolder(folder)
    store.open()
    try:
        return dict(store.documents(kind))
    finally:
        store.close()


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[tuple[Terminal, Bus, list[Any]]]:
    with structlog.testing.capture_logs() as logs:
        async with run_terminal(JournalStore(folder)) as terminal, attach(terminal, patience=0.0) as bus:
            yield terminal, bus, [line for line in logs if line["event"] == "damage"]


async def works(bus: Bus, topic: str = "sound") -> None:
    """Everything else: messages are there, are delivered and can be published."""
    async with Reader(bus.subscribe(topic, group="g")) as reader:
        assert [message.payload for message in await reader.take(4)] == [b"0", b"1", b"2", b"3"]
    assert (await bus.publish(topic, b"4")).offset == 4


@pytest.mark.parametrize("garbage", GARBAGE, ids=IDS)
async def test_a_damaged_topic_is_set_aside(folder: Path, garbage: bytes) -> None:
    spoil(folder, PutDocument("topic", "orders", garbage))
    async with started(folder) as (terminal, bus, logs):
        await works(bus)
        assert len(logs) == 1
        assert "orders" in logs[0]["detail"]
        for refused in bus.publish("orders", b"5"), bus.topics.show("orders"), bus.topics.create("orders"):
            with pytest.raises(StoreCorrupt, match="orders") as caught:
                await refused
            assert "topic delete" in caught.value.hint
        assert "orders" not in terminal.broker.topics
    assert documents(folder, "topic")["orders"] == garbage, "what is damaged is left as it is"
    async with started(folder) as (terminal, bus, _):
        before = set(await terminal.store.logs(0))
        await bus.topics.delete("orders", force=True)
        assert len(before - set(await terminal.store.logs(0))) == 1, "its log has gone with it"
        assert (await bus.publish("orders", b"new")).offset == 0
    async with started(folder) as (terminal, _, logs):
        assert not logs
        assert terminal.broker.topics["orders"].log.end == 1


@pytest.mark.parametrize("kind", ["group", "cursor"])
@pytest.mark.parametrize("garbage", GARBAGE, ids=IDS)
async def test_a_damaged_group_stops_until_it_is_moved(folder: Path, kind: str, garbage: bytes) -> None:
    key = next(key for key in documents(folder, kind) if key.startswith("1/g"))
    spoil(folder, PutDocument(kind, key, garbage))
    async with started(folder) as (terminal, bus, logs):
        await works(bus)
        assert [line["group"] for line in logs] == ["g"]
        with pytest.raises(StoreCorrupt) as caught:
            async for _ in bus.subscribe("orders", group="g"):
                pass
        assert "group seek" in caught.value.hint
        async with Reader(bus.subscribe("orders", group="other", start="earliest")) as reader:
            await reader.take(4)
        assert terminal.broker.topics["orders"].settled_to() == 0, "nothing is taken for settled"
        await bus.groups.seek("orders", "g", to=2)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert (await reader.next()).payload == b"2"
        await terminal.broker.drain()
    async with started(folder) as (terminal, bus, logs):
        assert not logs, "the seek has mended it"
        assert terminal.broker.table.group("orders", "g").delivery.cursor.floor == 2


@pytest.mark.parametrize("garbage", GARBAGE, ids=IDS)
@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("settings", "start"),
        ("settings", "status"),
        ("settings", "next-log"),
        ("settings", "incarnation"),
        ("history", "1"),
        ("history", "what?"),
        ("confirmed", "1/g"),
        ("cursor", "1/g/what?"),
        ("group", "what?"),
        ("handover", "00000000000000000007"),
        ("handover", "what?"),
        ("token", "what?"),
        ("stage", "nightly"),
        ("revoked", "what?"),
        ("unit", "0"),
        ("unknown", "what?"),
    ],
)
async def test_other_documents(folder: Path, kind: str, key: str, garbage: bytes) -> None:
    spoil(folder, PutDocument(kind, key, garbage))
    async with started(folder) as (terminal, bus, _):
        await works(bus)
        await bus.tokens.list()
        if (kind, key) != ("cursor", "1/g/what?"):
            assert (await bus.publish("orders", b"4")).offset == 4
        assert (await bus.publish("new", b"0")).offset == 0
        new, start = terminal.broker.topics["new"].log.number, terminal.broker.life.start
    async with started(folder) as (terminal, bus, _):
        assert terminal.broker.topics["new"].log.number == new
        assert terminal.broker.life.start > start


@pytest.mark.parametrize("garbage", GARBAGE, ids=IDS)
async def test_a_damaged_signing_key_is_replaced(folder: Path, garbage: bytes) -> None:
    async with started(folder) as (terminal, _, _):
        token = terminal.issue_token("shop", ["admin"], 3600.0)
    spoil(folder, PutDocument("settings", "signing-key", garbage))
    async with started(folder) as (terminal, bus, logs):
        await works(bus)
        assert "token create" in logs[0]["hint"]
        with pytest.raises(Unauthenticated):
            async with attach(terminal, token=token):
                pass
        token = terminal.issue_token("shop", ["admin"], 3600.0)
    async with started(folder) as (terminal, _, logs), attach(terminal, token=token):
        assert not logs


@pytest.mark.parametrize("garbage", GARBAGE, ids=IDS)
async def test_a_damaged_document_can_be_deleted(folder: Path, garbage: bytes) -> None:
    key = next(key for key in documents(folder, "document") if key.startswith("jobs//a"))
    spoil(folder, PutDocument("document", key, garbage))
    async with started(folder) as (_, bus, _):
        await works(bus)
        with pytest.raises(StoreCorrupt, match="jobs/a") as caught:
            await bus.documents.read("jobs", "a")
        assert "delete" in caught.value.hint
        assert (await bus.documents.read("jobs", "b")).value == 2
        await bus.documents.delete("jobs", "a")
        await bus.documents.create("jobs", "a", 3)


async def test_a_damaged_stage_is_refused_alone(folder: Path) -> None:
    spoil(folder, PutDocument("stage", "nightly", b"garbage"))
    async with started(folder) as (_, bus, logs):
        assert len(logs) == 1
        with pytest.raises(StoreCorrupt, match="nightly"):
            await bus.call("stage.commit", stage="nightly", number=1, log=None, runs=[])
        await bus.call("stage.drop", stage="nightly", forget=True)
        await bus.call("stage.commit", stage="nightly", number=1, log=None, runs=[])


async def test_a_damaged_entry_of_the_ledger_concerns_its_producer(folder: Path) -> None:
    producer = b"p" * 16
    spoil(folder, PutLedger(1, producer, b"garbage"), PutLedger(0, producer, b"garbage"))
    async with started(folder) as (terminal, bus, _):
        await works(bus)
        log = terminal.broker.topics["orders"].log
        with pytest.raises(StoreCorrupt):
            await log._load_entry(producer)
        with pytest.raises(StoreCorrupt):
            await terminal.broker.ledger._load(0, producer)
        assert (await bus.publish("orders", b"4")).offset == 4


async def test_a_log_that_is_lost_leaves_its_topic_empty(folder: Path) -> None:
    spoil(folder, DropLog(1))
    async with started(folder) as (_, bus, _):
        await works(bus)
        assert (await bus.publish("orders", b"0")).offset == 0


async def test_a_damaged_batch_stops_its_readers_alone(folder: Path) -> None:
    flip(folder, log=1, offset=2)
    async with started(folder) as (_, bus, _):
        await works(bus)
        async with Reader(bus.subscribe("orders", group="other", start="earliest")) as reader:
            assert [message.payload for message in await reader.take(2)] == [b"0", b"1"]
            with pytest.raises(StoreCorrupt, match="offset 2") as caught:
                await reader.next()
            assert "group seek" in caught.value.hint
        await bus.groups.seek("orders", "g", to=3)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert (await reader.next()).payload == b"3"
        await bus.publish("orders", b"4")


def flip(folder: Path, *, log: int, offset: int) -> None:
    """Change a bit of the batch that holds this offset of a log."""
    store = JournalFolder(folder)
    store.open()
    at = store.row_at(log, offset)
    path, where = store.segments.held[at.segment].path, at.position
    store.close()
    with path.open("r+b") as file:
        file.seek(where + 8)
        byte = file.read(1)[0]
        file.seek(where + 8)
        file.write(bytes([byte ^ 0x10]))


# -- telling of it


async def test_damage_is_told_in_the_status_log(folder: Path) -> None:
    spoil(folder, PutDocument("topic", "orders", b"garbage"))
    async with started(folder) as (terminal, bus, _):
        terminal.broker.status_topic.write()
        async with Reader(bus.subscribe("$status", group="watch", start="earliest")) as reader:
            while (event := (await reader.next()).json())["event"] != "damage":
                pass
        assert event["topic"] == "orders"
        assert event["cause"] == "store_corrupt"
        assert "topic delete" in event["detail"]


async def test_what_the_store_finds_is_told(folder: Path) -> None:
    (folder / "index.db").write_bytes(b"garbage" * 2000)
    async with started(folder) as (terminal, bus, logs):
        await works(bus)
        assert any("made anew" in line["detail"] for line in logs)
        assert terminal.broker.damage.found
        await eventually(lambda: not terminal.broker.units.writers[0].is_busy)
