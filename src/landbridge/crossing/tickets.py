"""Tickets for what this terminal sends: the sealer of each topic, and the fetching of the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from landbridge.core.time import SECOND
from landbridge.core.trust.seal import Sealer
from landbridge.crossing.ground import Ground
from landbridge.errors import BusError, Unavailable

log = structlog.get_logger("landbridge.forwarder")

#: Seconds after which a refused or failed request for a ticket is made again.
TICKET_AGAIN = 1.0


class TicketBook:
    def __init__(
        self, ground: Ground, on_ticket: Callable[[str], None], is_wanted: Callable[[str], bool]
    ) -> None:
        """``on_ticket``: a topic has a new ticket. ``is_wanted``: do shipments of a topic wait for one?"""
        self._ground = ground
        self._on_ticket = on_ticket
        self._is_wanted = is_wanted
        #: Topic → the sealer in use.
        self._sealers: dict[str, Sealer] = {}
        #: Topic → the task that fetches its next ticket.
        self._fetching: dict[str, asyncio.Task[None]] = {}
        #: Topic → when its last request failed, microseconds. No entry if it succeeded.
        self._failed_at: dict[str, int] = {}

    def is_per_message(self, topic: str) -> bool:
        """Whether the topic wants a ticket of its own for each message."""
        entry = self._ground.topics.get(topic)
        return entry is not None and entry.ticket_scope == "message"

    def sealer(self, topic: str, messages: int, now: int) -> Sealer | None:
        """A sealer that can be used now; None: its ticket is being fetched, and ``on_ticket`` follows."""
        sealer = self._sealers.get(topic)
        is_usable = sealer is not None and sealer.usable(now, messages)
        if sealer is None or not is_usable or sealer.due(now):
            self._fetch(topic, now)
        if not is_usable:
            return None
        if self.is_per_message(topic):
            del self._sealers[topic]
        return sealer

    def forget(self, topic: str, seal_id: bytes) -> None:
        """The destination didn't get the key of this seal. If the seal is in use, take a new ticket."""
        sealer = self._sealers.get(topic)
        if sealer is not None and sealer.seal_id == seal_id:
            del self._sealers[topic]

    def _fetch(self, topic: str, now: int) -> None:
        if topic not in self._fetching and now - self._failed_at.get(topic, 0) >= TICKET_AGAIN * SECOND:
            self._fetching[topic] = asyncio.ensure_future(self._fetch_ticket(topic))

    async def _fetch_ticket(self, topic: str) -> None:
        try:
            issue = await self._ground.registry.issue(topic)
            self._sealers[topic] = Sealer(self._ground.identity, issue, self._ground.now())
            self._failed_at.pop(topic, None)
        except BusError as error:
            self._failed_at[topic] = self._ground.now()
            if not isinstance(error, Unavailable):
                self._ground.note("refuse", topic=topic, cause=error.code, detail=str(error))
            log.warning("no ticket", topic=topic, code=error.code, detail=str(error))
            asyncio.get_running_loop().call_later(TICKET_AGAIN, self._fetch_again, topic)
        finally:
            del self._fetching[topic]
        if topic not in self._failed_at:
            self._on_ticket(topic)

    def _fetch_again(self, topic: str) -> None:
        if self._is_wanted(topic):
            self._fetch(topic, self._ground.now())

    def close(self) -> None:
        for task in self._fetching.values():
            task.cancel()
