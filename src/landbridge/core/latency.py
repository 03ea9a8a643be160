"""Spans of time as a histogram that can be added up: a bucket's number → how many messages.

Buckets grow with what they hold, eight to each doubling, so that a bucket's middle is never further than
1/16 from what was measured, from a microsecond to years. Histograms of seconds add up to those of minutes,
those of consumers to those of groups; percentiles, which don't add up, are taken last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

#: bucket → messages.
Histogram: TypeAlias = dict[int, int]

#: Buckets to each doubling, and the power of two that this is. Below twice as many microseconds, every
#: microsecond has a bucket of its own.
STEPS, STEPS_LOG2 = 8, 3


def bucket(span: int) -> int:
    """Of microseconds; clocks that disagree may make a span negative, and that counts as none."""
    if span < 2 * STEPS:
        return max(span, 0)
    shift = span.bit_length() - STEPS_LOG2 - 1
    return STEPS * shift + (span >> shift)


def middle(bucket: int) -> float:
    """Microseconds: what a bucket's messages are taken to have."""
    shift = max(0, bucket // STEPS - 1)
    first = (bucket - STEPS * shift) << shift
    return first + ((1 << shift) - 1) / 2


def add(into: Histogram, other: Mapping[int, int]) -> None:
    for number, messages in other.items():
        into[number] = into.get(number, 0) + messages


def percentiles(histogram: Mapping[int, int], fractions: Iterable[float]) -> list[float | None]:
    """Microseconds below or at which so many of the messages are (0.99: 99 in 100); None: there are none."""
    total = sum(histogram.values())
    if not total:
        return [None for _ in fractions]
    found: list[float | None] = []
    ordered = sorted(histogram)
    for fraction in fractions:
        seen = 0
        for number in ordered:
            seen += histogram[number]
            if seen >= fraction * total:
                break
        found.append(middle(number))
    return found
