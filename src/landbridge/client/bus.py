"""The bus as a program sees it: a connection that mends itself, with publishers, subscriptions and the
terminal's operations on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, Unpack, overload

import msgspec

from landbridge.client.context import resolve
from landbridge.client.events import EventResult, EventWatch
from landbridge.client.fetch import Stretch, stretch
from landbridge.client.line import TerminalLine
from landbridge.client.many_topics import ManyTopics
from landbridge.client.matching import MatchedTopics, sources_of
from landbridge.client.outbox import Outbox
from landbridge.client.payload import encode
from landbridge.client.publisher import MessageOptions, Publisher, Rows, Until
from landbridge.client.pulling import MOST_HELD, PullSubscription
from landbridge.client.reading import Reading
from landbridge.client.replies import Reply
from landbridge.client.requests import TIMEOUT, Asking
from landbridge.client.subscription import Subscription
from landbridge.client.transaction import Transaction
from landbridge.client.wire import dial_of, end_future
from landbridge.core.log.batch import Headers, build
from landbridge.core.log.keys import check_key
from landbridge.core.names import CONTENT_TOPIC, check_name, is_pattern
from landbridge.errors import BadRequest, TimedOut, TooLarge
from landbridge.protocol import frames

if TYPE_CHECKING:
    from landbridge.client import nouns
    from landbridge.client.nouns import Asynchronous, Noun
    from landbridge.client.telemetry import Telemetry

W = TypeVar("W")

MOST_PREFETCH = 1_000_000


class Receipt(msgspec.Struct, frozen=True):
    """Says that a message is stored."""

    #: The message's id.
    id: str
    #: Its place in the topic's log.
    offset: int
    #: It was stored before, by another publish with the same idempotency key, or with the same id where the
    #: topic's ids are unique. Id and offset are those of the message that is stored.
    repeated: bool = False


class BatchReceipt(msgspec.Struct, frozen=True):
    """Says that a batch is stored: ``first, repeated = await bus.publish_batch(…)``."""

    #: Place of its first message in the topic's log; the others follow it.
    first: int
    #: All of it was stored before.
    repeated: bool
    #: The batch's id. A message that was given no id has this one and its index: ``<id>-0``, ``<id>-1``, …
    id: str

    def __iter__(self) -> Iterator[Any]:
        """The offset, and whether it was stored before."""
        return iter((self.first, self.repeated))


class WithNouns(Generic[W]):
    """The operations of a bus, by noun. A noun is made when it is first used: the table of operations takes
    longer to load than most programs that never use it would like."""

    topics: nouns.TopicCalls[W]
    types: nouns.TypeCalls[W]
    groups: nouns.GroupCalls[W]
    letters: nouns.LetterCalls[W]
    tokens: nouns.TokenCalls[W]
    services: nouns.ServiceCalls[W]
    status: nouns.StatusCalls[W]
    messages: nouns.MessageCalls[W]
    terminal: nouns.TerminalCalls[W]
    network: nouns.NetworkCalls[W]
    stages: nouns.StageCalls[W]
    documents: nouns.DocumentCalls[W]
    schedules: nouns.ScheduleCalls[W]
    webhooks: nouns.WebhookCalls[W]
    mails: nouns.MailCalls[W]
    sms: nouns.SmsCalls[W]
    websub: nouns.WebSubCalls[W]
    rules: nouns.RuleCalls[W]
    requests: nouns.RequestCalls[W]
    events: nouns.EventCalls[W]
    errors: nouns.ErrorCalls[W]
    limits: nouns.LimitCalls[W]
    logs: nouns.LogCalls[W]
    audit: nouns.AuditCalls[W]
    nodes: nouns.NodeCalls[W]

    def _make_noun(self, kind: type[Noun[W]]) -> Noun[W]:
        raise NotImplementedError

    if not TYPE_CHECKING:  # a checker of types goes by the annotations

        def __getattr__(self, name: str) -> Noun[W]:
            if name not in WithNouns.__annotations__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            from landbridge.client.nouns import NOUNS

            noun = self.__dict__[name] = self._make_noun(NOUNS[name])
            return noun


class Bus(TerminalLine, WithNouns["Asynchronous"]):
    """A connection to a terminal, made by ``landbridge.connect()``; use it with ``async with``."""

    _next_subscription = 1
    #: Where spans and metrics go; None: nowhere. See ``connect``.
    telemetry: Telemetry | None = None

    def _make_noun(self, kind: type[Noun[Asynchronous]]) -> Noun[Asynchronous]:
        return kind(self.call, lambda coroutine: coroutine)

    # -- publishing --------------------------------------------------------------------------------

    def _outbox(self, topic: str | None) -> Outbox:
        if self.closed is not None:
            raise self.closed
        topic = CONTENT_TOPIC if topic is None else topic
        found = self._recent.get(topic) or self._resenders.get(topic)
        if not isinstance(found, Outbox):
            found = self._resenders[check_name(topic, "topic")] = Outbox(self, topic)
        return found

    async def publish(
        self,
        topic: str | None,
        payload: Any,
        *,
        until: Until = "stored",
        timeout: float | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> Receipt:
        """Publish one message. Returns when the message is stored; or, with ``until="arrived"``, when it is
        stored at a terminal of each of the topic's groups; or, with "acked", when a consumer of each group
        has acked it.

        topic: None leaves it to rules who gets the message: all rules look at it that name no other source.
        timeout: seconds to wait for that; TimedOut says whether the message is stored.
        idempotency_key: names the request, best by a UUIDv7. A publish with a key that the topic knows stores
        nothing: the receipt is the first one's, with ``repeated``. KeyReused if the message is another
        one."""
        outbox = self._outbox(topic)
        topic = outbox.topic
        data = self.checked(payload if type(payload) is bytes else encode(payload))
        batch_id = self.new_id()
        id = options.get("id") or ""
        if options:
            rows = Rows()
            rows.add(data, **options)
            batch = rows.build(batch_id)
        else:
            batch = build((data,), id=batch_id, time=time.time_ns() // 1000)
        if timeout is None and until == "stored":
            return _receipt(id, batch_id, await self._stored(outbox, batch, idempotency_key))
        receipt: Receipt | None = None
        try:
            async with asyncio.timeout(timeout):
                receipt = _receipt(id, batch_id, await self._stored(outbox, batch, idempotency_key))
                if until != "stored":
                    await self.call("message.wait", topic=topic, offset=receipt.offset, until=until)
        except TimeoutError:
            if receipt is not None:
                raise TimedOut(
                    f"stored in {topic} at offset {receipt.offset}, id {receipt.id}, but not {until} within "
                    f"{timeout} s",
                    hint="it is on its way: don't publish it again, ask 'landbridge where ID'",
                ) from None
            if idempotency_key is not None:
                raise TimedOut(
                    f"not stored within {timeout} s", hint="publish it again with the same key"
                ) from None
            raise TimedOut(
                f"not stored within {timeout} s", hint="it may be stored yet: the bus goes on trying"
            ) from None
        return receipt

    async def publish_batch(
        self, topic: str | None, rows: Rows, *, idempotency_key: str | None = None
    ) -> BatchReceipt:
        """Publish messages as one batch: all of them are stored, next to each other, or none. One key covers
        the batch."""
        outbox = self._outbox(topic)
        for payload in rows.payloads:
            self.checked(payload)
        if not rows.payloads:
            raise BadRequest("a batch of no messages")
        batch_id = self.new_id()
        stored = await self._stored(outbox, rows.build(batch_id), idempotency_key)
        return BatchReceipt(stored.first, stored.repeated, (stored.batch or batch_id).hex())

    async def _stored(self, outbox: Outbox, batch: bytes, key: str | None) -> frames.Stored:
        """Send a batch and wait until it is stored."""
        if self.wire is not None and self.wire.nodes is not None:
            await self.come_near(outbox.topic)
        while outbox.full:
            await self.wait_for_room()
            if self.closed is not None:
                raise self.closed
        if key is not None:
            return await self._stored_once(outbox.topic, batch, key)
        done: asyncio.Future[frames.Stored] = asyncio.get_running_loop().create_future()
        outbox.put(batch, partial(end_future, done))
        return await done

    async def _stored_once(self, topic: str, batch: bytes, key: str) -> frames.Stored:
        """The same for a batch with a key, which needs no number: the key keeps it from being stored
        twice."""
        check_key(key)
        await self.check_feature("keys", "idempotency keys")
        if len(batch) > self.max_batch:
            raise TooLarge(f"a batch of {len(batch)} bytes, the terminal takes {self.max_batch}")
        self.unanswered += len(batch)
        try:
            answer: frames.Stored = await self.ask_patiently(
                lambda request: frames.PublishOnce(request, topic, key, self.producer), batch
            )
            return answer
        finally:
            self.unanswered -= len(batch)
            self.room_made()

    def publisher(self, topic: str | None) -> Publisher:
        """For many messages: they gather into batches, and you wait only when there is no room. None: as of
        ``publish``."""
        return Publisher(self, self._outbox(topic))

    def transaction(self, *, idempotency_key: str | None = None) -> Transaction:
        """Publishes and acks in one atomic commit. With a key that is known nothing happens a second time,
        and ``repeated`` of the transaction says so."""
        return Transaction(self, idempotency_key)

    # -- subscribing -------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str | Sequence[str] | None = None,
        *,
        match: Mapping[str, Any] | None = None,
        group: str | None = None,
        prefetch: int = 1000,
        start: Any = None,
        reply: bool = False,
        create: bool = True,
    ) -> Reading:
        """Read a topic, or several as one: a pattern (``orders.*``, where ``*`` is one word and ``#`` any
        number of words), or a list of names and patterns. Without a group: from now on, for this subscription
        alone, settled on delivery.

        A pattern stands for the topics at this terminal that the token may subscribe, and that aren't topics
        of dead letters; topics that are made later join by themselves.

        match: a query (docs/rules.md). Only messages that the query chooses are read: of the topics, or,
        without a topic, of all that was published without one. The query's rule is made where there is none;
        the rule chooses from what is published from then on.
        start: where a new group begins: "earliest" (the default), "latest", a datetime, a timedelta from now
        (negative: so long ago) or seconds since 1970.
        prefetch: how many messages may be here and unsettled.
        reply: requests to the topic come as well, as messages with ``wants_reply``; ``message.reply(value)``
        answers them.
        create: False refuses a topic or a group that is not there (``UnknownTopic``, ``UnknownGroup``), also
        after a reconnect, instead of making it."""
        if group is not None:
            check_name(group, "group")
        if not 1 <= prefetch <= MOST_PREFETCH:
            raise BadRequest(f"a prefetch of {prefetch}, allowed are 1 to {MOST_PREFETCH:,}")
        if not create and (match is not None or not isinstance(topic, str) or is_pattern(topic)):
            raise BadRequest("create=False is for one topic", hint="leave it out, or name one topic")
        if match is not None:
            if reply:
                raise BadRequest("requests go to a topic, not to a query", hint="leave out reply=")
            sources = sources_of(topic)
            return MatchedTopics(self, self._new_subscription, match, sources, group, prefetch, start)
        if topic is None:
            raise BadRequest("a subscription has a topic or a query", hint="subscribe(topic), or match={…}")
        if not isinstance(topic, str) or is_pattern(topic):
            names = [topic] if isinstance(topic, str) else list(topic)
            return ManyTopics(self, self._new_subscription, names, group, prefetch, start, reply)
        check_name(topic, "topic")
        number = self._new_subscription()
        return Subscription(self, number, topic, group, prefetch, start, reply, must_exist=not create)

    def _new_subscription(self) -> int:
        number = self._next_subscription
        self._next_subscription += 1
        return number

    def pull_from(
        self, topic: str, group: str, *, prefetch: int = MOST_HELD, start: Any = None
    ) -> PullSubscription:
        """A consumer of a group that gets messages only when it asks for them. Open it, then ``pull``.
        ``prefetch``: messages that it may hold and not have settled. ``start``: where a new group begins, as
        of ``subscribe``."""
        check_name(topic, "topic")
        check_name(group, "group")
        return PullSubscription(self, self._new_subscription(), topic, group, prefetch, start)

    async def close(self) -> None:
        """Disconnect: acks are sent and leases given back before. Callbacks of events are called no more."""
        watch: EventWatch | None = self.__dict__.get("_events")
        if watch is not None:
            watch.close()
        await super().close()

    # -- requests and events -----------------------------------------------------------------------

    @cached_property
    def _asking(self) -> Asking:
        return Asking(self)

    @overload
    async def request(
        self,
        topic: str,
        payload: Any,
        *,
        timeout: float = ...,
        durable: bool = ...,
        headers: Headers | None = ...,
        key: str | bytes | None = ...,
    ) -> Reply: ...

    @overload
    async def request(
        self,
        topic: str,
        payload: Any,
        *,
        timeout: float = ...,
        gather: Literal[True],
        headers: Headers | None = ...,
        key: str | bytes | None = ...,
    ) -> list[Reply]: ...

    @overload
    async def request(
        self,
        topic: str,
        payload: Any,
        *,
        timeout: float = ...,
        replies: int,
        headers: Headers | None = ...,
        key: str | bytes | None = ...,
    ) -> list[Reply]: ...

    async def request(
        self,
        topic: str,
        payload: Any,
        *,
        timeout: float = TIMEOUT,
        gather: bool = False,
        replies: int | None = None,
        durable: bool = False,
        headers: Headers | None = None,
        key: str | bytes | None = None,
    ) -> Reply | list[Reply]:
        """Ask whoever answers requests to a topic, and wait for the reply. ServiceFailed where the service
        failed, NoResponder where nobody answers, TimedOut after ``timeout`` seconds.

        gather: ask one consumer of each group that answers, and return the list of all replies; those that
        have come where the timeout ends it. ``reply.error`` tells of a service that failed. replies: the same
        for the first so many.
        durable: the request is stored before it is sent, survives restarts of terminals and services until
        its timeout, and reaches responders at other terminals."""
        if durable:
            if gather or replies is not None:
                raise BadRequest("a durable request has one reply", hint="leave out gather= and replies=")
            return await self._events.request(topic, payload, timeout, headers, key)
        if gather or replies is not None:
            return await self._asking.several(topic, payload, replies or 0, timeout, headers, key)
        return await self._asking.one(topic, payload, timeout, headers, key)

    @cached_property
    def _events(self) -> EventWatch:
        return EventWatch(self)

    async def trigger(
        self,
        topic: str,
        payload: Any,
        *,
        callback: Callable[[EventResult], Any] | str | None = None,
        within: float = 86_400.0,
        id: str | None = None,
        headers: Headers | None = None,
        key: str | None = None,
    ) -> str:
        """Store an event that some service answers when it can, and return its id at once. The outcome is
        kept for a day: ``bus.outcome(id)``.

        callback: where the outcome goes as well: a function, plain or async, that this bus calls with the
        EventResult, also after it had to connect again; a URL, which gets a POST; or "topic:NAME".
        within: seconds until the event has timed out."""
        return await self._events.trigger(topic, payload, callback, within, id, headers, key)

    async def outcome(self, id: str, *, wait: float = 0.0) -> EventResult:
        """What became of an event that was triggered with this token's subject; waits so many seconds for it
        to end."""
        return await self._events.outcome(id, wait)

    # -- bulk --------------------------------------------------------------------------------------

    async def fetch(self, topic: str, offset: int, max_bytes: int = 4 << 20) -> Stretch:
        """Read a topic's log by offset, as no group: nothing is settled, delayed, expired or left out."""
        check_name(topic, "topic")
        await self.come_near(topic)
        frame, tail = await self.ask(lambda request: frames.Fetch(request, topic, offset, max_bytes))
        return stretch(frame, tail)

    async def stage(self, stage: str, topic: str, data: bytes) -> tuple[int, int]:
        """Put a batch for a topic on a stage, where it stays hidden until ``stage.commit``. Returns the
        number of the stage's log and the first offset there. After a lost answer the batch may be there
        twice; a commit names the offsets that were answered, so the other copy is never published."""
        if len(data) > self.max_batch:
            raise TooLarge(f"a batch of {len(data)} bytes, the terminal takes {self.max_batch}")
        answer = await self.ask(lambda request: frames.Stage(request, stage, topic), data)
        log, first = answer.result
        return log, first


