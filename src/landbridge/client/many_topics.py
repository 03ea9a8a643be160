"""Several topics read as one: a subscription for each on the one connection, and their batches in turn."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Self

import msgspec

from landbridge.client.line import TerminalLine
from landbridge.client.message import DeliveredBatch, Message
from landbridge.client.reading import Reading
from landbridge.client.subscription import TURN, Subscription
from landbridge.core.names import check_name, check_pattern, is_pattern
from landbridge.errors import BadRequest, BusError, Disconnected, Forbidden, UnknownTopic
from landbridge.protocol.frames import Frame

log = logging.getLogger("landbridge.client")

#: Topics that one subscription reads at most; a connection has 1000 subscriptions at most.
MOST_TOPICS = 500
#: Names and patterns that a subscription is made of.
MOST_PATTERNS = 100
#: A topic's share of the prefetch is not less, or each of its messages would cost a round trip.
LEAST_SHARE = 16
#: Topics that are subscribed at once.
JOIN_AT_ONCE = 50
#: Seconds to wait for news of topics in one request, and between two requests after one has failed.
WATCH_WITHIN, WATCH_AGAIN = 50.0, 1.0


class News(msgspec.Struct):
    """What ``topic.watch`` answers, as far as it is needed here."""

    topics: list[str]
    gone: list[str]
    whole: bool
    more: int
    since: str


class ManyTopics(Reading):
    """A consumer of several topics, made by ``bus.subscribe("orders.*", …)`` or
    ``bus.subscribe(["orders.eu", "orders.us"], …)``.

    Each message knows its topic, and is settled there. The topics take turns, batch by batch, and share the
    prefetch evenly: when a topic is joined, its share is the prefetch divided by the number of topics, but
    16 or more. A topic that is named must be there, or be made. Topics that a pattern covers come and go."""

    def __init__(
        self,
        bus: TerminalLine,
        new_number: Callable[[], int],
        topics: Sequence[str],
        group: str | None,
        prefetch: int,
        start: Any,
        answers: bool = False,
    ) -> None:
        super().__init__()
        if not 0 < len(topics) <= MOST_PATTERNS:
            raise BadRequest(f"{len(topics)} names and patterns in one subscription, allowed are 1 to 100")
        self._named = [check_name(topic, "topic") for topic in topics if not is_pattern(topic)]
        self._patterns = [check_pattern(topic) for topic in topics if is_pattern(topic)]
        self.topic = ", ".join(topics)
        self.group = group
        self.prefetch = prefetch
        self.number = new_number()
        self._bus = bus
        self._new_number = new_number
        self._start = start
        #: Whether requests come as well.
        self.answers = answers
        #: Called with each topic before it is joined.
        self.prepare: Callable[[str], Awaitable[object]] | None = None
        #: The subscriptions by topic, also those that are being opened.
        self._members: dict[str, Member] = {}
        #: Those with batches here, in the order of their turns.
        self._ready: deque[Member] = deque()
        #: Topics that can't be joined for now: a queue that has its consumer, for example.
        self._refused: dict[str, BusError] = {}
        #: Without a group: topics that were read and that a list lacked. They may have been on their way from
        #: one node to another: if they come again, they are read on from then, as after a lost connection.
        self._absent: set[str] = set()
        #: How far the changes of topics are known; empty: not at all.
        self._since = ""
        self._told_of_more = False
        self._open = self._closed = False
        self._error: BusError | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._handed = 0
        self._watching: asyncio.Task[None] | None = None
        #: One at a time learns of changes: the watch, or the return to the terminal.
        self._changing = asyncio.Lock()
        self._returning: asyncio.Task[None] | None = None

    # -- opening and closing -----------------------------------------------------------------------

    async def open(self) -> Self:
        """Subscribe to all topics that are there now."""
        if not self._open and not self._closed:
            self._open = True
            self._bus.subscriptions[self.number] = self
            try:
                if len(self._named) > MOST_TOPICS:
                    raise BadRequest(f"{len(self._named)} topics, allowed are {MOST_TOPICS}")
                share = self._share(len(self._named))
                for name in self._named:
                    await self._join(name, share, self._start, named=True)
                if self._patterns:
                    async with self._changing:
                        await self._follow(0.0, first=True)
                    self._watching = asyncio.ensure_future(self._watch())
            except BaseException:
                await self.close()
                raise
        return self

    def _share(self, topics: int) -> int:
        return min(self.prefetch, max(LEAST_SHARE, self.prefetch // max(1, topics)))

    async def _join(self, topic: str, share: int, start: Any, *, named: bool) -> None:
        member = Member(self, self._new_number(), topic, share, start, named=named)
        self._members[topic] = member
        try:
            if self.prepare is not None:
                await self.prepare(topic)
            await member.open()
            member.forget_start()
        except BaseException:
            self._drop(member)
            raise

    def _drop(self, member: Member) -> None:
        if self._members.get(member.topic) is member:
            del self._members[member.topic]

    async def close(self) -> None:
        """Send the acks, give back what was not settled, and end the subscription."""
        if self._closed:
            return
        self._closed = True
        tasks = [task for task in (self._watching, self._returning) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(member.close() for member in list(self._members.values())))
        self._members.clear()
        self._ready.clear()
        self._bus.subscriptions.pop(self.number, None)
        self._wake()

    # -- the topics --------------------------------------------------------------------------------

    @property
    def topics(self) -> list[str]:
        """Those that are read at the moment."""
        return list(self._members)

    async def _watch(self) -> None:
        """Join topics as they come. Ends with the bus."""
        while not self._closed:
            try:
                await self._follow(WATCH_WITHIN)
            except Disconnected as error:
                if self._bus.closed is not None:
                    self.fail(error)
                    return
                await asyncio.sleep(WATCH_AGAIN)
            except BusError as error:
                if not error.retriable:
                    self.fail(error)
                    return
                await asyncio.sleep(WATCH_AGAIN)

    async def _follow(self, within: float, *, first: bool = False) -> None:
        """Ask for changes, and make them."""
        answer = await self._bus.call(
            "topic.watch", patterns=self._patterns, since=self._since, within=within
        )
        news = msgspec.convert(answer, News)
        if first:
            await self._take_over(news, first=True)
        else:
            async with self._changing:
                await self._take_over(news)

    async def _take_over(self, news: News, *, first: bool = False) -> None:
        if self._closed:
            return
        there = set(news.topics)
        gone = set(news.gone)
        self._absent -= gone
        if news.whole and not news.more:
            absent = {
                name for name, member in self._members.items() if not member.named and name not in there
            }
            gone |= absent
            if self.group is None:
                self._absent |= absent
        for name in gone:
            self._refused.pop(name, None)
            member = self._members.get(name)
            if member is not None and not member.named:
                self._drop(member)
                await member.close()
        fresh = sorted(there.union(self._refused) - self._members.keys())
        total = len(self._members) + len(fresh) + news.more
        if total > MOST_TOPICS:
            if first:
                raise BadRequest(
                    f"{self.topic} covers {total} topics, a subscription reads at most {MOST_TOPICS}"
                )
            if not self._told_of_more:
                log.warning("%s covers %d topics, %d are read", self.topic, total, MOST_TOPICS)
                self._told_of_more = True
            room = max(0, MOST_TOPICS - len(self._members))
            self._refused.update(
                (name, BadRequest(f"a subscription reads at most {MOST_TOPICS} topics"))
                for name in fresh[room:]
            )
            fresh = fresh[:room]
        share = self._share(len(self._members) + len(fresh))
        # A topic that was made while we read is read from its beginning.
        start = self._start if first else "earliest"
        for at in range(0, len(fresh), JOIN_AT_ONCE):
            names = fresh[at : at + JOIN_AT_ONCE]
            begins = ((name, None if name in self._absent else start) for name in names)
            await asyncio.gather(*(self._try_to_join(name, share, begin) for name, begin in begins))
            self._absent.difference_update(names)
        # What failed half way is told again.
        self._since = news.since

    async def _try_to_join(self, topic: str, share: int, start: Any) -> None:
        """Join a topic that a pattern covers. One that is refused is tried again with the next changes."""
        try:
            await self._join(topic, share, start, named=False)
        except (UnknownTopic, Forbidden):
            self._refused.pop(topic, None)  # deleted meanwhile, or the token has changed
        except Disconnected:
            raise
        except BusError as error:
            if type(self._refused.get(topic)) is not type(error):
                log.warning("%s leaves out the topic %s for now: %s", self.topic, topic, error)
            self._refused[topic] = error
        else:
            self._refused.pop(topic, None)

    def on_lost(self, member: Member, error: BusError) -> None:
        """A topic's subscription has ended by itself."""
        if not member.named and isinstance(error, UnknownTopic | Forbidden):
            log.info("%s no longer has the topic %s: %s", self.topic, member.topic, error)
            self._drop(member)
            self._bus.subscriptions.pop(member.number, None)
        else:
            self.fail(error)

    # -- for the line ------------------------------------------------------------------------------

    def received(self, frame: Frame, tail: memoryview) -> None:
        """Frames are for the subscriptions of the topics."""

    def disconnected(self) -> None:
        """The subscriptions of the topics see to it."""

    def restart(self) -> None:
        """On a new connection: subscribe again. Topics that were deleted meanwhile must not be, as that
        would make them anew, so what only a pattern covers waits for the news."""
        if self._patterns and (self._returning is None or self._returning.done()):
            self._returning = asyncio.ensure_future(self._return())

    async def _return(self) -> None:
        while True:
            try:
                await self._follow(0.0)
            except BusError as error:
                if not error.retriable or self._bus.closed is not None:
                    self.fail(error)
                    return
                if isinstance(error, Disconnected):
                    return  # the next connection begins again
                await asyncio.sleep(WATCH_AGAIN)  # the terminal could not say for now
            else:
                break
        for member in list(self._members.values()):
            member.come_back()

    def fail(self, error: BusError) -> None:
        """End the subscription with an error, which whoever reads it gets."""
        self._error = self._error or error
        self._wake()

    # -- arriving ----------------------------------------------------------------------------------

    @property
    def at_most_once(self) -> bool:  # type: ignore[override]  # it depends on the topics
        """Every group settles on delivery."""
        return bool(self._members) and all(member.at_most_once for member in self._members.values())

    @property
    def ack_within(self) -> float:  # type: ignore[override]
        """Seconds without progress after which the first messages are another consumer's."""
        spans = (member.ack_within for member in self._members.values() if member.ack_within)
        return min(spans, default=30.0)

    def on_arrival(self, member: Member) -> None:
        """A batch of a topic has come."""
        if not member.is_queued:
            member.is_queued = True
            self._ready.append(member)
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _take(self) -> DeliveredBatch | None:
        while self._ready:
            member = self._ready.popleft()
            member.is_queued = False
            batch = member.take_batch()
            if member.has_batches:
                self.on_arrival(member)
            if batch is not None:
                return batch
        return None

    async def next_batch(self) -> DeliveredBatch | None:
        """The next batch, of the topic whose turn it is; None when the subscription was closed."""
        if self._handed >= TURN:
            self._handed = 0
            await asyncio.sleep(0)
        while (batch := self._take()) is None:
            if self._closed:
                return None
            if self._error is not None:
                raise self._error
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
            self._handed = 0
        self._handed += len(batch)
        return batch

    def messages_of(self, batch: DeliveredBatch) -> Iterator[Message]:
        """The messages of a batch. They end early if the connection is lost: the rest is delivered again."""
        member = batch.subscription
        assert isinstance(member, Member)
        return member.messages_of(batch)

    async def flush(self) -> None:
        """Wait until every ack so far is on disk."""
        await asyncio.gather(*(member.flush() for member in list(self._members.values())))


