"""A scene: a small world for one test, whose findings fail it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager

from landbridge.crossing.ground import Settings
from landbridge.testing.simulation.world import Station, World, quiet


@contextmanager
def scene() -> Iterator[World]:
    world = World(1)
    with quiet(world.chronicle.findings):
        random.seed(1)
        yield world
    assert world.chronicle.findings == []
    assert world.loop.crashes == []


async def servers(world: World, *names: str) -> list[Station]:
    await world.open()
    return [world.add_site(name, "server", settings=Settings()) for name in names]


async def linked(world: World) -> None:
    for site in world.sites.values():
        world.start(site)
    while not world.linked():
        await asyncio.sleep(0.5)


async def crossing(world: World, *between: str) -> list[Station]:
    """Two clients that meet at the servers ``between``; orders go from the first to the second."""
    hubs = await servers(world, *between)
    here, there = (world.add_site(name, "client", settings=Settings()) for name in ("here", "there"))
    world.add_topic("orders", {"billing": [there]})
    world.add_consumer("consumer", there, "orders", "billing")
    await linked(world)
    return [*hubs, here, there]
