from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.retention import Retention, trim_point

RETENTION = st.builds(Retention, settled=st.booleans(), discard=st.sampled_from(["settled", "any"]))


@st.composite
def logs(draw):
    first = draw(st.integers(0, 10))
    end = draw(st.integers(first, 20))
    inside = st.integers(first, end)
    floors = draw(st.lists(st.integers(0, 25), max_size=3))  # a group may sit below or above the log
    return {"first": first, "end": end, "aged_to": draw(inside), "sized_to": draw(inside)}, floors


@given(RETENTION, logs())
def test_each_offset_goes_exactly_when_a_rule_says_so(retention, log_and_floors):
    log, floors = log_and_floors
    point = trim_point(retention, settled_to=min(floors, default=None), **log)

    def goes(offset: int) -> bool:  # the oracle: one offset at a time
        settled = all(offset < floor for floor in floors)
        too_much = offset < log["aged_to"] or offset < log["sized_to"]
        if retention.settled and floors and settled:
            return True
        return too_much and (settled or retention.discard == "any")

    assert log["first"] <= point <= log["end"]
    assert set(range(log["first"], point)) == set(filter(goes, range(log["first"], log["end"])))


def test_unsettled_messages_are_kept_by_default_whatever_the_limits_say():
    point = trim_point(Retention(max_bytes=1), settled_to=3, first=0, end=10, aged_to=10, sized_to=10)
    assert point == 3


def test_topic_without_groups_keeps_its_messages():
    point = trim_point(Retention(settled=True), settled_to=None, first=2, end=10, aged_to=2, sized_to=2)
    assert point == 2
