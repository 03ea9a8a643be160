"""A schedule: messages for a topic at the moments of a timetable. What it is, and what it does at a moment.

A firing has a *fire time*, the moment that the timetable names. The fire time is part of the message's id and
decides whether the firing has happened: ``decided_to`` only ever grows, so a clock that is set back repeats
nothing. Jitter delays a firing and doesn't change its fire time.

Everything here is a function of the document and of ``now``. Whoever runs schedules writes the state that
``decide`` returns in one commit with the messages that it asks for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from landbridge.core.names import check_name
from landbridge.core.options import read_options
from landbridge.core.schedule.spec import Overlap, ScheduleSpec
from landbridge.core.schedule.timetable import Timetable, between, read_timetable
from landbridge.core.schedule.zones import datetime_of, read_zone
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest

#: "fired": published. "skipped": the one before was not settled. "missed": too late, see ``catch_up``.
#: "refused": the topic didn't take it.
Outcome: TypeAlias = Literal["fired", "skipped", "missed", "refused"]
Why: TypeAlias = Literal["timetable", "trigger", "backfill"]

#: The collection of the documents, beside their topics.
COLLECTION = "$schedules"
#: Headers of every message that a schedule publishes.
NAME_HEADER, TIME_HEADER, COUNT_HEADER = "lb-schedule", "lb-fire-time", "lb-count"
#: Seconds: how long jitter and catch-up may be.
LONGEST_JITTER, LONGEST_CATCH_UP = 86400.0, 366 * 86400.0
#: Firings that are decided in one commit, and those that wait under "buffer-all".
AT_ONCE, MOST_WAITING = 100, 1_000
#: Bytes of payloads of each kind in one commit.
BYTES_AT_ONCE = 1 << 20
#: Firings that a document tells of, and triggers that wait.
MOST_RECENT, MOST_TRIGGERS = 20, 100
#: Missed firings that are counted one by one; of more it is told that there were at least so many.
MOST_COUNTED = 1_000
#: Firings of one backfill.
MOST_BACKFILLED = 10_000
MOST_HEADERS, LONGEST_TEXT = 32, 1_000


#: How many firings may wait for the message before.
_BUFFERS: dict[Overlap, int] = {"skip": 0, "buffer-one": 1, "buffer-all": MOST_WAITING, "allow": 0}


class Firing(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a firing."""

    #: The fire time; of several that were missed, the first one's.
    at: int
    outcome: Outcome
    why: Why = "timetable"
    #: When that was decided.
    decided_at: int = 0
    #: The offset of the message; None where there is none, or the terminal was stopped before it was noted.
    offset: int | None = None
    #: Several that were missed are one entry.
    count: int = 1
    #: Why it was refused.
    cause: str = ""


class Backfill(msgspec.Struct, frozen=True):
    """Firings later than ``after`` up to ``until`` are still to be published."""

    after: int
    until: int


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a schedule has come. Moments are microseconds."""

    #: It is decided what becomes of every fire time up to this one.
    decided_to: int
    fired: int = 0
    skipped: int = 0
    missed: int = 0
    refused: int = 0
    #: Fire times that wait until the message before is settled.
    waiting: tuple[int, ...] = ()
    #: When somebody asked for a firing that has not been published yet.
    triggers: tuple[int, ...] = ()
    backfills: tuple[Backfill, ...] = ()
    #: The last message that the timetable has caused.
    last: Firing | None = None
    #: What was decided last, oldest first.
    recent: tuple[Firing, ...] = ()
    #: When it was paused, by whom and why; 0: it is not.
    paused_at: int = 0
    paused_by: str = ""
    note: str = ""


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The document of a schedule."""

    spec: ScheduleSpec
    #: The subject in whose name it publishes.
    owner: str
    created_at: int
    #: Where "@every" begins.
    anchor: int
    state: ScheduleState


class FiringOrder(NamedTuple):
    """A message to publish."""

    at: int
    why: Why
    #: The number of this firing among all of its schedule.
    number: int


class ScheduleDecision(NamedTuple):
    """What a schedule does now: these messages and this state, in one commit."""

    state: ScheduleState
    orders: list[FiringOrder]
    #: What has been missed by this decision, if anything.
    missed: Firing | None


