"""The network: this terminal among the others of its customer. It puts together the parts that move messages
between terminals, and passes news between them: links that come and go, link states, directories.

    ground     what all parts know                   following  newer directories
    links      dialling and being dialled            peer       one link
    carrier    parcels out and through, custody      shelf      parcels that must not be lost
    forwarder  groups whose consumers are elsewhere  lane       one topic's way to one terminal
    placing    where a group's messages go           tickets    what shipments are sealed with
    arrivals   parcels for this terminal             questions  what became of them
    measurements  link states as messages, for the long-term plan
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from landbridge.broker.broker import Broker
from landbridge.broker.group import Group
from landbridge.broker.topic import Topic
from landbridge.client.registry_documents import NewDirectory
from landbridge.core.log.batch import Batch
from landbridge.core.routing import linkstate
from landbridge.core.routing.linkstate import LinkState, LinkStates, SignedLinkState, Verifier
from landbridge.core.routing.routes import Routes
from landbridge.core.shipping.parcel import (
    Ask,
    Compare,
    Control,
    Kind,
    Parcel,
    Withdraw,
    decode_control,
    encode_control,
)
from landbridge.core.trust.directory import SignedDirectory
from landbridge.core.trust.identity import SecureKey
from landbridge.core.trust.seal import control, open_control
from landbridge.crossing.arrivals import Arrivals
from landbridge.crossing.carrier import MOST_ON_LINKS, Carrier
from landbridge.crossing.following import Follower
from landbridge.crossing.forwarder import Forwarder
from landbridge.crossing.ground import Ground, RegistryPort, Settings
from landbridge.crossing.links import Links
from landbridge.crossing.measurements import Measurements
from landbridge.crossing.peer import Fate, Peer
from landbridge.crossing.placing import Placing
from landbridge.crossing.questions import Questions
from landbridge.crossing.shelf import Shelf
from landbridge.errors import BusError, Disconnected, Unauthenticated
from landbridge.protocol import frames
from landbridge.protocol.session import Session

log = structlog.get_logger("landbridge.network")

#: Seconds between two looks at what has changed by time alone.
TICK = 0.25
#: Every so many ticks, a look at all groups and at the own link state. Changes are noticed when they happen;
#: this is for those that time alone makes.
SLOW_TICKS = 16


class Network(Ground):
    def __init__(
        self,
        broker: Broker,
        customer: str,
        terminal: str,
        key: SecureKey,
        registry: RegistryPort,
        registry_key: bytes,
        settings: Settings | None = None,
    ) -> None:
        super().__init__(broker, customer, terminal, key, registry, registry_key, settings)
        self._signing_key = key.signing_key()
        self._verifier = Verifier(self.directory)
        self.states = LinkStates(self.me, epoch=0, sign=self._sign)
        self.routes = Routes(self.me, self.states, self.directory)
        self.links = Links(self, self)
        #: The links that are up, by terminal.
        self.peers = self.links.peers
        transit = Shelf(broker, "$transit", self.settings.max_transit)
        self.carrier = Carrier(self, self.peers, self.routes, transit, self._deliver)
        self.placing = Placing(self, self.states, self.routes)
        self.forwarder = Forwarder(self, self.carrier, self.routes, self.placing, self.say)
        self.arrivals = Arrivals(self, Shelf(broker, "$sealed", self.settings.max_sealed))
        self.questions = Questions(self)
        self.measurements = Measurements(self) if self.settings.log_links else None
        self.following = Follower(self, self._on_update, self.forwarder.look_again, self.forwarder.held)
        #: Called when tokens that the registry has signed may have ended.
        self.on_tokens: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self._ticks = 0
        #: Whether ``_place`` runs in this turn of the loop.
        self._placing_soon = False
        self.closed = False

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> None:
        await super().open()
        self.states.epoch = self.new_epoch()
        if self.directory.version:
            self._directory_changed()
        self.broker.crossing = self
        await self.carrier.open()
        await self.arrivals.open()
        self.following.start()
        self.place_soon()
        self._tick()

    async def close(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._reserving is not None:
            self._reserving.cancel()
        await self.following.close()
        await self.links.stop_dialling()
        self.forwarder.close()
        await self.arrivals.close()
        await self.questions.close()
        await self.carrier.close()
        if self.measurements is not None:
            self.measurements.write()
        await self.links.close()
        self.broker.crossing = None

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)
        now = self.now()
        self._tell(self.states.advance(now))
        self._refresh()
        self.carrier.advance(now)
        self.arrivals.advance(now)
        self._ticks += 1
        if self._ticks % SLOW_TICKS == 0:
            self._tell_own()
            self.place_soon()
            if self.measurements is not None:
                self.measurements.write()
            self.following.look_at_held()

    @property
    def current_run(self) -> int:
        """The run of this terminal as a destination, as its link states tell it to sources."""
        return self.states.epoch

    # -- what the broker tells (see broker.Crossing) -----------------------------------------------

    def accept(self, transport: asyncio.Transport, session: Session, frame: frames.Join) -> None:
        self.links.accept(transport, session, frame)

    def topic_made(self, topic: Topic) -> None:
        self.following.ask_soon()
        self.place_soon()

    def check_subscribe(self, group: Group) -> None:
        self.placing.check_subscribe(group)

    def check_size(self, topic: str, batch: Batch) -> None:
        self.forwarder.check_size(topic, batch)

    def consumers_changed(self, group: Group) -> None:
        if self.placing.crosses(group):
            self.placing.note_consumers(group)
            if not self.closed:
                asyncio.get_running_loop().call_soon(self._tell_own)
                self.place_soon()

    def reply_to(self, terminal: str) -> bool:
        is_known = self.add_replying(terminal)
        if is_known:
            self.place_soon()
        return is_known

    def settled(self, group: Group) -> None:
        self.questions.settled(group)

    # -- the directory -----------------------------------------------------------------------------

    async def until_known(self, topic: str) -> None:
        """Wait until it is known which groups a topic has, or that the registry has no such topic."""
        await self.following.until_known(topic)

    def _on_update(self, update: NewDirectory) -> bool:
        self._adopt_and_share(update.directory)
        is_new = self.adopt_topics(update.topics)
        self.place_soon()
        return is_new

    def on_directory(self, body: bytes, signature: bytes) -> None:
        """A neighbour sends a directory, which comes from the registry in the end."""
        self._adopt_and_share(SignedDirectory(body, signature))

    def _adopt_and_share(self, signed: SignedDirectory) -> None:
        if self.adopt(signed):
            self._directory_changed()
            for peer in self.peers.values():
                self._send_directory(peer)

    def _send_directory(self, peer: Peer) -> None:
        state, signed = self.states.states.get(peer.terminal), self.signed_directory
        if signed.body and (state is None or state.directory_version < self.directory.version):
            peer.tell_directory(signed.body, signed.signature)

    def _directory_changed(self) -> None:
        self.on_tokens()
        self._verifier = Verifier(self.directory)
        self.states.restrict([entry.id for entry in self.directory.terminals if self.knows(entry.id)])
        self.routes.follow(self.directory)
        for peer in list(self.peers.values()):
            self._weigh(peer)
            if not self.knows(peer.terminal):
                self.note("revoke", who=peer.terminal, cause="directory")
                peer.close(Unauthenticated("this terminal was revoked or removed", hint=""))
        self.links.look()
        self._tell_own()
        self._paths_changed()

    def _weigh(self, peer: Peer) -> None:
        """Set what a link costs beside what is measured: the admin costs of both ends."""
        ends = (self.entry(self.me), self.entry(peer.terminal))
        peer.meter.admin = sum(entry.admin_cost for entry in ends if entry is not None)

    # -- what links tell (see peer.LinkEvents) -----------------------------------------------------

    def on_link_up(self, peer: Peer) -> None:
        before, name = self.peers.get(peer.terminal), self.name_of(peer.terminal)
        self.peers[peer.terminal] = peer
        if before is not None and before is not peer:
            before.close(
                Disconnected(
                    "a newer link of the same terminal took its place",
                    hint="if that goes on: does another process use the same terminal file?",
                )
            )
        self._weigh(peer)
        peer.meter.prior = self.routes.graph.planned(self.me, peer.terminal)
        log.info("link up", peer=name, dialled=peer.dialled)
        self.broker.observe("link", name, "up")
        self.note("link_up", who=name, detail="dialled" if peer.dialled else "accepted")
        states = [(state.body, state.signature) for state in self.states.everything()]
        peer.tell_states(states)
        self._send_directory(peer)

    def on_link_down(self, peer: Peer, error: BusError) -> None:
        if self.peers.get(peer.terminal) is peer:
            del self.peers[peer.terminal]
            name = self.name_of(peer.terminal)
            log.warning("link down", peer=name, cause=error.code, detail=str(error))
            self.note("link_down", who=name, cause=error.code, detail=str(error))
            self.broker.observe("link", name, "down", after={"cause": error.code})
            if not self.closed:
                self._tell_own()

    def on_refused(self, peer: Peer, error: BusError) -> None:
        self.note("refuse", who=peer.terminal, cause=error.code, detail=str(error))

    def on_measured(self, peer: Peer) -> None:
        known, cost = self.states.states.get(self.me), peer.meter.cost
        if known is None or cost is None or known.links.get(peer.terminal) != cost:
            self._tell_own()

    def on_room(self) -> None:
        self.carrier.dispatch_waiting()
        self.forwarder.look_again()

    def on_parcel(self, parcel: Parcel, data: memoryview, decide: Fate) -> None:
        self.carrier.received(parcel, data, decide)

    # -- link states -------------------------------------------------------------------------------

    def _sign(self, state: LinkState) -> SignedLinkState:
        return linkstate.sign(state, self._signing_key, self.identity.customer)

    def on_states(self, peer: Peer, states: list[tuple[bytes, bytes]]) -> None:
        now = self.now()
        news = [state for state in states if self.states.offer(now, SignedLinkState(*state), self._verifier)]
        if not news:
            return
        self._flood(news, peer)
        for body, _ in news:
            state = linkstate.decode(body)
            if self.measurements is not None:
                self.measurements.note(state)
            if (neighbour := self.peers.get(state.origin)) is not None:
                self._send_directory(neighbour)
        self._refresh()
        self.place_soon()

    def _flood(self, states: list[tuple[bytes, bytes]], source: Peer | None = None) -> None:
        """Send link states to all neighbours but the one that they come from."""
        for peer in self.peers.values():
            if peer is not source:
                peer.tell_states(states)

    def _tell_own(self) -> None:
        """Work out this terminal's link state anew, and tell it if that is due."""
        costs = {terminal: peer.meter.cost for terminal, peer in self.peers.items()}
        links = {terminal: cost for terminal, cost in costs.items() if cost is not None}
        own = self.entry(self.me)
        signed = self.states.own(
            self.now(),
            mode=self.mode,
            links=links,
            quality=[self.peers[terminal].meter.quality for terminal in links],
            groups=self.placing.consumers(),
            region=self.settings.region,
            load=min(1.0, len(self.carrier.transits) / MOST_ON_LINKS),
            draining=own is not None and own.draining,
            directory_version=self.directory.version,
            max_frame=self.max_frame,
        )
        self._tell(signed)
        self._refresh()

    def _tell(self, signed: SignedLinkState | None) -> None:
        if signed is not None:
            self._flood([(signed.body, signed.signature)])
            self.following.post(signed)
            if self.measurements is not None:
                self.measurements.note(linkstate.decode(signed.body))

    def _refresh(self) -> None:
        if self.routes.refresh(self.now()):
            self._paths_changed()

    def _paths_changed(self) -> None:
        if self.broker.crossing is not None:
            self.carrier.paths_changed()
            self.place_soon()
            self.forwarder.look_again()

    def place_soon(self) -> None:
        """Choose anew where each group's messages go, in the next turn of the loop."""
        if not self._placing_soon and not self.closed:
            self._placing_soon = True
            asyncio.get_running_loop().call_soon(self._place)

    def _place(self) -> None:
        self._placing_soon = False
        if not self.closed and self.broker.crossing is not None:
            self.forwarder.place()

    # -- parcels for this terminal -----------------------------------------------------------------

    def say(self, destination: str, message: Control) -> None:
        """Send a control message; it may get lost."""
        try:
            data = control(
                self.identity,
                destination,
                self.keys_of(destination),
                kind="message",
                plaintext=encode_control(message),
                now=self.now(),
            )
        except BusError as error:
            # The terminal was removed or revoked since; the next directory ends what waits for an answer.
            log.debug("a control message can't be sent", to=destination, code=error.code, detail=str(error))
            return
        self.carrier.control(destination, data)

    def _deliver(self, parcel: Parcel, data: memoryview, decide: Fate) -> None:
        if parcel.kind == Kind.SHIPMENT:
            self.arrivals.received(parcel, data, decide)
            return
        decide(None)
        if parcel.kind == Kind.RETURNED:
            self.forwarder.returned(parcel.id)
            return
        source = parcel.source
        try:
            plaintext = open_control(
                self.identity, source, self.keys_of(source), kind="message", data=data, now=self.now()
            )
            match message := decode_control(plaintext):
                case Ask():
                    self.questions.heard(source, message)
                case Withdraw() | Compare():
                    self.arrivals.heard(source, message)
                case _:
                    self.forwarder.heard(source, message)
        except BusError as error:
            self.note("refuse", who=source, cause=error.code, detail=str(error))
            log.warning("control message refused", source=source, code=error.code, detail=str(error))
