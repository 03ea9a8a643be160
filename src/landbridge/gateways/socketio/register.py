"""What the clients of the gateway share: the pool of connections, bounds, and figures."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from landbridge.errors import LimitReached
from landbridge.gateways.http.sessions import SessionPool
from landbridge.transport.strangers import Strangers

#: Clients of one service that have signed in, and of all.
MOST_OF_SERVICE, MOST_CLIENTS = 1000, 2000
#: Connections of clients that have not, of one address and in all.
MOST_STRANGERS_EACH, MOST_STRANGERS = 100, 1000


@dataclass
class SocketFigures:
    """What has happened since the start."""

    published: int = 0
    sent: int = 0
    settled: int = 0
    refused: int = 0
    slow: int = 0


@dataclass
class SocketRegister:
    """``pool``: the connections to the terminal, which HTTP uses too. ``note``: tells the status log."""

    pool: SessionPool
    note: Callable[[str, int, str], None] = lambda *_: None
    figures: SocketFigures = field(default_factory=SocketFigures)
    strangers: Strangers = field(default_factory=lambda: Strangers(MOST_STRANGERS_EACH, MOST_STRANGERS))
    #: Clients that have signed in, by service.
    by_service: Counter[str] = field(default_factory=Counter)
    #: Work that goes on after its client has left.
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @contextmanager
    def counted(self, service: str) -> Iterator[None]:
        """Count one client more of a service, while the block lasts."""
        if self.by_service[service] >= MOST_OF_SERVICE:
            raise LimitReached(
                f"{MOST_OF_SERVICE} clients of this service by Socket.IO", hint="try again in a while"
            )
        if self.by_service.total() >= MOST_CLIENTS:
            raise LimitReached(f"{MOST_CLIENTS} clients by Socket.IO", hint="try again in a while")
        self.by_service[service] += 1
        try:
            yield
        finally:
            self.by_service[service] -= 1
            if not self.by_service[service]:
                del self.by_service[service]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
