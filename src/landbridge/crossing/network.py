"""The network: this terminal among the others of its customer. It knows the directory, keeps the links, tells
and hears link states, and puts together the parts that move messages between terminals:

    links      dialling and being dialled            peer       one link
    carrier    parcels out and through, custody      shelf      parcels that must not be lost
    forwarder  groups whose consumers are elsewhere  lane       one topic's way to one terminal
    arrivals   parcels for this terminal             questions  what became of them
    measurements  link states as messages, for the long-term plan
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
import structlog

from landbridge.core.log.store import PutDocument
from landbridge.core.routing import linkstate
from landbridge.core.routing.linkstate import LinkState, LinkStates, SignedLinkState, Verifier
from landbridge.core.routing.routes import Routes
from landbridge.core.shipping.parcel import (
    Ask,
    Control,
    Kind,
    Parcel,
    Withdraw,
    decode_control,
    encode_control,
)
from landbridge.core.trust import directory as directories
from landbridge.core.trust.directory import Directory, PublicKeys, SignedDirectory, TerminalEntry, TopicEntry
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.core.trust.seal import control, open_control
from landbridge.core.trust.tickets import Issue, Release, Renewal
from landbridge.core.wording import counted, did_you_mean
from landbridge.crossing.arrivals import Arrivals
from landbridge.crossing.carrier import MOST_ON_LINKS, Carrier
from landbridge.crossing.forwarder import Forwarder
from landbridge.crossing.links import Links
from landbridge.crossing.measurements import Measurements
from landbridge.crossing.peer import Fate, Peer
from landbridge.crossing.questions import Questions
from landbridge.crossing.shelf import Shelf
from landbridge.errors import (
    BusError,
    Disconnected,
    GroupElsewhere,
    Unauthenticated,
    Unavailable,
    UnknownTerminal,
)
from landbridge.protocol import frames

if TYPE_CHECKING:
    from landbridge.broker.broker import Broker
    from landbridge.broker.group import Group
    from landbridge.broker.server import Terminal
    from landbridge.broker.topic import Topic
    from landbridge.protocol.session import Session

log = structlog.get_logger("landbridge.network")

SECOND = 1_000_000
DOCUMENTS = "network"
#: Seconds between two looks at what has changed by time alone.
TICK = 0.25
#: Every so many ticks, a look at all groups: whatever changes tells so itself, this is for time alone.
SLOW_TICKS = 16
#: Seconds that the registry may keep a question for a newer directory open.
POLL_WAIT = 25.0
#: Seconds after which a registry that was away is asked again, and how that grows.
REGISTRY_AGAIN, REGISTRY_AGAIN_MOST = 0.5, 15.0
#: Seconds that a group stays here after its last consumer has left: it may only be restarting.
STAY = 10.0
#: Epochs that are reserved on disk at a time.
EPOCHS = 1 << 20


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set about crossing LANs. Spans are seconds."""

    region: str = ""
    #: Names or ids of the servers to dial; None = the terminal chooses.
    neighbours: list[str] | None = None
    #: Name or id → the address to dial instead of the one in the directory.
    dial: dict[str, str] = {}
    probe_busy: float = 2.0
    probe_idle: float = 10.0
    #: Bytes that may be kept for others, and for this terminal while they can't be opened.
    max_transit: int = 4 << 30
    max_sealed: int = 4 << 30
    #: Bytes per second at which messages that an outage has delayed are sent; 0 = as fast as it goes.
    catch_up_rate: int = 32 << 20
    #: Links use certificates that were given rather than those of the registry's authority.
    own_certificates: bool = False
    #: Write every link state that is heard to the topic ``$links``.
    log_links: bool = False


class DirectoryUpdate(Protocol):
    @property
    def directory(self) -> SignedDirectory: ...
    @property
    def topics(self) -> SignedDirectory: ...


class RegistryPort(Protocol):
    """What a terminal asks of the registry. Unavailable where it can't be reached."""

    async def issue(self, topic: str) -> Issue: ...
    async def redeem(self, topic: str, ticket: bytes, box: bytes) -> Release: ...
    async def renew(self, ticket: bytes) -> Renewal: ...
    async def directory(self, version: int, wait: float, topics: Sequence[str]) -> DirectoryUpdate | None: ...
    async def post_link_state(self, signed: SignedLinkState, held: dict[str, int]) -> None: ...


