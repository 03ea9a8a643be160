"""Questions: what has become of a message that another terminal has sent here? Its producer waits for an ack,
or somebody wants to know where it is."""

from __future__ import annotations

import asyncio
from typing import Protocol

from landbridge.broker.broker import Broker
from landbridge.broker.group import Group
from landbridge.core.log.batch import Origin
from landbridge.core.log.ranges import Range, intersect
from landbridge.core.shipping.inbound import Inbound, ShipmentSource
from landbridge.core.shipping.parcel import Ask, Control, Tell
from landbridge.core.time import SECOND

#: Seconds that a question is kept; whoever wants to know asks again.
WATCH_FOR = 10.0
MOST_WATCHES = 10_000


class Inbounds(Protocol):
    """Who knows what has arrived."""

    async def inbound(self, source: ShipmentSource) -> Inbound: ...


class QuestionsNetwork(Protocol):
    """What questions need of the network."""

    @property
    def broker(self) -> Broker: ...
    @property
    def arrivals(self) -> Inbounds: ...
    def now(self) -> int: ...
    def say(self, destination: str, message: Control) -> None: ...


class Questions:
    def __init__(self, network: QuestionsNetwork) -> None:
        self._network = network
        #: (topic, group) → local offset → who asks what, and until when.
        self._watches: dict[tuple[str, str], dict[int, tuple[str, Ask, int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Questions that are answered when their message is settled."""
        return sum(map(len, self._watches.values()))

    def heard(self, terminal: str, ask: Ask) -> None:
        task = asyncio.ensure_future(self._answer(terminal, ask))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, terminal: str, ask: Ask) -> None:
        network = self._network
        topic = network.broker.topics.get(ask.topic)
        group = topic.groups.get(ask.group) if topic is not None else None
        source = ShipmentSource(terminal, ask.topic, ask.incarnation)
        inbound = await network.arrivals.inbound(source)
        wanted = [(ask.offset, ask.offset + 1)]
        if group is None or inbound.fresh(ask.group, wanted):
            if not ask.when_settled:
                network.say(terminal, Tell(ask, "missing", [], 0))
            return
        places = await locate(group, source, inbound, wanted)
        place, origin = places.get(ask.offset, (None, None))
        if place is None or group.settled(place):
            state = "settled"
        elif ask.when_settled:
            self._watch(terminal, ask, place)
            return
        else:
            leases = group.delivery.leases.values()
            leased = any(intersect(lease.remaining, [(place, place + 1)]) for lease in leases)
            state = "leased" if leased else "waiting"
        via, arrived_at = (origin.via, origin.arrived_at) if origin is not None else ([], 0)
        network.say(terminal, Tell(ask, state, via, arrived_at))

    def _watch(self, terminal: str, ask: Ask, place: int) -> None:
        watches = self._watches.setdefault((ask.topic, ask.group), {})
        if len(watches) < MOST_WATCHES:
            watches[place] = (terminal, ask, self._network.now() + int(WATCH_FOR * SECOND))

    def settled(self, group: Group) -> None:
        """A group has settled messages: answer the questions about them."""
        watches = self._watches.get((group.topic.name, group.name))
        if not watches:
            return
        now = self._network.now()
        for place, (terminal, ask, until) in list(watches.items()):
            if group.settled(place):
                del watches[place]
                self._network.say(terminal, Tell(ask, "settled", [], 0))
            elif until < now:
                del watches[place]


async def locate(
    group: Group, source: ShipmentSource, inbound: Inbound, runs: list[Range]
) -> dict[int, tuple[int, Origin]]:
    """Returns offset at the source → offset here, and where it came from, of the messages that the group may
    not have settled."""
    found: dict[int, tuple[int, Origin]] = {}
    log, at = group.topic.log, group.delivery.cursor.floor
    while at < log.end:
        here = await log.read(at)
        if here is None:
            break
        first, batch = here
        origin = batch.origin
        if origin is not None and (origin.terminal, origin.incarnation) == (
            source.terminal,
            source.incarnation,
        ):
            place, own_end = first, inbound.own_end(origin.epoch)
            for low, high in origin.runs:
                for begin, end in intersect(runs, [(low, min(high, own_end))]):
                    found |= {offset: (place + offset - low, origin) for offset in range(begin, end)}
                place += high - low
        at = first + len(batch)
    return found
