from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.delivery.delivery import Delivery, Policy
from landbridge.core.delivery.filters import Match, filter_of
from landbridge.core.log.batch import Batch, build
from landbridge.core.log.cursor import Cursor
from landbridge.core.log.keyruns import KeyRuns

KEYS = st.sampled_from([b"a", b"b", b"c"])
#: Keys of the messages of each batch.
LOG = st.lists(st.lists(KEYS, min_size=1, max_size=4) | KEYS.map(lambda key: [key] * 3), max_size=8)


def offsets(ranges) -> list[int]:
    return [offset for first, end in ranges for offset in range(first, end)]


def sole(keys) -> bytes | None:
    return keys[0] if len(set(keys)) == 1 else None


@given(LOG, KEYS, st.integers(0, 40))
def test_runs_of_a_key_are_its_own_batches_and_the_mixed_ones(log, key, since):
    runs = KeyRuns(5)
    wanted: list[int] = []
    for keys in log:
        first = runs.end
        runs.add(first + len(keys), sole(keys))
        if sole(keys) in (key, None):
            wanted += range(first, runs.end)
    found = runs.of(key, since)
    assert offsets(found) == [offset for offset in wanted if offset >= since]


def test_batches_of_one_key_that_follow_each_other_are_one_run():
    runs = KeyRuns(0)
    for end in range(1, 100):
        runs.add(end, b"a")
    assert (runs.size, runs.of(b"a", 0)) == (1, [(0, 99)])


def test_forgotten_runs_begin_at_the_end():
    runs = KeyRuns(0)
    runs.add(3, b"a")
    runs.add(5, None)
    runs.forget()
    assert (runs.first, runs.end, runs.size, runs.of(b"a", 0)) == (5, 5, 0, [])
    runs.add(6, b"b")
    assert (runs.of(b"a", 5), runs.of(b"b", 5)) == ([], [(5, 6)])


@given(LOG, st.data(), st.sampled_from(["fifo", "lifo", "priority"]))
def test_delivery_that_grows_by_runs_hands_out_what_one_that_looks_at_all_does(log, data, discipline):
    """Whenever it catches up, and wherever a seek has put it meanwhile."""
    batches: dict[int, Batch] = {}
    runs = KeyRuns(0)
    filter = filter_of(Match(key="a"))
    plain, quick = (
        Delivery(Cursor(0), 0, Policy(discipline=discipline), filter=filter, group="g") for _ in "ab"
    )

    def batch_at(offset):
        return next((f, b) for f, b in batches.items() if f <= offset < f + len(b))

    def take(delivery):
        handouts = delivery.take(0, 1, 1000, batch_at)
        return [offset for handout in handouts for offset in offsets(handout.ranges)]

    for keys in log:
        first = runs.end
        batches[first] = Batch.decode(build([b""] * len(keys), id=bytes(16), time=0, keys=keys))
        runs.add(first + len(keys), sole(keys))
        if data.draw(st.booleans()):
            floor = data.draw(st.integers(0, runs.end))
            for delivery in (plain, quick):
                delivery.seek(floor)
        if data.draw(st.booleans()):
            plain.grow(runs.end)
            quick.grow(runs.end, runs.of(b"a", quick.end))
            assert sorted(take(quick)) == sorted(take(plain))
            if data.draw(st.booleans()):
                runs.forget()
    plain.grow(runs.end)
    quick.grow(runs.end, runs.of(b"a", quick.end))
    assert sorted(take(quick)) == sorted(take(plain))
    assert list(quick.cursor.unsettled(runs.end)) == list(plain.cursor.unsettled(runs.end))
