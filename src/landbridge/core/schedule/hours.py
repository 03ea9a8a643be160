"""Opening hours: when a group hands out messages.

    mon-fri 08:00-18:00 Europe/Berlin
    sat,sun 10:00-14:00 Europe/Berlin
    daily 22:00-06:00 UTC               ends on the next day

Days, a time from and until, and a time zone (UTC where none is given). Several entries are open together
whenever one of them is. Hours go by what the clocks show: where they leave a time out, the end of the gap
counts, and where they show a time twice, opening goes by the first and closing by the second.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, tzinfo
from typing import NamedTuple

from landbridge.core.schedule.zones import datetime_of, first_moment, moments, read_zone
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
#: Entries of one group, and characters of an entry.
MOST_HOURS, LONGEST_HOURS = 50, 100
#: Days that are looked at around a moment: a week, and the days that a zone may be away.
_AROUND = range(-2, 10)
#: Microseconds for which "closed" is kept without a look at the days around.
_KEPT = 3600 * SECOND
_HOURS = re.compile(r"(?P<days>[a-z,-]+) (?P<opens>\d\d:\d\d)-(?P<closes>\d\d:\d\d)(?: (?P<zone>\S+))?")
_HINT = "'mon-fri 08:00-18:00 Europe/Berlin', 'daily 22:00-06:00', 'sat,sun 10:00-24:00 UTC'"


class DailyHours(NamedTuple):
    """One entry. Minutes are counted from midnight."""

    days: frozenset[int]  #: 0 is Monday
    opens: int
    closes: int  #: above 1440: on the next day
    zone: tzinfo


class OpeningHours:
    """The hours of a group."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        """BadRequest says which entry is wrong."""
        if len(entries) > MOST_HOURS:
            raise BadRequest(f"{len(entries)} entries of opening hours, allowed are {MOST_HOURS}")
        self._entries = [_read(entry) for entry in entries]
        #: The stretch that was looked up last: its beginning, its end, and whether it is open.
        self._known = (0, 0, False)

    def is_open(self, now: int) -> bool:
        """Is it open at this moment?"""
        return self._at(now)[2]

    def next_change(self, now: int) -> int:
        """The next moment at which it may close or open. Look again then."""
        return self._at(now)[1]

    def _at(self, now: int) -> tuple[int, int, bool]:
        begin, end, _ = self._known
        if not begin <= now < end:
            self._known = self._look_up(now)
        return self._known

    def _look_up(self, now: int) -> tuple[int, int, bool]:
        closed_at = 0  # when it closed last; a clock that is set back further is looked up again
        for opens, closes in self._stretches(now):
            if opens > now:
                return max(closed_at, now - _KEPT), opens, False
            if now < closes:
                return opens, closes, True
            closed_at = closes
        return now, now + _KEPT, False  # days that the zone leaves out

    def _stretches(self, now: int) -> list[tuple[int, int]]:
        """From when until when it is open around a moment: in order, and apart from each other."""
        found: list[tuple[int, int]] = []
        for entry in self._entries:
            today = datetime_of(now, entry.zone).date()
            for ahead in _AROUND:
                day = today + timedelta(days=ahead)
                if day.weekday() in entry.days:
                    opens = first_moment(_local(day, entry.opens, entry.zone))
                    last = _local(day, entry.closes, entry.zone)
                    found.append((opens, max([first_moment(last), *moments(last)])))
        joined: list[tuple[int, int]] = []
        for opens, closes in sorted(found):
            if closes <= opens:
                continue
            if joined and opens <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], closes)
            else:
                joined.append((opens, closes))
        return joined


def _local(day: date, minutes: int, zone: tzinfo) -> datetime:
    midnight = datetime.combine(day, time()) + timedelta(minutes=minutes)
    return midnight.replace(tzinfo=zone)


def _read(text: str) -> DailyHours:
    found = _HOURS.fullmatch(text.strip()) if len(text) <= LONGEST_HOURS else None
    if found is None:
        raise BadRequest(f"{text[:60]!r} are no opening hours", hint=_HINT)
    opens, closes = _minutes(found["opens"], text), _minutes(found["closes"], text)
    if opens == 24 * 60 or opens == closes:
        raise BadRequest(f"{text[:60]!r} opens and closes at the same time", hint="all day is 00:00-24:00")
    if closes < opens:
        closes += 24 * 60
    return DailyHours(_days(found["days"], text), opens, closes, read_zone(found["zone"] or "UTC"))


def _minutes(clock: str, text: str) -> int:
    hours, minutes = int(clock[:2]), int(clock[3:])
    if minutes > 59 or hours * 60 + minutes > 24 * 60:
        raise BadRequest(f"{clock} in {text[:60]!r} is no time of day", hint=_HINT)
    return hours * 60 + minutes


def _days(text: str, whole: str) -> frozenset[int]:
    if text == "daily":
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise BadRequest(
                f"{part[:20]!r} in {whole[:60]!r} names no days", hint=f"daily, or of {', '.join(DAYS)}"
            )
        begin = DAYS.index(first)
        # 'sat-mon' goes over the end of the week.
        span = (DAYS.index(last) - begin) % 7 if dash else 0
        found.update((begin + each) % 7 for each in range(span + 1))
    return frozenset(found)
