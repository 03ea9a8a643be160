"""Wires: connections between hosts that don't exist. TCP as programs see it: bytes in order or a lost
connection. A black hole loses no byte: it holds them back, as retransmission does, until it is healed or
somebody gives up.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from landbridge.testing.virtual import VirtualLoop, VirtualProcess

#: Seconds that a packet takes inside one host.
INSIDE = 0.0001
LOW_WATER = 64 << 10

FIN, RST = object(), object()


class VirtualWay:
    """One direction of a line."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        #: Seconds that are added at random, at most.
        self.jitter = 0.0
        #: Bytes per second; 0 = without a limit.
        self.rate = 0.0
        #: Nothing gets through.
        self.dark = False
        #: The ends that hear by it.
        self.ends: set[End] = set()

    def lighten(self) -> None:
        if self.dark:
            self.dark = False
            for end in sorted(self.ends, key=lambda end: end.number):
                end.delayed()


class VirtualLine:
    """What lies between two hosts, for all their connections."""

    def __init__(self, delay: float) -> None:
        self.ways = (VirtualWay(delay), VirtualWay(delay))
        #: Connections are refused, and those there are have been reset.
        self.cut = False

    @property
    def dark(self) -> bool:
        return self.ways[0].dark or self.ways[1].dark

    def heal(self) -> None:
        self.cut = False
        for way in self.ways:
            way.jitter = way.rate = 0.0
            way.lighten()

    def hold(self) -> list[End]:
        """Hold back what is sent to those who accepted a connection, on the connections that there are. Other
        connections are as fast as ever."""
        ends = self.ways[0].ends | self.ways[1].ends
        held = sorted((end for end in ends if end.accepted), key=lambda end: end.number)
        for end in held:
            end.hold()
        return held

    def reset(self) -> None:
        """A box in between has forgotten the connections: both ends hear so."""
        ends = self.ways[0].ends | self.ways[1].ends
        for end in sorted(ends, key=lambda end: end.number):
            end.broken()


