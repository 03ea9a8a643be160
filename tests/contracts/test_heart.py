"""How a node comes into the table of nodes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from landbridge.core.cluster.table import ClusterTable, NodeRecord
from landbridge.errors import BadRequest, NameTaken
from landbridge.node.heart import Heart
from landbridge.stores.memory_roster import MemoryRoster


def clock() -> int:
    """Of the server."""
    return time.time_ns() // 1000


def node(id: str, name: str = "one", **said: Any) -> NodeRecord:
    return NodeRecord(name=name, id=id, url="lb://127.0.0.1:1", **said)


async def test_a_node_that_was_killed_a_moment_ago_is_waited_for():
    roster = MemoryRoster(4, clock)
    await roster.beat(node("killed"), 1.0)
    heart = Heart(roster, node("new"), 1.0)
    await heart.begin()
    found = heart.table.named("one")
    assert found is not None
    assert found.id == "new"
    await heart.end()


async def test_a_node_that_lives_keeps_its_name():
    roster = MemoryRoster(4, clock)
    living = Heart(roster, node("living"), 2.0)
    await living.begin()
    other = Heart(roster, node("other"), 2.0)
    with pytest.raises(NameTaken):
        await other.begin()
    assert [each.id for each in (await roster.read()).nodes] == ["living"]
    await living.end()


async def test_a_node_that_counts_as_gone_after_another_time_is_refused():
    roster = MemoryRoster(4, clock)
    first = Heart(roster, node("a"), 2.0)
    await first.begin()
    other = Heart(roster, node("b", "two"), 3.0)
    with pytest.raises(
        BadRequest, match=r"the node one counts as gone after 2 s, and this one after 3 s"
    ) as no:
        await other.begin()
    assert "--node-life" in no.value.hint
    assert [each.id for each in (await roster.read()).nodes] == ["a"]
    alike = Heart(roster, node("c", "three"), 2.0)
    await alike.begin()
    await alike.end()
    # The process that comes after it may have another one, if it is alone.
    await first.end()
    await other.begin()
    await other.end()


async def test_of_two_nodes_that_start_at_once_the_later_one_is_refused():
    class Behind(MemoryRoster):
        """Reads what was there before the other one came."""

        async def read(self) -> ClusterTable:
            return ClusterTable(now=clock(), units=4)

    roster = Behind(4, clock)
    first, other = Heart(roster, node("a"), 2.0), Heart(roster, node("b", "two", terminal="other"), 2.0)
    await first.begin()
    with pytest.raises(BadRequest, match="is of the terminal"):
        await other.begin()
    assert [each.id for each in (await roster.beat(node("a"), 2.0)).nodes] == ["a"]
    await first.end()


async def test_a_node_of_a_version_that_does_not_tell_its_life_is_taken():
    roster = MemoryRoster(4, clock)
    await roster.beat(node("old"), 600.0)
    heart = Heart(roster, node("new", "two"), 2.0)
    await heart.begin()
    await heart.end()
