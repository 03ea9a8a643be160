"""The sender of SMS outlets beside a terminal, in its process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from landbridge.broker.server import Terminal
from landbridge.client.wire import Dial
from landbridge.core.sms.outgoing import COLLECTION, STATES
from landbridge.gateways.outgoing import OutgoingHttp
from landbridge.gateways.sms import SmsSenders
from landbridge.node.outlets import counted_in, outlet_buses
from landbridge.protocol import operations as table

#: The subject of the sender's own credential, and what its connections call themselves.
SUBJECT = "sms"


@asynccontextmanager
async def sms_of(
    terminal: Terminal,
    dial: Dial,
    allowed: Iterable[str],
    http: OutgoingHttp | None = None,
    whole: Dial | None = None,
) -> AsyncIterator[SmsSenders]:
    """Send the SMS outlets of a terminal, and take what their providers call back with, while the block
    lasts. ``allowed``: networks and hosts beside the public addresses; ``http``: another way out.
    ``whole``: see ``outlet_buses``."""
    clock = terminal.broker.clock
    async with (
        outlet_buses(terminal, dial, SUBJECT, (COLLECTION, STATES), whole=whole) as buses,
        http or OutgoingHttp(allowed) as way_out,
        SmsSenders(buses.bus, buses.reader_of, buses.writer_of, way_out, clock) as senders,
    ):
        terminal.operations.register(table.SMS_CALL, senders.take_call)
        with counted_in(terminal, senders):
            yield senders
