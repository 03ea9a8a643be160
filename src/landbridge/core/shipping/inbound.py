"""Inbound: what one source has sent of one topic, at its destination. Makes repeated shipments once, and puts
them in order.

Two numbers do the two jobs. Offsets in the source's log say whether a message is here already: they mean the
same after a restart of either side, however the messages are cut into shipments. Sequence numbers say what
comes next: they are valid in one epoch. The source begins a new one when it starts, and when it changes its
mind about what goes where; then whatever it doesn't know to have arrived is sent again from 1 on, and the
rest of the old epoch is stale.

The state is written in the commit that stores the messages, so neither can be there without the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

import msgspec

from landbridge.core.log.ranges import Range, RangeSet, intersect, normalise, subtract


class Source(NamedTuple):
    """Whose log of which topic, in which of the topic's lives there."""

    terminal: str
    topic: str
    incarnation: int


class Verdict(Enum):
    NEXT = "next"  #: apply it now
    EARLY = "early"  #: something before it is still on the way
    REPEATED = "repeated"  #: it is here; say so again
    STALE = "stale"  #: of an epoch that is over: whatever was in it is being sent again


class _Group(msgspec.Struct, array_like=True):
    floor: int
    runs: list[Range]
    given_back: list[Range] = []
    epoch: int = 0


class _State(msgspec.Struct, array_like=True):
    epoch: int
    next: int
    groups: dict[str, _Group]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class Inbound:
    def __init__(self) -> None:
        #: Of the source's latest start that has sent anything here; 0 = none has.
        self.epoch = 0
        #: The sequence number that is to be applied next.
        self.next = 1
        #: Group → the floor below which everything is here or isn't meant for it, and what is here above.
        self._floors: dict[str, int] = {}
        self._here: dict[str, RangeSet] = {}
        #: Group → what lies below the floor and was given back: if it is sent again, it is wanted again.
        self._given_back: dict[str, RangeSet] = {}
        #: Group → the epoch of the last shipment that was for it.
        self._epochs: dict[str, int] = {}

    def judge(self, epoch: int, sequence: int, oldest: int) -> Verdict:
        """``oldest``: everything before it has arrived, says the source. We may have forgotten it."""
        if epoch < self.epoch:
            return Verdict.STALE
        expected = max(oldest, self.next if epoch == self.epoch else 1)
        if sequence < expected:
            return Verdict.REPEATED
        return Verdict.NEXT if sequence == expected else Verdict.EARLY

    def fresh(self, group: str, runs: Iterable[Range]) -> list[Range]:
        """Of these offsets, those that the group has not got yet."""
        floor = self._floors.get(group, 0)
        runs = normalise(runs)
        wanted = [(max(first, floor), end) for first, end in runs if end > floor]
        here, given_back = self._here.get(group), self._given_back.get(group)
        if here:
            wanted = subtract(wanted, list(here))
        if given_back:
            wanted = normalise([*intersect(list(given_back), runs), *wanted])
        return wanted

    def apply(self, epoch: int, sequence: int, groups: dict[str, int], runs: Iterable[Range]) -> None:
        """The shipment, which is the next one, is being stored. ``groups``: with their floors."""
        came = normalise(runs)
        for group, floor in groups.items():
            here = self._here.setdefault(group, RangeSet())
            for first, end in came:
                here.add(first, end)
            if (given_back := self._given_back.get(group)) is not None:
                for first, end in [(0, floor), *came]:
                    given_back.remove(first, end)
            self._raise_floor(group, floor)
            self._epochs[group] = epoch
        self.epoch, self.next = epoch, sequence + 1

    def has_come_back(self, group: str, epoch: int) -> bool:
        """Was anything sent for the group in this epoch or later? Then its messages are for this terminal
        again, and an order to give them back that was written before is void."""
        return self._epochs.get(group, 0) >= epoch

    def give_back(self, group: str, runs: Iterable[Range]) -> None:
        """The group has let go of these: another terminal gets them, or this one again."""
        floor = self._floors.get(group, 0)
        here = self._here.setdefault(group, RangeSet())
        for first, end in normalise(runs):
            here.remove(first, end)
            if first < floor:
                self._given_back.setdefault(group, RangeSet()).add(first, min(end, floor))

    def _raise_floor(self, group: str, floor: int) -> None:
        here = self._here[group]
        floor = max(floor, self._floors.get(group, 0))
        at = here.range_at(floor)
        if at is not None and at[0] <= floor:  # else it is a later one, and what lies before it isn't here
            floor = at[1]
        here.remove(0, floor)
        self._floors[group] = floor

    def encode(self) -> bytes:
        groups = {
            name: _Group(
                self._floors.get(name, 0),
                list(here),
                list(self._given_back.get(name, ())),
                self._epochs.get(name, 0),
            )
            for name, here in self._here.items()
        }
        return _encode(_State(self.epoch, self.next, groups))

    @classmethod
    def decode(cls, raw: bytes) -> Inbound:
        state = _decode(raw)
        found = cls()
        found.epoch, found.next = state.epoch, state.next
        for name, group in state.groups.items():
            found._floors[name] = group.floor
            found._here[name] = RangeSet(group.runs)
            found._given_back[name] = RangeSet(group.given_back)
            found._epochs[name] = group.epoch
        return found
