"""The senders of outlets: read their groups, send what they read, and note what came back.

An outlet is a durable group of its topic and two documents beside it. A sender is a client of the terminal.
It watches the documents, and reads each group in the name of the outlet's owner, with a credential for that
topic alone. A message is acked when the receiver has taken it, so each is sent at least once, also after a
``kill -9``. What follows from an answer is decided in ``landbridge.core.outlet``. How a message is sent is
the *form*: a request to a URL (``landbridge.gateways.webhooks``, ``websub``), a mail, an SMS.

A message that fails goes back to its group for a time (``requeue``). An ordered outlet doesn't do that: it
stops reading until the message may be tried again, and so does any outlet whose receiver throttles or whose
circuit is open. A stop closes the subscription, which gives back what was not settled without counting it.

Where the disk is full, sending goes on, as what is sent makes room: what came back is known in memory, and
written when there is room. Only what has to be on disk before it is sent (a cost) waits for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import msgspec
import structlog
from msgspec.structs import replace

from landbridge.client.bus import Bus
from landbridge.client.message import Message
from landbridge.client.reading import Reading
from landbridge.core.options import read_options
from landbridge.core.outlet import outlet as core
from landbridge.core.outlet.outlet import Admission, AfterAttempt, OutletProbe, OutletState, StoredOutlet
from landbridge.core.outlet.spec import OutletAttempt
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest, BusError, LeaseLost, Misuse, NotOwner, StoreFull, UnknownDocument

log = structlog.get_logger("landbridge.outlets")

#: Seconds between two looks at the clock at most: somebody may set it.
LOOK_EVERY = 1.0
#: Seconds after which what is known of successes is written; failures are written at once.
WRITE_AFTER = 1.0
#: Seconds until the topic is read again that could not be read, doubled each time, and at most.
AGAIN_AFTER, LONGEST_AGAIN = 1.0, 60.0
#: Seconds between two polls of a subscription that has nothing.
POLL = 60.0
#: (topic, name)
OutletKey = tuple[str, str]


class OutletForm(Protocol):
    """What outlets of one kind don't have in common with others."""

    #: What one is called.
    noun: str
    #: The collection of what the sender writes down.
    states: str
    #: Messages of one of them that are sent at the same time, unless it is ordered.
    width: int

    def group_name(self, name: str) -> str:
        """The group that is read."""

    def gathers(self, stored: Any) -> GatheringRule | None:
        """How many messages go together; None: each by itself."""

    def admit(self, stored: Any, state: OutletState, message: Message, now: int) -> Admission:
        """Whether a message may be sent now. A state that is another one is on disk before it is sent."""

    async def send(self, stored: Any, messages: list[Message], number: int, now: int) -> OutletAttempt:
        """Send messages, several where it gathers them. ``number``: of the attempt."""

    def admit_test(self, stored: Any, state: OutletState, now: int) -> Admission:
        """Whether a test may be sent now, as of ``admit``."""

    async def send_test(self, stored: Any, probe: OutletProbe, now: int) -> OutletAttempt:
        """Send what shows that the receiver can be reached."""

    def after_attempt(
        self, stored: Any, state: OutletState, attempt: OutletAttempt, now: int
    ) -> AfterAttempt:
        """What follows from an answer."""

    async def on_disabled(self, bus: Bus, stored: Any, why: str) -> None:
        """Nothing more is sent. Tell who has to know."""


class GatheringRule(NamedTuple):
    """So many messages go together, or those that have come this many seconds after the first of them."""

    most: int
    within: float


class EachAlone:
    """What forms have that send each message by itself, and at once."""

    def gathers(self, stored: Any) -> GatheringRule | None:
        """They do not."""
        return None

    def admit(self, stored: Any, state: OutletState, message: Message, now: int) -> Admission:
        """Every message may be sent."""
        return Admission(state)

    def admit_test(self, stored: Any, state: OutletState, now: int) -> Admission:
        """Every test may be sent."""
        return Admission(state)

    def after_attempt(
        self, stored: Any, state: OutletState, attempt: OutletAttempt, now: int
    ) -> AfterAttempt:
        """What follows from an answer."""
        return core.after_attempt(stored.spec, state, attempt, now)


