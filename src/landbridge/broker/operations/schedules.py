"""Operations on schedules. They write the documents; the scheduler (``landbridge.gateways.scheduler``)
watches these documents and publishes.

A schedule belongs to whoever made or last changed it, its *owner*, and publishes in the owner's name. Its
owner may do everything with it, and so may an operator; but an operator who changes what it publishes becomes
its owner, so that nobody can publish in another's name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.documents import DocumentPlace, Edit, check_place, decode_value, encode_value
from landbridge.broker.operations.dispatcher import PAGE, Dispatcher, may_see
from landbridge.broker.operations.groups import topic_made
from landbridge.broker.shares import count_by_owner
from landbridge.broker.turns import Turns
from landbridge.core.options import differences, read_options
from landbridge.core.schedule import schedule as core
from landbridge.core.schedule.schedule import (
    ScheduleState,
    StoredSchedule,
    schedule_spec,
    timetable_of,
)
from landbridge.core.schedule.spec import ScheduleSpec
from landbridge.core.schedule.timetable import between
from landbridge.errors import (
    BadRequest,
    DocumentChanged,
    DocumentExists,
    Forbidden,
    ScheduleExists,
    StoreCorrupt,
    UnknownDocument,
    UnknownSchedule,
)
from landbridge.protocol import operations as table

T = TypeVar("T")
#: Next firings that schedule.show gives at most.
MOST_SHOWN = 100
#: Looks at an expression that count as one turn of the loop.
SCHEDULE_COUNTS = 32
#: The limit of their number, by its name.
LIMIT = "max_schedules"
#: A document that is written by others at the same time is read again so often.
TRIES = 20


class ScheduleOperations:
    """The handlers of schedule.*"""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._documents = broker.documents
        #: How many schedules each service has; None: to be counted when somebody makes one.
        self._counts: Counter[str] | None = None
        self._counting = asyncio.Lock()

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.SCHEDULE_CREATE, self.create)
        dispatcher.register(table.SCHEDULE_UPDATE, self.update)
        dispatcher.register(table.SCHEDULE_LIST, self.list_page)
        dispatcher.register(table.SCHEDULE_SHOW, self.show)
        dispatcher.register(table.SCHEDULE_PAUSE, self.pause)
        dispatcher.register(table.SCHEDULE_RESUME, self.resume)
        dispatcher.register(table.SCHEDULE_TRIGGER, self.trigger)
        dispatcher.register(table.SCHEDULE_BACKFILL, self.backfill)
        dispatcher.register(table.SCHEDULE_REMOVE, self.remove)

    # -- changing ----------------------------------------------------------------------------------

    async def create(self, caller: AuditedCaller, request: table.ScheduleCreate) -> table.ScheduleRow:
        broker = self._broker
        broker.publishing.check_target(caller, request.topic)
        spec = schedule_spec(msgspec.to_builtins(request))
        now = broker.clock()
        if timetable_of(spec, now).after(now) is None:
            raise BadRequest(f"{spec.when!r} names no moment that is to come")
        broker.table.topic_for(spec.topic, who=caller.subject, enter=topic_made(caller, spec.topic))
        stored = StoredSchedule(
            spec=spec,
            owner=caller.subject,
            created_at=now,
            anchor=now,
            state=ScheduleState(decided_to=now),
        )
        place = _place(spec.topic, spec.name)
        if await self._documents.read(place) is not None:  # it takes no further place
            return await self._same(caller, place, spec)
        await self._take_place(caller)
        try:
            await self._write(caller, place, stored, "")
        except DocumentExists:
            self._free_place(caller.subject)
            return await self._same(caller, place, spec)
        except BaseException:
            self._free_place(caller.subject)
            raise
        return self._describe(stored)

    async def _same(
        self, caller: AuditedCaller, place: DocumentPlace, spec: ScheduleSpec
    ) -> table.ScheduleRow:
        """The schedule that is there. ScheduleExists where it is another one."""
        _, found = await self._read(place)
        if (found.spec, found.owner) == (spec, caller.subject):
            caller.change_nothing()
            return self._describe(found)
        raise ScheduleExists(
            f"the schedule {spec.name} of {spec.topic} exists with other options: "
            f"{differences(found.spec, spec) or f'its owner is {found.owner}'}"
        )

    async def _take_place(self, caller: TokenBearer) -> None:
        """Count one more schedule. LimitReached where there are too many."""
        shares, subject = self._broker.shares, caller.subject
        async with self._counting:
            counts = self._counts
            # Counted again before one is refused: some may have gone with their topics.
            if counts is None or not shares.has_room(LIMIT, counts.total(), counts[subject], caller):
                counts = self._counts = await count_by_owner(self._documents, core.COLLECTION)
            shares.check(LIMIT, "schedules", counts.total(), partial(counts.__getitem__, subject), caller)
            counts[subject] += 1

    def _free_place(self, owner: str) -> None:
        if self._counts is not None:
            self._counts[owner] = max(0, self._counts[owner] - 1)

    async def update(self, caller: AuditedCaller, request: table.ScheduleUpdate) -> table.ScheduleRow:
        self._broker.publishing.check_target(caller, request.topic)
        now = self._broker.clock()

        def work(stored: StoredSchedule) -> tuple[StoredSchedule, None]:
            if stored.owner != caller.subject:
                self._counts = None
            spec = schedule_spec({**msgspec.to_builtins(stored.spec), **msgspec.to_builtins(request)})
            state, anchor = stored.state, stored.anchor
            if (spec.when, spec.zone) != (stored.spec.when, stored.spec.zone):
                # Never back: what has fired by the old expression doesn't fire again by the new one.
                state, anchor = msgspec.structs.replace(state, decided_to=max(state.decided_to, now)), now
                if timetable_of(spec, anchor).after(now) is None:
                    raise BadRequest(f"{spec.when!r} names no moment that is to come")
            changed = msgspec.structs.replace(
                stored, spec=spec, state=state, anchor=anchor, owner=caller.subject
            )
            return changed, None

        changed, _ = await self._change(caller, _place(request.topic, request.name), work)
        return self._describe(changed)

    async def pause(self, caller: AuditedCaller, request: table.SchedulePause) -> table.ScheduleRow:
        now = self._broker.clock()
        return await self._move(
            caller, request, lambda stored: core.pause(stored.state, now, caller.subject, request.note)
        )

    async def resume(self, caller: AuditedCaller, request: table.OfSchedule) -> table.ScheduleRow:
        now = self._broker.clock()
        return await self._move(
            caller,
            request,
            lambda stored: core.resume(stored.state, now) if stored.state.paused_at else stored.state,
        )

    async def _move(
        self,
        caller: AuditedCaller,
        request: table.OfSchedule,
        to: Callable[[StoredSchedule], ScheduleState],
    ) -> table.ScheduleRow:
        changed, _ = await self._change(
            caller,
            _place(request.topic, request.name),
            lambda stored: (msgspec.structs.replace(stored, state=to(stored)), None),
        )
        return self._describe(changed)

    async def trigger(self, caller: AuditedCaller, request: table.OfSchedule) -> table.ScheduleTriggered:
        now = self._broker.clock()

        def work(stored: StoredSchedule) -> tuple[StoredSchedule, int]:
            state, at = core.trigger(stored.state, now)
            return msgspec.structs.replace(stored, state=state), at

        _, at = await self._change(caller, _place(request.topic, request.name), work)
        return table.ScheduleTriggered(id=core.message_id(request.name, at, "trigger"), at=at)

    async def backfill(self, caller: AuditedCaller, request: table.ScheduleBackfill) -> table.ScheduleFilled:
        now = self._broker.clock()
        _, found = await self._read(_place(request.topic, request.name))
        _check_may_change(caller, found)
        # Counted here, where others have their turns between.
        counted = await _count_firings(found, request.begin, min(request.until, now))

        def work(stored: StoredSchedule) -> tuple[StoredSchedule, int]:
            if (stored.spec.when, stored.spec.zone, stored.anchor) != (
                found.spec.when,
                found.spec.zone,
                found.anchor,
            ):
                raise DocumentChanged(f"the schedule {request.name} was changed meanwhile", hint="try again")
            state, count = core.backfill(stored.state, counted, now, request.begin, request.until)
            return msgspec.structs.replace(stored, state=state), count

        _, count = await self._change(caller, _place(request.topic, request.name), work)
        return table.ScheduleFilled(firings=count)

    async def remove(self, caller: AuditedCaller, request: table.OfSchedule) -> table.Deleted:
        place = _place(request.topic, request.name)
        for _ in range(TRIES):
            stored: StoredSchedule | None = None
            try:
                version, stored = await self._read(place)
            except StoreCorrupt:
                caller.scopes.demand_rank("operate", "remove a damaged schedule")
                version = None
            else:
                _check_may_change(caller, stored)
            try:
                await self._write(caller, place, None, version, stored)
                break
            except DocumentChanged:
                continue
            except UnknownDocument:
                raise _unknown(place) from None
        else:
            raise DocumentChanged(f"the schedule {request.name} is written by others all the time")
        self._free_place("" if stored is None else stored.owner)
        return table.Deleted(deleted=f"{request.topic}/{request.name}")

    # -- showing -----------------------------------------------------------------------------------

    async def list_page(self, caller: TokenBearer, request: table.ScheduleList) -> table.ScheduleRows:
        rows: list[table.ScheduleRow] = []
        turns = Turns()
        if request.topic is not None:
            one, more = await self._documents.find(core.COLLECTION, request.topic, "", request.after, PAGE)
            found = [(DocumentPlace(core.COLLECTION, request.topic, key), each) for key, each in one]
            after = found[-1][0].key if more else ""
        else:
            found, more = await self._documents.find_anywhere(core.COLLECTION, request.after, PAGE)
            after = f"{found[-1][0].topic}/{found[-1][0].key}" if more else ""
        for place, document in found:
            await turns.looked_at(SCHEDULE_COUNTS)
            if may_see(self._broker.topics, caller, place.topic):
                rows.append(self._describe(_decode(place, document.value)))
        return table.ScheduleRows(schedules=rows, next=after)

    async def show(self, caller: TokenBearer, request: table.ScheduleShow) -> table.ScheduleDetails:
        if not 0 <= request.count <= MOST_SHOWN:
            raise BadRequest(f"{request.count} next firings, allowed are 0 to {MOST_SHOWN}")
        _, stored = await self._read(_place(request.topic, request.name))
        state, timetable = stored.state, timetable_of(stored.spec, stored.anchor)
        following: list[int] = []
        at, turns = timetable.after(state.decided_to), Turns()
        while at is not None and len(following) < request.count and not state.paused_at:
            following.append(at)
            await turns.looked_at(SCHEDULE_COUNTS)
            at = timetable.after(at)
        return table.ScheduleDetails(
            **msgspec.structs.asdict(self._describe(stored)),
            options=stored.spec,
            created_at=stored.created_at,
            next_firings=following,
            last_firings=[table.FiringRow(**msgspec.structs.asdict(each)) for each in reversed(state.recent)],
            waiting=list(state.waiting),
            paused_at=state.paused_at or None,
            paused_by=state.paused_by,
            note=state.note,
        )

    def _describe(self, stored: StoredSchedule) -> table.ScheduleRow:
        spec, state = stored.spec, stored.state
        following = timetable_of(spec, stored.anchor).after(state.decided_to)
        busy = bool(state.waiting or state.triggers or state.backfills)
        return table.ScheduleRow(
            topic=spec.topic,
            name=spec.name,
            when=spec.when,
            zone=spec.zone,
            owner=stored.owner,
            state="paused" if state.paused_at else "active" if following or busy else "done",
            next_at=None if state.paused_at else following,
            last_at=None if state.last is None else state.last.at,
            fired=state.fired,
            skipped=state.skipped,
            missed=state.missed,
            refused=state.refused,
        )

    # -- documents ---------------------------------------------------------------------------------

    async def _read(self, place: DocumentPlace) -> tuple[str, StoredSchedule]:
        """(version, schedule)"""
        found = await self._documents.read(place)
        if found is None:
            raise _unknown(place)
        return found.version, _decode(place, found.value)

    async def _write(
        self,
        caller: AuditedCaller,
        place: DocumentPlace,
        stored: StoredSchedule | None,
        expect: str | None,
        before: StoredSchedule | None = None,
    ) -> None:
        value = None if stored is None else encode_value(msgspec.to_builtins(stored))
        edits = [Edit(place, value, expect)]
        writer = self._broker.units.writers[self._documents.unit_of(place.topic)]
        name = f"{place.topic}/{place.key}"

        def work(commit: BrokerCommit) -> None:
            self._documents.write(commit, edits, caller.subject)
            caller.enter(commit, name, _told(before), _told(stored))

        await writer.put(work)
        change = "deleted" if stored is None else "updated" if expect else "created"
        self._broker.observe("schedule", f"{place.topic}/{place.key}", change, caller.subject)

    async def _change(
        self,
        caller: AuditedCaller,
        place: DocumentPlace,
        work: Callable[[StoredSchedule], tuple[StoredSchedule, T]],
    ) -> tuple[StoredSchedule, T]:
        """Write what ``work`` makes of the schedule, also while it fires."""
        for _ in range(TRIES):
            version, stored = await self._read(place)
            _check_may_change(caller, stored)
            changed, result = work(stored)
            try:
                await self._write(caller, place, changed, version, stored)
            except DocumentChanged:
                continue
            return changed, result
        raise DocumentChanged(f"the schedule {place.key} is written by others all the time")


def _told(stored: StoredSchedule | None) -> dict[str, Any] | None:
    """What the audit log has of a schedule: what people have said, not what it has done."""
    if stored is None:
        return None
    state = stored.state
    asked = {
        "owner": stored.owner,
        "paused_at": state.paused_at,
        "paused_by": state.paused_by,
        "note": state.note,
        "triggers": state.triggers,
        "backfills": state.backfills,
    }
    return {**msgspec.to_builtins(stored.spec), **msgspec.to_builtins(asked)}


async def _count_firings(stored: StoredSchedule, begin: int, until: int) -> int:
    """How many firings are in a span of time, both ends included; one more than a backfill may have where
    there are more."""
    turns, count = Turns(), 0
    if not 0 <= begin <= until:
        return 0
    for _ in between(timetable_of(stored.spec, stored.anchor), begin - 1, until):
        await turns.looked_at(SCHEDULE_COUNTS)
        count += 1
        if count > core.MOST_BACKFILLED:
            break
    return count


def _place(topic: str, name: str) -> DocumentPlace:
    return check_place(core.COLLECTION, topic, name)


def _unknown(place: DocumentPlace) -> UnknownSchedule:
    return UnknownSchedule(f"the topic {place.topic} has no schedule {place.key}")


def _check_may_change(caller: TokenBearer, stored: StoredSchedule) -> None:
    if caller.scopes.has("operate"):
        return
    if caller.subject == stored.owner:
        # A token may have fewer scopes than its service.
        caller.scopes.demand("publish", stored.spec.topic)
    else:
        raise Forbidden(
            f"the schedule {stored.spec.name} of {stored.spec.topic} is {stored.owner}'s",
            hint="its owner or an operator can change it",
        )


def _decode(place: DocumentPlace, value: bytes) -> StoredSchedule:
    raw: Any = decode_value(value)
    try:
        return read_options(raw, StoredSchedule, "schedule")
    except BadRequest as error:
        raise StoreCorrupt(
            f"what is stored of the schedule {place.key} of {place.topic} can't be read: {error}",
            hint="remove the schedule and create it again",
        ) from None
