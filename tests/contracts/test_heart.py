"""How a node comes into the table of nodes."""

from __future__ import annotations

import time

import pytest

from landbridge.core.cluster.table import NodeRecord
from landbridge.errors import NameTaken
from landbridge.node.heart import Heart
from landbridge.stores.memory_roster import MemoryRoster


def clock() -> int:
    """Of the server."""
    return time.time_ns() // 1000


def node(id: str) -> NodeRecord:
    return NodeRecord(name="one", id=id, url="lb://127.0.0.1:1")


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
