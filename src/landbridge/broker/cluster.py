"""The other nodes of a terminal, as one node sees them: who owns which unit, and the way there.

What the process of a node has to do:

    terminal = Terminal(store, …)
    cluster = Cluster(terminal, me=ID, dial=lambda record: dial_of(Context(record.url, …)))
    await terminal.open_shared(cluster)        # it owns nothing yet; ``terminal.cluster`` is set
    …                                          # beat in the roster; with each new table:
    for unit in moves.release: await terminal.give_up(unit)     # before the roster is told of it
    await terminal.take(*taken)                                 # after the roster has said so
    cluster.follow(table)                      # after each beat: who owns what, and where nodes are
    await terminal.is_ready.wait()             # the key that signs tokens is known

``may_serve`` is asked before every commit: False once the node's lease is over by its own clock. A unit that
another node has claimed is given up by itself (``UnitLife.on_fenced``).

The connection of a client uses ``Owners`` to find out where its frames go, and makes legs (``legs.py``) by
``dial``. What this node itself asks of others (handovers, batches for the status log) goes over one leg to
each node, on which it shows a pass that only nodes can make.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from landbridge.broker import topic as topics
from landbridge.broker.authority import Authority
from landbridge.broker.broker import Broker
from landbridge.broker.handover import append_once
from landbridge.broker.legs import Dial, Leg
from landbridge.broker.middleware import PublishingSubject, accepted
from landbridge.broker.stage_rows import append_rows, forget_producer
from landbridge.core.cluster.table import ClusterTable, NodeRecord
from landbridge.core.log import record
from landbridge.core.log.batch import Batch
from landbridge.core.log.store import Store
from landbridge.core.names import is_rule_topic
from landbridge.errors import BadRequest, BusError, Disconnected, NotOwner
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.operations import OPERATIONS

#: Seconds that a frame waits for its unit to have an owner, before its client has to come again.
OWNER_WITHIN = 5.0
#: Rules' topics whose units are remembered, and the seconds for which it is that there is no such rule.
MOST_RULES, NO_RULE_FOR = 10_000, 1.0
#: Batches of the terminal's own that wait for another node; seconds between two tries.
MOST_TOLD, TELL_AGAIN = 64, 1.0
#: Seconds that a node which closes takes for what it has still to tell.
LAST_WORDS = 0.2
#: Bytes of rows in one question at most; one record may be more.
ROWS_AT_ONCE = 4 << 20
#: HTTP status of the errors that say that a node doesn't have it.
NOT_FOUND = 404
#: Seconds that another node has to answer what this node asks.
ANSWER_WITHIN = 30.0


class RoutedConnection(Protocol):
    """A client's connection."""

    def owners_changed(self) -> None:
        """Other nodes have other units now."""


class Following(Protocol):
    """What this node follows of the owner of unit 0."""

    async def refresh(self) -> None: ...


class StrangerDesk(Protocol):
    """Answers operations."""

    async def answer_stranger(self, name: str, arguments: dict[str, Any]) -> object: ...


class NodeTerminal(Protocol):
    """The terminal of this node."""

    broker: Broker
    store: Store
    authority: Authority
    cluster: Cluster | None

    @property
    def connections(self) -> Iterable[RoutedConnection]: ...

    @property
    def mirror(self) -> Following | None: ...

    @property
    def operations(self) -> StrangerDesk: ...


class JudgedPublisher(NamedTuple):
    """In whose name another node asks, as it has judged."""

    subject: str
    claims: Mapping[str, str]


class AppendAsked(msgspec.Struct, frozen=True):
    topic: str
    producer: bytes
    number: int
    subject: str


class SettleAsked(msgspec.Struct, frozen=True):
    log: int
    group: str


class ReserveAsked(msgspec.Struct, frozen=True):
    unit: int
    token: bytes
    home: int
    subject: str
    acks: list[frames.ApartAck]


class ReservationAsked(msgspec.Struct, frozen=True):
    """``unit``: that of the reservation; to decide, the home of its transaction."""

    unit: int
    token: bytes


class PrepareAsked(msgspec.Struct, frozen=True):
    topic: str
    subject: str
    claims: dict[str, str]


class RowsAsked(msgspec.Struct, frozen=True):
    """Rows of a stage. Tail: a record for each of these sizes."""

    topic: str
    producer: bytes
    left: int
    subject: str
    sizes: list[int]


class ForgetAsked(msgspec.Struct, frozen=True):
    topic: str
    producer: bytes


