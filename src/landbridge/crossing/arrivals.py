"""Arrivals: shipments for this terminal. Each is opened, put into its topic's log for the groups that it is
for, and confirmed to its source; once, and in the order in which its source has sent them.

What becomes of a shipment is decided in ``core/shipping/reassembly.py``. Here its decisions are carried out:
seals are opened, keys and missing shipments asked for, commits and the shelf written, hops and sources told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import structlog

from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.group import Group
from landbridge.broker.topic import Topic
from landbridge.core.log.batch import Batch
from landbridge.core.log.ranges import normalise
from landbridge.core.log.store import PutLedger
from landbridge.core.names import is_rule_topic
from landbridge.core.shipping import reassembly as effects
from landbridge.core.shipping.inbound import Inbound, ShipmentSource
from landbridge.core.shipping.parcel import (
    Arrived,
    Compare,
    Control,
    EpochOver,
    Have,
    Parcel,
    Stream,
    Stuck,
    Withdraw,
    Withdrawn,
    decode_manifest,
    unpack,
)
from landbridge.core.shipping.reassembly import Arrival, Effect, Fate, GiveBack, Reassembly
from landbridge.core.topic import new_group
from landbridge.core.trust.directory import Directory, PublicKeys, TopicEntry
from landbridge.core.trust.identity import Identity
from landbridge.core.trust.seal import Opener, look
from landbridge.core.trust.tickets import Release, Renewal
from landbridge.crossing.questions import locate
from landbridge.crossing.shelf import Shelf
from landbridge.errors import BadRequest, BusError, TicketExpired, TicketRefused, Unavailable

log = structlog.get_logger("landbridge.arrivals")

#: Seconds after which a key that could not be had is asked for again, and how that grows.
KEY_AGAIN, KEY_AGAIN_MOST = 1.0, 15.0
#: Ranges that are told a source that asks what has arrived. What is left out comes again, and is known here.
MOST_TOLD = 1000
#: Refused tickets that are remembered.
MOST_REFUSED = 1024

#: The shipments of a commit, each with the batches that were stored of it.
StoredArrivals: TypeAlias = list[tuple[Arrival, list[Batch]]]


class KeyOffice(Protocol):
    """What arrivals ask of the registry. Unavailable where it can't be reached."""

    async def redeem(self, topic: str, ticket: bytes, box: bytes) -> Release: ...
    async def renew(self, ticket: bytes) -> Renewal: ...


class ArrivalsNetwork(Protocol):
    """What arrivals need of the network."""

    @property
    def broker(self) -> Broker: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def registry(self) -> KeyOffice: ...
    @property
    def directory(self) -> Directory: ...
    @property
    def topics(self) -> Mapping[str, TopicEntry]: ...
    @property
    def current_run(self) -> int: ...
    def beginning(self, topic: Topic) -> int | None: ...
    def now(self) -> int: ...
    def name_of(self, terminal: str) -> str: ...
    def keys_of(self, terminal: str) -> Sequence[PublicKeys]: ...
    def say(self, destination: str, message: Control) -> None: ...
    def note(self, event: str, **details: Any) -> None: ...


