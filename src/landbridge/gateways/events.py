"""Events over TCP: a source sends numbered lines to one port, clients on another are told what is for them.

source → event port    ``sequence|type|from|to`` and LF, in any order
client → client port   its id and LF, once
       ←               the lines that are for it, unchanged, in sequence order, once

The protocol has no credentials and no acks: whoever reaches the ports is believed, so they belong on this
machine, or on a network where everybody may. What happens between the two ports is a ``Dispatch``: in memory
here, through topics in ``event_topics``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Literal, Protocol, cast

import msgspec
import structlog

from landbridge.client.bus import Bus
from landbridge.core.events.exchange import Exchange, Notifications
from landbridge.core.events.parser import LONGEST_ID, LONGEST_LINE, Parsed, parse, valid_id
from landbridge.core.events.queue import Queue
from landbridge.core.events.sequencer import HOLD, SECOND, Sequencer
from landbridge.errors import BusError, SequenceGap, TerminalUnreachable

log = structlog.get_logger("landbridge.events")

EVENT_PORT, CLIENT_PORT = 9090, 9099
#: Lines dispatched before the loop gets a turn: some milliseconds.
TURN = 4096
#: Bytes handed to a socket at once when it takes more again.
REFILL = 256 << 10
#: Seconds that a new client has to say who it is.
ID_WITHIN = 10.0
#: Seconds without a byte after which the next source is read as well.
QUIET = 0.25
#: Seconds that closing waits for what clients have not yet read.
GOODBYE_WITHIN = 2.0


class EventOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every bound of the gateway."""

    #: The number that the sequence begins with.
    first: int = 1
    #: Events that may wait for a missing number, and what happens when more do: see core.sequencer.
    hold: int = HOLD
    on_gap: Literal["skip", "refuse"] = "skip"
    #: Seconds after which a missing number is given up in any case; None: never.
    gap_within: float | None = None
    #: A source that connects begins a new sequence; the one before it is cut off.
    restart: bool = False
    #: Bytes that one client may be behind; then it is disconnected.
    queue: int = 8 << 20
    #: Bytes that all of them may be behind together; then the source waits.
    queues: int = 256 << 20
    #: Seconds that the source waits for them; then the one that is farthest behind is disconnected.
    patience: float = 10.0
    most_clients: int = 10_000
    most_sources: int = 64
    #: Seconds between two notes of the same kind in the status log.
    note_every: float = 1.0


class Totals(msgspec.Struct):
    """Since the gateway was opened."""

    #: Lines that came, whatever they were.
    lines: int = 0
    malformed: int = 0
    #: Events that had their turn.
    dispatched: int = 0
    #: Clients disconnected because they were too far behind.
    dropped: int = 0


