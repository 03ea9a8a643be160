"""Events over TCP: a source sends numbered lines to one port, and each client on another port gets those that
are for it.

source → event port    ``sequence|type|from|to`` and LF, in any order
client → client port   its id and LF, once
       ←               the lines that are for it, unchanged, in sequence order, once

The protocol has no credentials and no acks: every peer that reaches the ports is believed, so the ports
belong on this machine, or on a network whose machines are all trusted. What happens to lines between the two
ports is a ``Dispatch``: in memory here, through topics in ``event_topics``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

import msgspec
import structlog

from landbridge.client.bus import Bus
from landbridge.core.events.exchange import Exchange, Notifications
from landbridge.core.events.parser import LONGEST_ID, LONGEST_LINE, Parsed, parse, valid_id
from landbridge.core.events.queue import Queue
from landbridge.core.events.sequencer import HOLD, Sequencer
from landbridge.core.time import SECOND
from landbridge.errors import BusError, SequenceGap, TerminalUnreachable

log = structlog.get_logger("landbridge.events")

EVENT_PORT, CLIENT_PORT = 9090, 9099
#: Lines dispatched before other tasks of the loop get a turn: some milliseconds.
TURN = 4096
#: Bytes handed to a socket at once when it becomes writable again.
REFILL = 256 << 10
#: Seconds in which a new client has to send its id.
ID_WITHIN = 10.0
#: Seconds without a byte after which a source counts as quiet, and the next one is read as well.
QUIET = 0.25
#: Seconds that closing waits until clients have read what was sent to them.
GOODBYE_WITHIN = 2.0


class EventOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every bound of the gateway. Spans are seconds."""

    #: The number that the sequence begins with.
    first: int = 1
    #: Events that may wait for a missing number, and what happens to more of them: see core.events.sequencer.
    hold: int = HOLD
    on_gap: Literal["skip", "refuse"] = "skip"
    #: Time after which a missing number is given up in any case; None: never.
    gap_within: float | None = None
    #: Whether a source that connects begins a new sequence and cuts the one before it off.
    restart: bool = False
    #: Bytes that may wait for one client; with more it is disconnected.
    queue: int = 8 << 20
    #: Bytes that may wait for all clients together; with more the source is not read.
    queues: int = 256 << 20
    #: Time that the source waits for the clients; then those farthest behind are disconnected.
    patience: float = 10.0
    most_clients: int = 10_000
    most_sources: int = 64
    #: Time between two notes of the same kind in the status log.
    note_every: float = 1.0

    def new_sequencer(self) -> Sequencer:
        """Return a sequencer with these bounds."""
        return Sequencer(self.first, hold=self.hold, on_gap=self.on_gap, gap_within=self.gap_within)


class EventTotals(msgspec.Struct):
    """Counts since the gateway was opened."""

    #: Lines that came, malformed ones included.
    lines: int = 0
    malformed: int = 0
    #: Events that were dispatched in their order.
    dispatched: int = 0
    #: Clients disconnected because they were too far behind.
    dropped: int = 0


