"""Operations on messages, routes and links, for a terminal that has joined others: where a message is at any
terminal, why it went there, and what goes on between the terminals."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from landbridge.broker.authority import TokenBearer
from landbridge.broker.group import Group
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.broker.operations.messages import MessageOperations, NamedHost
from landbridge.core.log.ranges import intersect
from landbridge.core.shipping.parcel import Ask
from landbridge.core.wording import counted
from landbridge.crossing.network import Network
from landbridge.crossing.placing import Placement
from landbridge.crossing.records import ShipmentRecord
from landbridge.protocol import operations as table

#: Seconds for an answer from another terminal.
ANSWER_WITHIN = 2.0


class Inquiries(MessageOperations):
    """The handlers of message.*, route.show, topology.show and network.show."""

    def __init__(self, network: Network, terminal: NamedHost) -> None:
        super().__init__(network.broker, terminal)
        self._network = network

    def register(self, dispatcher: Dispatcher) -> None:
        super().register(dispatcher)
        dispatcher.register(table.MESSAGE_WHY, self.why)
        dispatcher.register(table.ROUTE_SHOW, self.show_route)
        dispatcher.register(table.TOPOLOGY_SHOW, self.show_topology)
        dispatcher.register(table.NETWORK_SHOW, self.show_network)

    # -- messages ----------------------------------------------------------------------------------

    async def _place(self, topic: str) -> None:
        await self._network.until_known(topic)
        await self._network.forwarder.until_placed(topic)

    async def _reached(self, group: Group, offset: int, until: table.Until) -> None:
        is_here = await self._is_here(group)
        if is_here and until == "arrived":
            return
        await self._broker.consuming.until_settled(group, offset)
        if until == "acked" and not is_here:
            await self._network.forwarder.acked(group.topic, group.name, offset)

    async def _is_here(self, group: Group) -> bool:
        """Are the group's consumers at this terminal? Waits until that is decided."""
        network = self._network
        while not group.deleted:
            entry = network.topics.get(group.topic.name)
            if entry is None or group.name not in entry.groups:
                return True
            placement = network.forwarder.placements.get((group.topic.name, group.name))
            if placement is not None and placement.target:
                return placement.target == network.me
            await asyncio.sleep(0.05)
        return True

    async def _in_group(self, group: Group, offset: int) -> table.GroupPlace:
        if not group.forwarded:
            return await super()._in_group(group, offset)
        network, topic, forwarder = self._network, group.topic, self._network.forwarder
        target = forwarder.went_to(topic.name, group.name, offset)
        record = forwarder.record_of(topic.name, group.name, offset)
        place: dict[str, Any] = {
            "group": group.name,
            "at": self._terminal.name,
            "to": network.name_of(target) if target else "",
            "route": self._names([network.me, *record.routes[-1]]) if record and record.routes else [],
            "waits_for": "",
        }
        if group.settled(offset):
            ask = Ask(topic.name, topic.created_at, group.name, offset, False)
            told = await forwarder.ask(target, ask, ANSWER_WITHIN) if target else None
            place["at"] = place["to"] or "another terminal"
            if told is None:
                return table.GroupPlace(**place, state="arrived", said="no answer from there now")
            if told.state in ("waiting", "leased"):
                place["waits_for"] = "a consumer there"
            return table.GroupPlace(
                **place, state=told.state, came_by=self._names(told.via), arrived_at=told.arrived_at
            )
        lane = forwarder.lanes.get((topic.name, target))
        shipment = next(
            (
                shipment
                for shipment in (lane.outbound.shipments.values() if lane else ())
                if any(intersect(piece.runs, [(offset, offset + 1)]) for piece in shipment.pieces)
            ),
            None,
        )
        if not target:
            none = not network.members(group.name)
            waits = "the group has no terminals" if none else "a terminal of the group that can be reached"
            place |= {"state": "waiting", "waits_for": waits}
        elif shipment is None or shipment.hop == "":
            waits = lane.waits_for if lane is not None else ""
            place |= {"state": "waiting", "waits_for": waits or "its turn to be shipped"}
        elif shipment.hop is None:
            place |= {"state": "on its way", "at": network.name_of(shipment.route[0])}
            place["waits_for"] = f"word from {place['to']} that it has arrived"
        else:
            place |= {"state": "on a link", "waits_for": f"{network.name_of(shipment.hop)} to keep it"}
        return table.GroupPlace(**place)

    async def why(self, caller: TokenBearer, request: table.OfMessage) -> table.MessageReasons:
        forwarder = self._network.forwarder
        reasons = []
        for found, offset, _ in await self._find(caller, request):
            for group in list(found.groups.values()):
                record = forwarder.record_of(found.name, group.name, offset)
                placement = forwarder.placements.get((found.name, group.name))
                if record is not None or placement is not None:
                    reasons.append(self._why(group.name, offset, record, placement))
        return table.MessageReasons(id=request.id, groups=reasons)

    def _why(
        self, group: str, offset: int, record: ShipmentRecord | None, placement: Placement | None
    ) -> table.GroupReason:
        network = self._network
        target = record.destination if record is not None else placement.target if placement else ""
        reason = table.GroupReason(
            group=group,
            offset=offset,
            terminal=network.name_of(target) if target else "",
            terminal_why=placement.why if placement is not None and placement.target == target else "",
            routes=[],
            route_why="",
        )
        if record is None:
            return reason
        return msgspec.structs.replace(
            reason,
            routes=[self._names([network.me, *route]) for route in record.routes],
            route_why=self._named(record.why),
            sent_at=record.sent_at,
            kept_at=record.kept_at,
            arrived_at=record.arrived_at,
        )

    def _whom_to_ask(self) -> str:
        """A terminal in transit says what it can: it has parcels, none that it could open."""
        kept = len(self._network.carrier.transits)
        sealed = f"; {counted(kept, 'parcel')} on the way through here, sealed" if kept else ""
        return super()._whom_to_ask() + sealed

    # -- routes and links --------------------------------------------------------------------------

    async def show_route(self, caller: TokenBearer, request: table.RouteShow) -> table.RouteShown:
        network = self._network
        start = network.find(request.source) if request.source else network.me
        parts = {
            terminal: parts
            for terminal, peer in network.peers.items()
            if (parts := peer.meter.parts) is not None
        }
        explained = network.routes.explain(network.find(request.there), source=start, parts=parts)

        def path(found: Any) -> table.PathCost:
            return table.PathCost(hops=self._names([start, *found.hops]), cost=found.cost)

        return table.RouteShown(
            from_=network.name_of(start),
            to=network.name_of(explained.there),
            best=path(explained.best) if explained.best else None,
            current=path(explained.current) if explained.current else None,
            why=self._named(explained.why),
            alternates=[path(alternate) for alternate in explained.alternates],
            links=[
                table.LinkCost(
                    from_=network.name_of(link.here),
                    to=network.name_of(link.there),
                    cost=link.cost,
                    here_says=link.here_says,
                    there_says=link.there_says,
                    planned=network.routes.graph.planned(link.here, link.there),
                    parts=link.parts,
                )
                for link in explained.links
            ],
        )

    async def show_topology(self, caller: TokenBearer, request: table.Nothing) -> table.TopologyShown:
        network = self._network
        states = network.states.states
        terminals = []
        for entry in network.directory.terminals:
            state = states.get(entry.id)
            terminals.append(
                table.KnownTerminal(
                    id=entry.id,
                    name=entry.name,
                    mode=entry.mode,
                    region=entry.region,
                    address=entry.address,
                    transit=entry.mode == "server" and entry.transit,
                    alive=state is not None,
                    reachable=entry.id == network.me or network.routes.best(entry.id) is not None,
                    consumers=sum(state.groups.values()) if state is not None else 0,
                    load=state.load if state is not None else 0.0,
                    draining=entry.draining,
                )
            )
        links = []
        for here, state in sorted(states.items()):
            for there, cost in sorted(state.links.items()):
                back = states[there].links.get(here) if there in states else None
                if here < there or back is None:
                    links.append(
                        table.KnownLink(
                            from_=network.name_of(here),
                            to=network.name_of(there),
                            cost=None if back is None else max(cost, back),
                            up=back is not None,
                        )
                    )
        return table.TopologyShown(
            me=network.name_of(network.me),
            registry_up=network.registry_up,
            directory_version=network.directory.version,
            terminals=terminals,
            links=links,
            failures=self._failures(),
            single_points={
                network.name_of(terminal): self._names(cut)
                for terminal, cut in network.routes.single_points().items()
            },
        )

    async def show_network(self, caller: TokenBearer, request: table.Nothing) -> table.NetworkShown:
        network = self._network
        return table.NetworkShown(
            terminal=network.me,
            customer=network.identity.customer,
            mode=network.mode,
            registry_up=network.registry_up,
            refusal=str(network.refusal) if network.refusal is not None else "",
            certificate_ends_at=network.certificate_ends_at,
            links=sorted(map(network.name_of, network.peers)),
            failures=self._failures(),
            forwarder=msgspec.to_builtins(network.forwarder.totals),
            arrivals=msgspec.to_builtins(network.arrivals.totals),
            carrier=msgspec.to_builtins(network.carrier.totals),
            in_transit=len(network.carrier.transits),
            awaiting_key=network.arrivals.table.on_shelf,
            placements=[
                table.PlacementRow(
                    topic=placement.topic,
                    group=placement.group,
                    to=network.name_of(placement.target) if placement.target else "",
                    why=placement.why,
                    since=placement.since,
                )
                for placement in network.forwarder.placements.values()
            ],
            lanes=[
                table.LaneRow(
                    topic=topic,
                    to=network.name_of(terminal),
                    on_the_way=len(lane.outbound.shipments),
                    bytes=lane.outbound.bytes,
                    waits_for=lane.waits_for,
                )
                for (topic, terminal), lane in network.forwarder.lanes.items()
            ],
        )

    def _failures(self) -> dict[str, str]:
        """By terminal: why there is no link to it."""
        links = self._network.links
        # Where a dial has failed, the other terminal may have made the link.
        return {self._network.name_of(id): why for id, why in links.failures.items() if id not in links.peers}

    def _names(self, terminals: list[str]) -> list[str]:
        return [self._network.name_of(terminal) for terminal in terminals]

    def _named(self, text: str) -> str:
        """A text for people, with names instead of ids."""
        for entry in self._network.directory.terminals:
            text = text.replace(entry.id, entry.name)
        return text
