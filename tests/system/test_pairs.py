"""Transactions that ack messages of two topics, which different nodes own mostly: every message is in one
pair, whatever happens to the nodes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from landbridge.errors import LeaseLost
from tests.servers import server_folder
from tests.system.nodes import FAULTS, Fleet, fleet_of, killed, paused
from tests.system.test_promise import new_seed, read_all
from tests.system.test_stores import ENGINES, findings
from tests.waiting import LIMIT, until

UNITS = 8
PAIRS = 4
SIDES = ("left", "right")
#: Times that each of the faults happens, and transactions that have to go through between two of them.
ROUNDS, BETWEEN = 4, 25


class Pairing:
    """Producers of two sides, and who makes pairs of what comes."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.sent: Counter[str] = Counter()
        self.stopping = asyncio.Event()
        self.made = self.lost_leases = 0

    async def publish(self, side: str, number: int) -> None:
        topic = f"{side}.{number}"
        async with self.fleet.connect(topic) as bus:
            while not self.stopping.is_set():
                await bus.publish(topic, f"{topic}/{self.sent[topic]}")
                self.sent[topic] += 1
                while self.sent[topic] > self.made // PAIRS + 50 and not self.stopping.is_set():
                    await asyncio.sleep(0.005)

    async def join(self, number: int) -> None:
        async with (
            self.fleet.connect(f"join.{number}") as bus,
            bus.subscribe(f"left.{number}", group="g", prefetch=20) as left,
            bus.subscribe(f"right.{number}", group="g", prefetch=20) as right,
        ):
            one = other = None
            while True:
                one, other = one or await left.poll(timeout=1), other or await right.poll(timeout=1)
                if one is None or other is None:
                    continue
                try:
                    async with bus.transaction() as transaction:
                        await transaction.ack(one)
                        await transaction.ack(other)
                        await transaction.publish(f"pairs.{number}", f"{one.text()} {other.text()}")
                    self.made += 1
                except LeaseLost:
                    self.lost_leases += 1
                    # One of them may still be held.
                    given_back = one.requeue(0), other.requeue(0)
                    await asyncio.gather(*given_back, return_exceptions=True)
                one = other = None

    async def floor(self, bus: Any, topic: str) -> int:
        return int((await bus.call("group.show", topic=topic, name="g"))["floor"])


async def pair_through(fleet: Fleet, faults: list[Any], seed: int) -> None:
    rng = random.Random(seed)
    pairing = Pairing(fleet)
    async with fleet.connect("setup") as bus:
        for number in range(PAIRS):
            for side in SIDES:
                await bus.groups.create(f"{side}.{number}", "g", max_attempts=1000)
            await bus.topics.create(f"pairs.{number}")
    producers = [
        asyncio.ensure_future(pairing.publish(side, number)) for side in SIDES for number in range(PAIRS)
    ]
    joiners = [asyncio.ensure_future(pairing.join(number)) for number in range(PAIRS)]
    for fault in faults:
        made = pairing.made
        async with asyncio.timeout(LIMIT):
            while pairing.made < made + BETWEEN:
                assert not any(task.done() for task in (*producers, *joiners)), (producers, joiners)
                await asyncio.sleep(0.005)
        await asyncio.sleep(rng.expovariate(1 / 0.05))
        print(f"{fault.__name__}: {pairing.made} pairs, leases lost {pairing.lost_leases}", flush=True)
        await fault(fleet, rng)
    pairing.stopping.set()
    await asyncio.gather(*producers)
    async with fleet.connect("check") as bus:
        for number in range(PAIRS):
            # As many of one side as of the other make pairs; the rest of the longer one waits.
            least = min(pairing.sent[f"{side}.{number}"] for side in SIDES)

            async def is_done(number: int = number, least: int = least) -> bool:
                shown = [await bus.call("topic.show", name=f"pairs.{number}")]
                return bool(shown[0]["end"] >= least)

            await until(is_done)
        for joiner in joiners:
            assert not joiner.done(), joiner
            joiner.cancel()
        await asyncio.gather(*joiners, return_exceptions=True)
        for number in range(PAIRS):
            found = [value.split() for _, value in await read_all(bus, f"pairs.{number}")]
            for place, side in enumerate(SIDES):
                topic = f"{side}.{number}"
                values = Counter(pair[place] for pair in found)
                assert [value for value, times in values.items() if times > 1] == []
                assert set(values) <= {f"{topic}/{n}" for n in range(pairing.sent[topic] + 1)}
            least = min(pairing.sent[f"{side}.{number}"] for side in SIDES)
            assert len(found) in (least, least + 1)  # one may be stored whose answer was lost
    print(f"made {pairing.made} pairs, leases lost {pairing.lost_leases}")


@pytest.fixture(params=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Any:
    with server_folder() as folder:
        started = ENGINES[request.param](folder / "server").start()
        yield started
        started.kill()


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_messages_of_two_nodes_are_in_one_pair_whatever_happens_to_the_nodes(
    server: Any, tmp_path: Path
) -> None:
    url, seed = server.url("bus", units=UNITS), new_seed()
    faults = [*FAULTS, killed, paused] * ROUNDS
    random.Random(seed).shuffle(faults)
    async with fleet_of(url, tmp_path, 3, "--no-registry", servers=[server.port]) as fleet:
        await pair_through(fleet, faults, seed)
    assert await findings(url) == []
