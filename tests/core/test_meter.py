import itertools
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.routing.meter import LOSS_MOST, STEP, Meter, Parts, quantised
from landbridge.core.time import SECOND

MS = 1000


class Line:
    """A meter and a peer that answers after so many milliseconds, or never."""

    def __init__(self, **options):
        self.meter = Meter(**options)
        self.now = 1_000 * SECOND
        self.numbers = itertools.count()

    @property
    def parts(self) -> Parts:
        parts = self.meter.parts
        assert parts is not None
        return parts

    def probe(self, rtt: float | None, every: float = 2.0) -> float | None:
        """One probe, until the next is due."""
        number, start, told = next(self.numbers), self.now, None
        self.meter.sent(self.now, number)
        if rtt is not None:
            self.now = start + round(rtt * MS)
            self.meter.advance(self.now)
            told = self.meter.echoed(self.now, number)
        self.now = max(self.now, start + round(every * SECOND))
        self.meter.advance(self.now)
        return told


def test_nothing_is_told_before_the_first_echo():
    line = Line()
    assert (line.meter.cost, line.meter.parts) == (None, None)
    line.probe(None)
    assert line.meter.cost is None


def test_first_echo_is_the_average():
    line = Line()
    assert line.probe(80) == 80
    parts = line.parts
    assert (parts.srtt, parts.rttvar, parts.loss) == (80, 40, 0)
    assert parts.total == 160


def test_average_moves_by_an_eighth():
    line = Line()
    line.probe(80)
    line.probe(160)
    assert line.parts.rttvar == 40 + (80 - 40) / 4
    assert line.parts.srtt == 90


def test_steady_line_costs_its_round_trip():
    line = Line()
    for _ in range(60):
        line.probe(50)
    assert line.parts.total == pytest.approx(50, rel=0.01)
    assert line.meter.cost == pytest.approx(50, rel=0.0625)


def test_admin_cost_is_added():
    line = Line(admin=500)
    for _ in range(60):
        line.probe(50)
    assert line.parts.total == pytest.approx(550, rel=0.01)


def test_late_echo_counts_as_lost_and_is_not_taken_for_a_slow_line():
    line = Line()
    for _ in range(60):
        line.probe(50)
    line.probe(1250)  # two retransmissions
    assert line.parts.loss == pytest.approx(1 / 16)
    assert line.parts.srtt == pytest.approx(50)
    assert line.parts.rttvar < 1
    assert line.meter.missed == 0


def test_line_that_became_slower_for_good_is_followed():
    line = Line()
    for _ in range(60):
        line.probe(50)
    for _ in range(100):
        line.probe(400)
    assert line.parts.srtt == pytest.approx(400, rel=0.02)
    assert line.parts.loss < 0.02


def test_loss_is_capped_in_the_cost():
    line = Line(missed_most=10**6)
    line.probe(50)
    for _ in range(200):
        line.probe(None)
    assert line.meter.loss > 0.9
    assert line.parts.loss == LOSS_MOST


@given(rtt=st.floats(1, 500), losses=st.lists(st.booleans(), min_size=50, max_size=50))
def test_loss_makes_a_line_dearer(rtt, losses):
    clean, lossy = Line(), Line(missed_most=10**6)
    for lost in losses:
        clean.probe(rtt)
        lossy.probe(None if lost else rtt)
    if not all(losses):
        assert lossy.parts.total >= clean.parts.total * 0.999


def test_link_is_down_after_three_missed_probes():
    line = Line()
    line.probe(50)
    for missed in (1, 2, 3):
        assert not line.meter.down
        line.probe(None)
        assert line.meter.missed == missed
    assert line.meter.down


def test_echo_that_comes_after_all_ends_the_row_and_counts_once():
    line = Line()
    line.probe(50)
    line.meter.sent(line.now, 1000)
    line.now += 3 * SECOND
    line.meter.advance(line.now)
    loss = line.meter.loss
    assert (line.meter.missed, loss > 0) == (1, True)
    assert line.meter.echoed(line.now, 1000) == 3000
    assert (line.meter.missed, line.meter.loss) == (0, loss)


