"""Key runs: which part of a log's newest messages can have a given key.

A group that takes one key alone (a client of a thousand that share a topic) should pay for its own messages
and not for everybody's. So the terminal remembers, for batches whose messages all have the same key, which
offsets they cover. A group that catches up asks for its key and settles the rest unseen, a range at a time.

It is a shortcut and no more: nothing of it is stored, and a group that is behind its beginning looks at the
batches themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from landbridge.core.log.ranges import Range, normalise

_end = itemgetter(1)


class KeyRuns:
    def __init__(self, first: int) -> None:
        #: The offsets that it knows of: from ``first`` up to ``end``.
        self.first = self.end = first
        #: How many runs it holds: what it costs in memory.
        self.size = 0
        #: key → where all messages have it, in order.
        self._runs: dict[bytes, list[Range]] = {}
        #: Where several keys stand side by side, in order.
        self._mixed: list[Range] = []

    def add(self, end: int, key: bytes | None) -> None:
        """The messages from the old end up to this one have all this key; None: they differ."""
        runs = self._mixed if key is None else self._runs.setdefault(key, [])
        if runs and runs[-1][1] == self.end:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((self.end, end))
            self.size += 1
        self.end = end

    def of(self, key: bytes, since: int) -> list[Range]:
        """Where a message with this key can stand, from ``since`` on."""
        runs = _from(self._runs.get(key, []), since)
        mixed = _from(self._mixed, since)
        return normalise([*runs, *mixed]) if mixed else runs

    def forget(self) -> None:
        """Begin again at the end."""
        self.first = self.end
        self.size = 0
        self._runs.clear()
        self._mixed.clear()


def _from(runs: list[Range], since: int) -> list[Range]:
    """Sorted, disjoint runs without what is before an offset."""
    left = runs[bisect_right(runs, since, key=_end) :]
    if left and left[0][0] < since:
        left[0] = (since, left[0][1])
    return left
