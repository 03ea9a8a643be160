"""The sender of webhooks: reads their groups and posts to their URLs.

A webhook is a durable group of its topic and two documents beside it. The sender is a client of the terminal.
It watches the documents, and reads each group in the name of the webhook's owner, with a credential for that
topic alone. A message is acked when the receiver has answered with 2xx, so each is sent at least once, also
after a ``kill -9``. What follows from an answer is decided in ``landbridge.core.webhook``. Subscriptions of
feeds (``landbridge.gateways.websub``) are sent by the same sender in another *form*: other documents, other
headers, and another end.

A message that fails goes back to its group for a time (``requeue``). An ordered webhook doesn't do that: it
stops reading until the message may be tried again, and so does any webhook whose receiver throttles or whose
circuit is open. A stop closes the subscription, which gives back what was not settled without counting it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import structlog
from msgspec.structs import replace

from landbridge.client.bus import Bus
from landbridge.client.message import Message
from landbridge.client.reading import Reading
from landbridge.core.options import read_options
from landbridge.core.time import SECOND
from landbridge.core.webhook import webhook as core
from landbridge.core.webhook.signature import sign, webhook_id
from landbridge.core.webhook.spec import WebhookAttempt
from landbridge.core.webhook.webhook import AfterAttempt, StoredWebhook, WebhookProbe, WebhookState
from landbridge.errors import BadRequest, BusError, LeaseLost, Misuse, UnknownDocument
from landbridge.gateways.host_rooms import HostRooms
from landbridge.gateways.outgoing import CONNECTIONS, HttpAnswer, HttpResult, HttpTimedOut, OutgoingHttp

log = structlog.get_logger("landbridge.webhooks")

#: Requests under way at once: of one webhook; to one host, as many as OutgoingHttp has connections to it; and
#: of all, fewer than it sends at once, so that none spends its time limit waiting there.
CONCURRENCY, MOST_AT_ONE_HOST, MOST_AT_ONCE = 8, CONNECTIONS, 48
#: Seconds between two looks at the clock at most: somebody may set it.
LOOK_EVERY = 1.0
#: Seconds after which what is known of successes is written; failures are written at once.
WRITE_AFTER = 1.0
#: Seconds until the topic is read again that could not be read, doubled each time, and at most.
AGAIN_AFTER, LONGEST_AGAIN = 1.0, 60.0
#: Seconds between two polls of a subscription that has nothing.
POLL = 60.0
#: The type of the test's event.
TEST = {"type": "landbridge.test"}

#: (topic, name)
WebhookKey = tuple[str, str]


class SendingForm(Protocol):
    """What webhooks and subscriptions of feeds don't have in common."""

    #: The collection of what the sender writes down.
    states: str
    #: Messages of one of them that are sent at the same time, unless it is ordered.
    width: int

    def group_name(self, name: str) -> str:
        """The group that is read."""

    def headers(self, stored: StoredWebhook, id: str, body: bytes, now: int) -> dict[str, str]:
        """What makes a request one of its kind. ``id``: the message's."""

    def after_attempt(
        self, stored: StoredWebhook, state: WebhookState, attempt: WebhookAttempt, now: int
    ) -> AfterAttempt:
        """What follows from an answer."""

    async def on_disabled(self, bus: Bus, stored: StoredWebhook, why: str) -> None:
        """Nothing more is sent. Tell who has to know."""


class WebhookForm:
    """Webhooks: signed as Standard Webhooks says."""

    states = core.STATES
    width = CONCURRENCY

    def group_name(self, name: str) -> str:
        """The group that is read."""
        return core.group_name(name)

    def headers(self, stored: StoredWebhook, id: str, body: bytes, now: int) -> dict[str, str]:
        """Id, moment and signature."""
        shown, timestamp = webhook_id(id), now // SECOND
        return {
            "webhook-id": shown,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(core.valid_secrets(stored.secrets, now), shown, timestamp, body),
        }

    def after_attempt(
        self, stored: StoredWebhook, state: WebhookState, attempt: WebhookAttempt, now: int
    ) -> AfterAttempt:
        """What follows from an answer."""
        return core.after_attempt(stored.spec, state, attempt, now)

    async def on_disabled(self, bus: Bus, stored: StoredWebhook, why: str) -> None:
        """Write an event of the status log that names the webhook."""
        topic, name = stored.spec.topic, stored.spec.name
        log.warning("webhook_disabled", topic=topic, webhook=name, why=why)
        await bus.status.note("webhook_disabled", f"webhook {name} of {topic}: {why}", topic=topic)


