"""Operations on limits, and on what the process logs."""

from __future__ import annotations

from typing import Protocol

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.broker.set_limits import SetLimits
from landbridge.broker.units import Units
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table


class LogLevelPort(Protocol):
    """What decides from which level on the process logs."""

    level: table.LogLevel

    @property
    def at_start(self) -> table.LogLevel: ...


class LimitsBroker(Protocol):
    """What the handlers ask of the broker."""

    set_limits: SetLimits
    units: Units


class LogsHost(Protocol):
    """The terminal, as far as its log goes."""

    log_level: LogLevelPort | None


class LimitsOperations:
    """The handlers of limits.* and logs.*"""

    def __init__(self, broker: LimitsBroker, terminal: LogsHost) -> None:
        self._broker = broker
        self._terminal = terminal

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.LIMITS_SHOW, self.show)
        dispatcher.register(table.LIMITS_SET, self.set)
        dispatcher.register(table.LIMITS_RESET, self.reset)
        dispatcher.register(table.LOGS_SHOW, self.show_level)
        dispatcher.register(table.LOGS_LEVEL, self.set_level)

    async def show(self, caller: TokenBearer, request: table.Nothing) -> table.LimitRows:
        rows = [table.LimitRow(**each._asdict()) for each in self._broker.set_limits.describe()]
        return table.LimitRows(limits=rows)

    async def set(self, caller: AuditedCaller, request: table.LimitsSet) -> table.LimitRows:
        await self._broker.set_limits.change(dict(request.values), caller)
        return await self.show(caller, table.Nothing())

    async def reset(self, caller: AuditedCaller, request: table.LimitsReset) -> table.LimitRows:
        await self._broker.set_limits.change(dict.fromkeys(request.names), caller)
        return await self.show(caller, table.Nothing())

    async def show_level(self, caller: TokenBearer, request: table.Nothing) -> table.LogLevelShown:
        found = self._log_level
        return table.LogLevelShown(level=found.level, at_start=found.at_start)

    async def set_level(self, caller: AuditedCaller, request: table.LogLevelSet) -> table.LogLevelShown:
        found, wanted = self._log_level, request.level
        if found.level == wanted:
            caller.change_nothing()
            return await self.show_level(caller, table.Nothing())

        def work(commit: BrokerCommit) -> None:
            before, after = {"level": found.level}, {"level": wanted}
            caller.enter(commit, "level", before, after)
            commit.on_stored.append(lambda: setattr(found, "level", wanted))

        await self._broker.units.writers[0].put(work)
        return await self.show_level(caller, table.Nothing())

    @property
    def _log_level(self) -> LogLevelPort:
        if self._terminal.log_level is None:
            raise BadRequest("the process of this terminal has a log of its own", hint="set its level there")
        return self._terminal.log_level
