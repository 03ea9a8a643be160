"""Where a terminal has several nodes: the connections of a bus to those that have what it uses.

A bus is connected to one node, which passes on what others have. To spare that hop, the bus asks the node who
has a topic, before it uses the topic for the first time, and sends what concerns the topic there by itself.
Where a topic's frames go stays as it is until the connection ends, so that they keep their order. When one of
the connections ends, all of them do, and everything begins anew, as after any lost connection.

The connections share their numbers of requests, so an answer needs no translation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec

from landbridge.errors import BusError, Disconnected, LeaseLost
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.router import ConsumedGroup

#: Topics that are asked about at once, and nodes that a bus has connections to, the first one aside.
MOST_TOPICS, MOST_NODES = 1000, 32
#: Topics whose way is remembered; the frames of all others go to the first node.
MOST_KNOWN = 10_000
#: Seconds in which a node has to let the bus in.
REACHED_WITHIN = 3.0


class NodeWire(Protocol):
    """A connection to one node."""

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None: ...
    def answer(self, frame: frames.SendReply, tail: bytes, *, others: bool) -> None: ...
    async def ask(self, make: Callable[[int], Frame], *tail: bytes) -> Any: ...
    def close(self, error: BusError | None = None) -> None: ...
    async def wait_closed(self) -> None: ...


#: Connects to the node at a URL, as a part of the first connection.
Connect = Callable[[str], Awaitable[NodeWire]]


class NodeWires:
    """The connections of one bus besides its first one, and which of them has what."""

    def __init__(self, first: NodeWire, connect: Connect) -> None:
        self._first = first
        self._connect = connect
        #: By URL. Those that can't be reached stand for the first one, which passes on.
        self._wires: dict[str, asyncio.Task[NodeWire]] = {}
        self._topics: dict[str, NodeWire] = {}
        #: Done when the first connection has ended.
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._subscriptions: dict[int, NodeWire] = {}
        self._consumed: dict[int, ConsumedGroup] = {}

    # -- who has what ------------------------------------------------------------------------------

    def knows(self, topic: str) -> bool:
        """Is it settled where the frames of a topic go?"""
        return topic in self._topics or len(self._topics) >= MOST_KNOWN

    async def find(self, topics: Iterable[str]) -> None:
        """Settle where the frames of these topics go. Where nobody can say, they go to the first node."""
        wanted = [topic for topic in dict.fromkeys(topics) if topic not in self._topics]
        del wanted[max(0, MOST_KNOWN - len(self._topics)) :]
        for begin in range(0, len(wanted), MOST_TOPICS):
            share = wanted[begin : begin + MOST_TOPICS]
            try:
                answer = await self._first.ask(
                    lambda request, share=share: frames.Call(request, "node.find", {"topics": share})  # type: ignore[misc]
                )
            except Disconnected:
                return
            except BusError:  # a node of an earlier version
                answer = frames.Done(0, {})
            urls = (answer.result or {}).get("urls", {})
            for topic in share:
                wire = await self._wire(urls.get(topic, ""))
                self._settle(topic, wire)

    def _settle(self, topic: str, wire: NodeWire) -> NodeWire:
        """Where a topic's frames go from now on. Nothing changes what was settled before, and where there is
        no room to remember more, that is the first one: its frames must not overtake each other."""
        if len(self._topics) >= MOST_KNOWN:
            return self._topics.get(topic, self._first)
        return self._topics.setdefault(topic, wire)

    async def _wire(self, url: str) -> NodeWire:
        if not url:
            return self._first
        task = self._wires.get(url)
        if task is None:
            if len(self._wires) >= MOST_NODES:
                return self._first
            task = self._wires[url] = asyncio.ensure_future(self._reach(url))
        either: list[asyncio.Future[Any]] = [task, self._over]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else self._first

    async def _reach(self, url: str) -> NodeWire:
        try:
            async with asyncio.timeout(REACHED_WITHIN):
                wire = await self._connect(url)
        except (BusError, OSError, TimeoutError):
            return self._first
        if self._over.done():
            wire.close()
        return wire

    @property
    def _others(self) -> list[NodeWire]:
        found = (task.result() for task in self._wires.values() if task.done())
        return [wire for wire in found if wire is not self._first]

    # -- frames ------------------------------------------------------------------------------------

    def of(self, frame: Frame) -> NodeWire:
        """The connection that a frame goes over."""
        if isinstance(frame, frames.Publish | frames.PublishOnce | frames.SendRequest | frames.Fetch):
            return self._settle(frame.topic, self._first)
        if isinstance(frame, frames.Subscribe):
            wire = self._settle(frame.topic, self._first)
            self._subscriptions[frame.subscription] = wire
            self._consumed[frame.subscription] = ConsumedGroup(frame.topic, frame.group or "")
            return wire
        if isinstance(frame, frames.Unsubscribe):
            self._consumed.pop(frame.subscription, None)
            return self._subscriptions.pop(frame.subscription, self._first)
        if isinstance(frame, frames.Settle | frames.Credit | frames.Pull | frames.SendReply):
            return self._subscriptions.get(frame.subscription, self._first)
        if isinstance(frame, frames.Transact):
            return self._of_transaction(frame)
        if isinstance(frame, frames.Renew | frames.Bye):
            for wire in self._others:
                there = frames.Renew(0, frame.token) if isinstance(frame, frames.Renew) else frames.Bye()
                wire.send(there)
        return self._first

    def _of_transaction(self, frame: frames.Transact) -> NodeWire:
        """A transaction goes where the first message is that it acks."""
        for number, _, _ in frame.acks:
            if number in self._subscriptions:
                return self._subscriptions[number]
        if frame.acks:
            raise LeaseLost("a message of the transaction is no longer this consumer's to settle")
        return self._first

    def divided(self, frame: frames.Transact) -> frames.Transact:
        """A transaction as the node gets it that it goes to: of messages that came over other connections it
        has to be told what they are."""
        home = self._of_transaction(frame)
        acks, apart = [], list(frame.apart)
        for number, lease, runs in frame.acks:
            if self._subscriptions.get(number, home) is home:
                acks.append((number, lease, runs))
            else:
                of = self._consumed[number]
                apart.append(frames.ApartAck(of.topic, of.group, number, lease, runs))
        return msgspec.structs.replace(frame, acks=acks, apart=apart) if apart else frame

    # -- life --------------------------------------------------------------------------------------

    async def ping(self) -> None:
        """Ask every node whether it answers."""
        await asyncio.gather(*(wire.ask(frames.Ping) for wire in (self._first, *self._others)))

    def close(self, error: BusError) -> None:
        """The first connection ends, and with it the others."""
        if not self._over.done():
            self._over.set_result(None)
        for wire in self._others:
            wire.close(error)

    async def wait_closed(self) -> None:
        """After ``close``, wait until what was sent to the other nodes is written."""
        await asyncio.gather(*(wire.wait_closed() for wire in self._others))