class PostSenders:
    """The senders of one form, by topic and name.

    ``bus``: for the documents and the status log. ``bus_of``: makes a bus that is not open yet, in the name
    of an owner, for a topic. ``clock``: the terminal's. Whoever has one calls ``take`` with what is stored,
    and ``stop`` at the end.
    """

    def __init__(
        self,
        bus: Bus,
        bus_of: Callable[[str, str], Bus],
        http: OutgoingHttp,
        clock: Callable[[], int],
        form: SendingForm,
    ) -> None:
        self.bus = bus
        self.bus_of = bus_of
        self.http = http
        self.clock = clock
        self.form = form
        self.rooms = HostRooms(MOST_AT_ONCE, MOST_AT_ONE_HOST)
        self._senders: dict[WebhookKey, WebhookSender] = {}
        #: Senders whose webhook is gone, until they have ended.
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def states(self) -> dict[WebhookKey, WebhookState]:
        """How far each of them is."""
        return {key: sender.state for key, sender in self._senders.items()}

    def take(self, key: WebhookKey, stored: StoredWebhook | None) -> None:
        """This is stored now; None: nothing is sent from now on."""
        sender = self._senders.get(key)
        if stored is None:
            if sender is not None:
                del self._senders[key]
                ending = asyncio.ensure_future(sender.stop())
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
        elif sender is None or sender.stored.created_at != stored.created_at:
            # Another one of the same name: the sender of the one before ends by itself.
            self._senders[key] = WebhookSender(self, stored, sender)
        else:
            sender.take(stored)

    async def end(self, key: WebhookKey) -> None:
        """End one, and wait until it reads its group no more. ``take`` begins again."""
        if (sender := self._senders.pop(key, None)) is not None:
            await sender.stop()

    async def stop(self) -> None:
        """End all of them. What is being sent is sent again by whoever comes next."""
        await asyncio.gather(*(sender.stop() for sender in self._senders.values()))
        if self._ending:
            await asyncio.wait(self._ending)


class WebhookSenders(PostSenders):
    """Sends the webhooks of a terminal while its block lasts."""

    def __init__(
        self, bus: Bus, bus_of: Callable[[str, str], Bus], http: OutgoingHttp, clock: Callable[[], int]
    ) -> None:
        super().__init__(bus, bus_of, http, clock, WebhookForm())
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> WebhookSenders:
        self._watching = asyncio.ensure_future(self._watch())
        self._watching.add_done_callback(tell_crash)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self.stop()

    async def _watch(self) -> None:
        while True:
            try:
                async for found in self.bus.documents.watch(core.COLLECTION, topic="*"):
                    document = found.document
                    self._read((found.topic, found.key), None if document is None else document.value)
            except BusError as error:
                if self.bus.closed is not None:
                    return
                log.warning("webhooks are listed again", why=str(error))
                await asyncio.sleep(AGAIN_AFTER)

    def _read(self, key: WebhookKey, value: object) -> None:
        """This is what the document says."""
        try:
            stored = None if value is None else read_options(value, StoredWebhook, "webhook")
        except BadRequest as error:
            log.warning("a webhook can't be read", topic=key[0], name=key[1], why=str(error))
            stored = None
        if stored is not None and (stored.spec.topic, stored.spec.name) != key:
            stored = None  # not written by the terminal
        self.take(key, stored)


