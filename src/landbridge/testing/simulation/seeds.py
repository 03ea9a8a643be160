"""One seed: a topology, a workload, trouble, and what was found."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import Any, NamedTuple

from landbridge.crossing.ground import Settings
from landbridge.testing.simulation.trouble import KINDS, Trouble
from landbridge.testing.simulation.world import Station, World, quiet


class Story(NamedTuple):
    seed: int
    findings: list[str]
    #: Faults that happened, and other things worth a number.
    faults: dict[str, int]
    counts: dict[str, int]
    #: Virtual seconds.
    lasted: float
    #: The same for two runs of one seed.
    digest: str


def build(world: World, terminals: int) -> None:
    """Servers as a tree of few levels with some links across, clients at two or three of them."""
    chance = world.chance
    servers = max(2, round(terminals * chance.uniform(0.4, 0.8)))
    hubs = min(servers, 4 + servers // 20)
    for number in range(terminals):
        name = f"t{number:03}"
        if number < servers:
            most = min(number, hubs)
            near = {f"t{chance.randrange(most):03}"} if most else set()
            if number > 1:
                near |= {f"t{chance.randrange(number):03}" for _ in range(chance.choice((0, 1, 2)))}
            mode = "server"
        else:
            near = {f"t{chance.randrange(servers):03}" for _ in range(chance.choice((1, 2, 3, 3)))}
            mode = "client"
        settings = Settings(neighbours=sorted(near))
        world.add_site(name, mode, settings=settings, skew=chance.uniform(-10, 10))


def people(world: World, topics: int) -> list[tuple[str, Station]]:
    """Topics with groups of one to three terminals, a consumer or two at each. Returns who could publish."""
    chance, sites = world.chance, list(world.sites.values())
    producers = []
    for number in range(topics):
        topic = f"topic{number}"
        # Often at the same terminals: then one shipment is for several groups.
        near = chance.sample(sites, 3) if chance.random() < 0.5 else sites
        groups = {
            f"{topic}-{name}": chance.sample(near, chance.choice((1, 1, 2, 3)))
            for name in ("billing", "audit")[: chance.choice((1, 2))]
        }
        world.add_topic(topic, groups)
        for group, members in groups.items():
            for site in members:
                for index in range(chance.choice((1, 1, 2))):
                    world.add_consumer(f"{group} at {site.name}/{index}", site, topic, group)
        producers += [(topic, site) for site in chance.sample(sites, chance.choice((1, 2)))]
    return producers


def simulate(
    seed: int,
    terminals: int = 12,
    *,
    faults: int = 10,
    within: float = 30.0,
    topics: int = 2,
    messages: int = 40,
    kinds: dict[str, int] | None = None,
) -> Story:
    world = World(seed)
    trouble = Trouble(world, random.Random(seed + 2))

    async def look_now_and_then() -> None:
        while True:
            await asyncio.sleep(world.chance.uniform(5, 30))
            world.look_at_custody(f"at {world.loop.time():.3f}")

    async def main() -> None:
        await world.open()
        build(world, terminals)
        producers = people(world, topics)
        for site in world.sites.values():
            world.start(site)
        async with asyncio.timeout(120):
            while not world.linked():
                await asyncio.sleep(1.0)
        for number, (topic, site) in enumerate(producers):
            world.add_producer(f"p{number}", site, topic, messages, within / messages)
        looks = asyncio.ensure_future(look_now_and_then())
        await trouble.go_on(faults, within, KINDS if kinds is None else kinds)
        trouble.heal()
        while len(world.chronicle.stored) < len(producers) * messages and world.loop.time() < 600:
            await asyncio.sleep(1.0)
        await world.drained()
        looks.cancel()
        world.look_at_custody("at the end")
        world.judge()

    chronicle = world.chronicle
    with quiet(chronicle.findings):
        random.seed(seed)  # the terminals' own jitter
        try:
            world.loop.run(main())
        except Exception as error:
            chronicle.find("crash", repr(error))
    chronicle.findings += [f"crash: {_crash(context)}" for context in world.loop.crashes]
    story = repr((sorted(chronicle.arrived.items()), sorted(chronicle.seen.items()), world.loop.time()))
    digest = hashlib.sha256(story.encode()).hexdigest()[:16]
    faults_seen, counts = dict(trouble.happened), dict(chronicle.counts)
    return Story(seed, chronicle.findings, faults_seen, counts, world.loop.time(), digest)


def _crash(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"
