"""A peer: another terminal at the other end of a link, whichever of the two has dialled. First each proves to
the other who it is; then parcels, link states and probes go to and fro."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

import structlog
from msgspec.structs import astuple

from landbridge.core.routing.meter import Meter
from landbridge.core.shipping.cutting import PARCEL_HEAD
from landbridge.core.shipping.parcel import Parcel
from landbridge.core.time import SECOND
from landbridge.core.trust.identity import NONCE_SIZE, Handshake
from landbridge.crossing.ground import Ground
from landbridge.errors import BadFrame, BusError, Disconnected, Unauthenticated, from_wire
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.session import DEFAULT_MAX_FRAME, MAX_HEAD, Role, Session
from landbridge.transport.incoming import Incoming
from landbridge.transport.keepalive import keep_alive
from landbridge.transport.outgoing import Outgoing

log = structlog.get_logger("landbridge.link")

#: Bytes waiting to be written above which the link is given no more parcels.
HIGH_WATER = 8 << 20
#: Bytes of parcels that were received and are not on disk yet, above which the link isn't read from.
MOST_UNKEPT = 64 << 20
#: Link states in one frame at most, and bytes that news may take in a frame beside what is told.
STATES_AT_ONCE, SLACK = 256, 64
#: Seconds since the last parcel during which a link counts as busy.
BUSY_FOR = 10.0

#: Is told what became of a parcel: None = the peer has it on disk; else why not ("lost": the link broke).
Fate: TypeAlias = Callable[[str | None], None]


class LinkEvents(Protocol):
    """What a link reports, to the part of the terminal that keeps all links."""

    def on_link_up(self, peer: Peer) -> None: ...
    def on_link_down(self, peer: Peer, error: BusError) -> None: ...
    def on_refused(self, peer: Peer, error: BusError) -> None:
        """The peer has broken a rule, and the link is being closed for it."""

    def on_measured(self, peer: Peer) -> None:
        """A probe came back: the link may cost more or less than before."""

    def on_states(self, peer: Peer, states: list[tuple[bytes, bytes]]) -> None: ...
    def on_directory(self, body: bytes, signature: bytes) -> None: ...
    def on_parcel(self, parcel: Parcel, data: memoryview, decide: Fate) -> None: ...
    def on_room(self) -> None:
        """A link that was full takes parcels again."""


class Peer(Incoming):
    def __init__(
        self, ground: Ground, events: LinkEvents, expected: str | None, session: Session | None = None
    ) -> None:
        """``expected``: the id of the terminal that was dialled; None if the peer has dialled this one."""
        super().__init__(session or Session(Role.CLIENT, max_frame=ground.max_frame))
        self._ground = ground
        self._events = events
        self.dialled = expected is not None
        #: The peer's id; proved once the link is ``up``.
        self.terminal = expected or ""
        self.up = False
        self.closed = False
        #: Bytes of the greatest frame that the peer takes.
        self.max_frame = DEFAULT_MAX_FRAME
        #: Whether the link takes more parcels: False while HIGH_WATER bytes wait to be written.
        self.writable = True
        self.meter = Meter(busy_every=ground.settings.probe_busy, idle_every=ground.settings.probe_idle)
        self._loop = asyncio.get_running_loop()
        #: Done when the link is up; fails when it doesn't get there.
        self.linked: asyncio.Future[None] = self._loop.create_future()
        #: Done when the transport is gone.
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport
        self._outgoing: Outgoing
        self._nonce = os.urandom(NONCE_SIZE)
        self._their_nonce = b""
        #: Number of the next parcel whose fate somebody wants to know.
        self._next_number = 1
        #: Parcels that the peer hasn't kept yet, by number.
        self._sent: dict[int, Fate] = {}
        #: Numbers of the peer's parcels that are on disk here; told together, once in a turn of the loop.
        self._kept: list[int] = []
        #: Bytes of the peer's parcels that nothing has been decided about.
        self._unkept = 0
        self._reading = True
        #: When the last parcel passed, by the loop's clock.
        self._last_parcel_at = 0.0
        self._next_probe = 1
        #: First the end of the handshake's time, then the next look at the probes.
        self._timer: asyncio.TimerHandle | None = None
        self._error: BusError | None = None

    # -- transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.take_over(cast(asyncio.Transport, transport))
        self.session.join()
        ground = self._ground
        self.send(
            frames.Join(frames.VERSION, ground.identity.customer, ground.me, self._nonce, ground.max_frame)
        )

    def take_over(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._outgoing = Outgoing(transport)
        keep_alive(transport)
        self._timer = self._loop.call_later(
            self._ground.max_handshake,
            self.close,
            Unauthenticated("the terminal didn't prove itself in time"),
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(self._error or Disconnected(f"the link was lost{f': {exc}' if exc else ''}"))
        if not self.gone.done():
            self.gone.set_result(None)

    def _end(self, error: BusError) -> None:
        if self.closed:
            return
        self.closed = True
        was_up, self.up = self.up, False
        self.session.close()
        if self._timer is not None:
            self._timer.cancel()
        if not self.linked.done():
            self.linked.set_exception(error)
            self.linked.exception()  # marks it as seen: on the side that was dialled nobody waits for it
        sent, self._sent = self._sent, {}
        if was_up:
            self._events.on_link_down(self, error)
        for fate in sent.values():
            fate("lost")

    def close(self, error: BusError) -> None:
        if self.closed:
            return
        self._error = error
        self.send(frames.Closing(error.code, str(error), error.hint))
        self._outgoing.close()
        self._end(error)
        self._loop.call_later(2.0, self._transport.abort)

    def abort(self) -> None:
        """End a link whose peer has fallen silent, without a goodbye that nobody would read."""
        self._error = Disconnected("the link is silent")
        self._end(self._error)
        self._transport.abort()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._events.on_room()

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None:
        if not self.closed:
            self._outgoing.send(frame, *tail)

    def data_received(self, data: bytes | bytearray) -> None:
        try:
            for frame, tail in self.session.receive_data(data):
                if self.closed:
                    return
                self._received(frame, tail)
        except BusError as error:
            log.warning("link refused", peer=self.terminal, code=error.code, detail=str(error))
            self._events.on_refused(self, error)
            self.close(error)

    def _received(self, frame: Frame, tail: memoryview) -> None:
        match frame:
            case frames.Carry():
                self._carried(frame, tail)
            case frames.Kept(numbers):
                self.meter.heard()
                for number in numbers:
                    self._decided(number, None)
            case frames.Declined(number, code):
                self._decided(number, code or "declined")
            case frames.Probe(number):
                self.send(frames.Echo(number))
            case frames.Echo(number):
                if self.meter.echoed(self._ground.now(), number) is not None:
                    self._events.on_measured(self)
            case frames.States(states):
                self._events.on_states(self, states)
            case frames.DirectoryCopy(body, signature):
                self._events.on_directory(body, signature)
            case frames.Challenge():
                self._challenge(frame)
            case frames.Prove(signature):
                self._prove(signature)
            case frames.Linked(max_frame):
                self.max_frame = max_frame
                self._come_up()
            case frames.Closing(code, message, hint):
                self._error = from_wire(code, message, hint)
                self._outgoing.close()
                self._end(self._error)
            case _:
                raise BadFrame(f"{type(frame).__name__} on a link")

    # -- proving -----------------------------------------------------------------------------------

    def _handshake(self) -> Handshake:
        ours, theirs = (self._ground.me, self._nonce), (self.terminal, self._their_nonce)
        (dialler, nonce_a), (listener, nonce_b) = (ours, theirs) if self.dialled else (theirs, ours)
        binding = b""
        tls: Any = self._transport.get_extra_info("ssl_object")
        if tls is not None and self.dialled:
            binding = hashlib.sha256(tls.getpeercert(binary_form=True) or b"").digest()
        elif tls is not None:
            binding = self._ground.certificate_digest
        return Handshake(self._ground.identity.customer, dialler, listener, nonce_a, nonce_b, binding)

    def join(self, frame: frames.Join) -> None:
        """Go on with a connection whose first frame has shown that it is another terminal's."""
        identity = self._ground.identity
        try:
            if frame.customer != identity.customer:
                raise Unauthenticated("another customer's terminal", hint="")
            self._ground.keys_of(frame.terminal)
        except BusError as error:
            self._events.on_refused(self, error)
            self.close(error)
            return
        self.terminal, self._their_nonce, self.max_frame = frame.terminal, frame.nonce, frame.max_frame
        signature = self._handshake().sign(identity, "listener")
        self.send(frames.Challenge(frames.VERSION, identity.terminal, self._nonce, signature))

    def _challenge(self, frame: frames.Challenge) -> None:
        self._check_certificate()
        self._their_nonce = frame.nonce
        handshake, keys = self._handshake(), self._ground.keys_of(self.terminal)
        if frame.terminal != self.terminal or not handshake.is_signed("listener", keys, frame.signature):
            raise Unauthenticated("this is not the terminal that was dialled", hint="")
        self.send(frames.Prove(handshake.sign(self._ground.identity, "dialler")))

    def _prove(self, signature: bytes) -> None:
        if not self._handshake().is_signed("dialler", self._ground.keys_of(self.terminal), signature):
            raise Unauthenticated("the terminal's proof is wrong", hint="")
        self._check_certificate()
        self.session.link()
        self.send(frames.Linked(self._ground.max_frame))
        self._come_up()

    def _check_certificate(self) -> None:
        """Check that the peer's certificate is of this customer and of the terminal that speaks. TLS has only
        checked who signed the certificate."""
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        if tls is None:
            return
        certificate: Any = tls.getpeercert()
        if not certificate:
            if self.dialled:
                raise Unauthenticated("the terminal showed no certificate")
            return  # a listener doesn't insist on one, because programs have none; the proof counts
        names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        wanted = f"landbridge://{self._ground.identity.customer}/{self.terminal}"
        if wanted not in names and not self._ground.settings.own_certificates:
            raise Unauthenticated("the certificate is another terminal's", hint="")

    def _come_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.up = True
        self.session.max_frame = self._ground.max_frame
        if not self.linked.done():
            self.linked.set_result(None)
        self._events.on_link_up(self)
        self._probe()

    # -- probes ------------------------------------------------------------------------------------

    def _probe(self) -> None:
        if self.closed:
            return
        now = self._ground.now()
        self.meter.advance(now)
        if self.meter.down:
            self.abort()
            return
        busy = self._loop.time() - self._last_parcel_at < BUSY_FOR
        if self.meter.next_probe(now, busy) <= now:
            self.meter.sent(now, self._next_probe)
            self.send(frames.Probe(self._next_probe))
            self._next_probe += 1
        due = min(
            self.meter.next_probe(now, busy),
            self.meter.next_deadline() or now + SECOND,
            now + int(self._ground.settings.probe_busy * SECOND),
        )
        self._timer = self._loop.call_later(max(0.01, (due - now) / SECOND), self._probe)

    # -- news -------------------------------------------------------------------------------------

    def tell_states(self, states: list[tuple[bytes, bytes]]) -> None:
        """Send link states, in as many frames as the peer's limit makes of them."""
        room = 0
        some: list[tuple[bytes, bytes]] = []
        for state in states:
            size = len(state[0]) + len(state[1]) + SLACK
            if size > room or len(some) == STATES_AT_ONCE:
                if some:
                    self.send(frames.States(some))
                some, room = [], self._most_news
            if size <= room:  # else the peer takes no frame that holds it
                some.append(state)
                room -= size
        if some:
            self.send(frames.States(some))

    def tell_directory(self, body: bytes, signature: bytes) -> None:
        """Send a directory, unless it is larger than the peer's limit: then only the registry can."""
        if len(body) + len(signature) <= self._most_news:
            self.send(frames.DirectoryCopy(body, signature))

    @property
    def _most_news(self) -> int:
        return min(self.max_frame, MAX_HEAD) - SLACK

    # -- parcels -----------------------------------------------------------------------------------

    def carry(self, parcel: Parcel, data: bytes | memoryview, fate: Fate | None = None) -> None:
        """Send a parcel. ``fate`` is told whether the peer keeps it; without one, the parcel may get lost."""
        if PARCEL_HEAD + len(data) > self.max_frame:
            # The peer would close the link for it, and everybody's parcels would wait.
            if fate is not None:
                self._loop.call_soon(fate, "too_large")
            return
        number = 0
        if fate is not None:
            number = self._next_number
            self._next_number += 1
            self._sent[number] = fate
        self._last_parcel_at = self._loop.time()
        self.send(frames.Carry(number, *astuple(parcel)), data)

    def _decided(self, number: int, code: str | None) -> None:
        fate = self._sent.pop(number, None)
        if fate is not None:
            fate(code)

    def _carried(self, frame: frames.Carry, tail: memoryview) -> None:
        self.meter.heard()
        if not frame.visited or frame.visited[-1] != self.terminal:
            raise BadFrame("the parcel was last at another terminal than the one that sends it")
        self._last_parcel_at = self._loop.time()
        number, size = frame.number, len(tail)
        self._unkept += size
        self._throttle()

        def decide(code: str | None) -> None:
            self._unkept -= size
            self._throttle()
            if not number:
                return
            if code is not None:
                self.send(frames.Declined(number, code))
                return
            if not self._kept:
                self._loop.call_soon(self._tell_kept)
            self._kept.append(number)

        self._events.on_parcel(Parcel(*astuple(frame)[1:]), tail, decide)

    def _tell_kept(self) -> None:
        numbers, self._kept = self._kept, []
        self.send(frames.Kept(numbers))

    def _throttle(self) -> None:
        reading = self._unkept <= MOST_UNKEPT
        if reading != self._reading and not self.closed:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
