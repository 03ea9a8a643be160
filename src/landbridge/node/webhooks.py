"""The sender of webhooks beside a terminal, in its process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from landbridge.broker.server import Terminal
from landbridge.client.wire import Dial
from landbridge.core.webhook.webhook import COLLECTION, STATES
from landbridge.gateways.outgoing import OutgoingHttp
from landbridge.gateways.webhooks import WebhookSenders
from landbridge.node.outlets import counted_in, outlet_buses

#: The subject of the sender's own credential, and what its connections call themselves.
SUBJECT = "webhooks"


@asynccontextmanager
async def webhooks_of(
    terminal: Terminal, dial: Dial, allowed: Iterable[str], http: OutgoingHttp | None = None
) -> AsyncIterator[WebhookSenders]:
    """Send the webhooks of a terminal while the block lasts. ``allowed``: networks and hosts that may be
    posted to beside the public addresses; see ``landbridge.core.addresses``. ``http``: another way out."""
    async with (
        outlet_buses(terminal, dial, SUBJECT, (COLLECTION, STATES)) as buses,
        http or OutgoingHttp(allowed) as way_out,
        WebhookSenders(buses.bus, buses.reader_of, way_out, terminal.broker.clock) as senders,
    ):
        terminal.operations.webhooks.check_url = way_out.check_address
        with counted_in(terminal, senders):
            yield senders
