"""Operations on messages: where one is, and when it has arrived. Here for the groups of this terminal;
``landbridge.crossing.inquiries`` adds the other terminals."""

from __future__ import annotations

import asyncio
import uuid
from typing import Protocol

from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.group import Group
from landbridge.broker.operations.dispatcher import Dispatcher, may_see
from landbridge.broker.topic import Topic
from landbridge.broker.turns import LOOK_AT_ONCE, TOPIC_COUNTS, Turns
from landbridge.core.log.batch import Batch, Column
from landbridge.core.log.ranges import intersect
from landbridge.core.names import is_reserved
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest, TimedOut, UnknownGroup, UnknownMessage
from landbridge.protocol import operations as table

#: Seconds before the moment in a message's id from which on the message is looked for: its producer's clock
#: may be ahead.
BEFORE = 300
#: Seconds that message.wait waits at most, where it is given a time.
LONGEST_WAIT = 86_400.0
#: Batches that a search reads in one topic at most.
MOST_BATCHES = 20_000
#: As how many messages a batch counts that is looked at.
BATCH_COUNTS = 16


class NamedHost(Protocol):
    """The terminal, as far as it has a name."""

    @property
    def name(self) -> str: ...


class MessageOperations:
    """The handlers of message.wait and message.where, for a terminal that stands alone."""

    def __init__(self, broker: Broker, terminal: NamedHost) -> None:
        self._broker = broker
        self._terminal = terminal
        #: Held by the search that is under way: many at the same time would share one turn of the loop.
        self._searching = asyncio.Lock()

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.MESSAGE_WAIT, self.wait)
        dispatcher.register(table.MESSAGE_WHERE, self.where)

    async def wait(self, caller: TokenBearer, request: table.MessageWait) -> table.MessageReached:
        topic, offset, until = request.topic, request.offset, request.until
        within = None if request.within is None else max(0.0, min(request.within, LONGEST_WAIT))
        found = self._broker.table.topic(topic)
        if not 0 <= offset < found.log.end:
            raise BadRequest(f"{topic} has no offset {offset} yet")
        if until != "stored":
            await self._place(topic)
            groups = [group for group in found.groups.values() if group.durable]
            if not groups:
                raise UnknownGroup(
                    f"the message is stored at offset {offset}, but {topic} has no group that it could reach",
                    hint="add one with 'landbridge topic add-group', or subscribe with a group",
                )
            try:
                # Whoever gives up can't tell so: without a bound, what nobody waits for any more would stay.
                async with asyncio.timeout(within):
                    await asyncio.gather(*(self._reached(group, offset, until) for group in groups))
            except TimeoutError:
                raise TimedOut(
                    f"stored in {topic} at offset {offset}, but not {until} within {within:g} s",
                    hint="it is on its way: don't publish it again",
                ) from None
        return table.MessageReached(topic=topic, offset=offset, until=until)

    async def where(self, caller: TokenBearer, request: table.OfMessage) -> table.MessagePlaces:
        places = []
        for found, offset, batch in await self._find(caller, request):
            origin = batch.origin
            places.append(
                table.MessagePlace(
                    id=request.id or await _id_at(found, offset),
                    topic=found.name,
                    terminal=self._terminal.name,
                    offset=offset,
                    published_at=batch.time,
                    came_by=self._names(origin.via) if origin is not None else [],
                    arrived_at=origin.arrived_at if origin is not None else 0,
                    groups=[
                        await self._in_group(group, offset)
                        for group in list(found.groups.values())
                        if group.durable and (batch.audience is None or group.name in batch.audience)
                    ],
                )
            )
        return table.MessagePlaces(places=places)

    # -- what crossing does differently ------------------------------------------------------------

    async def _place(self, topic: str) -> None:
        """Wait until it is known which terminals serve the topic's groups."""

    async def _reached(self, group: Group, offset: int, until: table.Until) -> None:
        """Wait until the message has arrived for this group, or is acked. Here it has arrived by itself."""
        if until == "acked":
            await self._broker.consuming.until_settled(group, offset)

    async def _in_group(self, group: Group, offset: int) -> table.GroupPlace:
        state, waits_for = _state(group, offset)
        return table.GroupPlace(
            group=group.name, at=self._terminal.name, state=state, waits_for=waits_for, route=[]
        )

    def _names(self, terminals: list[str]) -> list[str]:
        """Names for ids of terminals."""
        return terminals

    def _whom_to_ask(self) -> str:
        """A hint for who looks for a message that isn't here."""
        return UnknownMessage.default_hint

    # -- searching ---------------------------------------------------------------------------------

    async def _find(self, caller: TokenBearer, request: table.OfMessage) -> list[tuple[Topic, int, Batch]]:
        """The topics that have the message, its offset and its batch. An id that the bus has made contains
        the time, which tells where to look. For other ids the topic must be named, and its newest batches
        are searched."""
        id, topic = request.id, request.topic
        if request.offset is not None:
            return [await self._at(topic, request.offset, id)]
        batch_id, moment = _parse(id)
        if batch_id is None and topic is None:
            raise BadRequest(
                f"{id[:60]!r} is no id that the bus has made, which would tell where to look",
                hint="if its producer gave it that id, name the topic, too (--topic)",
            )
        names = [topic] if topic is not None else [n for n in self._broker.topics if not is_reserved(n)]
        found = []
        turns = Turns()
        async with self._searching:
            for name in names:
                await turns.looked_at(TOPIC_COUNTS)
                if name == topic or (
                    name in self._broker.topics and may_see(self._broker.topics, caller, name)
                ):
                    place = await self._search(turns, self._broker.table.topic(name), id, batch_id, moment)
                    if place is not None:
                        found.append(place)
        if not found:
            raise UnknownMessage(f"no message {id[:100]!r} here", hint=self._whom_to_ask())
        return found

    async def _at(self, topic: str | None, offset: int, id: str) -> tuple[Topic, int, Batch]:
        """The message of this id at an offset; of any id, if that is empty."""
        if topic is None:
            raise BadRequest("an offset is of one topic", hint="name the topic")
        found = self._broker.table.topic(topic)
        here = await found.log.read(offset) if found.log.first <= offset < found.log.end else None
        if here is None or here[0] > offset or id not in ("", here[1].id_of(offset - here[0])):
            raise UnknownMessage(f"no message {id[:100]!r} at offset {offset} of {topic}")
        return found, offset, here[1]

    async def _search(
        self, turns: Turns, topic: Topic, id: str, batch_id: bytes | None, moment: int
    ) -> tuple[Topic, int, Batch] | None:
        log = topic.log
        at = log.first
        if batch_id is not None:
            at = max(at, await self._broker.store.seek_time(log.number, moment - BEFORE * SECOND))
        for _ in range(MOST_BATCHES):
            here = await log.read(at)
            if here is None:
                return None
            first, batch = here
            await turns.looked_at(BATCH_COUNTS)
            at = first + len(batch)
            if batch_id is not None and batch.id != batch_id:
                continue
            # An id that the bus has made says its place, unless it was given to the message again.
            at_once = LOOK_AT_ONCE if batch.has(Column.ID) else len(batch)
            for lo in range(0, len(batch), at_once):
                part = batch.slice(lo, min(lo + at_once, len(batch)))
                if (index := part.index_of(id)) is not None:
                    return topic, first + lo + index, batch
                if at_once == LOOK_AT_ONCE:
                    await turns.looked_at(len(part))
        return None


