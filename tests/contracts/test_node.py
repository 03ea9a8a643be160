"""A node that follows the table of nodes: what it takes, and what it gives up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from landbridge.broker.server import Terminal
from landbridge.core.cluster.table import NodeRecord
from landbridge.core.store_address import parse_address
from landbridge.node import stores
from landbridge.node.membership import Membership
from landbridge.node.nodes import Node
from landbridge.node.plan import NodePlan
from tests.servers import name_of, shared_valkey
from tests.waiting import eventually

UNITS = 8
LONG = 600.0


async def test_units_that_were_never_taken_are_released_where_others_should_have_them(
    tmp_path: Path, crashes: list[Any]
) -> None:
    """The table gave them to this node while it was alone. Before it has taken them, another node comes."""
    address = parse_address(shared_valkey().url(name_of(tmp_path), units=UNITS))
    plan = NodePlan(
        data=tmp_path, store=address, node="one", node_life=LONG, host="127.0.0.1", port=0, http_port=None,
        name="bus", context="bus", limits=[], tls_cert=None, tls_key=None, auto_create=True,
    )  # fmt: skip
    store = await stores.shared_store(tmp_path, address)
    terminal = Terminal(store, name="bus")
    node = Node(plan, terminal, store, lambda _: Membership(), has_registry=False)
    roster = stores.roster_at(address, UNITS)
    other = NodeRecord(name="two", id="two", terminal="bus", url="lb://127.0.0.1:1")
    await node.heart.begin()
    try:
        await terminal.open_shared(node.cluster)
        await roster.beat(node.heart.record, LONG, take=range(UNITS))
        node.heart.table = await roster.beat(other, LONG)
        assert len(node.heart.owned) == UNITS
        await node._follow_table()
        assert terminal.broker.units.owned == frozenset(range(UNITS // 2))
        # The next beat tells it.
        await eventually(lambda: node.heart.table.free == [4, 5, 6, 7])
        assert node.heart.table.owned(node.heart.record.id) == [0, 1, 2, 3]
    finally:
        stores.leave(store)
        await terminal.close()
        await node.heart.end()
        await roster.close()
