"""What a bus of many terminals costs one of them: bytes, signatures and memory of link states, and paths.
Run by hand; docs/sizing.md has the figures.

    .venv/bin/python -m bench.sizing            # 1,000, 2,000 and 10,000 terminals
    .venv/bin/python -m bench.sizing 500 50     # 500, of them 50 servers
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import rustworkx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from landbridge.core.routing import linkstate
from landbridge.core.routing.linkstate import (
    REFRESH,
    LinkState,
    LinkStates,
    SignedLinkState,
    Verifier,
)
from landbridge.core.routing.meter import quantised
from landbridge.core.routing.routes import Routes
from landbridge.core.time import SECOND
from landbridge.core.trust.directory import Directory, PublicKeys, TerminalEntry

#: Links of a server to other servers, of a client to servers, and groups with consumers of each terminal.
SERVER_LINKS, CLIENT_LINKS, GROUPS = 8, 3, 4
NOW = 1_700_000_000 * SECOND
#: TCP, TLS and our own frame around one state on one link.
OVERHEAD = 64 + 40 + 29


def fastest(work: Callable[[], Any], times: int = 7) -> float:
    """Milliseconds of the fastest of some runs: what the work costs, without what disturbed it."""
    spans = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spans.append(time.perf_counter() - start)
    return min(spans) * 1000


class Bus:
    def __init__(self, terminals: int, servers: int) -> None:
        random = Random(terminals)
        self.ids = [f"t_{random.getrandbits(80):020x}" for _ in range(terminals)]
        self.servers = self.ids[:servers]
        #: One key for all: this measures how often, not whose.
        self.key = Ed25519PrivateKey.generate()
        keys = [PublicKeys(self.key.public_key().public_bytes_raw(), bytes(32))]
        self.links: dict[str, dict[str, float]] = {id: {} for id in self.ids}
        for place, here in enumerate(self.ids):
            wanted = SERVER_LINKS // 2 if place < servers else CLIENT_LINKS
            for there in random.sample(self.servers, min(wanted, servers)):
                if here != there:
                    cost = quantised(random.uniform(5, 200))
                    self.links[here][there] = self.links[there][here] = cost
        self.directory = Directory(
            customer="acme",
            version=1,
            terminals=[
                TerminalEntry(id=id, name=id, mode="server" if n < servers else "client", keys=keys)
                for n, id in enumerate(self.ids)
            ],
        )

    def sign(self, state: LinkState) -> SignedLinkState:
        return linkstate.sign(state, self.key, "acme")

    def state(self, id: str, sequence: int, now: int) -> SignedLinkState:
        is_server = len(self.links[id]) > CLIENT_LINKS
        return self.sign(
            LinkState(
                origin=id,
                epoch=NOW,
                sequence=sequence,
                time=now,
                region="eu-west-1",
                mode="server" if is_server else "client",
                links=self.links[id],
                groups={f"orders.region{n}/billing": 2 for n in range(GROUPS)},
                directory_version=1,
            )
        )


def measure(terminals: int, servers: int) -> None:
    bus = Bus(terminals, servers)
    me = bus.servers[0]
    signed = {id: bus.state(id, 1, NOW) for id in bus.ids}
    sizes = [len(one.body) for one in signed.values()]
    verify = Verifier(bus.directory)

    tracemalloc.start()
    states = LinkStates(me, epoch=NOW, sign=bus.sign)
    states.own(NOW, mode="server", links=bus.links[me])
    for one in list(signed.values())[1:]:
        # The signatures are timed below: 10,000 of them would be half a minute under tracemalloc.
        body = bytes(bytearray(one.body))
        states.offer(NOW, SignedLinkState(body, bytes(64)), lambda one: linkstate.decode(one.body))
    in_states = tracemalloc.get_traced_memory()[0]
    routes = Routes(me, states, bus.directory)
    routes.best(bus.ids[-1])
    in_all = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    some = [signed[id] for id in bus.ids[:200]]
    per_check = fastest(lambda: [verify(one) for one in some], 3) / len(some)
    per_repeat = fastest(lambda: [states.offer(NOW, one, verify) for one in some]) / len(some)
    graph = routes.graph
    build = fastest(lambda: Routes(me, states, bus.directory), 3)
    tree = fastest(lambda: graph.tree(me))

    def change() -> None:
        here = bus.servers[1]
        there = next(iter(bus.links[here]))
        for end, other in ((here, there), (there, here)):
            bus.links[end][other] *= 1.01
            states.states[end] = linkstate.decode(bus.state(end, 2, NOW).body)
        graph.update(states.states, [here, there])
        graph.tree(me)

    changed = fastest(change)
    there = bus.ids[-1]
    known = routes.best(there)
    assert known is not None
    alternates = 2 * fastest(lambda: graph.path(me, there, graph.tree(me, apart_from=[known])))
    kept = fastest(lambda: [routes.route(NOW, there) for _ in range(1000)]) / 1000
    single = fastest(routes.single_points, 3)

    # The same graph with rustworkx, whose paths know no limit of hops. Only servers carry.
    digraph: rustworkx.PyDiGraph[str, float] = rustworkx.PyDiGraph()
    index = dict(zip(bus.ids, digraph.add_nodes_from(bus.ids), strict=True))
    digraph.add_edges_from(
        [(index[a], index[b], cost) for a in bus.servers for b, cost in bus.links[a].items()]
    )
    paths: Any = None

    def dijkstra() -> None:
        nonlocal paths
        paths = rustworkx.digraph_dijkstra_shortest_paths(digraph, index[me], None, weight_fn=float)

    with_dijkstra = fastest(dijkstra)
    too_long = sum(len(path) - 1 > 8 for path in paths.values()) / terminals
    reached = [path for id in bus.ids if (path := routes.best(id)) is not None]

    mean = statistics.mean(sizes)
    # A server passes each state on over all of its links but the one that it came by. What all send, all get.
    fan = statistics.mean(len(bus.links[id]) for id in bus.servers)
    per_second = terminals / (REFRESH / SECOND)
    once = per_second * (mean + OVERHEAD) / 1000
    rows = [
        ("link state, mean / most", f"{mean:.0f} / {max(sizes)} B"),
        ("refreshes", f"{per_second:.1f} /s"),
        ("each state once over one link", f"{once:.1f} kB/s"),
        (f"out of a server of {fan:.0f} links, and in", f"{once * (fan - 1):.0f} kB/s at most, each"),
        ("check of a signature", f"{per_check * 1000:.0f} µs; {per_second * per_check / 10:.2f} % of a core"),
        (
            "a repeated state",
            f"{per_repeat * 1000:.1f} µs; {per_second * (fan - 2) * per_repeat / 10:.2f} % of a core",
        ),
        ("memory: states / with graph", f"{in_states / 1e6:.1f} / {in_all / 1e6:.1f} MB"),
        ("graph from nothing", f"{build:.1f} ms"),
        ("one link changed, paths to all", f"{changed:.2f} ms"),
        ("paths to all", f"{tree:.2f} ms"),
        ("  by Dijkstra in rustworkx", f"{with_dijkstra:.2f} ms; {too_long:.1%} of more than 8 hops"),
        ("  reached within 8 hops", f"{len(reached) / terminals:.1%}"),
        ("two alternates to one", f"{alternates:.2f} ms"),
        ("a route that is known", f"{kept * 1000:.2f} µs"),
        ("single points of failure", f"{single:.1f} ms"),
    ]
    print(f"\n{terminals:,} terminals, {servers:,} of them servers")
    for what, figure in rows:
        print(f"  {what:<36}{figure}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("terminals", type=int, nargs="?")
    parser.add_argument("servers", type=int, nargs="?")
    asked = parser.parse_args()
    if asked.terminals:
        measure(asked.terminals, asked.servers or asked.terminals)
        return
    for terminals, servers in ((1000, 1000), (2000, 2000), (10_000, 1000), (10_000, 10_000)):
        measure(terminals, servers)


if __name__ == "__main__":
    main()
