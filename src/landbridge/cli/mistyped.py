"""A topic that a command has made by the way: perhaps its name was mistyped. Whoever typed it is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from landbridge.cli import output
from landbridge.core.wording import nearest
from landbridge.errors import BusError

if TYPE_CHECKING:
    from landbridge.client.bus import Bus

#: Seconds for what is only good to know.
WITHIN = 2.0


class Watch:
    """Begun before the topic is used."""

    def __init__(self, bus: Bus, topic: str, began: int) -> None:
        self._bus = bus
        self._topic = topic
        #: By the terminal's clock, which need not agree with ours; microseconds.
        self._began = began

    @classmethod
    async def begin(cls, bus: Bus, topic: str) -> Watch:
        return cls(bus, topic, (await bus.call("terminal.info"))["time"])

    async def tell(self) -> None:
        """After the topic was used: say so if it was made since. What can't be found out is not told."""
        if self._topic.startswith("$"):
            return  # the terminal's own
        try:
            async with asyncio.timeout(WITHIN):
                topic = await self._bus.call("topic.show", name=self._topic)
                if topic["created_at"] >= self._began and topic.get("crossing") is None:
                    near = await self._near()
                    output.notice(
                        f"made the topic {self._topic}" + (f"; did you mean {near}?" if near else "")
                    )
        except (BusError, TimeoutError):
            pass

    async def tell_of_group(self, group: str | None) -> None:
        """A subscriber of a topic that crosses, in a group that doesn't: it gets what is published here
        alone."""
        try:
            async with asyncio.timeout(WITHIN):
                crossing = (await self._bus.call("topic.show", name=self._topic)).get("crossing")
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
        """Another topic with a name like this one. Looks at the first thousand."""
        rows = (await self._bus.call("topic.list"))["topics"]
        return nearest(self._topic, [row["name"] for row in rows])

    async def suggest(self, error: BusError) -> None:
        """There is no such topic, and it may not be made: the hint names the one that may be meant."""
        try:
            async with asyncio.timeout(WITHIN):
                near = await self._near()
        except (BusError, TimeoutError):
            return
        if near:
            error.hint = f"did you mean {near}? {error.hint}"
