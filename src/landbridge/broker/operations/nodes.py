"""Operations on the nodes of a terminal."""

from __future__ import annotations

from typing import Protocol

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.broker.surroundings import NodesPort
from landbridge.broker.units import Units
from landbridge.core.cluster.table import ClusterTable, NodeRecord
from landbridge.errors import UnknownNode
from landbridge.protocol import operations as table

#: Topics that are looked at for one question.
MOST_FOUND = 1000


class NodesBroker(Protocol):
    """What the handlers ask of the broker."""

    units: Units


class NodeOwners(Protocol):
    """Which node owns what, as far as this node knows."""

    me: str

    def unit_of(self, topic: str) -> int | None: ...
    def node_of(self, unit: int) -> str | None: ...
    def url_of(self, node: str) -> str: ...


class NodesHost(Protocol):
    """The terminal, as far as its nodes go."""

    nodes: NodesPort | None

    @property
    def cluster(self) -> NodeOwners | None: ...


class NodeOperations:
    """The handlers of node.*"""

    def __init__(self, broker: NodesBroker, terminal: NodesHost) -> None:
        self._broker = broker
        self._terminal = terminal

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.NODE_LIST, self.list)
        dispatcher.register(table.NODE_SHOW, self.show)
        dispatcher.register(table.NODE_FIND, self.find)
        dispatcher.register(table.NODE_DRAIN, self.drain)
        dispatcher.register(table.NODE_RESUME, self.resume)

    async def list(self, caller: TokenBearer, request: table.Nothing) -> table.NodeRows:
        nodes = self._terminal.nodes
        if nodes is None:
            return table.NodeRows(nodes=[])
        found = nodes.table
        rows = [self._row(nodes, found, node) for node in sorted(found.nodes, key=lambda node: node.name)]
        return table.NodeRows(
            nodes=rows,
            units=found.units,
            free=len(found.free),
            together=found.is_together,
            time=found.now,
            trouble=nodes.trouble,
        )

    async def show(self, caller: TokenBearer, request: table.OfNode) -> table.NodeRow:
        nodes, node = await self._named(request.name)
        return self._row(nodes, nodes.table, node)

    async def find(self, caller: TokenBearer, request: table.NodeFind) -> table.NodesFound:
        cluster, urls = self._terminal.cluster, dict[str, str]()
        for topic in request.topics[:MOST_FOUND] if cluster is not None else ():
            assert cluster is not None
            unit = cluster.unit_of(topic)
            node = None if unit is None else cluster.node_of(unit)
            if node is not None and node != cluster.me and (url := cluster.url_of(node)):
                urls[topic] = url
        return table.NodesFound(urls=urls)

    async def drain(self, caller: AuditedCaller, request: table.OfNode) -> table.NodeRow:
        return await self._change(caller, request.name, True)

    async def resume(self, caller: AuditedCaller, request: table.OfNode) -> table.NodeRow:
        return await self._change(caller, request.name, False)

    async def _change(self, caller: AuditedCaller, name: str, draining: bool) -> table.NodeRow:
        nodes, node = await self._named(name)
        if node.draining == draining:
            caller.change_nothing()
            return self._row(nodes, nodes.table, node)

        def work(commit: BrokerCommit) -> None:
            caller.enter(commit, name, {"draining": node.draining}, {"draining": draining})

        # The table of nodes is in no unit: the entry first, so that nothing is done that nobody knows of.
        await self._broker.units.writers[0].put(work)
        after = await nodes.drain(name, draining)
        return self._row(nodes, after, after.named(name) or node)

    async def _named(self, name: str) -> tuple[NodesPort, NodeRecord]:
        nodes = self._terminal.nodes
        node = None if nodes is None else nodes.table.named(name)
        if nodes is not None and node is None:
            node = (await nodes.look()).named(name)  # it may have started a moment ago
        if nodes is None or node is None:
            hint = None if nodes else "this terminal has one process alone: 'up --node NAME' makes nodes"
            raise UnknownNode(f"no node is called {name[:60]}", hint=hint)
        return nodes, node

    def _row(self, nodes: NodesPort, found: ClusterTable, node: NodeRecord) -> table.NodeRow:
        is_live = found.is_live(node)
        units = found.owned(node.id) if is_live else []
        return table.NodeRow(
            name=node.name,
            id=node.id,
            state="gone" if not is_live else "draining" if node.draining else "live",
            units=units,
            home=0 in units,
            here=node.id == nodes.record.id,
            url=node.url,
            http=node.http,
            version=node.version,
            started_at=node.started_at,
            expires_at=node.expires_at,
        )
