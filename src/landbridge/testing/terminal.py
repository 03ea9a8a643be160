"""Terminals for tests: in this process, in memory or on a port of the system's choice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any

import structlog

from landbridge.broker.clock import Clock
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.core.log.store import Store
from landbridge.core.time import SECOND
from landbridge.stores.memory import MemoryStore
from landbridge.transport.memory import join

SUBJECT = "test"
#: Units of a store in memory: several, so that tests find what holds in one unit only.
UNITS = 4


class FakeClock(Clock):
    """Time stands still until it is told to pass; then everything that was due meanwhile happens."""

    def __init__(self, now: int = 1_800_000_000_000_000) -> None:
        self.now = now
        #: Terminals that go by this clock.
        self._watchers: list[Terminal] = []

    def __call__(self) -> int:
        return self.now

    def resync(self) -> int:
        return 0

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        for terminal in list(self._watchers):
            terminal.time_passed()

    @contextmanager
    def watched_by(self, terminal: Terminal) -> Iterator[None]:
        self._watchers.append(terminal)
        try:
            yield
        finally:
            self._watchers.remove(terminal)


@asynccontextmanager
async def run_terminal(
    store: Store | None = None,
    *,
    port: int | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    auto_create: bool = True,
) -> AsyncIterator[Terminal]:
    """A terminal in this process. With a port (0 = any free one) it also listens on 127.0.0.1, and
    ``url`` says where."""
    if not structlog.is_configured():  # tests want no news of terminals that open and close
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    terminal = Terminal(
        store or MemoryStore(units=UNITS), limits=limits, clock=clock, auto_create=auto_create
    )
    await terminal.open()
    try:
        with clock.watched_by(terminal) if isinstance(clock, FakeClock) else nullcontext():
            if port is not None:
                await terminal.listen("127.0.0.1", port)
            yield terminal
    finally:
        await terminal.close()


def attach(
    terminal: Terminal,
    *,
    subject: str = SUBJECT,
    scopes: list[str] | None = None,
    life: float = 3600.0,
    patience: float = 5.0,
    token: str | None = None,
) -> Bus:
    """A bus on a terminal of this process; open it with ``async with``."""
    shown = token or terminal.issue_token(subject, ["admin"] if scopes is None else scopes, life)

    async def dial(factory: Callable[[], asyncio.Protocol]) -> Any:
        protocol = factory()
        return join(protocol, terminal.attach()), protocol

    return Bus(dial, shown, name=subject, patience=patience)


@asynccontextmanager
async def bus(**options: Any) -> AsyncIterator[Bus]:
    """A connected bus with a terminal of its own, all in memory."""
    async with run_terminal(**options) as terminal, attach(terminal) as connected:
        yield connected
