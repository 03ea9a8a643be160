"""The carrier: every parcel that leaves this terminal or passes through it. It decides over which link a
parcel goes, and keeps those in transit on a shelf until somebody further on has them.

A parcel in transit is one of
    on a link     given to the next hop, which hasn't kept it yet
    waiting       for room on the link
    on hold       no path at the moment; looked at again when paths change, sent back if that takes long
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from landbridge.core.shipping.parcel import MAX_REROUTES, TTL, Kind, Parcel
from landbridge.crossing.peer import Fate, Peer
from landbridge.crossing.shelf import Shelf
from landbridge.errors import BusError

if TYPE_CHECKING:
    from landbridge.crossing.network import Network

log = structlog.get_logger("landbridge.carrier")

SECOND = 1_000_000
#: Seconds on hold after which a parcel is sent back to where it came from.
HOLD_FOR = 10.0
#: ... where its destination can be reached, but only through those who have had it: a dead end, and the
#: source knows a way round it.
DEAD_END_FOR = 0.5
#: Parcels in transit that are on links at once; the others wait on the shelf.
MOST_ON_LINKS = 4096


class Transit:
    """A parcel on the shelf."""

    __slots__ = ("avoid", "held_since", "on_link", "parcel", "place")

    def __init__(self, place: int, parcel: Parcel) -> None:
        self.place = place
        self.parcel = parcel
        #: Neighbours that would not or could not take it.
        self.avoid: set[str] = set()
        #: Microseconds; 0 while it is not on hold.
        self.held_since = 0
        self.on_link = False


class Totals(msgspec.Struct):
    sent: int = 0
    passed_on: int = 0
    reroutes: int = 0
    returned: int = 0
    declined: int = 0


class Carrier:
    def __init__(self, network: Network, shelf: Shelf) -> None:
        self._network = network
        self._shelf = shelf
        self.totals = Totals()
        #: On the shelf, by place.
        self.transits: dict[int, Transit] = {}
        self._on_links = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        for place, parcel in await self._shelf.load():
            transit = Transit(place, parcel)
            transit.held_since = self._network.now()
            self.transits[place] = transit

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- sending -----------------------------------------------------------------------------------

    def has_room(self, terminal: str) -> bool:
        """Does the link to a neighbour take more? Whatever is given to one that doesn't would pile up
        here."""
        peer = self._network.peers.get(terminal)
        return peer is not None and peer.up and peer.writable

    def send(
        self, id: bytes, kind: Kind, destination: str, route: list[str], data: bytes, fate: Fate | None
    ) -> None:
        """Send a parcel of our own, to a first hop that is up."""
        me = self._network.me
        self.totals.sent += 1
        self._network.peers[route[0]].carry(Parcel(id, kind, me, destination, TTL, [me], route), data, fate)

    def control(self, destination: str, data: bytes) -> None:
        """Send a control message; if it gets lost, whoever needs it asks again."""
        route = self._network.route(destination, set())
        if route is not None and route[0] in self._network.peers:
            self.send(self._network.new_id(), Kind.CONTROL, destination, route, data, None)

    # -- receiving ---------------------------------------------------------------------------------

    def received(self, peer: Peer, parcel: Parcel, data: memoryview, decide: Fate) -> None:
        """A parcel came over a link. ``decide``: None = we have it on disk; a code = it stays the peer's."""
        network = self._network
        if not network.knows(parcel.source) or not network.knows(parcel.destination):
            self._decline(decide, "unknown_terminal")
        elif parcel.destination == network.me:
            network.arrived(parcel, data, decide)
        elif not network.carries:
            self._decline(decide, "no_transit")
        elif parcel.ttl <= 1 or network.me in parcel.visited:
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
            self._network.peers[onward.route[0]].carry(onward, data)
            return

        def stored(place: int) -> None:
            decide(None)
            transit = Transit(place, parcel)
            self.transits[place] = transit
            self._dispatch(transit, data)

        def refuse(error: BusError) -> None:
            self._decline(decide, error.code)

        self._shelf.put(parcel, data, stored, refuse)

    def _onward(self, parcel: Parcel, avoid: set[str]) -> Parcel | None:
        """The parcel as the next hop gets it; None where there is no way on."""
        me, network = self._network.me, self._network
        route, reroutes = parcel.route, parcel.reroutes
        if route and route[0] == me:
            route = route[1:]
        hop = network.peers.get(route[0]) if route else None
        if hop is None or not hop.up or route[0] in avoid or route[0] in parcel.visited:
            if reroutes >= MAX_REROUTES:
                return None
            found = network.route(parcel.destination, avoid | set(parcel.visited) - {parcel.destination})
            if found is None:
                return None
            hop = network.peers.get(found[0])
            if hop is None or not hop.up:
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
                transit.held_since = self._network.now()
            return
        if self._on_links >= MOST_ON_LINKS or not self.has_room(onward.route[0]):
            transit.held_since = 0  # not for want of a path: ``room`` comes back to it
            return
        if onward.reroutes > transit.parcel.reroutes:
            self.totals.reroutes += 1
            self._network.note(
                "reroute",
                detail=f"{transit.parcel.destination} by {' › '.join(onward.route)}",
                cause="link_down",
            )
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
            # The source still has it, and hears nothing of its arrival.
            log.error("a parcel can't be read", place=transit.place, detail=str(error))
            self._network.note("error", cause=error.code, detail=str(error))
            self._off_link(transit)
            self._forget(transit)
            return
        self._hand_over(transit, onward, data)

    def _hand_over(self, transit: Transit, onward: Parcel, data: memoryview) -> None:
        peer = self._network.peers.get(onward.route[0])
        if peer is None or not peer.up:
            self._decided(transit, onward, "lost")
            return
        peer.carry(onward, data, partial(self._decided, transit, onward))

    def _off_link(self, transit: Transit) -> None:
        transit.on_link = False
        self._on_links -= 1
        if self._on_links == MOST_ON_LINKS - 1:
            asyncio.get_running_loop().call_soon(self._dispatch_waiting)

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
        self._dispatch_waiting()

    def _dispatch_waiting(self) -> None:
        for transit in list(self.transits.values()):
            self._dispatch(transit)

    def room(self) -> None:
        """A link that was full takes more."""
        self._dispatch_waiting()
        self._network.forwarder.look_again()

    def advance(self, now: int) -> None:
        """Send back what has been on hold for too long: perhaps the source knows another way."""
        patience: dict[str, float] = {}  # by destination
        for transit in list(self.transits.values()):
            if transit.on_link or not transit.held_since:
                continue
            destination = transit.parcel.destination
            if destination not in patience:
                is_dead_end = self._network.route(destination, set()) is not None
                patience[destination] = (DEAD_END_FOR if is_dead_end else HOLD_FOR) * SECOND
            if now - transit.held_since < patience[destination]:
                continue
            transit.held_since = now
            self._send_back(transit)

    def _send_back(self, transit: Transit) -> None:
        me, parcel = self._network.me, transit.parcel
        ends = (parcel.source, parcel.destination)
        if self._network.directory.version and not all(map(self._network.knows, ends)):
            # Revoked or removed: nobody would take it. A source that is still there has the messages.
            self._forget(transit)
            return
        route = self._network.route(parcel.source, set())
        peer = self._network.peers.get(route[0]) if route else None
        if route is None or peer is None or not peer.up:
            transit.parcel = msgspec.structs.replace(parcel, reroutes=0)
            self._dispatch(transit)  # nowhere to go at all: keep it, and look again
            return
        back = Parcel(parcel.id, Kind.RETURNED, parcel.source, parcel.source, TTL, [me], route)
        self.totals.returned += 1
        # Only the outside: the source has the messages.
        peer.carry(back, b"", None)
        self._forget(transit)
