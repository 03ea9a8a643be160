"""Wrong credentials, counted by the address that they come from.

A right credential is never held up by somebody else's wrong ones behind the same address: 256 random bits
can't be guessed, however often one may try. What is bounded is the noise: how much of it reaches the audit,
and what its maker hears.
"""

from __future__ import annotations

from collections import OrderedDict

MINUTE = 60_000_000


class Attempts:
    def __init__(self, per_minute: int, max_sources: int = 10_000) -> None:
        self._per_minute = per_minute
        self._max_sources = max_sources
        #: Address → (when its minute began, how many since). The one that began first stands first.
        self._sources: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def count(self, now: int, source: str) -> bool:
        """One more. False: too many of them in this minute."""
        began, count = self._sources.get(source, (now, 0))
        if not 0 <= now - began < MINUTE:
            began, count = now, 0
        if count == 0:
            self._sources.pop(source, None)
        self._sources[source] = (began, count + 1)
        while len(self._sources) > self._max_sources:
            self._sources.popitem(last=False)
        return count < self._per_minute

    def __len__(self) -> int:
        return len(self._sources)
