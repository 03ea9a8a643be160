"""A world: terminals of one customer, their registry, the lines between them, producers and consumers, all in
one process and one seed. The terminals are the real ones; only time, lines, disk and registry are made up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.core.log.store import Append, Bounds, DropLog, Write
from landbridge.core.shipping.inbound import ShipmentSource
from landbridge.core.shipping.parcel import Parcel
from landbridge.core.trust.directory import TerminalEntry
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.crossing.arrivals import StoredArrivals
from landbridge.crossing.ground import Settings
from landbridge.crossing.joining import join
from landbridge.crossing.network import Network
from landbridge.errors import BusError, TerminalUnreachable
from landbridge.stores.memory import MemoryStore
from landbridge.testing.faults import FaultyStore
from landbridge.testing.plain import at_once
from landbridge.testing.simulation.chronicle import Chronicle, Incident
from landbridge.testing.simulation.disk import Disk
from landbridge.testing.simulation.office import CUSTOMER, Office, RegistryDesk
from landbridge.testing.simulation.wires import Wires
from landbridge.testing.virtual import VirtualClock, VirtualLoop, VirtualProcess

PORT = 7420
#: Virtual seconds after the last fault by which everything must be where it belongs. The longest single wait
#: is a minute (a shipment that nobody has heard of is sent again), and a few may follow one another.
DRAIN_WITHIN = 900.0
#: How often a producer, with everything answered, says goodbye and goes on as another one.
GOODBYE = 0.1


@dataclass
class Station:
    """A place with a terminal. What is here outlives the terminal's crashes."""

    name: str
    id: str
    host: str
    mode: Any
    key: SecureKey
    clock: VirtualClock
    settings: Settings
    store: MemoryStore = field(default_factory=MemoryStore)
    process: VirtualProcess | None = None
    terminal: Terminal | None = None
    network: Network | None = None
    revoked: bool = False

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def joined(self) -> Network:
        assert self.network is not None
        return self.network


class Backup(NamedTuple):
    """A copy of a terminal's store."""

    store: MemoryStore
    #: (destination, source, group) → how many values had arrived.
    arrived: dict[tuple[str, str, str], int]


class _WatchedStore(FaultyStore):
    """Shows the commits that delete a log, before they do."""

    def __init__(self, store: MemoryStore, on_drop: Callable[[Sequence[Write]], None]) -> None:
        super().__init__(store)
        self._on_drop = on_drop

    async def commit(self, unit: int, epoch: int, writes: Sequence[Write]) -> Bounds:
        if any(isinstance(write, DropLog) for write in writes):
            self._on_drop(writes)
        return await super().commit(unit, epoch, writes)


