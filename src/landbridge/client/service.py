"""A service: decorated handlers that consume topics, with concurrency, retries and a graceful end.

    service = landbridge.Service("billing")

    @service.on("orders", group="billing", concurrency=8)
    async def bill(order: Order, message: landbridge.Message) -> None: ...

A plain ``def`` is a handler too, and runs in a thread. What handlers share (a pool of connections to a
database) is a resource, and gets to them by the type of a parameter; hooks run at the start and at the end.

A handler that returns has its message acked; one that raises has it requeued, by the handler's Retry policy,
and buried when that is exhausted. A payload that doesn't fit the handler's type is buried at once: no retry
would mend it. While a handler runs, the service asks for more time whenever a part of the group's
``ack_within`` has passed, so a slow handler keeps its message.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from landbridge.client.answering import RequestDesk
from landbridge.client.bus import Bus, connect
from landbridge.client.calling import THREADS, Resources, arguments_of, is_plain, name_of
from landbridge.client.lifespan import Lifespan
from landbridge.client.many_topics import ManyTopics
from landbridge.client.matching import sources_of
from landbridge.client.message import DeliveredBatch, Message
from landbridge.client.payload import failure_of
from landbridge.client.reading import Reading
from landbridge.client.registration import Registration
from landbridge.client.replies import RequestMessage
from landbridge.client.reporting import ErrorReporter
from landbridge.client.subscription import place
from landbridge.core.names import CONTENT_TOPIC, check_name, check_pattern, is_pattern
from landbridge.core.rules.query import read_query
from landbridge.core.topic import group_spec
from landbridge.errors import BadPayload, BadRequest, BusError, GroupExists, LeaseLost

log = logging.getLogger("landbridge")

Handler = Callable[..., Any]
#: What a decorator of a service takes and returns.
F = TypeVar("F", bound=Callable[..., Any])
#: Seconds that handlers get to finish when the service is stopped.
GRACE = 30.0
#: Seconds for which a handler that doesn't return keeps its message, unless ``longest`` says otherwise.
LONGEST = 3600.0
#: Seconds for the last reports of failed handlers when the service ends.
REPORT_WITHIN = 2.0
#: The share of ``ack_within`` after which more time is asked for.
EXTEND_AFTER = 1 / 3


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """What a service does when a handler raises. None leaves the decision to the group's options.

    ``attempts`` and the group's ``max_attempts`` are two limits on one count, the deliveries of a message.
    The lower limit buries the message. This program applies ``attempts``, and only when its handler raises.
    The terminal applies ``max_attempts`` (10 unless the group says otherwise) for every consumer of the
    group, also when a consumer dies or lets a lease run out. So more attempts than that never happen."""

    #: Attempts, the first included, after which this service buries the message.
    attempts: int | None = None
    #: Seconds before the second attempt, doubled with each one up to ``most``.
    first: float | None = None
    most: float = 300.0
    #: Exceptions after which a message is buried at once, as no retry would help.
    bury_on: tuple[type[BaseException], ...] = ()

    def after(self, attempt: int) -> float | None:
        """Seconds to wait after an attempt, counted from 1; None: the group's backoff."""
        return None if self.first is None else min(self.most, self.first * 2.0 ** min(attempt - 1, 60))


