"""Timetables: the moments that a schedule names, by crontab, at an interval, or once.

    30 2 * * mon-fri        a crontab expression of five fields, as Debian's cron understands them
    @hourly @daily @midnight @weekly @monthly @yearly @annually
    @every 90s              every 90 seconds from when the schedule was made, without drift
    @at 2026-12-24T18:00    once

The rules for summer time are those of Debian's cron. An expression whose minute and hour both begin without a
star names times of day: one that the clocks leave out happens at the end of the gap, and one that happens
twice counts once, the first time. Every other expression goes by what the clocks show, minute by minute: what
they leave out does not happen, and what they show twice happens twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

from cronsim import CronSim, CronSimError

from landbridge.core.schedule.zones import (
    LARGEST_SHIFT,
    change_between,
    datetime_of,
    first_moment,
    moment_of,
    moments,
)
from landbridge.core.time import SECOND, parse_span
from landbridge.errors import BadRequest

#: Characters of an expression.
LONGEST_EXPRESSION = 200
#: Seconds between two firings of "@every": at least, and at most.
SHORTEST_EVERY, LONGEST_EVERY = 1.0, 366 * 86400.0
#: Names for crontab expressions.
NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_HELP = "'30 2 * * mon-fri', '@daily', '@every 90s' or '@at 2026-12-24T18:00'"
#: The last moment that a datetime can tell in every zone.
_LAST = moment_of(datetime(9998, 1, 1, tzinfo=UTC))
_SHIFT = timedelta(microseconds=LARGEST_SHIFT)


class Timetable(Protocol):
    """Which moments."""

    def after(self, moment: int) -> int | None:
        """The first moment later than this one; None where there is none."""


class Crontab:
    """The moments of a crontab expression in a time zone."""

    def __init__(self, expression: str, zone: tzinfo) -> None:
        self._expression = expression
        self._zone = zone
        minute, hour = expression.split()[:2]
        #: Names times of day, and is not one that happens every so many minutes or hours.
        self._is_daily = not (minute.startswith("*") or hour.startswith("*"))

    def after(self, moment: int) -> int | None:
        try:
            return self._after(moment)
        except (OverflowError, StopIteration):
            return None  # nothing in the next 50 years, or beyond the calendar

    def _after(self, moment: int) -> int:
        if moment >= _LAST:
            raise OverflowError
        here = datetime_of(moment, self._zone)
        local = here.replace(tzinfo=None, fold=0)
        if self._zone is UTC:
            return moment_of(next(CronSim(self._expression, local)).replace(tzinfo=UTC))
        return self._next_time_of_day(moment, local) if self._is_daily else self._next_shown(moment, here)

    def _next_time_of_day(self, moment: int, local: datetime) -> int:
        # Before a time that is shown now, others of this day may be to come, where clocks were set back.
        for time in CronSim(self._expression, local - _SHIFT):
            found = first_moment(time.replace(tzinfo=self._zone))
            if found > moment:
                return found
        raise StopIteration

    def _next_shown(self, moment: int, here: datetime) -> int:
        offset, soon = here.utcoffset(), moment + LARGEST_SHIFT
        assert offset is not None
        times = CronSim(self._expression, here.replace(tzinfo=None, fold=0))
        if datetime_of(soon, self._zone).utcoffset() != offset:
            change = change_between(moment, soon, self._zone)
            found = moment_of(next(times).replace(tzinfo=UTC) - offset)
            if found < change:
                return found
            # What the clocks show from the change on, and they may show it for the second time.
            after = datetime_of(change, self._zone).replace(tzinfo=None, fold=0)
            times = CronSim(self._expression, after - timedelta(seconds=1))
            moment, here = change - 1, datetime_of(change, self._zone)
            offset = here.utcoffset()
            assert offset is not None
        # Away from a change, moments follow each other as the times do.
        for time in times:
            found = moment_of(time.replace(tzinfo=UTC) - offset)
            if datetime_of(found, self._zone).utcoffset() == offset:
                return found
            for found in moments(time.replace(tzinfo=self._zone)):
                if found > moment:
                    return found
        raise StopIteration


class Interval:
    """The anchor and every so many microseconds after it. The anchor itself is not a firing."""

    def __init__(self, every: int, anchor: int) -> None:
        self._every = every
        self._anchor = anchor

    def after(self, moment: int) -> int | None:
        return self._anchor + max(1, (moment - self._anchor) // self._every + 1) * self._every


class Once:
    """One moment."""

    def __init__(self, at: int) -> None:
        self._at = at

    def after(self, moment: int) -> int | None:
        return self._at if self._at > moment else None


def read_timetable(when: str, zone: tzinfo, anchor: int) -> Timetable:
    """The timetable of an expression. ``anchor``: where "@every" begins. BadRequest says what is wrong."""
    text = when.strip()
    if not text or len(text) > LONGEST_EXPRESSION or not text.isprintable():
        raise BadRequest(f"an expression of {len(text)} characters", hint=_HELP)
    if text.startswith("@"):
        word, _, rest = text.partition(" ")
        if word == "@every":
            return Interval(_read_every(rest.strip()), anchor)
        if word == "@at":
            return Once(_read_at(rest.strip(), zone))
        if word == "@reboot":
            raise BadRequest("@reboot is no moment", hint="publish when your program starts")
        if text.lower() not in NAMED:
            raise BadRequest(f"no expression {text!r}", hint=f"{', '.join(NAMED)}, '@every 90s', '@at TIME'")
        text = NAMED[text.lower()]
    return Crontab(_checked(text), zone)


def between(timetable: Timetable, after: int, until: int) -> Iterator[int]:
    """The moments later than ``after``, up to and including ``until``."""
    found = timetable.after(after)
    while found is not None and found <= until:
        yield found
        found = timetable.after(found)


def _read_every(text: str) -> int:
    try:
        seconds = parse_span(text)
    except ValueError as error:
        raise BadRequest(f"@every: {error}", hint="'@every 90s', '@every 1h30m'") from None
    if not SHORTEST_EVERY <= seconds <= LONGEST_EVERY:
        raise BadRequest(f"@every {text}: allowed are 1 second to 366 days", hint="'@every 90s'")
    return round(seconds * SECOND)


def _read_at(text: str, zone: tzinfo) -> int:
    try:
        at = datetime.fromisoformat(text)
        moment = moment_of(at) if at.tzinfo is not None else first_moment(at.replace(tzinfo=zone))
    except (ValueError, OverflowError):
        raise BadRequest(
            f"@at {text!r} is not a time",
            hint="'@at 2026-12-24T18:00' in the schedule's zone, or '@at 2026-12-24T17:00:00Z'",
        ) from None
    if not 0 < moment < _LAST:
        raise BadRequest(f"@at {text!r} is not a moment of our time")
    return moment


def _checked(expression: str) -> str:
    """A crontab expression that can be used."""
    parts = expression.split()
    if any(re.search(r"\bH\b|^H|/H|,H", part) for part in parts):
        raise BadRequest(
            "H, a value of the system's own choice, is not known here",
            hint="name the minute, and spread schedules with jitter",
        )
    if len(parts) != 5:
        raise BadRequest(
            f"{expression!r} has {len(parts)} fields, a crontab expression has 5",
            hint="minute hour day-of-month month day-of-week, as in '30 2 * * mon-fri'; "
            "every few seconds: '@every 10s'",
        )
    try:
        CronSim(expression, datetime(2000, 1, 1))
    except CronSimError as error:
        raise BadRequest(f"{expression!r}: {str(error)[:1].lower()}{str(error)[1:]}", hint=_HELP) from None
    return expression
