"""The sender of webhooks beside a terminal, in its process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.core.status import TOPIC
from landbridge.core.webhook.webhook import COLLECTION, STATES
from landbridge.gateways.outgoing import OutgoingHttp
from landbridge.gateways.webhooks import WebhookSenders

#: The subject of the sender's own credential, and what its connections call themselves.
SUBJECT = "webhooks"
#: Seconds; a fresh credential is made at every connection. When it expires, what is being sent then is sent
#: again, so it lives long.
TOKEN_LIFE = 86400.0


@asynccontextmanager
async def webhooks_of(
    terminal: Terminal, dial: Dial, allowed: Iterable[str], http: OutgoingHttp | None = None
) -> AsyncIterator[WebhookSenders]:
    """Send the webhooks of a terminal while the block lasts. ``allowed``: networks and hosts that may be
    posted to beside the public addresses; see ``landbridge.core.addresses``. ``http``: another way out."""

    def token(subject: str, *scopes: str) -> str:
        return terminal.issue_token(subject, list(scopes), TOKEN_LIFE)

    def own() -> str:
        return token(SUBJECT, f"documents:{COLLECTION}", f"documents:{STATES}", f"publish:{TOPIC}")

    def bus_of(owner: str, topic: str) -> Bus:
        # For one topic alone. Whether the owner is still let in, the terminal decides at the hello.
        return Bus(dial, lambda: token(owner, f"subscribe:{topic}"), name=SUBJECT)

    async with (
        Bus(dial, own, name=SUBJECT) as bus,
        http or OutgoingHttp(allowed) as way_out,
        WebhookSenders(bus, bus_of, way_out, terminal.broker.clock) as senders,
    ):
        yield senders