@dataclass(eq=False)
class Route:
    """A handler and where its messages come from."""

    handler: Handler
    #: A name or a pattern, or several of them.
    topics: tuple[str, ...]
    group: str
    concurrency: int
    prefetch: int
    retry: Retry
    start: Any
    #: Seconds for which a handler that doesn't return keeps its message.
    longest: float
    #: Options that the group must have; empty = any.
    options: dict[str, Any]
    #: It answers requests: what the handler returns is the reply.
    reply: bool = False
    #: What it handles of the topics is what this query chooses; None: everything.
    query: Mapping[str, Any] | None = None
    #: When a burial was last logged, in the loop's time, and how many came since.
    told_at = -1.0
    untold = 0

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.prefetch < self.concurrency:
            raise BadRequest("concurrency is at least 1, and prefetch at least as much")
        if "name" in self.options:
            raise BadRequest("a group is named by group=")
        most = self.options.get("max_attempts")
        if most is not None and self.retry.attempts is not None and self.retry.attempts > most:
            raise BadRequest(
                f"Retry(attempts={self.retry.attempts}) is more than the group's max_attempts={most}",
                hint="the terminal buries a message after max_attempts: raise it, or leave one of them out",
            )
        if self.query is not None:
            read_query(dict(self.query))
            sources_of(self.topics)
        for topic in self.topics:  # a mistake is raised here, not when the service runs
            check_pattern(topic) if is_pattern(topic) else check_name(topic, "topic")
        if self.options:
            group_spec({"topic": "any", "name": self.group, **self.options})
        #: The handler is no coroutine, and runs in a thread.
        self.is_plain = is_plain(self.handler)
        self._arguments = arguments_of(self.handler)

    @property
    def topic(self) -> str:
        """The topic, or all names and patterns."""
        return ", ".join(self.topics)

    @property
    def source(self) -> str | list[str]:
        """What to subscribe to."""
        return self.topics[0] if len(self.topics) == 1 else list(self.topics)

    @property
    def is_of_one_topic(self) -> bool:
        """Does it handle the messages of one topic, which is known?"""
        return len(self.topics) == 1 and self.query is None and not is_pattern(self.topics[0])

    def values(self, message: Message, resources: Resources) -> dict[str, Any]:
        """The handler's arguments for a message. BadPayload if the payload is not of the wanted type."""
        values: dict[str, Any] = {}
        for name, kind in self._arguments.items():
            if _is_message(kind):
                values[name] = resources.message(message) if self.is_plain else message
                continue
            found, value = resources.find(kind, plain=self.is_plain)
            if found:
                values[name] = value
            elif kind is bytes:
                values[name] = message.payload
            elif kind is str:
                try:
                    values[name] = message.text()
                except UnicodeDecodeError as error:
                    raise BadPayload(f"the payload is not text: {error}") from None
            else:
                values[name] = message.json(kind)
        return values


def _is_message(kind: Any) -> bool:
    """Is it the type of messages, of this bus or of the one without async?"""
    if kind is Message:
        return True
    # ``landbridge.sync`` is not loaded only to be compared with.
    return getattr(kind, "__module__", "") == "landbridge.client.sync" and kind.__name__ == "Message"


