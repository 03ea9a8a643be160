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

    documents = f"documents:{COLLECTION}"

    def token() -> str:
        return terminal.issue_token(SUBJECT, [documents, f"publish:{TOPIC}"], TOKEN_LIFE)

    def token_of(owner: str, topic: str) -> str:
        return terminal.lend_token(owner, [f"publish:{topic}"], [documents], TOKEN_LIFE)

    def bus_of(owner: str, topic: str) -> Bus:
        # For one topic alone. The terminal lets it in while the owner itself may publish there.
        return Bus(dial, lambda: token_of(owner, topic), name=SUBJECT)

    async with (
        Bus(dial, token, name=SUBJECT) as bus,
        Scheduler(bus, bus_of, terminal.broker.clock) as scheduler,
    ):
        yield scheduler
