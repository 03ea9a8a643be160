"""Messages that cross terminals while terminals die and lines fail: nothing is lost, nothing comes twice, and
the order of each producer is kept.

    left ── c ── right        c is near: it carries everything while all is well
      └─ a ── b ──┘           the group billing is at right, the group archive at b
              └── c
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from landbridge.errors import LeaseLost
from landbridge.testing.wan import Line
from tests.system.fleet_process import FleetProcess, Member, stored
from tests.system.history import Deliveries, History, duplicated, out_of_order
from tests.waiting import LIMIT, promised

#: Messages that the producers may be ahead of the slower group. Few: a consumer with a backlog of its own
#: would make every reroute look slow.
AHEAD = 300
#: Seconds from a fault to the arrival of a message that was sent after it: promised.
AFTER_BLACK_HOLE, AFTER_RESET = 10.0, 2.0
#: Seconds that everything may take to run again, and a backlog to drain. No promise: a test must end.
WITHIN = 60.0
#: Pairs of faults in the long run.
PAIRS = 12


class Load:
    """Producers at left, a consumer of each group, and what they saw."""

    def __init__(self, origin: Member, dice: random.Random) -> None:
        self.origin = origin
        self.dice = dice
        self.history = History()
        self.groups: dict[str, Deliveries] = {"billing": Deliveries(), "archive": Deliveries()}
        #: What a group has seen, to look things up.
        self.seen: dict[str, set[str]] = {name: set() for name in self.groups}
        self.stopping = asyncio.Event()

    async def pipelined(self, name: str) -> None:
        async with self.origin.connect(name) as bus:
            out, waiting = bus.publisher("orders"), []
            while not self.stopping.is_set():
                for _ in range(self.dice.randint(1, 20)):
                    waiting.append(self.history.new(name))
                    await out.send(waiting[-1])
                await self._pace()
                if self.dice.random() < 0.5:
                    await out.flush()
                    self.history.stored(waiting)
                    waiting.clear()
            await out.flush()
            self.history.stored(waiting)

    async def by_request(self, name: str) -> None:
        async with self.origin.connect(name) as bus:
            while not self.stopping.is_set():
                value = self.history.new(name)
                await bus.publish("orders", value)
                self.history.stored([value])
                await self._pace()

    async def _pace(self) -> None:
        await asyncio.sleep(self.dice.uniform(0, 0.02))
        while not self.stopping.is_set() and len(self.history.sent) > AHEAD + min(
            len(seen) for seen in self.seen.values()
        ):
            await asyncio.sleep(0.01)

    async def consume(self, member: Member, group: str) -> None:
        deliveries, seen = self.groups[group], self.seen[group]
        async with member.connect(group) as bus:
            async for batch in bus.subscribe("orders", group=group, prefetch=200).batches():
                values = [payload.decode() for payload in batch.payloads]
                deliveries.delivered(values)
                seen.update(values)
                try:
                    await batch.ack(wait=True)
                    deliveries.confirmed(values)
                except LeaseLost:
                    pass

    async def crossed(self, sent: int) -> None:
        """Until both groups have got something that was sent after the first ``sent`` values."""
        missing = dict(self.seen)
        async with asyncio.timeout(WITHIN):
            while missing:
                news = self.history.sent[sent:]
                missing = {name: seen for name, seen in missing.items() if seen.isdisjoint(news)}
                await asyncio.sleep(0.005)

    async def drained(self) -> None:
        """Until both groups have everything that was acked. As long as it makes progress it may take its
        time."""
        time = asyncio.get_running_loop().time
        before, since = -1, time()
        while left := sum(len(self.history.acked - seen) for seen in self.seen.values()):
            if left != before:
                before, since = left, time()
            assert time() < since + WITHIN, f"{left} messages don't come"
            await asyncio.sleep(0.05)


class Scene:
    """The fleet, its load, and the faults."""

    def __init__(self, fleet: FleetProcess, load: Load) -> None:
        self.fleet = fleet
        self.load = load
        #: What each fault took, in seconds to the next arrival.
        self.took: list[tuple[str, float]] = []

    def __getitem__(self, name: str) -> Member:
        return self.fleet.members[name]

    async def route(self) -> list[str]:
        """The way from left to right at present."""
        shown = await self["left"].ask("route.show", there="right")
        hops: list[str] = shown["current"]["hops"]
        print(" › ".join(hops), end="; ")
        return hops

    async def first_line(self) -> Line:
        """The line over which messages leave at present."""
        return self["left"].lines[(await self.route())[1]]

    async def last_line(self) -> Line:
        """The line over which they come in."""
        return self["right"].lines[(await self.route())[-2]]

    async def after(self, fault: str, do: Callable[[], object]) -> float:
        """Seconds from the fault to the arrival of what was sent after it."""
        time = asyncio.get_running_loop().time
        sent, begin = len(self.load.history.sent), time()
        done = do()
        if isinstance(done, Coroutine):
            await done
        await self.load.crossed(sent)
        took = time() - begin
        self.took.append((fault, took))
        print(f"{fault}: {took:.2f} s to the next arrival")
        return took

    async def mended(self) -> None:
        """Until every link is up and messages cross. The next fault is to hit a whole fleet."""
        wanted = {
            frozenset((name, there)) for name, member in self.fleet.members.items() for there in member.lines
        }
        async with asyncio.timeout(WITHIN):
            while True:
                shown = await self["left"].ask("topology.show")
                up = {frozenset((link["from"], link["to"])) for link in shown["links"] if link["up"]}
                if wanted <= up:
                    break
                await asyncio.sleep(0.1)
        await self.load.crossed(len(self.load.history.sent))

    # -- faults ------------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        process = self.fleet.registry if name == "registry" else self[name].process

        async def kill_and_start() -> None:
            await process.kill()
            await process.start()

        await self.after(f"kill -9 {name}", kill_and_start)

    async def reset(self) -> None:
        await self._spoiled("reset", self.first_line, Line.cut, AFTER_RESET)

    async def black_hole(self) -> None:
        await self._spoiled("black hole", self.last_line, Line.black_hole, AFTER_BLACK_HOLE)

    async def one_way(self) -> None:
        await self._spoiled(
            "one way lost", self.first_line, lambda line: line.silence("forth"), AFTER_BLACK_HOLE
        )

    async def _spoiled(
        self, what: str, which: Callable[[], Awaitable[Line]], spoil: Callable[[Line], None], within: float
    ) -> None:
        async def once() -> float:
            line = await which()
            took = await self.after(what, lambda: spoil(line))
            line.heal()
            return took

        await promised(once, within, self.mended)

    async def flap(self) -> None:
        line = await self.first_line()

        async def up_and_down() -> None:
            for _ in range(5):
                line.cut()
                await asyncio.sleep(self.load.dice.uniform(0.05, 0.3))
                line.heal()
                await asyncio.sleep(self.load.dice.uniform(0.05, 0.5))

        await self.after("flapping", up_and_down)

    # -- the end -----------------------------------------------------------------------------------

    async def check(self) -> None:
        for member in self.fleet.members.values():
            await member.kill()
        history = self.load.history
        for group, place in (("billing", "right"), ("archive", "b")):
            log = stored(self[place].database, "orders")
            deliveries = self.load.groups[group]
            again = len(deliveries.values) - len(set(deliveries.values))
            print(
                f"{group}: sent {len(history.sent)}, acked {len(history.acked)}, found {len(log)}, "
                f"recovered {len(history.recovered(log))}, delivered again {again}"
            )
            assert history.lost(log) == []
            assert duplicated(log) == []
            assert history.unexpected(log) == []
            assert out_of_order(log) == []
            assert history.lost(deliveries.values) == []
            assert deliveries.wrong == []
            assert out_of_order(dict.fromkeys(deliveries.values)) == []
        # The run was one: it had something to lose.
        assert len(history.acked) > 1000


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    seed = int(os.environ.get("LANDBRIDGE_SEED") or random.randrange(1 << 32))
    print(f"LANDBRIDGE_SEED={seed}")
    async with FleetProcess(folder) as fleet:
        c = await fleet.add("c")
        b = await fleet.add("b", dials={"c": 0.002})
        await fleet.add("a", dials={"b": 0.015})
        left = await fleet.add("left", "client", dials={"c": 0.002, "a": 0.015})
        right = await fleet.add("right", "client", dials={"c": 0.002, "b": 0.015})
        await fleet.topic("orders", billing=[right], archive=[b])
        await fleet.linked(left, right, b, c)
        load = Load(left, random.Random(seed))
        made = Scene(fleet, load)
        producers = [load.pipelined("pipe"), load.by_request("request-a"), load.by_request("request-b")]
        consumers = [load.consume(right, "billing"), load.consume(b, "archive")]
        async with asyncio.TaskGroup() as everybody:  # one that fails ends the run
            producing = [everybody.create_task(work) for work in producers]
            consuming = [everybody.create_task(work) for work in consumers]
            await made.mended()
            yield made
            load.stopping.set()
            await asyncio.wait(producing, timeout=LIMIT)
            await load.drained()
            for task in consuming:
                task.cancel()
        await made.check()


def faults(made: Scene) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    def kill(name: str) -> Callable[[], Coroutine[Any, Any, None]]:
        return lambda: made.kill(name)

    return [
        kill("left"),
        kill("c"),
        kill("right"),
        kill("b"),
        kill("registry"),
        made.reset,
        made.black_hole,
        made.one_way,
        made.flap,
    ]


async def test_nothing_is_lost_or_doubled_when_terminals_die_and_lines_fail(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        order = faults(made)
        made.load.dice.shuffle(order)
        for fault in order:
            await fault()
            await made.mended()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_pairs_of_faults(tmp_path: Path) -> None:
    """The worst losses came from pairs of faults: one hits while another is being mended."""
    async with scene(tmp_path) as made:
        load = made.load
        for _ in range(PAIRS):
            victim, other = load.dice.sample(["left", "c", "right", "b", "registry"], 2)
            line = load.dice.choice([await made.first_line(), await made.last_line()])
            spoil = load.dice.choice([line.black_hole, line.cut, partial(line.silence, "forth")])

            async def pair(victim: str = victim, other: str = other, spoil: Any = spoil) -> None:
                spoil()
                await asyncio.sleep(load.dice.uniform(0, 1))
                for name in (victim, other):
                    process = made.fleet.registry if name == "registry" else made[name].process
                    await process.kill()
                    await asyncio.sleep(load.dice.uniform(0, 1))
                    await process.start()

            sent = len(load.history.sent)
            await pair()
            line.heal()
            await load.crossed(sent)
            await made.mended()
