"""Trouble: what goes wrong in a world, when, and for how long. Drawn from a seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from landbridge.testing.simulation.wires import VirtualLine
from landbridge.testing.simulation.world import Station, World

#: Kind → how often it is drawn.
KINDS = {
    "dark": 4,  #: a black hole, both ways
    "one way": 3,
    "reset": 3,
    "cut": 3,
    "flapping": 2,
    "slow": 2,
    "isolated": 2,  #: all lines of one terminal at once
    "crash": 4,
    "power": 3,
    "registry": 3,
    "clock": 2,
    "consumer": 3,
    "consumers leave": 2,  #: all of one terminal's consumers of a group, for a while
    "member added": 1,
    "member removed": 1,
    "revoked": 1,
}


class Trouble:
    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        #: What has happened, for the report.
        self.happened: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[float], Awaitable[None]]] = {
            "dark": self._dark,
            "one way": self._one_way,
            "reset": self._reset,
            "cut": self._cut,
            "flapping": self._flapping,
            "slow": self._slow,
            "isolated": self._isolated,
            "crash": self._crash,
            "power": self._power,
            "registry": self._registry,
            "clock": self._clock,
            "consumer": self._consumer,
            "consumers leave": self._consumers_leave,
            "member added": self._member_added,
            "member removed": self._member_removed,
            "revoked": self._revoked,
        }

    async def go_on(self, faults: int, within: float, kinds: dict[str, int] = KINDS) -> None:
        """So many faults, each at its moment. Returns when the last one is over."""
        chosen = self._chance.choices(list(kinds), list(kinds.values()), k=faults)
        await asyncio.gather(*(self._one(kind, within) for kind in chosen))

    async def _one(self, kind: str, within: float) -> None:
        await asyncio.sleep(self._chance.uniform(0, within))
        self.happened[kind] += 1
        await self._kinds[kind](self._chance.choice((0.2, 2.0, 8.0, 15.0, 30.0)))

    def heal(self) -> None:
        """Everything back to normal, but for what can't be undone."""
        world = self._world
        world.office.up = True
        for line in list(world.wires._lines.values()):
            line.heal()
        for site in world.sites.values():
            world.start(site)

    # -- lines -------------------------------------------------------------------------------------

    def _site(self) -> Station:
        return self._chance.choice([site for site in self._world.sites.values() if not site.revoked])

    def _line(self) -> VirtualLine:
        """One that is in use, if there is any."""
        world, site = self._world, self._site()
        used = sorted(site.network.peers) if site.network is not None else []
        others = [other for other in world.sites.values() if other.id in used]
        other = self._chance.choice(others or [other for other in world.sites.values() if other is not site])
        return world.wires.line(site.host, other.host)

    async def _dark(self, span: float) -> None:
        line = self._line()
        line.ways[0].dark = line.ways[1].dark = True
        await asyncio.sleep(span)
        line.heal()

    async def _one_way(self, span: float) -> None:
        way = self._chance.choice(self._line().ways)
        way.dark = True
        await asyncio.sleep(span)
        way.lighten()

    async def _reset(self, span: float) -> None:
        self._line().reset()

    async def _cut(self, span: float) -> None:
        line = self._line()
        line.cut = True
        line.reset()
        await asyncio.sleep(span)
        line.cut = False

    async def _flapping(self, span: float) -> None:
        line = self._line()
        for _ in range(4):
            line.ways[0].dark = line.ways[1].dark = True
            await asyncio.sleep(self._chance.uniform(0.1, 8))
            line.heal()
            if self._chance.random() < 0.5:
                line.reset()
            await asyncio.sleep(self._chance.uniform(0.1, 5))

    async def _slow(self, span: float) -> None:
        line = self._line()
        for way in line.ways:
            way.jitter, way.rate = self._chance.uniform(0.1, 2.0), self._chance.uniform(2_000, 200_000)
        await asyncio.sleep(span)
        line.heal()

    async def _isolated(self, span: float) -> None:
        world, site = self._world, self._site()
        lines = [
            world.wires.line(site.host, other.host) for other in world.sites.values() if other is not site
        ]
        for line in lines:
            line.ways[0].dark = line.ways[1].dark = True
        await asyncio.sleep(span)
        for line in lines:
            line.heal()

    # -- machines ----------------------------------------------------------------------------------

    async def _crash(self, span: float) -> None:
        await self._down(span, power=False)

    async def _power(self, span: float) -> None:
        await self._down(span, power=True)

    async def _down(self, span: float, *, power: bool) -> None:
        world, site = self._world, self._site()
        if site.up:
            world.crash(site, power=power)
            world.look_at_custody(f"after the crash of {site.name} at {world.loop.time():.3f}")
            await asyncio.sleep(span)
            world.start(site)

    async def _registry(self, span: float) -> None:
        self._world.office.up = False
        await asyncio.sleep(2 * span)
        self._world.office.up = True

    async def _clock(self, span: float) -> None:
        self._site().clock.set(self._chance.uniform(-10, 10))

    # -- consumers and members ---------------------------------------------------------------------

    async def _consumer(self, span: float) -> None:
        consumers = [client for client in self._world.clients.values() if client.group]
        self._world.restart(self._chance.choice(consumers))

    async def _consumers_leave(self, span: float) -> None:
        """They come back: nobody leaves a group without any consumer for good."""
        world = self._world
        leaving = self._chance.choice([client for client in world.clients.values() if client.group])
        world.chronicle.shaken.add(leaving.group)
        gone = [
            client
            for client in world.clients.values()
            if client.group == leaving.group and client.site is leaving.site and client.process.alive
        ]
        for client in gone:
            world.wires.kill(client.process)
        await asyncio.sleep(span)
        for client in gone:
            if not client.process.alive and world.clients[client.name] is client:
                world._begin(client.name, client.site, client.work, client.group)

    def _members(self, least: int) -> tuple[str, str, list[Station]] | None:
        """A group with its topic and its terminals."""
        world = self._world
        found = [
            (topic, group, [world.sites[name] for name in world.groups[group]])
            for topic, groups in world.topics.items()
            for group in groups
            if len(world.groups[group]) >= least
        ]
        return self._chance.choice(found) if found else None

    async def _member_added(self, span: float) -> None:
        found = self._members(1)
        assert found is not None
        topic, group, members = found
        site = self._site()
        if site not in members:
            self._world.set_group(group, [*members, site])
            self._world.add_consumer(f"{group} at {site.name}", site, topic, group)

    async def _member_removed(self, span: float) -> None:
        found = self._members(2)
        if found is not None:
            _, group, members = found
            gone = self._chance.choice(members)
            self._world.set_group(group, [site for site in members if site is not gone])

    def _connected_without(self, gone: Station) -> bool:
        """Would the others, dialling whom they are set to, still be one piece?"""
        left = {
            site.name: site for site in self._world.sites.values() if site is not gone and not site.revoked
        }
        links: dict[str, set[str]] = {name: set() for name in left}
        for name, site in left.items():
            for other in site.settings.neighbours or ():
                if other in left:
                    links[name].add(other)
                    links[other].add(name)
        reached: set[str] = set()
        ways = [next(name for name, site in left.items() if site.mode == "server")]
        while ways:
            name = ways.pop()
            if name not in reached:
                reached.add(name)
                ways += sorted(links[name]) if left[name].mode == "server" else []
        return len(reached) == len(left)

    async def _revoked(self, span: float) -> None:
        world = self._world
        alone = {names[0] for names in world.groups.values() if len(names) == 1}
        # Nobody who is needed: the only terminal of a group, or one without which others are cut off.
        free = [
            site
            for site in world.sites.values()
            if not site.revoked and site.name not in alone and self._connected_without(site)
        ]
        if free:
            site = self._chance.choice(free)
            for group, names in list(world.groups.items()):
                if site.name in names:
                    members = [world.sites[name] for name in names if name != site.name]
                    world.set_group(group, members)
            site.revoked = True
            world.office.revoke(site.id)