class WebhookSender:
    """Sends one webhook."""

    def __init__(
        self, senders: PostSenders, stored: StoredWebhook, before: WebhookSender | None = None
    ) -> None:
        self._senders = senders
        self._form = senders.form
        self.stored = stored
        self._bus = senders.bus
        self._clock = senders.clock
        self._key = (stored.spec.topic, stored.spec.name)
        self._log = log.bind(topic=self._key[0], webhook=self._key[1])
        #: What it writes, the version on disk, and whether there is something to write.
        self._state = WebhookState()
        self._version = ""
        self._dirty = False
        self._writing = asyncio.Lock()
        self._write_soon: asyncio.Task[None] | None = None
        #: Set: stop reading, and look again what is to be done.
        self._close = asyncio.Event()
        self._tests: asyncio.Task[None] | None = None
        #: The loop's time before which no request is sent, where there is a rate.
        self._next_at = 0.0
        #: Why a message of an ordered webhook was not sent, other than an answer or a lost connection.
        self._crash: Exception | None = None
        self._task = asyncio.ensure_future(self._run(before))
        self._task.add_done_callback(tell_crash)

    # -- life --------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End it. What is being sent is sent again by whoever comes next."""
        tasks = [task for task in (self._task, self._tests, self._write_soon) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if self._dirty:
            try:
                await self._write()
            except BusError as error:
                self._log.info("the last attempts are not written", why=str(error))

    @property
    def state(self) -> WebhookState:
        """What it knows of itself."""
        return self._state

    def take(self, stored: StoredWebhook) -> None:
        """The options, the secrets or the pause have changed."""
        before, self.stored = self.stored, stored
        if _steers(before) != _steers(stored):
            self._close.set()
        if self._version:  # else they are sent once that is read
            self._begin_tests()

    async def _run(self, before: WebhookSender | None) -> None:
        if before is not None:
            await before.stop()
        again = AGAIN_AFTER
        while True:
            try:
                await self._read_state()
                self._begin_tests()
                await self._turn()
                again = AGAIN_AFTER
            except UnknownDocument:
                return  # it was deleted
            except Exception as error:
                if self._bus.closed is not None:
                    return
                if not isinstance(error, BusError):
                    _tell("a webhook's sender failed, it goes on", error)
                self._log.warning("the topic can't be read for now", why=str(error), again_after=again)
                await self._note_trouble(str(error) or type(error).__name__)
                await self._until_closed(again)
                again = min(LONGEST_AGAIN, 2 * again)

    async def _turn(self) -> None:
        """Wait until it may send, or send until it may not."""
        self._close.clear()
        now = self._clock()
        state = core.take_up(self.stored, self._state)
        if state != self._state or self._dirty:
            self._state = state
            await self._write()
        if self.stored.paused_at or core.is_disabled(self.stored, state):
            await self._close.wait()
        elif core.circuit(state, now) == "open":
            await self._until_closed(min(LOOK_EVERY, (state.blocked_until - now) / SECOND))
        else:
            await self._read_topic()

    async def _until_closed(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._close.wait()
        except TimeoutError:
            pass

    # -- its state ---------------------------------------------------------------------------------

    async def _read_state(self) -> None:
        """The state on disk, with whatever is not written yet. UnknownDocument: the webhook is gone."""
        topic, name = self._key
        found = await self._bus.documents.read(self._form.states, name, topic=topic)
        if not self._version or (found.version != self._version and not self._dirty):
            try:
                self._state = read_options(found.value, WebhookState, "webhook")
            except BadRequest as error:
                self._log.warning("the state can't be read, it begins anew", why=str(error))
                self._state = WebhookState()
        self._version = found.version

    def _write_later(self) -> None:
        self._dirty = True
        if self._write_soon is None:
            self._write_soon = asyncio.ensure_future(self._write_in_a_while())
            self._write_soon.add_done_callback(tell_crash)

    async def _write_in_a_while(self) -> None:
        try:
            while self._dirty:  # again, where there was a success during the write
                await asyncio.sleep(WRITE_AFTER)
                await self._write()
        except BusError as error:
            self._log.info("attempts are not written yet", why=str(error))
        finally:
            self._write_soon = None

    async def _write(self) -> None:
        """Write the state. Nobody else does."""
        async with self._writing:
            topic, name = self._key
            self._dirty = False
            value = msgspec.to_builtins(self._state)
            try:
                written = await self._bus.documents.update(
                    self._form.states, name, value, version=self._version, topic=topic
                )
            except BusError:
                self._dirty = True
                raise
            self._version = written.version

    async def _note_trouble(self, trouble: str) -> None:
        """Let ``webhook.show`` say why nothing is sent."""
        if not self._version or self._state.trouble == trouble:
            return
        self._state = replace(self._state, trouble=trouble[: core.LONGEST_DETAIL])
        try:
            await self._write()
        except BusError as error:
            self._log.info("the trouble is not written", why=str(error))

    # -- sending -----------------------------------------------------------------------------------

    async def _read_topic(self) -> None:
        stored = self.stored
        topic, group = stored.reads, self._form.group_name(self._key[1])
        is_closed = core.circuit(self._state, self._clock()) == "closed"
        is_slow = stored.spec.rate is not None and stored.spec.rate < 1
        width = 1 if stored.spec.ordered or is_slow or not is_closed else self._form.width
        sending: set[asyncio.Task[None]] = set()
        async with self._senders.bus_of(stored.owner, stored.spec.topic) as bus:
            # Subscribing would make a topic or a group that is gone, and the group without the match.
            await bus.groups.show(topic, group)
            subscription = bus.subscribe(topic, group=group, prefetch=width)
            async with subscription:
                await self._note_trouble("")
                reading = asyncio.ensure_future(self._hand_on(subscription, width, sending))
                closing = asyncio.ensure_future(self._close.wait())
                try:
                    await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
                    # What is being sent ends within the time limit of a request, and is settled and noted,
                    # also if reading has ended by itself, which it does where more messages wait.
                    if sending and not (reading.done() and reading.exception()):
                        await asyncio.wait(sending)
                finally:
                    tasks = {reading, closing, *sending}
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
                if not reading.cancelled():
                    reading.result()
        if self._crash is not None:
            crash, self._crash = self._crash, None
            raise crash

    async def _hand_on(self, subscription: Reading, width: int, sending: set[asyncio.Task[None]]) -> None:
        room = asyncio.Semaphore(width)
        while not self._close.is_set():
            await room.acquire()
            await self._keep_rate()
            message = await subscription.poll(POLL)
            if message is None or self._close.is_set():
                room.release()
                continue
            if rate := self.stored.spec.rate:
                self._next_at = asyncio.get_running_loop().time() + 1 / rate
            task = asyncio.ensure_future(self._deliver(message))
            sending.add(task)
            task.add_done_callback(sending.discard)
            task.add_done_callback(lambda _: room.release())

    async def _keep_rate(self) -> None:
        """Wait until a request may be sent, where there is a rate."""
        left = self._next_at - asyncio.get_running_loop().time()
        if self.stored.spec.rate is not None and left > 0:
            await asyncio.sleep(left)

    async def _deliver(self, message: Message) -> None:
        try:
            await self._send(message)
        except LeaseLost:
            self._close.set()  # the connection was lost, or the group moved: it is delivered again
        except BusError as error:
            self._log.warning("a message is sent again", offset=message.offset, why=str(error))
            self._close.set()
        except Exception as error:
            await self._give_back(message, error)

    async def _give_back(self, message: Message, error: Exception) -> None:
        """Something is wrong with the sender: the message waits, and somebody is told."""
        if self.stored.spec.ordered:
            # It holds the others: the subscription is closed, and opened again after a while.
            self._crash = error
            self._close.set()
            return
        _tell(f"message {message.offset} of {self.stored.reads} was not sent to a webhook", error)
        delay = core.retry_delay(message.id, message.attempt) or core.RETRIES[-1]
        try:
            await message.requeue(delay, cause=f"{type(error).__name__}: {error}"[: core.LONGEST_DETAIL])
        except BusError as lost:
            self._log.warning("a message is sent again", offset=message.offset, why=str(lost))
            self._close.set()

    async def _send(self, message: Message) -> None:
        spec, before = self.stored.spec, self._state
        number = core.number_of(before, spec, message.offset, message.attempt)
        own = {"Landbridge-Topic": self.stored.reads, "Landbridge-Offset": str(message.offset)}
        own["Landbridge-Attempt"] = str(number)
        said = core.content_type(spec.content_type, message.headers.get("content-type"))
        attempt = await self._post(message.id, message.payload, said, own, number, message.offset)
        # From here to the next await, nobody else changes the state.
        after = self._form.after_attempt(self.stored, self._state, attempt, self._clock())
        was_disabled, self._state, self._dirty = self._state.disabled_at, after.state, True
        if not self._may_go_on() or core.circuit(before, attempt.at) == "half-open":
            self._close.set()
        if after.settlement == "ack":
            self._write_later()
            await message.ack(wait=True)
            return
        if after.settlement == "requeue":
            await message.requeue(after.after, cause=_told(attempt))
        elif after.settlement == "bury":
            await message.bury(_told(attempt))
        if after.state.disabled_at and not was_disabled:
            # Told before it is written: after a kill in between, the message is sent and told again.
            try:
                await self._form.on_disabled(self._bus, self.stored, after.state.disabled_why)
            except BusError as error:
                self._log.warning("note refused", why=str(error))
        await self._write()

    def _may_go_on(self) -> bool:
        """Whether the next message may be sent now."""
        state, stored = self._state, self.stored
        if stored.spec.ordered and state.recent and state.recent[-1].verdict != "delivered":
            return False
        return not core.is_disabled(stored, state) and core.circuit(state, self._clock()) != "open"

    async def _post(
        self, id: str, body: bytes, content_type: str, own: dict[str, str], number: int, offset: int | None
    ) -> WebhookAttempt:
        """Send a request, signed for this attempt."""
        stored = self.stored
        async with self._senders.rooms.taken(stored.spec.url):
            now = self._clock()
            headers = {
                **own,
                "Content-Type": content_type,
                "User-Agent": "landbridge",
                **self._form.headers(stored, id, body, now),
            }
            begun = asyncio.get_running_loop().time()
            result = await self._senders.http.send("POST", stored.spec.url, body, headers)
            seconds = round(asyncio.get_running_loop().time() - begun, 3)
        status = result.status if isinstance(result, HttpAnswer) else 0
        return WebhookAttempt(
            id=webhook_id(id),
            at=now,
            seconds=seconds,
            verdict=core.verdict_of(status),
            number=number,
            offset=offset,
            status=status,
            detail=_why(result),
            answer=_start_of(result),
            retry_after=result.retry_after if isinstance(result, HttpAnswer) else None,
        )

    # -- tests -------------------------------------------------------------------------------------

    def _begin_tests(self) -> None:
        if self._tests is None and self._next_test() is not None:
            self._tests = asyncio.ensure_future(self._run_tests())
            self._tests.add_done_callback(tell_crash)

    async def _run_tests(self) -> None:
        """Send the tests that were asked for, one after the other."""
        try:
            while (probe := self._next_test()) is not None:
                event = TEST | {"topic": self._key[0], "webhook": self._key[1], "time": probe.at}
                attempt = await self._post(
                    probe.id, msgspec.json.encode(event), "application/json", {}, 1, None
                )
                self._state = core.after_test(self._state, attempt, probe)
                await self._write()
        except Misuse as error:
            self._log.info("a test is given up", why=str(error))  # the webhook was deleted meanwhile
        except BusError as error:
            self._log.warning("tests wait", why=str(error))
        finally:
            self._tests = None

    def _next_test(self) -> WebhookProbe | None:
        waiting = (probe for probe in self.stored.tests if probe.at > self._state.tested_to)
        return next(waiting, None)


def _tell(what: str, error: BaseException) -> None:
    """Report an error that is nobody's answer, as the loop reports those of callbacks."""
    asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})


def tell_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _tell("a task of the webhooks failed", error)


def _steers(stored: StoredWebhook) -> tuple[Any, ...]:
    """What of a webhook decides how its topic is read."""
    return stored.spec, stored.owner, stored.paused_at, stored.resumed_at


def _why(result: HttpResult) -> str:
    """Why there was no answer."""
    if isinstance(result, HttpAnswer):
        return ""
    if isinstance(result, HttpTimedOut):
        return f"no answer within {result.seconds:.0f} s"
    return result.why[: core.LONGEST_DETAIL]


def _start_of(result: HttpResult) -> str:
    if not isinstance(result, HttpAnswer):
        return ""
    return result.body[: 4 * core.LONGEST_ANSWER].decode(errors="replace")[: core.LONGEST_ANSWER]


def _told(attempt: WebhookAttempt) -> str:
    """Why a message was not taken."""
    return f"the receiver answered {attempt.status}" if attempt.status else attempt.detail
