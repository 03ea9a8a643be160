"""The gateway that posts outcomes to URLs, in the process of a terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.core.replies import CALLBACKS
from landbridge.gateways.callbacks import posting
from landbridge.gateways.outgoing import OutgoingHttp

#: The subject of the gateway's credential, and its life in seconds; each connection gets a fresh one.
SUBJECT, TOKEN_LIFE = "$callbacks", 86400.0


@asynccontextmanager
async def callbacks_of(terminal: Terminal, dial: Dial, allowed: Iterable[str]) -> AsyncIterator[None]:
    """Post the outcomes of a terminal's events while the block lasts. ``allowed``: networks and hosts that
    may be posted to beside the public addresses; see ``landbridge.core.addresses``."""

    def token() -> str:
        return terminal.issue_token(SUBJECT, [f"subscribe:{CALLBACKS}"], TOKEN_LIFE)

    async with Bus(dial, token, name="callbacks") as bus, OutgoingHttp(allowed) as http, posting(bus, http):
        yield
