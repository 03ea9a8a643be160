"""The terminal's clock: microseconds since 1970, steady between two looks at the wall.

Leases and backoffs are spans and must not suffer when somebody sets the clock; deliver_at and expires_at are
moments and must follow it. So time runs by the monotonic clock from where the wall stood, and ``resync``,
called once a second, reports how far the wall has since been moved.
"""

from __future__ import annotations

import time

#: Microseconds; less than this is drift and is followed without a word.
JUMP = 2_000_000


class Clock:
    def __init__(self) -> None:
        self._offset = time.time_ns() // 1000 - time.monotonic_ns() // 1000

    def __call__(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset

    def resync(self) -> int:
        """Follow the wall. Returns by how many microseconds it jumped, 0 for mere drift."""
        delta = time.time_ns() // 1000 - self()
        self._offset += delta
        return delta if abs(delta) >= JUMP else 0
