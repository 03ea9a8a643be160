"""Operations on routes, topology and network."""

from __future__ import annotations

from typing import Annotated

import msgspec

from landbridge.core.routing.meter import Parts
from landbridge.protocol.operations.common import GroupName, Names, Nothing, TerminalName, TopicName
from landbridge.protocol.operations.operation import Arguments, Result, about, operation


class RouteShow(Arguments, frozen=True):
    """Two terminals, by name or id."""

    there: Annotated[str, about("Where the route ends.")]
    source: Annotated[str | None, about("Where it begins; None: this terminal.")] = None


class Between(Result, frozen=True, kw_only=True):
    """Two terminals, by name."""

    from_: Annotated[str, about("One end.")] = msgspec.field(name="from")
    to: Annotated[str, about("The other end.")]


class PathCost(Result, frozen=True, kw_only=True):
    """A path between terminals."""

    hops: Annotated[Names, about("The terminals, both ends included.")]
    cost: Annotated[float, about("Sum of its links' costs, in milliseconds.")]


class LinkCost(Between, frozen=True, kw_only=True):
    """What a link costs, and why."""

    cost: Annotated[float, about("Milliseconds: the greater of what the two ends say.")]
    here_says: Annotated[float | None, about("What the first end says; None: nothing any more.")]
    there_says: Annotated[float | None, about("What the second end says; None: nothing any more.")]
    planned: Annotated[float | None, about("What the long-term plan says; None: nothing.")]
    parts: Annotated[Parts | None, about("How the cost came about, for a link of this terminal.")]


class RouteShown(Between, frozen=True, kw_only=True):
    """The paths between two terminals."""

    best: Annotated[PathCost | None, about("The cheapest now; None: there is no path.")]
    current: Annotated[PathCost | None, about("The one in use; None: none is.")]
    why: Annotated[str, about("Why the current one is in use, or why there is no path.")]
    alternates: Annotated[list[PathCost], about("Other paths.")]
    links: Annotated[list[LinkCost], about("The links of all these paths.")]


class KnownTerminal(Result, frozen=True, kw_only=True):
    """A terminal of the customer, as this terminal sees it."""

    id: Annotated[str, about("Its id.")]
    name: TerminalName
    mode: Annotated[str, about("'server': it listens; 'client': it only dials.")]
    region: Annotated[str, about("Where it is; empty if nobody has said.")]
    address: Annotated[str, about("Where it listens; empty for a client.")]
    transit: Annotated[bool, about("Others may send through it.")]
    alive: Annotated[bool, about("It tells the others of its links.")]
    reachable: Annotated[bool, about("There is a path to it.")]
    consumers: Annotated[int, about("Consumers connected to it.")]
    load: Annotated[float, about("How busy it is, from 0 to 1.")]
    draining: Annotated[bool, about("It is being emptied and gets nothing new.")]


class KnownLink(Between, frozen=True, kw_only=True):
    """A link between two terminals."""

    cost: Annotated[float | None, about("Milliseconds; None while only one end tells of it.")]
    up: Annotated[bool, about("Both ends tell of it.")]


class TopologyShown(Result, frozen=True, kw_only=True):
    """The terminals of the customer and their links."""

    me: Annotated[str, about("The terminal that answers.")]
    registry_up: Annotated[bool, about("The registry answers this terminal.")]
    directory_version: Annotated[int, about("Version of the directory that it has.")]
    terminals: Annotated[list[KnownTerminal], about("All terminals of the directory.")]
    links: Annotated[list[KnownLink], about("All links that a terminal has told of.")]
    failures: Annotated[dict[str, str], about("By terminal: why there is no link to it.")]
    single_points: Annotated[dict[str, Names], about("By terminal: which others it would cut off.")]


class PlacementRow(Result, frozen=True, kw_only=True):
    """Which terminal serves a group."""

    topic: TopicName
    group: GroupName
    to: Annotated[str, about("The terminal that gets its messages; empty if none was found.")]
    why: Annotated[str, about("Why that one.")]
    since: Annotated[int, about("Since when, in microseconds.")]


class LaneRow(Result, frozen=True, kw_only=True):
    """What goes from this terminal to another one, of one topic."""

    topic: TopicName
    to: Annotated[str, about("The terminal.")]
    on_the_way: Annotated[int, about("Shipments that have not been confirmed.")]
    bytes: Annotated[int, about("Bytes of these shipments.")]
    waits_for: Annotated[str, about("What has to happen before more is sent; empty: nothing.")]


class NetworkShown(Result, frozen=True, kw_only=True):
    """What goes on between this terminal and the others."""

    terminal: Annotated[str, about("Id of this terminal.")]
    customer: Annotated[str, about("Its customer.")]
    mode: Annotated[str, about("'server' or 'client'.")]
    registry_up: Annotated[bool, about("The registry answers.")]
    refusal: Annotated[str, about("Why the registry refuses this terminal; empty: it does not.")]
    certificate_ends_at: Annotated[int, about("When the registry's certificate ends; 0: it has none.")]
    links: Annotated[Names, about("The terminals that it has a link to.")]
    failures: Annotated[dict[str, str], about("By terminal: why there is no link to it.")]
    forwarder: Annotated[dict[str, int], about("Counts of what was sent, since the start.")]
    arrivals: Annotated[dict[str, int], about("Counts of what has arrived, since the start.")]
    carrier: Annotated[dict[str, int], about("Counts of parcels on links, since the start.")]
    in_transit: Annotated[int, about("Parcels of others that it keeps.")]
    awaiting_key: Annotated[int, about("Parcels that wait for the key to open them.")]
    placements: Annotated[list[PlacementRow], about("Groups that another terminal may serve.")]
    lanes: Annotated[list[LaneRow], about("What is sent where.")]


# -- the entries ---------------------------------------------------------------------------------------


ROUTE_SHOW = operation(
    "route.show", RouteShow, RouteShown, "GET /v1/routes/{there}",
    "Show the paths between two terminals and what each link costs.", scope="observe",
    where="home",
)  # fmt: skip
TOPOLOGY_SHOW = operation(
    "topology.show", Nothing, TopologyShown, "GET /v1/topology",
    "Show the customer's terminals and their links.", scope="observe",
    where="home",
)  # fmt: skip
NETWORK_SHOW = operation(
    "network.show", Nothing, NetworkShown, "GET /v1/network",
    "Show what goes on between this terminal and the others.", scope="observe",
    where="home",
)  # fmt: skip
