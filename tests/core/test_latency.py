import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core import latency
from landbridge.core.status import Levels, StatusLog

SPANS = st.integers(-5, 1 << 50)


@given(SPANS)
def test_middle_of_a_bucket_is_within_a_sixteenth(span):
    wanted = max(span, 0)
    assert abs(latency.middle(latency.bucket(span)) - wanted) <= wanted / 16


@given(SPANS, SPANS)
def test_buckets_are_in_the_order_of_their_spans(one, other):
    low, high = sorted((one, other))
    assert latency.bucket(low) <= latency.bucket(high)


@given(
    st.lists(st.integers(1, 1 << 40), min_size=1),
    st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]),
    st.integers(1, 9),
)
def test_percentile_is_that_of_the_spans_themselves_however_they_were_added_up(spans, fraction, parts):
    total: latency.Histogram = {}
    for part in range(parts):
        some: latency.Histogram = {}
        for span in spans[part::parts]:
            latency.add(some, {latency.bucket(span): 1})
        latency.add(total, some)
    ordered = sorted(spans)
    rank = next(n for n in range(1, len(ordered) + 1) if n >= fraction * len(ordered))
    (found,) = latency.percentiles(total, [fraction])
    assert found is not None
    assert abs(found - ordered[rank - 1]) <= ordered[rank - 1] / 16


def test_nothing_has_no_percentiles():
    assert latency.percentiles({}, [0.5, 0.99]) == [None, None]


@pytest.mark.parametrize("level", ["batches", "messages"])
def test_status_log_says_how_long_ago_messages_were_published(level):
    log = StatusLog(Levels(default=level))
    log.count(10_000, "deliver", "ann", "t", "g", messages=3, published=[(9_000, 2), (0, 1)])
    log.count(20_000, "deliver", "ann", "t", "g", messages=4, published=[(19_000, 4)])
    log.count(20_000, "publish", "ann", "t", messages=4)
    total: latency.Histogram = {}
    for event in log.take(20_000):
        assert bool(event.latency) == (event.event == "deliver")
        latency.add(total, event.latency)
    assert total == {latency.bucket(1_000): 6, latency.bucket(10_000): 1}