class Dispatch(Protocol):
    """What happens to lines on their way from the source to the clients."""

    @property
    def held(self) -> int:
        """Number of lines that wait for a missing number."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def on_lines(self, source: EventSource, parsed: Parsed) -> None: ...
    def on_restart(self) -> None: ...
    def on_client(self, client: EventClient) -> None: ...
    def on_client_left(self, client: EventClient) -> None: ...
    def on_caught_up(self) -> None: ...


class EventGateway:
    """The two ports, their sources and their clients.

    ``bus``: its status log is told of what goes wrong (None: only the process's own log). ``dispatch`` makes
    the dispatch of this gateway, in memory if it is None; ``event_topics.event_gateway`` gives one that
    dispatches through topics.

    async with EventGateway(bus) as gateway:
        await gateway.listen("127.0.0.1", 9090, 9099)
    """

    def __init__(
        self,
        bus: Bus | None = None,
        *,
        dispatch: Callable[[EventGateway], Dispatch] | None = None,
        options: EventOptions | None = None,
    ) -> None:
        self.options = options or EventOptions()
        self.totals = EventTotals()
        #: In the order in which they came.
        self.sources: dict[EventSource, None] = {}
        self._turns: asyncio.TimerHandle | None = None
        #: Clients that have sent their id, by id.
        self.clients: dict[bytes, EventClient] = {}
        #: All connections on the client port.
        self.visitors: set[EventClient] = set()
        #: Clients with something in their queue.
        self.behind: set[EventClient] = set()
        self.event_port = self.client_port = 0
        self._servers: list[asyncio.Server] = []
        #: Done when the last client is gone; None until the gateway closes.
        self._all_gone: asyncio.Future[None] | None = None
        self._notes = Notes(bus, self.options.note_every)
        self.dispatch = (dispatch or MemoryDispatch)(self)

    # -- life --------------------------------------------------------------------------------------

    async def __aenter__(self) -> EventGateway:
        await self.dispatch.open()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()

    async def listen(
        self, host: str = "127.0.0.1", event_port: int = EVENT_PORT, client_port: int = CLIENT_PORT
    ) -> None:
        """Open both ports. Port 0 takes a free one, which ``self.event_port`` and ``self.client_port``
        tell."""
        # Clients first: a peer that waits for the event port to open finds both ports open.
        self.client_port = await self._serve(EventClient, host, client_port)
        self.event_port = await self._serve(EventSource, host, event_port)

    async def _serve(self, kind: type[EventClient] | type[EventSource], host: str, port: int) -> int:
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: kind(self), host, port, backlog=1024
            )
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise TerminalUnreachable(
                f"can't listen on {host}:{port}: {reason}",
                hint="if another gateway has it, stop that one; or give another port, or 0 for a free one",
            ) from None
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Close the ports and all connections."""
        for server in self._servers:
            server.close()
        if self._turns is not None:
            self._turns.cancel()
        for source in self.sources:
            source.close()
        await self.dispatch.close()
        for client in self.visitors:
            client.close()
        if self.visitors:
            # Bytes that the sockets have taken still go out, but closing doesn't wait for clients that don't
            # read.
            self._all_gone = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._all_gone], timeout=GOODBYE_WITHIN)
        for client in self.visitors:
            client.abort()
        await self._notes.close()

    # -- what sources and clients tell --------------------------------------------------------------

    def on_source(self, source: EventSource) -> bool:
        """Take a new source. False: there are too many."""
        if self.options.restart:
            for other in self.sources:
                other.close()
            self.sources.clear()
            self.dispatch.on_restart()
        elif len(self.sources) >= self.options.most_sources:
            self.note("limit_reached", 1, f"{len(self.sources)} sources are connected")
            return False
        self.sources[source] = None
        if len(self.sources) > 1:
            source.wait()
            self._give_turns()
        return True

    def on_source_left(self, source: EventSource) -> None:
        """Forget a source, and let the next one be read."""
        self.sources.pop(source, None)
        self._give_turns()

    def _give_turns(self) -> None:
        """Read a source when the older ones have ended or are quiet.

        The old connection of a source that comes back may have much unread. If the new one were read at the
        same time, its lines could run ahead by more than may wait. A connection that was lost without notice
        is quiet."""
        if self._turns is not None:
            self._turns.cancel()
            self._turns = None
        for source in self.sources:
            if source.waiting:
                source.begin()
            if not source.is_quiet:
                break
        if any(source.waiting for source in self.sources):
            self._turns = asyncio.get_running_loop().call_later(QUIET, self._give_turns)

    def on_lines(self, source: EventSource, lines: list[bytes]) -> None:
        """Take lines of a source."""
        self.totals.lines += len(lines)
        parsed = parse(lines)
        if parsed.malformed:
            self.on_malformed(parsed.malformed)
        if parsed.lines:
            self.dispatch.on_lines(source, parsed)

    def on_malformed(self, lines: list[bytes]) -> None:
        """Count and note lines that are no events."""
        self.totals.malformed += len(lines)
        self.note("bad_event", len(lines), f"e.g. {lines[0][:LONGEST_LINE]!r}")

    def on_client(self, client: EventClient) -> None:
        """Take a client that has sent its id. It replaces an older connection with the same id, which the
        client must have lost."""
        older = self.clients.get(client.id)
        if older is not None:
            self.on_client_left(older)
            older.close()
        self.clients[client.id] = client
        self.dispatch.on_client(client)

    def on_client_left(self, client: EventClient) -> None:
        """Forget a client."""
        self.visitors.discard(client)
        self.behind.discard(client)
        if self.clients.get(client.id) is client:
            del self.clients[client.id]
            self.dispatch.on_client_left(client)
        self.dispatch.on_caught_up()
        if self._all_gone is not None and not self.visitors and not self._all_gone.done():
            self._all_gone.set_result(None)

    def drop(self, client: EventClient, why: str) -> None:
        """Disconnect a client that is too far behind."""
        self.totals.dropped += 1
        self.note("slow_client", 1, f"client {client.id.decode()}: {why}")
        self.on_client_left(client)
        client.abort()

    def note(self, cause: str, count: int, detail: str) -> None:
        """Tell the log and the status log of something that went wrong ``count`` times."""
        self._notes.add(cause, count, detail)


