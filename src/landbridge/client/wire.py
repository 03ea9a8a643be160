"""The client's end of one connection: frames in and out, answers matched to requests. A wire lives until the
connection is lost; then the line makes a new one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, cast

from landbridge.client.context import Address, Context, parse_url, parse_urls
from landbridge.client.node_wires import NodeWires
from landbridge.errors import (
    BadContext,
    BadFrame,
    BusError,
    Disconnected,
    TerminalUnreachable,
    WrongVersion,
    from_wire,
)
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.session import Event, Role, Session
from landbridge.transport.incoming import Incoming
from landbridge.transport.keepalive import keep_alive
from landbridge.transport.outgoing import Outgoing, gathering

#: Called with the answer (a frame; for a Fetched, the pair of frame and tail), or with the error.
Answer: TypeAlias = Callable[[Any], None]
#: Connects a protocol that the given function makes, and returns the pair of transport and protocol.
Dial: TypeAlias = Callable[["Callable[[], asyncio.Protocol]"], "Any"]

#: Frames that go to a subscription.
_FOR_SUBSCRIPTIONS = frozenset({frames.Deliver, frames.Lost, frames.Requested, frames.Paused})
#: Seconds for a connection to be made, and for the terminal to answer the hello.
HELLO_WITHIN = 10.0
#: The same for a node of a terminal where there are others to go to.
OTHERS_WITHIN = 3.0
#: Seconds for the goodbye of TLS, after which the connection is cut.
CLOSE_WITHIN = 2.0


class Wire(Incoming):
    """One connection to a terminal."""

    def __init__(
        self,
        deliver: Callable[[Frame, memoryview], None],
        lost: Callable[[Wire, BusError], None],
        first: Wire | None = None,
    ) -> None:
        """``first``: the connection that this one is a part of (``NodeWires``)."""
        super().__init__(Session(Role.CLIENT))
        self._first = first
        #: The connections to other nodes that are a part of this one; None where the terminal has one node.
        self.nodes: NodeWires | None = None
        #: Gets Deliver, Requested, Lost and Paused frames, and Refused frames that answer no request.
        self._deliver = deliver
        self._lost = lost
        self._answers: dict[int, Answer] = {}
        self._next_request = 1
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self.welcome: asyncio.Future[frames.Welcome] = asyncio.get_running_loop().create_future()
        self.writable = True
        self._closing: BusError | None = None
        #: Done when the transport is gone.
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=8 << 20)
        self._outgoing = Outgoing(self._transport)
        keep_alive(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: fail what waits, and tell the line."""
        error = self._closing or Disconnected(f"the connection was lost{f': {exc}' if exc else ''}")
        self._closing = error
        self.session.close()
        if not self._gone.done():
            self._gone.set_result(None)
        if not self.welcome.done():
            self.welcome.set_exception(error)
            self.welcome.exception()  # whoever has dialled may have given up meanwhile
        # Requests without an answer are told that the connection is gone. Whether the bus can connect again
        # is decided by the line.
        lost = error
        if not isinstance(error, Disconnected):
            lost = Disconnected(f"the connection was ended: {error}")
        if self._first is not None and self._first.open:
            self._first.cut(lost)
        if self.nodes is not None:
            self.nodes.close(lost)
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(lost)
        self._lost(self, error)

    def data_received(self, data: bytes | bytearray) -> None:
        """Decode frames, and hand them to whoever waits for them."""
        try:
            events = self.session.receive_data(data)
        except BusError as error:
            self.close(error if self.welcome.done() else _stranger(error, data))
            return
        with gathering:
            self._take(events)

    def _take(self, events: list[Event]) -> None:
        for frame, tail in events:
            kind = type(frame)
            if kind in _FOR_SUBSCRIPTIONS:
                self._deliver(frame, tail)
            elif kind is frames.Replied:
                self._replied(cast(frames.Replied, frame), tail)
            elif kind is frames.Stored or kind is frames.Done:
                self._answered(frame, tail)
            elif isinstance(frame, frames.Closing):
                self.close(from_wire(frame.code, frame.message, frame.hint))
                return
            elif isinstance(frame, frames.Welcome):
                self.session.max_frame = max(frame.max_frame, self.session.max_frame)
                if not self.welcome.done():  # whoever has dialled may have given up meanwhile
                    self.welcome.set_result(frame)
            else:
                self._answered(frame, tail)

    def _answered(self, frame: Frame, tail: memoryview) -> None:
        if self._first is not None:
            self._first._answered(frame, tail)
            return
        answer = self._answers.pop(cast(Any, frame).request, None)
        if answer is not None:
            if isinstance(frame, frames.Refused):
                answer(from_wire(frame.code, frame.message, frame.hint, frame.details))
            elif isinstance(frame, frames.Fetched):
                answer((frame, tail))
            else:
                answer(frame)
        elif isinstance(frame, frames.Refused):
            self._deliver(frame, tail)

    def _replied(self, frame: frames.Replied, tail: memoryview) -> None:
        if self._first is not None:
            self._first._replied(frame, tail)
            return
        answers = self._answers
        answer = answers.pop(frame.request, None) if frame.last else answers.get(frame.request)
        if answer is not None:
            answer((frame, tail))

    # -- asking ------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Can frames be sent?"""
        return self._closing is None and self._transport is not None

    def request(self, answer: Answer) -> int:
        """A number for a request. ``answer`` will be called once, with its answer or an error."""
        if self._first is not None:
            return self._first.request(answer)
        number = self._next_request
        self._next_request += 1
        self._answers[number] = answer
        return number

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None:
        """Send a frame; nothing happens if the connection is gone. Where it is the only request without an
        answer, others are not likely to follow at once, and it doesn't wait for them."""
        if self.nodes is not None:
            if isinstance(frame, frames.Transact):
                frame = self.nodes.divided(frame)
            if (wire := self.nodes.of(frame)) is not self:
                wire.send(frame, *tail)
                return
        if self._closing is None and self._outgoing is not None:
            if len(self._answers) > 1:
                self._outgoing.send(frame, *tail)
            else:
                self._outgoing.send_now(frame, *tail)

    def answer(self, frame: frames.SendReply, tail: bytes, *, others: bool) -> None:
        """Send a reply. ``others``: more of them are likely to follow at once."""
        if self.nodes is not None and (wire := self.nodes.of(frame)) is not self:
            wire.answer(frame, tail, others=others)
            return
        if self._closing is None and self._outgoing is not None:
            if others or gathering.depth:
                self._outgoing.send(frame, tail)
            else:
                self._outgoing.send_now(frame, tail)

    def give_up(self, number: int) -> None:
        """Nobody waits for the answer to a request any more."""
        if self._first is not None:
            self._first.give_up(number)
        self._answers.pop(number, None)

    async def ask(self, make: Callable[[int], Frame], *tail: bytes) -> Any:
        """Send a request and return its answer. ``make`` makes the frame from the request's number."""
        if self._closing is not None:
            raise Disconnected(f"the connection was ended: {self._closing}")
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = self.request(partial(end_future, done))
        try:
            self.send(make(number), *tail)
        except BaseException:  # too large to be sent: nobody will answer
            self.give_up(number)
            raise
        return await done

    def close(self, error: BusError | None = None) -> None:
        """Write what was sent, and disconnect. ``error``: the reason, for those who wait."""
        if self._closing is None:
            self._closing = error or Disconnected("the connection was closed")
        if self._outgoing is not None:
            self._outgoing.close()
        if self.nodes is not None:
            self.nodes.close(self._closing)

    def cut(self, error: BusError) -> None:
        """End the connection at once: nobody is there who would read what was sent."""
        if self._closing is None:
            self._closing = error
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """After ``close``, wait until the transport is gone. A loop that is closed before that loses what was
        not written yet, and with TLS uvloop fails."""
        if self.nodes is not None:
            await self.nodes.wait_closed()
        if self._transport is not None:
            await asyncio.wait([self._gone], timeout=CLOSE_WITHIN)
            if not self._gone.done():
                self._transport.abort()
                await asyncio.wait([self._gone], timeout=CLOSE_WITHIN)


