"""Checkers for recorded histories of unique values. Each returns what is wrong, empty when all is well; a
value whose outcome is unknown may be there or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

#: (producer, number): unique over a run.
Value: TypeAlias = tuple[str, int]


def lost(acked: Iterable[Value], found: Iterable[Value]) -> set[Value]:
    """Acked, and not there."""
    return set(acked) - set(found)


def doubled(found: Iterable[Value]) -> dict[Value, int]:
    return {value: times for value, times in Counter(found).items() if times > 1}


def unexpected(sent: Iterable[Value], found: Iterable[Value]) -> set[Value]:
    """There, and never sent."""
    return set(found) - set(sent)


def out_of_order(found: Sequence[Value]) -> list[tuple[Value, Value]]:
    """Neighbours of one producer whose numbers don't grow."""
    last: dict[str, Value] = {}
    wrong = []
    for value in found:
        before = last.get(value[0])
        if before is not None and before[1] >= value[1]:
            wrong.append((before, value))
        last[value[0]] = value
    return wrong


def again_after_confirmed(deliveries: Mapping[Value, Sequence[str]]) -> list[Value]:
    """Delivered again although an ack for it had been confirmed."""
    return [value for value, events in deliveries.items() if "confirmed" in events[:-1]]
