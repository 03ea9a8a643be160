"""Copies of stores: what a terminal knew in one store it knows in another, into however many units that is
divided."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from landbridge.broker import topic as topics
from landbridge.broker.commit import SETTINGS, START
from landbridge.broker.division import Division, merged
from landbridge.broker.rule_topics import home_of, unit_of
from landbridge.broker.topic_table import NEXT_LOG
from landbridge.client.publisher import Rows
from landbridge.core.log import ledger
from landbridge.core.log.store import (
    LEDGER_ONLY,
    Append,
    Copy,
    DropLog,
    PutDocument,
    PutLedger,
    Store,
    Trim,
    Write,
    keys_of,
)
from landbridge.core.store_address import parse_address
from landbridge.core.topic import topic_spec
from landbridge.errors import BadRequest, StoreCorrupt
from landbridge.node import store_copy, stores
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.remote import RemoteStore
from landbridge.testing import attach, run_terminal
from tests.servers import name_of, shared_postgres, shared_valkey
from tests.waiting import Reader, eventually

SERVERS: dict[str, Callable[[], Any]] = {"redis": shared_valkey, "postgres": shared_postgres}
ALL = 1 << 40


def quiet(done: int, whole: int) -> None: ...


async def copy(source: Path | str, target: Path | str, tell: store_copy.Tell = quiet) -> Any:
    places = [store_copy.place_of(str(each)) for each in (source, target)]
    return await store_copy.copy_stores(places[0], places[1], tell)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Any:
    return SERVERS[request.param]()


# -- a terminal


def _rows(values: list[Any]) -> Rows:
    rows = Rows()
    for value in values:
        rows.add(json.dumps(value).encode())
    return rows


async def fill(store: Store) -> dict[str, Any]:
    """A terminal with something of everything. Returns what has to be the same afterwards."""
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        for number in range(12):
            await bus.publish(f"topic-{number}", b"%d" % number)
        async with bus.publisher("numbers") as out:
            for number in range(500):
                await out.send(b"%d" % number)
        async with Reader(bus.subscribe("numbers", group="half", prefetch=10)) as reader:
            await reader.payloads(250)
        async with Reader(bus.subscribe("numbers", group="some", prefetch=10)) as reader:
            kept = [await reader.next() for _ in range(4)]
            async with bus.transaction() as t:
                await t.publish("out", b"of a transaction")
                await t.ack(kept[2])
        await bus.publish("keyed", b"once", idempotency_key="the key")
        document = await bus.documents.create("jobs", "nightly", {"at": "02:00"}, topic="topic-3")
        await bus.documents.create("jobs", "alone", [1])
        await bus.call("topic.create", name="short", retention={"max_bytes": 400})
        for number in range(50):
            await bus.publish("short", b"%d" % number * 20)
        rule = (await bus.rules.create({"n": [1, 3]}, "topic-4")).rule
        await bus.publish_batch("topic-4", _rows([{"n": n} for n in range(5)]))
        await eventually(lambda: terminal.broker.topics[rule].log.end == 2)
        await bus.topics.pause("topic-4", note="moving")
        await bus.groups.pause("numbers", "some")
        return {
            "rule": rule,
            "version": document.version,
            "logs": {name: topic.log_id for name, topic in terminal.broker.topics.items()},
            "incarnation": terminal.broker.life.incarnation,
            "token": terminal.issue_token("test", ["admin"], 3600.0),
        }


async def check(store: Store, was: dict[str, Any]) -> None:
    """All of it is there, and the terminal works."""
    async with run_terminal(store) as terminal, attach(terminal, token=was["token"]) as bus:
        logs = {name: topic.log_id for name, topic in terminal.broker.topics.items()}
        assert {name: logs[name] for name in was["logs"]} == was["logs"]
        assert terminal.broker.life.incarnation == was["incarnation"]
        for name, topic in terminal.broker.topics.items():
            home = home_of(terminal.broker.topics, name)
            assert topic.log.number % store.units == unit_of(home, store.units)
        for number in range(12):
            assert (await bus.call("topic.show", name=f"topic-{number}"))["end"] == (6 if number == 4 else 1)
        async with Reader(bus.subscribe(was["rule"], start="earliest")) as reader:
            assert [each.json() for each in await reader.take(2)] == [{"n": 1}, {"n": 3}]
        assert (await bus.rules.trace(was["rule"], 1)).offset == 4
        pause = terminal.broker.topics["topic-4"].pause
        assert pause is not None
        assert pause.note == "moving"
        assert terminal.broker.table.group("numbers", "some").pause is not None
        half = await bus.call("group.show", topic="numbers", name="half")
        assert half["lag"] == 250
        async with Reader(bus.subscribe("numbers", group="half", prefetch=1)) as reader:
            assert await reader.payloads(1) == [b"250"]
        # One in the middle was settled in a transaction.
        assert (await bus.call("group.show", topic="numbers", name="some"))["lag"] == 499
        again = await bus.publish("keyed", b"once", idempotency_key="the key")
        assert (again.repeated, again.offset) == (True, 0)
        found = await bus.documents.read("jobs", "nightly", topic="topic-3")
        assert (found.value, found.version) == ({"at": "02:00"}, was["version"])
        assert (await bus.documents.read("jobs", "alone")).value == [1]
        assert (await bus.publish("topic-5", b"more")).offset == 1
        assert (await bus.publish("new", b"a log of its own")).offset == 0
        numbers = [topic.log.number for topic in terminal.broker.topics.values()]
        known_as = [topic.number for topic in terminal.broker.topics.values()]
        assert len(set(numbers)) == len(numbers)
        assert len(set(known_as)) == len(known_as)


async def test_a_terminal_goes_from_a_folder_to_servers_and_back(tmp_path: Path) -> None:
    folder, back = tmp_path / "data", tmp_path / "back"
    redis = shared_valkey().url(f"{name_of(tmp_path)}r", units=8)
    postgres = shared_postgres().url(f"{name_of(tmp_path)}p", units=None)
    was = await fill(JournalStore(folder / "bus"))
    (there,) = await copy(folder, redis)
    assert (there.units, there.messages > 500) == (8, True)
    assert stores.noted(folder)
    with pytest.raises(BadRequest, match="no store was given"):
        await stores.bus_store(folder, None)
    store = await stores.bus_store(folder, parse_address(redis))
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        assert (await bus.call("topic.show", name="topic-5"))["end"] == 1
    await copy(redis, postgres)
    onward = await stores.bus_store(tmp_path / "elsewhere", parse_address(postgres))
    assert onward.units == stores.store_at(parse_address(postgres)).units == 64
    await copy(postgres, back)
    assert not stores.noted(back)
    for each in (JournalStore(folder / "bus"), JournalStore(back / "bus")):
        await check(each, was)
    await check(await stores.bus_store(folder, parse_address(redis)), was)
    await check(await stores.bus_store(tmp_path / "elsewhere", parse_address(postgres)), was)


async def test_an_interrupted_copy_goes_on_and_is_not_started_before(server: Any, tmp_path: Path) -> None:
    folder, url = tmp_path / "data", server.url(name_of(tmp_path), units=4)
    was = await fill(JournalStore(folder / "bus"))

    class Cut(Exception):
        pass

    def cut(done: int, whole: int) -> None:
        if done > whole / 4:
            raise Cut

    for _ in range(2):
        with pytest.raises(Cut):
            await copy(folder, url, cut)
        with pytest.raises(BadRequest, match="copy that is not complete"):
            await stores.bus_store(tmp_path / "other", parse_address(url))
    (done,) = await copy(folder, url)
    assert done.messages > 500
    await check(await stores.bus_store(folder, parse_address(url)), was)


async def test_a_copy_begins_anew_where_the_terminal_has_run_since(server: Any, tmp_path: Path) -> None:
    folder, url = tmp_path / "data", server.url(name_of(tmp_path), units=4)
    was = await fill(JournalStore(folder / "bus"))

    def cut(done: int, whole: int) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await copy(folder, url, cut)
    async with run_terminal(JournalStore(folder / "bus")) as terminal, attach(terminal) as bus:
        await bus.call("topic.delete", name="out", force=True)
        await bus.call("topic.create", name="later")
    await copy(folder, url)
    store = await stores.bus_store(folder, parse_address(url))
    async with run_terminal(store) as terminal:
        assert "out" not in terminal.broker.topics
        assert "later" in terminal.broker.topics
    was["logs"].pop("out")
    await check(store, was)


class _Killed(Exception):
    pass


class Dying:
    """The commits of a target until the process is killed: before or behind one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.is_behind = 1 << 30, False
        self._monkeypatch = monkeypatch

    def watch(self, kind: type[Any]) -> None:
        commit = kind.commit

        async def counted(store: Any, *given: Any) -> Any:
            self.left -= 1
            if self.left < 0 and not (self.left == -1 and self.is_behind):
                raise _Killed
            done = await commit(store, *given)
            if self.left < 0:
                raise _Killed
            return done

        self._monkeypatch.setattr(kind, "commit", counted)


