"""One seed: a topology, a workload, trouble, and what was found."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from landbridge.crossing.ground import Settings
from landbridge.testing.simulation.chronicle import Incident
from landbridge.testing.simulation.trouble import DEFAULT, Trouble
from landbridge.testing.simulation.world import Station, World, quiet

Shape = Literal["tree", "star", "line", "ring", "mesh"]
#: The promise that a finding is about, by the rule that found it; all other findings are crashes.
PROMISES = {
    "delivered": "lost",
    "once": "doubled",
    "stored once": "doubled",
    "in order": "order",
    "custody": "custody",
    "no loop": "loops",
}
#: Virtual seconds after the last fault in which publishers have to be done.
PUBLISHED_WITHIN = 600.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What a seed is asked for. The seed decides all the rest."""

    terminals: int = 12
    #: "tree": servers as a tree of few levels with some links across, clients at one to three of them.
    shape: Shape = "tree"
    topics: int = 2
    #: Consumers of a group at one terminal, at most.
    consumers: int = 2
    #: Messages of each producer.
    messages: int = 40
    faults: int = 10
    #: Virtual seconds in which the faults begin and the messages are published.
    within: float = 30.0
    #: Seconds by which a terminal's clock is wrong from the beginning, at most.
    skew: float = 10.0
    #: Kind of fault → how often it is drawn.
    kinds: dict[str, int] = msgspec.field(default_factory=lambda: dict(DEFAULT))


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in one seed."""

    seed: int
    findings: list[str]
    incidents: list[Incident]
    #: Kind of fault → how often it happened.
    faults: dict[str, int]
    #: Other things worth a number.
    counts: dict[str, int]
    #: Messages that were published, answered, seen by a consumer (once for each group), and excused because
    #: a topic was deleted or a store restored.
    published: int
    stored: int
    delivered: int
    forgiven: int
    #: Virtual seconds.
    lasted: float
    #: The same for two runs of one seed.
    digest: str

    def broken(self) -> dict[str, list[str]]:
        """Promise → the findings that it was broken by; each promise is there."""
        found: dict[str, list[str]] = {name: [] for name in (*dict.fromkeys(PROMISES.values()), "crashes")}
        for finding in self.findings:
            found[PROMISES.get(finding.partition(":")[0], "crashes")].append(finding)
        return found


def build(world: World, scenario: Scenario) -> None:
    neighbours = _tree if scenario.shape == "tree" else _regular
    for number, (mode, near) in enumerate(neighbours(world.chance, scenario)):
        settings = Settings(neighbours=[f"t{other:03}" for other in sorted(near)])
        skew = world.chance.uniform(-scenario.skew, scenario.skew)
        world.add_site(f"t{number:03}", mode, settings=settings, skew=skew)


def _tree(chance: random.Random, scenario: Scenario) -> Iterator[tuple[str, set[int]]]:
    terminals = scenario.terminals
    servers = max(2, round(terminals * chance.uniform(0.4, 0.8)))
    hubs = min(servers, 4 + servers // 20)
    for number in range(servers):
        most = min(number, hubs)
        near = {chance.randrange(most)} if most else set()
        if number > 1:
            near |= {chance.randrange(number) for _ in range(chance.choice((0, 1, 2)))}
        yield "server", near
    for _ in range(servers, terminals):
        yield "client", {chance.randrange(servers) for _ in range(chance.choice((1, 2, 3, 3)))}


def _regular(chance: random.Random, scenario: Scenario) -> Iterator[tuple[str, set[int]]]:
    """A star is one server and its clients; the others are servers."""
    last = scenario.terminals - 1
    yield "server", set()
    for number in range(1, scenario.terminals):
        match scenario.shape:
            case "star":
                yield "client", {0}
            case "mesh":
                yield "server", set(range(number))
            case "ring" if number == last:
                yield "server", {number - 1, 0}
            case _:
                yield "server", {number - 1}


def people(world: World, scenario: Scenario) -> list[tuple[str, Station]]:
    """Topics with groups of one to three terminals, a consumer or two at each. Returns who could publish."""
    chance, sites = world.chance, list(world.sites.values())
    producers = []
    for number in range(scenario.topics):
        topic = f"topic{number}"
        # Often at the same terminals: then one shipment is for several groups.
        near = chance.sample(sites, min(3, len(sites))) if chance.random() < 0.5 else sites
        groups = {
            f"{topic}-{name}": chance.sample(near, min(len(near), chance.choice((1, 1, 2, 3))))
            for name in ("billing", "audit")[: chance.choice((1, 2))]
        }
        world.add_topic(topic, groups)
        for group, members in groups.items():
            for site in members:
                for index in range(chance.choice((1, 1, scenario.consumers))):
                    world.add_consumer(f"{group} at {site.name}/{index}", site, topic, group)
        producers += [(topic, site) for site in chance.sample(sites, chance.choice((1, 2)))]
    return producers


def simulate(seed: int, scenario: Scenario | None = None) -> Story:
    """Play one seed."""
    scenario = scenario or Scenario()
    messages, within = scenario.messages, scenario.within
    world = World(seed)
    trouble = Trouble(world, random.Random(seed + 2))

    async def look_now_and_then() -> None:
        while True:
            await asyncio.sleep(world.chance.uniform(5, 30))
            world.look_at_custody(f"at {world.loop.time():.3f}")

    async def main() -> None:
        await world.open()
        build(world, scenario)
        producers = people(world, scenario)
        for site in world.sites.values():
            world.start(site)
        async with asyncio.timeout(120):
            while not world.linked():
                await asyncio.sleep(1.0)
        for number, (topic, site) in enumerate(producers):
            world.add_producer(f"p{number}", site, topic, messages, within / messages)
        looks = asyncio.ensure_future(look_now_and_then())
        await trouble.go_on(scenario.faults, within, scenario.kinds)
        trouble.heal()
        end = world.loop.time() + PUBLISHED_WITHIN
        while len(world.chronicle.stored) < len(producers) * messages and world.loop.time() < end:
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
    return Story(
        seed=seed,
        findings=chronicle.findings,
        incidents=chronicle.incidents,
        faults=dict(trouble.happened),
        counts=dict(chronicle.counts),
        published=len(chronicle.published),
        stored=len(chronicle.stored),
        delivered=sum(len(set(values)) for values in chronicle.seen.values()),
        forgiven=len({value for _, value in chronicle.forgiven}),
        lasted=world.loop.time(),
        digest=digest,
    )


def _crash(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"
