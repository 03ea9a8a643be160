"""Nodes: several terminals of this process that are one, on one store. The client is connected to a node that
owns nothing, or only a part."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from landbridge.broker.commit import CROSSING, DIRECTORY
from landbridge.broker.limits import Limits
from landbridge.core.log.store import DeleteDocument, PutDocument
from landbridge.core.trust import registered_tokens
from landbridge.core.trust.directory import Directory, TokenKey, keep
from landbridge.core.trust.directory import sign as sign_directory
from landbridge.errors import (
    BusError,
    Fenced,
    LeaseLost,
    LimitReached,
    StoreFailed,
    Unauthenticated,
)
from landbridge.node.assembly import dial_to
from landbridge.node.schedules import scheduling
from landbridge.protocol import frames
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, attach, run_terminal
from landbridge.testing.cluster import Nodes, run_nodes
from tests.waiting import LIMIT, eventually, turns, until

UNITS = 8


@pytest.fixture
async def nodes(crashes: list[Any]) -> AsyncIterator[Nodes]:
    """Node d owns nothing."""
    async with run_nodes(("a", "b", "c", "d"), owners=("a", "b", "c"), units=UNITS) as running:
        yield running


@pytest.fixture
async def bus(nodes: Nodes) -> AsyncIterator[Any]:
    async with attach(nodes["d"], patience=20) as connected:
        yield connected


def topic_of(nodes: Nodes, node: str, *, skip: int = 0) -> str:
    """The name of a topic that a node owns."""
    names = (f"t{number}" for number in range(10_000))
    found = [
        name for name, _ in zip(names, range(1000), strict=False)
        if nodes.owners[nodes["a"].broker.units.unit_of(name)] == node
    ]  # fmt: skip
    return found[skip]


async def owed(store: MemoryStore) -> list[str]:
    """What is in the store of transactions that are not at their end."""
    kinds = ("handover", "reservation")
    found = [await store.documents(unit, kind) for unit in range(UNITS) for kind in kinds]
    return [key for documents in found for key, _ in documents]


async def until_nothing_is_owed(where: Nodes | MemoryStore) -> None:
    async def is_nothing_owed() -> bool:
        return not await owed(where.engine if isinstance(where, Nodes) else where)

    await until(is_nothing_owed)


async def take(bus: Any, topic: str, group: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with bus.subscribe(topic, group=group) as messages:
        while len(found) < count:
            message = await messages.poll(timeout=20)
            assert message is not None
            found.append(bytes(message.payload))
            await message.ack()
    return found


async def test_publish_and_consume_by_a_node_that_owns_nothing(nodes: Nodes, bus: Any) -> None:
    for node in "abc":
        topic = topic_of(nodes, node)
        await bus.groups.create(topic, "g")
        for number in range(20):
            await bus.publish(topic, b"%d" % number)
        assert await take(bus, topic, "g", 20) == [b"%d" % number for number in range(20)]
        assert topic in nodes[node].broker.topics
    assert not nodes["d"].broker.topics


async def test_lists_are_of_all_nodes_and_in_pages(nodes: Nodes, bus: Any) -> None:
    names = sorted(f"list.{number}" for number in range(30))
    for name in names:
        await bus.topics.create(name)
        await bus.groups.create(name, "g")
    found, after = [], ""
    while True:
        page = await bus.call("topic.list", after=after, limit=7)
        assert len(page["topics"]) <= 7
        found += [row["name"] for row in page["topics"] if not row["name"].startswith("$")]
        after = page["next"]
        if not after:
            break
    assert found == names
    groups = await bus.call("group.list")
    assert [row["topic"] for row in groups["groups"] if not row["topic"].startswith("$")] == names
    info = await bus.call("terminal.info")
    assert info["topics"] >= len(names)


async def test_topics_are_bounded_over_all_nodes(crashes: list[Any]) -> None:
    async with (
        run_nodes(("a", "b", "c"), units=UNITS, limits=Limits(max_topics=20)) as nodes,
        attach(nodes["a"]) as bus,
    ):
        made = 0
        with pytest.raises(LimitReached, match="max_topics"):
            while made <= 20:
                await bus.topics.create(f"t{made}")
                made += 1
                nodes.tell()  # as each node does with its next beat
        # Those of the terminal's own that other nodes have count, too.
        assert 12 <= made <= 20


async def test_a_transaction_reaches_topics_of_several_nodes(nodes: Nodes, bus: Any) -> None:
    source, one, other = (topic_of(nodes, node) for node in "abc")
    for topic in (source, one, other):
        await bus.groups.create(topic, "g")
    await bus.publish(source, b"in")
    async with bus.subscribe(source, group="g") as messages:
        message = await messages.poll(timeout=20)
        async with bus.transaction() as transaction:
            await transaction.ack(message)
            await transaction.publish(one, b"1")
            await transaction.publish(other, b"2")
    assert await take(bus, one, "g", 1) == [b"1"]
    assert await take(bus, other, "g", 1) == [b"2"]
    shown = await bus.call("group.show", topic=source, name="g")
    assert shown["lag"] == 0


async def test_acks_at_different_nodes_happen_in_one_transaction(nodes: Nodes, bus: Any) -> None:
    topics = [topic_of(nodes, "a"), topic_of(nodes, "b"), topic_of(nodes, "b", skip=1)]
    out = topic_of(nodes, "c")
    await bus.groups.create(out, "g")
    for topic in topics:
        await bus.groups.create(topic, "g")
        await bus.publish(topic, b"in")
    async with AsyncExitStack() as stack:
        reading = [await stack.enter_async_context(bus.subscribe(topic, group="g")) for topic in topics]
        messages = [await each.poll(timeout=20) for each in reading]
        async with bus.transaction() as transaction:
            for message in messages:
                await transaction.ack(message)
            await transaction.publish(out, b"out")
    assert await take(bus, out, "g", 1) == [b"out"]
    await until_nothing_is_owed(nodes)
    for topic in topics:
        assert (await bus.call("group.show", topic=topic, name="g"))["lag"] == 0


async def test_a_transaction_across_nodes_that_fails_gives_every_message_back(nodes: Nodes, bus: Any) -> None:
    one, other, out = topic_of(nodes, "a"), topic_of(nodes, "b"), topic_of(nodes, "c")
    for topic in (one, other):
        await bus.groups.create(topic, "g")
        await bus.publish(topic, b"in")
    async with bus.subscribe(one, group="g") as left, bus.subscribe(other, group="g") as right:
        first, second = await left.poll(timeout=20), await right.poll(timeout=20)
        await first.requeue()
        with pytest.raises(LeaseLost):
            async with bus.transaction() as transaction:
                await transaction.ack(second)
                await transaction.ack(first)
                await transaction.publish(out, b"out")
        # What is reserved of one is dropped where the other can't be acked.
        with pytest.raises(LeaseLost):
            async with bus.transaction() as transaction:
                await transaction.ack(first)
                await transaction.ack(second)
    assert await take(bus, one, "g", 1) == [b"in"]
    assert await take(bus, other, "g", 1) == [b"in"]
    await until_nothing_is_owed(nodes)


@pytest.mark.parametrize("far", ["a", "b"])
@pytest.mark.parametrize("lapses", [False, True])
@pytest.mark.parametrize("end", ["done", "refused", "unknown"])
async def test_what_a_transaction_has_reserved_waits_at_a_new_owner(
    nodes: Nodes, bus: Any, monkeypatch: pytest.MonkeyPatch, far: str, lapses: bool, end: str
) -> None:
    """The unit of some of its messages changes its owner while the commit at its home is on its way, in good
    order or because a lease is over. Then the commit is done, or refused because the home has moved too, or
    it is done and its answer lost."""
    home, other = topic_of(nodes, "a"), topic_of(nodes, far, skip=1)
    unit, at_home = (nodes["a"].broker.units.unit_of(topic) for topic in (other, home))
    assert unit != at_home
    for topic in (home, other):
        await bus.groups.create(topic, "g")
        await bus.publish(topic, b"in")
    store, held, may_go = nodes["a"].store, asyncio.Event(), asyncio.Event()
    commit = store.commit

    async def slow(of: int, epoch: int, writes: Any) -> Any:
        if of == at_home and any(getattr(write, "kind", "") == "handover" for write in writes):
            if end == "unknown":
                await commit(of, epoch, writes)
            held.set()
            await may_go.wait()
            if end == "unknown":
                raise Fenced("asked again, it was somebody else's")
        return await commit(of, epoch, writes)

    async def transact() -> None:
        async with bus.subscribe(home, group="g") as left, bus.subscribe(other, group="g") as right:
            first, second = await left.poll(timeout=20), await right.poll(timeout=20)
            monkeypatch.setattr(store, "commit", slow)
            async with bus.transaction() as transaction:
                await transaction.ack(first)
                await transaction.ack(second)

    transacting = asyncio.ensure_future(transact())
    try:
        await held.wait()
        await (nodes.usurp if lapses else nodes.move)(unit, "c")
        reserved = nodes["c"].broker.topics[other].groups["g"].delivery
        assert (reserved.pending, len(nodes["c"].broker.reservations)) == (0, 1)
        if end == "refused":
            await nodes.usurp(at_home, "b")
    finally:
        may_go.set()
    if end == "unknown":
        await eventually(lambda: not nodes["a"].broker.units.owns(at_home))
        await turns(100)
        await nodes.usurp(at_home, "b")
    await asyncio.gather(transacting, return_exceptions=True)  # its leases are lost: the owners have changed
    await until_nothing_is_owed(nodes)
    for topic in (home, other):
        if end != "refused":
            assert (await bus.call("group.show", topic=topic, name="g"))["lag"] == 0
        else:
            assert await take(bus, topic, "g", 1) == [b"in"]


@pytest.mark.parametrize("far", ["a", "b"])
async def test_a_transaction_that_has_happened_settles_its_messages_whoever_owns_them_by_then(
    nodes: Nodes, bus: Any, monkeypatch: pytest.MonkeyPatch, far: str
) -> None:
    """Both units are taken away between the commit of the transaction and that which settles its messages."""
    home, other = topic_of(nodes, "a"), topic_of(nodes, far, skip=1)
    unit, at_home = (nodes["a"].broker.units.unit_of(topic) for topic in (other, home))
    for topic in (home, other):
        await bus.groups.create(topic, "g")
        await bus.publish(topic, b"in")
    store, held, may_go = nodes[far].store, asyncio.Event(), asyncio.Event()
    commit = store.commit

    async def slow(of: int, epoch: int, writes: Any) -> Any:
        if of == unit and any(
            isinstance(write, DeleteDocument) and write.kind == "reservation" for write in writes
        ):
            held.set()
            await may_go.wait()
        return await commit(of, epoch, writes)

    try:
        async with bus.subscribe(home, group="g") as left, bus.subscribe(other, group="g") as right:
            first, second = await left.poll(timeout=20), await right.poll(timeout=20)
            monkeypatch.setattr(store, "commit", slow)
            async with bus.transaction() as transaction:
                await transaction.ack(first)
                await transaction.ack(second)
            await held.wait()
            await nodes.usurp(unit, "c")
            reserved = nodes["c"].broker.topics[other].groups["g"].delivery
            assert (reserved.pending, len(nodes["c"].broker.reservations)) == (0, 1)
            await nodes.usurp(at_home, "b")
    finally:
        may_go.set()
    await until_nothing_is_owed(nodes)
    for topic in (home, other):
        assert (await bus.call("group.show", topic=topic, name="g"))["lag"] == 0


@pytest.mark.parametrize("end", ["done", "refused"])
async def test_what_is_reserved_of_a_group_is_its_own_no_longer_when_it_seeks(
    nodes: Nodes, bus: Any, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """While a transaction's commit is on its way, a group seeks back, and another transaction reserves the
    message: what becomes of the first says nothing of the second."""
    home, other, third = topic_of(nodes, "a"), topic_of(nodes, "b"), topic_of(nodes, "c")
    at_home = nodes["a"].broker.units.unit_of(home)
    for topic in (home, other, third):
        await bus.groups.create(topic, "g")
        await bus.publish(topic, b"in")
    broken = StoreFailed("broken")
    reserved, delivery = nodes["b"].broker.reservations, nodes["b"].broker.topics[other].groups["g"].delivery
    async with (
        bus.subscribe(home, group="g") as left,
        bus.subscribe(other, group="g") as right,
        bus.subscribe(third, group="g") as last,
        hold_commits(nodes, at_home, monkeypatch, broken if end == "refused" else None) as may_go,
        # The second one's home is another unit.
        hold_commits(nodes, nodes["c"].broker.units.unit_of(third), monkeypatch, broken) as may_end,
    ):
        messages = await left.poll(timeout=20), await right.poll(timeout=20)
        first = asyncio.ensure_future(ack_together(bus, *messages))
        await eventually(lambda: len(reserved) == 1)
        await bus.groups.seek(other, "g", to="earliest")
        again = await right.poll(timeout=20)
        second = asyncio.ensure_future(ack_together(bus, await last.poll(timeout=20), again))
        await eventually(lambda: len(reserved) == 2)
        may_go.set()
        await asyncio.gather(first, return_exceptions=True)
        await eventually(lambda: len(reserved) == 1)
        assert (delivery.pending, delivery.cursor.lag(1)) == (0, 1)
        may_end.set()
        with pytest.raises(StoreFailed):
            await second
    assert await take(bus, other, "g", 1) == [b"in"]
    await until_nothing_is_owed(nodes)


@pytest.mark.parametrize("change", ["seek", "delete"])
async def test_what_was_reserved_before_a_group_began_anew_is_not_settled_by_a_new_owner(
    nodes: Nodes, bus: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    home, other = topic_of(nodes, "a"), topic_of(nodes, "b")
    unit, at_home = (nodes["a"].broker.units.unit_of(topic) for topic in (other, home))
    for topic in (home, other):
        await bus.groups.create(topic, "g")
        await bus.publish(topic, b"in")
    async with hold_commits(nodes, at_home, monkeypatch):
        async with bus.subscribe(home, group="g") as left, bus.subscribe(other, group="g") as right:
            messages = await left.poll(timeout=20), await right.poll(timeout=20)
            acking = asyncio.ensure_future(ack_together(bus, *messages))
            await eventually(lambda: len(nodes["b"].broker.reservations) == 1)
        if change == "seek":
            await bus.groups.seek(other, "g", to="earliest")
        else:
            await bus.call("group.delete", topic=other, name="g", force=True)
            await bus.groups.create(other, "g", start="earliest")
        await nodes.move(unit, "c")
    await asyncio.gather(acking, return_exceptions=True)
    await until_nothing_is_owed(nodes)
    assert (await bus.call("group.show", topic=home, name="g"))["lag"] == 0
    assert await take(bus, other, "g", 1) == [b"in"]


async def test_a_reservation_outlives_the_commit_that_made_it_when_the_unit_comes_back(
    nodes: Nodes, bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stored, and the answer is lost. The unit goes to another node and comes back, before the first
    owner's commit has ended: that ends nothing of what was loaded since."""
    home, other = topic_of(nodes, "a"), topic_of(nodes, "b")
    unit, reserved = nodes["a"].broker.units.unit_of(other), nodes["b"].broker.reservations
    for topic in (home, other):
        await bus.groups.create(topic, "g")
        await bus.publish(topic, b"in")
    store, stored, may_go = nodes["b"].store, asyncio.Event(), asyncio.Event()
    commit = store.commit

    async def lost(of: int, epoch: int, writes: Any) -> Any:
        done = await commit(of, epoch, writes)
        if of == unit and any(getattr(write, "kind", "") == "reservation" for write in writes):
            monkeypatch.setattr(store, "commit", commit)
            stored.set()
            await may_go.wait()
            raise Fenced("asked again, it was somebody else's")
        return done

    try:
        async with bus.subscribe(home, group="g") as left, bus.subscribe(other, group="g") as right:
            messages = await left.poll(timeout=20), await right.poll(timeout=20)
            monkeypatch.setattr(store, "commit", lost)
            acking = asyncio.ensure_future(ack_together(bus, *messages))
            await stored.wait()
            await nodes.usurp(unit, "c")
            await nodes.usurp(unit, "b")
            assert len(reserved) == 1
    finally:
        may_go.set()
    await asyncio.gather(acking, return_exceptions=True)
    await until_nothing_is_owed(nodes)
    assert await take(bus, other, "g", 1) == [b"in"]


