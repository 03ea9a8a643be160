"""Several nodes of one terminal, on real servers: what was acked is there, once and in order, whatever
happens to a node, to the server, or between them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import landbridge
from tests.proxy import Proxy
from tests.servers import PostgresPair, Valkey, name_of, server_folder, shared_valkey
from tests.stores.test_replicas import Cluster, online, soon
from tests.system.history import History, duplicated
from tests.system.nodes import (
    FAULTS,
    LIFE,
    Fault,
    Fleet,
    drained,
    fleet_of,
    killed,
    late,
    paused,
    suffer,
)
from tests.system.test_promise import SOURCE, new_seed, read_all
from tests.system.test_stores import ENGINES, OnePrimary, findings
from tests.waiting import LIMIT, eventually, until

UNITS = 8
#: Of each kind, in the slow test.
ROUNDS = 5
#: The same on six servers, and on two of PostgreSQL.
CLUSTER_ROUNDS = 4


def again(server: Any) -> Fault:
    """The server is killed and started again."""

    async def server_killed(fleet: Fleet, rng: random.Random) -> None:
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(rng.uniform(0, 3.0))
        await asyncio.to_thread(server.start)

    return server_killed


@pytest.fixture(params=["redis", pytest.param("postgres", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Any:
    with server_folder() as folder:
        started = ENGINES[request.param](folder / "server").start()
        yield started
        started.kill()


async def test_a_node_is_killed_another_paused_and_a_third_drained_and_nothing_is_lost_or_doubled(
    server: Any, tmp_path: Path
) -> None:
    url = server.url("bus", units=UNITS)
    async with fleet_of(url, tmp_path, 3, "--no-registry", http=True, servers=[server.port]) as fleet:
        await suffer(fleet, [killed, paused, drained, late], new_seed())
        assert await refusals(fleet) >= 1
    assert await findings(url) == []


async def refusals(fleet: Fleet) -> float:
    """The late commits that the store has refused, as metrics of the nodes say."""
    found = 0.0
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {fleet.token}"}) as http:
        for node in fleet.nodes:
            text = (await http.get(f"http://127.0.0.1:{node.http_port}/metrics")).text
            [value] = re.findall(r"^landbridge_node_fenced_total{.*} (\S+)$", text, re.MULTILINE)
            found += float(value)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_many_faults_lose_and_double_nothing(server: Any, tmp_path: Path) -> None:
    url = server.url("bus", units=UNITS)
    seed = new_seed()
    faults = [*FAULTS, again(server)] * ROUNDS
    random.Random(seed).shuffle(faults)
    async with fleet_of(url, tmp_path, 3, "--no-registry", servers=[server.port]) as fleet:
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
            servers = [node.port for node in cluster.nodes]
            async with fleet_of(url, tmp_path, 3, "--no-registry", servers=servers) as fleet:
                seed = new_seed()
                faults = [*FAULTS, again(OnePrimary(cluster))] * CLUSTER_ROUNDS
                random.Random(seed).shuffle(faults)
                await suffer(fleet, faults, seed)
            assert await findings(url) == []
        finally:
            cluster.kill()


def promoted(pair: PostgresPair) -> Fault:
    async def primary_lost(fleet: Fleet, rng: random.Random) -> None:
        await asyncio.to_thread(pair.promote)

    return primary_lost


def standby_again(pair: PostgresPair) -> Fault:
    """The standby is killed and started again. Nothing is acked meanwhile."""

    async def standby_killed(fleet: Fleet, rng: random.Random) -> None:
        standby = pair.standby
        await asyncio.to_thread(standby.kill)
        await asyncio.sleep(rng.uniform(0, 2 * LIFE))
        await asyncio.to_thread(standby.start)
        await asyncio.to_thread(pair.settle)

    return standby_killed


def primary_again(pair: PostgresPair) -> Fault:
    async def primary_killed(fleet: Fleet, rng: random.Random) -> None:
        primary = pair.primary
        await asyncio.to_thread(primary.kill)
        await asyncio.sleep(rng.uniform(0, 3.0))
        await asyncio.to_thread(primary.start)
        await asyncio.to_thread(pair.settle)

    return primary_killed


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_faults_of_nodes_and_of_a_primary_with_a_standby_lose_and_double_nothing(
    tmp_path: Path,
) -> None:
    """The standby takes the place of the primary again and again. Nodes find it by the store's URL."""
    with server_folder() as folder:
        pair = PostgresPair(folder)
        try:
            await asyncio.to_thread(pair.start)
            url = pair.url("bus", units=UNITS)
            seed = new_seed()
            faults = [
                killed,
                paused,
                late,
                promoted(pair),
                standby_again(pair),
                primary_again(pair),
                promoted(pair),
            ]
            faults *= CLUSTER_ROUNDS
            random.Random(seed).shuffle(faults)
            servers = [pair.primary.port, pair.standby.port]
            async with fleet_of(url, tmp_path, 3, "--no-registry", servers=servers) as fleet:
                await suffer(fleet, faults, seed)
            assert await findings(url) == []
        finally:
            pair.kill()


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