class Arrivals:
    def __init__(self, network: ArrivalsNetwork, shelf: Shelf) -> None:
        self._network = network
        self._broker = network.broker
        self._now = network.now
        self._shelf = shelf
        self.opener = Opener(network.identity)
        self.table = Reassembly()
        self.totals = self.table.totals
        #: Effects that are still to be carried out.
        self._effects: deque[Effect] = deque()
        self._is_performing = False
        #: (source terminal, seal id) → the task that fetches its key.
        self._fetching: dict[tuple[str, bytes], asyncio.Task[None]] = {}
        #: (source terminal, seal id) → why its key was refused, and the version of the directory by then. The
        #: registry isn't asked again before there is another directory.
        self._refused: dict[tuple[str, bytes], tuple[int, BusError]] = {}
        #: (source terminal, stream) → sequence numbers that are confirmed in this turn of the loop.
        self._confirm: dict[tuple[str, Stream], list[int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        for place, parcel in await self._shelf.load():
            try:
                _, data = await self._shelf.read(place)
            except BusError as error:
                self._shelf.set_aside(place, error)
                continue
            try:
                arrival = self._look(parcel, data)
            except BusError as error:
                self._refuse(parcel, error)
                self._shelf.remove(place)
            else:
                self._perform(self.table.restore(arrival, place))

    async def close(self) -> None:
        tasks = [*self._tasks, *self._fetching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def advance(self, now: int) -> None:
        self.opener.advance(now)
        self._perform(self.table.advance(now))

    def received(self, parcel: Parcel, data: memoryview, decide: Fate) -> None:
        """A hop has brought a shipment. ``decide`` tells the hop whether it may forget it."""
        try:
            arrival = self._look(parcel, data)
        except BusError as error:
            # Forged or changed on the way, or sealed with keys that we don't know of. Another copy of the
            # same hop would be no better; if the shipment is its source's, the source sends it again.
            self._refuse(parcel, error)
            decide(None)
            return
        self._perform(self.table.arrive(self._now(), arrival, decide))

    def _look(self, parcel: Parcel, data: memoryview) -> Arrival:
        network, now = self._network, self._now()
        header = look(network.identity, network.keys_of(parcel.source), parcel.source, data, now)
        return Arrival(now, parcel, header, decode_manifest(header.meta), data)

    def _refuse(self, parcel: Parcel, error: BusError) -> None:
        self.totals.refused += 1
        log.warning("parcel refused", source=parcel.source, code=error.code, detail=str(error))
        self._network.note("refuse", who=parcel.source, cause=error.code, detail=str(error))

    async def inbound(self, source: ShipmentSource) -> Inbound:
        """What has arrived of a source, as it is on disk. It is read when it is first asked for."""
        found = self.table.inbound(source)
        if found is None:
            store, unit = self._broker.store, self._broker.units.writer_for(source.topic).unit
            raw = await store.ledger(unit, _ledger_key(source))
            if raw is None and (topic := self._broker.topics.get(source.topic)) is not None:
                raw = await store.ledger(topic.log.number, _ledger_key_0_1(source))
            self._perform(self.table.load(self._now(), source, Inbound.decode(raw) if raw else Inbound()))
            found = self.table.inbound(source)
            assert found is not None, "it was loaded in the line before"
        return found

    # -- effects -----------------------------------------------------------------------------------

    def _perform(self, todo: Iterable[Effect]) -> None:
        """Carry out what the table has decided, and what follows from it, in order."""
        self._effects.extend(todo)
        if self._is_performing:
            return  # called below: the loop there goes on with them
        self._is_performing = True
        try:
            while self._effects:
                self._carry_out(self._effects.popleft())
        finally:
            self._is_performing = False

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case effects.TellHops(hops, code):
                for decide in hops:
                    decide(code)
            case effects.ConfirmArrival(arrival):
                self._confirm_soon(arrival)
            case effects.OpenSeal(arrival):
                self._open(arrival)
            case effects.FormCommit(source):
                stored = self._broker.units.writer_for(source.topic).put(partial(self._form, source))
                stored.add_done_callback(partial(self._committed, source))
            case effects.PutOnShelf(arrival):
                place = self._shelf.put(arrival.parcel, arrival.data)
                place.add_done_callback(partial(self._shelved, arrival))
            case effects.TakeFromShelf(place):
                self._shelf.remove(place)
            case effects.LoadInbound(source):
                self._run(self._load(source))
            case effects.AskForMissing(terminal, message):
                self._network.say(terminal, message)
            case effects.TellEpochOver(arrival, latest):
                source = arrival.source
                stream = Stream(source.topic, source.incarnation, arrival.key[0])
                self._network.say(source.terminal, EpochOver(stream, latest))
            case effects.NoteLoss(source, first):
                self._note_loss(source, first)
            case effects.EndGiveBack(source, back, is_stored):
                self._end_give_back(source, back, is_stored)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("crash", exc_info=error)

    async def _load(self, source: ShipmentSource) -> None:
        try:
            await self.inbound(source)
        except BusError as error:
            log.error(
                "the ledger can't be read", source=source.terminal, topic=source.topic, detail=str(error)
            )
            self.table.fail_load(self._now(), source)

    def _shelved(self, arrival: Arrival, place: asyncio.Future[int]) -> None:
        if isinstance(error := place.exception(), BusError):
            self._perform(self.table.fail_shelve(self._now(), arrival, error.code))
        else:
            self._perform(self.table.shelve(self._now(), arrival, place.result()))

    def _confirm_soon(self, arrival: Arrival) -> None:
        source, (epoch, sequence) = arrival.source, arrival.key
        if not self._confirm:
            asyncio.get_running_loop().call_soon(self._say_arrived)
        stream = Stream(source.topic, source.incarnation, epoch)
        self._confirm.setdefault((source.terminal, stream), []).append(sequence)

    def _say_arrived(self) -> None:
        confirm, self._confirm = self._confirm, {}
        for (terminal, stream), sequences in confirm.items():
            self._network.say(terminal, Arrived(stream, sequences, self._network.current_run))

    # -- storing -----------------------------------------------------------------------------------

    def _form(self, source: ShipmentSource, forming: BrokerCommit) -> StoredArrivals:
        """The source's commit is formed: give back what was asked for, then store the shipments that are
        ready. The cursors, the messages and the ledger's entry, which says that they are here, are in this
        one commit."""
        forming.need_room()
        topic = self._broker.topics.get(source.topic)
        if topic is not None:
            topic.check_pause()  # the hops keep the shipments, and try again
        draft, backs = self.table.begin(source)
        for back in backs:
            self._give_back(back, topic, draft, forming)
        stored: StoredArrivals = []
        while forming.size < self._broker.limits.commit and (arrival := self.table.take(source)) is not None:
            try:
                topic = self._topic_for(arrival)
                topic.save(forming)
            except BusError as error:
                self._drop(arrival, error)
                break
            batches = self.table.count_in(self._now(), arrival, self._network.current_run)
            for batch in batches:
                forming.append(topic.log, batch)
            stored.append((arrival, batches))
        if topic is not None and (stored or any(back.taken for back in backs)):
            forming.writes.append(PutLedger(forming.unit, _ledger_key(source), draft.encode()))
        return stored

    def _topic_for(self, arrival: Arrival) -> Topic:
        if is_rule_topic(arrival.source.topic):
            raise BadRequest(f"{arrival.source.topic} is filled by a rule of this terminal alone")
        topic = self._broker.table.topic_for(arrival.source.topic, create=True)
        for name in arrival.manifest.groups:
            if name not in topic.groups:
                # The directory that names the group has not come yet. Messages of this terminal may be for
                # the group as well.
                begin = self._network.beginning(topic)
                spec = new_group(topic.spec, name)
                self._broker.table.create_group(topic, spec, topic.log.end if begin is None else begin)
        return topic

    def _committed(self, source: ShipmentSource, done: asyncio.Future[StoredArrivals]) -> None:
        if isinstance(error := done.exception(), BusError):
            self._perform(self.table.fail(self._now(), source, error.code))
        else:
            self._on_stored(source, done.result())
            self._perform(self.table.commit(self._now(), source))

    def _on_stored(self, source: ShipmentSource, stored: StoredArrivals) -> None:
        for _, batches in stored:
            messages = sum(map(len, batches))
            self.totals.arrived += messages
            self._broker.status.count(
                self._now(),
                "arrive",
                source.terminal,
                source.topic,
                messages=messages,
                size=sum(batch.size for batch in batches),
                published=[(batch.time, len(batch)) for batch in batches],
            )

    # -- seals and keys ----------------------------------------------------------------------------

    def _open(self, arrival: Arrival) -> None:
        if not self.opener.has(arrival.source.terminal, arrival.header.seal_id, self._now()):
            self._wait_for_key(arrival)
        elif arrival.place is None:
            self._unseal(arrival, arrival.data)
        else:
            self._run(self._open_from_shelf(arrival, arrival.place))

    async def _open_from_shelf(self, arrival: Arrival, place: int) -> None:
        try:
            _, data = await self._shelf.read(place)
        except BusError as error:
            self._drop(arrival, error)
        else:
            self._unseal(arrival, data)

    def _unseal(self, arrival: Arrival, data: memoryview) -> None:
        try:
            pieces = unpack(arrival.manifest, self.opener.open(arrival.header, data, self._now()))
        except TicketExpired:  # its key was there a moment ago
            self._wait_for_key(arrival)
        except BusError as error:
            self._drop(arrival, error)
        else:
            self._perform(self.table.open(self._now(), arrival, pieces))

    def _drop(self, arrival: Arrival, error: BusError) -> None:
        self._refuse(arrival.parcel, error)
        self._perform(self.table.drop(self._now(), arrival))

    def _wait_for_key(self, arrival: Arrival) -> None:
        self._perform(self.table.postpone(arrival))
        key = (arrival.source.terminal, arrival.header.seal_id)
        version, refusal = self._refused.get(key, (0, None))
        if refusal is not None and version == self._network.directory.version:
            self._give_up(arrival, refusal)
        elif key not in self._fetching:
            self._fetching[key] = asyncio.ensure_future(self._fetch_key(arrival, key))

    async def _fetch_key(self, arrival: Arrival, key: tuple[str, bytes]) -> None:
        backoff = KEY_AGAIN
        try:
            while True:
                version = self._network.directory.version
                try:
                    await self._redeem(arrival)
                    break
                except Unavailable:
                    await asyncio.sleep(backoff)
                    backoff = min(2 * backoff, KEY_AGAIN_MOST)
                except BusError as error:
                    self._remember(key, version, error)
                    self._give_up(arrival, error)
                    return
        finally:
            del self._fetching[key]
        self._refused.pop(key, None)
        self._perform(self.table.look(self._now(), arrival.source.terminal))

    def _remember(self, key: tuple[str, bytes], version: int, error: BusError) -> None:
        if isinstance(error, TicketExpired | TicketRefused):
            self._refused.pop(key, None)
            self._refused[key] = (version, error)
            if len(self._refused) > MOST_REFUSED:
                del self._refused[next(iter(self._refused))]

    async def _redeem(self, arrival: Arrival) -> None:
        """Get the key for a ticket from the registry. An expired ticket is renewed first, where that is
        allowed. TicketExpired with a TicketRefused as its cause: its sender alone could renew it."""
        registry, header = self._network.registry, arrival.header
        try:
            release = await registry.redeem(header.topic, header.ticket, header.box)
        except TicketExpired as expired:
            try:
                renewal = await registry.renew(header.ticket)
            except TicketRefused as refusal:
                raise expired from refusal
            self.totals.renewed += 1
            release = await registry.redeem(header.topic, renewal.ticket, header.box)
        self.opener.learn(header, release, self._now())
        self.totals.redeemed += 1

    def _give_up(self, arrival: Arrival, error: BusError) -> None:
        """The registry refuses the key. Ask the source to seal the shipment again, or to give it up."""
        self._drop(arrival, error)
        if isinstance(error, TicketExpired | TicketRefused):
            source, (epoch, sequence) = arrival.source, arrival.key
            entry = self._network.topics.get(source.topic)
            is_final = isinstance(error, TicketExpired) and error.__cause__ is None
            is_dead = is_final and entry is not None and entry.late_open == "never"
            stream = Stream(source.topic, source.incarnation, epoch)
            code = "ticket_dead" if is_dead else error.code
            self._network.say(source.terminal, Stuck(stream, sequence, code))

    # -- ends that were restored from a backup -----------------------------------------------------

    def _note_loss(self, source: ShipmentSource, first: int) -> None:
        name = self._network.name_of(source.terminal)
        what = f"{name} has lost its messages from offset {first} on; those that came before are still here"
        log.warning("a source has lost messages", topic=source.topic, source=name, detail=what)
        self._network.note("restore", topic=source.topic, who=name, cause="source", detail=what)

    async def _compare(self, terminal: str, message: Compare) -> None:
        """Tell a source what has arrived of a group's messages."""
        source = ShipmentSource(terminal, message.topic, message.incarnation)
        inbound = await self.inbound(source)
        floor, runs = inbound.known(message.group, message.run, message.history)
        self._network.say(terminal, Have(message, self._network.current_run, floor, runs[:MOST_TOLD]))

    # -- giving back -------------------------------------------------------------------------------

    def heard(self, source: str, message: Withdraw | Compare) -> None:
        match message:
            case Withdraw():
                self._run(self._withdraw(source, message))
            case Compare():
                self._run(self._compare(source, message))

    async def _withdraw(self, terminal: str, message: Withdraw) -> None:
        """Another terminal gets these messages: settle here those that no consumer has seen."""
        topic = self._broker.topics.get(message.topic)
        group = topic.groups.get(message.group) if topic is not None else None
        if group is None:
            return
        source = ShipmentSource(terminal, message.topic, message.incarnation)
        found = await locate(group, source, await self.inbound(source), normalise(message.runs))
        places = {offset: place for offset, (place, _) in found.items()}
        back = GiveBack(message.group, message.epoch, group.topic.log.number, places)
        self._perform(self.table.give_back(source, back))

    def _give_back(self, back: GiveBack, topic: Topic | None, draft: Inbound, forming: BrokerCommit) -> None:
        """The cursor and the ledger let go in one commit: a message that is settled here and still in the
        ledger would never be stored again if it came again. A consumer may have got some since they were
        found; those stay."""
        group = _group_of(back, topic)
        if group is None or draft.has_come_back(back.group, back.epoch):
            return
        delivery = group.catch_up()
        back.taken = {offset: place for offset, place in back.places.items() if delivery.withdraw(place)}
        group.save(forming)
        draft.give_back(back.group, [(offset, offset + 1) for offset in back.taken])

    def _end_give_back(self, source: ShipmentSource, back: GiveBack, is_stored: bool) -> None:
        if not is_stored:
            topic = self._broker.topics.get(source.topic)
            group = (
                topic.groups.get(back.group) if topic is not None and topic.log.number == back.log else None
            )
            if group is not None:
                group.unsettle(normalise((place, place + 1) for place in back.taken.values()))
            return
        self._network.note(
            "withdraw", topic=source.topic, group=back.group, messages=len(back.taken), who=source.terminal
        )
        late = normalise((offset, offset + 1) for offset in back.places.keys() - back.taken.keys())
        self._network.say(source.terminal, Withdrawn(source.topic, source.incarnation, back.group, late))


def _group_of(back: GiveBack, topic: Topic | None) -> Group | None:
    """None where the group or its topic was deleted since."""
    return topic.groups.get(back.group) if topic is not None and topic.log.number == back.log else None


def _ledger_key(source: ShipmentSource) -> bytes:
    """In the ledger of the unit, so that it outlives the topic here: whoever deletes a topic doesn't want its
    messages sent again."""
    return f"from:{source.terminal}:{source.incarnation}:{source.topic}".encode()


def _ledger_key_0_1(source: ShipmentSource) -> bytes:
    """In the ledger of the topic's log, where version 0.1 kept it."""
    return f"from:{source.terminal}:{source.incarnation}".encode()
