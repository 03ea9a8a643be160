"""Idempotency keys and unique message ids: what is repeated is stored once."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.publisher import Rows
from landbridge.core.log.store import LEDGER_ONLY
from landbridge.core.time import SECOND, uuid7
from landbridge.errors import BadRequest, BusError, KeyReused, LeaseLost, TooOld, WrongVersion
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, FaultyStore, attach, run_terminal
from tests.waiting import eventually


async def payloads(bus: Any, topic: str) -> list[bytes]:
    """Everything that a topic's log has."""
    found = await bus.fetch(topic, 0)
    return [payload for each in found.batches for payload in each.batch.payloads()]


async def trim_all(terminal: Terminal, topic: str) -> None:
    """Let retention remove what it may."""
    while await terminal.broker.trimmer.trim(terminal.broker.topics[topic]):
        pass


async def test_a_publish_with_a_known_key_is_answered_with_the_first_receipt(bus: Any) -> None:
    first = await bus.publish("orders", {"n": 1}, idempotency_key="k1", key="a", headers={"x": 1})
    assert not first.repeated
    await bus.publish("orders", {"n": 2})
    again = await bus.publish("orders", {"n": 1}, idempotency_key="k1", key="a", headers={"x": 1})
    assert again.repeated
    assert (again.id, again.offset) == (first.id, first.offset)
    third = await bus.publish("orders", {"n": 3}, idempotency_key="k3")
    assert (third.offset, third.repeated) == (2, False)


async def test_the_key_is_refused_for_another_body(bus: Any) -> None:
    await bus.publish("orders", b"one", idempotency_key="k")
    for other in ({"payload": b"two"}, {"payload": b"one", "key": "x"}, {"payload": b"one", "priority": 3}):
        with pytest.raises(KeyReused) as refused:
            await bus.publish("orders", other.pop("payload"), idempotency_key="k", **other)
        assert refused.value.http_status == 422
    assert (await bus.publish("orders", b"one", idempotency_key="k")).repeated


async def test_a_key_belongs_to_a_subject_and_a_topic(terminal: Terminal) -> None:
    async with attach(terminal, subject="a") as a, attach(terminal, subject="b") as b:
        await a.publish("orders", b"1", idempotency_key="k")
        assert not (await b.publish("orders", b"2", idempotency_key="k")).repeated
        assert not (await a.publish("bills", b"3", idempotency_key="k")).repeated
    async with attach(terminal, subject="a") as later:  # a program that starts anew
        assert (await later.publish("orders", b"1", idempotency_key="k")).repeated


async def test_one_key_covers_a_batch(bus: Any) -> None:
    def rows(count: int) -> Rows:
        made = Rows()
        for number in range(count):
            made.add(b"%d" % number, key=str(number))
        return made

    await bus.publish("orders", b"before")
    first, repeated = await bus.publish_batch("orders", rows(3), idempotency_key="k")
    assert (first, repeated) == (1, False)
    receipt = await bus.publish_batch("orders", rows(3), idempotency_key="k")
    assert (receipt.first, receipt.repeated) == (1, True)
    with pytest.raises(KeyReused):
        await bus.publish_batch("orders", rows(2), idempotency_key="k")
    with pytest.raises(BadRequest):
        await bus.publish_batch("orders", Rows(), idempotency_key="k2")


@pytest.mark.parametrize("key", ["", "a" * 256, "a\n"])
async def test_what_can_not_be_a_key_is_refused(bus: Any, key: str) -> None:
    with pytest.raises(BadRequest):
        await bus.publish("orders", b"1", idempotency_key=key)
    with pytest.raises(BadRequest):
        await bus.publish_batch("orders", Rows(), idempotency_key=key)


async def test_many_at_the_same_time_store_one(terminal: Terminal) -> None:
    async with attach(terminal) as one, attach(terminal) as two:
        buses = [one, two] * 20
        receipts = await asyncio.gather(*(bus.publish("orders", b"1", idempotency_key="k") for bus in buses))
        assert {receipt.offset for receipt in receipts} == {0}
        assert len({receipt.id for receipt in receipts}) == 1
        assert sum(not receipt.repeated for receipt in receipts) == 1
        assert await payloads(one, "orders") == [b"1"]


