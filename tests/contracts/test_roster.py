"""What every roster promises: in memory, in Valkey and in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from landbridge.core.cluster.placement import moves
from landbridge.core.cluster.roster import Roster
from landbridge.core.cluster.table import NodeRecord
from landbridge.core.store_address import parse_address
from landbridge.errors import NameTaken, UnknownNode
from landbridge.node.stores import store_at
from landbridge.stores.memory_roster import MemoryRoster
from landbridge.stores.postgres.roster import PostgresRoster
from landbridge.stores.redis.roster import RedisRoster
from tests.servers import name_of, shared_postgres, shared_valkey

UNITS = 6
#: Long enough to last for a test, and one that is over at once.
LONG, SHORT = 600.0, 0.000_001


@dataclass
class Rosters:
    """What nodes of one terminal have: each a connection of its own to the same table."""

    make: Callable[[], Any]
    made: list[Any]

    def __call__(self) -> Roster:
        self.made.append(self.make())
        return self.made[-1]


@pytest.fixture(params=["memory", "redis", "postgres"])
async def rosters(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rosters]:
    if request.param == "memory":
        shared = MemoryRoster(UNITS, lambda: int(asyncio.get_running_loop().time() * 1_000_000))
        found = Rosters(lambda: shared, [])
    else:
        server: Any = shared_valkey() if request.param == "redis" else shared_postgres()
        address = parse_address(server.url(name_of(tmp_path), units=UNITS))
        store = store_at(address)
        await store.open()
        await store.close()
        driver = RedisRoster if request.param == "redis" else PostgresRoster
        found = Rosters(lambda: driver(address, UNITS), [])
    yield found
    for each in found.made:
        await each.close()


def node(name: str, id: str = "", **said: Any) -> NodeRecord:
    return NodeRecord(name=name, id=id or f"id-{name}", url=f"lb://127.0.0.1:{len(name)}", **said)


async def test_a_beat_enters_a_node_and_takes_units(rosters: Rosters):
    one, two = rosters(), rosters()
    first = await one.beat(
        node("a", http="http://a", version="1", terminal="bus", life=1.5), LONG, take=[0, 1, 2]
    )
    assert first.units == UNITS
    known = first.named("a")
    assert known is not None
    assert (known.id, known.http, known.version, known.terminal) == ("id-a", "http://a", "1", "bus")
    assert known.life == 1.5
    assert first.now == known.started_at
    assert known.expires_at == first.now + LONG * 1_000_000
    second = await two.beat(node("b"), LONG, take=[2, 3])
    assert dict(second.owners) == {0: "id-a", 1: "id-a", 2: "id-a", 3: "id-b"}
    assert [each.name for each in second.nodes] == ["a", "b"]
    assert (await one.read()).owners == second.owners


async def test_a_unit_is_given_up_by_its_owner_alone(rosters: Rosters):
    roster = rosters()
    await roster.beat(node("a"), LONG, take=[0, 1])
    await roster.beat(node("b"), LONG, take=[2], release=[0, 1])
    assert (await roster.read()).owned("id-a") == [0, 1]
    table = await roster.beat(node("a"), LONG, release=[1])
    assert table.free == [1, 3, 4, 5]
    assert table.owner(0) == table.named("a")


async def test_a_unit_that_is_given_up_and_taken_at_once_is_taken(rosters: Rosters):
    roster = rosters()
    await roster.beat(node("a"), LONG, take=[0])
    assert (await roster.beat(node("a"), LONG, take=[0], release=[0])).owned("id-a") == [0]


async def test_the_units_of_a_node_whose_lease_is_over_may_be_taken(rosters: Rosters):
    roster = rosters()
    await roster.beat(node("a"), SHORT, take=[0, 1, 2])
    table = await roster.read()
    while table.live:
        table = await roster.read()
    assert table.named("a") is not None
    assert table.free == list(range(UNITS))
    taken = await roster.beat(node("b"), LONG, take=[1])
    assert taken.owned("id-b") == [1]
    # Whose lease was over and who is back has what nobody has taken.
    back = await roster.beat(node("a"), LONG)
    assert back.owned("id-a") == [0, 2]
    assert back.is_live(back.nodes[0])


async def test_a_second_live_node_of_a_name_is_refused_and_changes_nothing(rosters: Rosters):
    roster = rosters()
    before = await roster.beat(node("a"), LONG, take=[0])
    with pytest.raises(NameTaken, match=r"the node a runs already, at lb://127\.0\.0\.1:1") as refused:
        await rosters().beat(node("a", "other"), LONG, take=[1])
    assert "--node" in refused.value.hint
    after = await roster.read()
    assert (after.nodes, after.owners) == (before.nodes, before.owners)


async def test_a_node_takes_the_place_of_one_of_its_name_that_is_gone(rosters: Rosters):
    roster = rosters()
    await roster.beat(node("a"), SHORT, take=[0, 1])
    await asyncio.sleep(0.001)
    table = await roster.beat(node("a", "again"), LONG, take=[1])
    assert [each.id for each in table.nodes] == ["again"]
    assert dict(table.owners) == {1: "again"}


async def test_who_leaves_is_gone_with_all_it_had(rosters: Rosters):
    roster = rosters()
    await roster.beat(node("a"), LONG, take=[0, 1])
    await roster.beat(node("b"), LONG, take=[2])
    table = await roster.leave("id-a")
    assert [each.name for each in table.nodes] == ["b"]
    assert dict(table.owners) == {2: "id-b"}
    assert (await roster.leave("id-a")).nodes == table.nodes


async def test_a_node_that_is_drained_stays_so_when_it_is_started_again(rosters: Rosters):
    roster = rosters()
    await roster.beat(node("a"), LONG)
    with pytest.raises(UnknownNode, match="no node is called c"):
        await roster.drain("c", True)
    assert (await roster.drain("a", True)).nodes[0].draining
    await roster.leave("id-a")
    assert (await roster.beat(node("a", "again"), LONG)).nodes[0].draining
    assert not (await roster.drain("a", False)).nodes[0].draining
    await roster.drain("c", False)
    told = await roster.beat(node("a", "again", draining=True), LONG)
    assert told.nodes[0].draining
    assert not (await roster.beat(node("a", "again"), LONG)).nodes[0].draining


async def test_what_a_node_says_of_itself_may_change(rosters: Rosters):
    roster = rosters()
    started = (await roster.beat(node("a"), LONG)).nodes[0].started_at
    changed = replace(node("a"), url="lb://127.0.0.1:9", together=True)
    table = await roster.beat(changed, LONG)
    assert (table.nodes[0].url, table.is_together, table.nodes[0].started_at) == (
        "lb://127.0.0.1:9",
        True,
        started,
    )


async def test_nodes_at_work_at_once_end_with_every_unit_at_one_of_them(rosters: Rosters):
    async def live(name: str) -> None:
        roster = rosters()
        table = await roster.beat(node(name), LONG)
        while [len(table.owned(each.id)) for each in table.nodes] != [2, 2, 2]:
            await asyncio.sleep(0)
            take, release = moves(table, f"id-{name}")
            table = await roster.beat(node(name), LONG, take, release)

    async with asyncio.timeout(60):
        await asyncio.gather(*(live(name) for name in ("a", "bb", "ccc")))
    table = await rosters().read()
    assert [len(table.owned(each.id)) for each in table.nodes] == [2, 2, 2]


async def test_a_connection_that_was_lost_is_made_again(rosters: Rosters):
    roster = rosters()
    await roster.beat(node("a"), LONG, take=[0])
    await roster.close()
    assert (await roster.read()).owned("id-a") == [0]


@pytest.mark.parametrize("rosters", ["redis"], indirect=True)
async def test_a_lease_that_a_clock_set_back_has_made_longer_is_cut(rosters: Rosters):
    """Written as by a server whose clock was an hour ahead."""
    roster = rosters()
    assert isinstance(roster, RedisRoster)
    await roster.beat(node("a"), SHORT, take=[0])
    later = (await roster.read()).now + 3600 * 1_000_000
    server = shared_valkey()
    raw = server.ask("HGET", roster._key, "node:id-a")
    server.ask("HSET", roster._key, "node:id-a", f"{later} {later} 1\n{raw.partition(chr(10))[2]}")
    # Cut to its life of a microsecond by the first of these.
    table = await roster.beat(node("b"), LONG, take=[0])
    while table.owned("id-b") != [0]:
        assert table.now < later
        table = await roster.beat(node("b"), LONG, take=[0])
