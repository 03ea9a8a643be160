"""Order per key: a key's next message is handed out only when the one before is settled.

Messages of one key never overlap and stay in order, whichever consumers of the group get them; messages of
different keys, and those without a key, go on at once. In terms of a group's states (see ``delivery``), a
key has at most one *head*: its oldest message that was looked at. The head may be pending, leased, waiting
for its next attempt, condemned or set aside. The key's other messages wait behind the head and are not
pending for anybody.

    unsorted    pending, and nobody has looked at the key yet
    free        pending, and may be handed out: heads, and messages without a key
    waiting     behind the head of their key

A message whose ``deliver_at`` is in the future holds nobody up: its place among the messages of its key is
where the others are when its time has come.

What waits costs memory and was read from the log too early, so no more than LOOK_AHEAD messages wait. When so
many do, messages further on have to wait too, of whatever key they are, until some heads are settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from landbridge.core.delivery.discipline import BATCH_COUNTS, SORT_AT_ONCE, BatchAt
from landbridge.core.log.ranges import Range, RangeSet

#: Messages that wait behind the heads of their keys, at most.
LOOK_AHEAD = 1 << 15


class KeyOrder:
    """A discipline (see there) that also has to be told what is settled, by ``settled``."""

    newest_first = False

    def __init__(self) -> None:
        self.missing: int | None = None
        self.more = False
        self._unsorted = RangeSet()
        self._free = RangeSet()
        #: Offsets that wait, and by key a heap of them. A heap may hold offsets that no longer wait.
        self._waiting: set[int] = set()
        self._queues: dict[bytes, list[int]] = {}
        #: The head of each key that has one, and the key of each head.
        self._heads: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        #: Heads whose key is not known yet, from the latest to the earliest.
        self._unknown: list[int] = []
        #: Nothing from here on was looked at yet.
        self._seen_to = 0

    def hold(self, out: Iterable[int]) -> None:
        """Begin with these, which are neither pending nor settled. The earliest of a key is its head; the
        keys are read before anything is handed out."""
        self._unknown = sorted(out, reverse=True)
        if self._unknown:
            self._seen_to = self._unknown[0] + 1

    @property
    def size(self) -> int:
        """How many could be handed out now, as far as that is known: without what waits."""
        return self._unsorted.size + self._free.size

    def add(self, first: int, end: int) -> None:
        """These are pending: they are new, or were given back."""
        if first >= self._seen_to:  # the usual case: they are new
            self._unsorted.add(first, end)
            return
        self._unsorted.add(first, end)
        if self._unknown:
            self._unknown = [offset for offset in self._unknown if not first <= offset < end]
        for offset in _within(self._keys, first, end):
            self._unsorted.remove(offset, offset + 1)
            self._free.add(offset, offset + 1)

    def remove(self, first: int, end: int) -> None:
        """These are no longer pending. A head stays the head of its key until it is settled."""
        self._unsorted.remove(first, end)
        self._free.remove(first, end)
        if self._waiting:
            self._waiting.difference_update(_within(self._waiting, first, end))

    def settled(self, ranges: Sequence[Range]) -> None:
        """The cursor has these: where one was the head of its key, the next one may go."""
        if self._unknown:
            self._unknown = [o for o in self._unknown if not any(first <= o < end for first, end in ranges)]
        for first, end in ranges:
            for offset in _within(self._keys, first, end):
                self._follow(self._keys.pop(offset))

    def postponed(self, offset: int) -> None:
        """It is not due before some moment: meanwhile it is not the head of its key."""
        key = self._keys.pop(offset, None)
        if key is not None:
            self._follow(key)

    def _follow(self, key: bytes) -> None:
        """The head of the key is gone: the next one takes its place."""
        queue = self._queues.get(key)
        while queue:
            offset = heappop(queue)
            if offset in self._waiting:
                self._waiting.remove(offset)
                self._lead(key, offset)
                break
        else:
            del self._heads[key]
        if not queue:
            self._queues.pop(key, None)

    def _lead(self, key: bytes, offset: int) -> None:
        self._heads[key] = offset
        self._keys[offset] = key
        self._free.add(offset, offset + 1)

    def _wait(self, key: bytes, offset: int) -> None:
        self._waiting.add(offset)
        heappush(self._queues.setdefault(key, []), offset)

    # -- handing out -------------------------------------------------------------------------------

    def next_run(self, limit: int, batch_at: BatchAt) -> Range | None:
        """At most ``limit`` consecutive offsets to deliver next; they stay in until they are removed."""
        self.missing, self.more = None, False
        if not self._read_heads(batch_at) or not self._sort_returned(batch_at):
            return None
        self._sort_new(limit, batch_at)
        if not self._free:
            return None
        self.missing, self.more = None, False  # there is something to begin with
        first, end = self._free.first()
        return first, min(end, first + limit)

    def _read_heads(self, batch_at: BatchAt) -> bool:
        """Find the keys of heads that are out since before this object was made. False: one is missing."""
        while self._unknown:
            offset = self._unknown[-1]
            found = batch_at(offset)
            if found is None:
                self.missing = offset
                return False
            self._unknown.pop()
            key = found[1].key(offset - found[0])
            # Several of a key may be out if the group had no order before: the others line up later.
            if key and key not in self._heads:
                self._heads[key] = offset
                self._keys[offset] = key
        return True

    def _sort_returned(self, batch_at: BatchAt) -> bool:
        """Look at the keys of what was given back: it goes before the later messages of its key. False if
        that isn't done yet."""
        room = SORT_AT_ONCE
        while self._unsorted and self._unsorted.first()[0] < self._seen_to:
            if room <= 0:
                self.more = True
                return False
            looked = self._sort_run(room, batch_at)
            if not looked:
                return False
            room -= looked
        return True

    def _sort_new(self, limit: int, batch_at: BatchAt) -> None:
        """Look at the keys of what is new until there is enough to hand out."""
        room = SORT_AT_ONCE
        while self._unsorted and self._free.size < limit and len(self._waiting) < LOOK_AHEAD:
            if room <= 0:
                self.more = True
                return
            looked = self._sort_run(min(room, max(limit, BATCH_COUNTS)), batch_at)
            if not looked:
                return
            room -= looked

    def _sort_run(self, most: int, batch_at: BatchAt) -> int:
        """Sort at most so many messages. Returns as how many that counts; 0: their batch is missing."""
        first, end = self._unsorted.first()
        found = batch_at(first)
        if found is None:
            self.missing = first
            return 0
        batch_first, batch = found
        end = min(end, batch_first + len(batch), first + most)
        self._unsorted.remove(first, end)
        self._seen_to = max(self._seen_to, end)
        keys = batch.slice(first - batch_first, end - batch_first).keys()
        if keys is None:
            self._free.add(first, end)
        else:
            for offset, key in enumerate(keys, first):
                self._sort(offset, key)
        return max(BATCH_COUNTS, end - first)

    def _sort(self, offset: int, key: bytes) -> None:
        if not key:
            self._free.add(offset, offset + 1)
            return
        head = self._heads.get(key)
        if head is None:
            self._lead(key, offset)
        elif offset < head and head in self._free:
            # An earlier one has come back before the head was handed out.
            self._free.remove(head, head + 1)
            del self._keys[head]
            self._wait(key, head)
            self._lead(key, offset)
        else:
            self._wait(key, offset)


def _within(offsets: dict[int, bytes] | set[int], first: int, end: int) -> list[int]:
    """Which of the offsets are in a range?"""
    if end - first <= len(offsets):
        return [offset for offset in range(first, end) if offset in offsets]
    return sorted(offset for offset in offsets if first <= offset < end)
