"""A client of a terminal with several nodes connects to those that have what it uses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from landbridge.client import line, node_wires, wire
from landbridge.client.bus import Bus
from landbridge.client.context import Context
from landbridge.client.node_wires import NodeWires
from landbridge.client.wire import ContextDial
from landbridge.errors import BusError, Disconnected, NotOwner, TerminalUnreachable, from_wire
from landbridge.testing import attach
from landbridge.testing.cluster import Nodes, run_nodes
from landbridge.transport.memory import join
from tests.waiting import eventually, until

UNITS = 8


class NodesDial(ContextDial):
    """Reaches the nodes of a test by their names, which stand for their addresses."""

    def __init__(self, nodes: Nodes, first: str) -> None:
        super().__init__(Context("lb://127.0.0.1:1,127.0.0.1:2", ""))
        self._nodes, self._first = nodes, first
        #: How often each node was dialled.
        self.dialled: Counter[str] = Counter()

    async def _join(self, node: str, factory: Callable[[], asyncio.Protocol]) -> Any:
        terminal = self._nodes.terminals[node]
        if node in self._nodes.unreachable or terminal.closing:
            raise TerminalUnreachable(f"nobody answers at {node}")
        self.dialled[node] += 1
        protocol = factory()
        return join(protocol, terminal.attach()), protocol

    async def __call__(self, factory: Callable[[], asyncio.Protocol]) -> Any:
        return await self._join(self._first, factory)

    def to(self, url: str) -> Any:
        return lambda factory: self._join(url, factory)


@pytest.fixture
async def nodes(crashes: list[Any], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    """Node d owns nothing."""
    async with run_nodes(("a", "b", "c", "d"), owners=("a", "b", "c"), units=UNITS) as running:
        for terminal in running.terminals.values():
            monkeypatch.setattr(terminal.cluster, "url_of", lambda node: node)
        yield running


def bus_at(nodes: Nodes, node: str) -> Bus:
    token = nodes["a"].issue_token("admin", ["admin"], 3600.0)
    return Bus(NodesDial(nodes, node), token, patience=20)


def topic_of(nodes: Nodes, node: str, skip: int = 0) -> str:
    names = [f"t{number}" for number in range(400)]
    return [name for name in names if nodes.owners[nodes["a"].broker.units.unit_of(name)] == node][skip]


def legs(nodes: Nodes) -> int:
    """Connections by which nodes pass on what clients ask."""
    return sum(
        each.is_leg and not each.is_node for one in nodes.terminals.values() for each in one.connections
    )


async def test_what_is_used_is_asked_of_its_owner_itself(nodes: Nodes) -> None:
    async with bus_at(nodes, "d") as bus:
        for node in "abc":
            topic = topic_of(nodes, node)
            async with bus.publisher(topic) as out:
                await out.send_many(b"%d" % number for number in range(3000))
            await bus.publish(topic, b"last")
            async with bus.subscribe(topic, group="g") as messages:
                found = []
                async for message in messages:
                    found.append(bytes(message.payload))
                    await message.ack(wait=True)
                    if message.payload == b"last":
                        break
            assert found == [*(b"%d" % number for number in range(3000)), b"last"]
        assert legs(nodes) == 0
        assert dict(bus._dial.dialled) == {"d": 1, "a": 1, "b": 1, "c": 1}  # type: ignore[attr-defined]


async def test_a_node_that_cannot_be_reached_is_reached_by_another(nodes: Nodes) -> None:
    topic = topic_of(nodes, "a")
    dial = NodesDial(nodes, "d")
    token = nodes["a"].issue_token("admin", ["admin"], 3600.0)
    dial.to = lambda url: _nobody  # type: ignore[method-assign]
    async with Bus(dial, token, patience=20) as bus:
        assert (await bus.publish(topic, b"x")).offset == 0
        assert legs(nodes) == 1


async def _nobody(factory: Any) -> Any:
    raise TerminalUnreachable("nobody answers")


async def test_units_that_move_lose_and_double_nothing(nodes: Nodes) -> None:
    topics = [topic_of(nodes, node) for node in "abc"]
    async with bus_at(nodes, "a") as bus, bus_at(nodes, "d") as reader:
        done = asyncio.Event()

        async def publish(topic: str) -> int:
            count = 0
            while not done.is_set():
                await bus.publish(topic, b"%d" % count)
                count += 1
            return count

        publishing = [asyncio.ensure_future(publish(topic)) for topic in topics]
        for round in range(6):
            unit = nodes["a"].broker.units.unit_of(topics[round % 3])
            before = bus.connections
            await nodes.move(unit, "abcd"[round % 4])
            stored = nodes.terminals[nodes.owners[unit]].broker.topics
            if topics[round % 3] in stored:
                end = stored[topics[round % 3]].log.end
                await eventually(
                    lambda end=end, stored=stored, topic=topics[round % 3]: stored[topic].log.end > end
                )
            assert bus.connections <= before + 2
        done.set()
        counts = await asyncio.gather(*publishing)
        for topic, count in zip(topics, counts, strict=True):
            found = []
            async with reader.subscribe(topic, group="g") as messages:
                async for message in messages:
                    found.append(int(message.payload))
                    await message.ack()
                    if len(found) == count:
                        break
            assert found == list(range(count))


async def test_transactions_go_where_their_acks_are(nodes: Nodes) -> None:
    near, far = topic_of(nodes, "a"), topic_of(nodes, "b")
    async with bus_at(nodes, "d") as bus:
        await bus.publish(near, b"1")
        await bus.publish(far, b"2")
        one, two = bus.subscribe(near, group="g"), bus.subscribe(far, group="g")
        first, second = await one.poll(timeout=20), await two.poll(timeout=20)
        assert first is not None
        assert second is not None
        async with bus.transaction() as transaction:
            await transaction.ack(first)
            await transaction.publish(far, b"3")
        assert (await bus.groups.show(near, "g")).lag == 0
        await bus.publish(near, b"4")
        fourth = await one.poll(timeout=20)
        assert fourth is not None
        async with bus.transaction() as both:  # over connections to two nodes
            await both.ack(fourth)
            await both.ack(second)
        assert (await bus.groups.show(near, "g")).lag == 0

        async def is_settled_there() -> bool:
            return (await bus.groups.show(far, "g")).lag <= 1

        await until(is_settled_there)
        third = await two.poll(timeout=20)
        assert third is not None
        assert bytes(third.payload) == b"3"
        await one.close()
        await two.close()


async def test_a_lost_owner_ends_the_whole_connection_and_it_is_made_again(nodes: Nodes) -> None:
    topic = topic_of(nodes, "b")
    async with bus_at(nodes, "d") as bus:
        await bus.publish(topic, b"0")
        before = bus.connections
        for connection in list(nodes["b"].connections):
            if not connection.is_node and not connection.is_part:
                connection.connection_lost(None)
                connection._transport.abort()
        assert (await bus.publish(topic, b"1")).offset == 1
        await eventually(lambda: bus.connections > before)
        assert (await bus.publish(topic, b"2")).offset == 2


async def test_a_node_that_freezes_after_its_welcome_holds_nobody(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(nodes, "b")
    monkeypatch.setattr(line, "NODE_ANSWERS_WITHIN", 0.2)
    async with bus_at(nodes, "d") as bus:
        await bus.publish(topic, b"0")
        find, asked = NodeWires.find, 0

        async def frozen_at_first(wires: NodeWires, topics: Any) -> None:
            nonlocal asked
            asked += 1
            await (asyncio.Event().wait() if asked == 1 else find(wires, topics))

        monkeypatch.setattr(NodeWires, "find", frozen_at_first)
        assert bus.wire is not None
        bus.wire.cut(Disconnected("cut by the test"))
        assert (await bus.publish(topic, b"1")).offset == 1
        assert asked > 1


async def test_topics_beyond_those_that_are_remembered_go_to_the_first_node(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_wires, "MOST_KNOWN", 2)
    topics = [topic_of(nodes, node, skip) for skip in (0, 1) for node in "abc"]
    async with bus_at(nodes, "d") as bus:
        for number in range(3):
            for topic in topics:
                assert (await bus.publish(topic, b"x")).offset == number
        assert bus.wire is not None
        assert bus.wire.nodes is not None
        assert len(bus.wire.nodes._topics) == 2


async def test_what_was_sent_to_other_nodes_is_written_before_a_bus_is_closed(nodes: Nodes) -> None:
    topic = topic_of(nodes, "c")
    async with bus_at(nodes, "d") as bus:
        await bus.publish(topic, b"0")
        assert bus.wire is not None
        assert bus.wire.nodes is not None
        others = bus.wire.nodes._others
        assert len(others) == 1
    assert all(wire._gone.done() for wire in others)  # type: ignore[attr-defined]


async def test_a_fresh_token_is_good_for_every_connection(nodes: Nodes) -> None:
    topic = topic_of(nodes, "c")
    async with bus_at(nodes, "d") as bus:
        await bus.publish(topic, b"0")
        token = nodes["a"].issue_token("admin", ["publish:other", "observe"], 3600.0)
        await bus.renew(token)
        with pytest.raises(Exception, match=r"publish"):
            await bus.publish(topic, b"1")


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are of a version without nodes: the hello tells of nothing new, nobody is asked who has a topic
    (the dial of ``attach`` knows one address), and a code that came later is an error like any other."""

    def known(code: str, message: str, hint: str, details: Any = None) -> BusError:
        return from_wire("" if code == NotOwner.code else code, message, hint, details)

    monkeypatch.setattr(line, "FEATURES", None)
    monkeypatch.setattr(wire, "from_wire", known)


