import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from landbridge.core.log.ledger import EMPTY, WINDOW, Entry, decode, encode
from landbridge.errors import SequenceGap


class LedgerMachine(RuleBasedStateMachine):
    """One producer against the list of the first offsets of its batches by number; -1: given up."""

    def __init__(self):
        super().__init__()
        self.entry = EMPTY
        self.stored: list[int] = []
        self.end = 0
        #: The number of the producer's last batch that was not given up.
        self.after = 0

    @rule(batches=st.integers(1, WINDOW + 10), length=st.integers(1, 5))
    def publish(self, batches, length):
        for _ in range(batches):
            self.publish_number(len(self.stored) + 1, length)

    def publish_number(self, sequence, length):
        assert not self.entry.known(sequence)
        self.entry = self.entry.stored(sequence, self.after, self.end)
        self.stored += [-1] * (sequence - len(self.stored) - 1) + [self.end]
        self.after = sequence
        self.end += length

    @rule(given_up=st.integers(1, 2 * WINDOW), length=st.integers(1, 5))
    def publish_after_refusals(self, given_up, length):
        self.publish_number(len(self.stored) + given_up + 1, length)

    @rule(length=st.integers(1, 5))
    def publish_after_one_that_was_stored_although_it_was_refused(self, length):
        before = self.after
        self.publish_number(len(self.stored) + 1, length)
        self.after = before

    @rule(back=st.integers(0, 2 * WINDOW))
    def repeat(self, back):
        sequence = len(self.stored) - back
        assert self.entry.known(sequence) == (sequence >= 1)
        if sequence >= 1:
            assert self.entry.first_of(sequence) == (self.stored[sequence - 1] if back < WINDOW else -1)
        with pytest.raises(SequenceGap):
            self.entry.stored(sequence, sequence - 1, self.end)

    @rule(ahead=st.integers(2, 100))
    def send_behind_one_that_was_refused(self, ahead):
        sequence = len(self.stored) + ahead
        assert not self.entry.known(sequence)
        with pytest.raises(SequenceGap):
            self.entry.stored(sequence, sequence - 1, self.end)

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
    for entry in (EMPTY, EMPTY.stored(1, 0, 0)):
        assert not entry.known(sequence)
        with pytest.raises(SequenceGap):
            entry.stored(sequence, sequence - 1, 0)


def test_offset_of_the_last_batch_can_be_learned_later():
    before = EMPTY.stored(1, 0, 5)
    assert before.stored(2, 1, -1).at(9) == before.stored(2, 1, 9)
