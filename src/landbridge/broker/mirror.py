"""What a node knows of its terminal's trust and settings while another node owns them.

They live in unit 0: services, revoked tokens, the key that signs tokens, limits that were set, levels of the
status log, services that are paused, and the directory of the customer's registry, which says whose tokens by
the registry are good. Each node reads them from the store, where reading needs no ownership.
Their owner writes another version with every change; the other nodes look at the version each second, and
before they turn somebody away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from landbridge.broker.commit import CROSSING, DIRECTORY, SETTINGS, VERSION
from landbridge.broker.group import PAUSE
from landbridge.broker.services import KIND as SERVICES
from landbridge.broker.tokens import REVOKED
from landbridge.errors import BusError

if TYPE_CHECKING:
    from landbridge.broker.broker import Broker

#: Seconds between two looks.
LOOK_EVERY = 1.0


class Mirror:
    """Follows unit 0 while this node doesn't own it."""

    def __init__(self, broker: Broker, use: Callable[[Followed], None]) -> None:
        """``use``: goes by what was read."""
        self._broker, self._use = broker, use
        self._version = b""
        self._reading: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        tasks = [task for task in (self._task, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = self._reading = None

    def look_anew(self) -> None:
        """Whatever was read is perhaps older than what this node has done itself."""
        self._version = b""

    async def refresh(self) -> None:
        """Read now what has changed. Those who ask at the same time share the reading."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
        await asyncio.shield(self._reading)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self.refresh()
            except BusError as error:
                self._broker.report("", error)

    async def _read(self) -> None:
        store = self._broker.store
        if 0 in self._broker.units.owned:
            return
        version = dict(await store.documents(0, VERSION)).get(VERSION, b"")
        if version == self._version and version:
            return
        found = Followed(
            dict(await store.documents(0, SETTINGS)),
            await store.documents(0, SERVICES),
            [entry for entry, _ in await store.documents(0, REVOKED)],
            await store.documents(0, PAUSE),
            dict(await store.documents(0, CROSSING, DIRECTORY)).get(DIRECTORY),
        )
        if 0 not in self._broker.units.owned:
            self._version = version
            self._use(found)


class Followed:
    """What was read of unit 0."""

    def __init__(
        self,
        settings: dict[str, bytes],
        services: Iterable[tuple[str, bytes]],
        revoked: list[str],
        pauses: Iterable[tuple[str, bytes]],
        directory: bytes | None,
    ) -> None:
        self.settings, self.services, self.revoked, self.pauses = settings, services, revoked, pauses
        #: As it is stored; None where the terminal has no registry, or none that has answered yet.
        self.directory = directory
