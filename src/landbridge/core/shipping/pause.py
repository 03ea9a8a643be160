"""The pause of a lane whose destination didn't get the key of a shipment.

A ticket that has expired on the way is no more than late: the shipment is sealed anew and sent at once. If
the new one is stuck as well, or the destination has no right to the key, sending again at once would go on
for ever. So the lane pauses, longer each time, until a shipment arrives or another directory is known, which
may say who has the right now.
"""

from __future__ import annotations

from landbridge.core.time import SECOND

#: Seconds of the first pause, and of the longest. Each is twice as long as the one before.
PAUSE, PAUSE_MOST = 1.0, 60.0


class Pause:
    def __init__(self) -> None:
        #: Keys in a row that the destination didn't get while the directory was the same.
        self._stuck = 0
        #: The version of that directory.
        self._version = 0
        #: When the pause ends, microseconds.
        self._until = 0

    def begin(self, now: int, version: int, *, is_late: bool) -> None:
        """A shipment is stuck. ``version``: of the directory. ``is_late``: its ticket has expired."""
        if version != self._version:
            self._stuck, self._version = 0, version
        self._stuck += 1
        doublings = self._stuck - (2 if is_late else 1)
        span = 0.0 if doublings < 0 else min(PAUSE * 2.0 ** min(doublings, 10), PAUSE_MOST)
        self._until = now + int(span * SECOND)

    def end(self) -> None:
        """A shipment has arrived."""
        self._stuck = self._until = 0

    def left(self, now: int, version: int) -> float:
        """Seconds that the pause still lasts; 0 if there is none."""
        if version != self._version:
            return 0.0
        return min(max(0, self._until - now) / SECOND, PAUSE_MOST)
