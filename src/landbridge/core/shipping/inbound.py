"""Inbound: what has arrived of one source's topic, at the destination. It finds repeated messages and says
which shipment comes next.

Two numbers do the two jobs. Offsets in the source's log say whether a message is here already: they mean the
same after a restart of either side, however the messages are cut into shipments. Sequence numbers say which
shipment comes next: they are valid in one epoch. The source begins a new epoch when it starts, and when it
sends a group's messages elsewhere; it then sends everything again, from number 1 on, that it doesn't know to
have arrived, and shipments of the old epoch are stale.

The state is written in the commit that stores the messages, so neither can be on disk without the other.

Either side may be restored from a backup. A source tells where its log ended when it started: what is known
here beyond that came from messages that it has lost, and its next messages have the same offsets. A
destination that was restarted believes no source's word of what has arrived until that source has compared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

import msgspec

from landbridge.core.log.ranges import Range, RangeSet, clip, intersect, normalise, subtract
from landbridge.core.shipping.history import History, first_change
from landbridge.errors import StoreCorrupt

#: Ranges of offsets that are remembered as not here. Of more, those with the highest offsets.
MOST_HOLES = 64
#: Losses of a source that are remembered, so that its old messages aren't taken for those that have their
#: offsets now.
MOST_LOST = 16


class ShipmentSource(NamedTuple):
    """A topic at another terminal, in one life of its log (``incarnation``: when the topic was made
    there)."""

    terminal: str
    topic: str
    incarnation: int


class Verdict(Enum):
    NEXT = "next"  #: everything before it is here
    EARLY = "early"  #: a shipment before it is still on its way
    REPEATED = "repeated"  #: its messages are here already
    STALE = "stale"  #: its epoch is over; the source sends its messages again in a later one


class Position(NamedTuple):
    """How far a source's shipments have been stored."""

    #: The latest epoch of which a shipment was stored; 0 = none was.
    epoch: int = 0
    #: The sequence number that comes next in this epoch.
    next: int = 1

    def expected(self, epoch: int, oldest: int) -> int:
        """The sequence number that comes next in an epoch. The source says that everything before ``oldest``
        has arrived; this terminal may have lost its memory of it."""
        return max(oldest, self.next if epoch == self.epoch else 1)

    def judge(self, epoch: int, sequence: int, oldest: int) -> Verdict:
        if epoch < self.epoch:
            return Verdict.STALE
        expected = self.expected(epoch, oldest)
        if sequence < expected:
            return Verdict.REPEATED
        return Verdict.NEXT if sequence == expected else Verdict.EARLY


class _GroupRecord(msgspec.Struct, array_like=True):
    floor: int
    runs: list[Range]
    holes: list[Range] = []
    epoch: int = 0


class LostLife(NamedTuple):
    """A part of the source's log that the source has lost: what had these offsets before this epoch are other
    messages than what has them now."""

    first: int
    epoch: int


class _InboundRecord(msgspec.Struct, array_like=True):
    """An inbound as it is in the ledger."""

    epoch: int
    next: int
    groups: dict[str, _GroupRecord]
    run: int = 0
    lost: list[LostLife] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_InboundRecord).decode


class _Received:
    """What has arrived for one group."""

    __slots__ = ("above", "epoch", "floor", "holes")

    def __init__(self, record: _GroupRecord) -> None:
        #: Everything below this offset is here, except for the holes.
        self.floor = record.floor
        #: The offsets at or above the floor that are here.
        self.above = RangeSet(record.runs)
        #: The offsets below the floor that are not here: they were given back, or went to another terminal,
        #: or the group doesn't want them. If one is sent, because that terminal has lost it, it is wanted.
        self.holes = RangeSet(record.holes)
        #: The epoch of the last shipment that was for the group; 0 = none was.
        self.epoch = record.epoch

    def add(self, epoch: int, floor: int, runs: list[Range]) -> None:
        for first, end in runs:
            self.above.add(first, end)
            self.holes.remove(first, end)
        floor = max(floor, self.floor)
        if floor > self.floor:
            for first, end in subtract([(self.floor, floor)], clip(list(self.above), self.floor, floor)):
                self.holes.add(first, end)
            while len(self.holes) > MOST_HOLES:
                self.holes.remove(*self.holes.first())
        at = self.above.range_at(floor)
        if at is not None and at[0] <= floor:  # otherwise there is a gap between the floor and the next range
            floor = at[1]
        self.above.remove(0, floor)
        self.floor, self.epoch = floor, epoch

    def forget_from(self, first: int) -> bool:
        """Forget what is known of offsets from here on. Returns whether there was any."""
        last = self.above.last()[1] if self.above else 0
        end = max(self.floor, last)
        if end <= first:
            return False
        self.above.remove(first, end)
        self.holes.remove(first, end)
        self.floor = min(self.floor, first)
        return True

    def record(self) -> _GroupRecord:
        return _GroupRecord(self.floor, list(self.above), list(self.holes), self.epoch)


