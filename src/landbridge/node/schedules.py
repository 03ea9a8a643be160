"""The scheduler beside a terminal, in its process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.core.schedule.schedule import COLLECTION
from landbridge.core.status import TOPIC
from landbridge.gateways.scheduler import Scheduler

#: The subject of the scheduler's own credential, and what its connections call themselves.
SUBJECT = "scheduler"
#: Seconds; a fresh credential is made at every connection.
TOKEN_LIFE = 3600.0


@asynccontextmanager
async def scheduling(terminal: Terminal, dial: Dial) -> AsyncIterator[Scheduler]:
    """Run the schedules of a terminal. The scheduler is a client like any other; ``dial`` reaches the
    terminal in memory."""

    def scopes(topic: str) -> list[str]:
        return [f"documents:{COLLECTION}", f"publish:{topic}"]

    def own_token() -> str:
        return terminal.issue_token(SUBJECT, scopes(TOPIC), TOKEN_LIFE)

    def bus_of(owner: str, topic: str) -> Bus:
        # For one topic alone. Whether the owner is let in and may publish there, the terminal decides, at the
        # hello and whenever the owner's registration changes.
        return Bus(dial, lambda: terminal.issue_token_for(owner, scopes(topic), TOKEN_LIFE), name=SUBJECT)

    async with (
        Bus(dial, own_token, name=SUBJECT) as bus,
        Scheduler(bus, bus_of, terminal.broker.clock) as scheduler,
    ):
        yield scheduler
