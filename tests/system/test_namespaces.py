"""Terminals in networks of their own, TLS between them, and a router that loses, drops and resets packets
while processes die: nothing is lost, nothing comes twice, and the order of each producer is kept.

    left ──┬── a ──┬── right        the servers also link to each other
           ├── b ──┤
           └── c ──┘

test_crossing_faults does the same over loopback, where lines can also be slow.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.system.fleet_process import stored
from tests.system.history import Deliveries, History, duplicated, out_of_order
from tests.system.namespace_fleet import PORT, Declined, NamespaceFleet, Program
from tests.system.namespaces import DROP, RESET, Namespaces, Way, both, loss
from tests.waiting import promised

#: Seconds from a fault to the arrival of a message that was sent after it: promised.
AFTER_BLACK_HOLE, AFTER_RESET = 10.0, 2.0
#: Seconds that everything may take to run again, and a backlog to drain. No promise: a test must end.
WITHIN = 60.0
#: Messages that the consumer may be behind when a fault comes. More, and its own backlog is what is measured.
BEHIND = 100
#: Seconds that a fault lasts which doesn't stop messages at once; and how much is lost in bad weather.
BAD_FOR, BAD_PERCENT = 4.0, 20
#: Faults in the long run.
FAULTS = 20

Fault: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Scene:
    """The fleet, its load, and the faults."""

    def __init__(self, fleet: NamespaceFleet, dice: random.Random) -> None:
        self.fleet = fleet
        self.network = fleet.network
        self.dice = dice
        self.history = History()
        self.deliveries = Deliveries()
        #: Producer → the number of the last value that has arrived of it; none: nothing has.
        self.last: dict[str, int] = {}
        self.publisher: Program
        self.consumer: Program

    def heard(self, line: dict[str, Any]) -> None:
        """From the programs."""
        match line:
            case {"sent": value}:
                self.history.sent.append(value)
            case {"acked": values}:
                self.history.stored(values)
            case {"delivered": values}:
                self.deliveries.delivered(values)
                for value in values:
                    producer, _, number = value.rpartition(":")
                    self.last[producer] = max(int(number), self.last.get(producer, -1))
            case {"confirmed": values}:
                self.deliveries.confirmed(values)

    async def ask(self, op: str, **arguments: Any) -> Any:
        """Of the terminal left."""
        return await self.publisher.ask("call", op=op, **arguments)

    async def route(self) -> list[str]:
        """The way from left to right at present."""
        shown = await self.ask("route.show", there="right")
        hops: list[str] = shown["current"]["hops"]
        print(" › ".join(hops), end="; ")
        return hops

    async def arrived(self, sent: dict[str, int]) -> None:
        """Until something has arrived that a producer sent after it had sent so many."""
        async with asyncio.timeout(WITHIN):
            while all(self.last.get(producer, -1) < count for producer, count in sent.items()):
                await asyncio.sleep(0.005)

    async def after(self, fault: str, do: Callable[[], Awaitable[None] | None]) -> float:
        """Seconds from the fault to the arrival of what was sent when it was there."""
        time = asyncio.get_running_loop().time
        begin = time()
        done = do()
        if done is not None:
            await done
        await self.arrived(await self.publisher.ask("mark"))
        took = time() - begin
        print(f"{fault}: {took:.2f} s to the next arrival")
        return took

    async def ready(self) -> None:
        """Until messages cross, none waits, and left knows two servers by which they can: the next fault
        takes one. What the last one took may still be away."""
        begin = asyncio.get_running_loop().time()
        async with asyncio.timeout(WITHIN):
            while len(await self._ways()) < 2:
                await asyncio.sleep(0.1)
            await self.arrived(await self.publisher.ask("mark"))
            while len(self.history.sent) > BEHIND + len(self.deliveries.values):
                await asyncio.sleep(0.01)
        print(f"ready after {asyncio.get_running_loop().time() - begin:.2f} s")

    async def _ways(self) -> list[str]:
        """The servers that are linked to both left and right."""
        try:
            shown = await self.ask("topology.show")
            if (await self.ask("route.show", there="right"))["current"] is None:
                return []
        except Declined:  # it has no directory yet
            return []
        up = {frozenset((link["from"], link["to"])) for link in shown["links"] if link["up"]}
        return [
            name for name in self.fleet.servers if {frozenset((name, c)) for c in ("left", "right")} <= up
        ]

    # -- faults ------------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        process = self.fleet.processes[name]

        async def kill_and_start() -> None:
            await process.kill()
            await process.start()

        await self.after(f"kill -9 {name}", kill_and_start)

    async def kill_transit(self) -> None:
        """The server that messages pass. It stays away until they pass another."""
        process = self.fleet.processes[(await self.route())[1]]
        await self.after("kill -9 of the transit", process.kill)
        await process.start()

    async def reset(self) -> None:
        await self._spoiled("reset", RESET, lambda hops: both(*hops[:2]), AFTER_RESET)

    async def black_hole(self) -> None:
        await self._spoiled("black hole", DROP, lambda hops: both(*hops[-2:]), AFTER_BLACK_HOLE)

    async def one_way(self) -> None:
        await self._spoiled("one way lost", DROP, lambda hops: [(hops[0], hops[1])], AFTER_BLACK_HOLE)

    async def way_back(self) -> None:
        """Messages get through, until the sender's window is full of what nobody confirms."""

        async def once() -> float:
            here, there, *_ = await self.route()
            self.network.spoil(DROP, (there, here))
            await asyncio.sleep(BAD_FOR)
            took = await self.after("the way back lost", lambda: None)
            assert self.network.heal() > 0
            return took

        await promised(once, AFTER_BLACK_HOLE, self.ready)

    async def _spoiled(
        self, what: str, fault: str, ways: Callable[[list[str]], Iterable[Way]], within: float
    ) -> None:
        """``ways``: which ones to spoil, by the hops of the route at that moment."""

        async def once() -> float:
            chosen = ways(await self.route())
            took = await self.after(what, lambda: self.network.spoil(fault, *chosen))
            assert self.network.heal() > 0
            return took

        await promised(once, within, self.ready)

    async def bad_weather(self) -> None:
        """Every line loses packets, also those to the registry."""
        self.network.spoil(loss(BAD_PERCENT), *self.network.ways())
        await asyncio.sleep(BAD_FOR)
        await self.after(f"{BAD_PERCENT} % lost", lambda: None)
        assert self.network.heal() > 0

    async def flap(self) -> None:
        line = both(*(await self.route())[:2])
        hit = 0
        for _ in range(5):
            self.network.spoil(self.dice.choice([RESET, DROP]), *line)
            await asyncio.sleep(self.dice.uniform(0.05, 0.5))
            hit += self.network.heal()
            await asyncio.sleep(self.dice.uniform(0.05, 0.5))
        assert hit > 0
        await self.after("flapping", lambda: None)

    # -- the end -----------------------------------------------------------------------------------

    async def drained(self) -> None:
        """Until everything that was acked has arrived. As long as it makes progress it may take its time."""
        time = asyncio.get_running_loop().time
        before, since = -1, time()
        while left := len(self.history.acked.difference(self.deliveries.values)):
            if left != before:
                before, since = left, time()
            assert time() < since + WITHIN, f"{left} messages don't come"
            await asyncio.sleep(0.05)

    async def check(self) -> None:
        await self.fleet.kill()
        history, delivered = self.history, self.deliveries.values
        log = stored(self.fleet.database("right"), self.fleet.topic)
        print(
            f"sent {len(history.sent)}, acked {len(history.acked)}, found {len(log)}, "
            f"delivered again {len(delivered) - len(set(delivered))}"
        )
        assert history.lost(log) == []
        assert duplicated(log) == []
        assert history.unexpected(log) == []
        assert out_of_order(log) == []
        assert history.lost(delivered) == []
        assert self.deliveries.wrong == []
        assert out_of_order(dict.fromkeys(delivered)) == []
        # The run was one: it had something to lose.
        assert len(history.acked) > 1000


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    seed = int(os.environ.get("LANDBRIDGE_SEED") or random.randrange(1 << 32))
    print(f"LANDBRIDGE_SEED={seed}")
    async with NamespaceFleet(folder, *"abc", topic="orders", group="billing") as fleet:
        made = Scene(fleet, random.Random(seed))
        made.consumer = await fleet.program("right", "consume", "billing", made.heard)
        made.publisher = await fleet.program("left", "publish", seed, made.heard)
        await made.ready()  # without it there is nothing to look at either
        yield made
        await made.publisher.ask("stop")
        await made.drained()
        await made.consumer.close()
        await made.publisher.close()
        await made.check()


