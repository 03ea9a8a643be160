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

    def token(subject: str, *scopes: str) -> str:
        return terminal.issue_token(subject, [f"documents:{COLLECTION}", *scopes], TOKEN_LIFE)

    def bus_of(owner: str, topic: str) -> Bus:
        # For one topic alone. Whether the owner is still let in, the terminal decides at the hello.
        return Bus(dial, lambda: token(owner, f"publish:{topic}"), name=SUBJECT)

    async with (
        Bus(dial, lambda: token(SUBJECT, f"publish:{TOPIC}"), name=SUBJECT) as bus,
        Scheduler(bus, bus_of, terminal.broker.clock) as scheduler,
    ):
        yield scheduler
