"""A service reports its failed handlers: one operation per failure, in the background, a bounded number of
them. What can't be reported is counted, and the next report tells the count. No failure to report does any
harm to the service."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from landbridge.client.line import TerminalLine
from landbridge.client.message import Message
from landbridge.errors import BusError
from landbridge.protocol import frames

log = logging.getLogger("landbridge")

#: Reports that wait to be sent. A flood of failures is some reports and a count.
MOST_WAITING = 100
#: The header that carries the trace of a message (W3C Trace Context).
TRACEPARENT = "traceparent"


class ErrorReporter:
    """Writes to the topic ``$errors`` in the name of the bus's token."""

    def __init__(self, bus: TerminalLine, version: str) -> None:
        self.bus = bus
        self._version = version
        self._waiting: deque[dict[str, Any]] = deque()
        #: Failures that were not reported since the last report.
        self._dropped = 0
        self._task: asyncio.Task[None] | None = None

    def note(self, endpoint: str, failure: frames.Failure, message: Message) -> None:
        """A handler has failed on a message. The report refers to the message and never repeats it."""
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
            return
        report = {
            "code": failure.code,
            "text": failure.text,
            "status": failure.status,
            "version": self._version,
            "endpoint": endpoint,
            "topic": message.topic,
            "offset": message.offset,
            "id": message.id,
        }
        parent = message.headers.get(TRACEPARENT)
        if isinstance(parent, str):
            report["trace_id"] = parent.split("-")[1] if parent.count("-") == 3 else ""
        self._waiting.append(report)
        if self._task is None:
            self._task = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        try:
            while self._waiting:
                report = self._waiting.popleft()
                dropped, self._dropped = self._dropped, 0
                try:
                    await self.bus.call("error.report", **report, dropped=dropped)
                except BusError as error:  # the bus is closed, or the terminal is older than reports
                    self._dropped += dropped + 1
                    log.debug("a failure was not reported: %s", error)
        finally:
            self._task = None

    async def close(self, within: float) -> None:
        """Send what waits, for so many seconds at most."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=within)
        if self._task is not None:
            self._task.cancel()
