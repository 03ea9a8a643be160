"""Firings of all seasons beside those of an independent library: croniter reads the expressions in its own
way, and has to name the same moments in every zone but around a change of the clocks, where the rules are our
own (docs/schedules.md) and ``test_timetable.py`` looks at every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from croniter import croniter

from landbridge.core.schedule.timetable import Timetable, read_timetable
from landbridge.core.schedule.zones import datetime_of, moment_of, read_zone
from tests.core.test_timetable import BEGIN, CASES, END, QUICK, ZONES

#: Firings that are compared from each beginning, and days from one beginning to the next.
MOST, EVERY = (8, 40) if QUICK else (40, 10)
#: croniter writes the last Friday as L5, and takes a day of the month that begins with * for one that is
#: given.
OTHER = {"0 0 * * 5L": "0 0 * * L5"}
LEFT_OUT = {"0 0 */10 * 1"}


def firings(timetable: Timetable, after: int, until: int) -> list[int]:
    found: list[int] = []
    at = timetable.after(after)
    while at is not None and at < until and len(found) < MOST:
        found.append(at)
        at = timetable.after(at)
    return found


@pytest.mark.parametrize("zone", ["UTC", *ZONES])
def test_croniter_names_the_same_moments(zone: str) -> None:
    where = read_zone(zone)
    for expression in CASES:
        if expression in LEFT_OUT:
            continue
        timetable = read_timetable(expression, where, 0)
        for begin in (BEGIN + timedelta(days=days) for days in range(0, 360, EVERY)):
            end = min(END, begin + timedelta(days=10))
            # Days whose beginning and end have the same offset as the days beside them.
            shifts = {(begin + timedelta(days=d)).astimezone(where).utcoffset() for d in range(-1, 13)}
            if len(shifts) > 1:
                continue
            start, stop = moment_of(begin), moment_of(end)
            theirs = croniter(OTHER.get(expression, expression), datetime_of(start, where), ret_type=datetime)
            wanted = []
            for at in islice(theirs, MOST):
                if at >= end:
                    break
                wanted.append(moment_of(at.astimezone(UTC)))
            assert firings(timetable, start, stop) == wanted, (expression, begin)
