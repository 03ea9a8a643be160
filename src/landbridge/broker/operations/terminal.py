"""Operations on the terminal itself and on its status log."""

from __future__ import annotations

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
from landbridge.core.names import check_name
from landbridge.core.status import Levels, parse_levels
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

#: Pauses that the description of a terminal tells.
MOST_TOLD = 100
#: Characters of a note's detail.
LONGEST_NOTE = 1024


class InfoHost(Protocol):
    """The terminal, as far as it is described."""

    @property
    def connections(self) -> Sized: ...

    def info(self) -> dict[str, Any]: ...


class TerminalOperations:
    """The handlers of status.* and terminal.*"""

    def __init__(self, broker: Broker, terminal: InfoHost) -> None:
        self._broker = broker
        self._terminal = terminal

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.STATUS_SHOW, self.show_levels)
        dispatcher.register(table.STATUS_LEVELS, self.set_levels)
        dispatcher.register(table.STATUS_NOTE, self.note)
        dispatcher.register(table.TERMINAL_INFO, self.info)
        dispatcher.register(table.TERMINAL_METRICS, self.metrics)

    async def show_levels(self, caller: TokenBearer, request: table.Nothing) -> Levels:
        return self._broker.status.levels

    async def set_levels(self, caller: AuditedCaller, request: table.StatusLevels) -> Levels:
        wanted = msgspec.to_builtins(request)
        if wanted.get("topic"):
            self._broker.check_target(caller, check_name(wanted["topic"], "topic"))
            if await self._broker.kind_elsewhere(caller, wanted["topic"]) == "queue":
                raise BadRequest(f"{wanted['topic']} is a queue, which has one producer", hint="use a stream")
            if self._broker.has(wanted["topic"]):
                topic = self._broker.status_copy(wanted["topic"])
                await topic.writer.put(topic.save)
        before = self._broker.status.levels
        after = parse_levels({**msgspec.to_builtins(before), **wanted})
        if after == before:
            caller.change_nothing()
        else:
            enter = partial(caller.enter, name="levels", before=before, after=after)
            await self._broker.set_levels(after, caller.subject, enter)
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