@dataclass
class Program:
    """A program: a producer, or a consumer of a group."""

    name: str
    site: Station
    work: Callable[[], Awaitable[None]]
    process: VirtualProcess
    group: str = ""


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.wires = Wires(random.Random(seed + 1))
        self.loop = VirtualLoop(self.wires)
        self.wires.loop = self.loop
        self.chronicle = Chronicle()
        self.sites: dict[str, Station] = {}
        self.clients: dict[str, Program] = {}
        #: Topic → its groups; group → names of its terminals now; groups that had several at some time.
        self.topics: dict[str, list[str]] = {}
        self.groups: dict[str, list[str]] = {}
        self.moved: set[str] = set()
        #: (topic, name of the terminal) of the producers; groups that were added to a topic on the way.
        self.senders: set[tuple[str, str]] = set()
        self.added: set[str] = set()
        #: (group, value) that were found on no disk: told once.
        self._unheld: set[tuple[str, str]] = set()
        self._started: list[asyncio.Task[None]] = []
        self.office: Office

    async def open(self) -> None:
        self.office = Office(VirtualClock(self.loop), random.Random(self.chance.random()))

    # -- terminals ---------------------------------------------------------------------------------

    def add_site(self, name: str, mode: Any, *, settings: Settings, skew: float = 0.0) -> Station:
        number = len(self.sites) + 1
        key = SecureKey(number.to_bytes(32, "big"))
        host = f"127.1.{number // 250}.{number % 250 + 1}"
        clock = VirtualClock(self.loop, skew)
        site = Station(name, f"ter_{name}", host, mode, key, clock, settings)
        self.sites[name] = site
        address = f"lb://{host}:{PORT}" if mode == "server" else ""
        entry = TerminalEntry(id=site.id, name=name, mode=mode, address=address, keys=[key.public])
        self.office.add_terminal(entry)
        return site

    def start(self, site: Station) -> None:
        """Start its terminal, unless it runs."""
        if site.up:
            return
        if site.process is not None:
            self.tell("start", f"{site.name} starts again")
        process = site.process = VirtualProcess(site.name)
        self.wires.power(site.host)
        self.wires.place(process, site.host)
        self._started.append(self.loop.start(process, self._run(site)))

    async def _run(self, site: Station) -> None:
        store = _WatchedStore(site.store, lambda writes: self._on_drop(site, writes))
        terminal = Terminal(store, name=site.name, clock=site.clock)
        await terminal.open()
        # Not by ``listen``, which takes connections from a socket of the operating system.
        terminal._listeners.append(await self.loop.create_server(terminal.attach, site.host, PORT))
        identity = Identity(CUSTOMER, site.id, site.key)
        desk = RegistryDesk(self.office, identity)
        network = await join(
            terminal, CUSTOMER, site.id, site.key, desk, self.office.public_key, site.settings
        )
        site.terminal, site.network = terminal, network
        self._watch(site, network)

    def tell(self, kind: str, what: str) -> None:
        self.chronicle.incidents.append(Incident(self.loop.time(), kind, what))

    def _watch(self, site: Station, network: Network) -> None:
        receive, store = network.carrier.received, network.arrivals._on_stored

        def received(parcel: Parcel, data: memoryview, decide: Any) -> None:
            self.chronicle.parcel(site.id, parcel)
            receive(parcel, data, decide)

        def on_stored(source: ShipmentSource, stored: StoredArrivals) -> None:
            for batch in (batch for _, batches in stored for batch in batches):
                values = [bytes(batch.payload(index)).decode() for index in range(len(batch))]
                self.chronicle.arrive(site.name, source.terminal, batch.audience or (), values)
            store(source, stored)

        network.carrier.received = received  # type: ignore[method-assign]
        network.arrivals._on_stored = on_stored  # type: ignore[method-assign]

    def crash(self, site: Station, *, power: bool = False) -> None:
        """All that it had in memory is gone; what was committed stays."""
        if not site.up:
            return
        assert site.process is not None
        self._count(site)
        self.wires.kill(site.process, power=power)
        at_once(site.store.close())
        site.network = site.terminal = None
        self.chronicle.shaken |= {group for group, names in self.groups.items() if site.name in names}

    def _count(self, site: Station) -> None:
        if site.network is not None:
            counts, network = self.chronicle.counts, site.network
            counts["failovers"] += network.forwarder.totals.failovers
            counts["sent again"] += network.forwarder.totals.repeated
            counts["rerouted"] += network.forwarder.totals.reroutes + network.carrier.totals.reroutes
            counts["in transit"] += network.carrier.totals.passed_on
            counts["sent back"] += network.carrier.totals.returned
            counts["renewed"] += network.arrivals.totals.renewed
            counts["shelved"] += network.arrivals.totals.shelved

    # -- what a terminal loses -----------------------------------------------------------------------

    async def recreate(self, site: Station, topic: str) -> None:
        """Delete a topic at a terminal. Whoever publishes or subscribes next makes it anew."""

        async def work() -> None:
            bus = await self._connected(site)
            try:
                await bus.topics.delete(topic, force=True)
            except BusError:
                pass  # it was not there, or is being deleted already
            await bus.close()

        process = VirtualProcess(f"operator of {site.name}")
        self.wires.place(process, site.host)
        self._started.append(self.loop.start(process, work()))

    def _on_drop(self, site: Station, writes: Sequence[Write]) -> None:
        """Logs are being deleted: what they hold and no other terminal has may be lost."""
        disk, chronicle = Disk(site.store), self.chronicle
        logs = {write.log for write in writes if isinstance(write, DropLog)}
        for write in writes:
            if isinstance(write, Append) and write.log in logs:
                disk.append(write)
        for topic, log in disk.logs.items():
            if log not in logs or topic not in self.topics:
                continue
            chronicle.counts["lives of topics"] += 1
            for value in disk.published(topic):
                chronicle.life[value] = chronicle.counts["lives of topics"]
            for payload, audience, _ in disk.held[topic]:
                value = payload.decode()
                chronicle.again.add((site.name, value))
                chronicle.forgiven |= {
                    (group, value)
                    for group in self.topics[topic]
                    if (audience is None or group in audience) and disk.holds(topic, payload, group)
                }
            chronicle.shaken |= {group for group in self.topics[topic] if site.name in self.groups[group]}

    def copy(self, site: Station) -> Backup:
        arrived = {key: len(values) for key, values in self.chronicle.arrived.items() if key[0] == site.name}
        return Backup(site.store.copy(), arrived)

    def restore(self, site: Station, backup: Backup) -> None:
        """Put a copy of an earlier moment in the place of a terminal's store, and start it. What was
        published here since may be gone, and acks given here since. Nothing else is."""
        self.crash(site)
        chronicle, before = self.chronicle, Disk(site.store)
        site.store = backup.store
        after = Disk(site.store)
        for topic, groups in self.topics.items():
            kept = set(after.published(topic))
            gone = [value for value in before.published(topic) if value not in kept]
            chronicle.forgiven |= {(group, value) for group in groups for value in gone}
            known = after.arrived(topic)
            owed = {
                (group, value)
                for value, audience in before.arrived(topic).items()
                for group in audience
                if group not in known.get(value, ())
            }
            chronicle.owed |= owed
            chronicle.late |= {(site.name, value) for _, value in owed}
        for key, values in chronicle.arrived.items():
            if key[0] == site.name:
                del values[backup.arrived.get(key, 0) :]
        self.start(site)

    # -- topics, producers, consumers --------------------------------------------------------------

    def add_topic(self, name: str, groups: dict[str, list[Station]]) -> None:
        self.topics[name] = list(groups)
        for group, members in groups.items():
            self.set_group(group, members)
        self.office.add_topic(name, list(groups))

    def set_group(self, group: str, members: list[Station]) -> None:
        names = [site.name for site in members]
        if len(names) > 1 or self.groups.get(group, names) != names:
            self.moved.add(group)
        self.groups[group] = names
        self.office.set_group(group, [site.id for site in members])

    def add_group(self, topic: str, group: str, members: list[Station]) -> None:
        """Add a group to a topic that is in use. It gets what is published as soon as the terminal of the
        publisher has heard of it; what was published before may reach it."""
        self.added.add(group)
        self.topics[topic].append(group)
        self.set_group(group, members)
        self.office.add_group(topic, group)
        known = [value for value, (name, _) in self.chronicle.published.items() if name == topic]
        self.chronicle.forgiven |= {(group, value) for value in known}

    def _unheard_of(self, topic: str, site: Station) -> Iterator[str]:
        """The added groups of a topic that a terminal has not heard of."""
        entry = site.network.topics.get(topic) if site.network is not None else None
        for group in self.topics[topic]:
            if group in self.added and (entry is None or group not in entry.groups):
                yield group

    def _bus(self, site: Station) -> Bus:
        async def dial(factory: Callable[[], asyncio.Protocol]) -> Any:
            try:
                async with asyncio.timeout(10):
                    return await self.loop.create_connection(factory, site.host, PORT)
            except (TimeoutError, OSError) as error:
                raise TerminalUnreachable(str(error)) from None

        def token() -> str:
            if site.terminal is None:
                raise TerminalUnreachable("not up yet")
            return site.terminal.issue_token("client", ["admin"], 1e7)

        return Bus(dial, token, patience=1e6)

    async def _connected(self, site: Station) -> Bus:
        while True:
            bus = self._bus(site)
            try:
                return await bus.open()
            except BusError:
                await asyncio.sleep(0.5)

    def _begin(
        self, name: str, site: Station, work: Callable[[], Awaitable[None]], group: str = ""
    ) -> Program:
        process = VirtualProcess(name)
        self.wires.place(process, site.host)
        client = self.clients[name] = Program(name, site, work, process, group)

        async def run() -> None:
            await work()

        self._started.append(self.loop.start(process, run()))
        return client

    def restart(self, client: Program) -> None:
        """Its process is killed, and another one takes its place."""
        if not client.process.alive:
            return
        self.wires.kill(client.process)
        if client.group:
            self.chronicle.shaken.add(client.group)
            self._begin(client.name, client.site, client.work, client.group)

    def add_producer(self, name: str, site: Station, topic: str, count: int, pause: float) -> None:
        chronicle, chance = self.chronicle, random.Random(self.chance.random())
        self.senders.add((topic, site.name))

        async def send(bus: Bus, value: str) -> None:
            chronicle.published[value] = (topic, site.name)
            chronicle.forgiven |= {(group, value) for group in self._unheard_of(topic, site)}
            await bus.publish(topic, value)
            chronicle.stored.add(value)

        async def work() -> None:
            bus = await self._connected(site)
            number = 0
            while number < count:
                burst = min(chance.choice((1, 1, 2, 5)), count - number)
                await asyncio.gather(*(send(bus, f"{name}:{number + index}") for index in range(burst)))
                number += burst
                if chance.random() < GOODBYE:
                    await bus.close()
                    bus = await self._connected(site)
                await asyncio.sleep(chance.expovariate(1 / pause))
            await bus.close()

        self._begin(name, site, work)

    def add_consumer(self, name: str, site: Station, topic: str, group: str) -> None:
        chronicle, chance = self.chronicle, random.Random(self.chance.random())
        slowness = chance.choice((0.0, 0.05, 0.5, 2.0))

        async def work() -> None:
            while True:
                bus = await self._connected(site)
                try:
                    async for message in bus.subscribe(topic, group=group, prefetch=8):
                        value = bytes(message.payload).decode()
                        chronicle.see(group, value)
                        await asyncio.sleep(chance.uniform(0, slowness))
                        chronicle.acked.add((group, value))
                        await message.ack()
                except BusError:
                    await asyncio.sleep(1.0)  # no longer a terminal of the group; perhaps again later

        self._begin(name, site, work, group)

    # -- looking -----------------------------------------------------------------------------------

    def linked(self) -> bool:
        """Does every terminal know a path to every other one?"""
        networks = [site.network for site in self.sites.values() if not site.revoked]
        return all(
            one is not None and other is not None and (one is other or one.routes.best(other.me) is not None)
            for one in networks
            for other in networks
        )

    def look_at_custody(self, when: str) -> None:
        """Is everything that nobody has acked on a disk, for those who are still to get it?"""
        self.chronicle.counts["looks at custody"] += 1
        disks = [Disk(site.store) for site in self.sites.values()]
        excused = self.chronicle.acked | self.chronicle.forgiven | self.chronicle.owed | self._unheld
        for value in sorted(self.chronicle.stored):
            topic, _ = self.chronicle.published[value]
            for group in self.topics[topic]:
                if (group, value) in excused:
                    continue
                if not any(disk.holds(topic, value.encode(), group) for disk in disks):
                    self.chronicle.find("custody", f"{when}: nobody has {value} for {group}")
                    self._unheld.add((group, value))

    def missing(self) -> list[tuple[str, str]]:
        """Promises not kept. What is at a revoked terminal stays there."""
        revoked = [site for site in self.sites.values() if site.revoked]
        found = self.chronicle.missing(self.topics, {site.name for site in revoked})
        if found and revoked:
            disks = [Disk(site.store) for site in revoked]
            topics = {value: self.chronicle.published[value][0] for _, value in found}
            found = [
                (group, value)
                for group, value in found
                if not any(disk.holds(topics[value], value.encode(), group) for disk in disks)
            ]
        return found

    def under_way(self) -> list[str]:
        """What is not at rest yet, at terminals that are part of the bus."""
        found = []
        for site in self.sites.values():
            if site.revoked:
                continue
            if site.network is None:
                found.append(f"{site.name} is down")
                continue
            transits, waiting = site.network.carrier.transits, site.network.arrivals.table.on_shelf
            if transits or waiting:
                found.append(f"{site.name} has {len(transits)} parcels in transit and {waiting} sealed")
            for (topic, destination), lane in site.network.forwarder.lanes.items():
                revoked = any(other.id == destination and other.revoked for other in self.sites.values())
                if not revoked and (lane.outbound.shipments or lane.queue):
                    found.append(
                        f"{site.name} has {len(lane.outbound.shipments)} shipments and {len(lane.queue)} "
                        f"pieces of {topic} for {destination}, waiting for {lane.waits_for or 'arrival'}"
                    )
        return found

    def on_shelves(self) -> list[str]:
        return [
            f"{site.name} has {shelves} on its disk"
            for site in self.sites.values()
            if not site.revoked and (shelves := Disk(site.store).on_shelves())
        ]

    async def drained(self, published: int = 0) -> None:
        """Until so many messages were published and everything is where it belongs."""
        while len(self.chronicle.stored) < published:
            await asyncio.sleep(0.1)
        end = self.loop.time() + DRAIN_WITHIN
        while self.missing() or self.under_way() or self.on_shelves():
            if self.loop.time() > end:
                for group, value in self.missing():
                    self.chronicle.find(
                        "delivered", f"{value} of {self.chronicle.published[value]} not to {group}"
                    )
                for what in self.under_way() + self.on_shelves():
                    self.chronicle.find("delivered", what)
                return
            await asyncio.sleep(1.0)

    def judge(self) -> None:
        for site in self.sites.values():
            self._count(site)
            disk = Disk(site.store)
            for topic in self.topics:
                doubled = sorted(v for v, count in Counter(disk.published(topic)).items() if count > 1)
                if doubled:
                    self.chronicle.find("stored once", f"{topic} at {site.name}: {doubled}")
        self.chronicle.judge_arrivals(self.moved)


@contextmanager
def quiet(findings: list[str]) -> Iterator[None]:
    """Terminals in trouble say so all the time; only what should never be said is kept."""

    def keep(_: Any, __: str, event: Any) -> Any:
        if event.get("event") != "the registry refuses":  # to a revoked one it does
            findings.append(f"logged: {event}")
        raise structlog.DropEvent

    before = structlog.get_config()
    client = logging.getLogger("landbridge.client")
    level, state = client.level, random.getstate()
    client.setLevel(logging.CRITICAL)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        processors=[structlog.processors.format_exc_info, keep],
    )
    try:
        yield
    finally:
        structlog.configure(**before)
        client.setLevel(level)
        random.setstate(state)