def schedule_spec(raw: dict[str, Any]) -> ScheduleSpec:
    """The schedule that these options make. BadRequest or BadName says which of them is wrong."""
    spec = read_options(raw, ScheduleSpec, "schedule options")
    check_name(spec.topic, "topic")
    check_name(spec.name, "schedule")
    if not 0 <= spec.jitter <= LONGEST_JITTER:
        raise BadRequest(f"jitter is a span of 0 to {LONGEST_JITTER:.0f} seconds, not {spec.jitter}")
    if not 0 <= spec.catch_up <= LONGEST_CATCH_UP:
        raise BadRequest(f"catch_up is a span of 0 to {LONGEST_CATCH_UP:.0f} seconds, not {spec.catch_up}")
    if not 0 <= spec.priority <= 9:
        raise BadRequest(f"a priority of {spec.priority}, allowed are 0 to 9")
    if len(spec.headers) > MOST_HEADERS:
        raise BadRequest(f"{len(spec.headers)} headers, allowed are {MOST_HEADERS}")
    for text in (*spec.headers, *spec.headers.values(), spec.key or ""):
        if len(text) > LONGEST_TEXT:
            raise BadRequest(f"a key or header of {len(text)} characters, allowed are {LONGEST_TEXT}")
    for header in spec.headers:
        if header.lower().startswith("lb-"):
            raise BadRequest(
                f"the header {header[:60]!r} is the bus's own", hint="choose a name without 'lb-'"
            )
    timetable_of(spec, 0)
    return spec


def timetable_of(spec: ScheduleSpec, anchor: int) -> Timetable:
    return read_timetable(spec.when, read_zone(spec.zone), anchor)


def message_id(name: str, at: int, why: Why = "timetable") -> str:
    """The id of a firing's message. A backfill has the ids that the timetable would have used."""
    mark = "!" if why == "trigger" else ""
    return f"{name}@{show_fire_time(at)}{mark}"


def show_fire_time(at: int) -> str:
    """``2026-01-31T12:00:00Z``, with microseconds only where there are any."""
    return datetime_of(at, UTC).isoformat().replace("+00:00", "Z")


def jitter_of(spec: ScheduleSpec, at: int) -> int:
    """By how many microseconds a firing is delayed: always the same for the same firing."""
    if not spec.jitter:
        return 0
    drawn = hashlib.sha256(f"{spec.topic}/{spec.name}@{at}".encode()).digest()
    return int.from_bytes(drawn[:8], "big") * round(spec.jitter * SECOND) >> 64


def due_at(stored: StoredSchedule, timetable: Timetable) -> int | None:
    """When there is something to decide; 0: at once; None: not before the document changes. Firings that wait
    for a message to be settled don't count: whoever runs schedules knows when it is."""
    state = stored.state
    if state.triggers or state.backfills:
        return 0
    if state.paused_at:
        return None
    at = timetable.after(state.decided_to)
    return None if at is None else at + jitter_of(stored.spec, at)


def decide(
    stored: StoredSchedule, timetable: Timetable, now: int, *, busy: bool, alone: bool
) -> ScheduleDecision:
    """What happens now. ``busy``: the message of the last firing is not settled in every group. ``alone``:
    the topic has no group, so that no firing can overlap another."""
    spec, state = stored.spec, stored.state
    orders: list[FiringOrder] = []
    told: list[Firing] = []
    fired = state.fired

    def fire(at: int, why: Why) -> None:
        nonlocal fired
        fired += 1
        orders.append(FiringOrder(at, why, fired))
        told.append(Firing(at, "fired", why, now))

    room = _room(spec)
    for at in state.triggers[:room]:
        fire(at, "trigger")
    backfills = _fill(state.backfills, timetable, fire, room)
    decided_to, waiting = state.decided_to, list(state.waiting)
    missed: Firing | None = None
    skipped = 0
    if not state.paused_at:
        missed, decided_to = _miss(spec, timetable, now, decided_to)
        if missed is not None:
            told.append(missed)
        overlaps = spec.overlap != "allow" and not alone
        while waiting and not (overlaps and busy) and len(orders) < 2 * room:
            fire(waiting.pop(0), "timetable")
            busy = True
        for at in between(timetable, decided_to, now):
            if (
                at + jitter_of(spec, at) > now
                or room <= 0
                or (missed is not None and missed.count > MOST_COUNTED)
            ):
                break
            room -= 1
            decided_to = at
            if not overlaps or not (busy or waiting):
                fire(at, "timetable")
                busy = True
            elif len(waiting) < _BUFFERS[spec.overlap]:
                waiting.append(at)
            else:
                skipped += 1
                told.append(Firing(at, "skipped", decided_at=now))
    last = next((each for each in reversed(told) if _is_run(each)), state.last)
    after = msgspec.structs.replace(
        state,
        decided_to=decided_to,
        fired=fired,
        skipped=state.skipped + skipped,
        missed=state.missed + (missed.count if missed is not None else 0),
        waiting=tuple(waiting),
        triggers=state.triggers[_room(spec) :],
        backfills=backfills,
        last=last,
        recent=_latest(state.recent, told),
    )
    return ScheduleDecision(after, orders, missed)