def end_future(done: asyncio.Future[Any], result: Any) -> None:
    """End a future with an answer or an error, unless whoever waited for it has given up."""
    if done.done():
        return
    if isinstance(result, BusError):
        done.set_exception(result)
    else:
        done.set_result(result)


def _stranger(error: BusError, data: bytes | bytearray) -> BusError:
    """The error for a peer whose first bytes are not of our protocol."""
    if isinstance(error, WrongVersion):
        return error
    if data[:2] in (b"\x15\x03", b"\x16\x03"):  # an alert or a handshake of TLS, of any version
        return BadFrame(
            "not a Landbridge terminal, or one that wants TLS", hint="use lbs:// instead of lb://"
        )
    said = data[:40].split(b"\r\n")[0].decode("ascii", errors="replace")
    hint = "that is a port for HTTP; a terminal's own is 7420 by default" if said.startswith("HTTP/") else ""
    return BadFrame(
        f"not a Landbridge terminal: it answers {said!r}", hint=hint or "check the address and the port"
    )


class ContextDial:
    """Connects to a context's terminal. Where that has several nodes, to one of them: the first that
    answers."""

    def __init__(self, context: Context) -> None:
        self.addresses = parse_urls(context.url)
        #: Those that the context has. They stay known, whatever a node says of the others.
        self._given = list(self.addresses)
        self._tls: ssl.SSLContext | None = None
        if any(address.tls for address in self.addresses):
            try:
                self._tls = ssl.create_default_context(cafile=context.ca)
            except OSError as error:  # ssl.SSLError is one too
                raise BadContext(
                    f"can't use the certificates in {context.ca}: {error.strerror or error}",
                    hint="add the context again with --ca",
                ) from None
            self._tls.minimum_version = ssl.TLSVersion.TLSv1_3

    @property
    def has_others(self) -> bool:
        """Is there another node to go to?"""
        return len(self.addresses) > 1

    def learn(self, urls: Sequence[str]) -> None:
        """A node has said which nodes there are. The one that is in use stays the first."""
        found = []
        for url in urls:
            with suppress(BadContext):  # one that this machine must not go to
                found.append(parse_url(url))
        if found:
            wanted = [address for address in found if not address.tls or self._tls is not None]
            known = dict.fromkeys((*self.addresses[:1], *wanted, *self._given))
            self.addresses = list(known)

    def move_on(self) -> None:
        """The node in use is gone, or of no use: take another one first."""
        self.addresses.append(self.addresses.pop(0))

    async def __call__(self, factory: Callable[[], asyncio.Protocol]) -> Any:
        for address in list(self.addresses[:-1]):
            try:
                return await self._to(address, factory, OTHERS_WITHIN)
            except TerminalUnreachable:
                if self.addresses[0] == address:
                    self.move_on()
        return await self._to(self.addresses[0], factory, HELLO_WITHIN)

    def to(self, url: str) -> Dial:
        """The function that connects to the node at a URL. BadContext for one that this machine must not go
        to."""
        address = parse_url(url)
        if address.tls and self._tls is None:
            raise BadContext(f"no certificates for {url}")
        return lambda factory: self._to(address, factory, OTHERS_WITHIN)

    async def _to(self, address: Address, factory: Callable[[], asyncio.Protocol], within: float) -> Any:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within):
                tls = self._tls if address.tls else None
                return await loop.create_connection(factory, address.host, address.port, ssl=tls)
        except TimeoutError:
            raise TerminalUnreachable(f"nobody answers at {address} within {within:g} s") from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise TerminalUnreachable(
                f"no TLS with {address}: {reason}",
                hint="does it speak TLS there, and is its certificate one that you trust (--ca)?",
            ) from None
        except OSError as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise TerminalUnreachable(f"nobody answers at {address}: {reason}") from None


def dial_of(context: Context) -> ContextDial:
    """The function that connects to a context's terminal."""
    return ContextDial(context)


async def open_wire(
    dial: Dial,
    hello: frames.Hello,
    deliver: Callable[[Frame, memoryview], None],
    lost: Callable[[Wire, BusError], None],
    first: Wire | None = None,
) -> tuple[Wire, frames.Welcome]:
    """Connect, say hello and wait for the welcome. ``first``: as for the wire."""
    _, protocol = await dial(lambda: Wire(deliver, lost, first))
    wire = cast(Wire, protocol)
    wire.send(hello)
    try:
        async with asyncio.timeout(HELLO_WITHIN):
            return wire, await wire.welcome
    except BaseException as error:
        wire.close()
        await wire.wait_closed()
        if isinstance(error, TimeoutError):
            raise TerminalUnreachable("the terminal doesn't answer the hello") from None
        raise
