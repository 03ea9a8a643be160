"""Tells observers of changes: gathers them and writes them to the topic ``$bus``.

The topic is made by the first subscription to it; until then nothing is written, and nobody pays for it. A
change is told when it is on disk. A terminal that is killed just then may not tell it, so an observer that
has to know all lists what there is when it begins, and follows the topic from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from landbridge.broker.topic import Topic
from landbridge.core import changes
from landbridge.core.changes import ObservedChange
from landbridge.core.log.batch import Batch, build
from landbridge.core.names import is_reserved

#: Changes that wait at most while there is no room on the disk. The oldest go first.
MOST = 10_000


class Journaled(Protocol):
    """What it asks of the broker."""

    clock: Callable[[], int]
    topics: dict[str, Topic]

    def new_id(self) -> bytes: ...


class Changes:
    """The changes that were not written yet."""

    def __init__(
        self, broker: Journaled, tell: Callable[[str, Batch], None], is_low: Callable[[], bool]
    ) -> None:
        """``tell`` appends a batch to a topic of the terminal's own."""
        self._broker, self._tell, self._is_low = broker, tell, is_low
        self._waiting: list[bytes] = []
        self._is_planned = False

    def note(self, what: str, name: str, change: str, who: str, before: Any, after: Any) -> None:
        if changes.TOPIC not in self._broker.topics or is_reserved(name):
            return  # nobody has ever asked; or the terminal does it for itself, which is nobody's change
        if before is not None and after is not None:
            before, after = changes.difference(before, after)
            if before == after:
                return
        event = ObservedChange(self._broker.clock(), what, name, change, who, before, after)
        self._waiting.append(changes.encode(event))
        del self._waiting[:-MOST]
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self.write)

    def write(self) -> None:
        """Write what has gathered, unless there is no room."""
        self._is_planned = False
        if not self._waiting or self._is_low():
            return
        broker = self._broker
        payloads, self._waiting = self._waiting, []
        batch = Batch.decode(build(payloads, id=broker.new_id(), time=broker.clock()))
        self._tell(changes.TOPIC, batch)
