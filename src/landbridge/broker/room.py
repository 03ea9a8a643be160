"""Room: how much is left on the disk of the data. It is told before there is none, and when it comes back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import structlog

from landbridge.core.log.store import Store
from landbridge.core.sizes import little_of
from landbridge.core.status import StatusLog
from landbridge.core.time import SECOND
from landbridge.errors import BusError

log = structlog.get_logger("landbridge.terminal")

#: Microseconds between two looks at the disk.
LOOK_EVERY: Final = 10 * SECOND


class RoomHost(Protocol):
    """What is asked of the broker."""

    store: Store
    status: StatusLog
    clock: Callable[[], int]


class DiskRoom:
    """``enough``, ``little`` (of the disk) or ``low`` (the store refuses messages)."""

    def __init__(self, host: RoomHost, run: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._host = host
        self._run = run  #: runs something in the background
        self.free: int | None = None  #: bytes; None: not known, or the store has no disk
        self.state = "enough"
        self._little = 0  #: bytes below which there is little
        self._looked_at: int | None = None

    @property
    def is_low(self) -> bool:
        return self._host.store.is_low

    def tick(self) -> None:
        """Once a second."""
        now = self._host.clock()
        if self._looked_at is None or not 0 <= now - self._looked_at < LOOK_EVERY:
            self._looked_at = now
            self._run(self.look())
        elif self.is_low != (self.state == "low"):
            self._run(self.look())

    async def look(self) -> None:
        try:
            found = await self._host.store.disk()
        except (BusError, OSError):  # told where messages are stored
            found = None
        if found is not None:
            self.free, self._little = found[0], little_of(found[1])
        if self.is_low:
            self._be("low", "messages are refused until there is room; what frees room goes through")
        elif self.free is not None and self.free < self._little:
            self._be("little", "messages are refused when there is none")
        else:
            self._be("enough", "")

    def _be(self, state: str, why: str) -> None:
        before, self.state = self.state, state
        if state == before:
            return
        detail = f"{self.free} bytes are free on the disk" + (f": {why}" if why else "")
        (log.info if state == "enough" else log.warning)("room", state=state, before=before, detail=detail)
        self._host.status.note(self._host.clock(), "room", cause=state, detail=detail)
