"""The carrier: every parcel that leaves this terminal or passes through it. It decides over which link a
parcel goes, and keeps those in transit on a shelf until a terminal further on has them on disk.

A parcel in transit is one of
    on a link     given to the next hop, which hasn't kept it yet
    waiting       for room on the link
    on hold       no path at the moment; looked at again when paths change, sent back if that takes long
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import msgspec
import structlog

from landbridge.core.routing.routes import Routes
from landbridge.core.shipping.parcel import MAX_REROUTES, TTL, Kind, Parcel
from landbridge.core.time import SECOND
from landbridge.crossing.ground import Ground
from landbridge.crossing.peer import Fate, Peer
from landbridge.crossing.shelf import Shelf
from landbridge.errors import BusError

log = structlog.get_logger("landbridge.carrier")

#: Seconds on hold after which a parcel is sent back to where it came from.
HOLD_FOR = 10.0
#: The same for a dead end: the destination can be reached, but only through terminals that have had the
#: parcel. The source knows a way round it.
DEAD_END_FOR = 0.5
#: Parcels in transit that are on links at once; the others wait on the shelf.
MOST_ON_LINKS = 4096

#: Takes a parcel for this terminal, and says what became of it.
Deliver: TypeAlias = Callable[[Parcel, memoryview, Fate], None]


class Transit:
    """A parcel on the shelf."""

    __slots__ = ("avoid", "held_since", "on_link", "parcel", "place")

    def __init__(self, place: int, parcel: Parcel, held_since: int = 0) -> None:
        self.place = place
        self.parcel = parcel
        #: Neighbours that would not or could not take it.
        self.avoid: set[str] = set()
        #: Microseconds; 0 while it is not on hold.
        self.held_since = held_since
        self.on_link = False


class CarrierTotals(msgspec.Struct):
    """Parcels since the start."""

    sent: int = 0
    passed_on: int = 0
    reroutes: int = 0
    returned: int = 0
    declined: int = 0


class Carrier:
    def __init__(
        self, ground: Ground, peers: Mapping[str, Peer], routes: Routes, shelf: Shelf, deliver: Deliver
    ) -> None:
        """``peers``: the links that are up. ``deliver``: takes the parcels that are for this terminal."""
        self._ground = ground
        self._peers = peers
        self._routes = routes
        self._shelf = shelf
        self._deliver = deliver
        self.totals = CarrierTotals()
        #: Parcels on the shelf, by place.
        self.transits: dict[int, Transit] = {}
        self._on_links = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        for place, parcel in await self._shelf.load():
            self.transits[place] = Transit(place, parcel, self._ground.now())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- sending -----------------------------------------------------------------------------------

    def _link_to(self, terminal: str) -> Peer | None:
        peer = self._peers.get(terminal)
        return peer if peer is not None and peer.up else None

    def _route(self, destination: str, avoid: set[str] | None = None) -> list[str] | None:
        """The hops to a destination, if the link to the first of them is up."""
        route = self._routes.hops(self._ground.now(), destination, avoid or ())
        return route if route and self._link_to(route[0]) else None

    def has_room(self, terminal: str) -> bool:
        """Whether the link to a neighbour is up and takes more. What is given to a full one would pile up in
        memory."""
        peer = self._link_to(terminal)
        return peer is not None and peer.writable

    def send(
        self, id: bytes, kind: Kind, destination: str, route: list[str], data: bytes, fate: Fate | None
    ) -> None:
        """Send a parcel of this terminal, to a first hop that is up."""
        me = self._ground.me
        self.totals.sent += 1
        self._peers[route[0]].carry(Parcel(id, kind, me, destination, TTL, [me], route), data, fate)

    def control(self, destination: str, data: bytes) -> None:
        """Send a control message. If it gets lost, whoever needs it asks again."""
        route = self._route(destination)
        if route is not None:
            self.send(self._ground.broker.new_id(), Kind.CONTROL, destination, route, data, None)

    # -- receiving ---------------------------------------------------------------------------------

    def received(self, parcel: Parcel, data: memoryview, decide: Fate) -> None:
        """A parcel came over a link. ``decide``: None = it is on disk here; a code = it stays the peer's."""
        ground = self._ground
        if not ground.knows(parcel.source) or not ground.knows(parcel.destination):
            self._decline(decide, "unknown_terminal")
        elif parcel.destination == ground.me:
            self._deliver(parcel, data, decide)
        elif not ground.carries:
            self._decline(decide, "no_transit")
        elif parcel.ttl <= 1 or ground.me in parcel.visited:
            self._decline(decide, "loop")
        else:
            self._pass_on(parcel, data, decide)

    def _decline(self, decide: Fate, code: str) -> None:
        self.totals.declined += 1
        decide(code)

    def _pass_on(self, parcel: Parcel, data: memoryview, decide: Fate) -> None:
        onward = self._onward(parcel, set())
        if onward is None:
            self._decline(decide, "no_path")
            return
        if parcel.kind != Kind.SHIPMENT:
            decide(None)
            self._peers[onward.route[0]].carry(onward, data)
            return

        def on_stored(stored: asyncio.Future[int]) -> None:
            if isinstance(error := stored.exception(), BusError):
                self._decline(decide, error.code)
                return
            decide(None)
            transit = self.transits[stored.result()] = Transit(stored.result(), parcel)
            self._dispatch(transit, data)

        self._shelf.put(parcel, data).add_done_callback(on_stored)

    def _onward(self, parcel: Parcel, avoid: set[str]) -> Parcel | None:
        """The parcel as the next hop gets it; None if there is no way on."""
        me, route, reroutes = self._ground.me, parcel.route, parcel.reroutes
        if route and route[0] == me:
            route = route[1:]
        barred = avoid | set(parcel.visited)
        if not route or self._link_to(route[0]) is None or route[0] in barred:
            found = None
            if reroutes < MAX_REROUTES:
                found = self._route(parcel.destination, barred - {parcel.destination})
            if found is None:
                return None
            route, reroutes = found, reroutes + 1
        return msgspec.structs.replace(
            parcel, ttl=parcel.ttl - 1, visited=[*parcel.visited, me], route=route, reroutes=reroutes
        )

    # -- passing on --------------------------------------------------------------------------------

    def _dispatch(self, transit: Transit, data: memoryview | None = None) -> None:
        if transit.on_link or transit.place not in self.transits:
            return
        onward = self._onward(transit.parcel, transit.avoid)
        if onward is None:
            if not transit.held_since:
                transit.held_since = self._ground.now()
            return
        if self._on_links >= MOST_ON_LINKS or not self.has_room(onward.route[0]):
            transit.held_since = 0  # it lacks room, not a path: ``dispatch_waiting`` comes back to it
            return
        if onward.reroutes > transit.parcel.reroutes:
            self.totals.reroutes += 1
            detail = f"{transit.parcel.destination} by {' › '.join(onward.route)}"
            self._ground.note("reroute", detail=detail, cause="link_down")
        transit.held_since = 0
        transit.on_link = True
        self._on_links += 1
        if data is not None:
            self._hand_over(transit, onward, data)
            return
        task = asyncio.ensure_future(self._read_and_hand_over(transit, onward))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_and_hand_over(self, transit: Transit, onward: Parcel) -> None:
        try:
            _, data = await self._shelf.read(transit.place)
        except BusError as error:
            # The source still has it, and sends it again because nobody confirms it.
            log.error("a parcel can't be read", place=transit.place, detail=str(error))
            self._ground.note("error", cause=error.code, detail=str(error))
            self._off_link(transit)
            self._forget(transit)
            return
        self._hand_over(transit, onward, data)

    def _hand_over(self, transit: Transit, onward: Parcel, data: memoryview) -> None:
        peer = self._link_to(onward.route[0])
        if peer is None:
            self._decided(transit, onward, "lost")
        else:
            peer.carry(onward, data, partial(self._decided, transit, onward))

    def _off_link(self, transit: Transit) -> None:
        transit.on_link = False
        self._on_links -= 1
        if self._on_links == MOST_ON_LINKS - 1:
            asyncio.get_running_loop().call_soon(self.dispatch_waiting)

    def _decided(self, transit: Transit, onward: Parcel, code: str | None) -> None:
        self._off_link(transit)
        if code is None:
            self.totals.passed_on += 1
            self._forget(transit)
            return
        if code != "lost":
            transit.avoid.add(onward.route[0])
        transit.parcel = msgspec.structs.replace(
            transit.parcel, route=[], reroutes=min(onward.reroutes, MAX_REROUTES)
        )
        self._dispatch(transit)

    def _forget(self, transit: Transit) -> None:
        if self.transits.pop(transit.place, None) is not None:
            self._shelf.remove(transit.place)

    # -- changes and time --------------------------------------------------------------------------

    def paths_changed(self) -> None:
        for transit in self.transits.values():
            if not transit.on_link:
                transit.avoid.clear()
        self.dispatch_waiting()

    def dispatch_waiting(self) -> None:
        """Send what waits, as far as there is room."""
        for transit in list(self.transits.values()):
            self._dispatch(transit)

    def advance(self, now: int) -> None:
        """Send back the parcels that have been on hold for too long: perhaps the source knows another way."""
        patience: dict[str, float] = {}  # by destination
        for transit in list(self.transits.values()):
            if transit.on_link or not transit.held_since:
                continue
            destination = transit.parcel.destination
            if destination not in patience:
                is_dead_end = self._routes.hops(now, destination) is not None
                patience[destination] = (DEAD_END_FOR if is_dead_end else HOLD_FOR) * SECOND
            if now - transit.held_since < patience[destination]:
                continue
            transit.held_since = now
            self._send_back(transit)

    def _send_back(self, transit: Transit) -> None:
        ground, parcel = self._ground, transit.parcel
        if ground.directory.version and not (
            ground.knows(parcel.source) and ground.knows(parcel.destination)
        ):
            # One of them was revoked or removed: nobody would take the parcel. A source that is still there
            # has the messages.
            self._forget(transit)
            return
        route = self._route(parcel.source)
        if route is None:
            # No way on and none back: keep it, and look again.
            transit.parcel = msgspec.structs.replace(parcel, reroutes=0)
            self._dispatch(transit)
            return
        self.totals.returned += 1
        # Only the outside: the source has the messages.
        back = Parcel(parcel.id, Kind.RETURNED, parcel.source, parcel.source, TTL, [ground.me], route)
        self._peers[route[0]].carry(back, b"")
        self._forget(transit)