class Member(Subscription):
    """The subscription to one topic of many."""

    def __init__(
        self, many: ManyTopics, number: int, topic: str, prefetch: int, start: Any, *, named: bool
    ) -> None:
        super().__init__(many._bus, number, topic, many.group, prefetch, start, many.answers)
        self.on_request = many.on_request
        self.prefetch_bytes = many.prefetch_bytes * prefetch // many.prefetch
        self._many = many
        #: It stands in the list, so it may not be missing.
        self.named = named
        #: It waits for its turn.
        self.is_queued = False
        #: It has to subscribe again when the news of topics are known.
        self._is_behind = False

    def forget_start(self) -> None:
        """The group has begun. Without one, a new connection goes on from now, not from the start again."""
        if self.group is None:
            self._start = None

    def restart(self) -> None:
        """On a new connection: subscribe again, when it is known that the topic is still there."""
        if self.named:
            super().restart()
        else:
            self._is_behind = self._subscribed  # before that, ``open`` asks again by itself

    def come_back(self) -> None:
        """The topic is still there."""
        if self._is_behind:
            self._is_behind = False
            super().restart()

    def fail(self, error: BusError) -> None:
        """The subscription has ended by itself."""
        super().fail(error)
        self._many.on_lost(self, error)

    def _wake(self) -> None:
        super()._wake()
        if self.has_batches:
            self._many.on_arrival(self)