class Inbound:
    def __init__(self) -> None:
        self.position = Position()
        self._groups: dict[str, _Received] = {}
        #: The run of the source that the last shipment was of; 0 = not told.
        self.run = 0
        #: What the source has lost, newest last.
        self.lost: list[LostLife] = []

    def _group(self, name: str) -> _Received:
        if name not in self._groups:
            self._groups[name] = _Received(_GroupRecord(0, []))
        return self._groups[name]

    def fresh(self, group: str, runs: Iterable[Range]) -> list[Range]:
        """Returns those of the offsets that have not arrived for the group."""
        runs = normalise(runs)
        known = self._groups.get(group)
        if known is None:
            return runs
        wanted = [(max(first, known.floor), end) for first, end in runs if end > known.floor]
        if known.above:
            wanted = subtract(wanted, list(known.above))
        if known.holes:
            wanted = normalise([*intersect(list(known.holes), runs), *wanted])
        return wanted

    def begin_run(self, epoch: int, run: int, history: History) -> int | None:
        """A shipment comes of this run of the source. Returns the offset from which on the source has lost
        messages that are known here; None: it has lost none."""
        if run in (0, self.run):
            return None
        began = first_change(history, self.run)
        self.run = run
        has_lost = [known.forget_from(began) for known in self._groups.values()]
        if not any(has_lost):
            return None
        self.lost = [*self.lost, LostLife(began, epoch)][-MOST_LOST:]
        return began

    def own_end(self, epoch: int) -> int:
        """From this offset on, a message that came in this epoch is one that its source has lost since."""
        return min((first for first, since in self.lost if epoch < since), default=sys.maxsize)

    def known(self, group: str, run: int, history: History) -> tuple[int, list[Range]]:
        """What has arrived for a group: everything below an offset, and these. ``run`` and ``history`` are
        the source's, see ``begin_run``."""
        end = sys.maxsize if run in (0, self.run) else first_change(history, self.run)
        known = self._groups.get(group)
        if known is None:
            return 0, []
        holes = list(known.holes)
        floor = min(known.floor, end, holes[0][0] if holes else end)
        below = subtract([(floor, min(known.floor, end))], holes) if floor < known.floor else []
        return floor, [*below, *clip(list(known.above), 0, end)]

    def apply(self, epoch: int, sequence: int, groups: dict[str, int], runs: Iterable[Range]) -> None:
        """Count the next shipment in. ``groups``: for each group, the offset below which the source has
        nothing for it any more; 0 where that isn't to be believed."""
        came = normalise(runs)
        for group, floor in groups.items():
            self._group(group).add(epoch, floor, came)
        self.position = Position(epoch, sequence + 1)

    def has_come_back(self, group: str, epoch: int) -> bool:
        """Was anything sent for the group in this epoch or later? Then its messages are for this terminal
        again, and an order to give them back that was written before is void."""
        return group in self._groups and self._groups[group].epoch >= epoch

    def give_back(self, group: str, runs: Iterable[Range]) -> None:
        """Forget that these have arrived for the group: another terminal gets them, or this one again."""
        known = self._group(group)
        for first, end in normalise(runs):
            known.above.remove(first, end)
            if first < known.floor:
                known.holes.add(first, min(end, known.floor))

    def copy(self) -> Inbound:
        return Inbound.decode(self.encode())

    def encode(self) -> bytes:
        groups = {name: known.record() for name, known in self._groups.items()}
        return _encode(_InboundRecord(*self.position, groups, self.run, self.lost))

    @classmethod
    def decode(cls, raw: bytes) -> Inbound:
        try:
            record = _decode(raw)
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(
                f"the ledger entry of another terminal's topic doesn't decode: {error}"
            ) from None
        found = cls()
        found.position = Position(record.epoch, record.next)
        found.run, found.lost = record.run, record.lost
        found._groups = {name: _Received(group) for name, group in record.groups.items()}
        return found
