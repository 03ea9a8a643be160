"""What is measured once for all sessions: the figures of the terminal, in rings of fixed size."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from landbridge.client.bus import Bus
from landbridge.core.time import SECOND
from landbridge.errors import BusError
from landbridge.protocol.operations import TerminalFigures

log = structlog.get_logger("landbridge.console")

#: Seconds between two samples, and samples that are kept: fifteen minutes.
EVERY, KEPT = 2.0, 450
#: Topics whose rates are known. Seconds between two looks at one, at least and at most.
MOST_TOPICS, LEAST, OLD = 2000, 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What was between two looks at the terminal. Rates are per second."""

    time: int
    published: float
    published_bytes: float
    delivered: float
    acked: float
    #: Publishes refused, messages given back and given up.
    refused: float
    requeued: float
    buried: float
    #: Seconds that a commit took on average; None: there was none.
    commit: float | None
    #: Seconds from the question to the terminal's answer.
    answer: float
    lag: int
    connections: int
    bytes: int
    free: int | None


class Counted(NamedTuple):
    """The end of a topic's log at a moment, and the rate that it has grown by."""

    time: int
    log: str
    end: int
    rate: float | None


class TopicRates:
    """How many messages per second topics take, of those that somebody looks at."""

    def __init__(self) -> None:
        #: Least recently looked at first.
        self._counted: OrderedDict[str, Counted] = OrderedDict()

    def look(self, topic: str, log: str, end: int, now: int) -> float | None:
        """The rate of a topic whose log ends there now; None at the first look in a while."""
        before = self._counted.get(topic)
        if before is None or before.log != log or now - before.time > OLD * SECOND:
            counted = Counted(now, log, end, None)
        elif now - before.time < LEAST * SECOND:
            return before.rate  # another page has just looked
        else:
            counted = Counted(now, log, end, (end - before.end) * SECOND / (now - before.time))
        self._counted[topic] = counted
        self._counted.move_to_end(topic)
        if len(self._counted) > MOST_TOPICS:
            self._counted.popitem(last=False)
        return counted.rate


class Samples:
    """The samples of the last minutes, oldest first."""

    def __init__(self) -> None:
        #: Of the topics on open pages.
        self.rates = TopicRates()
        self.ring: deque[Sample] = deque(maxlen=KEPT)
        #: The figures of the last look; None before the first one.
        self.figures: TerminalFigures | None = None

    def add(self, figures: TerminalFigures, answer: float) -> None:
        """Take the figures of a look that was answered within so many seconds."""
        before, self.figures = self.figures, figures
        if before is None or figures.time <= before.time:
            return
        if before.started_at != figures.started_at:
            return  # the counts began anew
        span = (figures.time - before.time) / SECOND
        commits = figures.commits - before.commits

        def rate(name: str) -> float:
            return float(getattr(figures, name) - getattr(before, name)) / span

        self.ring.append(
            Sample(
                time=figures.time,
                published=rate("published"),
                published_bytes=rate("published_bytes"),
                delivered=rate("delivered"),
                acked=rate("acked"),
                refused=rate("refused"),
                requeued=rate("requeued"),
                buried=rate("buried"),
                commit=(figures.commit_seconds - before.commit_seconds) / commits if commits else None,
                answer=answer,
                lag=figures.lag,
                connections=figures.connections,
                bytes=figures.bytes,
                free=figures.free,
            )
        )

    @asynccontextmanager
    async def taken(self, bus: Bus) -> AsyncIterator[None]:
        """Take samples by this connection, in the background of the block."""
        task = asyncio.ensure_future(self._take(bus))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _take(self, bus: Bus) -> None:
        loop = asyncio.get_running_loop()
        while True:
            begun, asked = loop.time(), time.perf_counter()  # the loop's own time is too coarse
            try:
                figures = await bus.terminal.figures()
                self.add(figures, time.perf_counter() - asked)
            except BusError as error:
                log.warning("no sample of the terminal", cause=error.code)
            await asyncio.sleep(max(0.1, begun + EVERY - loop.time()))