class Network:
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
        self.broker = broker
        self.identity = Identity(customer, terminal, key)
        self.me = terminal
        self.registry = registry
        self.settings = settings or Settings()
        self.max_frame = broker.limits.max_frame
        self.max_handshake = broker.limits.hello_within
        self.certificate_digest = b""
        #: When the certificate for links ends, microseconds; 0 where the registry has given none.
        self.certificate_ends_at = 0
        self.client_tls: ssl.SSLContext | None = None
        self.mode: Literal["server", "client"] = "client"
        self.directory = Directory(customer=customer, version=0)
        #: The topics of the directory that this terminal has to do with.
        self.topics: dict[str, TopicEntry] = {}
        #: The links that are up, by terminal.
        self.peers: dict[str, Peer] = {}
        self.links = Links(self)
        self.carrier = Carrier(self, Shelf(broker, "$transit", self.settings.max_transit))
        self.forwarder = Forwarder(self)
        self.arrivals = Arrivals(self, Shelf(broker, "$sealed", self.settings.max_sealed))
        self.questions = Questions(self)
        self.measurements = Measurements(self) if self.settings.log_links else None
        self.states: LinkStates
        self.routes: Routes
        #: Whether the registry answered when it was last asked.
        self.registry_up = False
        #: Why it refuses this terminal; None while it doesn't.
        self.refusal: BusError | None = None
        #: Topics that the registry was asked about, and has answered.
        self._answered: frozenset[str] = frozenset()
        self._registry_key = registry_key
        self._signing_key = key.signing_key()
        self._signed = SignedDirectory(b"", b"")
        self._entries: dict[str, TerminalEntry] = {}
        self._groups: dict[str, list[str]] = {}
        self._verifier: Verifier
        self._epoch = self._epochs_end = 0
        self._interest = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self._timer: asyncio.TimerHandle | None = None
        #: When the last consumer of a group here has left.
        self._left_at: dict[tuple[str, str], int] = {}
        self._place_soon = False
        self._whys: dict[str, tuple[int, str]] = {}
        self._to_post: SignedLinkState | None = None
        self._post = asyncio.Event()
        self._ticks = 0
        #: Topics with messages that others wait for, as the registry was last told.
        self._held_topics: Set[str] = frozenset()
        self.closed = False

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> None:
        documents = dict(self.broker.store.documents(DOCUMENTS))
        self._epoch = max(int(documents.get("epoch", b"0")), self.now())
        await self._reserve_epochs()
        self.states = LinkStates(self.me, epoch=self.new_epoch(), sign=self._sign)
        self.routes = Routes(self.me, self.states, self.directory)
        self._take(self.directory)
        if "directory" in documents:
            try:
                signed = msgspec.msgpack.decode(documents["directory"], type=list[SignedDirectory])
                self._adopt(signed[0])
                self._adopt_topics(signed[1])
            except (BusError, msgspec.MsgspecError, IndexError) as error:
                log.warning("the stored directory can't be used", detail=str(error))
        self.broker.crossing = self
        await self.carrier.open()
        await self.arrivals.open()
        self._tasks = [asyncio.ensure_future(self._poll()), asyncio.ensure_future(self._post_states())]
        self._tick()

    def accept(self, transport: asyncio.Transport, session: Session, frame: frames.Join) -> None:
        self.links.accept(transport, session, frame)

    def groups_of(self, topic: str) -> list[str] | None:
        entry = self.topics.get(topic)
        return None if entry is None else sorted(entry.groups)

    def _sign(self, state: LinkState) -> SignedLinkState:
        return linkstate.sign(state, self._signing_key, self.identity.customer)

    async def close(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.links.close()
        await self.forwarder.close()
        await self.arrivals.close()
        await self.questions.close()
        await self.carrier.close()
        if self.measurements is not None:
            self.measurements.write()
        peers = list(self.peers.values())
        for peer in peers:
            peer.close(Disconnected("the terminal is shutting down"))
        if peers:
            await asyncio.wait([peer.gone for peer in peers], timeout=2.0)
        self.broker.crossing = None

    def now(self) -> int:
        return self.broker.clock()

    def new_id(self) -> bytes:
        return self.broker.new_id()

    def new_epoch(self) -> int:
        """Greater than any before, also before a restart, also if the clock was set back."""
        self._epoch += 1
        if self._epoch + EPOCHS // 2 > self._epochs_end:
            self._tasks.append(asyncio.ensure_future(self._reserve_epochs()))
        return self._epoch

    async def _reserve_epochs(self) -> None:
        self._epochs_end = self._epoch + EPOCHS
        await self.broker.write([PutDocument(DOCUMENTS, "epoch", str(self._epochs_end).encode())])

    # -- the directory -----------------------------------------------------------------------------

    def entry(self, terminal: str) -> TerminalEntry | None:
        return self._entries.get(terminal)

    def knows(self, terminal: str) -> bool:
        return terminal in self._entries

    def keys_of(self, terminal: str) -> list[PublicKeys]:
        entry = self._entries.get(terminal)
        if entry is None or not entry.keys:
            raise Unauthenticated("a terminal that the directory doesn't name, or no longer", hint="")
        return entry.keys

    def name_of(self, terminal: str) -> str:
        entry = self._entries.get(terminal)
        return terminal if entry is None else entry.name

    def find(self, name: str) -> str:
        """The id of a terminal, by its id or its name."""
        if name in self._entries:
            return name
        found = [entry.id for entry in self._entries.values() if entry.name == name]
        if not found:
            known = [entry.name for entry in self._entries.values()]
            hint = did_you_mean(name[:100], known, "see 'landbridge topology'")
            raise UnknownTerminal(f"there is no terminal {name[:100]!r}", hint=hint)
        return found[0]

    def address_of(self, entry: TerminalEntry) -> str:
        dial = self.settings.dial
        return dial.get(entry.id) or dial.get(entry.name) or entry.address

    def members(self, group: str) -> list[str]:
        """The terminals where a group's consumers may be."""
        return [terminal for terminal in self._groups.get(group, []) if terminal in self._entries]

    @property
    def carries(self) -> bool:
        """May parcels pass through here that are neither from nor for this terminal?"""
        entry = self._entries.get(self.me)
        return entry is not None and entry.mode == "server" and entry.transit

    def _take(self, directory: Directory) -> None:
        self.directory = directory
        revoked = set(directory.revoked)
        self._entries = {entry.id: entry for entry in directory.terminals if entry.id not in revoked}
        self._groups = {group.name: group.terminals for group in directory.groups}
        self._verifier = Verifier(directory)
        own = self._entries.get(self.me)
        if own is not None:
            self.mode = own.mode
        self.states.restrict(self._entries)
        self.routes.follow(directory)
        for peer in self.peers.values():
            self._weigh(peer)

    def _adopt(self, signed: SignedDirectory) -> bool:
        """Take a directory that the registry has signed, if it is newer."""
        found = directories.verify(signed, self._registry_key)
        if found.customer != self.identity.customer or found.version <= self.directory.version:
            return False
        self._take(found)
        self._signed = signed
        for peer in list(self.peers.values()):
            if not self.knows(peer.terminal):
                self.note("revoke", who=peer.terminal, cause="directory")
                peer.close(Unauthenticated("this terminal was revoked or removed", hint=""))
        self.links.look()
        self._tell_own()
        self.paths_changed()
        return True

    def _adopt_topics(self, signed: SignedDirectory) -> None:
        found = directories.verify(signed, self._registry_key)
        if found.customer != self.identity.customer:
            return
        self.topics = {entry.name: entry for entry in found.topics}
        for entry in found.topics:
            # A terminal of the group needs the topic, so that messages for it have somewhere to wait.
            if any(self.me in self.members(group) for group in entry.groups):
                self.broker.topic_for(entry.name, create=True)
        self.place_soon()

    def directory_received(self, body: bytes, signature: bytes) -> None:
        """From a neighbour, who had it from the registry or from a neighbour."""
        if self._adopt(SignedDirectory(body, signature)):
            self._share_directory()

    def _share_directory(self) -> None:
        for peer in self.peers.values():
            self._send_directory(peer)

    def _send_directory(self, peer: Peer) -> None:
        state = self.states.states.get(peer.terminal)
        if self._signed.body and (state is None or state.directory_version < self.directory.version):
            peer.send(frames.Directory(self._signed.body, self._signed.signature))

    async def until_known(self, topic: str) -> None:
        """Until it is known which groups a topic has, or that the registry has no such topic."""
        while topic not in self.topics and not (self.directory.version and topic in self._answered):
            if self.refusal is not None:
                raise Unauthenticated(
                    f"the registry refuses this terminal: {self.refusal}",
                    hint="what is published here stays here; was the terminal revoked, or its key rotated?",
                )
            await asyncio.sleep(0.05)

    def topic_made(self, topic: Topic) -> None:
        """A topic is used here: does the registry know it?"""
        self._interest.set()
        self.place_soon()

    async def _poll(self) -> None:
        """Ask the registry for what is newer, all the time."""
        backoff = REGISTRY_AGAIN
        asked: frozenset[str] = frozenset()
        while True:
            self._interest.clear()
            names = frozenset(name for name in self.broker.topics if not name.startswith("$"))
            wait = POLL_WAIT if names == asked and self.directory.version else 0.0
            question = asyncio.ensure_future(
                self.registry.directory(self.directory.version if wait else 0, wait, sorted(names))
            )
            other = asyncio.ensure_future(self._interest.wait())
            try:
                await asyncio.wait([question, other], return_when=asyncio.FIRST_COMPLETED)
                if not question.done():
                    question.cancel()
                    continue
                update = question.result()
            except Unavailable as error:
                if self.registry_up:
                    log.warning("the registry is away", detail=str(error))
                self.registry_up = False
                await asyncio.sleep(backoff)
                backoff = min(REGISTRY_AGAIN_MOST, backoff * 2)
                continue
            except BusError as error:
                self.registry_up, self.refusal = False, error
                log.error("the registry refuses", code=error.code, detail=str(error))
                self.note("refuse", who="registry", cause=error.code, detail=str(error))
                await asyncio.sleep(REGISTRY_AGAIN_MOST)
                continue
            finally:
                other.cancel()
                if not question.done():
                    question.cancel()
            if not self.registry_up:
                self.registry_up = True
                self.forwarder.look_again()
            backoff = REGISTRY_AGAIN
            self.refusal = None
            asked = self._answered = names
            if update is not None:
                await self._updated(update)

    async def _updated(self, update: DirectoryUpdate) -> None:
        try:
            if self._adopt(update.directory):
                self._share_directory()
            self._adopt_topics(update.topics)
        except BusError as error:
            log.error("a directory can't be used", code=error.code, detail=str(error))
            await asyncio.sleep(REGISTRY_AGAIN_MOST)
            return
        saved = msgspec.msgpack.encode([self._signed, update.topics])
        await self.broker.write([PutDocument(DOCUMENTS, "directory", saved)])

    # -- links and their states --------------------------------------------------------------------

    def _weigh(self, peer: Peer) -> None:
        """What a link costs beside what is measured."""
        ends = (self._entries.get(self.me), self._entries.get(peer.terminal))
        peer.meter.admin = sum(entry.admin_cost for entry in ends if entry is not None)

    def link_up(self, peer: Peer) -> None:
        before = self.peers.get(peer.terminal)
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
        log.info("link up", peer=self.name_of(peer.terminal), dialled=peer.dialled)
        self.note(
            "link_up", who=self.name_of(peer.terminal), detail="dialled" if peer.dialled else "accepted"
        )
        states = [(state.body, state.signature) for state in self.states.everything()]
        for at in range(0, len(states), 256):
            peer.send(frames.States(states[at : at + 256]))
        self._send_directory(peer)

    def link_down(self, peer: Peer, error: BusError) -> None:
        if self.peers.get(peer.terminal) is peer:
            del self.peers[peer.terminal]
            log.warning("link down", peer=self.name_of(peer.terminal), cause=error.code, detail=str(error))
            self.note("link_down", who=self.name_of(peer.terminal), cause=error.code, detail=str(error))
            if not self.closed:
                self._tell_own()

    def refused(self, peer: Peer, error: BusError) -> None:
        self.note("refuse", who=peer.terminal, cause=error.code, detail=str(error))

    def measured(self, peer: Peer) -> None:
        known = self.states.states.get(self.me)
        cost = peer.meter.cost
        if known is None or cost is None or known.links.get(peer.terminal) != cost:
            self._tell_own()

    def states_received(self, peer: Peer, states: list[tuple[bytes, bytes]]) -> None:
        now = self.now()
        news = [state for state in states if self.states.offer(now, SignedLinkState(*state), self._verifier)]
        if news:
            self._flood(news, peer)
            for body, _ in news:
                state = linkstate.decode(body)
                if self.measurements is not None:
                    self.measurements.note(state)
                neighbour = self.peers.get(state.origin)
                if neighbour is not None and state.directory_version < self.directory.version:
                    self._send_directory(neighbour)
            self._refresh()
            self.place_soon()

    def _flood(self, states: list[tuple[bytes, bytes]], source: Peer | None = None) -> None:
        for peer in self.peers.values():
            if peer is not source:
                peer.send(frames.States(states))

    def _tell_own(self) -> None:
        """What is so here now."""
        links = {
            terminal: cost for terminal, peer in self.peers.items() if (cost := peer.meter.cost) is not None
        }
        own = self._entries.get(self.me)
        signed = self.states.own(
            self.now(),
            mode=self.mode,
            links=links,
            quality=[self.peers[terminal].meter.quality for terminal in links],
            groups=self._consumers(),
            region=self.settings.region,
            load=min(1.0, len(self.carrier.transits) / MOST_ON_LINKS),
            draining=own is not None and own.draining,
            directory_version=self.directory.version,
        )
        self._told(signed)
        self._refresh()

    def _told(self, signed: SignedLinkState | None) -> None:
        if signed is not None:
            self._flood([(signed.body, signed.signature)])
            self._to_post = signed
            self._post.set()
            if self.measurements is not None:
                self.measurements.note(linkstate.decode(signed.body))

    async def _post_states(self) -> None:
        """The registry is one more neighbour."""
        while True:
            await self._post.wait()
            self._post.clear()
            if self._to_post is not None:
                held = self.held()
                self._held_topics = held.keys()
                try:
                    await self.registry.post_link_state(self._to_post, held)
                except BusError as error:
                    log.debug("no link state to the registry", code=error.code, detail=str(error))
            await asyncio.sleep(1.0)

    def held(self) -> dict[str, int]:
        """Topic → messages that others wait for."""
        held: dict[str, int] = {}
        for placement in self.forwarder.placements.values():
            topic = self.broker.topics.get(placement.topic)
            group = topic.groups.get(placement.group) if topic is not None else None
            if group is not None:
                lag = group.delivery.cursor.lag(group.topic.log.end)
                held[placement.topic] = max(held.get(placement.topic, 0), lag)
        return {topic: count for topic, count in held.items() if count}

    def _refresh(self) -> None:
        if self.routes.refresh(self.now()):
            self.paths_changed()

    def paths_changed(self) -> None:
        self._whys.clear()
        if self.broker.crossing is not None:
            self.carrier.paths_changed()
            self.place_soon()
            self.forwarder.look_again()

    # -- consumers ---------------------------------------------------------------------------------

    def group_key(self, topic: str, group: str) -> str:
        """A group's name in a link state, which passes through terminals that need not know the topic."""
        text = "\0".join((self.identity.customer, topic, group))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def _consumers(self) -> dict[str, int]:
        found = {}
        for entry in self.topics.values():
            topic = self.broker.topics.get(entry.name)
            for name in entry.groups:
                group = topic.groups.get(name) if topic is not None else None
                if group is not None and self.me in self.members(name) and group.own_consumers:
                    found[self.group_key(entry.name, name)] = len(group.own_consumers)
        return found

    def consumers_changed(self, group: Group) -> None:
        if (entry := self.topics.get(group.topic.name)) is None or group.name not in entry.groups:
            return
        if not group.own_consumers:
            self._left_at[group.topic.name, group.name] = self.now()
        if not self.closed:
            asyncio.get_running_loop().call_soon(self._tell_own)
            self.place_soon()

    def check_subscribe(self, group: Group) -> None:
        entry = self.topics.get(group.topic.name)
        if entry is not None and group.name in entry.groups and self.me not in self.members(group.name):
            names = ", ".join(map(self.name_of, self.members(group.name)))
            raise GroupElsewhere(
                f"the group {group.name} of {group.topic.name} has its consumers at {names or 'no terminal'}",
                hint="connect there, or add this terminal to the group",
            )

    def settled(self, group: Group) -> None:
        self.questions.settled(group)

    def choose(
        self, topic: str, group: str, members: list[str], current: str, suspects: set[str]
    ) -> tuple[str | None, str]:
        """The terminal that gets a group's messages, and why; None where there is none yet."""
        now = self.now()
        key = self.group_key(topic, group)
        local = self.broker.topics[topic].groups.get(group)
        here = len(local.own_consumers) if local is not None else 0
        left_at = self._left_at.get((topic, group), 0)
        if current == self.me and not here and now - left_at < STAY * SECOND:
            here = 1

        def consumers_of(terminal: str) -> int:
            if terminal == self.me:
                return here
            state = self.states.states.get(terminal)
            return state.groups.get(key, 0) if state is not None else 0

        placement = self.forwarder.placements.get((topic, group))
        trusted = [member for member in members if member not in suspects] or members
        chosen = self.routes.choose_member(
            now, trusted, current or None, consumers_of, since=placement.since if placement else 0
        )
        if chosen is None:
            return None, "no terminal of the group can be reached"
        path = self.routes.best(chosen)
        cost = "no path" if path is None else "here" if not path.hops else f"cost {path.cost:.1f} ms"
        why = f"{counted(consumers_of(chosen), 'consumer')} there, {cost}"
        if len(members) > 1:
            why += f"; the better of {len(members)} terminals of the group"
        return chosen, why

    def place_soon(self) -> None:
        if not self._place_soon and not self.closed:
            self._place_soon = True
            asyncio.get_running_loop().call_soon(self._place)

    def _place(self) -> None:
        self._place_soon = False
        if not self.closed and self.broker.crossing is not None:
            self.forwarder.place()

    # -- paths -------------------------------------------------------------------------------------

    def route(self, destination: str, avoid: set[str]) -> list[str] | None:
        path = self.routes.best(destination, avoid) if avoid else self.routes.route(self.now(), destination)
        if path is None or not path.hops:
            return None
        return list(path.hops)

    def round_trip(self, route: list[str]) -> float:
        """Seconds, by the costs of its links."""
        return self.routes.graph.cost(self.me, tuple(route)) / 1000

    def why_route(self, destination: str) -> str:
        known = self._whys.get(destination)
        now = self.now()
        if known is None or now - known[0] > SECOND:
            known = self._whys[destination] = (now, self.routes.explain(destination).why)
        return known[1]

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
            # Removed or revoked since: whoever waits for an answer waits for the next directory.
            log.debug("nothing can be said", to=destination, code=error.code, detail=str(error))
            return
        self.carrier.control(destination, data)

    def arrived(self, parcel: Parcel, data: memoryview, decide: Fate) -> None:
        if parcel.kind == Kind.SHIPMENT:
            self.arrivals.received(parcel, data, decide)
            return
        decide(None)
        if parcel.kind == Kind.RETURNED:
            self.forwarder.returned(parcel.id)
            return
        try:
            plaintext = open_control(
                self.identity,
                parcel.source,
                self.keys_of(parcel.source),
                kind="message",
                data=data,
                now=self.now(),
            )
            message = decode_control(plaintext)
            match message:
                case Ask():
                    self.questions.heard(parcel.source, message)
                case Withdraw():
                    self.arrivals.heard(parcel.source, message)
                case _:
                    self.forwarder.heard(parcel.source, message)
        except BusError as error:
            self.note("refuse", who=parcel.source, cause=error.code, detail=str(error))
            log.warning("control message refused", source=parcel.source, code=error.code, detail=str(error))

    # -- time --------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)
        now = self.now()
        self._told(self.states.advance(now))
        self._refresh()
        self.carrier.advance(now)
        self.arrivals.advance(now)
        self._ticks += 1
        if self._ticks % SLOW_TICKS == 0:
            self._tell_own()
            self.place_soon()
            if self.measurements is not None:
                self.measurements.write()
            if self.held().keys() != self._held_topics:
                self._post.set()
            self._tasks = [task for task in self._tasks if not task.done()]

    def note(self, event: str, **details: Any) -> None:
        self.broker.status.note(self.now(), event, **details)

    def dialling_tls(self) -> ssl.SSLContext:
        if self.client_tls is not None:
            return self.client_tls
        tls = ssl.create_default_context(cadata=self.directory.ca or None)
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        return tls


async def join(
    terminal: Terminal,
    customer: str,
    id: str,
    key: SecureKey,
    registry: RegistryPort,
    registry_key: bytes,
    settings: Settings | None = None,
) -> Network:
    """Make a terminal one of a customer's: links to the others, and groups that cross them."""
    network = Network(terminal.broker, customer, id, key, registry, registry_key, settings)
    await network.open()
    return network