async def test_a_transaction_with_a_key_happens_once(bus: Any) -> None:
    for repeated in (False, True):
        t = bus.transaction(idempotency_key="k")
        async with t:
            for topic in ("bills", "orders", "audit"):
                await t.publish(topic, b"1")
        assert t.repeated is repeated
    for topic in ("bills", "orders", "audit"):
        assert await payloads(bus, topic) == [b"1"]
    with pytest.raises(KeyReused):
        async with bus.transaction(idempotency_key="k") as t:
            await t.publish("audit", b"2")
    with pytest.raises(BadRequest):  # nothing that would remember the key
        async with bus.transaction(idempotency_key="k2") as t:
            await t.create_document("states", "a", 1)


async def test_the_acks_of_a_repeated_transaction_do_not_happen(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.publish("orders", b"1")
        await bus.publish("orders", b"2")
        async with bus.subscribe("orders", group="g") as messages:
            stream = aiter(messages)
            for repeated in (False, True):
                message = await anext(stream)
                async with bus.transaction(idempotency_key="k") as t:
                    await t.publish("bills", b"1")
                    await t.ack(message)
                assert t.repeated is repeated
            assert (await bus.groups.show("orders", "g")).lag == 1
            await message.ack(wait=True)
            assert (await bus.groups.show("orders", "g")).lag == 0


async def test_a_refused_transaction_leaves_no_key(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.publish("orders", b"1")
        async with bus.subscribe("orders", group="g") as messages:
            message = await anext(aiter(messages))
            await message.ack(wait=True)
            with pytest.raises(LeaseLost):
                async with bus.transaction(idempotency_key="k") as t:
                    await t.publish("bills", b"1")
                    await t.ack(message)
        async with bus.transaction(idempotency_key="k") as t:
            await t.publish("bills", b"1")
        assert not t.repeated


@pytest.mark.parametrize("kind", ["memory", "journal"])
async def test_keys_survive_a_restart_and_end_with_their_topic(kind: str, tmp_path: Path) -> None:
    store = MemoryStore(units=4) if kind == "memory" else JournalStore(tmp_path / "bus")
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        first = await bus.publish("orders", b"1", idempotency_key="k")
        async with bus.transaction(idempotency_key="t") as t:
            await t.publish("orders", b"2")
            await t.publish("bills", b"2")
    if kind == "journal":
        store = JournalStore(tmp_path / "bus")
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        again = await bus.publish("orders", b"1", idempotency_key="k")
        assert again.repeated
        assert again.id == first.id
        async with bus.transaction(idempotency_key="t") as t:
            await t.publish("orders", b"2")
            await t.publish("bills", b"2")
        assert t.repeated
        await bus.topics.delete("orders", force=True)
        left = {number for unit in range(store.units) for number in await store.logs(unit)}
        known = {topic.keys.number for topic in terminal.broker.topics.values()}
        assert {number for number in left if number >= LEDGER_ONLY} <= known
        anew = await bus.publish("orders", b"1", idempotency_key="k")
        assert (anew.repeated, anew.offset) == (False, 0)
        # The numbers of logs go on by one: those of keys are not counted among them.
        assert all(topic.log.number < LEDGER_ONLY for topic in terminal.broker.topics.values())


async def test_a_failed_commit_leaves_no_key() -> None:
    store = FaultyStore(MemoryStore(units=4))
    async with run_terminal(store) as terminal, attach(terminal, patience=0.0) as bus:
        await bus.publish("orders", b"0")
        store.fail_on = {store.commits + 1}
        with pytest.raises(BusError):
            await bus.publish("orders", b"1", idempotency_key="k")
        receipt = await bus.publish("orders", b"1", idempotency_key="k")
        assert (receipt.offset, receipt.repeated) == (1, False)


async def test_a_key_outlives_its_messages_and_is_too_old_after_that() -> None:
    clock = FakeClock()
    async with run_terminal(clock=clock, limits=Limits(keys_kept=3)) as terminal, attach(terminal) as bus:
        await bus.topics.create("jobs", retention={"max_age": 60.0, "discard": "any"})
        timed = str(uuid.UUID(bytes=uuid7(clock(), b"0123456789")))
        clock.advance(1)
        first = await bus.publish("jobs", b"1", idempotency_key=timed)
        await bus.publish("jobs", b"2", idempotency_key="opaque")
        clock.advance(61)
        await trim_all(terminal, "jobs")
        assert terminal.broker.topics["jobs"].log.first == 2
        again = await bus.publish("jobs", b"1", idempotency_key=timed)
        assert (again.id, again.offset, again.repeated) == (first.id, 0, True)
        for _ in range(3):
            await bus.publish("jobs", b"x")
        clock.advance(61)
        await trim_all(terminal, "jobs")  # five are gone, three of which are remembered
        with pytest.raises(TooOld):
            await bus.publish("jobs", b"1", idempotency_key=timed)
        # A key that tells no time can't be told from a new one any more.
        assert not (await bus.publish("jobs", b"2", idempotency_key="opaque")).repeated
        fresh = str(uuid.UUID(bytes=uuid7(clock(), b"0123456789")))
        assert not (await bus.publish("jobs", b"3", idempotency_key=fresh)).repeated


async def test_a_terminal_that_knows_no_keys_is_not_asked(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        bus.features = frozenset()
        with pytest.raises(WrongVersion):
            await bus.publish("orders", b"1", idempotency_key="k")
        with pytest.raises(WrongVersion):
            async with bus.transaction(idempotency_key="k") as t:
                await t.publish("orders", b"1")


# -- unique ids ------------------------------------------------------------------------------------


@pytest.fixture
async def unique(bus: Any) -> Any:
    await bus.topics.create("events", ids="unique")
    return bus


async def test_an_id_is_stored_once(unique: Any) -> None:
    bus = unique
    first = await bus.publish("events", b"1", id="a")
    other = await bus.publish("events", b"2", id="b")
    again = await bus.publish("events", b"1 again", id="a")
    assert (first.repeated, other.repeated, again.repeated) == (False, False, True)
    assert (again.id, again.offset) == ("a", 0)
    await bus.publish("events", b"no id")
    await bus.publish("events", b"no id")
    assert await payloads(bus, "events") == [b"1", b"2", b"no id", b"no id"]


async def test_within_and_across_batches_and_producers(terminal: Terminal) -> None:
    async with attach(terminal, subject="a") as a, attach(terminal, subject="b") as b:
        await a.topics.create("events", ids="unique")
        for bus, ids in ((a, "xyx"), (b, "yzz"), (a, "xyz"), (b, "wx")):
            async with bus.publisher("events") as publisher:
                for id in ids:
                    await publisher.send(id.encode(), id=id)
        assert b"".join(await payloads(a, "events")) == b"xyzw"
        async with a.transaction() as t:
            for id in "wv":
                await t.publish("events", id.encode(), id=id)
        async with a.publisher("events") as publisher:
            for id in "vu":
                await publisher.send(id.encode(), id=id)
        assert b"".join(await payloads(a, "events")) == b"xyzwvu"


async def test_a_stage_and_another_unit_store_an_id_once(terminal: Terminal) -> None:
    def batch(bus: Any, ids: str) -> Rows:
        rows = Rows()
        for id in ids:
            rows.add(id.encode(), id=id)
        return rows

    async with attach(terminal) as bus:
        for name in ("e1", "e2", "e3", "e4", "e5"):  # some of them live in other units
            await bus.topics.create(name, ids="unique")
            await bus.publish_batch(name, batch(bus, "ab"))
        async with bus.transaction() as t:
            for name in ("e1", "e2", "e3", "e4", "e5"):
                await t.publish_rows(name, batch(bus, "bc"))
        for number, ids in enumerate(("cd", "de")):
            log, first = await bus.stage("s", "e1", batch(bus, ids).build(bus.new_id()))
            await bus.stages.commit("s", number=number, log=log, runs=[("e1", [(first, first + 2)])])
        assert b"".join(await payloads(bus, "e1")) == b"abcde"
        for name in ("e2", "e3", "e4", "e5"):
            assert b"".join(await payloads(bus, name)) == b"abc"


async def test_unique_ids_survive_a_restart_and_large_batches(tmp_path: Path) -> None:
    ids = [f"id-{n}" for n in range(6000)]
    for _ in range(2):
        async with run_terminal(JournalStore(tmp_path / "bus")) as terminal, attach(terminal) as bus:
            await bus.topics.create("events", ids="unique")
            async with bus.publisher("events") as publisher:
                for id in ids:
                    await publisher.send(b"x", id=id)
            assert terminal.broker.topics["events"].log.end == len(ids)


async def test_the_option_can_be_set_later(bus: Any) -> None:
    await bus.publish("events", b"1", id="a")
    await bus.topics.update("events", ids="unique")
    await bus.publish("events", b"2", id="a")  # what was stored before is not known
    assert (await bus.publish("events", b"3", id="a")).repeated
    assert (await bus.topics.show("events")).options.ids == "unique"


# -- against an oracle -----------------------------------------------------------------------------

KEPT, AGE = 4, 60
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 5), st.integers(0, 1)),
        st.tuples(st.just("timed"), st.integers(0, 5), st.integers(0, 1)),
        st.tuples(st.just("plain"), st.integers(1, 4), st.just(0)),
        st.tuples(st.sampled_from(["trim", "restart", "wait"]), st.just(0), st.just(0)),
    ),
    max_size=40,
)