def test_anything_heard_ends_the_row():
    line = Line()
    line.probe(50)
    for _ in range(10):
        line.probe(None)
        line.meter.heard()
    assert not line.meter.down
    assert line.meter.loss > 0.4


def test_echo_of_nothing_is_no_measure():
    line = Line()
    line.probe(50)
    assert line.meter.echoed(line.now, 999) is None
    assert line.meter.echoed(line.now, 0) is None  # a second echo of the first probe
    assert line.parts.srtt == 50


def test_probes_are_frequent_while_busy_or_in_doubt():
    line = Line()
    assert line.meter.next_probe(line.now, busy=False) == line.now
    line.probe(50, every=0.1)
    sent = line.now - 100 * MS
    assert line.meter.next_probe(line.now, busy=True) == sent + 2 * SECOND
    assert line.meter.next_probe(line.now, busy=False) == sent + 10 * SECOND
    line.probe(None)
    assert line.meter.next_probe(line.now, busy=False) == line.now


def test_idle_link_is_found_dead_in_time():
    """The peer dies after an echo: one idle interval, then three hurried probes."""
    line = Line()
    line.probe(50, every=0.1)
    died = line.now
    for number in itertools.count(100):
        line.now = line.meter.next_probe(line.now, busy=False)
        line.meter.advance(line.now)
        if line.meter.down:
            break
        line.meter.sent(line.now, number)
    assert (line.now - died) / SECOND <= 10 + 3 * 2


def test_deadline_is_when_a_probe_is_missed():
    line = Line()
    assert line.meter.next_deadline() is None
    line.probe(50)
    line.meter.sent(line.now, 7)
    due = line.meter.next_deadline()
    assert due is not None
    line.meter.advance(due - 1)
    assert line.meter.missed == 0
    line.meter.advance(due)
    assert line.meter.missed == 1
    assert line.meter.next_deadline() is None


def test_echoes_of_a_slow_line_are_waited_for():
    line = Line()
    for _ in range(30):
        line.probe(3000, every=4)
    assert line.meter.missed == 0


def test_queue_counts_only_when_it_lasts():
    line = Line()
    line.probe(50)
    before = line.parts.total
    line.meter.queued(line.now, 1000)
    assert line.parts.total == before
    line.meter.advance(line.now + 5 * SECOND - 1)
    assert line.parts.queue == 0
    assert line.meter.next_deadline() == line.now + 5 * SECOND
    line.meter.advance(line.now + 5 * SECOND)
    assert line.parts.total == before + 250
    line.meter.queued(line.now + 6 * SECOND, 60_000)
    assert line.parts.total == before + 500
    line.meter.queued(line.now + 7 * SECOND, 250)
    assert line.parts.total == before


def test_queue_that_empties_in_between_starts_anew():
    line = Line()
    line.probe(50)
    line.meter.queued(line.now, 1000)
    line.meter.queued(line.now + 4 * SECOND, 0)
    line.meter.queued(line.now + 5 * SECOND, 1000)
    line.meter.advance(line.now + 9 * SECOND)
    assert line.parts.queue == 0


@given(st.floats(0, 1e5))
def test_steps_are_an_eighth_apart(cost):
    step = quantised(cost)
    exponent = math.log(step, STEP)
    assert exponent == pytest.approx(round(exponent), abs=1e-6)
    if cost >= 0.1:
        assert abs(math.log(step / cost, STEP)) <= 0.5 + 1e-9


def test_told_cost_rests_while_the_measure_trembles():
    """Noise on the border between two steps would be news every two seconds."""
    noise, line = Random(1), Line()
    told, nearest = set(), set()
    for n in range(600):
        line.probe(50 + noise.uniform(-4, 4))
        if n == 100:
            line.meter.admin = STEP**40.5 - line.parts.total  # right between two steps
        if n > 100:
            told.add(line.meter.cost)
            nearest.add(quantised(line.parts.total))
    assert len(nearest) == 2
    assert len(told) == 1