def _room(spec: ScheduleSpec) -> int:
    """Firings of each kind that are decided at once: fewer where their payload is large."""
    return max(1, min(AT_ONCE, BYTES_AT_ONCE // (1 + len(msgspec.json.encode(spec.payload)))))


def _is_run(firing: Firing) -> bool:
    return firing.outcome == "fired" and firing.why == "timetable"


def _fill(
    backfills: tuple[Backfill, ...], timetable: Timetable, fire: Any, room: int
) -> tuple[Backfill, ...]:
    """Publish what there is room for. Returns what is left."""
    left: list[Backfill] = []
    for backfill in backfills:
        after = backfill.after
        for at in between(timetable, after, backfill.until):
            if room <= 0:
                left.append(Backfill(after, backfill.until))
                break
            fire(at, "backfill")
            after, room = at, room - 1
    return tuple(left)


def _miss(spec: ScheduleSpec, timetable: Timetable, now: int, decided_to: int) -> tuple[Firing | None, int]:
    """Give up what is later than ``catch_up`` allows. Returns it, and up to where all is decided."""
    late = now - round(spec.catch_up * SECOND)
    first, count = 0, 0
    for at in between(timetable, decided_to, late):
        if at + jitter_of(spec, at) >= late:
            break
        if count > MOST_COUNTED:
            # Nobody counts a year of minutes. What is certainly too late is passed over; of what may be,
            # because jitter delays it, the next decision tells.
            decided_to = max(decided_to, late - round(spec.jitter * SECOND) - 1)
            break
        first, count, decided_to = first or at, count + 1, at
    return (Firing(first, "missed", decided_at=now, count=count) if count else None), decided_to


def _latest(recent: tuple[Firing, ...], told: Iterable[Firing]) -> tuple[Firing, ...]:
    return (*recent, *told)[-MOST_RECENT:]


def refuse(decided: ScheduleDecision, before: ScheduleState, now: int, cause: str) -> ScheduleState:
    """The state where the topic has refused the messages of a decision: they are given up."""
    orders = {(order.at, order.why) for order in decided.orders}
    recent = tuple(
        msgspec.structs.replace(each, outcome="refused", cause=cause)
        if each.outcome == "fired" and each.decided_at == now and (each.at, each.why) in orders
        else each
        for each in decided.state.recent
    )
    return msgspec.structs.replace(
        decided.state,
        fired=before.fired,
        refused=before.refused + len(decided.orders),
        last=before.last,
        recent=recent,
    )


def note_offsets(state: ScheduleState, offsets: dict[tuple[int, Why], int]) -> ScheduleState:
    """The state with the offsets of messages that are stored now, by fire time and reason."""

    def noted(firing: Firing) -> Firing:
        offset = offsets.get((firing.at, firing.why)) if firing.outcome == "fired" else None
        return firing if offset is None else msgspec.structs.replace(firing, offset=offset)

    last = None if state.last is None else noted(state.last)
    return msgspec.structs.replace(state, last=last, recent=tuple(map(noted, state.recent)))


def pause(state: ScheduleState, now: int, who: str, note: str) -> ScheduleState:
    """Nothing is published by the timetable until ``resume``."""
    return msgspec.structs.replace(state, paused_at=now, paused_by=who, note=note[:LONGEST_TEXT])


def resume(state: ScheduleState, now: int) -> ScheduleState:
    """Go on from now. Fire times during the pause are not made up for; a backfill does that."""
    decided_to = max(state.decided_to, now)
    return msgspec.structs.replace(state, decided_to=decided_to, paused_at=0, paused_by="", note="")


def trigger(state: ScheduleState, now: int) -> tuple[ScheduleState, int]:
    """Publish once, now. Returns the fire time, which no other trigger has."""
    if len(state.triggers) >= MOST_TRIGGERS:
        raise BadRequest(f"{len(state.triggers)} triggers of this schedule wait already")
    at = max(now, state.triggers[-1] + 1 if state.triggers else 0)
    return msgspec.structs.replace(state, triggers=(*state.triggers, at)), at


def backfill(state: ScheduleState, count: int, now: int, begin: int, until: int) -> tuple[ScheduleState, int]:
    """Publish the firings from ``begin`` up to ``until`` (both included), whatever has become of them.
    ``count``: how many these are. Returns their number."""
    if not 0 <= begin <= until <= now:
        raise BadRequest(
            "a backfill is a range of the past: a beginning, and an end that is not before it",
            hint="what is to come fires by itself",
        )
    if count > MOST_BACKFILLED:
        raise BadRequest(f"more than {MOST_BACKFILLED:,} firings in that range", hint="fill it in parts")
    if count and len(state.backfills) >= MOST_TRIGGERS:
        raise BadRequest(f"{len(state.backfills)} backfills of this schedule are under way already")
    if count:
        state = msgspec.structs.replace(state, backfills=(*state.backfills, Backfill(begin - 1, until)))
    return state, count
