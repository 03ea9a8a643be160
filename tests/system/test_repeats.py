"""Requests with an idempotency key, repeated by other connections, while the terminal is killed again and
again."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from landbridge.errors import BusError
from tests.system.test_promise import TerminalProcess

KILLS = 4


class Clients:
    """Clients without a memory: each request is a connection of its own, which may break at any moment."""

    def __init__(self, terminal: TerminalProcess, seed: int) -> None:
        self._terminal = terminal
        self._rng = random.Random(seed)
        #: Key → offsets that receipts have had, with whether they were repeats.
        self.receipts: dict[str, list[tuple[int, bool]]] = {}
        self.stopping = False

    async def send(self, key: str) -> None:
        """Send a request again and again until it is answered, and some of them once more."""
        more = self._rng.random() < 0.3
        while True:
            try:
                async with asyncio.timeout(10.0), self._terminal.connect("client") as bus:
                    receipt = await bus.publish("jobs", key, idempotency_key=key)
            except (BusError, TimeoutError, OSError):
                await asyncio.sleep(0.05)
                continue
            self.receipts.setdefault(key, []).append((receipt.offset, receipt.repeated))
            if not more:
                return
            more = False

    async def run(self, name: str) -> None:
        number = 0
        while not self.stopping:
            number += 1
            await self.send(f"{name}-{number}")


@pytest.mark.slow
async def test_repeated_requests_are_stored_once_whatever_is_killed(
    tmp_path: Path, crashes: list[Any]
) -> None:
    seed = int(os.environ.get("LANDBRIDGE_SEED") or random.randrange(1 << 32))
    print(f"LANDBRIDGE_SEED={seed}")
    async with TerminalProcess(tmp_path / "bus") as terminal:
        clients = Clients(terminal, seed)
        running = [asyncio.ensure_future(clients.run(name)) for name in "abcd"]
        for _ in range(KILLS):
            before = len(clients.receipts)
            async with asyncio.timeout(30):
                while len(clients.receipts) < before + 10:
                    await asyncio.sleep(0.005)
            await terminal.kill()
            await terminal.start()
        clients.stopping = True
        await asyncio.gather(*running)
        stored: list[str] = []
        async with terminal.connect("check") as bus:
            while batches := (await bus.fetch("jobs", len(stored))).batches:
                stored += [payload.decode() for each in batches for payload in each.batch.payloads()]
    assert Counter(stored) == Counter(clients.receipts.keys())
    for key, receipts in clients.receipts.items():
        assert {offset for offset, _ in receipts} == {stored.index(key)}
        assert all(repeated for _, repeated in receipts[1:])
