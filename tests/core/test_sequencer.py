"""The sequencer against a ten-line oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.events.sequencer import Sequencer, decode_state, encode_state
from landbridge.core.time import SECOND
from landbridge.errors import SequenceGap


def payload(number):
    return b"<%d>" % number


def offer(sequencer, *numbers, now=0):
    return sequencer.offer(now, numbers, [payload(n) for n in numbers])


def payloads(numbers):
    return [payload(n) for n in numbers]


class Oracle:
    def __init__(self):
        self.next, self.held, self.late = 1, set(), 0

    def offer(self, numbers):
        out = []
        for number in numbers:
            if number < self.next or number in self.held:
                self.late += 1
            self.held |= {number} if number >= self.next else set()
        while self.next in self.held:
            self.held.remove(self.next)
            out.append(self.next)
            self.next += 1
        return out


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=12), st.data())
def test_releases_what_the_oracle_releases(batches, data):
    sequencer, oracle = Sequencer(), Oracle()
    for numbers in batches:
        assert offer(sequencer, *numbers) == payloads(oracle.offer(numbers))
        assert (sequencer.next, set(sequencer.held), sequencer.late) == (
            oracle.next,
            oracle.held,
            oracle.late,
        )
        if data.draw(st.booleans()):
            restored = Sequencer()
            restored.restore(decode_state(encode_state(sequencer.save())))
            sequencer = restored


@given(st.permutations(range(1, 60)), st.integers(1, 20))
def test_any_order_in_any_batches_comes_out_in_order(numbers, size):
    sequencer = Sequencer()
    out = []
    for at in range(0, len(numbers), size):
        out += offer(sequencer, *numbers[at : at + size])
    assert out == payloads(range(1, 60))
    assert not sequencer.held


def test_first_of_two_with_one_number_counts():
    sequencer = Sequencer()
    sequencer.offer(0, [2], [b"first"])
    assert sequencer.offer(0, [2, 1, 1], [b"second", b"one", b"uno"]) == [b"one", b"first"]
    assert sequencer.late == 2


@given(
    st.sets(st.integers(1, 200), min_size=1).flatmap(lambda s: st.permutations(sorted(s))),
    st.integers(1, 16),
    st.integers(1, 8),
)
def test_a_full_hold_gives_up_gaps_and_never_breaks_the_order(numbers, hold, size):
    sequencer = Sequencer(hold=hold)
    out = []
    for at in range(0, len(numbers), size):
        out += offer(sequencer, *numbers[at : at + size])
        assert len(sequencer.held) <= hold
    released = [int(p[1:-1]) for p in out]
    assert released == sorted(set(released))
    # Everything is somewhere: released, held or counted.
    assert len(released) + len(sequencer.held) + sequencer.late == len(numbers)
    assert sequencer.skipped == sequencer.next - 1 - len(released)


def test_full_hold_gives_up_as_few_gaps_as_relief_takes():
    sequencer = Sequencer(hold=8)
    assert offer(sequencer, 2, 3, 5, 6, 7, 8, 9, 10) == []
    assert offer(sequencer, 12) == payloads([2, 3])
    assert (sequencer.next, sequencer.skipped) == (4, 1)
    assert offer(sequencer, 4) == payloads(range(4, 11))
    assert offer(sequencer, 1) == []
    assert sequencer.late == 1


def test_refusing_takes_nothing_and_goes_on_when_the_missing_one_comes():
    sequencer = Sequencer(hold=3, on_gap="refuse")
    assert offer(sequencer, 2, 3, 4) == []
    with pytest.raises(SequenceGap, match="number 1 is missing"):
        offer(sequencer, 5)
    assert sorted(sequencer.held) == [2, 3, 4]
    assert offer(sequencer, 5, 1) == payloads([1, 2, 3, 4, 5])


def test_refusing_counts_only_those_that_would_wait():
    sequencer = Sequencer(hold=1, on_gap="refuse")
    assert offer(sequencer, 1, 2, 3, 5) == payloads([1, 2, 3])


def test_gap_is_given_up_after_its_time_and_a_younger_one_is_not():
    sequencer = Sequencer(gap_within=5.0)
    assert sequencer.next_deadline() is None
    offer(sequencer, 2, 4, now=0)
    assert sequencer.next_deadline() == 5 * SECOND
    offer(sequencer, 6, now=3 * SECOND)
    assert sequencer.advance(5 * SECOND - 1) == []
    assert sequencer.advance(5 * SECOND) == payloads([2, 4])
    assert (sequencer.skipped, sequencer.next_deadline()) == (2, 10 * SECOND)
    assert sequencer.advance(10 * SECOND) == payloads([6])
    assert sequencer.next_deadline() is None


def test_gap_that_closes_in_time_costs_nothing():
    sequencer = Sequencer(gap_within=5.0)
    offer(sequencer, 2, now=0)
    assert offer(sequencer, 1, now=1) == payloads([1, 2])
    assert sequencer.next_deadline() is None
    assert sequencer.advance(10 * SECOND) == []
    assert sequencer.skipped == 0


def test_the_clock_of_a_gap_survives_a_restart():
    sequencer = Sequencer(gap_within=5.0)
    offer(sequencer, 2, now=7)
    restored = Sequencer(gap_within=5.0)
    restored.restore(decode_state(encode_state(sequencer.save())))
    assert restored.next_deadline() == 7 + 5 * SECOND
    assert restored.advance(7 + 5 * SECOND) == payloads([2])


def test_many_gaps_cost_no_more_sorting_than_the_hold_is_full_often():
    """Every second number never comes: each full hold is sorted once for an eighth of it."""
    sequencer = Sequencer(hold=800)
    relieved = 0
    for number in range(2, 20_001, 2):
        relieved += bool(offer(sequencer, number))
    assert relieved <= 10_000 / 100
    assert sequencer.skipped == sequencer.next - 1 - (10_000 - len(sequencer.held))
