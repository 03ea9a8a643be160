"""The window of a connection: messages that were sent with QoS 1 and have no PUBACK yet, by packet id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
#: A message: its filter, its topic and its offset. Anything else in place of the offset is no message of the
#: log.
Place: TypeAlias = tuple[str, str, Any]

#: The greatest packet identifier.
LAST_ID = 65_535


class Window(Generic[T]):
    """At most ``size`` messages. ``before``: those that an earlier connection of the session has sent without
    an answer; they get the identifiers again that they had then (MQTT 5, 4.4)."""

    def __init__(self, size: int, before: Mapping[Place, int] | None = None) -> None:
        self.size = max(1, min(size, LAST_ID))
        self._sent: dict[int, tuple[Place, T]] = {}
        self._ids: dict[Place, int] = {}
        self._before = dict(before or {})
        self._kept = set(self._before.values())
        self._last = 0

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def is_full(self) -> bool:
        """May no more be sent?"""
        return len(self._sent) >= self.size

    def holds(self, place: Place) -> bool:
        """Is this message in flight already?"""
        return place in self._ids

    def renew(self, place: Place, item: T) -> None:
        """The message has come again from the bus while it is in flight: this is what settles it now."""
        self._sent[self._ids[place]] = place, item

    def put(self, place: Place, item: T) -> tuple[int, bool]:
        """Add a message that is being sent. Returns its packet identifier, and whether it was sent before."""
        assert not self.is_full
        packet_id = self._before.pop(place, 0)
        was_sent = bool(packet_id)
        if was_sent:
            self._kept.discard(packet_id)
        else:
            packet_id = self._free_id()
        self._sent[packet_id] = place, item
        self._ids[place] = packet_id
        return packet_id, was_sent

    def _free_id(self) -> int:
        while True:
            self._last = self._last % LAST_ID + 1
            if self._last not in self._sent and self._last not in self._kept:
                return self._last

    def take(self, packet_id: int) -> T | None:
        """A PUBACK has come: the message of this identifier; None: there is none."""
        found = self._sent.pop(packet_id, None)
        if found is None:
            return None
        del self._ids[found[0]]
        return found[1]

    def items(self) -> list[T]:
        """Those in flight, in the order in which they were sent."""
        return [item for _, item in self._sent.values()]

    def unanswered(self) -> dict[Place, int]:
        """What the next connection of the session has to know."""
        return {**self._before, **self._ids}
