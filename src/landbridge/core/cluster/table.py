"""The table of nodes: who there is, and who has which unit of the store.

All moments are microseconds of the clock of the server that keeps the table, so the clocks of the nodes'
hosts don't matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct


class NodeRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says of itself, and until when it counts as alive."""

    #: The operator's word for it; no two live nodes have the same.
    name: str
    #: Random, another one for each start of the process.
    id: str
    #: What the terminal calls itself, which is the same at all its nodes.
    terminal: str = ""
    #: Where other nodes and clients reach its bus port: ``lb://HOST:PORT``.
    url: str = ""
    #: Where it answers HTTP: ``http://HOST:PORT``; empty where it doesn't.
    http: str = ""
    version: str = ""
    #: It gives its units up and takes none: an operator drains it, or its process ends.
    draining: bool = False
    #: It wants all units to be at one node.
    together: bool = False
    #: Seconds after which it counts as gone if it isn't heard of; 0: it is of a version that doesn't tell.
    life: float = 0.0
    #: Topics that it has, when it was last heard of.
    topics: int = 0
    #: Set by the server: when the process was first heard of, and when it counts as gone if it isn't heard
    #: of again.
    started_at: int = 0
    expires_at: int = 0


class ClusterTable(Struct, frozen=True, kw_only=True):
    """What the server knew at ``now``. The nodes are in the order in which they have started."""

    now: int
    nodes: tuple[NodeRecord, ...] = ()
    #: Unit -> id of the node that has it. A unit that is missing has no owner.
    owners: Mapping[int, str] = MappingProxyType({})
    units: int = 0

    def node(self, id: str) -> NodeRecord | None:
        """The node of an id, alive or not."""
        return next((node for node in self.nodes if node.id == id), None)

    def named(self, name: str) -> NodeRecord | None:
        """The node of a name: the live one where there are several."""
        found = [node for node in self.nodes if node.name == name]
        return max(found, key=lambda node: node.expires_at, default=None)

    def is_live(self, node: NodeRecord) -> bool:
        return node.expires_at > self.now

    @property
    def live(self) -> list[NodeRecord]:
        return [node for node in self.nodes if self.is_live(node)]

    @property
    def candidates(self) -> list[NodeRecord]:
        """The nodes that units may be given to."""
        return [node for node in self.live if not node.draining]

    @property
    def is_together(self) -> bool:
        """Does a live node want all units to be at one node?"""
        return any(node.together for node in self.live)

    def owner(self, unit: int) -> NodeRecord | None:
        """The live node that has a unit; None where it is free to be taken."""
        node = self.node(self.owners.get(unit, ""))
        return node if node is not None and self.is_live(node) else None

    def owned(self, id: str) -> list[int]:
        """The units of a node, alive or not, in their order."""
        return sorted(unit for unit, owner in self.owners.items() if owner == id)

    def topics_beside(self, id: str) -> int:
        """How many topics the other live nodes have."""
        return sum(node.topics for node in self.live if node.id != id)

    @property
    def free(self) -> list[int]:
        """The units that no live node has."""
        live = {node.id for node in self.live}
        return [unit for unit in range(self.units) if self.owners.get(unit) not in live]