async def test_a_client_of_an_earlier_version_works_at_any_node(nodes: Nodes, earlier: None) -> None:
    topics = {node: topic_of(nodes, node) for node in "abc"}
    for number, node in enumerate("abcd"):
        async with attach(nodes[node], patience=20) as bus:
            for topic in topics.values():
                await bus.groups.create(topic, f"g{node}", start="latest")
                async with bus.publisher(topic) as out:
                    await out.send_many(b"%d" % each for each in range(300))
                assert (await bus.publish(topic, b"last")).offset == number * 302 + 300
            for topic in topics.values():
                found: list[bytes] = []
                async with bus.subscribe(topic, group=f"g{node}") as messages:
                    while not found or found[-1] != b"last":
                        message = await messages.poll(timeout=20)
                        assert message is not None
                        found.append(bytes(message.payload))
                        await message.ack(wait=True)
                assert found == [*(b"%d" % each for each in range(300)), b"last"]
            # A transaction that acks at one node and publishes to two others.
            await bus.publish(topics["a"], b"in")
            async with bus.subscribe(topics["a"], group=f"g{node}") as messages:
                message = await messages.poll(timeout=20)
                assert message is not None
                async with bus.transaction() as transaction:
                    await transaction.ack(message)
                    await transaction.publish(topics["b"], b"out")
                    await transaction.publish(topics["c"], b"out")


async def test_a_client_of_an_earlier_version_goes_on_when_units_move(nodes: Nodes, earlier: None) -> None:
    topic = topic_of(nodes, "a")
    unit = nodes["a"].broker.units.unit_of(topic)
    async with attach(nodes["d"], patience=20) as bus, attach(nodes["b"], patience=20) as other:
        await bus.groups.create(topic, "g")
        found: list[int] = []

        async def consume() -> None:
            async with other.subscribe(topic, group="g") as messages:
                async for message in messages:
                    found.append(int(message.payload))
                    await message.ack()

        consuming = asyncio.ensure_future(consume())
        for number in range(40):
            await bus.publish(topic, b"%d" % number)
            if number % 10 == 5:
                await nodes.move(unit, "bcda"[number // 10])
        await eventually(lambda: len(set(found)) == 40)
        assert list(dict.fromkeys(found)) == list(range(40))
        assert (await bus.call("topic.show", name=topic))["end"] == 40
        assert other.connections > 1
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
