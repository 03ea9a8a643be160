"""What can be asked about a message and its way: where it is, why it went there, when it has arrived; and
about the links and routes between terminals."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, cast

import msgspec

from landbridge.core.log.ranges import intersect
from landbridge.core.shipping.parcel import Ask
from landbridge.core.wording import counted
from landbridge.errors import BadRequest, UnknownGroup, UnknownMessage

if TYPE_CHECKING:
    from landbridge.broker.connection import Connection
    from landbridge.broker.group import Group
    from landbridge.broker.server import Terminal
    from landbridge.broker.topic import Topic
    from landbridge.core.log.batch import Batch
    from landbridge.crossing.forwarder import Record
    from landbridge.crossing.network import Network

SECOND = 1_000_000
LEVELS = ("stored", "arrived", "acked")
#: Seconds before the moment in a message's id from which on it is looked for: its producer's clock may be
#: ahead.
BEFORE = 300
#: Batches that a search reads in one topic at most.
MOST_BATCHES = 20_000
#: Seconds for an answer from another terminal.
ANSWER_WITHIN = 2.0


class Inquiries:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._broker = terminal.broker

    @property
    def _joined(self) -> Network | None:
        return cast("Network | None", self._broker.crossing)

    def _network(self) -> Network:
        network = self._joined
        if network is None:
            raise BadRequest("this terminal stands alone", hint="start it with a registry and an identity")
        return network

    # -- messages ----------------------------------------------------------------------------------

    async def message_wait(
        self, connection: Connection, topic: str, offset: int, until: str = "arrived"
    ) -> object:
        """Until a message that was published here is where ``until`` says, for every durable group."""
        connection.scopes.demand("publish", topic)
        if until not in LEVELS:
            raise BadRequest(f"no level {until[:60]!r}", hint=", ".join(LEVELS))
        found = self._broker.topic(topic)
        if not 0 <= offset < found.log.end:
            raise BadRequest(f"{topic} has no offset {offset} yet")
        if until != "stored":
            if self._joined is not None:
                await self._joined.until_known(topic)
                self._joined.forwarder.place()
            groups = [group for group in found.groups.values() if group.durable]
            if not groups:
                raise UnknownGroup(
                    f"it is stored at offset {offset}, but {topic} has no group that it could reach",
                    hint="add one with 'landbridge topic add-group', or subscribe with a group",
                )
            await asyncio.gather(*(self._reached(group, offset, until) for group in groups))
        return {"topic": topic, "offset": offset, "until": until}

    async def _reached(self, group: Group, offset: int, until: str) -> None:
        network = self._joined
        is_here = network is None or await self._is_here(network, group)
        if is_here and until == "arrived":
            return
        await self._broker.until_settled(group, offset)
        if until == "acked" and not is_here and network is not None:
            await network.forwarder.acked(group.topic, group.name, offset)

    async def _is_here(self, network: Network, group: Group) -> bool:
        """Are its consumers at this terminal? Waits until that is decided."""
        while not group.deleted:
            entry = network.topics.get(group.topic.name)
            if entry is None or group.name not in entry.groups:
                return True
            placement = network.forwarder.placements.get((group.topic.name, group.name))
            if placement is not None and placement.target:
                return placement.target == network.me
            await asyncio.sleep(0.05)
        return True

    async def message_where(self, connection: Connection, id: str, topic: str | None = None) -> object:
        """Every place that this terminal knows of where a message is."""
        rows = []
        for found, offset, batch in await self._find(connection, id, topic):
            origin = batch.origin
            rows.append(
                {
                    "id": id,
                    "topic": found.name,
                    "terminal": self._terminal.name,
                    "offset": offset,
                    "published_at": batch.time,
                    "came_by": self._names(origin.via) if origin is not None else [],
                    "arrived_at": origin.arrived_at if origin is not None else 0,
                    "groups": [
                        await self._in_group(group, offset)
                        for group in list(found.groups.values())
                        if group.durable and (batch.audience is None or group.name in batch.audience)
                    ],
                }
            )
        return {"places": rows}

    async def _in_group(self, group: Group, offset: int) -> dict[str, Any]:
        network = self._joined
        if network is not None and group.forwarded:
            return await self._elsewhere(network, group, offset)
        row = {
            "group": group.name,
            "at": self._terminal.name,
            "state": "waiting",
            "waits_for": "",
            "route": [],
        }
        if group.settled(offset):
            row["state"] = "settled"
            return row
        for lease in group.delivery.leases.values():
            if intersect(lease.remaining, [(offset, offset + 1)]):
                consumer = group.consumers.get(lease.holder.number)
                row["state"] = "leased"
                row["waits_for"] = f"the ack of {consumer.connection.who}" if consumer else "its lease to end"
                return row
        tried = group.delivery.cursor.tries.get(offset)
        if tried is not None:
            row["waits_for"] = f"another attempt after {tried.attempts}"
        elif not group.consumers:
            row["waits_for"] = "a consumer"
        else:
            row["waits_for"] = "its turn"
        return row

    async def _elsewhere(self, network: Network, group: Group, offset: int) -> dict[str, Any]:
        topic, forwarder = group.topic, network.forwarder
        target = forwarder.went_to(topic.name, group.name, offset)
        record = forwarder.record_of(topic.name, group.name, offset)
        row: dict[str, Any] = {
            "group": group.name,
            "at": self._terminal.name,
            "to": network.name_of(target) if target else "",
            "route": self._names([network.me, *record.routes[-1]]) if record and record.routes else [],
            "waits_for": "",
        }
        if group.settled(offset):
            ask = Ask(topic.name, topic.created_at, group.name, offset, False)
            told = await forwarder.ask(target, ask, ANSWER_WITHIN) if target else None
            row["at"] = row["to"] or "another terminal"
            if told is None:
                row |= {"state": "arrived", "waits_for": "", "said": "no answer from there now"}
            else:
                row |= {"state": told.state, "came_by": self._names(told.via), "arrived_at": told.arrived_at}
                if told.state in ("waiting", "leased"):
                    row["waits_for"] = "a consumer there"
            return row
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
            row |= {"state": "waiting", "waits_for": waits}
        elif shipment is None or shipment.hop == "":
            waits = lane.waits_for if lane is not None else ""
            row |= {"state": "waiting", "waits_for": waits or "its turn to be shipped"}
        elif shipment.hop is None:
            row |= {"state": "on its way", "at": network.name_of(shipment.route[0])}
            row["waits_for"] = f"word from {row['to']} that it has arrived"
        else:
            row |= {"state": "on a link", "waits_for": f"{network.name_of(shipment.hop)} to keep it"}
        return row

    async def message_why(self, connection: Connection, id: str, topic: str | None = None) -> object:
        """Why it went to which terminal, and by which way."""
        network = self._network()
        rows = []
        for found, offset, _ in await self._find(connection, id, topic):
            for group in list(found.groups.values()):
                record = network.forwarder.record_of(found.name, group.name, offset)
                placement = network.forwarder.placements.get((found.name, group.name))
                if record is not None or placement is not None:
                    rows.append(self._why(network, group.name, offset, record, placement))
        return {"id": id, "groups": rows}

    def _why(
        self, network: Network, group: str, offset: int, record: Record | None, placement: Any
    ) -> dict[str, Any]:
        target = record.destination if record is not None else placement.target
        row: dict[str, Any] = {
            "group": group,
            "offset": offset,
            "terminal": network.name_of(target) if target else "",
            "terminal_why": placement.why if placement is not None and placement.target == target else "",
            "routes": [],
            "route_why": "",
        }
        if record is not None:
            row["routes"] = [self._names([network.me, *route]) for route in record.routes]
            row["route_why"] = self._named(network, record.why)
            row["sent_at"], row["kept_at"] = record.sent_at, record.kept_at
            row["arrived_at"] = record.arrived_at
        return row

    async def _find(
        self, connection: Connection, id: str, topic: str | None
    ) -> list[tuple[Topic, int, Batch]]:
        """A message by its id. Ids that the bus has made say when, which tells where to look; for others the
        topic must be named, and its newest batches are searched."""
        batch_id, moment = _parse(id)
        if batch_id is None and topic is None:
            raise BadRequest("that id was given by its producer", hint="name the topic with --topic")
        names = [topic] if topic is not None else [n for n in self._broker.topics if not n.startswith("$")]
        found = []
        for name in names:
            if not (connection.scopes.may("subscribe", name) or connection.scopes.may("publish", name)):
                continue
            place = await self._search(self._broker.topic(name), id, batch_id, moment)
            if place is not None:
                found.append(place)
        if not found:
            raise UnknownMessage(f"no message {id[:100]!r} here", hint=self._ask_elsewhere())
        return found

    def _ask_elsewhere(self) -> str:
        """Whom to ask. A terminal in transit says what it can: it has parcels, none that it could open."""
        network = self._joined
        kept = len(network.carrier.transits) if network is not None else 0
        sealed = f"; {counted(kept, 'parcel')} on the way through here, sealed" if kept else ""
        return UnknownMessage.default_hint + sealed

    async def _search(
        self, topic: Topic, id: str, batch_id: bytes | None, moment: int
    ) -> tuple[Topic, int, Batch] | None:
        log = topic.log
        at = log.first
        if batch_id is not None:
            seek = self._broker.store.seek_time
            start = moment - BEFORE * SECOND
            at = max(at, await asyncio.get_running_loop().run_in_executor(None, seek, log.number, start))
        for _ in range(MOST_BATCHES):
            here = await log.read(at)
            if here is None:
                return None
            first, batch = here
            if batch_id is None or batch.id == batch_id:
                for index in range(len(batch)):
                    if batch.id_of(index) == id:
                        return topic, first + index, batch
            at = first + len(batch)
        return None

    # -- routes ------------------------------------------------------------------------------------

    async def route_show(self, connection: Connection, there: str, source: str | None = None) -> object:
        connection.scopes.demand_admin("see routes")
        network = self._network()
        start = network.find(source) if source else network.me
        parts = {
            terminal: parts
            for terminal, peer in network.peers.items()
            if (parts := peer.meter.parts) is not None
        }
        explained = network.routes.explain(network.find(there), source=start, parts=parts)

        def path(found: Any) -> dict[str, Any] | None:
            if found is None:
                return None
            return {"hops": self._names([start, *found.hops]), "cost": found.cost}

        return {
            "from": network.name_of(start),
            "to": network.name_of(explained.there),
            "best": path(explained.best),
            "current": path(explained.current),
            "why": self._named(network, explained.why),
            "alternates": [path(alternate) for alternate in explained.alternates],
            "links": [
                {
                    "from": network.name_of(link.here),
                    "to": network.name_of(link.there),
                    "cost": link.cost,
                    "here_says": link.here_says,
                    "there_says": link.there_says,
                    "planned": network.routes.graph.planned(link.here, link.there),
                    "parts": None if link.parts is None else msgspec.to_builtins(link.parts),
                }
                for link in explained.links
            ],
        }

    async def topology_show(self, connection: Connection) -> object:
        connection.scopes.demand_admin("see the topology")
        network = self._network()
        states = network.states.states
        terminals = []
        for entry in network.directory.terminals:
            state = states.get(entry.id)
            terminals.append(
                {
                    "id": entry.id,
                    "name": entry.name,
                    "mode": entry.mode,
                    "region": entry.region,
                    "address": entry.address,
                    "transit": entry.mode == "server" and entry.transit,
                    "alive": state is not None,
                    "reachable": entry.id == network.me or network.routes.best(entry.id) is not None,
                    "consumers": sum(state.groups.values()) if state is not None else 0,
                    "load": state.load if state is not None else 0.0,
                    "draining": entry.draining,
                }
            )
        links = []
        for here, state in sorted(states.items()):
            for there, cost in sorted(state.links.items()):
                back = states[there].links.get(here) if there in states else None
                if here < there or back is None:
                    links.append(
                        {
                            "from": network.name_of(here),
                            "to": network.name_of(there),
                            "cost": None if back is None else max(cost, back),
                            "up": back is not None,
                        }
                    )
        return {
            "me": network.name_of(network.me),
            "registry_up": network.registry_up,
            "directory_version": network.directory.version,
            "terminals": terminals,
            "links": links,
            "failures": {network.name_of(t): why for t, why in network.links.failures.items()},
            "single_points": {
                network.name_of(terminal): self._names(cut)
                for terminal, cut in network.routes.single_points().items()
            },
        }

    async def network_show(self, connection: Connection) -> object:
        """What goes on between this terminal and the others, in numbers."""
        connection.scopes.demand_admin("see the network")
        network = self._network()
        return {
            "terminal": network.me,
            "customer": network.identity.customer,
            "mode": network.mode,
            "registry_up": network.registry_up,
            "refusal": str(network.refusal) if network.refusal is not None else "",
            "certificate_ends_at": network.certificate_ends_at,
            "links": sorted(map(network.name_of, network.peers)),
            "failures": {network.name_of(t): why for t, why in network.links.failures.items()},
            "forwarder": msgspec.to_builtins(network.forwarder.totals),
            "arrivals": msgspec.to_builtins(network.arrivals.totals),
            "carrier": msgspec.to_builtins(network.carrier.totals),
            "in_transit": len(network.carrier.transits),
            "awaiting_key": sum(map(len, network.arrivals.waiting.values())),
            "placements": [
                {
                    "topic": placement.topic,
                    "group": placement.group,
                    "to": network.name_of(placement.target) if placement.target else "",
                    "why": placement.why,
                    "since": placement.since,
                }
                for placement in network.forwarder.placements.values()
            ],
            "lanes": [
                {
                    "topic": topic,
                    "to": network.name_of(terminal),
                    "on_the_way": len(lane.outbound.shipments),
                    "bytes": lane.outbound.bytes,
                    "waits_for": lane.waits_for,
                }
                for (topic, terminal), lane in network.forwarder.lanes.items()
            ],
        }

    def _names(self, terminals: list[str]) -> list[str]:
        network = self._joined
        return [network.name_of(t) for t in terminals] if network is not None else terminals

    def _named(self, network: Network, text: str) -> str:
        """Ids in a text for people, as names."""
        for entry in network.directory.terminals:
            text = text.replace(entry.id, entry.name)
        return text


def _parse(id: str) -> tuple[bytes | None, int]:
    """(the batch's id, when it was made) of an id that the bus has given; (None, 0) of another one."""
    head, dash, index = id.rpartition("-")
    try:
        made = uuid.UUID(hex=head)
    except ValueError:
        return None, 0
    if not dash or not index.isdigit() or made.version != 7:
        return None, 0
    return made.bytes, (made.int >> 80) * 1000
