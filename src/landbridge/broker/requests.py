"""Requests and their replies, in memory: from the one that asks to one that answers, and back.

Nothing here is written to disk. The terminal hands a request to a consumer that answers requests, remembers
it until the reply has come or the caller's time is over, and passes the reply back. A request whose responder
leaves before it has replied goes to the next one. A request that finds all responders busy waits for the
first that is free, in the order of arrival.

Requests that have to survive a restart, or whose responder may be at another terminal, are ordinary messages
with a deadline (``broker/events.py``).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from landbridge.broker.group import Consumer
from landbridge.core.time import SECOND
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import BadRequest, LimitReached, NoResponder, TimedOut, TooLarge
from landbridge.errors import BusError as Error
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame

#: Microseconds in a tick: deadlines are looked at so often.
TICK = SECOND // 20
#: Bytes of a reply up to which it is sent to a requester that doesn't read at the moment.
SMALL = 4096
#: Microseconds that a caller may wait.
LONGEST = 3600 * SECOND


class RequestingClient(Protocol):
    """The connection that a request came over."""

    #: False while the peer doesn't read what it was sent.
    writable: bool
    #: Its requests without an end, by the caller's numbers.
    requests: dict[int, Outstanding]

    @property
    def subject(self) -> str: ...

    @property
    def scopes(self) -> Scopes: ...

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None: ...
    def refuse(self, request: int, error: Error, subscription: int = 0) -> None: ...
    def end(self, request: int) -> None:
        """Of a request for several replies: all have come that will come."""


class RequestBounds(Protocol):
    """The limits of requests."""

    @property
    def max_payload(self) -> int: ...

    @property
    def max_requests(self) -> int: ...

    @property
    def max_requests_in_all(self) -> int: ...

    @property
    def request_bytes(self) -> int: ...


class RequestTotals(Protocol):
    """Counters since the start."""

    requests: int
    replies: int
    late_replies: int


class Responders:
    """The consumers of one group that answer requests to a topic."""

    __slots__ = ("consumers", "name", "next", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        #: In turn: ``next`` is the place of the one whose turn it is.
        self.consumers: list[Consumer] = []
        self.next = 0
        #: Requests that came while all of them were busy.
        self.waiting: OrderedDict[int, Errand] = OrderedDict()


class Outstanding:
    """A request without an end."""

    __slots__ = ("deadline", "errands", "frame", "left", "most", "number", "payload", "requester", "tick")

    def __init__(
        self,
        number: int,
        requester: RequestingClient,
        frame: frames.SendRequest,
        payload: bytes,
        deadline: int,
    ) -> None:
        self.number = number
        self.requester = requester
        self.frame = frame
        self.payload = payload
        self.deadline = deadline
        self.tick = deadline // TICK + 1
        #: What is on its way because of it: one for each group that was asked.
        self.errands: dict[int, Errand] = {}
        #: Replies that are wanted; 0: of every group.
        self.most = frame.most
        self.left = frame.most


class Errand:
    """A request, as one group of responders has it."""

    __slots__ = ("consumer", "group", "number", "of")

    def __init__(self, number: int, of: Outstanding, group: Responders) -> None:
        self.number = number
        self.of = of
        self.group = group
        #: Who has it; None while it waits.
        self.consumer: Consumer | None = None


class Requests:
    """The requests of one terminal."""

    def __init__(self, bounds: RequestBounds, totals: RequestTotals, clock: Callable[[], int]) -> None:
        self._bounds = bounds
        self._totals = totals
        self._clock = clock
        #: Topic → name of a group → those of its consumers that answer.
        self._topics: dict[str, dict[str, Responders]] = {}
        #: The groups of a topic have their turn, for requests that want one reply.
        self._turns: dict[str, int] = {}
        #: Consumer → its errands, by number. Consumers that answer are here also while they have none.
        self._busy: dict[Consumer, dict[int, Errand]] = {}
        #: Consumers that get no more of them for a while: they, their group or their topic are paused.
        self._withheld: set[Consumer] = set()
        #: Tick → the requests whose time is over by then.
        self._due: dict[int, dict[int, Outstanding]] = {}
        #: The first tick that was not looked at.
        self._tick = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next = 1
        #: Requests without an end, and the bytes of their payloads.
        self.outstanding = 0
        self.bytes = 0

    # -- who answers -------------------------------------------------------------------------------

    def answers(self, topic: str) -> bool:
        """Does somebody here answer requests to the topic?"""
        return topic in self._topics

    def answering(self, topic: str) -> int:
        """How many consumers answer requests to the topic now."""
        return sum(len(group.consumers) for group in self._topics.get(topic, {}).values())

    def join(self, consumer: Consumer) -> None:
        """A consumer answers requests from now on."""
        self._busy[consumer] = {}
        self._add(consumer)

    def _add(self, consumer: Consumer) -> None:
        group = consumer.group
        topic = self._topics.setdefault(group.topic.name, {})
        responders = topic.setdefault(group.name, Responders(group.name))
        responders.consumers.append(consumer)
        self._fill(responders)

    def withhold(self, consumer: Consumer) -> None:
        """The consumer is paused: it gets no new requests, and may answer those that it has. What waits for
        nobody else fails."""
        if consumer in self._busy and consumer not in self._withheld:
            self._withheld.add(consumer)
            self._give_up_all(self._remove(consumer))

    def readmit(self, consumer: Consumer) -> None:
        """The pause is over."""
        if consumer in self._withheld:
            self._withheld.discard(consumer)
            self._add(consumer)

    def _remove(self, consumer: Consumer) -> Responders:
        """The consumer gets no more requests. Returns those of its group."""
        topic = self._topics[consumer.group.topic.name]
        responders = topic[consumer.group.name]
        responders.consumers.remove(consumer)
        if not responders.consumers:
            del topic[responders.name]
            if not topic:
                del self._topics[consumer.group.topic.name]
                self._turns.pop(consumer.group.topic.name, None)
        return responders

    def leave(self, consumer: Consumer) -> None:
        """A consumer is gone. What it has not answered goes to the next one, or fails."""
        errands = self._busy.pop(consumer, None)
        if errands is None:
            return
        if consumer in self._withheld:
            self._withheld.discard(consumer)
            # Of its group as it is now; it may have begun anew meanwhile.
            name, group = consumer.group.topic.name, consumer.group.name
            responders = self._topics.get(name, {}).get(group) or Responders(group)
        else:
            responders = self._remove(consumer)
        # Those that it has were asked for before those that wait.
        for errand in reversed(errands.values()):
            errand.consumer, errand.group = None, responders
            responders.waiting[errand.number] = errand
            responders.waiting.move_to_end(errand.number, last=False)
        self._give_up_all(responders)

    def _give_up_all(self, responders: Responders) -> None:
        """Hand out what waits, or give it up where the group has nobody any more."""
        if responders.consumers:
            self._fill(responders)
            return
        waiting, responders.waiting = responders.waiting, OrderedDict()
        for errand in waiting.values():
            self._give_up(errand)

    def _give_up(self, errand: Errand) -> None:
        """Nobody is left in the group that has this request."""
        request = errand.of
        del request.errands[errand.number]
        if request.errands:
            return
        if request.most == 1 and (groups := self._topics.get(request.frame.topic)):
            self._send_out(request, (next(iter(groups.values())),))
        elif request.left == request.most:
            gone = f"everybody who answers requests to {request.frame.topic} has left or is paused"
            self._refuse(request, NoResponder(gone))
        else:
            self._finish(request)

    # -- asking ------------------------------------------------------------------------------------

    def ask(self, requester: RequestingClient, frame: frames.SendRequest, tail: memoryview) -> None:
        """Hand a request out. Misuse, NoResponder and LimitReached are raised at once."""
        groups = self._topics.get(frame.topic)
        if groups is None:
            raise self._nobody(frame.topic)
        if frame.headers:
            check_headers(frame.headers)
        bounds, size = self._bounds, len(tail)
        if size > bounds.max_payload:
            raise TooLarge(f"a payload of {size} bytes, allowed are {bounds.max_payload}")
        if frame.within > LONGEST:
            raise BadRequest(f"a request that waits {frame.within // SECOND} s, at most {LONGEST // SECOND}")
        if frame.request in requester.requests or not frame.request:
            raise BadRequest(f"the request {frame.request} is under way")
        if len(requester.requests) >= bounds.max_requests:
            raise LimitReached(
                f"{len(requester.requests)} requests without a reply on this connection, as many as "
                "max_requests allows"
            )
        if self.outstanding >= bounds.max_requests_in_all or self.bytes + size > bounds.request_bytes:
            raise LimitReached(
                f"{self.outstanding} requests of {self.bytes} bytes without a reply, as many as "
                "max_requests_in_all or request_bytes allow"
            )
        request = Outstanding(self._next, requester, frame, bytes(tail), self._clock() + frame.within)
        self._next += 1
        requester.requests[frame.request] = request
        self.outstanding += 1
        self.bytes += size
        self._totals.requests += 1
        due = self._due.get(request.tick)
        if due is None:
            due = self._due[request.tick] = {}
        due[request.number] = request
        if self._timer is None:
            self._begin_ticking()
        if frame.most == 1:
            self._send_out(request, (self._choose(frame.topic, groups),))
        else:
            self._send_out(request, tuple(groups.values()))

    def _nobody(self, topic: str) -> NoResponder:
        for consumer in self._withheld:
            if consumer.group.topic.name == topic and consumer.pause is not None:
                why = f"whoever answers requests to {topic[:200]} is paused {consumer.pause.told}"
                return NoResponder(why, hint="try again when it is resumed: Retry-After says when to look")
        return NoResponder(f"nobody here answers requests to {topic[:200]}")

    def _choose(self, topic: str, groups: dict[str, Responders]) -> Responders:
        """One of the groups, each in its turn."""
        if len(groups) == 1:
            return next(iter(groups.values()))
        turn = self._turns[topic] = self._turns.get(topic, -1) + 1
        return list(groups.values())[turn % len(groups)]

    def _send_out(self, request: Outstanding, groups: tuple[Responders, ...]) -> None:
        first = self._next
        self._next += len(groups)
        for number, group in enumerate(groups, first):
            request.errands[number] = Errand(number, request, group)
        for number in range(first, self._next):
            errand = request.errands[number]
            if errand.group.waiting or not self._hand(errand):
                errand.group.waiting[number] = errand

    def _hand(self, errand: Errand) -> bool:
        """Give an errand to the first consumer of its group that has room. Was there one?"""
        group = errand.group
        consumers = group.consumers
        for _ in consumers:
            group.next = at = (group.next + 1) % len(consumers)
            consumer = consumers[at]
            held = self._busy[consumer]
            if len(held) < consumer.prefetch and consumer.connection.writable:
                break
        else:
            return False
        held[errand.number] = errand
        errand.consumer = consumer
        request = errand.of
        frame = request.frame
        consumer.connection.send(
            frames.Requested(
                consumer.subscription,
                errand.number,
                frame.topic,
                max(1, request.deadline - self._clock()),
                request.requester.subject,
                frame.headers,
                frame.key,
            ),
            request.payload,
        )
        return True

    def _fill(self, group: Responders) -> None:
        """A consumer of the group may have room: hand out what waits."""
        waiting = group.waiting
        while waiting:
            number, errand = waiting.popitem(last=False)
            if not self._hand(errand):
                waiting[number] = errand
                waiting.move_to_end(number, last=False)
                return

    def resume(self, consumer: Consumer) -> None:
        """The consumer's connection takes more again."""
        if consumer in self._busy and consumer not in self._withheld:
            self._fill(self._topics[consumer.group.topic.name][consumer.group.name])

    # -- answering ---------------------------------------------------------------------------------

    def reply(self, consumer: Consumer, source: str, frame: frames.SendReply, tail: memoryview) -> None:
        """Pass a reply back. One that nobody waits for any more is dropped and counted."""
        if frame.headers:
            check_headers(frame.headers)
        held = self._busy.get(consumer)
        if held is None:
            raise BadRequest(f"the subscription {frame.subscription} doesn't answer requests")
        errand = held.pop(frame.number, None)
        if errand is None:
            self._totals.late_replies += 1
            return
        if errand.group.waiting:
            self._fill(errand.group)
        request = errand.of
        del request.errands[errand.number]
        self._totals.replies += 1
        failure = frame.failure
        if len(tail) > self._bounds.max_payload:
            text = f"a reply of {len(tail)} bytes, allowed are {self._bounds.max_payload}"
            failure, tail = frames.Failure(TooLarge.code, TooLarge.http_status, text), tail[:0]
        elif len(tail) > SMALL and not request.requester.writable:
            text = "the reply was dropped: whoever asked doesn't read what was sent before"
            failure, tail = frames.Failure(LimitReached.code, LimitReached.http_status, text), tail[:0]
        request.left -= 1
        is_last = request.most == 1
        number = request.frame.request
        request.requester.send(frames.Replied(number, source, is_last, frame.headers, failure), tail)
        if is_last:
            self._end(request)
        elif not request.errands or request.left == 0:
            self._finish(request)

    # -- ending ------------------------------------------------------------------------------------

    def _end(self, request: Outstanding) -> None:
        """Forget a request. Whoever still has it is free for another one: its reply would come too late."""
        request.requester.requests.pop(request.frame.request, None)
        freed = []
        for errand in request.errands.values():
            if errand.consumer is None:
                errand.group.waiting.pop(errand.number, None)
            else:
                self._busy[errand.consumer].pop(errand.number, None)
                freed.append(errand.group)
        request.errands.clear()
        self.outstanding -= 1
        self.bytes -= len(request.payload)
        due = self._due.get(request.tick)
        if due is not None:
            due.pop(request.number, None)
            if not due:
                del self._due[request.tick]
        for group in freed:
            self._fill(group)

    def _finish(self, request: Outstanding) -> None:
        """All replies have come that will come."""
        number = request.frame.request
        self._end(request)
        request.requester.end(number)

    def _refuse(self, request: Outstanding, error: Error) -> None:
        number = request.frame.request
        self._end(request)
        request.requester.refuse(number, error)

    def forget(self, requester: RequestingClient) -> None:
        """The one that asked is gone, and its requests with it."""
        for request in list(requester.requests.values()):
            self._end(request)

    def _begin_ticking(self) -> None:
        self._tick = self._clock() // TICK
        self._timer = asyncio.get_running_loop().call_later(TICK / SECOND, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.time_passed()
        if self._due:
            self._timer = asyncio.get_running_loop().call_later(TICK / SECOND, self._ring)

    def time_passed(self) -> None:
        """End the requests whose time is over."""
        now = self._clock() // TICK
        if now - self._tick < len(self._due):
            ticks = [tick for tick in range(self._tick, now + 1) if tick in self._due]
        else:  # the clock was set, or nobody has asked for long
            ticks = sorted(tick for tick in self._due if tick <= now)
        self._tick = now
        for tick in ticks:
            for request in list(self._due.get(tick, {}).values()):
                if request.most != 1 and request.left != request.most:
                    self._finish(request)
                else:
                    waited = request.frame.within / SECOND
                    self._refuse(request, TimedOut(f"no reply from {request.frame.topic} in {waited:g} s"))

    def close(self) -> None:
        """Stop looking at deadlines: the connections end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def check_headers(headers: dict[str, Any]) -> None:
    """BadRequest for a header's value that a message couldn't have either."""
    for name, value in headers.items():
        if not isinstance(value, str | bytes | int | float):
            raise BadRequest(f"the header {name[:60]!r} is a {type(value).__name__}")
