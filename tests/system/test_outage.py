"""Outages that last longer than a ticket lives, of a line and of the registry: what was acked still arrives,
in order and once, unless its topic says that nothing late is to be opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from landbridge.registry.limits import RegistryLimits
from tests.system.fleet_process import FleetProcess, Member, stored
from tests.waiting import LIMIT, Reader, until

#: Seconds that a ticket lives in these tests; it seals for a fifth of that.
TICKET_LIFE = 3.0


class Outage:
    """left ── hub ── right; what left publishes is for the group billing at right."""

    def __init__(self, fleet: FleetProcess, hub: Member, left: Member, right: Member) -> None:
        self.fleet, self.hub, self.left, self.right = fleet, hub, left, right
        #: Everything that was acked, in order.
        self.published: list[str] = []

    async def publish(self, count: int) -> None:
        async with self.left.connect("sender") as bus:
            for _ in range(count):
                value = f"p:{len(self.published)}"
                await bus.publish("orders", value)
                self.published.append(value)

    async def publish_past_a_ticket(self) -> None:
        """A message now and then until every ticket of the beginning has expired."""
        time = asyncio.get_running_loop().time
        end = time() + TICKET_LIFE + 1.0
        while time() < end:
            await self.publish(3)
            await asyncio.sleep(0.1)

    async def take(self, count: int) -> list[str]:
        """Take messages, and wait for their acks: a kill that follows must not bring them back."""
        found = []
        async with asyncio.timeout(LIMIT), self.right.connect("reader") as bus:
            async for message in bus.subscribe("orders", group="billing"):
                found.append(message.payload.decode())
                await message.ack(wait=True)
                if len(found) == count:
                    break
        return found

    async def shown(self, member: Member) -> Any:
        return await member.ask("network.show")

    async def check(self) -> None:
        """What is in the log of the destination: all of it, in order, once."""
        await self.right.kill()
        assert stored(self.right.database, "orders") == self.published


@asynccontextmanager
async def outage(folder: Path, *, ticket_life: float = TICKET_LIFE, **options: Any) -> AsyncIterator[Outage]:
    async with FleetProcess(folder, limits=RegistryLimits(ticket_life=ticket_life)) as fleet:
        hub = await fleet.add("hub")
        left = await fleet.add("left", "client", dials={"hub": 0.0})
        right = await fleet.add("right", "client", dials={"hub": 0.0})
        await fleet.topic("orders", options=options, billing=[right])
        await fleet.linked(left, right, hub)
        made = Outage(fleet, hub, left, right)
        await made.publish(5)
        assert await made.take(5) == made.published
        yield made


async def test_a_line_that_is_down_for_longer_than_a_ticket_lives(tmp_path: Path) -> None:
    """Sealed messages grow old on the shelf of the hub, others wait unsealed where they were published."""
    async with outage(tmp_path) as at:
        at.right.lines["hub"].cut()
        await at.publish_past_a_ticket()
        at.left.lines["hub"].cut()
        await at.publish(20)
        at.right.lines["hub"].heal()
        at.left.lines["hub"].heal()
        assert await at.take(len(at.published) - 5) == at.published[5:]
        await at.check()


async def test_a_message_that_grew_old_on_the_way_is_opened_with_a_renewed_ticket(tmp_path: Path) -> None:
    async with outage(tmp_path) as at:
        await _grow_old(at)
        assert await at.take(len(at.published) - 5) == at.published[5:]
        assert (await at.shown(at.right))["arrivals"]["renewed"] > 0
        await at.check()


async def _grow_old(at: Outage) -> None:
    """Some messages sealed and kept by the hub until their tickets have expired, then let through."""
    # Silence, not an end: a line that is known to be down would leave them unsealed at left.
    at.right.lines["hub"].black_hole()
    await at.publish(5)

    async def kept() -> bool:
        return (await at.shown(at.hub))["in_transit"] >= 1

    await until(kept)
    time = asyncio.get_running_loop().time
    expired = time() + TICKET_LIFE + 0.5
    while time() < expired:
        await asyncio.sleep(0.1)
    at.right.lines["hub"].heal()


async def test_sender_only_has_late_messages_sealed_again_by_their_sender(tmp_path: Path) -> None:
    async with outage(tmp_path, late_open="sender_only") as at:
        await _grow_old(at)
        await at.publish(5)
        assert await at.take(len(at.published) - 5) == at.published[5:]
        assert (await at.shown(at.right))["arrivals"]["renewed"] == 0
        await at.check()


async def test_never_buries_late_messages_where_they_were_published(tmp_path: Path) -> None:
    async with outage(tmp_path, late_open="never") as at:
        await _grow_old(at)
        late = at.published[5:]
        async with (
            at.left.connect("undertaker") as bus,
            Reader(bus.subscribe("orders.dead", group="check")) as reader,
        ):
            dead = await reader.take(len(late))
        assert [message.text() for message in dead] == late
        assert {message.headers["lb-cause"] for message in dead} == {"ticket_expired"}
        # Whatever is not late goes on.
        at.published = at.published[:5]
        await at.publish(5)
        assert await at.take(5) == at.published[5:]

        async def nothing_is_under_way() -> bool:
            lanes = (await at.shown(at.left))["lanes"]
            return not any(lane["on_the_way"] or lane["bytes"] for lane in lanes)

        await until(nothing_is_under_way)
        await at.check()


async def test_the_registry_is_down_while_messages_are_sent(tmp_path: Path) -> None:
    async with outage(tmp_path) as at:
        await at.fleet.registry.kill()
        await at.publish_past_a_ticket()

        async def awaits_a_ticket() -> bool:
            lanes = (await at.shown(at.left))["lanes"]
            return any(lane["waits_for"] == "a ticket from the registry" for lane in lanes)

        await until(awaits_a_ticket)
        # The one that keeps them may die, too.
        await at.left.kill()
        await at.left.start()
        await at.publish(5)
        await at.fleet.registry.start()
        assert await at.take(len(at.published) - 5) == at.published[5:]
        await at.check()


async def test_the_registry_is_down_while_messages_are_received(tmp_path: Path) -> None:
    """The receiver has forgotten its keys and can't have them again: what comes is kept as it is."""
    async with outage(tmp_path, ticket_life=300.0) as at:
        await at.fleet.registry.kill()
        await at.right.kill()
        await at.right.start()
        await at.publish(20)

        async def awaits_a_key() -> bool:
            return (await at.shown(at.right))["awaiting_key"] >= 1

        await until(awaits_a_key)
        # Kept means on disk, and not confirmed to the source.
        await at.right.kill()
        await at.right.start()
        await until(awaits_a_key)
        assert sum(lane["on_the_way"] for lane in (await at.shown(at.left))["lanes"]) >= 1
        await at.fleet.registry.start()
        assert await at.take(20) == at.published[5:]

        async def confirmed() -> bool:
            return not any(lane["on_the_way"] for lane in (await at.shown(at.left))["lanes"])

        await until(confirmed)
        await at.check()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_both_are_down_in_turns(tmp_path: Path) -> None:
    async with outage(tmp_path) as at:
        for _ in range(5):
            at.right.lines["hub"].black_hole()
            await at.publish_past_a_ticket()
            await at.fleet.registry.kill()
            at.right.lines["hub"].heal()
            await at.publish_past_a_ticket()
            await at.fleet.registry.start()
        assert await at.take(len(at.published) - 5) == at.published[5:]
        await at.check()