class Dispatch(Protocol):
    """What happens to lines on their way from the source to the clients."""

    @property
    def held(self) -> int:
        """How many lines wait for a number that is missing."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def received(self, source: Source, parsed: Parsed) -> None: ...
    def restarted(self) -> None: ...
    def joined(self, client: Client) -> None: ...
    def left(self, client: Client) -> None: ...
    def caught_up(self) -> None: ...


class EventGateway:
    """``bus``: where what goes wrong is told (None: only in the log). ``topic``: lines and notifications go
    through topics of this name; then there has to be a bus.

    async with EventGateway(bus) as gateway:
        await gateway.listen("127.0.0.1", 9090, 9099)
    """

    def __init__(
        self, bus: Bus | None = None, *, topic: str | None = None, options: EventOptions | None = None
    ) -> None:
        self.options = options or EventOptions()
        self.totals = Totals()
        #: In the order in which they came.
        self.sources: dict[Source, None] = {}
        self._turns: asyncio.TimerHandle | None = None
        #: Those that have said who they are, by id.
        self.clients: dict[bytes, Client] = {}
        #: All connections on the client port.
        self.visitors: set[Client] = set()
        #: Clients with something in their queue.
        self.behind: set[Client] = set()
        self.event_port = self.client_port = 0
        self._servers: list[asyncio.Server] = []
        #: Done when the last client is gone; None until the gateway closes.
        self._all_gone: asyncio.Future[None] | None = None
        self._notes = Notes(bus, self.options.note_every)
        self.dispatch: Dispatch
        if topic is None:
            self.dispatch = MemoryDispatch(self)
        else:
            from landbridge.gateways.event_topics import TopicDispatch

            assert bus is not None, "topics need a bus"
            self.dispatch = TopicDispatch(self, bus, topic)

    # -- life --------------------------------------------------------------------------------------

    async def __aenter__(self) -> EventGateway:
        await self.dispatch.open()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()

    async def listen(
        self, host: str = "127.0.0.1", event_port: int = EVENT_PORT, client_port: int = CLIENT_PORT
    ) -> None:
        """Port 0 takes a free one; ``event_port`` and ``client_port`` say which."""
        # Clients first: whoever waits for the event port to open finds everything there.
        self.client_port = await self._serve(Client, host, client_port)
        self.event_port = await self._serve(Source, host, event_port)

    async def _serve(self, kind: type[Client] | type[Source], host: str, port: int) -> int:
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
            # What is with their sockets still goes out, but nobody waits for those who don't read.
            self._all_gone = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._all_gone], timeout=GOODBYE_WITHIN)
        for client in self.visitors:
            client.abort()
        await self._notes.close()

    # -- what sources and clients tell --------------------------------------------------------------

    def source_joined(self, source: Source) -> bool:
        if self.options.restart:
            for other in self.sources:
                other.close()
            self.sources.clear()
            self.dispatch.restarted()
        elif len(self.sources) >= self.options.most_sources:
            self.note("limit_reached", 1, f"{len(self.sources)} sources are connected")
            return False
        self.sources[source] = None
        if len(self.sources) > 1:
            source.wait()
            self._give_turns()
        return True

    def source_left(self, source: Source) -> None:
        self.sources.pop(source, None)
        self._give_turns()

    def _give_turns(self) -> None:
        """A source that comes back may find its old connection with much unread. Read in any order, the new
        one would run ahead by more than may wait: so it is read when the older ones have ended, or are quiet.
        One that was lost without a word is quiet."""
        if self._turns is not None:
            self._turns.cancel()
            self._turns = None
        for source in self.sources:
            if source.waiting:
                source.begin()
            if not source.quiet:
                break
        if any(source.waiting for source in self.sources):
            self._turns = asyncio.get_running_loop().call_later(QUIET, self._give_turns)

    def received(self, source: Source, lines: list[bytes]) -> None:
        self.totals.lines += len(lines)
        parsed = parse(lines)
        if parsed.malformed:
            self.malformed(parsed.malformed)
        if parsed.lines:
            self.dispatch.received(source, parsed)

    def malformed(self, lines: list[bytes]) -> None:
        self.totals.malformed += len(lines)
        self.note("bad_event", len(lines), f"e.g. {lines[0][:LONGEST_LINE]!r}")

    def joined(self, client: Client) -> None:
        """It has said who it is. An older connection of that name is one that its client has lost."""
        older = self.clients.get(client.id)
        if older is not None:
            self.left(older)
            older.close()
        self.clients[client.id] = client
        self.dispatch.joined(client)

    def left(self, client: Client) -> None:
        self.visitors.discard(client)
        self.behind.discard(client)
        if self.clients.get(client.id) is client:
            del self.clients[client.id]
            self.dispatch.left(client)
        self.dispatch.caught_up()
        if self._all_gone is not None and not self.visitors and not self._all_gone.done():
            self._all_gone.set_result(None)

    def drop(self, client: Client, why: str) -> None:
        self.totals.dropped += 1
        self.note("slow_client", 1, f"client {client.id.decode()}: {why}")
        self.left(client)
        client.abort()

    def note(self, cause: str, count: int, detail: str) -> None:
        self._notes.add(cause, count, detail)


class Notes:
    """What goes wrong, told in the log and in the terminal's status log: once a second for each kind, with a
    count, so that a source gone mad doesn't fill a disk."""

    def __init__(self, bus: Bus | None, every: float) -> None:
        self._bus = bus
        self._every = every
        #: Cause → (how often, an example), since the last telling.
        self._waiting: dict[str, tuple[int, str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None

    def add(self, cause: str, count: int, detail: str) -> None:
        before, example = self._waiting.get(cause, (0, detail))
        self._waiting[cause] = (before + count, example)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._tell_soon)

    def _tell_soon(self) -> None:
        self._timer = None
        if self._telling is not None and not self._telling.done():
            # The terminal is away, and the bus waits for it: go on counting.
            self._timer = asyncio.get_running_loop().call_later(self._every, self._tell_soon)
            return
        self._telling = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for cause, (count, detail) in waiting.items():
            log.warning(cause, count=count, detail=detail)
            if self._bus is not None:
                try:
                    await self._bus.call("status.note", cause=cause, detail=detail, messages=count)
                except BusError as error:
                    log.warning("note refused", cause=cause, why=str(error), hint=error.hint)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._telling is not None:
            await asyncio.wait([self._telling], timeout=1.0)
            self._telling.cancel()
        try:
            async with asyncio.timeout(1.0):
                await self._tell()
        except TimeoutError:
            pass  # it is in our own log


class Source(asyncio.Protocol):
    """A connection on the event port."""

    def __init__(self, gateway: EventGateway) -> None:
        self._gateway = gateway
        self._transport: asyncio.Transport
        #: The beginning of a line whose end has not come.
        self._rest = b""
        #: In a line that is too long to be kept: everything up to the next LF belongs to it.
        self._overlong = False
        #: Its turn has not come. The dispatch can't take more. Read if neither.
        self.waiting = self._held_up = False
        self._reading = True
        #: When it last sent something, by the loop's clock.
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._gateway.source_joined(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
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
                self._gateway.malformed([self._rest])
            self._rest, self._overlong = b"", True
        elif self._overlong:
            self._rest = b""
        if b"\r" in data:  # typed by hand, through telnet: LF alone ends the lines that clients get
            lines = [line.removesuffix(b"\r") for line in lines]
        if lines:
            self._gateway.received(self, lines)

    def connection_lost(self, error: Exception | None) -> None:
        self._gateway.source_left(self)
        if self._rest:
            # Perhaps ``12|P|3|45`` was cut to ``12|P|3|4``: not for us to guess. The source sends it again.
            self._gateway.totals.lines += 1
            self._gateway.malformed([self._rest])

    @property
    def quiet(self) -> bool:
        """It could send, and doesn't."""
        return self._reading and self._loop.time() - self._heard >= QUIET

    def wait(self) -> None:
        self.waiting = True
        self._read_or_not()

    def begin(self) -> None:
        self.waiting = False
        self._heard = self._loop.time()
        self._read_or_not()

    def pause(self) -> None:
        self._held_up = True
        self._read_or_not()

    def resume(self) -> None:
        if self._held_up:
            self._held_up = False
            self._heard = self._loop.time()
            self._read_or_not()

    def _read_or_not(self) -> None:
        wanted = not self.waiting and not self._held_up
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            self._transport.resume_reading() if wanted else self._transport.pause_reading()

    def close(self) -> None:
        self._transport.close()


class Client(asyncio.Protocol):
    """A connection on the client port."""

    def __init__(self, gateway: EventGateway) -> None:
        self._gateway = gateway
        self._transport: asyncio.Transport
        #: b"" until it has said who it is.
        self.id = b""
        self.queue = Queue(gateway.options.queue)
        #: The socket takes more. If so, the queue is empty.
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
            return  # nothing more is expected; whatever it is, it is dropped
        self._said += data[: LONGEST_ID + 3]
        name, ended, _ = self._said.partition(b"\n")
        name = name.removesuffix(b"\r")
        if ended and valid_id(name):
            if self._patience is not None:
                self._patience.cancel()
            self.id, self._said = name, b""
            self._gateway.joined(self)
        elif ended or len(self._said) > LONGEST_ID + 2:
            self._gateway.note("bad_client", 1, f"not an id: {self._said[:LONGEST_ID]!r}")
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._gateway.left(self)
        self._wake()

    def write(self, text: bytes) -> None:
        """Whole lines. Never waits: what the socket doesn't take goes to the queue."""
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
        self._gateway.dispatch.caught_up()

    async def drained(self) -> None:
        """Wait until the socket has taken everything, or is gone."""
        if not self._writable and not self._transport.is_closing():
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _wake(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def keep_nothing(self) -> None:
        """From now on, drained means that all of it is with the system."""
        self._transport.set_write_buffer_limits(0)

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


class MemoryDispatch:
    """Sequence and exchange in this process: nothing waits for a disk, and nothing survives its end."""

    def __init__(self, gateway: EventGateway) -> None:
        self._gateway = gateway
        self._options = gateway.options
        self.sequencer = self._new_sequencer()
        self.exchange = Exchange()
        #: Events in order, not yet dispatched, in parts for one turn of the loop each.
        self._ready: deque[list[bytes]] = deque()
        self._turn_soon = False
        #: The clients together are too far behind; until they have caught up nothing is dispatched.
        self._overloaded = False
        self._patience: asyncio.TimerHandle | None = None
        self._gap_timer: asyncio.TimerHandle | None = None

    @property
    def held(self) -> int:
        return len(self.sequencer.held)

    def _new_sequencer(self) -> Sequencer:
        options = self._options
        return Sequencer(
            options.first, hold=options.hold, on_gap=options.on_gap, gap_within=options.gap_within
        )

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        for timer in (self._patience, self._gap_timer):
            if timer is not None:
                timer.cancel()
        self._ready.clear()

    # -- from the source ---------------------------------------------------------------------------

    def restarted(self) -> None:
        self.sequencer = self._new_sequencer()

    def received(self, source: Source, parsed: Parsed) -> None:
        skipped = self.sequencer.skipped
        try:
            released = self.sequencer.offer(_now(), parsed.numbers, parsed.lines)
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
            self._gap_timer = loop.call_later(max(0.0, (deadline - _now()) / SECOND), self._gaps_due)

    def _gaps_due(self) -> None:
        self._gap_timer = None
        skipped = self.sequencer.skipped
        self._put(self.sequencer.advance(_now()), skipped)

    # -- to the clients ----------------------------------------------------------------------------

    def _turn(self) -> None:
        """Dispatch one part. While there are more, or the clients are too far behind, the source waits."""
        self._turn_soon = False
        if self._ready and not self._overloaded:
            lines = self._ready.popleft()
            notifications = self.exchange.dispatch(lines)
            self._gateway.totals.dispatched += len(lines)
            if notifications.malformed:
                self._gateway.malformed(notifications.malformed)
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
            # A copy, because one that is too far behind leaves while we are at it.
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
        """They had their time. Those who are farthest behind hold up all the others."""
        excess = self._behind() - self._options.queues // 2
        for client in sorted(self._gateway.behind, key=lambda each: each.queue.size, reverse=True):
            if excess > 0:
                excess -= client.queue.size
                # The last of them lets the dispatch go on.
                self._gateway.drop(client, "farthest behind while the source waited")

    def joined(self, client: Client) -> None:
        self.exchange.join(client.id)

    def left(self, client: Client) -> None:
        self.exchange.leave(client.id)

    def caught_up(self) -> None:
        if self._overloaded and self._behind() <= self._options.queues // 2:
            self._overloaded = False
            if self._patience is not None:
                self._patience.cancel()
            if not self._turn_soon:
                self._turn()


def _now() -> int:
    return time.time_ns() // 1000
