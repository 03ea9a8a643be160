"""Operations on the nodes of a terminal."""

from __future__ import annotations

from typing import Annotated, Literal

from landbridge.protocol.operations.common import Nothing
from landbridge.protocol.operations.operation import Arguments, Result, about, operation

NodeName = Annotated[str, about("What the node is called: --node of 'landbridge up'.")]


class OfNode(Arguments, frozen=True):
    """A node."""

    name: NodeName


class NodeFind(Arguments, frozen=True):
    """Topics that a client uses."""

    topics: Annotated[list[str], about("Their names; 1000 are looked at.")]


class NodesFound(Result, frozen=True, kw_only=True):
    """Who has topics, so that their clients can go there."""

    urls: Annotated[
        dict[str, str],
        about("By topic: where the node's bus port is. Left out is what the node that was asked has itself."),
    ]


class NodeRow(Result, frozen=True, kw_only=True):
    """A node: one of several processes that are one terminal."""

    name: NodeName
    id: Annotated[str, about("Random, another one for each start of its process.")]
    state: Annotated[
        Literal["live", "draining", "gone"],
        about("'draining': it gives its units up; 'gone': it hasn't been heard of for its lease."),
    ]
    units: Annotated[list[int], about("The units that it has, in their order.")]
    home: Annotated[bool, about("It has the first unit, and with it the registry and the links.")]
    here: Annotated[bool, about("It is the node that was asked.")]
    url: Annotated[str, about("Where its bus port is.")]
    http: Annotated[str, about("Where it answers HTTP; empty: it doesn't.")]
    version: Annotated[str, about("Its version of Landbridge.")]
    started_at: Annotated[int, about("When it was first heard of, by the clock of the store's server.")]
    expires_at: Annotated[int, about("When it counts as gone if it isn't heard of again, by that clock.")]


class NodeRows(Result, frozen=True, kw_only=True):
    """The nodes of a terminal, and what of it is at no node."""

    nodes: Annotated[list[NodeRow], about("The nodes, by name; none where there is one process alone.")]
    units: Annotated[int, about("Into how many units the terminal is divided.")] = 0
    free: Annotated[int, about("Units that no live node has.")] = 0
    together: Annotated[bool, about("All units are to be at one node.")] = False
    time: Annotated[int, about("The clock of the store's server, in microseconds.")] = 0
    trouble: Annotated[
        str, about("Why the node that was asked can't reach the table of nodes; empty: it can.")
    ] = ""


# -- the entries ---------------------------------------------------------------------------------------

NODE_LIST = operation(
    "node.list", Nothing, NodeRows, "GET /v1/nodes", "List the nodes of the terminal.", scope="observe",
    where="here",
)  # fmt: skip
NODE_SHOW = operation(
    "node.show", OfNode, NodeRow, "GET /v1/nodes/{name}", "Show a node.", scope="observe", where="here",
)  # fmt: skip
NODE_FIND = operation(
    "node.find", NodeFind, NodesFound, "POST /v1/nodes/find",
    "Tell which nodes have topics. Any node takes everything; going to the right one spares a hop.",
    safe=True, where="here",
)  # fmt: skip
NODE_DRAIN = operation(
    "node.drain", OfNode, NodeRow, "POST /v1/nodes/{name}/drain",
    "Have a node give its units to others, and take none, also after it was restarted.", scope="operate",
    where="home",
)  # fmt: skip
NODE_RESUME = operation(
    "node.resume", OfNode, NodeRow, "POST /v1/nodes/{name}/resume",
    "Let a node that was drained take units again.", scope="operate",
    where="home",
)  # fmt: skip
