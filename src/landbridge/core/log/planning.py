"""Which offsets a bulk reader takes, and when: how many are admitted, and how stretches of logs are cut into
tasks. These are functions of their arguments alone, because a plan that is made again after a failure must
come out the same.

Offsets say where the next read begins: topic → offset. As JSON they have the form that Spark users know from
Kafka, ``{"orders": {"0": 12}}``, with the one partition that a topic has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

Offsets: TypeAlias = Mapping[str, int]

#: A task pays off from so many rows on, up to the few tasks that a small machine runs at once. Fewer rows go
#: into one task, even of several topics.
ROWS_WORTH_A_TASK, FEW_TASKS = 500_000, 4
#: Beyond that tasks grow up to this size. With rows of 100 bytes it is what Spark gives to a task on files.
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
    """Sorted by topic, because Spark compares offsets as text."""
    return {topic: {PARTITION: offsets[topic]} for topic in sorted(offsets)}


def from_json(document: Mapping[str, Any]) -> dict[str, int]:
    """The inverse of ``to_json``; also takes ``{"orders": 12}``. Raises ValueError for anything else."""
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
    """topic → messages between the two. A topic that only ``end`` has is new, and is read from 0 on."""
    return {topic: max(0, end[topic] - start.get(topic, 0)) for topic in end}


def admit(start: Offsets, latest: Offsets, most: int) -> dict[str, int]:
    """Returns the offsets to read up to now, with at most ``most`` rows in all. Every topic gets a share in
    proportion to what it has waiting. Where there are more topics than rows, topics take turns."""
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
    for topic in shares:  # Hand out what rounding has left over.
        more = min(most - sum(shares.values()), waiting[topic] - shares[topic])
        shares[topic] += more
    return {topic: start.get(topic, 0) + shares.get(topic, 0) for topic in latest}


def plan(
    start: Offsets, end: Offsets, *, at_least: int = 1, most_rows: int | None = None
) -> list[list[Span]]:
    """The spans of each task, for a read from ``start`` to ``end``. Logs are read by offset, so a span may be
    cut anywhere.

    at_least: the number of tasks, if there are as many rows. most_rows: the most rows of a task."""
    rows = backlog(start, end)
    total = sum(rows.values())
    if not total:
        return []
    few = min(FEW_TASKS, -(-total // ROWS_WORTH_A_TASK))
    tasks = max(at_least, few, -(-total // min(ROWS_PER_TASK, most_rows or ROWS_PER_TASK)))
    tasks = min(tasks, total)
    planned: list[list[Span]] = [[] for _ in range(tasks)]
    # With all topics put one after the other, task i has the rows from i * total // tasks on. So the sizes of
    # two tasks differ by one row at most.
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