class Service:
    """A program that consumes topics by handlers.

    name: of the service, and of its groups unless a handler names another. concurrency, retry: the defaults
    of its handlers. threads: how many plain functions run at once. version, description, owner, metadata:
    what the terminal is told of it, where the token is the service's own or an admin's; see ``registration``,
    whose ``health`` the program may set."""

    def __init__(
        self,
        name: str,
        *,
        concurrency: int = 1,
        retry: Retry | None = None,
        threads: int = THREADS,
        version: str = "",
        description: str = "",
        owner: str = "",
        metadata: dict[str, str] | None = None,
    ) -> None:
        if threads < 1:
            raise BadRequest(f"{threads} threads")
        self.name = name
        self._threads = threads
        self._lifespan = Lifespan(name)
        #: What the terminal is told of the service, and how it is.
        self.registration = Registration(
            name, version=version, description=description, owner=owner, metadata=metadata or {}
        )
        self.routes: list[Route] = []
        self._concurrency = concurrency
        self._retry = retry or Retry()
        self._stopping: asyncio.Event | None = None
        #: Tells the terminal of failed handlers.
        self._errors: ErrorReporter | None = None

    def on(
        self,
        topic: str | Sequence[str] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        group: str | None = None,
        concurrency: int | None = None,
        ordered: Literal["key"] | None = None,
        prefetch: int | None = None,
        retry: Retry | None = None,
        start: Any = None,
        longest: float = LONGEST,
        reply: bool = False,
        **options: Any,
    ) -> Callable[[F], F]:
        """Handle a topic's messages, or those of several: ``"orders.*"``, ``["orders.eu", "returns"]``.
        ``group`` is the service's name unless it is given.

        query: handle what this query chooses of the topics, or, without a topic, of all that is published
        without one (docs/rules.md). The query's rule is made where there is none, and the group is one of the
        rule's topic.
        ordered="key": messages of one key are handled one at a time and in order, by all consumers of the
        group together, and those of different keys at once; the group has the option ``order="key"``.
        reply: answer requests to the topic (``bus.request``): what the handler returns is the reply, and an
        exception is a failed reply (ServiceFailed names a code and a status). Messages that want no reply are
        handled as ever.
        start: where the group begins if it is new. longest: seconds for which a handler keeps its message; if
        it still runs then, the message is given to another consumer when ``ack_within`` is over. options:
        those of the group, as group.create takes them (discipline, ack_within, max_attempts, backoff,
        backoff_most, dead_letter, match). A group that exists must have the ones that are given; GroupExists
        otherwise."""

        if ordered not in (None, "key"):
            raise BadRequest(f"ordered={ordered!r}", hint="ordered='key'")
        if ordered is not None:
            options["order"] = ordered
        if topic is None and query is None:
            raise BadRequest("a handler has a topic or a query", hint="service.on(topic), or query={…}")
        if query is not None and reply:
            raise BadRequest("requests go to a topic, not to a query", hint="leave out reply=")
        topics = (CONTENT_TOPIC,) if topic is None else (topic,) if isinstance(topic, str) else tuple(topic)
        if not topics:
            raise BadRequest("no topic to handle", hint="a name, a pattern, or a list of them")

        def register(handler: F) -> F:
            at_once = concurrency or self._concurrency
            self.routes.append(
                Route(
                    handler,
                    topics,
                    group or self.name,
                    at_once,
                    prefetch or max(64, 2 * at_once),
                    retry or self._retry,
                    start,
                    longest,
                    options,
                    reply,
                    query,
                )
            )
            return handler

        return register

    def resource(self, function: F) -> F:
        """Declare what handlers and hooks share while the service runs. They get it by a parameter of its
        type, which is what the function's annotation says that it makes::

            @service.resource
            async def database() -> AsyncIterator[Database]:
                async with Database.connect() as database:
                    yield database

        Or an async function that returns the value, or a function that returns an async context manager. It
        may have parameters itself: Bus, and resources that were declared before."""
        self._lifespan.add_resource(function)
        return function

    def on_startup(self, function: F) -> F:
        """Run a function before the first message is taken. Parameters: Bus, and resources by type."""
        self._lifespan.add_startup(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Run a function when the last handler has ended, while the bus is still there."""
        self._lifespan.add_shutdown(function)
        return function

    # -- running -----------------------------------------------------------------------------------

    async def run(self, bus: Bus | None = None, *, telemetry: bool = False) -> None:
        """Run until stopped: by ``stop()``, SIGTERM or SIGINT, or an error of the bus. Without a bus the
        service connects by itself, with ``telemetry`` where it is asked for."""
        if not self.routes:
            raise BadRequest(
                f"the service {self.name} handles nothing", hint="decorate a function with @service.on"
            )
        self._stopping = asyncio.Event()
        if bus is not None:
            await self._serve(bus)
            return
        with _signals(self.stop):
            async with connect(name=self.name, telemetry=telemetry) as own:
                await self._serve(own)

    def stop(self) -> None:
        """Take no more messages, finish those in hand, return from ``run``."""
        if self._stopping is not None:
            self._stopping.set()

    @asynccontextmanager
    async def running(self, bus: Bus) -> AsyncIterator[Service]:
        """Run the service inside a block, for tests."""
        task = asyncio.ensure_future(self.run(bus))
        await asyncio.sleep(0)  # it has begun, so that ``stop`` finds it
        try:
            yield self
        finally:
            self.stop()
            await task

    async def _serve(self, bus: Bus) -> None:
        resources = Resources(bus, threads=self._threads)
        async with self._lifespan.running(resources):
            await self._consume_all(resources)

    async def _consume_all(self, resources: Resources) -> None:
        assert self._stopping is not None
        stop = asyncio.ensure_future(self._stopping.wait())
        workers = [asyncio.ensure_future(self._consume(route, resources)) for route in self.routes]
        telling = asyncio.ensure_future(self.registration.tell(resources.bus, self.routes))
        try:
            await asyncio.wait([stop, *workers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopping.set()
            stop.cancel()
            telling.cancel()
            failures = [
                result
                for result in await asyncio.gather(*workers, return_exceptions=True)
                if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError)
            ]
            if self._errors is not None:
                await self._errors.close(REPORT_WITHIN)
        if failures:
            raise failures[0]

    async def _consume(self, route: Route, resources: Resources) -> None:
        bus = resources.bus
        assert self._stopping is not None
        room = asyncio.Semaphore(route.concurrency)
        #: Handlers at work → the batch of the message, and until when the handler keeps it.
        tasks: dict[asyncio.Task[None], tuple[DeliveredBatch, float]] = {}
        subscription = bus.subscribe(
            route.source,
            match=route.query,
            group=route.group,
            prefetch=route.prefetch,
            start=route.start,
            reply=route.reply,
        )
        desk = RequestDesk(
            route.concurrency,
            lambda request: self.registration.timed(route, partial(self._answer, route, request, resources)),
        )
        if route.reply:
            subscription.on_request = desk.take
        messages = _messages(subscription)
        stopping = asyncio.ensure_future(self._stopping.wait())
        extending: asyncio.Task[None] | None = None
        try:
            if route.options and isinstance(subscription, ManyTopics):
                subscription.prepare = partial(_make_group, bus, route)
            elif route.options:
                await _make_group(bus, route, route.topic)
            await subscription.open()
            if route.retry.attempts is not None and route.is_of_one_topic:
                await _compare_attempts(bus, route)
            extending = asyncio.ensure_future(_extend(subscription, tasks))
            while not self._stopping.is_set():
                await room.acquire()
                if self._stopping.is_set():
                    break
                arrival = asyncio.ensure_future(anext(messages))
                await asyncio.wait([arrival, stopping], return_when=asyncio.FIRST_COMPLETED)
                if not arrival.done():
                    arrival.cancel()
                    await asyncio.gather(arrival, return_exceptions=True)
                    break
                try:
                    message = arrival.result()
                except StopAsyncIteration:
                    break  # the subscription has ended, as the bus was closed
                handle = partial(self._handle, route, message, resources)
                task = asyncio.ensure_future(self.registration.timed(route, handle))
                tasks[task] = message.batch, asyncio.get_running_loop().time() + route.longest
                task.add_done_callback(tasks.pop)
                task.add_done_callback(lambda _: room.release())
        finally:
            stopping.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=GRACE)
            for task in list(tasks):
                task.cancel()
            await desk.close(GRACE)
            if extending is not None:
                extending.cancel()
            await messages.aclose()
            # This sends the acks, and gives back what was only prefetched.
            await subscription.close()

    async def _handle(self, route: Route, message: Message, resources: Resources) -> None:
        bus = resources.bus
        try:
            try:
                values = route.values(message, resources)
            except BadPayload as error:
                if route.reply and message.wants_reply:
                    await message.fail(error)
                    return
                self._reporter(bus).note(_name(route), failure_of(error), message)
                self._tell_buried(route, message, error)
                await message.bury(f"bad_payload: {error}")
                return
            except BadRequest as error:  # the handler's type is at fault, not the payload
                await self._failed(route, message, error, bus)
                return
            except Exception as error:  # of a type that decodes itself
                await self._failed(route, message, error, bus)
                return
            try:
                result = await self._call(route, message, values, resources)
                is_reply = route.reply and message.wants_reply
                settled = message.reply(result) if is_reply else message.ack()
            except Exception as error:
                await self._failed(route, message, error, bus)
            else:
                await settled
        except LeaseLost:
            pass  # the handler took too long, or the connection was lost: the message comes again
        except BusError as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{self.name}: settling a message of {message.topic} failed", "exception": error}
            )

    async def _call(
        self, route: Route, message: Message, values: dict[str, Any], resources: Resources
    ) -> Any:
        """Call the handler, and return its result."""
        telemetry = resources.bus.telemetry
        if telemetry is None:
            return await _contained(resources.call(route.handler, values, plain=route.is_plain))
        with telemetry.handling(message, service=self.name):
            return await _contained(resources.call(route.handler, values, plain=route.is_plain))

    async def _answer(self, route: Route, request: RequestMessage, resources: Resources) -> None:
        """Answer a request that is stored nowhere. The requester hears of every failure."""
        try:
            result = await self._call(route, request, route.values(request, resources), resources)
            await request.reply(result)
        except Exception as error:
            self.registration.failed(route, error)
            failure = failure_of(error)
            if failure.status >= 500:  # below, the request was at fault, and the reply says so
                self._report_crash(f"{_name(route)} failed on a request to {route.topic}", error)
                self._reporter(resources.bus).note(_name(route), failure, request)
            await request.fail(error)

    def _reporter(self, bus: Bus) -> ErrorReporter:
        if self._errors is None or self._errors.bus is not bus:
            self._errors = ErrorReporter(bus, self.registration.version)
        return self._errors

    def _report_crash(self, what: str, error: Exception) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{self.name}: {what}", "exception": error}
        )

    async def _failed(self, route: Route, message: Message, error: Exception, bus: Bus) -> None:
        cause = f"{type(error).__name__}: {error}"
        self.registration.failed(route, error)
        failure = failure_of(error)
        is_request = route.reply and message.wants_reply
        if failure.status >= 500 or not is_request:
            self._reporter(bus).note(_name(route), failure, message)
        if is_request:
            if failure.status >= 500:
                self._report_crash(f"{_name(route)} failed on {route.topic} {message.offset}", error)
            await message.fail(error)
            return
        retry = route.retry
        exhausted = retry.attempts is not None and message.attempt >= retry.attempts
        given_up = exhausted or isinstance(error, retry.bury_on)
        asyncio.get_running_loop().call_exception_handler(
            {
                "message": f"{self.name}: {name_of(route.handler)} failed on {message.topic} "
                f"{message.offset}, which is {'buried' if given_up else 'requeued'}",
                "exception": error,
            }
        )
        if given_up:
            await message.bury(cause)
        else:
            await message.requeue(retry.after(message.attempt), cause=cause)

    def _tell_buried(self, route: Route, message: Message, error: BadPayload) -> None:
        """Log a burial, at most once a second for each route: a flood of bad messages is one line with a
        count."""
        self.registration.failed(route, error)
        route.untold += 1
        now = asyncio.get_running_loop().time()
        if now >= route.told_at + 1.0:
            others = f", {route.untold - 1} others before it" if route.untold > 1 else ""
            log.warning("%s: %s %d is buried%s: %s", self.name, message.topic, message.offset, others, error)
            route.told_at, route.untold = now, 0


def _name(route: Route) -> str:
    """The name of a handler, for people."""
    return str(getattr(route.handler, "__name__", "handler"))


async def _contained(calling: Awaitable[Any]) -> Any:
    """Wait for a handler. Whatever it raises is an Exception: SystemExit would end the service, and a
    cancellation that nobody asked for would leave its message unsettled until the lease ends."""
    task = asyncio.current_task()
    try:
        return await calling
    except Exception:
        raise
    except asyncio.CancelledError:
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the handler was cancelled from within") from None
    except GeneratorExit as error:
        if not _is_at_work(task):
            raise  # the loop has ended, and this coroutine is thrown away
        raise RuntimeError("the handler raised GeneratorExit") from error
    except BaseException as error:
        raise RuntimeError(f"the handler raised {type(error).__name__}: {error}") from error


def _is_at_work(task: asyncio.Task[Any] | None) -> bool:
    """Is this code called by that task?"""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no loop runs
        return False


async def _make_group(bus: Bus, route: Route, topic: str) -> None:
    """Make the route's group of a topic. A group that exists may differ only in options that the route
    doesn't name."""
    begin = {} if route.start is None else {"start": place(route.start)}
    try:
        await bus.call("group.create", topic=topic, name=route.group, **begin, **route.options)
    except GroupExists:
        wanted = group_spec({"topic": topic, "name": route.group, **route.options})
        found = (await bus.groups.show(topic, route.group)).options
        if any(getattr(found, option) != getattr(wanted, option) for option in route.options):
            raise


async def _compare_attempts(bus: Bus, route: Route) -> None:
    """Warn of a group that buries messages before the service has tried them as often as it wants."""
    try:
        most = (await bus.groups.show(route.topic, route.group)).options.max_attempts
    except BusError:
        return  # only good to know
    if route.retry.attempts is not None and route.retry.attempts > most:
        log.warning(
            "%s of %s: Retry(attempts=%d) never happens, the group's max_attempts is %d; "
            "'landbridge group update %s %s --max-attempts %d' raises it",
            *(route.group, route.topic, route.retry.attempts, most),
            *(route.topic, route.group, route.retry.attempts),
        )


async def _messages(subscription: Reading) -> AsyncGenerator[Message, None]:
    """The messages of a subscription. Unlike iterating it, stopping in the middle leaves it open: the leases
    of messages that are being handled must not be given back."""
    while (batch := await subscription.next_batch()) is not None:
        for message in subscription.messages_of(batch):
            yield message


async def _extend(
    subscription: Reading, tasks: dict[asyncio.Task[None], tuple[DeliveredBatch, float]]
) -> None:
    """Ask for more time for the messages that handlers are at."""
    if subscription.at_most_once:
        return
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(max(0.01, subscription.ack_within * EXTEND_AFTER))
        now = loop.time()
        batches = {
            batch for batch, until in tasks.values() if now < until and not batch.subscription.at_most_once
        }
        # A lease that is lost, or a connection, is found out by the handler's ack.
        await asyncio.gather(*(batch.extend() for batch in batches), return_exceptions=True)


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call ``stop`` inside the block; a second one ends the process as usual."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def receive() -> None:
        stop()
        remove()

    def remove() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, receive)
    try:
        yield
    finally:
        remove()
