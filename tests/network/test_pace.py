"""How fast what an outage has delayed is sent."""

from __future__ import annotations

from landbridge.core.time import SECOND
from landbridge.crossing.lane import BURST, LATE, Pace

RATE = 1_000_000
SIZE = 100_000
NOW = 1_000_000 * SECOND
#: When a message was published that has just become late, and one that has not.
DELAYED, FRESH = NOW - int(LATE * SECOND), NOW - int(LATE * SECOND) + 1


def test_fresh_messages_are_never_held_back():
    pace = Pace(RATE)
    assert all(pace.allows(FRESH, SIZE, NOW) for _ in range(1000))


def test_late_messages_go_in_a_burst_and_then_wait():
    pace = Pace(RATE)
    sent = 0
    while pace.allows(DELAYED, SIZE, NOW):
        sent += SIZE
    assert RATE * BURST < sent <= RATE * BURST + SIZE
    assert not pace.allows(DELAYED, 1, NOW)
    # What was spent above the burst is worked off by time, at the rate.
    over = int((sent - RATE * BURST) / RATE * SECOND)
    assert not pace.allows(DELAYED, SIZE, NOW + over - 1)
    assert pace.allows(DELAYED, SIZE, NOW + over)


def test_over_time_late_messages_keep_to_the_rate():
    pace = Pace(RATE)
    seconds, sent = 20, 0
    for now in range(NOW, NOW + seconds * SECOND, SECOND // 100):
        while pace.allows(DELAYED, SIZE, now):
            sent += SIZE
    assert RATE * (seconds - 1) < sent <= RATE * (seconds + BURST) + SIZE


def test_fresh_messages_go_while_late_ones_wait_and_cost_them_nothing():
    pace = Pace(RATE)
    while pace.allows(DELAYED, SIZE, NOW):
        assert pace.allows(NOW, 1000 * SIZE, NOW)
    assert pace.allows(NOW, SIZE, NOW)
    assert pace.allows(DELAYED, SIZE, NOW + SECOND)


def test_a_long_rest_saves_up_no_more_than_one_burst():
    pace = Pace(RATE)
    assert pace.allows(DELAYED, SIZE, NOW)
    later, sent = NOW + 3600 * SECOND, 0
    while pace.allows(DELAYED, SIZE, later):
        sent += SIZE
    assert sent <= RATE * BURST + SIZE


def test_without_a_rate_nothing_waits():
    pace = Pace(0)
    assert all(pace.allows(0, SIZE, NOW) for _ in range(1000))
