from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.planning import (
    ROWS_PER_TASK,
    ROWS_WORTH_A_TASK,
    LogPosition,
    Span,
    admit,
    backlog,
    from_json,
    plan,
    starts,
    to_json,
)

_logs = st.dictionaries(
    st.sampled_from(["a", "b", "c.d", "e"]), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1
)


def bounds(logs: dict[str, tuple[int, int]]) -> tuple[dict[str, int], dict[str, int]]:
    start = {topic: first for topic, (first, _) in logs.items()}
    return start, {topic: first + count for topic, (first, count) in logs.items()}


@given(_logs, st.integers(1, 9), st.none() | st.integers(1, 20))
def test_a_plan_has_every_row_once(
    logs: dict[str, tuple[int, int]], at_least: int, most_rows: int | None
) -> None:
    start, end = bounds(logs)
    tasks = plan(start, end, at_least=at_least, most_rows=most_rows)
    rows = [(span.topic, offset) for task in tasks for span in task for offset in range(*span[1:])]
    assert rows == [(topic, o) for topic in sorted(end) for o in range(start[topic], end[topic])]
    sizes = [sum(map(len, task)) for task in tasks]
    assert len(tasks) >= min(at_least, len(rows))
    assert not sizes or (min(sizes) >= 1 and max(sizes) - min(sizes) <= 1)
    assert most_rows is None or not sizes or max(sizes) <= most_rows


def test_few_rows_of_many_topics_are_one_task() -> None:
    tasks = plan({"a": 0, "b": 5}, {"a": 3, "b": 6})
    assert tasks == [[Span("a", 0, 3), Span("b", 5, 6)]]


def test_many_rows_of_one_topic_are_cut() -> None:
    tasks = plan({"a": 7}, {"a": 7 + 5 * ROWS_PER_TASK + 1})
    assert len(tasks) == 6
    assert max(len(span) for task in tasks for span in task) <= ROWS_PER_TASK


def test_a_few_tasks_share_what_one_could_read() -> None:
    def count(rows: int) -> int:
        return len(plan({"a": 0}, {"a": rows}))

    assert [count(n * ROWS_WORTH_A_TASK) for n in (1, 2, 3, 4, 5, 10)] == [1, 2, 3, 4, 4, 4]
    assert count(ROWS_WORTH_A_TASK + 1) == 2


@given(_logs, st.integers(1, 60))
def test_admission_takes_what_it_may_and_no_more(logs: dict[str, tuple[int, int]], most: int) -> None:
    start, latest = bounds(logs)
    end = admit(start, latest, most)
    assert sum(backlog(start, end).values()) == min(most, sum(backlog(start, latest).values()))
    assert all(start[topic] <= end[topic] <= latest[topic] for topic in latest)


@given(_logs, st.integers(1, 7))
def test_admission_starves_nobody(logs: dict[str, tuple[int, int]], most: int) -> None:
    """However little is admitted at once, every topic comes to its end, also if the others never do."""
    start, latest = bounds(logs)
    slow = min(latest)
    at = dict(start)
    for _ in range(200):
        at = admit(
            at, {topic: end if topic == slow else at[topic] + 100 for topic, end in latest.items()}, most
        )
    assert at[slow] == latest[slow]


def test_a_topic_that_appears_is_read_from_its_beginning() -> None:
    assert plan({"a": 4}, {"a": 4, "b": 2}) == [[Span("b", 0, 2)]]


def test_offsets_as_json() -> None:
    positions = {"b": LogPosition(1), "a": LogPosition(2, "t/1/5", 7)}
    assert list(to_json(positions)) == ["a", "b"]
    assert to_json(positions)["a"] == {"0": 2, "log": "t/1/5", "stamp": 7}
    assert from_json(to_json(positions)) == positions
    assert from_json({"a": -2}) == {"a": LogPosition(-2)}


HERE = "berlin/3/1767225600000000"


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (LogPosition(5, HERE, 70), None),
        (LogPosition(5, HERE), None),
        (LogPosition(5), "as Landbridge 0.1 did"),
        (LogPosition(5, "lyon/3/1767225600000000", 70), "is of the terminal lyon, and this is berlin"),
        (LogPosition(5, "berlin/2/1767225500000000", 70), "made anew at 2026-01-01T00:00:00"),
        (LogPosition(11, HERE, 70), "ends at 10 now: the terminal was restored"),
        (LogPosition(5, HERE, 71), "the terminal was restored"),
    ],
)
def test_a_position_is_of_one_history(position: LogPosition, expected: str | None) -> None:
    difference = position.difference(log=HERE, end=10, before=70)
    assert difference is None if expected is None else expected in str(difference)
    # What the log no longer has shows nothing.
    assert LogPosition(5, HERE, 71).difference(log=HERE, end=10, before=None) is None


def test_rows_are_between_offsets_of_one_log() -> None:
    start = {"a": LogPosition(3, "x"), "b": LogPosition(3, "x")}
    end = {"a": LogPosition(8, "x"), "b": LogPosition(8, "y"), "c": LogPosition(5, "z")}
    assert starts(start, end) == {"a": 3, "b": 8, "c": 5}


@pytest.mark.parametrize(
    "document",
    [
        *({"a": {"1": 3}}, {"a": {}}, {"a": "3"}, {"a": True}, {"a": None}),
        *({"a": {"0": 3, "log": 1}}, {"a": {"0": 3, "stamp": "x"}}, {"a": {"log": "x"}}),
    ],
)
def test_offsets_that_are_none(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="topic 'a'"):
        from_json(document)
