"""Stores whose server has copies: what is acked is on every copy that may take the server's place, and a copy
that is behind is noticed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from landbridge.core.log.store import Append, PutDocument, Trim, Write
from landbridge.errors import StoreFailed
from landbridge.stores.redis.servers import RedisServer, problem_of, shards_of, slot_of
from tests.ports import free_port
from tests.servers import Postgres, Valkey, server_folder
from tests.stores.test_remote import batch, numbers, opened
from tests.waiting import LIMIT, eventually


async def soon(holds: Callable[[], Any]) -> None:
    """Until something is true of a server, which is asked by plain calls."""
    async with asyncio.timeout(LIMIT):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.02)


def replication(server: Valkey) -> dict[str, Any]:
    found: dict[str, Any] = server.ask("INFO", "replication")
    return found


def online(server: Valkey) -> int:
    """How many replicas follow a server."""
    return str(replication(server)).count("'state': 'online'")


# -- decisions


def test_slots_are_those_of_redis() -> None:
    # From the specification of Redis Cluster, and what CLUSTER KEYSLOT answers.
    assert slot_of("123456789") == 12739
    assert slot_of("{landbridge:17}:logs") == slot_of("{landbridge:17}") == slot_of("landbridge:17")
    assert slot_of("foo{}{bar}") == slot_of("foo{}{bar}")
    assert slot_of("foo") == 12182


def test_a_server_without_waitaof_is_refused() -> None:
    settings = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
    assert problem_of({"redis_version": "7.2.0"}, settings) is None
    assert problem_of({"redis_version": "8.0.1"}, settings) is None
    what, hint = problem_of({"redis_version": "7.0.15"}, settings) or ("", "")
    assert "7.0.15" in what
    assert "WAITAOF" in what
    assert "Redis 7.2" in hint


def test_replicas_that_have_failed_are_counted() -> None:
    nodes = (
        "aaa 10.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-8191 [93-<-bbb]\n"
        "bbb 10.0.0.2:7000@17000,two.lan master - 0 0 2 connected 8192-16382 16383\n"
        "ccc 10.0.0.3:7000@17000 slave aaa 0 0 1 connected\n"
        "ddd 10.0.0.4:7000@17000 slave,fail aaa 0 0 1 disconnected\n"
        "eee :0@0 master,noaddr - 0 0 9 disconnected\n"
        "fff 10.0.0.5:7000@17000 master,fail - 0 0 9 disconnected\n"
    )
    shards = shards_of(nodes, "seed.lan")
    assert shards[0] == shards[8191] == RedisServer("10.0.0.1", 7000, 2)
    assert shards[8192] == shards[16383] == RedisServer("two.lan", 7000, 0)
    assert len(shards) == 16384
    assert shards_of("aaa :7000@17000 myself,master - 0 0 1 connected 5\n", "seed.lan") == {
        5: RedisServer("seed.lan", 7000)
    }


# -- a replica of a single server


@contextmanager
def replicated() -> Iterator[tuple[Valkey, Valkey]]:
    with server_folder() as folder:
        primary = Valkey(folder / "primary", **{"repl-diskless-sync-delay": 0}).start()
        replica = Valkey(folder / "replica", replicaof=f"127.0.0.1 {primary.port}").start()
        yield primary, replica
        replica.kill()
        primary.kill()


async def test_a_commit_is_done_when_the_replica_has_it_on_disk() -> None:
    with replicated() as (primary, replica):
        await soon(lambda: online(primary))
        async with opened(primary.url("bus")) as store:
            epoch = await store.claim(0)
            await store.commit(0, epoch, [batch(0)])
            replica.freeze()
            commit = asyncio.ensure_future(store.commit(0, epoch, [batch(1)]))
            await soon(lambda: primary.ask("HGET", "{bus:0}", "number") == "2")
            await asyncio.sleep(0)
            assert not commit.done()
            replica.thaw()
            await commit
            # The replica takes the server's place: all that was acked is there.
            primary.kill()
            replica.ask("REPLICAOF", "NO", "ONE")
        async with opened(replica.url("bus")) as store:
            assert await numbers(store) == [0, 1]
            await store.commit(0, await store.claim(0), [batch(2)])
            assert await store.check() == []


async def test_another_server_of_the_url_takes_over_and_the_terminal_goes_on() -> None:
    with replicated() as (primary, replica):
        await soon(lambda: online(primary))
        url = primary.url("bus").replace("?", f",127.0.0.1:{replica.port}?")
        async with opened(url) as store:
            epoch = await store.claim(0)
            await store.commit(0, epoch, [batch(0)])
            primary.kill()
            commit = asyncio.ensure_future(store.commit(0, epoch, [batch(1)]))
            await eventually(lambda: store.trouble)
            replica.ask("REPLICAOF", "NO", "ONE")
            # The one that was lost still counts as a replica that may come back: it has to, and be one.
            await asyncio.to_thread(primary.start)
            primary.ask("REPLICAOF", "127.0.0.1", replica.port)
            await commit
            await store.commit(0, epoch, [batch(2)])
            assert await numbers(store) == [0, 1, 2]


# -- a standby of PostgreSQL


@pytest.mark.slow
async def test_a_commit_is_done_when_the_standby_has_it_and_not_when_the_wait_is_cancelled() -> None:
    with server_folder() as folder:
        primary = Postgres(folder / "primary", synchronous_standby_names="ANY 1 (one)", wal_level="replica")
        primary.make()
        primary.options["synchronous_standby_names"] = ""
        primary.start()
        standby = primary.standby(folder / "standby", "one")
        standby.start()
        await soon(lambda: primary.ask("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"))
        primary.ask("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (one)'")
        primary.kill()
        primary.options.pop("synchronous_standby_names")
        primary.start()
        await soon(lambda: primary.ask("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'quorum'"))
        async with opened(primary.url("bus")) as store:
            epoch = await store.claim(0)
            await store.commit(0, epoch, [batch(0)])
            standby.kill()
            commit = asyncio.ensure_future(store.commit(0, epoch, [batch(1)]))
            waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            for _ in range(3):
                # PostgreSQL answers such a commit as if all were well, with a warning.
                await soon(lambda: primary.ask(waiting))
                primary.ask(f"SELECT pg_cancel_backend(pid) FROM ({waiting}) w")
            await eventually(lambda: store.trouble)
            assert "standby" in store.trouble
            assert not commit.done()
            await asyncio.to_thread(standby.start)
            await commit
            primary.kill()
            standby.ask("SELECT pg_promote()")
            standby.ask("ALTER SYSTEM RESET synchronous_standby_names")
            standby.ask("SELECT pg_reload_conf()")
        async with opened(standby.url("bus")) as store:
            assert await numbers(store) == [0, 1]
            await store.commit(0, await store.claim(0), [batch(2)])
        standby.kill()


# -- a cluster


class Cluster:
    """Primaries with a replica each."""

    def __init__(self, folder: Path, shards: int = 3, replicas: int = 1) -> None:
        options = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": 1500,
            "repl-diskless-sync-delay": 0,
            "cluster-allow-replica-migration": "no",
            "repl-ping-replica-period": 1,
        }
        self.nodes = [
            Valkey(folder / str(number), **options, **{"cluster-port": free_port()})
            for number in range(shards * (1 + replicas))
        ]
        self.shards, self.replicas = shards, replicas

    def start(self) -> Cluster:
        for node in self.nodes:
            node.start()
        primaries, copies = self.nodes[: self.shards], self.nodes[self.shards :]
        step = -(-16384 // self.shards)
        for number, node in enumerate(primaries):
            last = min(16383, (number + 1) * step - 1)
            node.ask("CLUSTER", "ADDSLOTSRANGE", number * step, last)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            first = primaries[0]
            node.ask("CLUSTER", "MEET", "127.0.0.1", first.port, first.options["cluster-port"])
        self._until(lambda: all(self._info(node, "known_nodes") == len(self.nodes) for node in self.nodes))
        for number, node in enumerate(copies):
            node.ask("CLUSTER", "REPLICATE", primaries[number % self.shards].ask("CLUSTER", "MYID"))
        self.settle()
        self._until(lambda: all(online(node) >= self.replicas for node in primaries))
        return self

    def settle(self) -> None:
        """Until every slot is served."""
        self._until(lambda: all(self._info(node, "state") == "ok" for node in self.nodes))

    def _info(self, node: Valkey, what: str) -> Any:
        facts = dict(line.partition(":")[::2] for line in node.ask("CLUSTER", "INFO").split())
        found = facts[f"cluster_{what}"]
        return int(found) if found.isdigit() else found

    def _until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT
        while not holds():
            assert time.monotonic() < end, [node.ask("CLUSTER", "NODES") for node in self.nodes]
            time.sleep(0.05)

    def primary_of(self, key: str) -> Valkey:
        slot = slot_of(key)
        alive = next(node for node in self.nodes if node.process is not None)
        for first, last, primary, *_ in alive.ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == primary[1])
        raise AssertionError("no server has the slot")

    def url(self, name: str, units: int) -> str:
        places = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])
        return f"redis://{places}?name={name}&units={units}"

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with server_folder() as folder:
        made = Cluster(folder)
        try:
            yield made.start()
        finally:
            made.kill()


@pytest.mark.slow
async def test_a_primary_of_a_cluster_is_killed_and_nothing_acked_is_lost(cluster: Cluster) -> None:
    units = 6
    async with opened(cluster.url("bus", units)) as store:
        epochs = [await store.claim(unit) for unit in range(units)]
        done = [0] * units
        stopping = asyncio.Event()

        async def commits(unit: int) -> None:
            while not stopping.is_set():
                await store.commit(unit, epochs[unit], [batch(done[unit], log=units + unit)])
                done[unit] += 1

        running = [asyncio.ensure_future(commits(unit)) for unit in range(units)]
        await eventually(lambda: min(done) > 50)
        victim = cluster.primary_of("{bus:0}")
        victim.kill()
        before = list(done)
        await eventually(lambda: all(now > was + 50 for now, was in zip(done, before, strict=True)))
        # The one that was killed comes back as a replica, and is waited for from then on.
        await asyncio.to_thread(victim.start)
        await soon(lambda: replication(victim).get("master_link_status") == "up")
        before = list(done)
        await eventually(lambda: all(now > was + 50 for now, was in zip(done, before, strict=True)))
        stopping.set()
        await asyncio.gather(*running)
        for unit in range(units):
            assert await numbers(store, units + unit) == list(range(done[unit]))
        assert await store.check() == []


@pytest.mark.slow
async def test_a_stale_replica_that_was_forced_into_place_is_noticed(cluster: Cluster) -> None:
    """An operator has told the store to wait for nobody. Then a failover may lose a tail: it is noticed, and
    not written over."""
    url = cluster.url("bus", 1) + "&replicas=0"
    async with opened(url) as store:
        epoch = await store.claim(0)
        await store.commit(0, epoch, [batch(0)])
        primary = cluster.primary_of("{bus:0}")
        (copy,) = (
            node
            for node in cluster.nodes[cluster.shards :]
            if replication(node)["master_port"] == primary.port
        )
        await soon(
            lambda: replication(copy)["slave_repl_offset"] >= replication(primary)["master_repl_offset"]
        )
        copy.freeze()
        # More than the sockets between them hold.
        for number in range(1, 40):
            await store.commit(0, epoch, [Append(1, number, number + 1, 0, bytes(1 << 20))])
        primary.kill()
        copy.thaw()
        await soon(lambda: copy.ask("CLUSTER", "FAILOVER", "TAKEOVER"))
        await soon(lambda: replication(copy)["role"] == "master")
        with pytest.raises(StoreFailed, match="has lost commits"):
            await store.commit(0, epoch, [batch(40)])


@pytest.mark.slow
async def test_a_slot_moves_to_another_server_under_load(cluster: Cluster) -> None:
    """Key by key, as resharding does: commits and reads wait meanwhile, and nothing is done by half."""
    name = "moving"
    async with opened(cluster.url(name, 1)) as store:
        epoch = await store.claim(0)
        done, stopping = 0, asyncio.Event()

        async def commits() -> None:
            nonlocal done
            while not stopping.is_set():
                writes: list[Write] = [
                    batch(done),
                    PutDocument("cursor", "a", b"%d" % done),
                    Trim(1, done - 30),
                ]
                await store.commit(0, epoch, writes)
                done += 1

        running = asyncio.ensure_future(commits())
        await eventually(lambda: done > 100)
        slot, source = slot_of(f"{{{name}:0}}"), cluster.primary_of(f"{{{name}:0}}")
        target = next(node for node in cluster.nodes[: cluster.shards] if node is not source)
        ids = {node: node.ask("CLUSTER", "MYID") for node in (source, target)}
        await asyncio.to_thread(target.ask, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        await asyncio.to_thread(source.ask, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        while keys := await asyncio.to_thread(source.ask, "CLUSTER", "GETKEYSINSLOT", slot, 5):
            for key in keys:
                await asyncio.to_thread(source.ask, "MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
                await asyncio.sleep(0.01)  # whoever asks now, asks a server that has a part of the keys
        before = done
        for node in (target, source):
            await asyncio.to_thread(node.ask, "CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        await eventually(lambda: done > before + 100)
        stopping.set()
        await running
        found = await numbers(store)
        assert found[-1] == done - 1
        assert found == list(range(found[0], done))
        assert await store.documents(0, "cursor") == [("a", b"%d" % (done - 1))]
        assert await store.check() == []
