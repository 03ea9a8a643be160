"""Which offsets a bulk reader takes when: admission, and the cutting of a stretch of logs into tasks. Plain
functions of their arguments, for a plan that is made again after a failure must come out the same.

Offsets are what the next read begins with: topic → offset. As JSON they have the form that Spark users know
from Kafka, ``{"orders": {"0": 12}}``, with the one partition that a topic has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

Offsets: TypeAlias = Mapping[str, int]

#: What a task costs is worth it from so many rows on, for a few tasks that a small machine has at once; fewer
#: go into one task, of whichever topics they are.
ROWS_WORTH_A_TASK, FEW_TASKS = 500_000, 4
#: Beyond that tasks get larger: with rows of 100 bytes this is what Spark gives to a task that reads files.
ROWS_PER_TASK = 1_250_000
PARTITION = "0"


class Span(NamedTuple):
    """A run of one topic's log."""

    topic: str
    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Sorted: Spark compares offsets as text."""
    return {topic: {PARTITION: offsets[topic]} for topic in sorted(offsets)}


def from_json(document: Mapping[str, Any]) -> dict[str, int]:
    """Also takes ``{"orders": 12}``. ValueError where it is neither."""
    offsets = {}
    for topic, given in document.items():
        if isinstance(given, dict):
            if set(given) != {PARTITION}:
                raise ValueError(f"topic {topic!r} has one partition, {PARTITION!r}, not {sorted(given)}")
            given = given[PARTITION]
        if not isinstance(given, int) or isinstance(given, bool):
            raise ValueError(f"topic {topic!r}: {given!r} is not a number")
        offsets[topic] = given
    return offsets


def backlog(start: Offsets, end: Offsets) -> dict[str, int]:
    """How much there is between the two. A topic that only ``end`` has is new, and read from 0 on."""
    return {topic: max(0, end[topic] - start.get(topic, 0)) for topic in end}


def admit(start: Offsets, latest: Offsets, most: int) -> dict[str, int]:
    """Up to where to read now, if no more than ``most`` rows are wanted: every topic gets on, in proportion
    to what it has waiting. Where there are more topics than rows, they take turns."""
    waiting = {topic: count for topic, count in backlog(start, latest).items() if count}
    if sum(waiting.values()) <= most:
        return dict(latest)
    topics = sorted(waiting)
    turn = sum(start.values()) % len(topics)
    topics = topics[turn:] + topics[:turn]
    shares = dict.fromkeys(topics[:most], 1)
    rest = most - len(shares)
    beyond = {topic: waiting[topic] - 1 for topic in shares}
    total = sum(beyond.values())
    for topic in shares:
        shares[topic] += rest * beyond[topic] // total if total else 0
    for topic in shares:  # what rounding has left over
        more = min(most - sum(shares.values()), waiting[topic] - shares[topic])
        shares[topic] += more
    return {topic: start.get(topic, 0) + shares.get(topic, 0) for topic in latest}


def plan(
    start: Offsets, end: Offsets, *, at_least: int = 1, most_rows: int | None = None
) -> list[list[Span]]:
    """The tasks that read from ``start`` to ``end``: each a few spans. Logs are read by offset, so a span may
    be cut anywhere.

    at_least: so many tasks, if there are so many rows. most_rows: no task has more."""
    rows = backlog(start, end)
    total = sum(rows.values())
    if not total:
        return []
    few = min(FEW_TASKS, -(-total // ROWS_WORTH_A_TASK))
    tasks = max(at_least, few, -(-total // min(ROWS_PER_TASK, most_rows or ROWS_PER_TASK)))
    tasks = min(tasks, total)
    planned: list[list[Span]] = [[] for _ in range(tasks)]
    # Task i has the rows from i * total // tasks on, all topics put one after the other: sizes differ by one.
    task = taken = 0
    for topic in sorted(end):
        first, last = end[topic] - rows[topic], end[topic]
        while first < last:
            room = (task + 1) * total // tasks - taken
            cut = min(last, first + room)
            planned[task].append(Span(topic, first, cut))
            taken += cut - first
            first = cut
            if taken == (task + 1) * total // tasks:
                task += 1
    return planned
