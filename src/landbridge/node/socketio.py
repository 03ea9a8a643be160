"""What the Socket.IO gateway has beside a terminal, in its process: figures, and events of the status log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.core.status import TOPIC
from landbridge.gateways.events import Notes
from landbridge.node.site import Site

#: The subject of the gateway's own credential, and what its connection calls itself.
SUBJECT = "socketio"
#: Seconds; a fresh credential is made at every connection.
TOKEN_LIFE = 86400.0
#: Seconds between two events of a kind.
NOTE_EVERY = 1.0


@asynccontextmanager
async def watching(
    terminal: Terminal, dial: Dial, site: Site, every: float = NOTE_EVERY
) -> AsyncIterator[None]:
    """Have the terminal's metrics and its status log tell of the site's Socket.IO, while the block lasts."""

    def token() -> str:
        return terminal.issue_token(SUBJECT, [f"publish:{TOPIC}"], TOKEN_LIFE)

    async with Bus(dial, token, name=SUBJECT) as bus:
        notes = Notes(bus, every)
        site.note = notes.add
        terminal.broker.figures.append(site.figures)
        try:
            yield
        finally:
            terminal.broker.figures.remove(site.figures)
            await notes.close()
