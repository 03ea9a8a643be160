"""A topic's messages as its groups get them, where stages work before delivery.

A view reads batches from the log, takes them through the stages and keeps them in the cache that all logs
share. So a message that is handed out again is the same, and the groups that get a topic by the same stages
share the work. What comes from another terminal, or back from the dead letters, has been through the stages
before: they work once, where a message was published. Redaction alone looks again at what comes back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from landbridge.broker.log import Cache, Log, LogReader
from landbridge.broker.stage_work import WorkingStage, Workshop
from landbridge.core.log.batch import Batch
from landbridge.core.middleware.spec import RedactStage

#: Makes a view's stages ready for use.
GetReady: TypeAlias = Callable[[], Awaitable[Sequence[WorkingStage]]]


class TopicView(LogReader):
    """What stages before delivery make of a log."""

    def __init__(
        self,
        number: int,
        log: Log,
        cache: Cache,
        workshop: Workshop,
        get_ready: GetReady,
        check_size: Callable[[Batch], None],
    ) -> None:
        """``number``: not that of any log or other view. ``check_size`` raises TooLarge for a batch that
        can't be delivered."""
        super().__init__(number, cache)
        self._log, self._workshop, self._get_ready = log, workshop, get_ready
        self._check_size = check_size

    def span(self) -> tuple[int, int]:
        return self._log.span()

    async def _read(self, offset: int, max_bytes: int) -> list[tuple[int, Batch]]:
        stages = await self._get_ready()
        found: list[tuple[int, Batch]] = []
        room = max_bytes
        for first, batch in await self._log.fetch(offset, max_bytes):
            if batch.origin is None:
                # What comes back from the dead letters may have been buried before there was a redaction.
                again = [stage for stage in stages if isinstance(stage.spec, RedactStage)]
                chosen = stages if batch.audience is None else again
                changed = await self._workshop.run(batch, chosen, {})
                if changed.size > batch.size:
                    self._check_size(changed)
                batch = changed
            room -= batch.size
            if found and room < 0:
                break  # it has grown: the next read brings it
            found.append((first, batch))
        self.mean_size = max(self._log.mean_size, *(batch.size // len(batch) for _, batch in found), 0)
        return found
