"""Opening hours, against a look at every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.schedule.hours import DAYS, OpeningHours
from landbridge.core.schedule.zones import datetime_of, moment_of, read_zone
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest

MINUTE = 60 * SECOND


def at(text: str, zone: str = "UTC") -> int:
    return moment_of(datetime.fromisoformat(text).replace(tzinfo=read_zone(zone)))


def test_a_group_is_open_on_its_days_from_its_opening_until_its_closing() -> None:
    hours = OpeningHours(("mon-fri 08:00-18:00 Europe/Berlin", "sat 10:00-14:00 Europe/Berlin"))
    berlin = "Europe/Berlin"
    for moment, is_open, change in [
        ("2026-11-18T07:59:59", False, "2026-11-18T08:00"),
        ("2026-11-18T08:00", True, "2026-11-18T18:00"),
        ("2026-11-18T17:59:59", True, "2026-11-18T18:00"),
        ("2026-11-18T18:00", False, "2026-11-19T08:00"),
        ("2026-11-20T18:00", False, "2026-11-21T10:00"),
        ("2026-11-21T15:00", False, "2026-11-23T08:00"),
    ]:
        assert hours.is_open(at(moment, berlin)) is is_open, moment
        assert hours.next_change(at(moment, berlin)) == at(change, berlin), moment


def test_hours_may_end_on_the_next_day_and_overlap() -> None:
    night = OpeningHours(("fri 22:00-06:00", "sat 05:00-07:00"))
    assert night.is_open(at("2026-11-21T03:00"))
    assert night.next_change(at("2026-11-21T03:00")) == at("2026-11-21T07:00")
    assert not night.is_open(at("2026-11-20T03:00"))
    always = OpeningHours(("daily 00:00-24:00",))
    assert always.is_open(at("2026-11-21T00:00"))
    assert always.next_change(at("2026-11-21T00:00")) > at("2026-11-25T00:00")


def test_clocks_that_change_take_nothing_away() -> None:
    hours = OpeningHours(("daily 02:30-04:00 Europe/Berlin",))
    assert hours.next_change(at("2026-03-29T00:00")) == at("2026-03-29T01:00")  # 03:00, the end of the gap
    closing = OpeningHours(("daily 00:00-02:30 Europe/Berlin",))
    assert closing.next_change(at("2026-10-25T00:00")) == at("2026-10-25T01:30")  # the second 02:30


entries = st.builds(
    lambda days, opens, span, zone: (
        f"{','.join(sorted(days))} {opens // 60:02}:{opens % 60:02}"
        f"-{(opens + span) % 1440 // 60:02}:{(opens + span) % 60:02} {zone}"
    ),
    st.sets(st.sampled_from(DAYS), min_size=1),
    st.integers(0, 1439),
    st.integers(1, 1439),
    st.sampled_from(["UTC", "Europe/Berlin", "Africa/Cairo"]),
)


def naive(entry: str, moment: int) -> bool:
    days, clock, zone = entry.split()
    opens, _, closes = clock.partition("-")
    local = datetime_of(moment, read_zone(zone)).replace(tzinfo=None)
    now, yesterday = f"{local:%H:%M}", local - timedelta(days=1)
    today = DAYS[local.weekday()] in days.split(",")
    if opens < closes:
        return today and opens <= now < closes
    return (today and now >= opens) or (DAYS[yesterday.weekday()] in days.split(",") and now < closes)


@given(st.lists(entries, min_size=1, max_size=4), st.integers(0, 14 * 1440))
def test_a_group_is_open_when_one_of_its_entries_is(texts: list[str], minute: int) -> None:
    """In weeks without a change of the clocks."""
    hours = OpeningHours(tuple(texts))
    moment = at("2026-06-01T00:00") + minute * MINUTE
    expected = any(naive(text, moment) for text in texts)
    assert hours.is_open(moment) is expected
    change = hours.next_change(moment)
    assert change > moment
    for between in range(moment, min(change, moment + 1440 * MINUTE), 17 * MINUTE):
        assert any(naive(text, between) for text in texts) is expected
    assert OpeningHours(tuple(texts)).is_open(moment) is hours.is_open(moment)


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "mon", "mon 8:00-18:00", "mon 08:00-08:00", "mon 24:00-08:00", "mon 08:60-09:00"),
        *("mon 08:00-25:00", "mon-xyz 08:00-18:00", "day 08:00-18:00", "mon 08:00-18:00 Nowhere"),
        *("mon 08:00-18:00 UTC UTC", "mon " * 99),
    ],
)
def test_what_are_no_hours_is_refused(wrong: str) -> None:
    with pytest.raises(BadRequest):
        OpeningHours((wrong,))


def test_a_week_may_be_named_over_its_end() -> None:
    hours = OpeningHours(("sat-mon 00:00-24:00",))
    week = [hours.is_open(moment_of(datetime(2026, 11, 16 + day, 12, tzinfo=UTC))) for day in range(7)]
    assert week == [True, False, False, False, False, True, True]
    with pytest.raises(BadRequest, match="entries"):
        OpeningHours(("mon 08:00-18:00",) * 51)
