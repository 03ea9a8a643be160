"""The promise, with the data on a server: terminal and server are killed, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge.core.store_address import parse_address
from landbridge.node.stores import store_at
from tests.servers import Postgres, Valkey, server_folder
from tests.stores.test_replicas import Cluster
from tests.system.history import duplicated, out_of_order
from tests.system.test_promise import Load, TerminalProcess, kill_under_load, read_all

ENGINES: dict[str, Any] = {"redis": Valkey, "postgres": Postgres}


@pytest.fixture(params=ENGINES)
def server(request: pytest.FixtureRequest) -> Any:
    with server_folder() as folder:
        started = ENGINES[request.param](folder / "server").start()
        yield started
        started.kill()


async def findings(url: str) -> list[str]:
    store = store_at(parse_address(url))
    await store.open()
    try:
        return await store.check()
    finally:
        await store.close()


async def test_a_terminal_is_killed_with_its_server_and_loses_and_doubles_nothing(
    server: Any, crashes: list[Any]
) -> None:
    await kill_and_check(server, 2)


@pytest.mark.slow
async def test_many_kills_of_terminal_and_server_lose_and_double_nothing(
    server: Any, crashes: list[Any]
) -> None:
    await kill_and_check(server, 20)


async def kill_and_check(server: Any, kills: int) -> None:
    url = server.url("bus", units=8)

    async def again(kill: int) -> None:
        if kill % 2:
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)

    await kill_under_load(url, kills, again)
    assert await findings(url) == []


async def test_a_server_is_killed_under_a_terminal_that_goes_on(server: Any, crashes: list[Any]) -> None:
    """The terminal waits for its server, asks again what it had no answer for, and goes on."""
    url = server.url("bus", units=8)
    await serve_through(url, server, 3)
    assert await findings(url) == []


@pytest.mark.slow
async def test_primaries_of_a_cluster_are_killed_under_a_terminal_that_goes_on(crashes: list[Any]) -> None:
    with server_folder() as folder:
        cluster = Cluster(folder)
        try:
            await asyncio.to_thread(cluster.start)
            url = cluster.url("bus", 8)
            await serve_through(url, OnePrimary(cluster), 3)
            assert await findings(url) == []
        finally:
            cluster.kill()


class OnePrimary:
    """Of a cluster: one of its primaries is killed, and is there again, as a replica, when it is started."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._victim = cluster.nodes[0]
        self._kills = 0

    def kill(self) -> None:
        self._victim = self._cluster.primary_of(f"{{bus:{self._kills}}}")
        self._kills += 1
        self._victim.kill()

    def start(self) -> None:
        self._victim.start()
        self._cluster.settle()


async def serve_through(url: str, server: Any, kills: int) -> None:
    async with TerminalProcess(url) as terminal:
        load = Load(terminal, 1)
        producers = [
            asyncio.ensure_future(load.pipelined(f"pipe-{n}", "orders", load.orders)) for n in range(2)
        ]
        for _ in range(kills):
            acked = len(load.orders.acked)
            while len(load.orders.acked) <= acked + 100:
                assert not any(task.done() for task in producers), producers
                load.one.values[:] = load.orders.sent  # no consumer keeps the producers back
                await asyncio.sleep(0.005)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        load.stopping.set()
        await asyncio.gather(*producers)
        async with terminal.connect("check") as bus:
            found = [value for _, value in await read_all(bus, "orders")]
        assert load.orders.lost(found) == []
        assert duplicated(found) == []
        assert load.orders.unexpected(found) == []
        assert out_of_order(found) == []
        assert terminal.starts == 1