def _receipt(id: str, batch_id: bytes, stored: frames.Stored) -> Receipt:
    """``id``: the one that the message was given; empty: none."""
    return Receipt(id or f"{(stored.batch or batch_id).hex()}-0", stored.first, stored.repeated)


class Connecting:
    """What ``connect`` returns: use it with ``async with``, or ``await`` it. Any other use raises an error
    that says what to do instead."""

    def __init__(self, make: Callable[[], Bus]) -> None:
        self._make = make
        self._bus: Bus | None = None

    async def __aenter__(self) -> Bus:
        self._bus = self._make()
        return await self._bus.open()

    async def __aexit__(self, *error: Any) -> None:
        if self._bus is not None:
            await self._bus.close()

    def __await__(self) -> Any:
        return self._make().open().__await__()

    if not TYPE_CHECKING:  # a checker of types finds these mistakes by itself

        def __enter__(self) -> NoReturn:
            raise BadRequest(
                "this bus is asynchronous: a plain 'with' can't open it",
                hint="'async with landbridge.connect() as bus', or 'with landbridge.sync.connect() as bus'",
            )

        def __exit__(self, *error: Any) -> None:
            pass  # 'with' looks for it before it calls __enter__

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or not (hasattr(Bus, name) or name in WithNouns.__annotations__):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise BadRequest(
                f"{name!r} of a bus that is not open",
                hint=f"'async with landbridge.connect() as bus', then bus.{name}; or 'bus = await connect()'",
            )


