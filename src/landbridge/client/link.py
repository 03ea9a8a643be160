"""The client's end of one connection: frames in and out, answers matched to requests. It lives until the
connection is lost; the bus makes a new one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from landbridge.client.context import Context, parse_url
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
from landbridge.protocol.session import Role, Session
from landbridge.transport.incoming import Incoming
from landbridge.transport.keepalive import keep_alive
from landbridge.transport.outgoing import Outgoing

#: Called with the answer (a frame; a Fetched with its tail, as a pair), or with what went wrong.
Answer: TypeAlias = Callable[[Any], None]
Dial: TypeAlias = Callable[["Callable[[], asyncio.Protocol]"], "Any"]

HELLO_WITHIN = 10.0
#: Seconds for the goodbye of TLS, after which the connection is cut.
CLOSE_WITHIN = 2.0


class Link(Incoming):
    def __init__(
        self, deliver: Callable[[Frame, memoryview], None], lost: Callable[[Link, BusError], None]
    ) -> None:
        super().__init__(Session(Role.CLIENT))
        #: Deliver, Lost and unasked Refused frames go there.
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
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=8 << 20)
        self._outgoing = Outgoing(self._transport)
        keep_alive(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        error = self._closing or Disconnected(f"the connection was lost{f': {exc}' if exc else ''}")
        self._closing = error
        self.session.close()
        if not self._gone.done():
            self._gone.set_result(None)
        if not self.welcome.done():
            self.welcome.set_exception(error)
        # Whoever waits hears that much; whether the bus can connect again is for the bus to say.
        lost = (
            error if isinstance(error, Disconnected) else Disconnected(f"the connection was ended: {error}")
        )
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(lost)
        self._lost(self, error)

    def data_received(self, data: bytes | bytearray) -> None:
        try:
            events = self.session.receive_data(data)
        except BusError as error:
            self.close(error if self.welcome.done() else _stranger(error, data))
            return
        for frame, tail in events:
            kind = type(frame)
            if kind is frames.Deliver or kind is frames.Lost:
                self._deliver(frame, tail)
            elif isinstance(frame, frames.Closing):
                self.close(from_wire(frame.code, frame.message, frame.hint))
                return
            elif isinstance(frame, frames.Welcome):
                self.session.max_frame = max(frame.max_frame, self.session.max_frame)
                self.welcome.set_result(frame)
            else:
                self._answered(frame, tail)

    def _answered(self, frame: Frame, tail: memoryview) -> None:
        answer = self._answers.pop(cast(Any, frame).request, None)
        if answer is not None:
            if isinstance(frame, frames.Refused):
                answer(from_wire(frame.code, frame.message, frame.hint))
            elif isinstance(frame, frames.Fetched):
                answer((frame, tail))
            else:
                answer(frame)
        elif isinstance(frame, frames.Refused):
            self._deliver(frame, tail)

    # -- asking ------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        return self._closing is None and self._transport is not None

    def request(self, answer: Answer) -> int:
        """A number for a request whose answer goes to ``answer``."""
        number = self._next_request
        self._next_request += 1
        self._answers[number] = answer
        return number

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None:
        if self._closing is None and self._outgoing is not None:
            self._outgoing.send(frame, *tail)

    async def ask(self, make: Callable[[int], Frame], *tail: bytes) -> Any:
        """Send what ``make`` makes of a request number, and wait for its answer."""
        if self._closing is not None:
            raise Disconnected(f"the connection was ended: {self._closing}")
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answer(result: Any) -> None:
            if done.done():
                return
            if isinstance(result, BusError):
                done.set_exception(result)
            else:
                done.set_result(result)

        self.send(make(self.request(answer)), *tail)
        return await done

    def close(self, error: BusError | None = None) -> None:
        if self._closing is None:
            self._closing = error or Disconnected("the connection was closed")
        if self._outgoing is not None:
            self._outgoing.close()

    async def wait_closed(self) -> None:
        """After ``close``: until the transport is gone. A loop that is closed before that loses what was not
        written yet, and with TLS uvloop fails."""
        if self._transport is not None:
            await asyncio.wait([self._gone], timeout=CLOSE_WITHIN)
            if not self._gone.done():
                self._transport.abort()
                await asyncio.wait([self._gone], timeout=CLOSE_WITHIN)


def _stranger(error: BusError, data: bytes | bytearray) -> BusError:
    """What is wrong with a peer whose first bytes are not ours."""
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


def dial_of(context: Context) -> Dial:
    """How to reach a context's terminal."""
    address = parse_url(context.url)
    tls: ssl.SSLContext | None = None
    if address.tls:
        try:
            tls = ssl.create_default_context(cafile=context.ca)
        except OSError as error:  # ssl.SSLError is one too
            raise BadContext(
                f"can't use the certificates in {context.ca}: {error.strerror or error}",
                hint="add the context again with --ca",
            ) from None
        tls.minimum_version = ssl.TLSVersion.TLSv1_3

    async def dial(factory: Callable[[], asyncio.Protocol]) -> Any:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HELLO_WITHIN):
                return await loop.create_connection(factory, address.host, address.port, ssl=tls)
        except TimeoutError:
            raise TerminalUnreachable(f"nobody answers at {context.url} within {HELLO_WITHIN} s") from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise TerminalUnreachable(
                f"no TLS with {context.url}: {reason}",
                hint="does it speak TLS there, and is its certificate one that you trust (--ca)?",
            ) from None
        except OSError as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise TerminalUnreachable(f"nobody answers at {context.url}: {reason}") from None

    return dial


async def open_link(
    dial: Dial,
    hello: frames.Hello,
    deliver: Callable[[Frame, memoryview], None],
    lost: Callable[[Link, BusError], None],
) -> tuple[Link, frames.Welcome]:
    _, protocol = await dial(lambda: Link(deliver, lost))
    link = cast(Link, protocol)
    link.send(hello)
    try:
        async with asyncio.timeout(HELLO_WITHIN):
            return link, await link.welcome
    except TimeoutError:
        link.close()
        await link.wait_closed()
        raise TerminalUnreachable("the terminal doesn't answer the hello") from None
    except BaseException:
        link.close()
        await link.wait_closed()
        raise
