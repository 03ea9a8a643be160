"""Tells the user of a topic that a command has created in passing: its name may have been mistyped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from landbridge.cli import output
from landbridge.core.names import is_reserved
from landbridge.core.wording import nearest
from landbridge.errors import BusError, UnknownTopic

if TYPE_CHECKING:
    from landbridge.client.bus import Bus

#: Seconds to wait for answers that are only good to know.
WITHIN = 2.0


@asynccontextmanager
async def making(bus: Bus, topic: str) -> AsyncIterator[None]:
    """While a command uses a topic, which it may create in passing."""
    watch = await Watch.begin(bus, topic)
    try:
        yield
    except UnknownTopic as error:
        await watch.suggest(error)
        raise
    await watch.tell()


class Watch:
    """Watches one topic, from before the command uses it."""

    def __init__(self, bus: Bus, topic: str, began: int) -> None:
        self._bus = bus
        self._topic = topic
        #: When the command began, by the terminal's clock, which need not agree with ours; microseconds.
        self._began = began

    @classmethod
    async def begin(cls, bus: Bus, topic: str) -> Watch:
        return cls(bus, topic, (await bus.terminal.info()).time)

    async def tell(self) -> None:
        """After the topic was used: tell the user if it was created since. Where the terminal doesn't answer,
        nothing is told."""
        if is_reserved(self._topic):
            return  # the terminal's own
        try:
            async with asyncio.timeout(WITHIN):
                topic = await self._bus.topics.show(self._topic)
                if topic.created_at >= self._began and topic.crossing is None:
                    near = await self._near()
                    output.notice(
                        f"made the topic {self._topic}" + (f"; did you mean {near}?" if near else "")
                    )
        except (BusError, TimeoutError):
            pass

    async def tell_of_group(self, group: str | None) -> None:
        """Tell the user of a topic that crosses LANs, whose group here doesn't: it gets only what is
        published at this terminal."""
        try:
            async with asyncio.timeout(WITHIN):
                crossing = (await self._bus.topics.show(self._topic)).crossing
        except (BusError, TimeoutError):
            return
        if crossing is None or group in crossing:
            return
        near = nearest(group or "", crossing)
        who = f"the group {group}" if group else "a subscriber without a group"
        output.notice(
            f"{who} gets what is published at this terminal alone; {self._topic} crosses for "
            f"{', '.join(crossing) or 'no group yet'}" + (f"; did you mean {near}?" if near else "")
        )

    async def _near(self) -> str | None:
        """Another topic with a similar name, one that people publish to: not one of dead letters."""
        names = [topic.name for topic in await self._bus.topics.list()]
        return nearest(self._topic, [name for name in names if not name.endswith(".dead")])

    async def suggest(self, error: BusError) -> None:
        """Add the topic that may be meant to the hint of an error about a topic that doesn't exist."""
        try:
            async with asyncio.timeout(WITHIN):
                near = await self._near()
        except (BusError, TimeoutError):
            return
        if near:
            error.hint = f"did you mean {near}? {error.hint}"
