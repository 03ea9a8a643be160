"""Beginnings: where in a topic's log a group begins that the registry has added to the topic.

Clocks don't decide it, because no two of them agree. The registry's answers do: an answer without the group
was given before the group was added. What the log held before the question for that answer was sent was
published before the group was added, so the group may begin at this end of the log. It gets everything that
was published since it was added, and perhaps some messages from shortly before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

#: The number of a topic's log, and the offset after its last message.
LogEnd: TypeAlias = tuple[int, int]

#: In place of the offset: the group was there already when the registry answered for the first time.
_UNKNOWN = -1


class Beginnings:
    def __init__(self) -> None:
        #: Topic → the end of its log before the last question whose answer had no group that is still to be
        #: made here. A topic without an entry was made after the last question. None: no answer came yet.
        self._ends: dict[str, LogEnd] | None = None

    def confirm(self, ends: Mapping[str, LogEnd], is_complete: Callable[[str], bool]) -> bool:
        """The registry has answered. ``ends``: the logs before the question was sent. ``is_complete``:
        whether all groups that the answer names for a topic are on disk here. Returns whether anything
        changed."""
        before, after = self._ends, dict[str, LogEnd]()
        for topic, end in ends.items():
            if is_complete(topic):
                after[topic] = end
            elif before is None:
                after[topic] = (end[0], _UNKNOWN)
            elif topic in before:
                after[topic] = before[topic]
        self._ends = after
        return after != before

    def of(self, topic: str, log: int) -> int | None:
        """The offset that a new group begins with, which may be trimmed already. None: it isn't known."""
        if self._ends is None:
            return None
        number, end = self._ends.get(topic, (log, 0))
        if number != log:
            return 0  # the topic was made anew since
        return None if end == _UNKNOWN else end

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self._ends)

    @classmethod
    def decode(cls, data: bytes) -> Beginnings:
        found = cls()
        found._ends = msgspec.msgpack.decode(data, type=dict[str, LogEnd] | None)
        return found
