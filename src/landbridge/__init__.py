"""Landbridge: one message bus from the LAN to the other side of the internet.

import landbridge

async with landbridge.connect() as bus:
    await bus.publish("orders", {"id": 1})
    async for message in bus.subscribe("orders", group="billing"):
        print(message.json())
        await message.ack()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from landbridge import errors
from landbridge.client.bus import Bus, Receipt, connect
from landbridge.client.events import EventResult
from landbridge.client.message import DeliveredBatch, Message
from landbridge.client.replies import Reply, RequestMessage
from landbridge.client.service import Retry, Service
from landbridge.errors import BusError, ServiceFailed

if TYPE_CHECKING:
    from landbridge import sync
    from landbridge.client.telemetry import Telemetry

__version__ = "0.1.0"

__all__ = [
    "Bus",
    "BusError",
    "DeliveredBatch",
    "EventResult",
    "Message",
    "Receipt",
    "Reply",
    "RequestMessage",
    "Retry",
    "Service",
    "ServiceFailed",
    "Telemetry",
    "__version__",
    "connect",
    "errors",
    "sync",
]


def __getattr__(name: str) -> Any:
    # Most programs use one of the two buses: the other is imported when somebody asks for it.
    if name == "sync":
        import importlib

        return importlib.import_module("landbridge.sync")
    if name == "Telemetry":  # needs the extra "otel"
        from landbridge.client.telemetry import Telemetry

        return Telemetry
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
