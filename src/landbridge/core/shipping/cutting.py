"""Cutting: how messages are cut into shipments that every terminal on their way takes.

A shipment is one frame on every link, and each terminal has its own limit for a frame. The frame is larger
than the batches in it: the manifest and the seal are in it, twice while the destination changes its key. How
much larger is not known before it is sealed, so the sizes here are bounds that no frame exceeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from landbridge.core.log.batch import Batch, Buffer
from landbridge.core.log.ranges import Range, count
from landbridge.core.trust.seal import MAX_BOXES, MAX_HEADER

#: Bytes at most of a frame Carry without its tail: the terminals on the way, behind it and ahead of it.
PARCEL_HEAD = 4 << 10
#: Bytes at most of a header box without the manifest's lists: topic, ids, ticket, signature, wrapped key.
_BOX = 2 << 10
#: Bytes at most in the manifest: a piece without its runs, a run, and a group beside its name.
_PIECE, _RUN, _GROUP = 16, 19, 12
#: Bytes at most of the names of all groups of a shipment. Further groups get a shipment of their own.
MOST_NAMES = 8 << 10


class Queued:
    """Messages that are to be shipped, and the groups that they are for."""

    __slots__ = ("data", "legs", "newest_first", "reader", "runs", "time")

    def __init__(
        self, runs: list[Range], newest_first: bool, data: Buffer, time: int, reader: int = 0
    ) -> None:
        self.runs = runs
        self.newest_first = newest_first
        self.data = data
        #: When they were published, microseconds.
        self.time = time
        #: The number of the log or view that the groups have them from.
        self.reader = reader
        #: group → lease
        self.legs: dict[str, int] = {}


def names_size(groups: Iterable[str]) -> int:
    """Bytes at most of the groups in a manifest."""
    return sum(len(group) + _GROUP for group in groups)


def _header_size(names: int, pieces: int, runs: int) -> int:
    return _BOX + names + pieces * _PIECE + runs * _RUN


def frame_size(names: int, pieces: int, runs: int, size: int) -> int:
    """Bytes at most of a shipment's frame. ``names``: see ``names_size``; ``size``: of its batches."""
    return PARCEL_HEAD + MAX_BOXES * _header_size(names, pieces, runs) + size


def fits(most: int, names: int, pieces: int, runs: int, size: int) -> bool:
    """Whether such a shipment can be sealed, and is a frame of at most ``most`` bytes."""
    return _header_size(names, pieces, runs) <= MAX_HEADER and frame_size(names, pieces, runs, size) <= most


def cut(queued: Queued, is_small: Callable[[Queued], bool]) -> list[Queued]:
    """Halve the messages until each part is small enough or a single message. Returns the parts in the order
    in which the groups take them."""
    messages = count(queued.runs)
    if messages == 1 or is_small(queued):
        return [queued]
    batch, middle = Batch.decode(queued.data), messages // 2
    halves = [
        _part(queued, batch.slice(0, middle), _first(queued.runs, middle)),
        _part(queued, batch.slice(middle, messages), _rest(queued.runs, middle)),
    ]
    if queued.newest_first:
        halves.reverse()
    return [part for half in halves for part in cut(half, is_small)]


def _part(queued: Queued, batch: Batch, runs: list[Range]) -> Queued:
    part = Queued(runs, queued.newest_first, batch.encode(), queued.time)
    part.legs = dict(queued.legs)
    return part


def _first(runs: list[Range], messages: int) -> list[Range]:
    """The first so many offsets of the runs."""
    found: list[Range] = []
    for first, end in runs:
        if messages <= 0:
            break
        found.append((first, min(end, first + messages)))
        messages -= end - first
    return found


def _rest(runs: list[Range], messages: int) -> list[Range]:
    """All offsets of the runs but the first so many."""
    found: list[Range] = []
    for first, end in runs:
        if end - first > messages:
            found.append((first + messages, end))
        messages = max(0, messages - (end - first))
    return found
