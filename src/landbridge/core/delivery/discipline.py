"""The disciplines: in which order a group takes what is pending. Three ways to pick from one log.

A discipline holds the offsets that may be delivered now and answers one question: which run is next? The log
and the cursor are the same for all three.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Protocol, TypeAlias

from landbridge.core.log.batch import HIGHEST_PRIORITY, Batch
from landbridge.core.log.ranges import Range, RangeSet
from landbridge.errors import BadRequest

#: How many messages ``next_run`` sorts at once, and as how many a batch counts.
SORT_AT_ONCE = 1 << 12
BATCH_COUNTS = 8

#: The stored batch that holds an offset, with its first offset; None when it is not in memory yet.
BatchAt: TypeAlias = Callable[[int], "tuple[int, Batch] | None"]


class Discipline(Protocol):
    #: Within a run, the last message goes first.
    newest_first: bool
    #: The offset whose batch ``next_run`` found missing, None where it needed none.
    missing: int | None
    #: ``next_run`` stopped because it had looked at SORT_AT_ONCE messages: ask again.
    more: bool

    def add(self, first: int, end: int) -> None: ...
    def remove(self, first: int, end: int) -> None: ...
    def next_run(self, limit: int, batch_at: BatchAt) -> Range | None:
        """At most ``limit`` consecutive offsets to deliver next; they stay in until they are removed."""

    @property
    def size(self) -> int: ...


class InOrder:
    """First in first out; or last in first out, with ``newest_first``."""

    missing: int | None = None
    more = False

    def __init__(self, *, newest_first: bool) -> None:
        self.newest_first = newest_first
        self._ranges = RangeSet()
        self.add, self.remove = self._ranges.add, self._ranges.remove

    @property
    def size(self) -> int:
        return self._ranges.size

    def next_run(self, limit: int, batch_at: BatchAt) -> Range | None:
        if not self._ranges:
            return None
        if self.newest_first:
            first, end = self._ranges.last()
            return max(first, end - limit), end
        first, end = self._ranges.first()
        return first, min(end, first + limit)


class Priority:
    """Highest level first, first in first out inside a level.

    Which level a message has stands in its batch, so new offsets wait in ``_unsorted`` until their batch has
    been looked at; before that nothing can be picked, or a 9 might hide behind a 0.
    """

    newest_first = False

    def __init__(self) -> None:
        self._unsorted = RangeSet()
        self._levels = [RangeSet() for _ in range(HIGHEST_PRIORITY + 1)]
        self.missing: int | None = None
        self.more = False
        #: The run that ``next_run`` has just given and the level that it is in, until anything changes.
        self._given: tuple[int, int, RangeSet] | None = None

    @property
    def size(self) -> int:
        return self._unsorted.size + sum(level.size for level in self._levels)

    def add(self, first: int, end: int) -> None:
        self._given = None
        self._unsorted.add(first, end)

    def remove(self, first: int, end: int) -> None:
        given, self._given = self._given, None
        if given is not None and given[0] <= first and end <= given[1]:
            given[2].remove(first, end)
            return
        self._unsorted.remove(first, end)
        for level in self._levels:
            level.remove(first, end)

    def next_run(self, limit: int, batch_at: BatchAt) -> Range | None:
        self.missing, self.more = None, False
        room = SORT_AT_ONCE
        while self._unsorted:
            if room <= 0:
                self.more = True
                return None
            first, end = self._unsorted.first()
            found = batch_at(first)
            if found is None:
                self.missing = first
                return None
            batch_first, batch = found
            end = min(end, batch_first + len(batch), first + room)
            room -= max(BATCH_COUNTS, end - first)
            self._sort(first, end, batch.slice(first - batch_first, end - batch_first))
            self._unsorted.remove(first, end)
        for level in reversed(self._levels):
            if level:
                first, end = level.first()
                self._given = first, end, level
                return first, min(end, first + limit)
        return None

    def _sort(self, first: int, end: int, batch: Batch) -> None:
        priorities = batch.priorities()
        if priorities is None:
            self._levels[0].add(first, end)
            return
        at = first
        for level, run in groupby(priorities):
            length = sum(1 for _ in run)
            self._levels[level].add(at, at + length)
            at += length


DISCIPLINES: dict[str, Callable[[], Discipline]] = {
    "fifo": partial(InOrder, newest_first=False),
    "lifo": partial(InOrder, newest_first=True),
    "priority": Priority,
}


def discipline(name: str) -> Discipline:
    try:
        return DISCIPLINES[name]()
    except KeyError:
        raise BadRequest(f"no discipline {name!r}", hint="fifo, lifo or priority") from None