class ToldByStatus:
    """What forms have whose owners learn from the status log that one is disabled."""

    noun: str

    async def on_disabled(self, bus: Bus, stored: Any, why: str) -> None:
        """Write an event of the status log that names the outlet."""
        topic, name = stored.spec.topic, stored.spec.name
        log.warning(f"{self.noun}_disabled", topic=topic, outlet=name, why=why)
        await bus.status.note(f"{self.noun}_disabled", f"{self.noun} {name} of {topic}: {why}", topic=topic)


class OutletSenders:
    """The senders of one form, by topic and name.

    ``bus``: for the documents and the status log. ``bus_of``: makes a bus that is not open yet, in the name
    of an owner, for a topic. ``clock``: the terminal's. Whoever has one calls ``take`` with what is stored,
    and ``stop`` at the end.
    """

    def __init__(
        self,
        bus: Bus,
        bus_of: Callable[[str, str], Bus],
        clock: Callable[[], int],
        form: OutletForm,
    ) -> None:
        self.bus = bus
        self.bus_of = bus_of
        self.clock = clock
        self.form = form
        self.senders: dict[OutletKey, OutletSender] = {}
        #: Senders whose outlet is gone, until they have ended.
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def states(self) -> dict[OutletKey, OutletState]:
        """How far each of them is."""
        return {key: sender.state for key, sender in self.senders.items()}

    def take(self, key: OutletKey, stored: StoredOutlet | None) -> None:
        """This is stored now; None: nothing is sent from now on."""
        sender = self.senders.get(key)
        if stored is None:
            if sender is not None:
                del self.senders[key]
                ending = asyncio.ensure_future(sender.stop())
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
        elif sender is None or sender.stored.created_at != stored.created_at:
            # Another one of the same name: the sender of the one before ends by itself.
            self.senders[key] = OutletSender(self, stored, sender)
        else:
            sender.take(stored)

    async def end(self, key: OutletKey) -> None:
        """End one, and wait until it reads its group no more. ``take`` begins again."""
        if (sender := self.senders.pop(key, None)) is not None:
            await sender.stop()

    async def stop(self) -> None:
        """End all of them. What is being sent is sent again by whoever comes next."""
        await asyncio.gather(*(sender.stop() for sender in self.senders.values()))
        if self._ending:
            await asyncio.wait(self._ending)


class WatchedSenders(OutletSenders):
    """The senders of all outlets of one kind, while its block lasts: it watches their documents."""

    def __init__(
        self,
        bus: Bus,
        bus_of: Callable[[str, str], Bus],
        clock: Callable[[], int],
        form: OutletForm,
        collection: str,
        kind: type[StoredOutlet],
    ) -> None:
        """``collection``: of the documents, which are of this ``kind``."""
        super().__init__(bus, bus_of, clock, form)
        self._collection = collection
        self._kind = kind
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
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
                async for found in self.bus.documents.watch(self._collection, topic="*"):
                    document = found.document
                    self._read((found.topic, found.key), None if document is None else document.value)
            except BusError as error:
                if self.bus.closed is not None:
                    return
                log.warning("outlets are listed again", kind=self.form.noun, why=str(error))
                await asyncio.sleep(AGAIN_AFTER)

    def _read(self, key: OutletKey, value: object) -> None:
        """This is what the document says."""
        try:
            stored = None if value is None else read_options(value, self._kind, self.form.noun)
        except BadRequest as error:
            log.warning(f"a {self.form.noun} can't be read", topic=key[0], name=key[1], why=str(error))
            stored = None
        if stored is not None and (stored.spec.topic, stored.spec.name) != key:
            stored = None  # not written by the terminal
        self.take(key, stored)


