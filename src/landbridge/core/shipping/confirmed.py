"""Confirmed: what of a group's messages has arrived at which terminal, by that terminal's own word. The
source keeps it beside the group's cursor, in the same commits.

A terminal that is restored from a backup has forgotten what came after it, and the source still has some of
that in its log. Every start of a terminal is a new run with a number of its own, which its link state tells.
When the run of a terminal is another one than before, the source asks it what it has; what it has lost is
delivered again. A confirmation of an earlier run counts no longer: it may be of what was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec

from landbridge.core.log.ranges import Range, RangeSet, normalise, subtract
from landbridge.errors import StoreCorrupt

#: Ranges that are remembered of a terminal. Of more, the smallest gaps are taken for confirmed: a terminal
#: that has lost its memory then gets a few messages that were meant for another one.
MOST_RANGES = 1000

_Record = dict[str, tuple[int, list[Range]]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode


class Confirmed:
    def __init__(self) -> None:
        #: Terminal → the run of it in which it had all of these, and their offsets.
        self._terminals: dict[str, tuple[int, RangeSet]] = {}
        #: Something has changed that ``document`` has not given yet.
        self.dirty = False

    def add(self, terminal: str, run: int, runs: Iterable[Range]) -> None:
        """The terminal has said, in this run, that these have arrived."""
        if not self._has(terminal):
            self._terminals[terminal] = (run, RangeSet())
        _, known = self._terminals[terminal]
        for first, end in runs:
            known.add(first, end)
        if len(known) > 2 * MOST_RANGES:
            _fill_gaps(known)
        self.dirty = True

    def _has(self, terminal: str) -> bool:
        return terminal in self._terminals and bool(self._terminals[terminal][1])

    def is_due(self, terminal: str, run: int) -> bool:
        """Has the terminal been restarted since, so that it has to be asked what it has?"""
        return self._has(terminal) and run not in (0, self._terminals[terminal][0])

    def due(self, run_of: Callable[[str], int]) -> list[str]:
        """The terminals that have to be asked. ``run_of``: the run of a terminal; 0 = not known."""
        return [terminal for terminal in self._terminals if self.is_due(terminal, run_of(terminal))]

    def of(self, terminal: str) -> list[Range]:
        return list(self._terminals[terminal][1]) if terminal in self._terminals else []

    def compare(
        self, terminal: str, run: int, asked: list[Range], floor: int, has: list[Range]
    ) -> list[Range]:
        """The terminal has in this run everything below ``floor``, and ``has``. Returns what it has lost of
        what it had confirmed when it was ``asked``; that is confirmed no longer."""
        if terminal not in self._terminals:
            return []
        _, known = self._terminals[terminal]
        lost = subtract(asked, normalise([(0, floor), *has]))
        for first, end in lost:
            known.remove(first, end)
        self._terminals[terminal] = (run, known)
        self.dirty = True
        return lost

    # -- storing -----------------------------------------------------------------------------------

    def document(self, first: int) -> bytes:
        """What to store now. ``first``: where the log begins; what is below can't be sent again."""
        for _, known in self._terminals.values():
            known.remove(0, first)
            if len(known) > MOST_RANGES:
                _fill_gaps(known)
        self._terminals = {terminal: known for terminal, known in self._terminals.items() if known[1]}
        self.dirty = False
        return _encode({terminal: (run, list(known)) for terminal, (run, known) in self._terminals.items()})

    @classmethod
    def decode(cls, raw: bytes) -> Confirmed:
        try:
            record = _decode(raw)
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(f"what has arrived elsewhere of a group doesn't decode: {error}") from None
        found = cls()
        found._terminals = {terminal: (run, RangeSet(runs)) for terminal, (run, runs) in record.items()}
        return found


def _fill_gaps(known: RangeSet) -> None:
    """Fill the smallest gaps, until half as many ranges are left as may be remembered."""
    ranges = list(known)
    gaps = sorted((after[0] - before[1], before[1], after[0]) for before, after in pairwise(ranges))
    for _, first, end in gaps[: len(ranges) - MOST_RANGES // 2]:
        known.add(first, end)