async def _id_at(topic: Topic, offset: int) -> str:
    """The id of a message that was just found there."""
    here = await topic.log.read(offset)
    return here[1].id_of(offset - here[0]) if here is not None and here[0] <= offset else ""


def _state(group: Group, offset: int) -> tuple[str, str]:
    """(state, what the message waits for) in a group of this terminal."""
    if group.settled(offset):
        return "settled", ""
    for lease in group.delivery.leases.values():
        if intersect(lease.remaining, [(offset, offset + 1)]):
            consumer = group.consumers.get(lease.holder.number)
            who = f"the ack of {consumer.connection.who}" if consumer else "its lease to end"
            return "leased", who
    tried = group.delivery.cursor.tries.get(offset)
    if tried is not None:
        return "waiting", f"another attempt after {tried.attempts}"
    if (pause := group.pause_note) is not None:
        return "waiting", f"the end of a pause {pause.told}"
    return "waiting", "its turn" if group.consumers else "a consumer"


def _parse(id: str) -> tuple[bytes | None, int]:
    """(the batch's id, when it was made) of an id that the bus has given; (None, 0) of another one."""
    head, dash, index = id.rpartition("-")
    try:
        made = uuid.UUID(hex=head)
    except ValueError:
        return None, 0
    if not dash or not index.isdigit() or made.version != 7:
        return None, 0
    return made.bytes, (made.int >> 80) * 1000