class OutletSender:
    """Sends one outlet."""

    def __init__(
        self, senders: OutletSenders, stored: StoredOutlet, before: OutletSender | None = None
    ) -> None:
        self._senders = senders
        self._form = senders.form
        self.stored = stored
        self._bus = senders.bus
        self._clock = senders.clock
        self._key = (stored.spec.topic, stored.spec.name)
        self._log = log.bind(topic=self._key[0], **{senders.form.noun: self._key[1]})
        #: What it writes, the version on disk, and whether there is something to write.
        self._state = OutletState()
        self._version = ""
        self._dirty = False
        self._writing = asyncio.Lock()
        self._write_soon: asyncio.Task[None] | None = None
        #: Set: stop reading, and look again what is to be done.
        self._close = asyncio.Event()
        self._tests: asyncio.Task[None] | None = None
        #: The loop's time before which no request is sent, where there is a rate.
        self._next_at = 0.0
        #: Why a message of an ordered outlet was not sent, other than an answer or a lost connection.
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
    def state(self) -> OutletState:
        """What it knows of itself."""
        return self._state

    def take(self, stored: StoredOutlet) -> None:
        """The options, the secrets or the pause have changed."""
        before, self.stored = self.stored, stored
        if _steers(before) != _steers(stored):
            self._close.set()
        if self._version:  # else they are sent once that is read
            self._begin_tests()

    async def _run(self, before: OutletSender | None) -> None:
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
                    _tell("a sender failed, it goes on", error)
                if isinstance(error, NotOwner):  # another node sends from now on, or this one again
                    self._log.info("the topic goes to another node", why=str(error))
                else:
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
            await self._write_or_later()
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
                self._state = read_options(found.value, OutletState, "outlet")
            except BadRequest as error:
                self._log.warning("the state can't be read, it begins anew", why=str(error))
                self._state = OutletState()
        self._version = found.version

    def _write_later(self) -> None:
        self._dirty = True
        if self._write_soon is None:
            self._write_soon = asyncio.ensure_future(self._write_in_a_while())
            self._write_soon.add_done_callback(tell_crash)

    async def _write_in_a_while(self) -> None:
        after = WRITE_AFTER
        try:
            while self._dirty:  # again, where there was a success during the write
                await asyncio.sleep(after)
                try:
                    await self._write()
                except StoreFull:
                    after = min(LONGEST_AGAIN, 2 * after)
        except BusError as error:
            self._log.info("attempts are not written yet", why=str(error))
        finally:
            self._write_soon = None

    async def _write_or_later(self) -> None:
        """Write the state; later, where the disk is full. Only what is sent makes room."""
        try:
            await self._write()
        except StoreFull:
            self._write_later()

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
        """Let ``….show`` say why nothing is sent."""
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
            gathering = self._form.gathers(stored)
            prefetch = width if gathering is None else gathering.most
            # A group that was deleted must not come back, without the options and the match that it had.
            subscription = bus.subscribe(topic, group=group, prefetch=prefetch, create=False)
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
            messages = await self._gather(subscription)
            if not messages:
                room.release()
                continue
            if rate := self.stored.spec.rate:
                self._next_at = asyncio.get_running_loop().time() + 1 / rate
            task = asyncio.ensure_future(self._deliver(messages))
            sending.add(task)
            task.add_done_callback(sending.discard)
            task.add_done_callback(lambda _: room.release())

    async def _gather(self, subscription: Reading) -> list[Message]:
        """The messages that go next: one, or those that go together. They are leased meanwhile."""
        gathering = self._form.gathers(self.stored)
        messages: list[Message] = []
        loop = asyncio.get_running_loop()
        end = loop.time() + POLL
        while not self._close.is_set() and (left := end - loop.time()) > 0:
            message = await subscription.poll(left)
            if self._close.is_set():
                break
            if message is None:
                return messages
            if not await self._admit(message):
                continue
            messages.append(message)
            if gathering is None or len(messages) >= gathering.most:
                # Also if something has closed it meanwhile: what was admitted may be counted already.
                return messages
            if len(messages) == 1:
                end = loop.time() + gathering.within
        return [] if self._close.is_set() else messages

    async def _admit(self, message: Message) -> bool:
        """Whether it may be sent now; else it was given up, or nothing is sent for a while."""
        try:
            found = self._form.admit(self.stored, self._state, message, self._clock())
        except Exception as error:  # those behind it go on
            await self._give_back([message], error)
            return False
        if found.verdict == "bury":
            self._state = core.after_burial(found.state)
            await message.bury(found.cause[: core.LONGEST_DETAIL])
            await self._write_or_later()
            return False
        await self._enter(found)
        if found.verdict == "leave":
            self._close.set()
        return found.verdict == "send"

    async def _enter(self, found: Admission) -> None:
        """What was admitted is on disk before it is sent."""
        if found.state == self._state:
            return
        self._state = found.state
        try:
            await self._write()
        except BusError:
            self._state = core.refund(self._state, found.state.spent[0], found.units)
            raise

    async def _keep_rate(self) -> None:
        """Wait until a request may be sent, where there is a rate."""
        left = self._next_at - asyncio.get_running_loop().time()
        if self.stored.spec.rate is not None and left > 0:
            await asyncio.sleep(left)

    async def _deliver(self, messages: list[Message]) -> None:
        try:
            await self._send(messages)
        except LeaseLost:
            self._close.set()  # the connection was lost, or the group moved: it is delivered again
        except BusError as error:
            self._log.warning("a message is sent again", offset=messages[0].offset, why=str(error))
            self._close.set()
        except Exception as error:
            await self._give_back(messages, error)

    async def _give_back(self, messages: list[Message], error: Exception) -> None:
        """Something is wrong with the sender: the messages wait, and somebody is told."""
        if self.stored.spec.ordered:
            # It holds the others: the subscription is closed, and opened again after a while.
            self._crash = error
            self._close.set()
            return
        _tell(f"message {messages[0].offset} of {self.stored.reads} was not sent by an outlet", error)
        try:
            for message in messages:
                delay = core.retry_delay(message.id, message.attempt) or core.RETRIES[-1]
                await message.requeue(delay, cause=f"{type(error).__name__}: {error}"[: core.LONGEST_DETAIL])
        except BusError as lost:
            self._log.warning("a message is sent again", offset=messages[0].offset, why=str(lost))
            self._close.set()

    async def _send(self, messages: list[Message]) -> None:
        spec, before, first = self.stored.spec, self._state, messages[0]
        number = core.number_of(before, spec, first.offset, first.attempt)
        attempt = await self._form.send(self.stored, messages, number, self._clock())
        # From here to the next await, nobody else changes the state.
        after = self._form.after_attempt(self.stored, self._state, attempt, self._clock())
        was_disabled, self._state, self._dirty = self._state.disabled_at, after.state, True
        if not self._may_go_on() or core.circuit(before, attempt.at) == "half-open":
            self._close.set()
        if after.settlement == "ack":
            self._write_later()
            await asyncio.gather(*(message.ack(wait=True) for message in messages))
            return
        for message in messages:
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
        await self._write_or_later()

    def _may_go_on(self) -> bool:
        """Whether the next message may be sent now."""
        state, stored = self._state, self.stored
        if stored.spec.ordered and state.recent and state.recent[-1].verdict != "delivered":
            return False
        return not core.is_disabled(stored, state) and core.circuit(state, self._clock()) != "open"

    # -- tests -------------------------------------------------------------------------------------

    def _begin_tests(self) -> None:
        if self._tests is None and self._next_test() is not None:
            self._tests = asyncio.ensure_future(self._run_tests())
            self._tests.add_done_callback(tell_crash)

    async def _run_tests(self) -> None:
        """Send the tests that were asked for, one after the other."""
        try:
            while (probe := self._next_test()) is not None:
                attempt = await self._test(probe)
                self._state = core.after_test(self._state, attempt, probe)
                await self._write_or_later()
        except Misuse as error:
            self._log.info("a test is given up", why=str(error))  # the outlet was deleted meanwhile
        except BusError as error:
            self._log.warning("tests wait", why=str(error))
        finally:
            self._tests = None

    async def _test(self, probe: OutletProbe) -> OutletAttempt:
        found = self._form.admit_test(self.stored, self._state, self._clock())
        if found.verdict != "send":
            return OutletAttempt(
                id=probe.id, at=self._clock(), seconds=0.0, verdict="failed", detail=found.cause
            )
        await self._enter(found)
        return await self._form.send_test(self.stored, probe, self._clock())

    def _next_test(self) -> OutletProbe | None:
        waiting = (probe for probe in self.stored.tests if probe.at > self._state.tested_to)
        return next(waiting, None)


def _tell(what: str, error: BaseException) -> None:
    """Report an error that is nobody's answer, as the loop reports those of callbacks."""
    asyncio.get_running_loop().call_exception_handler({"message": what, "exception": error})


def tell_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _tell("a task of the outlets failed", error)


def _steers(stored: StoredOutlet) -> tuple[Any, ...]:
    """What of an outlet decides how its topic is read."""
    return stored.spec, stored.owner, stored.paused_at, stored.resumed_at


def _told(attempt: OutletAttempt) -> str:
    """Why a message was not taken."""
    if not attempt.status:
        return attempt.detail
    detail = f": {attempt.detail}" if attempt.detail else ""
    return f"the receiver answered {attempt.status}{detail}"[: core.LONGEST_DETAIL]
