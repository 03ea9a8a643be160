"""Timetables: a year of firings of fifty expressions in four zones, and spans and dates.

Two oracles. ``naive`` looks at every minute of the year and applies the documented rules to what the clocks
show. ``CronSim`` with its own rules for zones, which the bus doesn't use, has to agree but for the days on
which clocks change."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from landbridge.core.schedule.timetable import NAMED, between, read_timetable
from landbridge.core.schedule.zones import datetime_of, moment_of, read_zone
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest

MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86400 * SECOND
#: Clocks change at 2 in the night, at 2 in the other half of the world, at midnight, and by half an hour.
ZONES = ("Europe/Berlin", "America/New_York", "Africa/Cairo", "Australia/Lord_Howe")
EXPRESSIONS = """
* * * * *|*/2 * * * *|*/7 * * * *|*/30 * * * *|0 * * * *|30 * * * *|15,45 * * * *|0-10 * * * *|5/15 * * * *
*/30 2 * * *|*/20 0 * * *|*/30 1 * * *|* 2 * * *|* 0 * * *|59 * * * *|0 */2 * * *|30 */3 * * *|1 1-3 * * *
0 0 * * *|30 0 * * *|0 1 * * *|30 1 * * *|0 2 * * *|30 2 * * *|15,45 2 * * *|0 3 * * *|30 3 * * *|59 23 * * *
0 0-4 * * *|0,30 0-3 * * *|30 2 * * sun|0 0 * * fri|30 0 * * 5|0 9 * * mon-fri|30 2 29 3 *|0 0 24 4 *
0 2 8 3 *
30 2 25 10 *|0 0 1 * *|0 0 29 2 *|0 12 31 * *|0 0 L * *|0 0 * * 1#1|0 0 * * 5L|0 0 13 * 5|0 0 */10 * 1
0 12 1-7 * 0|30 2 1,15 * *|0 4 * 3,10 *|0 0 1 1 *|0 12 * jan-mar mon
"""
#: Hypothesis' profile "quick" looks at each expression in one zone, the others at all in all zones.
QUICK = settings().max_examples < 100
CASES = [each.strip() for line in EXPRESSIONS.strip().splitlines() for each in line.split("|")]
#: Both changes of the clocks of each of these zones are in it.
BEGIN, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)


def _field(text: str, least: int, most: int, names: tuple[str, ...] = ()) -> set[int]:
    """The numbers of a plain field."""
    found: set[int] = set()
    for part in text.split(","):
        term, _, step = part.partition("/")
        first, dash, last = term.partition("-")
        if term == "*":
            lo, hi = least, most
        else:
            lo = names.index(first) if first in names else int(first)
            hi = (names.index(last) if last in names else int(last)) if dash else (most if step else lo)
        found.update(range(lo, hi + 1, int(step or 1)))
    return found


_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def _day_matches(day: date, dom: str, month: str, dow: str) -> bool:
    if day.month not in _field(month, 1, 12, _MONTHS):
        return False
    last = (day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
    by_dom = day == last if dom == "L" else day.day in _field(dom, 1, 31)
    weekday = day.isoweekday() % 7
    if "#" in dow:
        name, _, nth = dow.partition("#")
        by_dow = weekday == int(name) and (day.day + 6) // 7 == int(nth)
    elif dow.endswith("L"):
        by_dow = weekday == int(dow[:-1]) and day.day + 7 > last.day
    else:
        by_dow = weekday in {each % 7 for each in _field(dow, 0, 7, _DAYS)}
    return (by_dom and by_dow) if dom.startswith("*") or dow.startswith("*") else (by_dom or by_dow)


@cache
def stretches(zone: str) -> list[tuple[int, int, int]]:
    """(from when, until when, offset) of a zone in this year, all in minutes."""
    where = read_zone(zone)
    found: list[tuple[int, int, int]] = []
    for at in range(moment_of(BEGIN) // MINUTE, moment_of(END) // MINUTE, 30):
        shift = datetime_of(at * MINUTE, where).utcoffset()
        assert shift is not None
        offset = int(shift.total_seconds()) // 60
        if found and found[-1][2] == offset:
            found[-1] = found[-1][0], at + 30, offset
        else:
            found.append((at, at + 30, offset))
    return found


def naive(expression: str, zone: str) -> list[int]:
    """Look at every minute that the clocks of a zone show in this year."""
    minute, hour, dom, month, dow = expression.split()
    times = [h * 60 + m for h in sorted(_field(hour, 0, 23)) for m in sorted(_field(minute, 0, 59))]
    epoch = date(1970, 1, 1).toordinal()
    is_daily = not (minute.startswith("*") or hour.startswith("*"))
    found: list[int] = []
    shown = 0  # what the clocks have shown already, in minutes
    for begin, end, offset in stretches(zone):
        first, last = begin + offset, end + offset
        for number in range(min(first, shown or first) // 1440, last // 1440 + 1):
            if not _day_matches(date.fromordinal(epoch + number), dom, month, dow):
                continue
            for local in (number * 1440 + time for time in times):
                if not is_daily:
                    if first <= local < last:
                        found.append(local - offset)
                elif shown and shown <= local < first:
                    found.append(begin)  # left out: at the end of the gap
                elif max(first, shown) <= local < last:
                    found.append(local - offset)
        shown = max(shown, last)
    return [each * MINUTE for each in sorted(set(found))]


def spans(expression: str, zone: str) -> list[tuple[int, int]]:
    """The year; of an expression that fires all the time, the days around the changes of the clocks."""
    minute, hour = expression.split()[:2]
    if len(_field(minute, 0, 59)) * len(_field(hour, 0, 23)) <= 2:
        return [(moment_of(BEGIN), moment_of(END))]
    return [(end * MINUTE - DAY // 2, end * MINUTE + DAY // 2) for _, end, _ in stretches(zone)[:-1]]


def firings(expression: str, zone: str) -> list[int]:
    timetable = read_timetable(expression, read_zone(zone), 0)
    return [at for begin, end in spans(expression, zone) for at in between(timetable, begin - 1, end - 1)]


def cases(zone: str, shares: int) -> list[str]:
    """The expressions to look at in a zone; the shares of so many zones are all of them."""
    return CASES[ZONES.index(zone) % shares :: shares] if QUICK else CASES


def test_there_are_fifty_expressions() -> None:
    assert len(set(CASES)) >= 50


@pytest.mark.parametrize("zone", ZONES)
def test_a_year_of_firings_is_what_the_rules_say(zone: str) -> None:
    where = read_zone(zone)
    assert len(stretches(zone)) == 3
    for expression in cases(zone, len(ZONES)):
        found = firings(expression, zone)
        inside = spans(expression, zone)
        expected = [at for at in naive(expression, zone) if any(begin <= at < end for begin, end in inside)]
        different = sorted(set(found) ^ set(expected))
        assert not different, (expression, [datetime_of(each, where).isoformat() for each in different][:5])
        assert found == expected, expression


@pytest.mark.parametrize("zone", ["America/New_York", "Africa/Cairo"])
def test_a_year_of_firings_is_that_of_an_independent_library_but_when_clocks_change(zone: str) -> None:
    where = read_zone(zone)
    changes = [end * MINUTE for _, end, _ in stretches(zone)[:-1]]
    for expression in cases(zone, 2):
        theirs: set[int] = set()
        for begin, end in spans(expression, zone):
            for local in CronSim(expression, datetime_of(begin - 1, where)):
                if moment_of(local) >= end:
                    break
                theirs.add(moment_of(local))
        different = set(firings(expression, zone)) ^ theirs
        assert not [each for each in different if all(abs(each - at) > DAY for at in changes)], expression


@pytest.mark.parametrize(
    ("expression", "zone", "day", "expected"),
    [
        # Left out: the end of the gap. Twice: the first time.
        ("30 2 * * *", "Europe/Berlin", "2026-03-29", ["03:00+02:00"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25", ["02:30+02:00"]),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-29", ["03:00+02:00"]),
        # By what the clocks show: not at all, and twice.
        ("*/30 2 * * *", "Europe/Berlin", "2026-03-29", []),
        (
            "*/30 2 * * *",
            "Europe/Berlin",
            "2026-10-25",
            ["02:00+02:00", "02:30+02:00", "02:00+01:00", "02:30+01:00"],
        ),
        # Cairo's clocks go from 00:00 to 01:00 on a Friday in April, and from 24:00 back to 23:00 in October.
        ("0 0 * * *", "Africa/Cairo", "2026-04-24", ["01:00+03:00"]),
        ("*/30 1 * * *", "Africa/Cairo", "2026-04-24", ["01:00+03:00", "01:30+03:00"]),
        ("*/30 1 24 4 *", "Africa/Cairo", "2026-04-24", ["01:00+03:00", "01:30+03:00"]),
        ("*/30 0 * * *", "Africa/Cairo", "2026-04-24", []),
        ("30 23 * * *", "Africa/Cairo", "2026-10-29", ["23:30+03:00"]),
        (
            "*/30 23 * * *",
            "Africa/Cairo",
            "2026-10-29",
            ["23:00+03:00", "23:30+03:00", "23:00+02:00", "23:30+02:00"],
        ),
        # Half an hour.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-04", ["02:30+11:00"]),
    ],
)
def test_when_the_clocks_change(expression: str, zone: str, day: str, expected: list[str]) -> None:
    shown = [datetime_of(at, read_zone(zone)).isoformat() for at in firings(expression, zone)]
    assert [each[11:16] + each[19:] for each in shown if each.startswith(day)] == expected


@given(
    zone=st.sampled_from([*ZONES, "UTC", "Pacific/Apia", "Antarctica/Troll", "Asia/Kathmandu"]),
    expression=st.sampled_from(CASES),
    moment=st.integers(moment_of(BEGIN), moment_of(END)),
)
def test_the_next_firing_is_later_and_none_is_between(zone: str, expression: str, moment: int) -> None:
    timetable = read_timetable(expression, read_zone(zone), 0)
    following = timetable.after(moment)
    assert following is not None
    assert following > moment
    assert timetable.after(following - 1) == following
    middle = (moment + following) // 2
    if middle < following:
        assert timetable.after(middle) == following


@given(every=st.integers(1, 10**6), anchor=st.integers(0, 10**16), moment=st.integers(0, 2 * 10**16))
def test_an_interval_has_no_drift(every: int, anchor: int, moment: int) -> None:
    timetable = read_timetable(f"@every {every}s", UTC, anchor)
    following = timetable.after(moment)
    assert following is not None
    assert (following - anchor) % (every * SECOND) == 0
    assert following > max(moment, anchor)
    assert following - every * SECOND <= max(moment, anchor)


def test_names_and_dates() -> None:
    noon = moment_of(datetime(2026, 12, 24, 12, tzinfo=UTC))
    assert {name: read_timetable(name, UTC, 0).after(noon) for name in NAMED} == {
        "@hourly": noon + HOUR,
        "@daily": noon + 12 * HOUR,
        "@midnight": noon + 12 * HOUR,
        "@weekly": moment_of(datetime(2026, 12, 27, tzinfo=UTC)),
        "@monthly": moment_of(datetime(2027, 1, 1, tzinfo=UTC)),
        "@yearly": moment_of(datetime(2027, 1, 1, tzinfo=UTC)),
        "@annually": moment_of(datetime(2027, 1, 1, tzinfo=UTC)),
    }
    at = read_timetable("@at 2026-12-24T18:00", read_zone("Europe/Berlin"), 0)
    assert (at.after(noon), at.after(noon + 5 * HOUR)) == (noon + 5 * HOUR, None)
    assert read_timetable("@at 2026-12-24T18:00:00+03:00", UTC, 0).after(noon) == noon + 3 * HOUR
    assert read_timetable("0 0 31 12 *", UTC, 0).after(noon) == moment_of(datetime(2026, 12, 31, tzinfo=UTC))


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("H 2 * * *", "jitter"),
        ("H/15 * * * *", "jitter"),
        ("* * * *", "minute hour"),
        ("0 * * * * *", "@every 10s"),
        ("61 * * * *", "30 2"),
        ("0 0 30 2 *", "30 2"),
        ("5-1 * * * *", "30 2"),
        ("*/0 * * * *", "30 2"),
        ("@every 0.5s", "90s"),
        ("@every soon", "1h30m"),
        ("@every 400d", "90s"),
        ("@at tomorrow", "@at 2026"),
        ("@at 0001-01-01", ""),
        ("@reboot", "program"),
        ("@sometimes", "@hourly"),
        ("", "@daily"),
        ("* " * 500, "@daily"),
        ("0 0 * * \n*\x00", "@daily"),
        ("0 0 1 1 * ; rm", "minute"),
    ],
)
def test_what_is_no_expression_is_refused_with_a_hint(wrong: str, hint: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_timetable(wrong, UTC, 0)
    assert hint in refused.value.hint


@given(st.text(alphabet="0123456789*/,-#LW@ abcmonHh?", max_size=30))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        timetable = read_timetable(text, read_zone("Europe/Berlin"), 0)
    except BadRequest:
        return
    assert timetable.after(moment_of(BEGIN)) is None or timetable.after(moment_of(BEGIN)) > moment_of(BEGIN)  # type: ignore[operator]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "CEST",
        "Mars/Olympus",
        "../etc/passwd",
        "/etc/localtime",
        "localtime",
        "posix/UTC",
        "right/UTC",
        "+01:00",
        "Europe",
    ],
)
def test_only_zones_of_the_iana_database_are_taken(name: str) -> None:
    with pytest.raises(BadRequest, match="no time zone"):
        read_zone(name)


@pytest.mark.parametrize(
    "name", ["UTC", "Etc/UTC", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "Asia/Tokyo"]
)
def test_zones_have_names(name: str) -> None:
    assert read_zone(name) is not None