class LookAsked(msgspec.Struct, frozen=True):
    topic: str
    subject: str


class NothingAsked(msgspec.Struct, frozen=True):
    """There is nothing to say."""


class StrangerAsked(msgspec.Struct, frozen=True):
    op: str
    args: dict[str, Any]


class PartAsked(msgspec.Struct, frozen=True):
    """Of a part of the process: its name there, and what it is asked."""

    part: str
    text: str


class TellAsked(msgspec.Struct, frozen=True):
    topic: str


#: What a part of a process does with a text and some bytes. False: it knows nothing of it.
PartAnswer: TypeAlias = Callable[[str, bytes], Coroutine[Any, Any, bool]]


class Cluster:
    """The nodes of one terminal."""

    def __init__(
        self,
        terminal: NodeTerminal,
        me: str,
        dial: Callable[[NodeRecord], Dial],
        may_serve: Callable[[], bool] = lambda: True,
    ) -> None:
        self.me = me
        #: Seconds that it takes, when it closes, for what it has still to tell.
        self.last_words = LAST_WORDS
        self._terminal = terminal
        self._dial = dial
        self._may_serve = may_serve
        self.table = ClusterTable(now=0)
        #: Who waits for a change of owners.
        self._waiting: set[asyncio.Future[None]] = set()
        #: A rule's topic → its unit, and until when that is known, by the loop's clock; None: for ever.
        self._rules: OrderedDict[str, tuple[int, float | None]] = OrderedDict()
        #: Node → what this node asks there.
        self._legs: dict[str, Leg] = {}
        self._told: set[asyncio.Task[None]] = set()
        #: What parts of the process answer to the same parts of other nodes.
        self._parts: dict[str, PartAnswer] = {}
        terminal.cluster = self

    # -- owners ------------------------------------------------------------------------------------

    def follow(self, table: ClusterTable) -> None:
        """This is who owns what from now on."""
        before = self._served
        self.table = table
        for node in [node for node in self._legs if not self._is_live(node)]:
            self._legs.pop(node).close()
        if self._served != before:
            self.owners_changed()

    @property
    def _served(self) -> list[str | None]:
        return [self.node_of(unit) for unit in range(self._terminal.store.units)]

    def owners_changed(self) -> None:
        """Clients that wait for something at an earlier owner come again, to the new one."""
        waiting, self._waiting = self._waiting, set()
        for each in waiting:
            if not each.done():
                each.set_result(None)
        for connection in list(self._terminal.connections):
            connection.owners_changed()

    def _is_live(self, node: str) -> bool:
        found = self.table.node(node)
        return found is not None and self.table.is_live(found)

    def unit_of(self, topic: str) -> int | None:
        """See ``protocol.router.Owners``."""
        broker = self._terminal.broker
        name = topic.removesuffix(".dead")
        if not is_rule_topic(name) or name in broker.topics:
            return broker.units.unit_of(topic)
        found = self._rules.get(name)
        if found is None:
            return None
        unit, until = found
        return None if until is not None and until < asyncio.get_running_loop().time() else unit

    def node_of(self, unit: int) -> str | None:
        """See ``protocol.router.Owners``."""
        if self._terminal.broker.units.owns(unit) and self._may_serve():
            return self.me
        # Once the lease is over, this node is about to give the unit up: who wants something of it waits.
        owner = self.table.owner(unit)
        return None if owner is None or owner.id == self.me else owner.id

    def url_of(self, node: str) -> str:
        """Where a node's bus port is, for clients; empty where that isn't known."""
        found = self.table.node(node)
        return "" if found is None else found.url

    @property
    def nodes(self) -> Iterable[str]:
        """See ``protocol.router.Owners``."""
        found = {self.node_of(unit) for unit in range(self._terminal.store.units)}
        return [node for node in found if node is not None]

    async def locate(self, topic: str) -> None:
        """Wait until it is known who owns the unit of a topic. NotOwner where nobody does for long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + OWNER_WITHIN
        while True:
            unit = self.unit_of(topic) if topic else 0
            if unit is None:
                await self._find_rule(topic.removesuffix(".dead"))
                continue
            if self.node_of(unit) is not None:
                return
            left = until - loop.time()
            if left <= 0:
                raise self._terminal.broker.units.not_owner(unit)
            change = loop.create_future()
            self._waiting.add(change)
            await asyncio.wait([change], timeout=left)
            self._waiting.discard(change)

    async def _find_rule(self, name: str) -> None:
        """A rule's topic lives in the unit of its source, which its document tells."""
        store, until = self._terminal.store, asyncio.get_running_loop().time() + NO_RULE_FOR
        found: tuple[int, float | None] = self._terminal.broker.units.unit_of(name), until
        for unit in range(store.units):
            if any(key == name for key, _ in await store.documents(unit, topics.KIND, name)):
                found = unit, None
        self._rules[name] = found
        if len(self._rules) > MOST_RULES:
            self._rules.popitem(last=False)

    # -- the way there -----------------------------------------------------------------------------

    def dial(self, node: str) -> Dial:
        """How to connect to a node."""

        async def dialled(factory: Callable[[], asyncio.Protocol]) -> Any:
            found = self.table.node(node)
            if found is None:
                raise Disconnected(f"there is no node {node} any more")
            return await self._dial(found)(factory)

        return dialled

    def node_pass(self) -> str:
        terminal = self._terminal
        return terminal.authority.node_pass(terminal.broker.clock())

    async def _ask(
        self, node: str, op: str, args: msgspec.Struct, data: bytes | memoryview = b""
    ) -> tuple[Any, memoryview]:
        leg = self._legs.get(node)
        if leg is None or leg.closed:
            leg = self._legs[node] = Leg(node, self._hello, _nobody, self._lost)
            leg.begin(self.dial(node))
        asked = msgspec.to_builtins(args, builtin_types=(bytes,))
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await leg.ask(lambda request: frames.Relay(request, op, asked), data)
        except TimeoutError:
            raise NotOwner(f"the node {node} hasn't answered within {ANSWER_WITHIN:g} s") from None

    def _hello(self) -> frames.Hello:
        return frames.Hello(frames.VERSION, "", "node", [{"node": self.node_pass()}])

    def _lost(self, leg: Leg, error: BusError) -> None:
        if self._legs.get(leg.node) is leg:
            del self._legs[leg.node]

    def _owner(self, unit: int) -> str:
        node = self.node_of(unit)
        if node is None or node == self.me:
            raise self._terminal.broker.units.not_owner(unit)
        return node

    async def _owner_of(self, topic: str) -> str:
        await self.locate(topic)
        unit = self.unit_of(topic)
        assert unit is not None
        return self._owner(unit)

    # -- what the broker asks of others (see ``surroundings.Elsewhere``) ---------------------------

    def owner_of(self, unit: int) -> str:
        owner = self.table.owner(unit)
        return "" if owner is None or owner.id == self.me else owner.name

    def topics(self) -> int:
        return self.table.topics_beside(self.me)

    def check_owned(self, unit: int) -> None:
        if not self._may_serve():
            raise NotOwner(f"this node's lease is over: it may not write to unit {unit} any more")

    async def append(self, topic: str, producer: bytes, number: int, subject: str, batch: Batch) -> int:
        node = await self._owner_of(topic)
        asked = AppendAsked(topic, producer, number, subject)
        first, _ = await self._ask(node, "append", asked, record.wrap(batch))
        return int(first)

    async def settle(self, log: int, group: str) -> None:
        node = self._owner(log % self._terminal.store.units)
        await self._ask(node, "settle", SettleAsked(log, group))

    async def find_unit(self, topic: str) -> int:
        await self.locate(topic)
        unit = self.unit_of(topic)
        assert unit is not None
        return unit

    async def reserve(
        self, unit: int, token: bytes, home: int, subject: str, acks: Sequence[frames.ApartAck]
    ) -> None:
        asked = ReserveAsked(unit, token, home, subject, list(acks))
        await self._ask(self._owner(unit), "reserve", asked)

    async def keep(self, unit: int, token: bytes) -> None:
        await self._ask(self._owner(unit), "keep", ReservationAsked(unit, token))

    async def drop(self, unit: int, token: bytes) -> None:
        await self._ask(self._owner(unit), "drop", ReservationAsked(unit, token))

    async def decide(self, home: int, token: bytes) -> bool | None:
        happened, _ = await self._ask(self._owner(home), "decide", ReservationAsked(home, token))
        return None if happened is None else bool(happened)

    async def prepare(self, publisher: PublishingSubject, topic: str, batch: Batch) -> Batch:
        node = await self._owner_of(topic)
        asked = PrepareAsked(topic, publisher.subject, dict(publisher.claims))
        _, data = await self._ask(node, "prepare", asked, record.wrap(batch))
        return record.unwrap(bytes(data))

    async def append_rows(
        self, topic: str, producer: bytes, left: int, subject: str, batches: Sequence[Batch]
    ) -> None:
        records: list[bytes | memoryview] = []
        rows = size = 0
        for batch in batches:
            records.append(record.wrap(batch))
            rows, size = rows + len(batch), size + len(records[-1])
            if size >= ROWS_AT_ONCE or batch is batches[-1]:
                asked = RowsAsked(topic, producer, left, subject, [len(each) for each in records])
                await self._ask(await self._owner_of(topic), "rows", asked, b"".join(records))
                left, rows, size = left - rows, 0, 0
                records.clear()

    async def forget_producer(self, topic: str, producer: bytes) -> None:
        await self._ask(await self._owner_of(topic), "forget", ForgetAsked(topic, producer))

    async def look_at(self, topic: str, subject: str) -> str:
        kind, _ = await self._ask(await self._owner_of(topic), "look_at", LookAsked(topic, subject))
        return str(kind)

    def announce(self) -> None:
        for node in self.table.live:
            if node.id != self.me:
                self._spawn(self._announce(node.id))

    async def _announce(self, node: str) -> None:
        with suppress(BusError):  # it looks by itself, a second later
            await self._ask(node, "changed", NothingAsked())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    def tell(self, topic: str, batch: Batch) -> None:
        if len(self._told) >= MOST_TOLD:
            self._terminal.broker.totals.untold += 1
            return
        self._spawn(self._tell(topic, batch))

    async def _tell(self, topic: str, batch: Batch) -> None:
        """Try until it is told. Who is to be told may change meanwhile, and may become this node."""
        broker = self._terminal.broker
        while True:
            try:
                if broker.units.has(topic):
                    broker.committing.tell(topic, batch)
                else:
                    await self._ask(await self._owner_of(topic), "tell", TellAsked(topic), record.wrap(batch))
            except BusError as error:
                if not error.retriable:
                    broker.totals.untold += 1
                    return
                await asyncio.sleep(TELL_AGAIN)
            else:
                return

    def register_part(self, part: str, answer: PartAnswer) -> None:
        """Have a part of this process answer the same part of other nodes."""
        self._parts[part] = answer

    async def ask_parts(self, part: str, text: str, data: bytes = b"") -> bool:
        """Ask a part of this process, and then that of every other node, until one of them knows. False: none
        does. An error where one that may know can't be reached."""
        error: BusError | None = None
        for node in [self.me, *(each.id for each in self.table.live if each.id != self.me)]:
            try:
                if node == self.me:
                    is_known = await self._parts[part](text, data)
                else:
                    is_known, _ = await self._ask(node, "part", PartAsked(part, text), data)
            except BusError as failed:
                error = failed
            else:
                if is_known:
                    return True
        if error is not None:
            raise error
        return False

    async def answer_stranger(self, name: str, arguments: dict[str, Any]) -> Any:
        """Answer an operation that needs no token, at the node that can."""
        operation = OPERATIONS.get(name)
        error: BusError = BadRequest(f"no operation {name[:60]!r}")
        for node in [self.me] if operation is None else await self._where(operation.where, arguments):
            try:
                if node == self.me:
                    return await self._terminal.operations.answer_stranger(name, arguments)
                answer, _ = await self._ask(node, "stranger", StrangerAsked(name, arguments))
            except BusError as failed:
                error = failed
                if failed.http_status != NOT_FOUND:
                    raise
            else:
                assert operation is not None
                return msgspec.convert(answer, operation.answer)
        raise error

    async def _where(self, where: str, arguments: Mapping[str, Any]) -> list[str]:
        """The nodes to ask one after the other."""
        kind, _, named = where.partition(":")
        if kind == "any":
            return sorted({self.me, *self.nodes})
        topic = arguments.get(named[1:-1]) if kind == "topic" else ""
        if not isinstance(topic, str):
            return [self.me]  # refused here
        await self.locate(topic)
        unit = self.unit_of(topic) if topic else 0
        return [self.me if unit is None else self.node_of(unit) or self.me]

    # -- what others ask of this node --------------------------------------------------------------

    async def answer(self, frame: frames.Relay, data: memoryview) -> tuple[Any, bytes | memoryview]:
        """Answer another node."""
        broker = self._terminal.broker
        match frame.op:
            case "append":
                append = msgspec.convert(frame.args, AppendAsked)
                batch = record.unwrap(bytes(data))
                first = await append_once(
                    broker, append.topic, append.producer, append.number, append.subject, batch
                )
                return first, b""
            case "settle":
                await self._settle(msgspec.convert(frame.args, SettleAsked))
                return None, b""
            case "reserve":
                await self._reserve(msgspec.convert(frame.args, ReserveAsked))
                return None, b""
            case "keep" | "drop" | "decide" as verb:
                return await self._follow(verb, msgspec.convert(frame.args, ReservationAsked)), b""
            case "prepare":
                prepare = msgspec.convert(frame.args, PrepareAsked)
                return None, record.wrap(await self._prepare(prepare, record.unwrap(bytes(data))))
            case "tell":
                tell = msgspec.convert(frame.args, TellAsked)
                broker.units.check_has(tell.topic)
                broker.committing.tell(tell.topic, record.unwrap(bytes(data)))
                return None, b""
            case "rows":
                await self._append_rows(msgspec.convert(frame.args, RowsAsked), data)
                return None, b""
            case "forget":
                forget = msgspec.convert(frame.args, ForgetAsked)
                broker.units.check_has(forget.topic)
                forget_producer(broker, forget.topic, forget.producer)
                return None, b""
            case "look_at":
                look = msgspec.convert(frame.args, LookAsked)
                broker.units.check_has(look.topic)
                found = broker.topics.get(look.topic)
                if found is not None:
                    found.check_producer(look.subject)
                return "" if found is None else found.spec.kind, b""
            case "changed":
                if self._terminal.mirror is not None:
                    await self._terminal.mirror.refresh()
                return None, b""
            case "part":
                part = msgspec.convert(frame.args, PartAsked)
                answer = self._parts.get(part.part)
                return answer is not None and await answer(part.text, bytes(data)), b""
            case "stranger":
                stranger = msgspec.convert(frame.args, StrangerAsked)
                return await self._terminal.operations.answer_stranger(stranger.op, stranger.args), b""
        raise BadRequest(f"nodes don't ask for {frame.op[:60]!r}", hint="are all nodes of one version?")

    async def _settle(self, asked: SettleAsked) -> None:
        broker = self._terminal.broker
        if not broker.units.has_log(asked.log):
            raise broker.units.not_owner(asked.log % self._terminal.store.units)
        if (group := broker.table.group_of(asked.log, asked.group)) is not None:
            # What was acked is in the cursor since the unit was loaded.
            await group.topic.writer.put(group.save)

    async def _reserve(self, asked: ReserveAsked) -> None:
        reservations = self._terminal.broker.reservations
        await reservations.reserve(asked.unit, asked.token, asked.home, asked.subject, asked.acks)

    async def _follow(self, verb: Literal["keep", "drop", "decide"], asked: ReservationAsked) -> bool | None:
        """What is to become of a reservation, or has become of its transaction."""
        broker = self._terminal.broker
        if verb == "decide":
            return await broker.attempts.decide(asked.unit, asked.token)
        if verb == "keep":
            await broker.reservations.keep(asked.unit, asked.token)
        else:
            await broker.reservations.drop(asked.unit, asked.token)
        return None

    async def _append_rows(self, asked: RowsAsked, data: memoryview) -> None:
        at, batches = 0, []
        for size in asked.sizes:
            batches.append(record.unwrap(bytes(data[at : at + size])))
            at += size
        broker = self._terminal.broker
        broker.units.check_has(asked.topic)
        await append_rows(broker, asked.topic, asked.producer, asked.left, asked.subject, batches)

    async def _prepare(self, asked: PrepareAsked, batch: Batch) -> Batch:
        broker = self._terminal.broker
        topic = broker.table.topic_for(asked.topic, who=asked.subject)
        topic.check_producer(asked.subject)
        broker.publishing.check_size(asked.topic, batch)
        topic.check_backlog()
        if topic.chain is None:
            return batch
        return accepted(await topic.chain.run(batch, JudgedPublisher(asked.subject, asked.claims)))

    async def close(self) -> None:
        if self._told:  # what the status log says last, mostly
            await asyncio.wait(self._told, timeout=self.last_words)
        told = list(self._told)
        for telling in told:
            telling.cancel()
        await asyncio.gather(*told, return_exceptions=True)
        for leg in self._legs.values():
            leg.close()


def _nobody(leg: Leg, frame: Frame, tail: memoryview) -> None:
    """Nothing else comes over a node's own leg."""
