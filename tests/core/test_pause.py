"""How long a lane pauses whose destination doesn't get the keys."""

from __future__ import annotations

from landbridge.core.shipping.pause import PAUSE_MOST, Pause
from landbridge.core.time import SECOND


def spans(pause: Pause, count: int, *, version: int = 1, is_late: bool) -> list[float]:
    found, now = [], 0
    for _ in range(count):
        pause.begin(now, version, is_late=is_late)
        found.append(pause.left(now, version))
        now += int(found[-1] * SECOND)
        assert pause.left(now, version) == 0
    return found


def test_a_refused_destination_is_left_alone_for_longer_and_longer():
    assert spans(Pause(), 8, is_late=False) == [1, 2, 4, 8, 16, 32, 60, 60]


def test_what_is_late_is_sent_at_once_and_only_then_pauses():
    assert spans(Pause(), 5, is_late=True) == [0, 1, 2, 4, 8]


def test_another_directory_ends_the_pause_and_its_growth():
    pause = Pause()
    spans(pause, 5, is_late=False)
    assert pause.left(0, 2) == 0
    assert spans(pause, 2, version=2, is_late=False) == [1, 2]


def test_an_arrival_ends_the_pause_and_its_growth():
    pause = Pause()
    spans(pause, 5, is_late=False)
    pause.end()
    assert pause.left(0, 1) == 0
    assert spans(pause, 2, is_late=True) == [0, 1]


def test_a_clock_that_is_set_back_prolongs_no_pause_beyond_the_longest():
    pause = Pause()
    pause.begin(10_000 * SECOND, 1, is_late=False)
    assert pause.left(0, 1) == PAUSE_MOST
