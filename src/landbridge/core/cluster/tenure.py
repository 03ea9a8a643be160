"""Until when a node may serve what it has, by its own clock that never goes back.

A node asks the server to renew its lease. The server counts the lease from some moment after the question was
sent. So a node that counts from the question stops before the server's lease is over, however long the
answer took.
"""

from __future__ import annotations

#: Of a lease's life, the part after which it is renewed.
RENEWED_AT = 1 / 3


class Tenure:
    """The lease of this process. All times are seconds of a clock that never goes back."""

    def __init__(self, life: float) -> None:
        self.life = life
        self._until = float("-inf")

    def renewed(self, asked_at: float) -> None:
        """The server has answered a question that was sent at ``asked_at``."""
        self._until = max(self._until, asked_at + self.life)

    def ended(self) -> None:
        """The server says that the lease is over, or it was given back."""
        self._until = float("-inf")

    def is_over(self, now: float) -> bool:
        return now >= self._until

    def left(self, now: float) -> float:
        """Seconds that it still lasts; 0 where it is over."""
        return max(0.0, self._until - now)

    @property
    def pause(self) -> float:
        """Seconds between two renewals."""
        return self.life * RENEWED_AT
