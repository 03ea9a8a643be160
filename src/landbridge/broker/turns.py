"""Turns of the event loop: how an operation that looks through much lets the others go on meanwhile."""

from __future__ import annotations

import asyncio

#: Things that are looked at in one turn of the loop.
LOOK_AT_ONCE = 1 << 12
#: As how many of them a topic or a group counts.
TOPIC_COUNTS = 32


class Turns:
    """Counts what an operation has looked at since the loop's last turn."""

    def __init__(self) -> None:
        self._room = LOOK_AT_ONCE

    async def looked_at(self, things: int) -> None:
        """Give the others a turn where this operation has had its own."""
        self._room -= things
        if self._room <= 0:
            self._room = LOOK_AT_ONCE
            await asyncio.sleep(0)
