"""Several nodes of one terminal, on real servers: what was acked is there, once and in order, whatever
happens to a node, to the server, or between them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.servers import server_folder
from tests.stores.test_replicas import Cluster
from tests.system.nodes import (
    FAULTS,
    Fault,
    Fleet,
    drained,
    fleet_of,
    killed,
    parted,
    paused,
    restarted,
    suffer,
)
from tests.system.test_promise import new_seed
from tests.system.test_stores import ENGINES, OnePrimary, findings

UNITS = 8
#: Of each kind, in the slow test.
ROUNDS = 5


def again(server: Any) -> Fault:
    """The server is killed and started again."""

    async def server_killed(fleet: Fleet, rng: random.Random) -> None:
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(rng.uniform(0, 3.0))
        await asyncio.to_thread(server.start)

    return server_killed


@pytest.fixture(params=ENGINES)
def server(request: pytest.FixtureRequest) -> Any:
    with server_folder() as folder:
        started = ENGINES[request.param](folder / "server").start()
        yield started
        started.kill()


async def test_a_node_is_killed_another_paused_and_a_third_drained_and_nothing_is_lost_or_doubled(
    server: Any, tmp_path: Path
) -> None:
    url = server.url("bus", units=UNITS)
    async with fleet_of(url, tmp_path, 3, "--no-registry") as fleet:
        await suffer(fleet, [killed, paused, drained], new_seed())
    assert await findings(url) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_many_faults_lose_and_double_nothing(server: Any, tmp_path: Path) -> None:
    url = server.url("bus", units=UNITS)
    seed = new_seed()
    faults = [*FAULTS, again(server)] * ROUNDS
    random.Random(seed).shuffle(faults)
    async with fleet_of(url, tmp_path, 3, "--no-registry") as fleet:
        await suffer(fleet, faults, seed)
        logs = "".join(node.log() for node in fleet.nodes)
    assert "the lease is over" in logs
    assert await findings(url) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_faults_of_nodes_and_of_a_cluster_lose_and_double_nothing(tmp_path: Path) -> None:
    """Three primaries with a replica each."""
    with server_folder() as folder:
        cluster = Cluster(folder)
        try:
            await asyncio.to_thread(cluster.start)
            url = cluster.url("bus", UNITS)
            async with fleet_of(url, tmp_path, 3, "--no-registry") as fleet:
                primary = again(OnePrimary(cluster))
                await suffer(fleet, [primary, killed, primary, paused, parted, restarted], new_seed())
            assert await findings(url) == []
        finally:
            cluster.kill()