async def test_a_node_that_was_replaced_refuses_no_reservation(nodes: Nodes, bus: Any) -> None:
    """The home's node has lost the unit of the other message and doesn't know it yet: transactions don't fail
    for that again and again, until their messages are dead letters."""
    home, other = topic_of(nodes, "a"), topic_of(nodes, "a", skip=1)
    unit = nodes["a"].broker.units.unit_of(other)
    assert unit != nodes["a"].broker.units.unit_of(home)
    for topic in (home, other):
        await bus.groups.create(topic, "g")
        await bus.publish(topic, b"in")
    await nodes.usurp(unit, "c")
    assert nodes["a"].broker.units.owns(unit)
    async with bus.subscribe(home, group="g") as left, bus.subscribe(other, group="g") as right:
        for _ in range(3):
            messages = [await left.poll(timeout=20), await right.poll(timeout=20)]
            try:
                await ack_together(bus, *messages)
                break
            except LeaseLost:
                await asyncio.gather(*(each.requeue(0) for each in messages), return_exceptions=True)
        else:
            pytest.fail("the transaction never happens")
    await until_nothing_is_owed(nodes)


async def ack_together(bus: Any, *messages: Any) -> None:
    async with bus.transaction() as transaction:
        for message in messages:
            await transaction.ack(message)


