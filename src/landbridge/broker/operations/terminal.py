"""Operations on the terminal itself and on its status log."""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from functools import partial
from itertools import islice
from typing import Any, Protocol

import msgspec

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.metrics import render
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.broker.turns import TOPIC_COUNTS, Turns
from landbridge.core.names import check_name
from landbridge.core.status import Levels, parse_levels
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

#: Pauses that the description of a terminal tells.
MOST_TOLD = 100
#: Seconds between two counts of what all topics have; groups that are named as far behind.
COUNT_EVERY, MOST_BEHIND = 10, 10
#: The totals that figures have.
COUNTED = (
    "published", "published_bytes", "delivered", "delivered_bytes", "acked", "requeued", "buried", "refused",
    "forbidden",
)  # fmt: skip
#: Characters of a note's detail.
LONGEST_NOTE = 1024


class InfoHost(Protocol):
    """The terminal, as far as it is described."""

    @property
    def connections(self) -> Sized: ...

    @property
    def troubles(self) -> list[str]: ...

    def info(self) -> dict[str, Any]: ...


class LogCount:
    """What all topics have together. It is counted again when somebody asks, but not more often than every
    COUNT_EVERY seconds: there may be thousands of them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._counted_at: int | None = None
        self._counting = asyncio.Lock()
        self.bytes = self.groups = self.lag = 0
        #: (lag, topic, group), the largest lag first.
        self.behind: list[tuple[int, str, str]] = []

    async def look(self) -> None:
        """Count, if the last count is old."""
        async with self._counting:
            now = self._broker.clock()
            if self._counted_at is None or now >= self._counted_at + COUNT_EVERY * SECOND:
                await self._count()
                self._counted_at = self._broker.clock()

    async def _count(self) -> None:
        stored = groups = lag = 0
        behind: list[tuple[int, str, str]] = []
        turns = Turns()
        for topic in list(self._broker.topics.values()):
            await turns.looked_at(TOPIC_COUNTS + len(topic.groups))
            stored += topic.log.bytes
            for group in topic.groups.values():
                if group.durable:
                    own = group.delivery.cursor.lag(topic.log.end)
                    groups, lag = groups + 1, lag + own
                    if own and (len(behind) < MOST_BEHIND or own > behind[-1][0]):
                        behind = sorted([*behind, (own, topic.name, group.name)], reverse=True)[:MOST_BEHIND]
        self.bytes, self.groups, self.lag, self.behind = stored, groups, lag, behind


class TerminalOperations:
    """The handlers of status.* and terminal.*"""

    def __init__(self, broker: Broker, terminal: InfoHost) -> None:
        self._broker = broker
        self._terminal = terminal
        self._count = LogCount(broker)

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.STATUS_SHOW, self.show_levels)
        dispatcher.register(table.STATUS_LEVELS, self.set_levels)
        dispatcher.register(table.STATUS_NOTE, self.note)
        dispatcher.register(table.TERMINAL_INFO, self.info)
        dispatcher.register(table.TERMINAL_METRICS, self.metrics)
        dispatcher.register(table.TERMINAL_FIGURES, self.figures)

    async def show_levels(self, caller: TokenBearer, request: table.Nothing) -> Levels:
        return self._broker.status.levels

    async def set_levels(self, caller: AuditedCaller, request: table.StatusLevels) -> Levels:
        wanted = msgspec.to_builtins(request)
        if wanted.get("topic"):
            self._broker.publishing.check_target(caller, check_name(wanted["topic"], "topic"))
            if await self._broker.publishing.kind_elsewhere(caller, wanted["topic"]) == "queue":
                raise BadRequest(f"{wanted['topic']} is a queue, which has one producer", hint="use a stream")
            if self._broker.units.has(wanted["topic"]):
                topic = self._broker.status_topic.copy_topic(wanted["topic"])
                await topic.writer.put(topic.save)
        before = self._broker.status.levels
        after = parse_levels({**msgspec.to_builtins(before), **wanted})
        if after == before:
            caller.change_nothing()
        else:
            enter = partial(caller.enter, name="levels", before=before, after=after)
            await self._broker.status_topic.set_levels(after, caller.subject, enter)
        return self._broker.status.levels

    async def note(self, caller: TokenBearer, request: table.StatusNote) -> None:
        """A note is as bounded as the terminal's own events: see StatusLog.MOST."""
        if not 0 <= request.messages < 1 << 62:
            raise BadRequest(f"a note of {request.messages} messages")
        self._broker.status.note(
            self._broker.clock(),
            "error",
            who=caller.subject,
            topic=check_name(request.topic, "topic") if request.topic else "",
            cause=check_name(request.cause, "cause"),
            detail=request.detail[:LONGEST_NOTE],
            messages=request.messages,
        )

    async def info(self, caller: TokenBearer, request: table.Nothing) -> table.TerminalInfo:
        paused = islice(self._broker.pauses.told(), MOST_TOLD) if caller.scopes.has("observe") else ()
        return table.TerminalInfo(**self._terminal.info(), paused=list(paused))

    async def metrics(self, caller: TokenBearer, request: table.Nothing) -> str:
        return render(self._broker, len(self._terminal.connections))

    async def figures(self, caller: TokenBearer, request: table.Nothing) -> table.TerminalFigures:
        await self._count.look()
        broker, count, info = self._broker, self._count, self._terminal.info()
        totals = {name: getattr(broker.totals, name) for name in COUNTED}
        behind = [table.GroupBehind(topic=topic, name=name, lag=lag) for lag, topic, name in count.behind]
        return table.TerminalFigures(
            **totals,
            **{name: info[name] for name in ("time", "started_at", "connections", "topics", "free", "low")},
            commits=broker.commits,
            commit_seconds=broker.commit_seconds,
            groups=count.groups,
            lag=count.lag,
            bytes=count.bytes,
            behind=behind,
            troubles=self._terminal.troubles[:MOST_TOLD],
        )
