import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from landbridge.core.delivery.discipline import discipline
from landbridge.core.log.batch import Batch, build
from landbridge.errors import BadRequest


class DisciplineMachine(RuleBasedStateMachine):
    """Against a sorted list of what is in. The log grows by batches, some of which are not in memory."""

    @initialize(name=st.sampled_from(["fifo", "lifo", "priority"]))
    def begin(self, name):
        self.name = name
        self.discipline = discipline(name)
        self.inside: set[int] = set()
        self.priorities: list[int] = []
        self.batches: list[tuple[int, Batch]] = []
        self.loaded: set[int] = set()

    def batch_at(self, offset):
        first, batch = max(item for item in self.batches if item[0] <= offset)
        assert offset < first + len(batch)
        return (first, batch) if first in self.loaded else None

    def ordered(self) -> list[int]:
        if self.name == "priority":
            return sorted(self.inside, key=lambda offset: (-self.priorities[offset], offset))
        return sorted(self.inside, reverse=self.name == "lifo")

    @rule(priorities=st.lists(st.integers(0, 9) | st.just(0), min_size=1, max_size=6), loaded=st.booleans())
    def grow(self, priorities, loaded):
        first = len(self.priorities)
        data = build([b""] * len(priorities), id=bytes(16), time=0, priorities=priorities)
        self.batches.append((first, Batch.decode(data)))
        if loaded:
            self.loaded.add(first)
        self.priorities += priorities
        self.inside |= set(range(first, len(self.priorities)))
        self.discipline.add(first, len(self.priorities))

    @rule(limit=st.integers(1, 5), data=st.data())
    def take(self, limit, data):
        run = self.discipline.next_run(limit, self.batch_at)
        if run is None:
            missing = self.discipline.missing
            assert missing in self.inside if self.inside else missing is None
            if missing is not None:
                assert self.batch_at(missing) is None
                self.loaded.add(max(first for first, _ in self.batches if first <= missing))
            return
        assert self.discipline.missing is None
        offsets = list(range(*run))
        if self.discipline.newest_first:
            offsets.reverse()
        assert 0 < len(offsets) <= limit
        assert offsets == self.ordered()[: len(offsets)]
        # It stays in until it is removed, and only a part of it may be.
        taken = data.draw(st.integers(0, len(offsets)))
        for offset in offsets[:taken]:
            self.discipline.remove(offset, offset + 1)
        self.inside -= set(offsets[:taken])

    @rule(data=st.data())
    def give_back(self, data):
        outside = sorted(set(range(len(self.priorities))) - self.inside)
        if outside:
            offset = data.draw(st.sampled_from(outside))
            self.discipline.add(offset, offset + 1)
            self.inside.add(offset)

    @rule(first=st.integers(0, 20), length=st.integers(0, 20))
    def remove(self, first, length):
        self.discipline.remove(first, first + length)
        self.inside -= set(range(first, first + length))

    @rule()
    def evict(self):
        self.loaded.clear()

    @invariant()
    def size_is_what_is_in(self):
        assert self.discipline.size == len(self.inside)

    def teardown(self):
        """Drained with everything in memory, it gives all of it, in order."""
        if not hasattr(self, "name"):
            return
        self.loaded = {first for first, _ in self.batches}
        wanted = self.ordered()
        drained: list[int] = []
        while run := self.discipline.next_run(3, self.batch_at):
            drained += range(*run)[:: -1 if self.discipline.newest_first else 1]
            self.discipline.remove(*run)
        assert drained == wanted


TestDiscipline = DisciplineMachine.TestCase
TestDiscipline.settings = settings(stateful_step_count=30)


def test_high_priority_does_not_hide_behind_a_batch_that_is_not_in_memory():
    found = discipline("priority")
    low = Batch.decode(build([b"low"], id=bytes(16), time=0))
    found.add(0, 2)
    assert found.next_run(1, lambda offset: (0, low) if offset == 0 else None) is None
    assert found.missing == 1
    high = Batch.decode(build([b"high"], id=bytes(16), time=0, priorities=[9]))
    assert found.next_run(1, lambda offset: (offset, high)) == (1, 2)
    assert found.missing is None


def test_unknown_discipline_is_refused():
    with pytest.raises(BadRequest, match="random"):
        discipline("random")