async def _little(store: Store, topics: str) -> None:
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        for name in topics:
            await bus.publish(name, name.encode())


async def test_a_copy_of_two_stores_that_is_killed_anywhere_goes_on_when_it_is_repeated(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal's store may be whole already when the registry's isn't, and both when nothing is noted."""
    folder, url = tmp_path / "data", server.url(name_of(tmp_path), units=2)
    for name in (stores.BUS, stores.REGISTRY):
        await _little(JournalStore(folder / name), "ab")
    dying = Dying(monkeypatch)
    dying.watch(RemoteStore)
    steps = 0
    while True:
        dying.left, dying.is_behind = steps % 12 + 1, steps % 2 == 1
        steps += 1
        try:
            copied = await copy(folder, url)
            break
        except _Killed:
            assert not stores.noted(folder)
    assert steps > 3
    assert [each.store for each in copied] == [stores.BUS, stores.REGISTRY]
    (folder / stores.NOTE).unlink()
    dying.left = 1 << 30
    again = await copy(folder, url)
    assert [each.digest for each in again] == [each.digest for each in copied]
    assert stores.noted(folder)


async def test_a_copy_that_is_killed_while_it_begins_anew_begins_anew(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = Dying(monkeypatch)
    dying.watch(RemoteStore)
    for left in (1, 2, 3):
        folder, url = tmp_path / f"data{left}", server.url(f"{name_of(tmp_path)}{left}", units=2)
        dying.left = 1 << 30
        await _little(JournalStore(folder / "bus"), "abcd")
        dying.left = 8
        with pytest.raises(_Killed):
            await copy(folder, url)
        async with run_terminal(JournalStore(folder / "bus")) as terminal, attach(terminal) as bus:
            for name in "abcd":
                await bus.call("topic.delete", name=name, force=True)
            await bus.publish("e", b"e")
        dying.left = left
        with pytest.raises(_Killed):
            await copy(folder, url)
        dying.left = 1 << 30
        await copy(folder, url)
        async with run_terminal(await stores.bus_store(folder, parse_address(url))) as terminal:
            assert {"a", "b", "c", "d", "e"} & set(terminal.broker.topics) == {"e"}


async def test_a_copy_takes_no_place_that_is_taken(server: Any, tmp_path: Path) -> None:
    url = server.url(name_of(tmp_path), units=4)
    await fill(JournalStore(tmp_path / "one" / "bus"))
    await fill(JournalStore(tmp_path / "two" / "bus"))
    await copy(tmp_path / "one", url)
    with pytest.raises(BadRequest, match="data of its own"):
        await copy(tmp_path / "two", url)
    with pytest.raises(BadRequest, match="data of its own"):
        await copy(url, tmp_path / "two")
    assert not stores.noted(tmp_path / "two")
    with pytest.raises(BadRequest, match="where it is"):
        await copy(url, url)
    with pytest.raises(BadRequest, match="no store"):
        await copy(tmp_path / "none", url)
    fresh = server.url(f"{name_of(tmp_path)}x", units=4)
    with pytest.raises(BadRequest, match="has a store with data") as refused:
        await stores.bus_store(tmp_path / "two", parse_address(fresh))
    assert "store copy" in refused.value.hint
    # The same where the data is on a server: another name is another store, which would begin empty.
    assert await stores.bus_store(tmp_path / "one", parse_address(url))
    with pytest.raises(BadRequest, match=r"and .* has none") as refused:
        await stores.bus_store(tmp_path / "one", parse_address(fresh))
    assert "store copy" in refused.value.hint
    assert stores.noted(tmp_path / "one") == str(parse_address(url))


async def test_what_a_copy_lacks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison at the end is one: a batch that changes on the way is noticed."""
    server = shared_valkey()
    await fill(JournalStore(tmp_path / "data" / "bus"))
    name = name_of(tmp_path)

    def spoil(done: int, whole: int) -> None:
        for key in server.ask("KEYS", f"{{{name}:0}}:log:*"):
            server.ask("ZREMRANGEBYRANK", key, 0, 0)

    with pytest.raises(StoreCorrupt):
        await copy(tmp_path / "data", server.url(name, units=1), spoil)


# -- stores of any content


async def test_bounds_ledgers_and_documents_are_copied_as_they_are(server: Any, tmp_path: Path) -> None:
    folder, url = tmp_path / "data", server.url(name_of(tmp_path), units=1)
    store = JournalStore(folder / "bus")
    await store.open()
    epoch = await store.claim(0)
    names = keys_of(5, 1)
    writes: list[Write] = [
        *(Append(1, at, at + 10, at, b"%d" % at * 100) for at in range(0, 100, 10)),
        PutLedger(1, b"p", b"gone", last=5, born=77),
        PutLedger(1, b"", b"stays"),
        PutLedger(1, b"q", b"later", last=90, born=5),
        Trim(1, 40),
        Append(2, 7, 9, 3, b"all"),
        Trim(2, 9),
        Append(3, 50, 60, 1, b"begins late"),
        Copy(4, 0, 10, 2, 3, 50),
        PutLedger(names, b"key", b"k", last=3, born=9),
        PutLedger(names, b"old", b"k", last=1, born=8),
        Trim(names, 2),
        PutLedger(0, b"client", b"t", last=1, born=1),
        Trim(0, 0),
        Append(9, 0, 1, 0, b"dropped"),
        DropLog(9),
        PutDocument("a", "k\x00é", b"\x00\xff"),
        PutDocument("a", "", b""),
    ]
    await store.commit(0, epoch, writes)
    wanted = await store.logs(0)
    assert set(wanted) == {0, 1, 2, 3, 4, names}
    assert (wanted[1].forgotten, wanted[names].forgotten, wanted[2].first) == (77, 8, 9)
    batches = {log: await store.read(log, 0, ALL) for log in wanted}
    await store.close()
    await copy(folder, url)
    await copy(url, tmp_path / "back")
    for made in (stores.store_at(parse_address(url)), JournalStore(tmp_path / "back" / "bus")):
        await made.open()
        assert await made.logs(0) == wanted
        assert {log: await made.read(log, 0, ALL) for log in wanted} == batches
        assert await made.documents(0, "a") == [("", b""), ("k\x00é", b"\x00\xff")]
        assert await made.ledger(1, b"") == b"stays"
        assert await made.ledger(1, b"p") is None
        assert await made.ledger(names, b"key") == b"k"
        assert await made.check() == []
        # Entries go when what they speak of goes.
        epoch = await made.claim(0)
        await made.commit(0, epoch, [Trim(1, 100), Trim(names, 4)])
        assert (await made.logs(0))[names].forgotten == 9
        assert await made.ledger(1, b"q") is None
        await made.close()


# -- the division alone


def document(name: str, log: int) -> tuple[str, bytes]:
    return name, topics.encode(topics.TopicDocument(log, topic_spec({"name": name}), 1))


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.lists(st.sampled_from([f"t{n}" for n in range(20)]), unique=True, max_size=12),
)
@settings(max_examples=60)
def test_every_log_gets_a_number_of_its_units_topic(was: int, units: int, names: list[str]) -> None:
    stored = [document(name, unit_of(name, was) + was * (at + 1)) for at, name in enumerate(names)]
    numbers = [topics.decode(raw).log for _, raw in stored]
    division = Division(was, units, stored, numbers)
    seen: set[int] = set()
    for (name, raw), log in zip(stored, numbers, strict=True):
        (number,) = division.logs(log)
        assert number % units == unit_of(name, units)
        assert number >= units
        seen.add(number)
        assert division.logs(keys_of(log, was)) == [keys_of(number, units)]
        placed = division.document(log % was, topics.KIND, name, raw)
        assert placed is not None
        found = topics.decode(placed.value)
        assert (placed.unit, found.log, found.known_as or found.log) == (number % units, number, log)
        cursor = division.document(log % was, "cursor", f"{log}/g/000001", b"c")
        assert cursor is not None
        assert (cursor.unit, cursor.key) == (number % units, f"{number}/g/000001")
        at = division.document(log % was, "document", f"jobs/{name}/key\n", b"d")
        assert at is not None
        assert at.unit == number % units
    assert len(seen) == len(names)
    if was != units:
        # Numbers that are given later are new, whatever was given before.
        given_next = {setting.unit: int(setting.value) for setting in division.settings()}
        for unit, following in given_next.items():
            later = following * units + unit
            assert later not in seen
            assert later not in numbers
        assert all(each.kind == SETTINGS and each.key == NEXT_LOG for each in division.settings())
        assert division.logs(0) == list(range(units))
        assert division.logs(LEDGER_ONLY * was + 10**6) == []
        # And back again everybody is known as before.
        moved = [
            (each.key, each.value)
            for name, raw in stored
            if (each := division.document(0, topics.KIND, name, raw)) is not None
        ]
        again = Division(units, was, moved, seen)
        for name, raw in moved:
            placed = again.document(0, topics.KIND, name, raw)
            assert placed is not None
            original = topics.decode(dict(stored)[name])
            found = topics.decode(placed.value)
            assert (found.known_as or found.log) == original.log


def test_what_several_units_know_of_a_client_becomes_one() -> None:
    def entry(floor: int, stored: tuple[int, ...], last: int) -> PutLedger:
        known = ledger.Transactions(floor, stored, last)
        return PutLedger(0, b"client", ledger.encode(known), last, last)

    put = merged([entry(3, (4, 7), 50), entry(5, (6, 9), 40)])
    found = ledger.decode_transactions(put.entry or b"")
    assert (found.floor, found.stored, found.last) == (5, (6, 7, 9), 50)
    assert (put.last, put.born) == (50, 50)
    for number in (1, 4, 6, 7, 9):
        assert found.known(number)
    assert not found.known(8)


def test_of_the_starts_that_nodes_have_counted_the_greatest_is_kept() -> None:
    division = Division(4, 1, [], [])
    for unit, start in enumerate([b"5", b"4", b"12", b"4"]):
        assert division.document(unit, SETTINGS, START, start) is None
    placed = [(each.unit, each.value) for each in division.settings() if each.key == START]
    assert placed == [(0, b"12")]
    with pytest.raises(StoreCorrupt, match="number of the last start is damaged"):
        division.document(1, SETTINGS, START, b"twelve")


def test_a_transaction_between_units_has_to_be_at_its_end() -> None:
    division = Division(4, 1, [], [])
    with pytest.raises(BadRequest, match="not at its end"):
        division.document(2, "handover", "000", b"")
    assert Division(4, 4, [], []).document(2, "handover", "000", b"") is not None