async def command(fleet: Fleet, *arguments: str) -> tuple[int, str, str]:
    """A command of the command line, with the context that the nodes have made."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "landbridge", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "LANDBRIDGE_HOME": str(fleet.folder / "home"),
        },
    )  # fmt: skip
    async with asyncio.timeout(LIMIT):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_operators_see_nodes_and_drain_them_and_the_registry_goes_with_the_home(tmp_path: Path) -> None:
    url = shared_valkey().url(name_of(tmp_path), units=UNITS)
    async with fleet_of(url, tmp_path, 2, http=True) as fleet, fleet.connect("operator") as bus:
        first, second = fleet.nodes

        async def is_spread() -> bool:
            found = await bus.nodes.list()
            shares = [(node.name, len(node.units), node.home) for node in found.nodes]
            return shares == [("n0", 4, True), ("n1", 4, False)]

        await until(is_spread)
        # One more process is refused: as a second node of a name, as one that would be missed later than the
        # others, and as one that wants all for itself.
        for options, said in (
            (["--node", "n1", "--node-life", f"{LIFE}s"], "runs already"),
            (["--node", "n2", "--node-life", "9s"], "counts as gone after"),
            ([], "in use"),
        ):
            status, _, told = await command(
                fleet, "up", "--data", str(tmp_path / "other"), "--store", url, "--port", "0", "--http-port",
                "0", *options,
            )  # fmt: skip
            assert status != 0
            assert said in told, told
        # What one node lets in, the other one does.
        made = await bus.tokens.create("alice", ["publish:t.*", "subscribe:t.*"])
        for node in fleet.nodes:
            async with landbridge.connect(node.url, token=made.token, patience=LIMIT) as alice:
                for number in range(UNITS):
                    await alice.publish(f"t.{number}", node.name.encode())
        async with httpx.AsyncClient() as http:
            for node in fleet.nodes:
                site = f"http://127.0.0.1:{node.http_port}"
                assert (await http.get(f"{site}/readyz")).status_code == 200
                registry = await http.get(f"{site}/registry/v1/registry")
                assert registry.status_code == 200, registry.text
                assert "registry_key" in registry.json()
                metrics = await http.get(
                    f"{site}/metrics", headers={"Authorization": f"Bearer {fleet.token}"}
                )
                assert f'landbridge_node_units{{node="{node.name}"}} 4.0' in metrics.text
        status, out, told = await command(fleet, "node", "drain", "n0")
        assert status == 0, told

        async def has_moved() -> bool:
            row = await bus.nodes.show("n1")
            return row.home and len(row.units) == UNITS

        await until(has_moved)
        status, out, _ = await command(fleet, "node", "list", "--json")
        rows = json.loads(out)
        assert [(row["name"], row["state"], len(row["units"])) for row in rows] == [
            ("n0", "draining", 0),
            ("n1", "live", UNITS),
        ]
        checks = (await command(fleet, "doctor"))[1]
        assert "lb://" in checks
        assert "fail  context" not in checks
        assert "nodes" in checks
        async with httpx.AsyncClient() as http:
            registry = await http.get(f"http://127.0.0.1:{first.http_port}/registry/v1/registry")
            assert registry.status_code == 200, registry.text
        assert (await command(fleet, "node", "resume", "n0"))[0] == 0
        status, _, told = await command(fleet, "node", "show", "n7")
        assert status != 0
        assert "no node is called n7" in told
        await second.kill()
        async with landbridge.connect(first.url, token=made.token, patience=LIMIT) as alice:
            for number in range(UNITS):
                await alice.publish(f"t.{number}", b"again")


async def test_nodes_that_end_in_good_order_warn_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever says goodbye isn't lost: not to the parts of its own process, not to other nodes, not to
    clients."""
    url = shared_valkey().url(name_of(tmp_path), units=UNITS)
    async with fleet_of(url, tmp_path, 2, http=True) as fleet, fleet.connect("client") as bus:
        first, second = fleet.nodes

        async def use() -> None:
            for number in range(UNITS):
                await bus.publish(f"t.{number}", b"x")

        await use()
        for number in range(UNITS):  # a part of each process that reads
            await bus.topics.create(f"h.{number}")
            await bus.call("webhook.create", topic=f"h.{number}", name="w", url="https://shop.example.com/")
        # An operator drains a node, and stops it.
        await bus.nodes.drain("n0")

        async def is_empty() -> bool:
            return not (await bus.nodes.show("n0")).units

        await until(is_empty)
        await use()
        await first.stop()
        await use()
        # The other one is just told to end.
        await first.start()
        await bus.nodes.resume("n0")
        await second.stop()
        await use()
        logs = "".join(node.log() for node in fleet.nodes).splitlines()
        said = [json.loads(line) for line in logs if line]
        assert [line["event"] for line in said].count("stopping") == 2
        assert [line for line in said if line["level"] not in ("debug", "info")] == []
    assert [record.getMessage() for record in caplog.records if "lost" in record.getMessage()] == []
