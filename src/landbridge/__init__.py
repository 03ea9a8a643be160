"""Landbridge: one message bus from the LAN to the other side of the internet.

import landbridge

async with landbridge.connect() as bus:
    await bus.publish("orders", {"id": 1})
    async for message in bus.subscribe("orders", group="billing"):
        print(message.json())
        await message.ack()
"""

from __future__ import annotations

from landbridge import errors
from landbridge.client.bus import Bus, Receipt, connect
from landbridge.client.message import DeliveredBatch, Message
from landbridge.client.service import Retry, Service
from landbridge.errors import BusError

__version__ = "0.1.0"

__all__ = [
    "Bus",
    "BusError",
    "DeliveredBatch",
    "Message",
    "Receipt",
    "Retry",
    "Service",
    "__version__",
    "connect",
    "errors",
]
