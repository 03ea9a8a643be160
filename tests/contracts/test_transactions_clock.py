from __future__ import annotations

from landbridge.core.log.ledger import KEEP_LEFT
from landbridge.core.time import SECOND
from landbridge.testing import FakeClock, attach, run_terminal
from tests.waiting import eventually


async def test_new_clients_transact_after_the_clock_was_set_back():
    clock = FakeClock()
    async with run_terminal(clock=clock) as terminal:
        clock.advance(2 * 86_400)  # somebody sets it ahead
        async with attach(terminal) as bus:
            clock.advance(600)
            async with bus.transaction() as t:
                await t.publish("orders", b"1")
        await eventually(lambda: not terminal.connections)
        await terminal.broker.drain()
        clock.advance(KEEP_LEFT / SECOND + 1)
        await terminal.broker.ledger.trim()
        clock.now -= 2 * 86_400 * SECOND  # and back
        async with attach(terminal) as bus, bus.transaction() as t:
            await t.publish("orders", b"2")