@asynccontextmanager
async def hold_commits(
    nodes: Nodes, unit: int, monkeypatch: pytest.MonkeyPatch, error: BusError | None = None
) -> AsyncIterator[asyncio.Event]:
    """Commits of a unit with handovers wait for the event, at most until the end of this. Then they are done,
    or fail with the error."""
    store, may_go = nodes[nodes.owners[unit]].store, asyncio.Event()
    commit = store.commit

    async def slow(of: int, epoch: int, writes: Any) -> Any:
        if of == unit and any(
            isinstance(write, PutDocument) and write.kind == "handover" for write in writes
        ):
            await may_go.wait()
            if error is not None:
                raise error
        return await commit(of, epoch, writes)

    monkeypatch.setattr(store, "commit", slow)
    try:
        yield may_go
    finally:
        may_go.set()


async def test_wherever_all_nodes_end_a_transaction_has_happened_or_not(
    nodes: Nodes, bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored after each commit is opened by a process that owns all units."""
    topics, out = [topic_of(nodes, "a"), topic_of(nodes, "b"), topic_of(nodes, "b", skip=1)], "out"
    await bus.groups.create(out, "g")
    for topic in topics:
        await bus.groups.create(topic, "g")
        await bus.publish(topic, b"in")
    engine, ends = nodes.engine, [nodes.engine.copy()]
    commit = engine.commit

    async def copied(*given: Any) -> Any:
        bounds = await commit(*given)
        ends.append(engine.copy())
        return bounds

    async with AsyncExitStack() as stack:
        reading = [await stack.enter_async_context(bus.subscribe(topic, group="g")) for topic in topics]
        messages = [await each.poll(timeout=20) for each in reading]
        monkeypatch.setattr(engine, "commit", copied)
        async with bus.transaction() as transaction:
            for message in messages:
                await transaction.ack(message)
            await transaction.publish(out, b"out")
        await until_nothing_is_owed(nodes)
        monkeypatch.undo()
    found = []
    for end in ends:
        shown = end.copy()
        await shown.open()
        reserved = sum([len(await shown.documents(unit, "reservation")) for unit in range(UNITS)])
        async with run_terminal(end) as terminal, attach(terminal) as reader:
            await until_nothing_is_owed(end)
            settled = [terminal.broker.table.group(topic, "g").settled(0) for topic in topics]
            assert settled[0] == settled[1] == settled[2]
            await eventually(lambda t=terminal, n=settled[0]: t.broker.topics[out].log.end == n)
            if not settled[0]:
                for topic in topics:
                    assert await take(reader, topic, "g", 1) == [b"in"]
            found.append((settled[0], reserved))
    # None is reserved, then one after the other, until it has happened; then one after the other is settled.
    assert found == sorted(found, key=lambda end: (end[0], -end[1] if end[0] else end[1]))
    assert {(False, 0), (False, 2), (True, 2), (True, 0)} <= set(found)


async def test_nobody_acks_apart_what_another_subject_holds(nodes: Nodes, bus: Any) -> None:
    topic = topic_of(nodes, "b")
    await bus.groups.create(topic, "g")
    await bus.publish(topic, b"in")
    async with (
        bus.subscribe(topic, group="g") as messages,
        attach(nodes["a"], subject="eve") as eve,
        attach(nodes["a"]) as same,
    ):
        message = await messages.poll(timeout=20)
        batch = message.batch
        apart = frames.ApartAck(topic, "g", messages.number, batch.lease, batch.runs_of(range(1)))
        wrong = [
            (eve, apart),
            (same, msgspec.structs.replace(apart, subscription=messages.number + 1)),
            (same, msgspec.structs.replace(apart, lease=batch.lease + 1)),
            (same, msgspec.structs.replace(apart, group="")),
            (same, msgspec.structs.replace(apart, group="other")),
            (same, msgspec.structs.replace(apart, runs=[(0, 2)])),
        ]
        for number, (by, ack) in enumerate(wrong, 1):
            make = partial(transact_apart, number=number, ack=ack)
            with pytest.raises(LeaseLost):
                await by.ask(make)
        await message.ack(wait=True)
    await until_nothing_is_owed(nodes)


def transact_apart(request: int, number: int, ack: frames.ApartAck) -> frames.Frame:
    return frames.Transact(request, b"producer", number, number, [], [], apart=[ack])


async def test_a_request_is_answered_by_a_responder_at_another_node(nodes: Nodes, bus: Any) -> None:
    topic = topic_of(nodes, "b")
    async with attach(nodes["c"], subject="answers") as there:

        async def answer() -> None:
            async with there.subscribe(topic, group="g", reply=True) as asked:
                ready.set_result(None)
                message = await asked.poll(timeout=20)
                assert message is not None
                await message.reply(b"yes " + bytes(message.payload))

        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answering = asyncio.ensure_future(answer())
        await ready
        reply = await bus.request(topic, b"no?", timeout=20)
        assert bytes(reply.payload) == b"yes no?"
        await answering


async def test_tokens_and_services_made_at_one_node_count_at_all(nodes: Nodes, bus: Any) -> None:
    made = await bus.tokens.create("alice", ["publish:*", "subscribe:*"])
    for node in "abcd":
        async with attach(nodes[node], token=made.token) as other:
            await other.publish(topic_of(nodes, "b"), b"x")
    await bus.call("token.revoke", id=made.id)
    for node in "abcd":
        mirror = nodes[node].mirror
        assert mirror is not None
        await mirror.refresh()
        with pytest.raises(BusError):
            async with attach(nodes[node], token=made.token, patience=0.1) as other:
                await other.publish(topic_of(nodes, "b"), b"x")


async def test_a_token_of_the_registry_counts_at_all_nodes(nodes: Nodes, bus: Any) -> None:
    """Node a talks with the registry, and stores what the registry says. The others read that."""
    key = Ed25519PrivateKey.generate()

    async def tell(version: int, **said: Any) -> None:
        public = TokenKey(key.public_key().public_bytes_raw())
        signed = sign_directory(
            Directory(customer="acme", version=version, token_keys=[public], services=["shop"], **said), key
        )
        await nodes["a"].broker.write([PutDocument(CROSSING, DIRECTORY, keep(signed, signed))])

    async def refresh(names: str) -> None:
        for name in names:
            mirror = nodes[name].mirror
            assert mirror is not None
            await mirror.refresh()

    token, _, _ = registered_tokens.sign(
        key, now=nodes["a"].broker.clock(), customer="acme", version=1, subject="shop",
        scopes=["publish:#"], life=600.0,
    )  # fmt: skip
    with pytest.raises(Unauthenticated):
        await attach(nodes["d"], token=token).open()
    await tell(1)
    async with attach(nodes["d"], token=token) as shop:
        for node in "bc":  # passed on, and judged there
            assert (await shop.publish(topic_of(nodes, node), b"x")).offset == 0
        # Its tokens of this version end: it is suspended in the registry.
        await tell(2, ended={"shop": 2})
        await refresh("bcd")
        with pytest.raises(Unauthenticated):
            await shop.publish(topic_of(nodes, "b"), b"x")
    # A node that has talked with the registry and does so no more goes by what is stored, too.
    nodes["a"].authority.registered = registered_tokens.RegisteredTokens()
    await tell(3)
    await nodes.move(0, "d")
    await refresh("a")
    async with attach(nodes["a"], token=token) as shop:
        assert (await shop.publish(topic_of(nodes, "b"), b"x")).offset == 1


async def test_watches_hear_of_topics_of_all_nodes(nodes: Nodes, bus: Any) -> None:
    begun = await bus.call("topic.watch", patterns=["#"], since="")
    waiting = asyncio.ensure_future(
        bus.call("topic.watch", patterns=["#"], since=begun["since"], within=20.0)
    )
    names = {topic_of(nodes, node) for node in "abc"}
    for name in names:
        await bus.topics.create(name)
    heard: set[str] = set()
    since = begun["since"]
    while not names <= heard:
        news = await waiting
        heard |= set(news["topics"])
        since = news["since"]
        waiting = asyncio.ensure_future(bus.call("topic.watch", patterns=["#"], since=since, within=20.0))
    waiting.cancel()


async def test_nothing_is_lost_or_doubled_while_units_move(nodes: Nodes) -> None:
    """Clients publish and consume at all nodes while units are moved and taken away without a word."""
    topics = [f"moving.{number}" for number in range(6)]
    count = 150
    seen: dict[str, list[int]] = {topic: [] for topic in topics}
    async with attach(nodes["a"]) as setup:
        for topic in topics:
            await setup.groups.create(topic, "g")

    async def publish(topic: str, node: str) -> None:
        async with attach(nodes[node], patience=60) as mine:
            for number in range(count):
                await mine.publish(topic, b"%d" % number)

    async def consume(topic: str, node: str) -> None:
        async with attach(nodes[node], patience=60) as mine, mine.subscribe(topic, group="g") as messages:
            while len(set(seen[topic])) < count:
                message = await messages.poll(timeout=60)
                assert message is not None
                seen[topic].append(message.offset)
                await message.ack()

    async def move(done: asyncio.Event) -> None:
        turn = 0
        while not done.is_set():
            unit, to = turn % UNITS, "abc"[(turn // 2) % 3]
            if nodes.owners[unit] != to:
                await (nodes.usurp(unit, to) if turn % 3 == 0 else nodes.move(unit, to))
            turn += 1
            await asyncio.sleep(0.02)

    done = asyncio.Event()
    moving = asyncio.ensure_future(move(done))
    work = [publish(topic, "abcd"[n % 4]) for n, topic in enumerate(topics)]
    work += [consume(topic, "abcd"[(n + 1) % 4]) for n, topic in enumerate(topics)]
    await asyncio.wait_for(asyncio.gather(*work), 120)
    done.set()
    await moving
    async with attach(nodes["d"], patience=60) as mine:
        for topic in topics:
            found = await stored(mine, topic)
            assert found == [b"%d" % number for number in range(count)], Counter(found).most_common(2)


async def test_a_subscription_without_a_group_goes_on_where_its_unit_has_moved(
    nodes: Nodes, bus: Any
) -> None:
    topic = topic_of(nodes, "a")
    await bus.topics.create(topic)
    async with (
        bus.subscribe(topic) as messages,
        attach(nodes["a"], patience=20) as other,
        other.subscribe(topic) as of_the_owner,
    ):
        await nodes.move(nodes["a"].broker.units.unit_of(topic), "b")
        assert topic not in nodes["a"].broker.topics

        async def is_read() -> bool:
            await bus.publish(topic, b"moved")
            found = [await each.poll(timeout=1) for each in (messages, of_the_owner)]
            return all(message is not None for message in found)

        await until(is_read)


async def test_a_pattern_does_not_read_again_what_was_at_no_node_for_a_while(nodes: Nodes, bus: Any) -> None:
    topic, unit = topic_of(nodes, "a"), nodes["a"].broker.units.unit_of(topic_of(nodes, "a"))
    await bus.topics.create(topic)
    async with bus.subscribe("*") as messages:
        await bus.publish(topic, b"once")
        assert (await messages.poll(timeout=20)).payload == b"once"
        nodes.owners.pop(unit)
        await nodes["a"].give_up(unit)
        nodes.tell()
        await eventually(lambda: topic not in messages.topics)
        await nodes.take("b", unit)
        await eventually(lambda: topic in messages.topics)
        found = None
        async with asyncio.timeout(LIMIT):
            while found is None:
                await bus.publish(topic, b"again")
                found = await messages.poll(timeout=1)
        assert found.payload == b"again"


async def test_a_node_that_is_gone_is_replaced(nodes: Nodes, bus: Any) -> None:
    topic = topic_of(nodes, "b")
    await bus.groups.create(topic, "g")
    await bus.publish(topic, b"before")
    lost = [unit for unit, node in nodes.owners.items() if node == "b"]
    nodes.unreachable.add("b")
    for connection in list(nodes["b"].connections):
        connection._transport.abort()
    publishing = asyncio.ensure_future(bus.publish(topic, b"meanwhile"))
    for unit in lost:
        await nodes.usurp(unit, "c")
    await publishing
    assert await take(bus, topic, "g", 2) == [b"before", b"meanwhile"]
    await eventually(lambda: topic in nodes["c"].broker.topics)


async def test_what_is_passed_on_to_a_node_that_still_loads_the_unit_waits_there(
    nodes: Nodes, bus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "landbridge.client")
    topic = topic_of(nodes, "b")
    await bus.publish(topic, b"before")
    unit = nodes["b"].broker.units.unit_of(topic)
    cluster = nodes["b"].cluster
    assert cluster is not None
    await nodes["b"].give_up(unit, fenced=True)  # by the table it has the unit all the time
    publishing = asyncio.ensure_future(bus.publish(topic, b"meanwhile"))
    await eventually(lambda: cluster._waiting)
    await nodes["b"].take(unit)
    await publishing
    assert await stored(bus, topic) == [b"before", b"meanwhile"]
    assert "trying again" not in caplog.text
    assert "goodbye" not in caplog.text


async def test_units_are_taken_together_and_one_that_cannot_be_read_keeps_back_no_other(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, units = nodes["d"], list(range(UNITS))
    store, asked, bad = node.store, Counter[str](), 3
    documents = store.documents

    async def some(unit: int, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        asked[kind] += 1
        if unit == bad and kind == "topic":
            raise StoreFailed("the server has refused it")
        return await documents(unit, kind, prefix)

    monkeypatch.setattr(store, "documents", some)
    with pytest.raises(StoreFailed, match="refused"):
        await node.take(*units)
    assert node.broker.units.owned == set(units) - {bad}
    assert asked["handover"] == 2 * UNITS  # of all, and of each its own
    monkeypatch.undo()
    await node.take(*units)
    assert node.broker.units.owned == set(units)


async def test_each_schedule_fires_once_at_its_owner_also_when_units_move(crashes: list[Any]) -> None:
    clock, schedulers = FakeClock(), []
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(run_nodes(("a", "b", "c"), units=UNITS, clock=clock))
        for terminal in nodes.terminals.values():
            stack.enter_context(clock.watched_by(terminal))
            dial = dial_to(terminal, is_part=True)
            scheduler = await stack.enter_async_context(scheduling(terminal, dial))
            schedulers.append(scheduler)
        bus = await stack.enter_async_context(attach(nodes["c"], patience=20))
        topics = [topic_of(nodes, node) for node in "abc"]
        for topic in topics:
            await bus.schedules.create(topic, "tick", "@every 10s", payload="x")
        assert len((await bus.call("schedule.list"))["schedules"]) == 3

        def ends() -> list[int]:
            every = [
                terminal.broker.topics.get(topic) for topic in topics for terminal in nodes.terminals.values()
            ]
            return [topic.log.end for topic in every if topic is not None]

        for turn in range(1, 7):
            clock.advance(10)
            for scheduler in schedulers:
                scheduler.look()
            await eventually(lambda turn=turn: ends() == [turn] * 3)
            unit = nodes["a"].broker.units.unit_of(topics[turn % 3])
            await nodes.move(unit, "abc"[turn % 2])


def end_of(nodes: Nodes, topic: str) -> int:
    """Where a topic ends, as its owner knows."""
    owner = nodes[nodes.owners[nodes["a"].broker.units.unit_of(topic)]]
    found = owner.broker.topics.get(topic)
    return 0 if found is None else found.log.end


async def stored(bus: Any, topic: str) -> list[bytes]:
    """All that a topic has, by offset: what a group gets may come twice."""
    found: list[bytes] = []
    while batches := (await bus.fetch(topic, len(found))).batches:
        found += [bytes(payload) for each in batches for payload in each.batch.payloads()]
    return found


async def keep_moving(nodes: Nodes, seed: int, done: asyncio.Event) -> None:
    """Units change their owners all the time, in good order and without a word."""
    source = Random(seed)
    while not done.is_set():
        unit, to = source.randrange(UNITS), source.choice("abc")
        if nodes.owners[unit] != to:
            await (nodes.usurp(unit, to) if source.random() < 0.4 else nodes.move(unit, to))
        await asyncio.sleep(source.uniform(0, 0.06))


SEEDS = [(1, 15), *(pytest.param(seed, 60, marks=pytest.mark.slow) for seed in range(2, 12))]


@pytest.mark.parametrize(("seed", "count"), SEEDS)
async def test_transactions_across_nodes_happen_once_while_units_move(
    nodes: Nodes, seed: int, count: int
) -> None:
    """From topic to topic, each message once, whoever owns them at the moment."""
    pairs = 4
    async with attach(nodes["a"]) as setup:
        for number in range(pairs):
            await setup.groups.create(f"in.{number}", "g")
            await setup.groups.create(f"out.{number}", "check")
    done = asyncio.Event()
    moving = asyncio.ensure_future(keep_moving(nodes, seed, done))

    async def publish(number: int) -> None:
        async with attach(nodes["abcd"[number % 4]], patience=60) as bus:
            for payload in range(count):
                await bus.publish(f"in.{number}", b"%d" % payload)

    async def pass_on(number: int, passed: set[bytes]) -> None:
        node = nodes["abcd"[(number + 1) % 4]]
        async with attach(node, patience=60) as bus, bus.subscribe(f"in.{number}", group="g") as messages:
            while len(passed) < count:
                message = await messages.poll(timeout=60)
                assert message is not None
                try:
                    async with bus.transaction() as transaction:
                        await transaction.publish(f"out.{number}", message.payload)
                        await transaction.ack(message)
                except LeaseLost:
                    # It was given back when an owner changed, and comes again; or it happened.
                    continue
                passed.add(bytes(message.payload))
                if await lag(bus, f"in.{number}") == 0:
                    return

    async def lag(bus: Any, topic: str) -> int:
        shown = await bus.call("group.show", topic=topic, name="g")
        return count if shown["floor"] < count else 0

    work = [publish(number) for number in range(pairs)]
    work += [pass_on(number, set()) for number in range(pairs)]
    await asyncio.wait_for(asyncio.gather(*work), 100)
    done.set()
    await moving
    async with attach(nodes["d"], patience=60) as bus:
        for number in range(pairs):
            # The last outputs may be on their way still, where the answer was lost.
            await eventually(lambda name=f"out.{number}": end_of(nodes, name) >= count)
            found = await stored(bus, f"out.{number}")
            assert Counter(found) == Counter(b"%d" % payload for payload in range(count))


@pytest.mark.parametrize(("seed", "count"), SEEDS)
async def test_transactions_that_ack_at_several_nodes_happen_once_while_units_move(
    nodes: Nodes, seed: int, count: int
) -> None:
    """Messages of two topics become one of a third, whoever owns them at the moment: every message is in one
    pair."""
    pairs = 3
    async with attach(nodes["a"]) as setup:
        for number in range(pairs):
            for side in ("left", "right"):
                await setup.groups.create(f"{side}.{number}", "g")
            await setup.groups.create(f"out.{number}", "check")
    done = asyncio.Event()
    moving = asyncio.ensure_future(keep_moving(nodes, seed, done))

    async def publish(topic: str, node: str) -> None:
        async with attach(nodes[node], patience=60) as bus:
            for payload in range(count):
                await bus.publish(topic, b"%d" % payload)

    async def join(number: int) -> None:
        node = nodes["abcd"[(number + 1) % 4]]
        async with (
            attach(node, patience=60) as bus,
            bus.subscribe(f"left.{number}", group="g") as left,
            bus.subscribe(f"right.{number}", group="g") as right,
        ):
            one = other = None
            while True:
                one, other = one or await left.poll(timeout=1), other or await right.poll(timeout=1)
                if one is not None and other is not None:
                    try:
                        async with bus.transaction() as transaction:
                            await transaction.ack(other)
                            await transaction.ack(one)
                            await transaction.publish(f"out.{number}", one.payload + b" " + other.payload)
                    except LeaseLost:
                        # One of them may still be held.
                        given_back = one.requeue(0), other.requeue(0)
                        await asyncio.gather(*given_back, return_exceptions=True)
                    one = other = None
                elif await caught_up(bus, number):
                    return

    async def caught_up(bus: Any, number: int) -> bool:
        shown = [
            await bus.call("group.show", topic=f"{side}.{number}", name="g") for side in ("left", "right")
        ]
        return all(each["floor"] >= count for each in shown)

    work = [publish(f"left.{number}", "abcd"[number % 4]) for number in range(pairs)]
    work += [publish(f"right.{number}", "abcd"[(number + 2) % 4]) for number in range(pairs)]
    work += [join(number) for number in range(pairs)]
    await asyncio.wait_for(asyncio.gather(*work), 150)
    done.set()
    await moving
    await until_nothing_is_owed(nodes)
    async with attach(nodes["d"], patience=60) as bus:
        for number in range(pairs):
            made = [payload.split() for payload in await stored(bus, f"out.{number}")]
            for place in (0, 1):
                assert Counter(pair[place] for pair in made) == Counter(b"%d" % n for n in range(count))
