"""Trouble: what goes wrong in a world, when, and for how long. Drawn from a seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from landbridge.testing.simulation.wires import VirtualLine
from landbridge.testing.simulation.world import Station, World

#: How often late bytes are those of programs, rather than of terminals.
BETWEEN_PROGRAMS = 0.6


class FaultKind(NamedTuple):
    """What can go wrong."""

    #: How often it is drawn, beside the others. 0: only where it is asked for.
    weight: int
    help: str


KINDS = {
    "dark": FaultKind(4, "a line swallows everything, both ways, and nobody is told"),
    "one-way": FaultKind(3, "a line swallows everything in one direction"),
    "reset": FaultKind(3, "all connections of a line are reset"),
    "cut": FaultKind(3, "a line is cut for a while: connections are refused"),
    "flapping": FaultKind(2, "a line goes and comes back several times"),
    "slow": FaultKind(2, "a line becomes slow and uneven"),
    "isolated": FaultKind(2, "all lines of a terminal are dark"),
    "late": FaultKind(3, "bytes of an old connection arrive after its sender has connected anew"),
    "crash": FaultKind(4, "a terminal is killed, and started again later"),
    "power": FaultKind(3, "a terminal's machine loses its power, and nobody is told"),
    "registry": FaultKind(3, "the registry is away"),
    "clock": FaultKind(2, "a terminal's clock is set to a wrong time"),
    "consumer": FaultKind(3, "a consumer is killed, and another one takes its place"),
    "consumers-leave": FaultKind(2, "all consumers of a group at a terminal are away for a while"),
    "member-added": FaultKind(1, "a terminal is added to a group"),
    "member-removed": FaultKind(1, "a terminal is taken out of a group"),
    "revoked": FaultKind(1, "a terminal is revoked"),
    "group-added": FaultKind(1, "a group is added to a topic"),
    "recreated": FaultKind(2, "a topic is deleted and made anew at a terminal that receives it"),
    "recreated-at-source": FaultKind(
        2, "a topic is deleted and made anew at a terminal that publishes to it"
    ),
    "restore": FaultKind(2, "a terminal's store is replaced by a copy of an earlier moment"),
}
#: Kind → how often it is drawn, where nobody chooses.
DEFAULT = {name: kind.weight for name, kind in KINDS.items() if kind.weight}


class Trouble:
    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        #: What has happened, for the report.
        self.happened: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[float], Awaitable[None]]] = {
            "dark": self._dark,
            "one-way": self._one_way,
            "reset": self._reset,
            "cut": self._cut,
            "flapping": self._flapping,
            "slow": self._slow,
            "isolated": self._isolated,
            "late": self._late,
            "crash": self._crash,
            "power": self._power,
            "registry": self._registry,
            "clock": self._clock,
            "consumer": self._consumer,
            "consumers-leave": self._consumers_leave,
            "member-added": self._member_added,
            "member-removed": self._member_removed,
            "revoked": self._revoked,
            "group-added": self._group_added,
            "recreated": self._recreated,
            "recreated-at-source": self._recreated_at_source,
            "restore": self._restore,
        }

    async def go_on(self, faults: int, within: float, kinds: dict[str, int] = DEFAULT) -> None:
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
        world.tell("healed", "every line, every terminal and the registry are back")
        world.office.up = True
        for line in world.wires.lines():
            line.heal()
        for site in world.sites.values():
            world.start(site)

    # -- lines -------------------------------------------------------------------------------------

    def _site(self) -> Station:
        return self._chance.choice([site for site in self._world.sites.values() if not site.revoked])

    def _line(self, kind: str, what: str) -> VirtualLine:
        """One that is in use, if there is any. What happens to it is told."""
        world, site = self._world, self._site()
        used = sorted(site.network.peers) if site.network is not None else []
        others = [other for other in world.sites.values() if other.id in used]
        other = self._chance.choice(others or [other for other in world.sites.values() if other is not site])
        world.tell(kind, f"{site.name} – {other.name}: {what}")
        return world.wires.line(site.host, other.host)

    async def _dark(self, span: float) -> None:
        line = self._line("dark", f"nothing gets through for {span:g} s")
        line.ways[0].dark = line.ways[1].dark = True
        await asyncio.sleep(span)
        line.heal()

    async def _one_way(self, span: float) -> None:
        way = self._chance.choice(
            self._line("one-way", f"nothing gets through in one direction for {span:g} s").ways
        )
        way.dark = True
        await asyncio.sleep(span)
        way.lighten()

    async def _reset(self, span: float) -> None:
        self._line("reset", "all connections are reset").reset()

    async def _cut(self, span: float) -> None:
        line = self._line("cut", f"cut for {span:g} s")
        line.cut = True
        line.reset()
        await asyncio.sleep(span)
        line.cut = False

    async def _flapping(self, span: float) -> None:
        line = self._line("flapping", "goes and comes back four times")
        for _ in range(4):
            line.ways[0].dark = line.ways[1].dark = True
            await asyncio.sleep(self._chance.uniform(0.1, 8))
            line.heal()
            if self._chance.random() < 0.5:
                line.reset()
            await asyncio.sleep(self._chance.uniform(0.1, 5))

    async def _slow(self, span: float) -> None:
        line = self._line("slow", f"slow and uneven for {span:g} s")
        for way in line.ways:
            way.jitter, way.rate = self._chance.uniform(0.1, 2.0), self._chance.uniform(2_000, 200_000)
        await asyncio.sleep(span)
        line.heal()

    async def _isolated(self, span: float) -> None:
        world, site = self._world, self._site()
        world.tell("isolated", f"{site.name}: all its lines are dark for {span:g} s")
        lines = [
            world.wires.line(site.host, other.host) for other in world.sites.values() if other is not site
        ]
        for line in lines:
            line.ways[0].dark = line.ways[1].dark = True
        await asyncio.sleep(span)
        for line in lines:
            line.heal()

    async def _late(self, span: float) -> None:
        """Mostly between programs and their terminal, where messages are published."""
        world, chance = self._world, self._chance
        what = f"bytes of its present connections arrive {span:g} s after these have broken"
        if chance.random() < BETWEEN_PROGRAMS:
            site = chance.choice(
                [program.site for program in world.clients.values() if program.process.alive]
            )
            line = world.wires.line(site.host, site.host)
            world.tell("late", f"programs at {site.name}: {what}")
            world.chronicle.shaken |= {group for group, names in world.groups.items() if site.name in names}
        else:
            line = self._line("late", what)
        held = line.hold()
        await asyncio.sleep(chance.uniform(0.1, 2.0))
        for end in held:
            end.peer.broken()
        await asyncio.sleep(span)
        for end in held:
            end.release()

    # -- machines ----------------------------------------------------------------------------------

    async def _crash(self, span: float) -> None:
        await self._down(span, power=False)

    async def _power(self, span: float) -> None:
        await self._down(span, power=True)

    async def _down(self, span: float, *, power: bool) -> None:
        world, site = self._world, self._site()
        if site.up:
            world.tell("power" if power else "crash", f"{site.name} is down for {span:g} s")
            world.crash(site, power=power)
            world.look_at_custody(f"after the crash of {site.name} at {world.loop.time():.3f}")
            await asyncio.sleep(span)
            world.start(site)

    async def _registry(self, span: float) -> None:
        self._world.tell("registry", f"away for {2 * span:g} s")
        self._world.office.up = False
        await asyncio.sleep(2 * span)
        self._world.office.up = True

    async def _clock(self, span: float) -> None:
        site, skew = self._site(), self._chance.uniform(-10, 10)
        self._world.tell("clock", f"{site.name}: set to {skew:+.1f} s")
        site.clock.set(skew)

    async def _restore(self, span: float) -> None:
        world, site = self._world, self._site()
        backup = world.copy(site)
        await asyncio.sleep(span)
        if not site.revoked:
            world.tell("restore", f"{site.name}: its store is a copy of {span:g} s ago")
            world.restore(site, backup)
            world.look_at_custody(f"after the restore of {site.name} at {world.loop.time():.3f}")

    async def _recreated(self, span: float) -> None:
        await self._recreate("recreated", sends=False)

    async def _recreated_at_source(self, span: float) -> None:
        await self._recreate("recreated-at-source", sends=True)

    async def _recreate(self, kind: str, *, sends: bool) -> None:
        world = self._world
        topic = self._chance.choice(list(world.topics))
        sites = [site for site in world.sites.values() if site.up and not site.revoked]
        sites = [site for site in sites if ((topic, site.name) in world.senders) is sends]
        if sites:
            site = self._chance.choice(sites)
            world.tell(kind, f"{site.name}: {topic} is deleted, and made anew by whoever uses it")
            await world.recreate(site, topic)

    # -- consumers and members ---------------------------------------------------------------------

    async def _consumer(self, span: float) -> None:
        consumers = [client for client in self._world.clients.values() if client.group]
        consumer = self._chance.choice(consumers)
        self._world.tell("consumer", f"{consumer.name}: killed, and another one starts")
        self._world.restart(consumer)

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
        what = f"the consumers of {leaving.group} are away for {span:g} s"
        world.tell("consumers-leave", f"{leaving.site.name}: {what}")
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
            self._world.tell("member-added", f"{site.name} joins {group}")
            self._world.set_group(group, [*members, site])
            self._world.add_consumer(f"{group} at {site.name}", site, topic, group)

    async def _group_added(self, span: float) -> None:
        world, site = self._world, self._site()
        topic = self._chance.choice(list(world.topics))
        group = f"{topic}-added{len(world.added)}"
        world.tell("group-added", f"{group} at {site.name}")
        world.add_group(topic, group, [site])
        world.add_consumer(f"{group} at {site.name}", site, topic, group)

    async def _member_removed(self, span: float) -> None:
        found = self._members(2)
        if found is not None:
            _, group, members = found
            gone = self._chance.choice(members)
            self._world.tell("member-removed", f"{gone.name} leaves {group}")
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
            world.tell("revoked", site.name)
            site.revoked = True
            world.office.revoke(site.id)
