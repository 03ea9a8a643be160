"""What a schedule does at a moment, whatever moments those are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.schedule import schedule as core
from landbridge.core.schedule.schedule import ScheduleState, StoredSchedule, schedule_spec, timetable_of
from landbridge.core.schedule.timetable import between
from landbridge.core.time import SECOND
from landbridge.errors import BadName, BadRequest

START = 1_800_000_000_000_000


def stored(**options: Any) -> StoredSchedule:
    spec = schedule_spec({"topic": "reports", "name": "a", "when": "@every 10s", **options})
    return StoredSchedule(
        spec=spec, owner="test", created_at=START, anchor=START, state=ScheduleState(decided_to=START)
    )


def run(
    schedule: StoredSchedule, now: int, busy: bool = False, alone: bool = True
) -> tuple[StoredSchedule, list[int]]:
    timetable = timetable_of(schedule.spec, schedule.anchor)
    fired: list[int] = []
    while True:
        made = core.decide(schedule, timetable, now, busy=busy, alone=alone)
        if made.state == schedule.state:
            return schedule, fired
        schedule = msgspec.structs.replace(schedule, state=made.state)
        fired += [order.at for order in made.orders]
        busy = busy or bool(made.orders)


@given(
    steps=st.lists(st.integers(-3000, 5000), max_size=15),
    catch_up=st.sampled_from([0, 15, 600, 100_000]),
    jitter=st.sampled_from([0, 7, 25]),
)
def test_whatever_the_clock_does_each_fire_time_is_decided_once_and_in_order(
    steps: list[int], catch_up: float, jitter: float
) -> None:
    schedule, now, fired = stored(catch_up=catch_up, jitter=jitter, overlap="allow"), START, []
    furthest = START
    for step in steps:
        now = max(START, now + step * SECOND)
        furthest = max(furthest, now)
        schedule, more = run(schedule, now)
        assert all(at + core.jitter_of(schedule.spec, at) <= now for at in more)
        assert all(now - at <= (catch_up + jitter) * SECOND for at in more)
        fired += more
    assert fired == sorted(set(fired))
    state = schedule.state
    assert state.fired == len(fired)
    # Each fire time up to there has either fired or is missed.
    assert state.fired + state.missed == (state.decided_to - START) // (10 * SECOND)
    if catch_up == 100_000:
        assert state.missed == 0
        assert state.decided_to >= furthest - (jitter + 10) * SECOND


@given(st.integers(0, 10**16), st.floats(0.001, 86400))
def test_jitter_is_the_same_for_the_same_firing_and_within_its_bound(at: int, jitter: float) -> None:
    spec = stored(jitter=jitter).spec
    assert core.jitter_of(spec, at) == core.jitter_of(spec, at)
    assert 0 <= core.jitter_of(spec, at) <= jitter * SECOND


def test_jitter_spreads() -> None:
    spec = stored(jitter=100).spec
    delays = [core.jitter_of(spec, START + number * 10 * SECOND) / SECOND for number in range(500)]
    assert min(delays) < 5
    assert max(delays) > 95
    assert 40 < sum(delays) / len(delays) < 60


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_a_backfill_is_every_firing_of_its_range_once(begin: int, span: int) -> None:
    schedule = stored()
    now, first = START + 20_000 * SECOND, START + begin * SECOND
    last = first + span * SECOND
    timetable = timetable_of(schedule.spec, START)
    paused = core.pause(schedule.state, now, "test", "")
    state, count = core.backfill(paused, len(list(between(timetable, first - 1, last))), now, first, last)
    after, fired = run(msgspec.structs.replace(schedule, state=state), now)
    expected = [at for at in range(START + 10 * SECOND, last + 1, 10 * SECOND) if at >= first]
    assert (fired, count) == (expected, len(expected))
    assert after.state.backfills == ()
    assert after.state.decided_to == START


def test_overlap_with_a_message_that_is_never_settled() -> None:
    now = START + 55 * SECOND
    for overlap, waiting, skipped in (("skip", 0, 5), ("buffer-one", 1, 4), ("buffer-all", 5, 0)):
        after, fired = run(stored(overlap=overlap), now, busy=True, alone=False)
        assert (fired, len(after.state.waiting), after.state.skipped) == ([], waiting, skipped)
    assert len(run(stored(overlap="allow"), now, busy=True, alone=False)[1]) == 5
    assert len(run(stored(overlap="skip"), now, busy=True, alone=True)[1]) == 5


def test_a_year_without_the_terminal_is_not_counted_minute_by_minute() -> None:
    year = START + 365 * 86400 * SECOND
    after, fired = run(stored(when="* * * * *", catch_up=120), year)
    assert len(fired) == 3  # as late as it may be, and the two after it
    assert after.state.missed == core.MOST_COUNTED + 1


def test_a_refusal_gives_the_messages_up_and_keeps_what_was_published_before() -> None:
    schedule, _ = run(stored(), START + 10 * SECOND)
    now = START + 20 * SECOND
    made = core.decide(schedule, timetable_of(schedule.spec, START), now, busy=False, alone=True)
    state = core.refuse(made, schedule.state, now, "forbidden")
    assert (state.fired, state.refused, state.decided_to) == (1, 1, now)
    assert [each.outcome for each in state.recent] == ["fired", "refused"]
    assert state.last == schedule.state.last


@pytest.mark.parametrize(
    "wrong",
    [
        {"jitter": -1},
        {"jitter": 1e9},
        {"jitter": float("nan")},
        {"catch_up": -1},
        {"catch_up": float("inf")},
        {"priority": 10},
        {"headers": {"lb-schedule": "mine"}},
        {"headers": {"a": "x" * 2000}},
        {"headers": {str(n): "" for n in range(40)}},
        {"key": "k" * 2000},
        {"zone": "CEST"},
        {"overlap": "sometimes"},
        {"when": "now"},
        {"retries": 3},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        stored(**wrong)


def test_names_are_checked_and_triggers_bounded() -> None:
    with pytest.raises(BadName):
        stored(name="a/b")
    state = stored().state
    moments = set()
    for _ in range(core.MOST_TRIGGERS):
        state, at = core.trigger(state, START)
        moments.add(at)
    assert len(moments) == core.MOST_TRIGGERS
    with pytest.raises(BadRequest, match="triggers"):
        core.trigger(state, START)