class Naive:
    """The promise as a dictionary."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, int, int]] = {}  # key → offset, body, moment
        self.end = 0
        self.forgotten = 0

    def publish(self, key: str, body: int, now: int, made: int) -> tuple[int, bool] | str:
        if key in self.known:
            offset, was, _ = self.known[key]
            return (offset, True) if was == body else "key_reused"
        if 0 < made <= self.forgotten:
            return "too_old"
        self.known[key] = self.end, body, now
        self.end += 1
        return self.end - 1, False

    def trim(self, first: int) -> None:
        for key, (offset, _, moment) in list(self.known.items()):
            if offset < first - KEPT:
                del self.known[key]
                self.forgotten = max(self.forgotten, moment)


@given(steps=STEPS)
@settings(deadline=None, max_examples=60)
def test_keys_do_what_a_dictionary_does(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(_compare(steps))


async def _compare(steps: list[tuple[str, int, int]]) -> None:
    clock, store, naive = FakeClock(), MemoryStore(units=4), Naive()
    limits = Limits(keys_kept=KEPT)
    made = {
        n: (m := clock() + n * 40 * SECOND, str(uuid.UUID(bytes=uuid7(m, b"0123456789")))) for n in range(6)
    }
    todo = iter(steps)
    while True:
        async with run_terminal(store, clock=clock, limits=limits) as terminal, attach(terminal) as bus:
            await bus.topics.create("jobs", retention={"max_age": float(AGE), "discard": "any"})
            for step, number, body in todo:
                clock.advance(1)
                if step == "restart":
                    break
                if step == "wait":
                    clock.advance(AGE // 2)
                elif step == "trim":
                    clock.advance(AGE // 2)
                    await trim_all(terminal, "jobs")
                # Retention looks by itself as well, whenever time passes.
                await eventually(lambda: not terminal.broker.trimmer._tasks)
                await terminal.broker.drain()
                naive.trim(terminal.broker.topics["jobs"].log.first)
                if step == "plain":
                    for _ in range(number):
                        await bus.publish("jobs", b"plain")
                        naive.end += 1
                elif step in ("publish", "timed"):
                    moment, key = made[number] if step == "timed" else (0, f"k{number}")
                    moment = moment // 1000 * 1000
                    try:
                        receipt = await bus.publish("jobs", b"%d" % body, idempotency_key=key)
                        found: object = receipt.offset, receipt.repeated
                    except BusError as error:
                        found = error.code
                    assert found == naive.publish(key, body, clock(), moment)
            else:
                return
