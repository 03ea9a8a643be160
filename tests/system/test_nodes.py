"""Several nodes of one terminal, on real servers: what was acked is there, once and in order, whatever
happens to a node, to the server, or between them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.proxy import Proxy
from tests.servers import Valkey, server_folder
from tests.stores.test_replicas import Cluster, online, soon
from tests.system.history import History, duplicated
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
from tests.system.test_promise import new_seed, read_all
from tests.system.test_stores import ENGINES, OnePrimary, findings
from tests.waiting import eventually

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
async def test_a_server_is_killed_again_and_again_under_its_nodes(server: Any, tmp_path: Path) -> None:
    url = server.url("bus", units=UNITS)
    async with fleet_of(url, tmp_path, 3, "--no-registry") as fleet:
        await suffer(fleet, [again(server)] * 8, new_seed())
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


async def promote_a_stale_copy(folder: Path, data: Path, options: str) -> list[str]:
    """A server with two copies, of which one is cut off and later takes its place. Returns what was acked and
    is gone."""
    history = History()
    primary = Valkey(folder / "primary").start()
    async with Proxy(primary.port) as way:
        near = Valkey(folder / "near", replicaof=f"127.0.0.1 {primary.port}").start()
        far = Valkey(folder / "far", replicaof=f"127.0.0.1 {way.port}").start()
        try:
            await soon(lambda: online(primary) == 2)
            places = ",".join(f"127.0.0.1:{server.port}" for server in (primary, near, far))
            url = f"redis://{places}?name=bus&units={UNITS}{options}"
            async with fleet_of(url, data, 2, "--no-registry") as fleet:
                async with fleet.connect("producer") as bus:
                    publishing = asyncio.ensure_future(publish_one_by_one(bus, history))
                    await eventually(lambda: len(history.acked) > 50)
                    way.is_silent = True
                    known = len(history.acked)
                    await asyncio.wait([publishing], timeout=5.0)  # acked meanwhile: by the near one at most
                    print(f"{len(history.acked) - known} acked while a copy was cut off")
                    primary.kill()
                    near.kill()
                    far.ask("REPLICAOF", "NO", "ONE")
                    near.options["replicaof"] = f"127.0.0.1 {far.port}"
                    near.start()
                    publishing.cancel()
                    await asyncio.gather(publishing, return_exceptions=True)
                for node in fleet.nodes:
                    await node.kill()
                for node in fleet.nodes:
                    await node.start()
                await fleet.settled()
                async with fleet.connect("check") as bus:
                    found = [value for _, value in await read_all(bus, "orders")]
            assert duplicated(found) == []
            return history.lost(found)
        finally:
            for server in (primary, near, far):
                server.kill()


async def publish_one_by_one(bus: Any, history: History) -> None:
    while True:
        value = history.new("producer")
        await bus.publish("orders", value)
        history.stored([value])


@pytest.mark.slow
async def test_a_stale_copy_that_is_promoted_has_all_that_was_acked(tmp_path: Path) -> None:
    with server_folder() as folder:
        assert await promote_a_stale_copy(folder, tmp_path, "") == []


@pytest.mark.slow
async def test_where_one_copy_of_two_is_enough_the_same_loses_messages(tmp_path: Path) -> None:
    """What the other tests would find, if there were something to find."""
    with server_folder() as folder:
        assert await promote_a_stale_copy(folder, tmp_path, "&replicas=1") != []
