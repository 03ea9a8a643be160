"""The sequencer: numbered payloads in any order in, the same payloads in order and once out.

A payload whose number leaves a gap is held until the gap closes. The hold is bounded; what happens to a gap
that never closes is a policy. The state is small, and can be saved and restored between any two calls, so the
same code runs in a gateway and in a stateful Spark query.

It takes and gives lists, and leaves the loops over their items to dicts and iterators, which run them in C;
only where duplicates came is there one in Python.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import count, filterfalse
from typing import Literal

import msgspec

from landbridge.core.time import SECOND
from landbridge.errors import SequenceGap

#: Payloads that may wait. Ten times the farthest that the seed's sources shuffle their events.
HOLD = 100_000
#: A full hold is emptied by this part of it: so the sorting that this takes is shared by many payloads.
RELIEF = 1 / 8


class SequencerState(msgspec.Struct, frozen=True, array_like=True):
    """All that a sequencer knows, for storing."""

    next: int
    numbers: list[int] = []  #: of what is held
    payloads: list[bytes] = []  #: in the same order
    late: int = 0
    skipped: int = 0
    gap_since: int | None = None
    gap_bound: int = -1


encode_state = msgspec.msgpack.Encoder().encode
decode_state = msgspec.msgpack.Decoder(SequencerState).decode


class Sequencer:
    """``on_gap``, when more than ``hold`` payloads wait for a gap to close:

    skip      give up the oldest gaps, release what waited for them; what comes for them later is late
    refuse    raise SequenceGap and take nothing: the source has to come back with what is missing

    ``gap_within``: seconds after which a gap is given up even if the hold is not full; None: never."""

    def __init__(
        self,
        first: int = 1,
        *,
        hold: int = HOLD,
        on_gap: Literal["skip", "refuse"] = "skip",
        gap_within: float | None = None,
    ) -> None:
        #: The number that is released next. All below are released, or given up.
        self.next = first
        #: number → payload, all above ``next``.
        self.held: dict[int, bytes] = {}
        #: Payloads dropped because their number was released, given up or held before.
        self.late = 0
        #: Numbers given up.
        self.skipped = 0
        self._hold = hold
        self._on_gap = on_gap
        self._gap_within = None if gap_within is None else int(gap_within * SECOND)
        #: Every gap below ``_gap_bound`` has been open at least since then, in microseconds. None: there is
        #: none, or nobody counts the time.
        self._gap_since: int | None = None
        self._gap_bound = -1

    # -- taking and giving -------------------------------------------------------------------------

    def offer(self, now: int, numbers: Sequence[int], payloads: Sequence[bytes]) -> list[bytes]:
        """Take payloads with their numbers. Returns those whose turn it is, in order."""
        held = self.held
        fresh = dict(zip(numbers, payloads, strict=True))
        if not fresh:
            return []
        if len(fresh) < len(numbers) or min(fresh) < self.next or not held.keys().isdisjoint(fresh):
            fresh = self._without_late(numbers, payloads)
        if self._on_gap == "refuse" and len(held) + len(fresh) > self._hold:
            self._check_room(fresh)
        held |= fresh
        released = self._run()
        if len(held) > self._hold:
            released += self._relieve()
        self._watch_gaps(now)
        return released

    def _without_late(self, numbers: Iterable[int], payloads: Iterable[bytes]) -> dict[int, bytes]:
        fresh: dict[int, bytes] = {}
        for number, payload in zip(numbers, payloads, strict=True):
            if number < self.next or number in self.held or number in fresh:
                self.late += 1
            else:
                fresh[number] = payload
        return fresh

    def _check_room(self, fresh: dict[int, bytes]) -> None:
        """Would too many wait with these? Then they aren't taken."""
        end = next(n for n in count(self.next) if n not in fresh and n not in self.held)
        waiting = len(self.held) + len(fresh) - (end - self.next)
        if waiting > self._hold:
            raise SequenceGap(
                f"number {end} is missing, and {waiting} later ones would wait for it: {self._hold} may",
                hint=f"send again from {end}, or allow more to wait",
            )

    def _run(self) -> list[bytes]:
        """Release what follows on ``next`` without a gap."""
        held = self.held
        if self.next not in held:
            return []
        end = next(filterfalse(held.__contains__, count(self.next)))
        released = list(map(held.pop, range(self.next, end)))
        self.next = end
        if not held:
            self.held = {}  # a dict never shrinks by itself
        return released

    def _relieve(self) -> list[bytes]:
        """Too many wait: give up the oldest gaps."""
        numbers = sorted(self.held)
        least = len(numbers) - int(self._hold * (1 - RELIEF))
        return self._release_to(numbers, numbers[least - 1])

    def _release_to(self, numbers: list[int], last: int) -> list[bytes]:
        """Release the held payloads up to this number, whatever is missing between them, and what follows."""
        chosen = numbers[: bisect_right(numbers, last)]
        self.skipped += last + 1 - self.next - len(chosen)
        released = list(map(self.held.pop, chosen))
        self.next = last + 1
        return released + self._run()

    # -- time --------------------------------------------------------------------------------------

    def _watch_gaps(self, now: int) -> None:
        if self._gap_within is None:
            return
        if not self.held:
            self._gap_since = None
        elif self._gap_since is None or self.next > self._gap_bound:
            self._gap_since, self._gap_bound = now, max(self.held)

    def next_deadline(self) -> int | None:
        """When ``advance`` has something to do; None: not before the next offer."""
        if self._gap_since is None or self._gap_within is None:
            return None
        return self._gap_since + self._gap_within

    def advance(self, now: int) -> list[bytes]:
        """Let time pass: give up the gaps that have been open for too long. Returns what waited for them."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return []
        numbers = sorted(number for number in self.held if number <= self._gap_bound)
        released = self._release_to(numbers, numbers[-1]) if numbers else []
        self._gap_since = None
        self._watch_gaps(now)
        return released

    # -- state -------------------------------------------------------------------------------------

    def save(self) -> SequencerState:
        return SequencerState(
            self.next,
            list(self.held),
            list(self.held.values()),
            self.late,
            self.skipped,
            self._gap_since,
            self._gap_bound,
        )

    def restore(self, state: SequencerState) -> None:
        """Go on from there. The policy is the one that this sequencer was made with."""
        self.next = state.next
        self.held = dict(zip(state.numbers, state.payloads, strict=True))
        self.late, self.skipped = state.late, state.skipped
        self._gap_since, self._gap_bound = state.gap_since, state.gap_bound