def connect(
    url: str | None = None,
    *,
    token: str | Callable[[], str] | None = None,
    context: str | None = None,
    ca: str | None = None,
    name: str = "",
    patience: float = 30.0,
    telemetry: Telemetry | bool = False,
) -> Connecting:
    """Connect to a terminal: the one of the current context, or ``connect("lb://host:7420", token=…)``.

    token: a token, or a function that returns a fresh one for each connection. context: a context's name.
    ca: a file with the certificates to trust, for lbs:// with a CA of one's own. name: what the program calls
    itself, for the status log. patience: for how many seconds a publish that is refused for now (backlog or
    disk full) is tried again. telemetry: traces and metrics by OpenTelemetry (the extra ``otel``): True for
    its global providers, or ``landbridge.Telemetry(tracer_provider=…)``."""
    fixed = token() if callable(token) else token
    where = resolve(url, fixed, context, ca)
    dial = dial_of(where)
    chosen = token if callable(token) else where.token

    def make() -> Bus:
        bus = Bus(dial, chosen, name=name, patience=patience, address=where.url)
        if telemetry:
            bus.telemetry = telemetry if telemetry is not True else _global_telemetry()
            bus.telemetry.trace(bus)
        return bus

    return Connecting(make)


def _global_telemetry() -> Telemetry:
    from landbridge.client.telemetry import Telemetry

    return Telemetry()
