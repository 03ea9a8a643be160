"""Placement: which units a node should take, and which it should give up.

Each node decides for itself by the same table and the same rules. The server lets a unit be taken only
where no live node has it, so two nodes that decide by tables of different age may both want a unit, and one
gets it.
"""

from __future__ import annotations

from typing import NamedTuple

from landbridge.core.cluster.table import ClusterTable, NodeRecord

#: Units that a node gives up at once while it stays: each is without service for a moment.
MOVED_AT_ONCE = 8


class Moves(NamedTuple):
    """Units to take, and units to give up; both in their order."""

    take: tuple[int, ...] = ()
    release: tuple[int, ...] = ()


def moves(table: ClusterTable, me: str, together: bool = False) -> Moves:
    """What the node of id ``me`` should do. ``together``: all units belong at one node.

    Who has units keeps them, as far as shares allow. A node that drains gives everything up, but only where
    there is another one to take it: service by a node that should go is better than none.
    """
    node = table.node(me)
    if node is None or not table.is_live(node):
        return Moves()
    leader = leader_of(table)
    if leader is None:
        return Moves()
    shares = {leader.id: table.units} if together else shares_of(table)
    mine = table.owned(me)
    excess = len(mine) - shares.get(me, 0)
    if excess > 0:
        most = excess if node.draining or together else min(excess, MOVED_AT_ONCE)
        return Moves(release=tuple(mine[-most:]))
    free = table.free
    for other, share in shares.items():
        lacking = max(0, share - len(table.owned(other)))
        if other == me:
            return Moves(take=tuple(free[:lacking]))
        # So that nodes which decide by the same table want different units.
        free = free[lacking:]
    return Moves()


def shares_of(table: ClusterTable) -> dict[str, int]:
    """Node -> how many units it should have, of the nodes that units may be given to. Shares differ by one
    at most; the larger ones go to nodes that have more already, then to those that have started earlier."""
    nodes = _aged(table)
    if not nodes:
        return {}
    share, larger = divmod(table.units, len(nodes))
    ranked = sorted(nodes, key=lambda node: len(table.owned(node.id)) <= share)
    return {node.id: share + (place < larger) for place, node in enumerate(ranked)}


def leader_of(table: ClusterTable) -> NodeRecord | None:
    """The node that should have all units where they stay together: the one that has most of them, then the
    one that has started first. None where no node is alive."""
    return min(_aged(table), key=lambda node: -len(table.owned(node.id)), default=None)


def _aged(table: ClusterTable) -> list[NodeRecord]:
    """The nodes that units may be given to. Where all that are alive drain, it is these."""
    return sorted(table.candidates or table.live, key=lambda node: (node.started_at, node.id))
