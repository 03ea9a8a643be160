"""The scheduler: publishes what schedules ask for, at its time.

A schedule is a document beside its target topic. The scheduler is a client of the terminal: it watches these
documents, sleeps until the next firing is due, and then moves the document and publishes in one transaction.
The document has to be of the version that was decided upon, so of two schedulers, or of one before and one
after a crash, exactly one fires. The messages are published in the name of the schedule's owner: the
scheduler connects as the owner, with a credential for that topic alone, so the terminal decides by its own
rules whether the owner still may publish there.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import structlog

from landbridge.client.bus import Bus
from landbridge.core.options import read_options
from landbridge.core.schedule import schedule as core
from landbridge.core.schedule.schedule import ScheduleDecision, StoredSchedule, Why, timetable_of
from landbridge.core.schedule.timetable import Timetable
from landbridge.core.time import SECOND
from landbridge.errors import (
    BadRequest,
    BusError,
    DocumentChanged,
    Misuse,
    UnknownDocument,
)

log = structlog.get_logger("landbridge.schedules")

#: Seconds between two looks at the clock at most: somebody may set it.
LOOK_EVERY = 1.0
#: Seconds until a firing is tried again that the terminal could not take for now.
AGAIN_AFTER = 1.0
#: Schedules that fire at the same time; their commits are one then.
AT_ONCE = 32
#: Connections in owners' names that are kept.
MOST_BUSES = 128
#: Schedules that wait for a message to be settled at the same time; below a connection's max_waits.
MOST_WAITS = 500
#: Schedules that are read in one turn of the loop.
READ_AT_ONCE = 100

#: (topic, name)
ScheduleKey = tuple[str, str]


class Planned:
    """A schedule as the scheduler knows it."""

    __slots__ = ("changed", "due_at", "key", "stored", "timetable", "version", "waited", "waiting", "working")

    def __init__(self, key: ScheduleKey) -> None:
        self.key = key
        self.stored: StoredSchedule | None = None  #: None: it is gone, or damaged
        self.timetable: Timetable
        self.version = ""
        self.due_at: int | None = None
        self.working = False  #: a task decides about it at the moment
        self.changed = False  #: the document was written by others while that task was at work
        #: Ends when the last message is settled; only while firings wait for that.
        self.waiting: asyncio.Task[None] | None = None
        self.waited = False  #: that task has ended, and nothing has been published since


class Scheduler:
    """Runs the schedules of a terminal.

    ``bus``: for the documents and the status log. ``bus_of``: makes a bus that is not open yet, in the name
    of an owner, for a topic. ``clock``: the terminal's.
    """

    def __init__(self, bus: Bus, bus_of: Callable[[str, str], Bus], clock: Callable[[], int]) -> None:
        self._bus = bus
        self._bus_of = bus_of
        self._clock = clock
        self._planned: dict[ScheduleKey, Planned] = {}
        #: (due at, key), with entries that no longer count.
        self._queue: list[tuple[int, ScheduleKey]] = []
        self._woken = asyncio.Event()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._waits = asyncio.Semaphore(MOST_WAITS)
        self._buses: OrderedDict[ScheduleKey, asyncio.Task[Bus]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Scheduler:
        self._spawn(self._watch())
        self._spawn(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for opening in self._buses.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                await opening.result().close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._keep(asyncio.ensure_future(work))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Hold a task until it has ended."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._bus.closed is None:
            log.error("the scheduler failed", exc_info=error)

    def look(self) -> None:
        """The clock was moved: look at it now."""
        self._woken.set()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do at this moment, as far as it knows the documents."""
        if any(planned.working for planned in self._planned.values()):
            return False
        return not self._queue or self._queue[0][0] > self._clock()

    @property
    def versions(self) -> dict[ScheduleKey, str]:
        """The versions of the documents that it knows."""
        return {key: planned.version for key, planned in self._planned.items()}

    # -- what there is -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        seen = 0
        async for found in self._bus.documents.watch(core.COLLECTION, topic="*"):
            key = (found.topic, found.key)
            planned = self._planned.get(key) or Planned(key)
            if planned.working:
                planned.changed = True  # the task that works on it reads it again
            elif found.document is None:
                self._forget(planned)
            else:
                self._take(planned, found.document.version, found.document.value)
                self._arm(planned)
            seen += 1
            if seen % READ_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _take(self, planned: Planned, version: str, value: object) -> None:
        """This is what the document says."""
        try:
            stored = read_options(value, StoredSchedule, "schedule")
            planned.timetable = timetable_of(stored.spec, stored.anchor)
        except BadRequest as error:
            log.warning("a schedule can't be read", topic=planned.key[0], name=planned.key[1], why=str(error))
            self._forget(planned)
            return
        if (stored.spec.topic, stored.spec.name) != planned.key:
            self._forget(planned)  # not written by the terminal
            return
        planned.stored, planned.version = stored, version
        self._planned[planned.key] = planned

    def _arm(self, planned: Planned) -> None:
        """Be back when there is something to decide."""
        stored = planned.stored
        if stored is None:
            return
        self._plan(planned, core.due_at(stored, planned.timetable))
        if not stored.state.waiting or stored.state.paused_at:
            self._wait_no_more(planned)
        elif planned.waiting is None:
            planned.waiting = asyncio.ensure_future(self._when_settled(planned))
            self._keep(planned.waiting)

    def _forget(self, planned: Planned) -> None:
        planned.stored, planned.due_at = None, None
        self._wait_no_more(planned)
        self._planned.pop(planned.key, None)

    def _wait_no_more(self, planned: Planned) -> None:
        if planned.waiting is not None:
            planned.waiting.cancel()
            planned.waiting = None

    def _plan(self, planned: Planned, due_at: int | None) -> None:
        planned.due_at = due_at
        if due_at is not None:
            heapq.heappush(self._queue, (due_at, planned.key))
            if self._queue[0][1] == planned.key:
                self._woken.set()

    # -- when --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            now = self._clock()
            while self._queue and self._queue[0][0] <= now:
                due_at, key = heapq.heappop(self._queue)
                planned = self._planned.get(key)
                if planned is not None and planned.due_at == due_at and not planned.working:
                    self._begin(planned)
            span = LOOK_EVERY
            if self._queue:
                span = min(span, max(0.0, (self._queue[0][0] - self._clock()) / SECOND))
            try:
                async with asyncio.timeout(span):
                    await self._woken.wait()
            except TimeoutError:
                pass

    def _begin(self, planned: Planned) -> None:
        planned.working, planned.due_at = True, None
        self._spawn(self._work(planned))

    async def _work(self, planned: Planned) -> None:
        """Decide about a schedule until there is nothing to decide now."""
        try:
            async with self._room:
                while planned.stored is not None:
                    planned.changed = False
                    try:
                        more = await self._fire(planned, planned.stored)
                    except DocumentChanged:
                        more = True  # somebody has changed the schedule, or another scheduler was first
                    if more or planned.changed:
                        await self._read(planned)
                    else:
                        break
        except BusError as error:
            # Nobody knows whether it was stored; the document will say so.
            log.warning("a firing is tried again", schedule="/".join(planned.key), why=str(error))
            self._spawn(self._again(planned))
            return
        planned.working = False
        self._arm(planned)

    async def _again(self, planned: Planned) -> None:
        await asyncio.sleep(AGAIN_AFTER)
        try:
            await self._read(planned)
        except BusError:
            self._spawn(self._again(planned))
        else:
            await self._work(planned)

    async def _read(self, planned: Planned) -> None:
        topic, name = planned.key
        try:
            found = await self._bus.documents.read(core.COLLECTION, name, topic=topic)
        except UnknownDocument:
            self._forget(planned)
            return
        self._take(planned, found.version, found.value)

    # -- firing ------------------------------------------------------------------------------------

    async def _fire(self, planned: Planned, stored: StoredSchedule) -> bool:
        """Do what is due now. Returns whether there may be more."""
        now = self._clock()
        due_at = core.due_at(stored, planned.timetable)
        is_due = due_at is not None and due_at <= now
        if not is_due and not (stored.state.waiting and planned.waited):
            return False
        busy, alone = await self._overlap(stored)
        decision = core.decide(stored, planned.timetable, now, busy=busy, alone=alone)
        if decision.state == stored.state:
            return False
        planned.waited = planned.waited and not decision.orders
        if not decision.orders:
            await self._write(planned, stored, decision.state)
        else:
            try:
                offset = await self._publish(planned, stored, decision)
            except (DocumentChanged, UnknownDocument):
                raise DocumentChanged("the schedule has changed meanwhile") from None
            except Misuse as error:
                await self._give_up(planned, stored, decision, now, error)
            else:
                await self._note_offsets(planned, decision, offset)
        if decision.missed is not None:
            await self._tell("schedule_missed", stored, decision.missed.count, _said_of(decision.missed))
        return True

    async def _publish(
        self, planned: Planned, stored: StoredSchedule, decision: ScheduleDecision
    ) -> int | None:
        """Move the schedule and publish, in one commit. Returns the offset of the first message."""
        spec = stored.spec
        changed = msgspec.structs.replace(stored, state=decision.state)
        bus = await self._owners_bus(stored)
        async with bus.transaction() as transaction:
            await transaction.update_document(
                core.COLLECTION, spec.name, changed, version=planned.version, topic=spec.topic
            )
            for order in decision.orders:
                await transaction.publish(
                    spec.topic,
                    spec.payload,
                    key=spec.key,
                    priority=spec.priority,
                    id=core.message_id(spec.name, order.at, order.why),
                    headers={
                        **spec.headers,
                        core.NAME_HEADER: spec.name,
                        core.TIME_HEADER: core.show_fire_time(order.at),
                        core.COUNT_HEADER: str(order.number),
                    },
                )
        firsts = [first for _, first in transaction.offsets if first >= 0]
        return firsts[0] if firsts else None

    async def _note_offsets(self, planned: Planned, decision: ScheduleDecision, first: int | None) -> None:
        """Write down where the messages are. Should the terminal be stopped before, they are searched when
        somebody needs to know."""
        if first is None:
            return
        offsets: dict[tuple[int, Why], int] = {
            (order.at, order.why): first + index for index, order in enumerate(decision.orders)
        }
        await self._read(planned)
        if planned.stored is not None:
            state = core.note_offsets(planned.stored.state, offsets)
            if state != planned.stored.state:
                await self._write(planned, planned.stored, state)

    async def _give_up(
        self, planned: Planned, stored: StoredSchedule, decision: ScheduleDecision, now: int, error: Misuse
    ) -> None:
        """The topic doesn't take these messages, and won't if they are tried again."""
        await self._drop_bus((stored.owner, stored.spec.topic))
        state = core.refuse(decision, stored.state, now, error.code)
        await self._write(planned, stored, state)
        await self._tell("schedule_refused", stored, len(decision.orders), str(error))

    async def _write(self, planned: Planned, stored: StoredSchedule, state: core.ScheduleState) -> None:
        topic, name = planned.key
        value = msgspec.to_builtins(msgspec.structs.replace(stored, state=state))
        try:
            await self._bus.documents.update(
                core.COLLECTION, name, value, version=planned.version, topic=topic
            )
        except UnknownDocument:
            raise DocumentChanged("the schedule was removed") from None

    async def _tell(self, cause: str, stored: StoredSchedule, count: int, detail: str) -> None:
        """An event of the status log that names the schedule."""
        spec = stored.spec
        log.warning(cause, topic=spec.topic, schedule=spec.name, firings=count, detail=detail)
        text = f"schedule {spec.name} of {spec.topic}: {detail}"
        try:
            await self._bus.status.note(cause, text, topic=spec.topic, messages=count)
        except BusError as error:
            log.warning("note refused", cause=cause, why=str(error))

    # -- overlap -----------------------------------------------------------------------------------

    async def _overlap(self, stored: StoredSchedule) -> tuple[bool, bool]:
        """(is the last message not settled everywhere, has the topic no group)"""
        last, topic = stored.state.last, stored.spec.topic
        if stored.spec.overlap == "allow":
            return False, False
        try:
            bus = await self._owners_bus(stored)
            groups = await bus.groups.list(topic=topic)
        except Misuse:
            return False, True  # there is no such topic any more, or publishing will tell what is wrong
        alone = not any(group.durable for group in groups)
        if last is None or alone:
            return False, alone
        id = core.message_id(stored.spec.name, last.at, last.why)
        try:
            found = await bus.messages.where(id, topic=topic, offset=last.offset)
        except Misuse:
            return False, False  # the log has forgotten the message, or the topic was made anew
        places = [group for place in found.places for group in place.groups]
        return any(group.state != "settled" for group in places), False

    async def _when_settled(self, planned: Planned) -> None:
        """Wait until the last message is settled, then let what waits for that be decided."""
        if planned.waited:
            await asyncio.sleep(AGAIN_AFTER)  # it was settled, and is not any more
        try:
            async with self._waits:
                if planned.stored is not None:
                    await self._settled(planned.stored)
        except BusError as error:
            log.info("a message is waited for again", schedule="/".join(planned.key), why=str(error))
            await asyncio.sleep(AGAIN_AFTER)
        planned.waiting, planned.waited = None, True
        if planned.working:
            planned.changed = True
        elif planned.stored is not None:
            self._begin(planned)

    async def _settled(self, stored: StoredSchedule) -> None:
        last = stored.state.last
        if last is None or last.offset is None:
            await asyncio.sleep(AGAIN_AFTER)
            return
        bus = await self._owners_bus(stored)
        try:
            await bus.messages.wait(stored.spec.topic, last.offset, "acked")
        except Misuse:
            pass  # no group, or no such message any more: nothing that it could overlap

    # -- owners ------------------------------------------------------------------------------------

    async def _owners_bus(self, stored: StoredSchedule) -> Bus:
        key = (stored.owner, stored.spec.topic)
        opening = self._buses.get(key)
        if opening is not None and opening.done():
            is_open = not opening.cancelled() and opening.exception() is None
            if not is_open or opening.result().closed is not None:
                opening = None
        if opening is None:
            opening = self._buses[key] = asyncio.ensure_future(self._bus_of(*key).open())
            # Whoever awaits it gets the error.
            opening.add_done_callback(lambda task: task.cancelled() or task.exception())
            while len(self._buses) > MOST_BUSES:
                await self._drop_bus(next(iter(self._buses)))
        self._buses.move_to_end(key)
        return await asyncio.shield(opening)

    async def _drop_bus(self, key: ScheduleKey) -> None:
        opening = self._buses.pop(key, None)
        if opening is not None and opening.done() and not opening.cancelled() and not opening.exception():
            await opening.result().close()


def _said_of(missed: core.Firing) -> str:
    more = "more than 1000" if missed.count > core.MOST_COUNTED else str(missed.count)
    return f"{more} missed, the first at {core.show_fire_time(missed.at)}"
