"""What was tried, what was promised and what is there: a history of unique values, and its checkers.

A value is ``producer:number``; a producer counts from 0. The outcome of a value that was sent and not acked
is unknown, and stays unknown: it may be there once, or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class History:
    def __init__(self) -> None:
        #: Everything that was sent, in the order of sending, and what of it was acked.
        self.sent: list[str] = []
        self.acked: set[str] = set()
        self._counts: Counter[str] = Counter()

    def new(self, producer: str) -> str:
        """The next value of a producer, recorded as sent."""
        value = f"{producer}:{self._counts[producer]}"
        self._counts[producer] += 1
        self.sent.append(value)
        return value

    def stored(self, values: Iterable[str]) -> None:
        self.acked.update(values)

    # -- checkers: each returns its findings, empty when all is well --------------------------------

    def lost(self, found: Iterable[str]) -> list[str]:
        """Acked, and not there."""
        return sorted(self.acked - set(found))

    def unexpected(self, found: Iterable[str]) -> list[str]:
        """There, and never sent."""
        return sorted(set(found) - set(self.sent))

    def recovered(self, found: Iterable[str]) -> list[str]:
        """Never acked, and there all the same: allowed, and worth a number."""
        return sorted((set(found) & set(self.sent)) - self.acked)


class Deliveries:
    """What one group was given, and for which of it an ack was confirmed."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self._confirmed: set[str] = set()
        #: Delivered again although its ack had been confirmed.
        self.wrong: list[str] = []

    def delivered(self, values: Iterable[str]) -> None:
        for value in values:
            self.values.append(value)
            if value in self._confirmed:
                self.wrong.append(value)

    def confirmed(self, values: Iterable[str]) -> None:
        self._confirmed.update(values)


def duplicated(found: Iterable[str]) -> list[str]:
    """There more than once."""
    return sorted(value for value, count in Counter(found).items() if count > 1)


def out_of_order(found: Iterable[str]) -> list[str]:
    """Values that stand behind a later one of the same producer."""
    last: dict[str, int] = {}
    wrong = []
    for value in found:
        producer, _, number = value.rpartition(":")
        if int(number) <= last.get(producer, -1):
            wrong.append(value)
        last[producer] = max(int(number), last.get(producer, -1))
    return wrong


def gaps(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Neighbours in a log whose offsets are not neighbours."""
    found, before = [], -1
    for offset in offsets:
        if offset != before + 1:
            found.append((before, offset))
        before = offset
    return found