class Notes:
    """What goes wrong, told to the log and to the terminal's status log: once a second for each kind, with a
    count, so that a broken source can't fill a disk."""

    def __init__(self, bus: Bus | None, every: float) -> None:
        self._bus = bus
        self._every = every
        #: Cause → (count, an example), since they were told last.
        self._waiting: dict[str, tuple[int, str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None

    def add(self, cause: str, count: int, detail: str) -> None:
        """Count something that went wrong; it is told within ``every`` seconds."""
        before, example = self._waiting.get(cause, (0, detail))
        self._waiting[cause] = (before + count, example)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._tell_soon)

    def _tell_soon(self) -> None:
        self._timer = None
        if self._telling is not None and not self._telling.done():
            # The bus still waits for its terminal: go on counting.
            self._timer = asyncio.get_running_loop().call_later(self._every, self._tell_soon)
            return
        self._telling = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for cause, (count, detail) in waiting.items():
            log.warning(cause, count=count, detail=detail)
            if self._bus is not None:
                try:
                    await self._bus.status.note(cause, detail, messages=count)
                except BusError as error:
                    log.warning("note refused", cause=cause, why=str(error), hint=error.hint)

    async def close(self) -> None:
        """Tell what is left."""
        if self._timer is not None:
            self._timer.cancel()
        if self._telling is not None:
            await asyncio.wait([self._telling], timeout=1.0)
            self._telling.cancel()
        try:
            async with asyncio.timeout(1.0):
                await self._tell()
        except TimeoutError:
            pass  # our own log has it


class EventSource(asyncio.Protocol):
    """A connection on the event port."""

    def __init__(self, gateway: EventGateway) -> None:
        self._gateway = gateway
        self._transport: asyncio.Transport
        #: The beginning of a line whose end has not come.
        self._rest = b""
        #: Within a line that is too long to be kept: everything up to the next LF is dropped.
        self._overlong = False
        #: ``waiting``: older sources are read first. ``_held_up``: the dispatch can't take more. The source
        #: is read if neither is true.
        self.waiting = self._held_up = False
        self._reading = True
        self._loop = asyncio.get_running_loop()
        #: When it last sent something, by the loop's clock.
        self._heard_at = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._gateway.on_source(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if self._rest:
            data = self._rest + data
        lines = data.split(b"\n")
        self._rest = lines.pop()
        if self._overlong and lines:
            self._overlong = False
            del lines[0]
        if len(self._rest) > LONGEST_LINE + 1:
            if not self._overlong:
                self._gateway.totals.lines += 1
                self._gateway.on_malformed([self._rest])
            self._rest, self._overlong = b"", True
        elif self._overlong:
            self._rest = b""
        if b"\r" in data:  # typed by hand, through telnet: LF alone ends the lines that clients get
            lines = [line.removesuffix(b"\r") for line in lines]
        if lines:
            self._gateway.on_lines(self, lines)

    def connection_lost(self, error: Exception | None) -> None:
        self._gateway.on_source_left(self)
        if self._rest:
            # ``12|P|3|4`` may be the beginning of ``12|P|3|45``, so it can't be used. The source sends it
            # again.
            self._gateway.totals.lines += 1
            self._gateway.on_malformed([self._rest])

    @property
    def is_quiet(self) -> bool:
        """Has it sent nothing for a while, although it is read?"""
        return self._reading and self._loop.time() - self._heard_at >= QUIET

    def wait(self) -> None:
        """Don't read it until ``begin``."""
        self.waiting = True
        self._read_or_not()

    def begin(self) -> None:
        """Its turn has come."""
        self.waiting = False
        self._heard_at = self._loop.time()
        self._read_or_not()

    def pause(self) -> None:
        """Don't read it until ``resume``: the dispatch can't take more."""
        self._held_up = True
        self._read_or_not()

    def resume(self) -> None:
        """The dispatch can take more."""
        if self._held_up:
            self._held_up = False
            self._heard_at = self._loop.time()
            self._read_or_not()

    def _read_or_not(self) -> None:
        wanted = not self.waiting and not self._held_up
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            self._transport.resume_reading() if wanted else self._transport.pause_reading()

    def close(self) -> None:
        self._transport.close()


class EventClient(asyncio.Protocol):
    """A connection on the client port."""

    def __init__(self, gateway: EventGateway) -> None:
        self._gateway = gateway
        self._transport: asyncio.Transport
        #: b"" until it has sent its id.
        self.id = b""
        self.queue = Queue(gateway.options.queue)
        #: Whether the socket takes more. If so, the queue is empty.
        self._writable = True
        self._said = b""
        self._patience: asyncio.TimerHandle | None = None
        #: Done when everything is with the socket; None while nobody waits for that.
        self._drained: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        visitors = self._gateway.visitors
        if len(visitors) >= self._gateway.options.most_clients:
            self._gateway.note("limit_reached", 1, f"{len(visitors)} clients are connected")
            self._transport.abort()
            return
        visitors.add(self)
        self._patience = asyncio.get_running_loop().call_later(ID_WITHIN, self.abort)

    def data_received(self, data: bytes) -> None:
        if self.id or self._transport.is_closing():
            return  # clients send nothing after their id
        self._said += data[: LONGEST_ID + 3]
        name, ended, _ = self._said.partition(b"\n")
        name = name.removesuffix(b"\r")
        if ended and valid_id(name):
            if self._patience is not None:
                self._patience.cancel()
            self.id, self._said = name, b""
            self._gateway.on_client(self)
        elif ended or len(self._said) > LONGEST_ID + 2:
            self._gateway.note("bad_client", 1, f"not an id: {self._said[:LONGEST_ID]!r}")
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._gateway.on_client_left(self)
        self._wake()

    def write(self, text: bytes) -> None:
        """Send whole lines. Never waits: what the socket doesn't take goes to the queue."""
        if self._writable:
            if not self._transport.is_closing():
                self._transport.write(text)
        elif self.queue.put(text):
            self._gateway.behind.add(self)
        elif not self._transport.is_closing():
            self._gateway.drop(self, f"more than {self.queue.most} bytes behind")

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        while self.queue and self._writable:
            self._transport.writelines(self.queue.take(REFILL))
        if self._writable:
            self._gateway.behind.discard(self)
            self._wake()
        self._gateway.dispatch.on_caught_up()

    async def drained(self) -> None:
        """Wait until the socket has taken everything, or is gone."""
        if not self._writable and not self._transport.is_closing():
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _wake(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def keep_nothing(self) -> None:
        """Let ``drained`` mean from now on that the operating system has taken everything."""
        self._transport.set_write_buffer_limits(0)

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


class MemoryDispatch:
    """Sequencer and exchange in this process: nothing waits for a disk, and nothing survives the process."""

    def __init__(self, gateway: EventGateway) -> None:
        self._gateway = gateway
        self._options = gateway.options
        self.sequencer = self._options.new_sequencer()
        self.exchange = Exchange()
        #: Events in order, not yet dispatched, in parts for one turn of the loop each.
        self._ready: deque[list[bytes]] = deque()
        self._turn_soon = False
        #: Whether the clients together are too far behind: until they have caught up, nothing is dispatched.
        self._overloaded = False
        self._patience: asyncio.TimerHandle | None = None
        self._gap_timer: asyncio.TimerHandle | None = None

    @property
    def held(self) -> int:
        return len(self.sequencer.held)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        for timer in (self._patience, self._gap_timer):
            if timer is not None:
                timer.cancel()
        self._ready.clear()

    # -- from the source ---------------------------------------------------------------------------

    def on_restart(self) -> None:
        self.sequencer = self._options.new_sequencer()

    def on_lines(self, source: EventSource, parsed: Parsed) -> None:
        skipped = self.sequencer.skipped
        try:
            released = self.sequencer.offer(now(), parsed.numbers, parsed.lines)
        except SequenceGap as gap:
            self._gateway.note(gap.code, len(parsed.lines), str(gap))
            source.close()
            return
        self._put(released, skipped)

    def _put(self, released: list[bytes], skipped: int) -> None:
        if self.sequencer.skipped > skipped:
            count = self.sequencer.skipped - skipped
            self._gateway.note(SequenceGap.code, count, f"numbers given up before {self.sequencer.next}")
        for at in range(0, len(released), TURN):
            self._ready.append(released[at : at + TURN])
        self._watch_gaps()
        if not self._turn_soon:
            self._turn()

    def _watch_gaps(self) -> None:
        deadline = self.sequencer.next_deadline()
        if deadline is not None and self._gap_timer is None:
            loop = asyncio.get_running_loop()
            self._gap_timer = loop.call_later(max(0.0, (deadline - now()) / SECOND), self._gaps_due)

    def _gaps_due(self) -> None:
        self._gap_timer = None
        skipped = self.sequencer.skipped
        self._put(self.sequencer.advance(now()), skipped)

    # -- to the clients ----------------------------------------------------------------------------

    def _turn(self) -> None:
        """Dispatch one part. While there are more parts, or the clients are too far behind, no source is
        read."""
        self._turn_soon = False
        if self._ready and not self._overloaded:
            lines = self._ready.popleft()
            notifications = self.exchange.dispatch(lines)
            self._gateway.totals.dispatched += len(lines)
            if notifications.malformed:
                self._gateway.on_malformed(notifications.malformed)
            self._send(notifications)
            if self._gateway.behind and self._behind() > self._options.queues:
                self._overloaded = True
                self._wait_for_clients()
        if self._ready and not self._overloaded:
            self._turn_soon = True
            asyncio.get_running_loop().call_soon(self._turn)
        for source in self._gateway.sources:
            if self._ready or self._overloaded:
                source.pause()
            else:
                source.resume()

    def _send(self, notifications: Notifications) -> None:
        clients, apart, everyone = self._gateway.clients, notifications.apart, notifications.everyone
        if everyone:
            # A copy, because a client that is too far behind is removed by ``write``.
            for name, client in list(clients.items()):
                client.write(apart.get(name, everyone))
        else:
            for name, text in apart.items():
                clients[name].write(text)

    def _behind(self) -> int:
        return sum(client.queue.size for client in self._gateway.behind)

    def _wait_for_clients(self) -> None:
        self._patience = asyncio.get_running_loop().call_later(self._options.patience, self._drop_slowest)

    def _drop_slowest(self) -> None:
        """Disconnect the clients that are farthest behind: they hold up all the others."""
        excess = self._behind() - self._options.queues // 2
        for client in sorted(self._gateway.behind, key=lambda each: each.queue.size, reverse=True):
            if excess > 0:
                excess -= client.queue.size
                # The last drop lets the dispatch go on.
                self._gateway.drop(client, "farthest behind while the source waited")

    def on_client(self, client: EventClient) -> None:
        self.exchange.join(client.id)

    def on_client_left(self, client: EventClient) -> None:
        self.exchange.leave(client.id)

    def on_caught_up(self) -> None:
        if self._overloaded and self._behind() <= self._options.queues // 2:
            self._overloaded = False
            if self._patience is not None:
                self._patience.cancel()
            if not self._turn_soon:
                self._turn()


def now() -> int:
    """The wall clock, in microseconds."""
    return time.time_ns() // 1000
