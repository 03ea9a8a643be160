"""Which offsets a bulk reader takes, and when: how many are admitted, and how stretches of logs are cut into
tasks. These are functions of their arguments alone, because a plan that is made again after a failure must
come out the same.

Offsets say where the next read begins: topic → offset. Whoever keeps one keeps a position: the offset, the
log that counts it, and the time of the message before it. Otherwise an offset of a topic that was made anew,
of another terminal, or of a terminal that was restored from a backup would be taken for one of this log.

As JSON positions have the form that Spark users know from Kafka, with the one partition that a topic has, and
two more fields: ``{"orders": {"0": 12, "log": "berlin/3/1767225600000000", "stamp": 1767225812345678}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

Offsets: TypeAlias = Mapping[str, int]

#: A task pays off from so many rows on, up to the few tasks that a small machine runs at once. Fewer rows go
#: into one task, even of several topics.
ROWS_WORTH_A_TASK, FEW_TASKS = 500_000, 4
#: Beyond that tasks grow up to this size. With rows of 100 bytes it is what Spark gives to a task on files.
ROWS_PER_TASK = 1_250_000
PARTITION, LOG, STAMP = "0", "log", "stamp"


class LogPosition(NamedTuple):
    """A place in a log."""

    offset: int
    #: The identity of the log, as terminals give it; "" = not known.
    log: str = ""
    #: The time of the message before the offset, in microseconds; None = not known.
    stamp: int | None = None

    def difference(self, *, log: str, end: int, before: int | None) -> str | None:
        """What shows that this is no position of a log; None where nothing does. The log has the identity
        ``log`` and ends at ``end``, and the message before this offset has the time ``before``, if the log
        still has it."""
        if not self.log:
            return f"offset {self.offset} was kept without the log that counts it, as Landbridge 0.1 did"
        if self.log != log:
            (terminal, _, made_at), (terminal_now, _, made_at_now) = _parts(self.log), _parts(log)
            if terminal != terminal_now:
                return f"offset {self.offset} is of the terminal {terminal}, and this is {terminal_now}"
            return (
                f"offset {self.offset} is of the log that was made at {made_at}, and the topic was made anew "
                f"at {made_at_now}"
            )
        if end < self.offset:
            return (
                f"its log ended at {self.offset} at least, and ends at {end} now: the terminal was restored"
            )
        if self.stamp is not None and before is not None and self.stamp != before:
            return (
                f"the message before offset {self.offset} was of {_moment(self.stamp)}, and is of "
                f"{_moment(before)} now: the terminal was restored"
            )
        return None


Positions: TypeAlias = Mapping[str, LogPosition]


def _parts(log: str) -> tuple[str, str, str]:
    """Terminal, number and moment of an identity."""
    terminal, _, rest = log.partition("/")
    number, _, made_at = rest.partition("/")
    return terminal, number, _moment(int(made_at)) if made_at.isdecimal() else made_at


def _moment(micros: int) -> str:
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return f"{micros} µs"


class Span(NamedTuple):
    """A run of one topic's log."""

    topic: str
    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first


def to_json(positions: Positions) -> dict[str, dict[str, int | str]]:
    """Sorted by topic, because Spark compares offsets as text."""
    document: dict[str, dict[str, int | str]] = {}
    for topic in sorted(positions):
        offset, log, stamp = positions[topic]
        document[topic] = {PARTITION: offset}
        if log:
            document[topic][LOG] = log
        if stamp is not None:
            document[topic][STAMP] = stamp
    return document


def from_json(document: Mapping[str, Any]) -> dict[str, LogPosition]:
    """The inverse of ``to_json``; also takes ``{"orders": 12}``. Raises ValueError for anything else."""
    positions = {}
    for topic, given in document.items():
        fields = given if isinstance(given, dict) else {PARTITION: given}
        if not {PARTITION} <= set(fields) <= {PARTITION, LOG, STAMP}:
            raise ValueError(f"topic {topic!r} has one partition, {PARTITION!r}, not {sorted(fields)}")
        position = LogPosition(fields[PARTITION], fields.get(LOG, ""), fields.get(STAMP))
        for number in (position.offset, position.stamp or 0):
            if not isinstance(number, int) or isinstance(number, bool):
                raise ValueError(f"topic {topic!r}: {number!r} is not a number")
        if not isinstance(position.log, str):
            raise ValueError(f"topic {topic!r}: {position.log!r} is not a log")
        positions[topic] = position
    return positions


def offsets_of(positions: Positions) -> dict[str, int]:
    return {topic: position.offset for topic, position in positions.items()}


def starts(start: Positions, end: Positions) -> dict[str, int]:
    """The offsets from which to read up to ``end``. Two offsets have rows between them if one log counts them
    both. A topic or a log that ``start`` doesn't have begins where ``end`` has it."""
    return {
        topic: start[topic].offset if topic in start and start[topic].log == there.log else there.offset
        for topic, there in end.items()
    }


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
