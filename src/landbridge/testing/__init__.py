"""Helpers for tests, ours and our users'. No socket, no file, no setup:

async with landbridge.testing.bus() as bus:        # a terminal in memory, connected
    await bus.publish("orders", {"id": 1})
    async with service.running(bus): ...
"""

from __future__ import annotations

from landbridge.testing.faults import FaultyStore
from landbridge.testing.terminal import FakeClock, attach, bus, run_terminal

__all__ = ["FakeClock", "FaultyStore", "attach", "bus", "run_terminal"]
