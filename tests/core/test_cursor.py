from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from landbridge.core.log.cursor import SMALL, Cursor, Try

END = 5 * SMALL
OFFSET = st.integers(0, END - 1)
RUN = st.tuples(OFFSET, st.integers(1, 5)).map(lambda run: (run[0], min(END, sum(run))))


def comb(first, end) -> list[tuple[int, int]]:
    """Every other offset: what makes a cursor too large for snapshots."""
    return [(offset, offset + 1) for offset in range(first, end, 2)]


def offsets_left(cursor) -> list[int]:
    return [offset for first, end in cursor.unsettled(END) for offset in range(first, end)]


def state_of(cursor) -> tuple[set[int], dict[int, Try]]:
    return set(range(END)).difference(offsets_left(cursor)), cursor.tries


class CursorMachine(RuleBasedStateMachine):
    """Against a set of settled offsets and a dict of tries; the disk is a dict of slots."""

    @initialize(size=st.sampled_from([0, END]))
    def begin(self, size):
        self.cursor = Cursor(0)
        self.settled: set[int] = set()
        self.tries: dict[int, Try] = {}
        self.unsure: list[tuple[int, int]] = []  # settled since the last good commit
        self.disk: dict[int, bytes] = {}
        self.settle_all(comb(1, size))
        self.commit()

    def commit(self, *, told=True, done=True):
        slot, value = self.cursor.document()
        assert not self.cursor.dirty
        if done:
            self.disk[slot] = value
            self.stored = self.settled.copy(), self.tries.copy()
        assert state_of(Cursor.restore(self.disk.items())) == self.stored
        if told:
            self.unsure = []
        else:
            self.cursor.rewrite()
            assert self.cursor.dirty

    def settle_all(self, ranges):
        self.cursor.settle(ranges)
        for first, end in ranges:
            new = set(range(first, end)) - self.settled
            self.unsure += [(offset, offset + 1) for offset in new]
            self.settled |= new
        self.tries = {offset: tried for offset, tried in self.tries.items() if offset not in self.settled}

    @rule(ranges=st.lists(RUN, max_size=3) | st.builds(comb, OFFSET, OFFSET))
    def settle(self, ranges):
        self.settle_all(ranges)

    @rule()
    def settle_in_order(self):
        floor = self.cursor.floor
        self.settle_all([(floor, min(END, floor + 3))])

    @rule(run=RUN, attempts=st.integers(1, 9), due=st.integers(0, 1 << 62), then_settle=st.booleans())
    def give_back(self, run, attempts, due, then_settle):
        for offset in set(range(*run)) - self.settled:
            self.cursor.tried(offset, attempts, due)
            self.tries[offset] = Try(attempts, due)
        if then_settle:
            self.settle_all([run])

    @rule(outcome=st.sampled_from(["done", "done", "failed", "unknown"]), undo=st.booleans())
    def store(self, outcome, undo):
        self.commit(told=outcome == "done", done=outcome != "failed")
        if undo:
            self.undo()

    @rule()
    def undo(self):
        self.cursor.unsettle(self.unsure)
        self.settled -= {first for first, _ in self.unsure}
        self.unsure = []

    @rule(floor=st.integers(0, END), rarely=st.integers(0, 3))
    def seek(self, floor, rarely):
        if rarely == 3:
            self.cursor.seek(floor)
            self.settled, self.tries, self.unsure = set(range(floor)), {}, []

    @rule()
    def restart(self):
        self.cursor = Cursor.restore(self.disk.items())
        assert not self.cursor.dirty
        self.settled, self.tries = self.stored[0].copy(), self.stored[1].copy()
        self.unsure = []

    @invariant()
    def equals_the_oracle(self):
        assert state_of(self.cursor) == (self.settled, self.tries)
        assert self.cursor.lag(END) == END - len(self.settled)
        assert not self.cursor.above or self.cursor.above.first()[0] > self.cursor.floor


TestCursor = CursorMachine.TestCase
TestCursor.settings = settings(max_examples=3 * settings().max_examples, stateful_step_count=30)


@given(st.sets(st.integers(0, 30)), st.integers(0, 40))
def test_unsettled_stops_at_the_end_of_the_log(settled, end):
    cursor = Cursor(0)
    cursor.settle((offset, offset + 1) for offset in settled)
    left = [offset for first, last in cursor.unsettled(end) for offset in range(first, last)]
    assert left == [offset for offset in range(end) if offset not in settled]


def test_ordered_reader_has_a_small_document_for_ever():
    cursor = Cursor(0)
    for at in range(0, 100_000, 100):
        cursor.settle([(at, at + 100)])
        slot, value = cursor.document()
        assert slot == 0
        assert len(value) < 40


def test_random_settles_write_little_on_average():
    """Quadratic growth is what deltas are for: the bytes per settle may not grow with the cursor."""
    cursor, written = Cursor(0), 0
    for at in range(1, 20_000, 2):
        cursor.settle([(at, at + 1)])
        written += len(cursor.document()[1])
    assert written / 10_000 < 100


def test_stale_deltas_of_an_older_generation_are_ignored():
    cursor, disk = Cursor(0), {}
    for at in range(1, 1000, 2):
        cursor.settle([(at, at + 1)])
        slot, value = cursor.document()
        disk[slot] = value
    assert len(disk) > 2
    cursor.seek(0)
    slot, value = cursor.document()
    disk[slot] = value
    assert slot == 0
    assert list(Cursor.restore(disk.items()).unsettled(1000)) == [(0, 1000)]


def test_delta_that_follows_a_lost_one_is_ignored():
    cursor, disk = Cursor(0), {}
    for at in range(1, 4 * SMALL, 2):
        cursor.settle([(at, at + 1)])
        slot, value = cursor.document()
        disk[slot] = value
    assert max(disk) > 2
    lost = max(disk) - 1
    del disk[lost]
    assert Cursor.restore(disk.items()).above.size == cursor.above.size - 2


def test_undone_settle_and_seek_are_written_as_a_whole():
    cursor = Cursor(0)
    cursor.settle(comb(1, END))
    disk = dict([cursor.document()])
    cursor.settle([(2, 3)])
    disk |= [cursor.document()]
    assert 1 in disk  # a delta, which alone can't be undone
    cursor.unsettle([(2, 3)])
    disk |= [cursor.document()]
    assert 2 in offsets_left(Cursor.restore(disk.items()))
    cursor.seek(0)
    cursor.settle(comb(2, END))
    disk |= [cursor.document()]
    assert offsets_left(Cursor.restore(disk.items())) == [0, *range(1, END, 2)]
