import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from landbridge.core.log.ledger import EMPTY, WINDOW, Entry, decode, encode
from landbridge.errors import SequenceGap


class LedgerMachine(RuleBasedStateMachine):
    """One producer against the list of the first offsets of its stored batches."""

    def __init__(self):
        super().__init__()
        self.entry = EMPTY
        self.stored: list[int] = []
        self.end = 0

    @rule(batches=st.integers(1, WINDOW + 10), length=st.integers(1, 5))
    def publish(self, batches, length):
        for _ in range(batches):
            sequence = len(self.stored) + 1
            assert not self.entry.known(sequence)
            self.entry = self.entry.stored(sequence, self.end)
            self.stored.append(self.end)
            self.end += length

    @rule(back=st.integers(0, 2 * WINDOW))
    def repeat(self, back):
        sequence = len(self.stored) - back
        assert self.entry.known(sequence) == (sequence >= 1)
        if sequence >= 1:
            assert self.entry.first_of(sequence) == (self.stored[sequence - 1] if back < WINDOW else -1)
        with pytest.raises(SequenceGap):
            self.entry.stored(sequence, self.end)

    @rule(ahead=st.integers(2, 100))
    def leave_a_gap(self, ahead):
        sequence = len(self.stored) + ahead
        assert not self.entry.known(sequence)
        with pytest.raises(SequenceGap):
            self.entry.stored(sequence, self.end)

    @rule()
    def restart(self):
        self.entry = decode(encode(self.entry))

    @rule(length=st.integers(1, 5))
    def others_publish(self, length):
        self.end += length

    @invariant()
    def remembers_no_more_than_the_window(self):
        assert self.entry == Entry(len(self.stored), tuple(self.stored[-WINDOW:]))


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(stateful_step_count=20)


@pytest.mark.parametrize("sequence", [0, -1])
def test_number_below_one_is_never_known(sequence):
    """Numbers start at 1. To call an earlier one known would confirm a batch that nobody has."""
    for entry in (EMPTY, EMPTY.stored(1, 0)):
        assert not entry.known(sequence)
        with pytest.raises(SequenceGap):
            entry.stored(sequence, 0)


def test_offset_of_the_last_batch_can_be_learned_later():
    before = EMPTY.stored(1, 5)
    assert before.stored(2, -1).at(9) == before.stored(2, 9)