def test_a_network_is_gone_after_a_failure() -> None:
    network = Namespaces("here", "there")
    with pytest.raises(ZeroDivisionError), network:
        names = [network.command(place)[-1] for place in ("router", "here", "there")]
        assert {*names} <= _namespaces()
        raise ZeroDivisionError
    assert not {*names} & _namespaces()


def _namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


async def test_nothing_is_lost_or_doubled_on_a_bad_network(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        fleet = made.fleet
        for server in fleet.servers:
            # What is dialled is TLS, and by the registry's authority: the certificate names its terminal.
            shown = await made.publisher.ask(
                "certificate",
                host=fleet.network.address(server),
                port=PORT,
                ca=str(fleet.folder / "left" / "tls" / "ca.pem"),
            )
            assert shown == [f"landbridge://{fleet.customer}/{fleet.ids[server]}"]
        order: list[Fault] = [
            made.bad_weather,
            made.one_way,
            made.black_hole,
            made.reset,
            made.kill_transit,
            lambda: made.kill("registry"),
        ]
        made.dice.shuffle(order)
        for fault in order:
            await made.ready()
            await fault()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_nothing_is_lost_or_doubled_when_faults_go_on(tmp_path: Path) -> None:
    """Lines that flap, too, and kills of the origin and the destination."""
    async with scene(tmp_path) as made:
        faults: list[Fault] = [
            made.bad_weather,
            made.one_way,
            made.way_back,
            made.black_hole,
            made.reset,
            made.flap,
            made.kill_transit,
            *(lambda name=name: made.kill(name) for name in ("left", "right", "registry")),
        ]
        # Each of them once, the rest by chance.
        order = [*faults, *made.dice.choices(faults, k=FAULTS - len(faults))]
        made.dice.shuffle(order)
        for fault in order:
            await made.ready()
            await fault()