class End(asyncio.Transport):
    """One end of a connection."""

    _made = 0

    def __init__(
        self, wires: Wires, process: VirtualProcess, way: VirtualWay, peername: tuple[str, int]
    ) -> None:
        super().__init__()
        End._made += 1
        #: Sets of ends are walked in this order, so that a seed always goes the same way.
        self.number = End._made
        self._loop = wires.loop
        self._chance = wires.chance
        self.process = process
        self._way = way  #: by which it hears
        self._peername = peername
        self.peer: End
        self._protocol: asyncio.Protocol
        #: (when it arrives, what), oldest first.
        self._inbox: deque[tuple[float, Any]] = deque()
        self._waiting = 0
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self._closing = self._lost_told = False
        self._high = 1 << 20
        self._paused = False
        #: It accepted the connection, rather than dial.
        self.accepted = False
        #: A box on the way keeps what is sent to it.
        self._held = False
        way.ends.add(self)

    # -- what a protocol calls ---------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        self.peer.expect(bytes(data))
        if self.peer._waiting > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def writelines(self, buffers: Any) -> None:
        self.write(b"".join(buffers))

    def close(self) -> None:
        self._finish(FIN)

    def abort(self) -> None:
        self._finish(RST)

    def _finish(self, how: object) -> None:
        if not self._closing:
            self.peer.expect(how)
            self._close_soon(None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._arm()

    def is_reading(self) -> bool:
        return self._reading

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is not None:
            self._high = high

    def get_write_buffer_size(self) -> int:
        return self.peer._waiting

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peername if name == "peername" else default

    # -- what happens to it ------------------------------------------------------------------------

    def expect(self, item: Any) -> None:
        """The peer sends something."""
        if self._closing:
            return
        way, size = self._way, len(item) if isinstance(item, bytes) else 0
        took = way.delay + self._chance.uniform(0, way.jitter) + (size / way.rate if way.rate else 0.0)
        # Never before what was sent before; with a rate, after all of it.
        now = self._loop.time()
        self._last = max(self._last + (size / way.rate if way.rate else 0.0), now + took)
        self._inbox.append((self._last, item))
        self._waiting += size
        self._arm()

    def delayed(self) -> None:
        """The line is back after a while: what was held back arrives now."""
        at = self._loop.time() + self._way.delay
        self._inbox = deque((max(at, when), item) for when, item in self._inbox)
        self._last = max(at, self._last)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._arm()

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        """What was held back arrives, and then the news that its sender has gone."""
        self._held = False
        self.delayed()
        if self.peer.is_closing():
            self.expect(RST)

    def _arm(self) -> None:
        if self._timer is None and self._inbox and self._reading and not self._way.dark and not self._held:
            self._timer = self._loop.call_at(self._inbox[0][0], self._deliver, context=self.process.context)

    def _deliver(self) -> None:
        self._timer = None
        if self._closing or not self._reading or self._way.dark or self._held:
            return
        data, last = [], None
        now = self._loop.time() + 1e-9
        while self._inbox and self._inbox[0][0] <= now:
            _, item = self._inbox.popleft()
            if not isinstance(item, bytes):
                last = item
                break
            data.append(item)
            self._waiting -= len(item)
        if data:
            peer = self.peer
            if peer._paused and self._waiting <= LOW_WATER and not peer._closing:
                peer._paused = False
                self._loop.call_soon(peer._resume, context=peer.process.context)
            self._protocol.data_received(b"".join(data))
        if last is not None and not self._closing:
            self._close_soon(None if last is FIN else ConnectionResetError("reset by peer"))
            return
        self._arm()

    def _resume(self) -> None:
        if not self._closing:
            self._protocol.resume_writing()

    def broken(self) -> None:
        if not self._closing:
            self._close_soon(ConnectionResetError("reset on the way"))

    def _close_soon(self, error: Exception | None) -> None:
        self._closing = True
        self._way.ends.discard(self)
        self._loop.call_soon(self._lost, error, context=self.process.context)

    def _lost(self, error: Exception | None) -> None:
        if not self._lost_told:
            self._lost_told = True
            self._protocol.connection_lost(error)

    def vanish(self, *, reset: bool) -> None:
        """Its process is gone. With ``reset`` the system says so to the peer; without, nobody does."""
        if not self._closing:
            self._closing = True
            self._way.ends.discard(self)
            if reset:
                self.peer.expect(RST)


class _Listener:
    """Stands for an asyncio.Server."""

    def __init__(self, wires: Wires, host: str, port: int, process: VirtualProcess) -> None:
        self._wires, self._host, self._port, self.process = wires, host, port, process
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return self._host, self._port

    def close(self) -> None:
        self._wires.closed(self._host, self)


class Wires:
    """All lines, and who listens where. A host is an address; a process is at one of them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.loop: VirtualLoop
        self._lines: dict[frozenset[str], VirtualLine] = {}
        self._listeners: dict[str, tuple[_Listener, Callable[[], asyncio.Protocol]]] = {}
        self._hosts: dict[VirtualProcess, str] = {}
        self._ends: dict[VirtualProcess, list[End]] = {}
        #: Host → connections that ended with its power, and whose other ends don't know yet.
        self._orphans: dict[str, list[End]] = {}

    def place(self, process: VirtualProcess, host: str) -> None:
        self._hosts[process] = host
        self._ends[process] = []

    def line(self, one: str, other: str) -> VirtualLine:
        key = frozenset((one, other))
        found = self._lines.get(key)
        if found is None:
            delay = INSIDE if one == other else self.chance.uniform(0.002, 0.12)
            found = self._lines[key] = VirtualLine(delay)
        return found

    def lines(self) -> list[VirtualLine]:
        return list(self._lines.values())

    # -- the loop's network ------------------------------------------------------------------------

    def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> _Listener:
        process = VirtualProcess.current()
        assert process is not None
        listener = _Listener(self, host, port, process)
        self._listeners[host] = (listener, factory)
        return listener

    def closed(self, host: str, listener: _Listener) -> None:
        found = self._listeners.get(host)
        if found is not None and found[0] is listener:
            del self._listeners[host]

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        process = VirtualProcess.current()
        assert process is not None
        here = self._hosts[process]
        line = self.line(here, host)
        while line.dark or host in self._orphans:  # without power nobody even refuses
            await asyncio.sleep(1.0)
        await asyncio.sleep(line.ways[0].delay + line.ways[1].delay)
        found = self._listeners.get(host)
        if line.cut or found is None or not found[0].process.alive:
            raise ConnectionRefusedError(111, "Connection refused")
        listener, accept = found
        order = line.ways if here < host else line.ways[::-1]
        mine = End(self, process, order[0], (host, port))
        theirs = End(self, listener.process, order[1], (here, 0))
        mine.peer, theirs.peer = theirs, mine
        theirs.accepted = True
        for end in (mine, theirs):
            self._ends[end.process] = [known for known in self._ends[end.process] if not known.is_closing()]
            self._ends[end.process].append(end)

        def accepted() -> None:
            protocol = accept()
            theirs.set_protocol(protocol)
            protocol.connection_made(theirs)

        self.loop.call_soon(accepted, context=listener.process.context)
        protocol = factory()
        mine.set_protocol(protocol)
        protocol.connection_made(mine)
        return mine, protocol

    # -- faults ------------------------------------------------------------------------------------

    def kill(self, process: VirtualProcess, *, power: bool = False) -> None:
        """End a process. With its power gone, nobody tells its peers until the host is back."""
        process.kill()
        host = self._hosts[process]
        ends = [end for end in self._ends.pop(process) if not end.is_closing()]
        for end in ends:
            inside = self._hosts.get(end.peer.process) == host
            end.vanish(reset=not power or inside)
        if power:
            self._orphans.setdefault(host, []).extend(ends)

    def power(self, host: str) -> None:
        """The host is back, and answers what it knows nothing of with a reset."""
        for end in self._orphans.pop(host, ()):
            end.peer.expect(RST)
