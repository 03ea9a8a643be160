from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.ranges import RangeSet, clip, count, cut, intersect, normalise, subtract

OFFSET = st.integers(0, 30)
RANGE = st.tuples(OFFSET, OFFSET)
CHANGES = st.lists(st.tuples(st.sampled_from(["add", "remove"]), OFFSET, OFFSET), max_size=30)


def members(ranges) -> set[int]:
    return {offset for first, end in ranges for offset in range(first, end)}


def check(found: RangeSet, oracle: set[int]) -> None:
    ranges = list(found)
    assert members(ranges) == oracle
    assert found.size == len(oracle) == count(ranges)
    assert len(found) == len(ranges)
    assert bool(found) == bool(oracle)
    assert all(first < end for first, end in ranges)
    assert all(end < first for (_, end), (first, _) in pairwise(ranges))
    if ranges:
        assert (found.first(), found.last()) == (ranges[0], ranges[-1])


@given(CHANGES)
def test_set_equals_a_python_set_after_any_changes(changes):
    found, oracle = RangeSet(), set()
    for change, first, end in changes:
        if change == "add":
            found.add(first, end)
            oracle |= set(range(first, end))
        else:
            found.remove(first, end)
            oracle -= set(range(first, end))
        check(found, oracle)
    for offset in range(32):
        assert (offset in found) == (offset in oracle)
        ranges = [item for item in found if item[1] > offset]
        assert found.range_at(offset) == (ranges[0] if ranges else None)


@given(st.lists(RANGE))
def test_set_of_any_ranges_is_normal_and_can_be_cleared(ranges):
    found = RangeSet(ranges)
    assert list(found) == normalise(ranges)
    found.clear()
    check(found, set())


@given(st.lists(RANGE), st.lists(RANGE))
def test_subtract_and_intersect_equal_those_of_sets(ranges, others):
    a, b = normalise(ranges), normalise(others)
    assert (members(a), members(b)) == (members(ranges), members(others))
    for found, oracle in (
        (subtract(a, b), members(a) - members(b)),
        (intersect(a, b), members(a) & members(b)),
    ):
        check(RangeSet(found), oracle)
        assert count(found) == len(oracle)
        assert found == sorted(found)


@given(st.sets(OFFSET), st.sets(OFFSET))
def test_ranges_that_touch_need_not_be_joined(ours, theirs):
    a, b = ([(offset, offset + 1) for offset in sorted(offsets)] for offsets in (ours, theirs))
    assert members(subtract(a, b)) == ours - theirs
    assert members(intersect(a, b)) == ours & theirs


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40))), st.integers(0, 40), st.integers(0, 40))
def test_clip_and_cut_are_intersect_and_subtract_of_one_range(some, first, end):
    ranges, one = normalise(some), normalise([(first, end)])
    assert clip(ranges, first, end) == intersect(ranges, one)
    left = list(ranges)
    cut(left, first, end)
    assert left == subtract(ranges, one)
