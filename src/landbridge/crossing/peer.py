"""A peer: another terminal at the other end of a link, whichever of us has dialled. First each proves to the
other who it is; then parcels, link states and probes go to and fro."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import structlog

from landbridge.core.routing.meter import Meter
from landbridge.core.shipping.parcel import Parcel
from landbridge.core.trust.identity import check_link_signature, link_signature
from landbridge.errors import BadFrame, BusError, Disconnected, Unauthenticated, from_wire
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.session import Role, Session
from landbridge.transport.incoming import Incoming
from landbridge.transport.keepalive import keep_alive
from landbridge.transport.outgoing import Outgoing

if TYPE_CHECKING:
    from landbridge.crossing.network import Network

log = structlog.get_logger("landbridge.link")

SECOND = 1_000_000
NONCE = 16
#: Bytes waiting to be written above which nothing more is given to the link.
HIGH_WATER = 8 << 20
#: Bytes of parcels that were received and not kept yet, above which the link isn't read from.
MOST_UNKEPT = 64 << 20
#: Seconds since the last parcel during which a link counts as busy.
BUSY_FOR = 10.0

#: Told what became of a parcel: None = the peer has kept it; else why not ("lost": the link broke).
Fate: TypeAlias = Callable[[str | None], None]


class Peer(Incoming):
    def __init__(self, network: Network, expected: str | None, session: Session | None = None) -> None:
        """``expected``: the id of the terminal that was dialled; None where it has dialled us."""
        super().__init__(session or Session(Role.CLIENT, max_frame=network.max_frame))
        self.network = network
        self.dialled = expected is not None
        #: The peer's id; proved once ``up``.
        self.terminal = expected or ""
        self.up = False
        self.closed = False
        self.writable = True
        #: When the link came up, microseconds.
        self.since = 0
        timing = network.settings
        self.meter = Meter(busy_every=timing.probe_busy, idle_every=timing.probe_idle)
        #: Done when the link is up; fails when it doesn't get there.
        self.linked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Done when the transport is gone.
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._outgoing: Outgoing
        self._nonce = os.urandom(NONCE)
        self._their_nonce = b""
        self._next_number = 1
        #: Parcels that the peer hasn't kept yet.
        self._sent: dict[int, Fate] = {}
        self._kept: list[int] = []
        self._kept_soon = False
        self._unkept = 0
        self._reading = True
        self._last_parcel = 0.0
        self._next_probe = 1
        self._timer: asyncio.TimerHandle | None = None
        self._error: BusError | None = None

    # -- transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.take_over(cast(asyncio.Transport, transport))
        self.session.join()
        identity = self.network.identity
        self.send(frames.Join(frames.VERSION, identity.customer, identity.terminal, self._nonce))

    def take_over(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)
        self._outgoing = Outgoing(transport)
        keep_alive(transport)
        self._timer = self._loop.call_later(
            self.network.max_handshake,
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
            self.linked.exception()  # whoever dialled knows; where nobody did, nobody has to
        sent, self._sent = self._sent, {}
        if was_up:
            self.network.link_down(self, error)
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
        """Silence: nobody would read a goodbye."""
        self._error = Disconnected("the link is silent")
        self._end(self._error)
        self._transport.abort()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.network.carrier.room()

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None:
        if not self.closed:
            self._outgoing.send(frame, *tail)

    def data_received(self, data: bytes | bytearray) -> None:
        try:
            events = self.session.receive_data(data)
            for frame, tail in events:
                if self.closed:
                    return
                self._received(frame, tail)
        except BusError as error:
            log.warning("link refused", peer=self.terminal, code=error.code, detail=str(error))
            self.network.refused(self, error)
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
                if self.meter.echoed(self.network.now(), number) is not None:
                    self.network.measured(self)
            case frames.States(states):
                self.network.states_received(self, states)
            case frames.Directory(body, signature):
                self.network.directory_received(body, signature)
            case frames.Join():
                self._join(frame)
            case frames.Challenge():
                self._challenge(frame)
            case frames.Prove(signature):
                self._prove(signature)
            case frames.Linked():
                self._come_up()
            case frames.Closing(code, message, hint):
                self._error = from_wire(code, message, hint)
                self._outgoing.close()
                self._end(self._error)
            case _:
                raise BadFrame(f"{type(frame).__name__} on a link")

    # -- proving -----------------------------------------------------------------------------------

    def _binding(self) -> bytes:
        """Names the channel, so that a proof can't be passed on over another one."""
        tls: Any = self._transport.get_extra_info("ssl_object")
        if tls is None:
            return b""
        if self.dialled:
            return hashlib.sha256(tls.getpeercert(binary_form=True) or b"").digest()
        return self.network.certificate_digest

    def join(self, frame: frames.Join) -> None:
        """From a connection that turned out to be a terminal's."""
        try:
            self._join(frame)
        except BusError as error:
            self.network.refused(self, error)
            self.close(error)

    def _join(self, frame: frames.Join) -> None:
        identity = self.network.identity
        # Our own customer, never the peer's word for it: the signature is over ours.
        if frame.customer != identity.customer:
            raise Unauthenticated("another customer's terminal", hint="")
        self.network.keys_of(frame.terminal)
        self.terminal = frame.terminal
        self._their_nonce = frame.nonce
        signature = link_signature(
            identity,
            "listener",
            frame.terminal,
            identity.terminal,
            frame.nonce,
            self._nonce,
            binding=self._binding(),
        )
        self.send(frames.Challenge(frames.VERSION, identity.terminal, self._nonce, signature))

    def _challenge(self, frame: frames.Challenge) -> None:
        identity = self.network.identity
        self._check_certificate()
        if frame.terminal != self.terminal or not check_link_signature(
            self.network.keys_of(self.terminal),
            "listener",
            identity.customer,
            identity.terminal,
            self.terminal,
            self._nonce,
            frame.nonce,
            frame.signature,
            binding=self._binding(),
        ):
            raise Unauthenticated("this is not the terminal that was dialled", hint="")
        signature = link_signature(
            identity,
            "dialler",
            identity.terminal,
            self.terminal,
            self._nonce,
            frame.nonce,
            binding=self._binding(),
        )
        self.send(frames.Prove(signature))

    def _prove(self, signature: bytes) -> None:
        identity = self.network.identity
        if not check_link_signature(
            self.network.keys_of(self.terminal),
            "dialler",
            identity.customer,
            self.terminal,
            identity.terminal,
            self._their_nonce,
            self._nonce,
            signature,
            binding=self._binding(),
        ):
            raise Unauthenticated("the terminal's proof is wrong", hint="")
        self._check_certificate()
        self.session.link()
        self.send(frames.Linked(self.network.max_frame))
        self._come_up()

    def _check_certificate(self) -> None:
        """TLS has checked who signed a certificate. Whose it is, is for us to check: the same customer's, and
        of the terminal that speaks."""
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        if tls is None:
            return
        certificate: Any = tls.getpeercert()
        if not certificate:
            if self.dialled:
                raise Unauthenticated("the terminal showed no certificate")
            return  # a listener asks for one and also takes clients that have none; the proof counts
        names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        wanted = f"landbridge://{self.network.identity.customer}/{self.terminal}"
        if wanted not in names and not self.network.settings.own_certificates:
            raise Unauthenticated("the certificate is another terminal's", hint="")

    def _come_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.up = True
        self.since = self.network.now()
        self.session.max_frame = self.network.max_frame
        if not self.linked.done():
            self.linked.set_result(None)
        self.network.link_up(self)
        self._probe()

    # -- probes ------------------------------------------------------------------------------------

    def _probe(self) -> None:
        if self.closed:
            return
        now = self.network.now()
        self.meter.advance(now)
        if self.meter.down:
            self.abort()
            return
        busy = self._loop.time() - self._last_parcel < BUSY_FOR
        if self.meter.next_probe(now, busy) <= now:
            self.meter.sent(now, self._next_probe)
            self.send(frames.Probe(self._next_probe))
            self._next_probe += 1
        due = min(
            self.meter.next_probe(now, busy),
            self.meter.next_deadline() or now + SECOND,
            now + int(self.network.settings.probe_busy * SECOND),
        )
        self._timer = self._loop.call_later(max(0.01, (due - now) / SECOND), self._probe)

    # -- parcels -----------------------------------------------------------------------------------

    def carry(self, parcel: Parcel, data: bytes | memoryview, fate: Fate | None = None) -> None:
        """Give it a parcel. ``fate`` hears whether the peer keeps it; without, it may get lost."""
        number = 0
        if fate is not None:
            number = self._next_number
            self._next_number += 1
            self._sent[number] = fate
        self._last_parcel = self._loop.time()
        self.send(
            frames.Carry(
                number,
                parcel.id,
                parcel.kind,
                parcel.source,
                parcel.destination,
                parcel.ttl,
                parcel.visited,
                parcel.route,
                parcel.reroutes,
            ),
            data,
        )

    def _decided(self, number: int, code: str | None) -> None:
        fate = self._sent.pop(number, None)
        if fate is not None:
            fate(code)

    def _carried(self, frame: frames.Carry, tail: memoryview) -> None:
        self.meter.heard()
        if not frame.visited or frame.visited[-1] != self.terminal:
            raise BadFrame("a parcel from somebody else than the one who sends it")
        self._last_parcel = self._loop.time()
        parcel = Parcel(
            frame.id,
            frame.kind,
            frame.source,
            frame.destination,
            frame.ttl,
            frame.visited,
            frame.route,
            frame.reroutes,
        )
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
            self._kept.append(number)
            if not self._kept_soon:
                self._kept_soon = True
                self._loop.call_soon(self._tell_kept)

        self.network.carrier.received(self, parcel, tail, decide)

    def _tell_kept(self) -> None:
        self._kept_soon = False
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
