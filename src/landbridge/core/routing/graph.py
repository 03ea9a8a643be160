"""The graph of a customer's terminals: which links there are, and the cheapest paths over them.

A path has at most eight links, so the cheapest path is not what Dijkstra finds: over 10,000 terminals every
third of his paths would be longer, though another one, a little dearer, would do. Bellman and Ford's rounds
give the cheapest path of at most k links after round k, which is the question. As vector operations over all
links they are also faster than a Dijkstra in Rust (docs/sizing.md).

Arcs lead from a terminal that carries what isn't its own, to a neighbour. The first link of a path is not one
of them: there the source starts, which may be a client.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, pairwise
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import rustworkx

from landbridge.core.routing.linkstate import COST_MOST, LinkState, link_cost
from landbridge.core.trust.directory import Directory, TerminalEntry

#: The most links in a path.
HOPS = 8
#: What a terminal that is being emptied adds to the paths through it, in ms: it is the last resort.
DRAINING = 10_000.0
#: What sharing a terminal or a link adds when an alternate is sought: more than any path can cost.
_SHARED = HOPS * (COST_MOST + DRAINING) * 2

_Floats: TypeAlias = npt.NDArray[np.float64]
_Indices: TypeAlias = npt.NDArray[np.intp]


class Path(msgspec.Struct, frozen=True):
    hops: tuple[
        str, ...
    ]  #: the terminals after the source, the destination last; empty: it is the source itself
    cost: float  #: ms

    @property
    def through(self) -> tuple[str, ...]:
        """Those that carry what isn't theirs."""
        return self.hops[:-1]


class _Arcs(msgspec.Struct, frozen=True):
    """All arcs as columns, by the terminal that they lead to."""

    tails: _Indices  #: where each comes from
    costs: _Floats
    firsts: _Indices  #: of each terminal, the first of the arcs to it; one more at the end
    heads: _Indices  #: the terminals that any arc leads to
    starts: _Indices  #: of each of these, the first of its arcs


class Tree:
    """The cheapest paths from one source to everywhere, of at most 0, 1, … HOPS links."""

    def __init__(
        self, names: list[str], source: int, arcs: _Arcs, costs: _Floats, first_links: _Floats
    ) -> None:
        self._names = names
        self._source = source
        self._arcs = arcs
        self._costs = costs
        #: rounds[k][v]: the least cost of reaching v over at most k links; infinite where that is impossible.
        self._rounds = [np.full(len(names), np.inf), first_links]
        self._rounds[0][source] = first_links[source] = 0.0
        while len(self._rounds) <= HOPS and self._relax():
            pass

    def _relax(self) -> bool:
        arcs, last = self._arcs, self._rounds[-1]
        if not len(arcs.heads):
            return False
        cheapest = np.minimum.reduceat(last[arcs.tails] + self._costs, arcs.starts)
        following = last.copy()
        following[arcs.heads] = np.minimum(last[arcs.heads], cheapest)
        if np.array_equal(following, last):
            return False
        self._rounds.append(following)
        return True

    def hops(self, there: int) -> tuple[str, ...] | None:
        """The terminals on the way. Backwards: which neighbour explains the cost? The sums are the very ones
        that ``_relax`` made, so the least is the one that it took."""
        found: list[int] = []
        at, k = there, len(self._rounds) - 1
        if math.isinf(self._rounds[k][at]):
            return None
        while at != self._source:
            while k > 1 and self._rounds[k - 1][at] == self._rounds[k][at]:
                k -= 1  # fewer links do as well
            found.append(at)
            if k == 1:
                break
            first, end = self._arcs.firsts[at], self._arcs.firsts[at + 1]
            tails = self._arcs.tails[first:end]
            sums = self._rounds[k - 1][tails] + self._costs[first:end]
            # Of several as good, the first in the directory: the same every time.
            at, k = int(tails[sums == sums.min()].min()), k - 1
        return tuple(self._names[index] for index in reversed(found))


class Graph:
    def __init__(self, directory: Directory, states: Mapping[str, LinkState]) -> None:
        #: Changes with every change of a link, a cost or of who carries what.
        self.version = 0
        revoked = frozenset(directory.revoked)
        self._entries: dict[str, TerminalEntry] = {
            entry.id: entry for entry in directory.terminals if entry.id not in revoked
        }
        #: Terminals that get nothing new, by the directory or by their own word.
        self.draining: set[str] = set()
        #: (terminal, neighbour) → what the link costs by the long-term plan, in ms. In both directions.
        self._planned: dict[tuple[str, str], float] = {}
        for here, there, cost in directory.planned:
            ends = directory.terminals[here].id, directory.terminals[there].id
            self._planned[ends] = self._planned[ends[::-1]] = cost
        #: Terminal → neighbour → cost of the link between them, in ms. In both directions.
        self.links: dict[str, dict[str, float]] = {id: {} for id in self._entries}
        #: Index → terminal, and back.
        self._names = list(self._entries)
        self._indices = {name: index for index, name in enumerate(self._names)}
        #: Index of a terminal → index of a neighbour that carries for others → cost of the arc from there.
        self._into: list[dict[int, float]] = [{} for _ in self._names]
        #: The same as columns; None: to be made anew.
        self._arcs: _Arcs | None = None
        self.update(states, self._names)

    def __contains__(self, terminal: str) -> bool:
        return terminal in self._entries

    def terminals(self) -> Iterator[TerminalEntry]:
        return iter(self._entries.values())

    def carries(self, terminal: str) -> bool:
        """May it have a part in what is neither from nor for it?"""
        entry = self._entries[terminal]
        return entry.mode == "server" and entry.transit

    def planned(self, here: str, there: str) -> float | None:
        """What a link costs by the long-term plan, in ms; None: the plan has no such link."""
        return self._planned.get((here, there))

    def update(self, states: Mapping[str, LinkState], changed: Iterable[str]) -> bool:
        """Takes over what these terminals say. Whether that makes a difference."""
        differs = False
        for here in changed:
            if here in self._entries:
                differs |= self._update_draining(here, states.get(here))
                reported = states[here].links if here in states else {}
                for there in self.links[here].keys() | reported.keys():
                    differs |= self._update_link(here, there, states)
        if differs:
            self.version += 1
            self._arcs = None
        return differs

    def cost(self, source: str, hops: Iterable[str]) -> float:
        """Of this very path, now; infinite if a link of it is gone or one on it carries nothing."""
        total, on_way = 0.0, (source, *hops)
        for place, (here, there) in enumerate(pairwise(on_way)):
            if here not in self._entries or (place and not self.carries(here)):
                return math.inf
            total += self.links[here].get(there, math.inf)
            total += DRAINING if place and here in self.draining else 0.0
        return total

    def path(self, source: str, there: str, tree: Tree) -> Path | None:
        hops = tree.hops(self._indices[there])
        return None if hops is None else Path(hops, self.cost(source, hops))

    def tree(self, source: str, *, avoid: Collection[str] = (), apart_from: Iterable[Path] = ()) -> Tree:
        """Of the paths that go through none of ``avoid``, the cheapest; or rather, those that share least
        with the paths ``apart_from``, and of these the cheapest."""
        arcs = self._columns()
        costs = arcs.costs
        first_links = np.full(len(self._names), np.inf)
        for there, cost in self.links[source].items():
            first_links[self._indices[there]] = cost
        if avoid or apart_from:
            costs = costs.copy()
        for terminal in avoid:
            if terminal in self._indices and terminal != source:
                self._add_to_terminal(terminal, math.inf, arcs, costs, first_links)
        for path in apart_from:
            for terminal in path.through:
                self._add_to_terminal(terminal, _SHARED, arcs, costs, first_links)
            first_links[self._indices[path.hops[0]]] += _SHARED
            for here, there in pairwise((source, *path.hops)):
                self._add_to_arc(here, there, _SHARED, arcs, costs)
        return Tree(self._names, self._indices[source], arcs, costs, first_links)

    def dominators(self, source: str) -> dict[str, str]:
        """Terminal → the last one that every path to it from the source goes through; the source itself, if
        there is no other such one. Only those that can be reached."""
        if source not in self._indices:
            return {}
        graph: rustworkx.PyDiGraph[int, None] = rustworkx.PyDiGraph()
        graph.add_nodes_from(range(len(self._names)))
        graph.add_edges_from_no_data([(tail, at) for at, tails in enumerate(self._into) for tail in tails])
        start = self._indices[source]
        graph.add_edges_from_no_data([(start, self._indices[there]) for there in self.links[source]])
        found = rustworkx.immediate_dominators(graph, start)
        return {self._names[at]: self._names[above] for at, above in found.items() if at != start}

    # -- inside ------------------------------------------------------------------------------------

    def _update_draining(self, here: str, state: LinkState | None) -> bool:
        drains = self._entries[here].draining or (state is not None and state.draining)
        if drains == (here in self.draining):
            return False
        self.draining ^= {here}
        for there, cost in self.links[here].items():
            self._put_arc(here, there, cost)
        return True

    def _update_link(self, here: str, there: str, states: Mapping[str, LinkState]) -> bool:
        if there not in self._entries or here == there:
            return False
        if self._entries[here].mode == self._entries[there].mode == "client":
            return False
        cost = link_cost(states.get(here), states.get(there))
        if math.isinf(cost):
            cost = self._vouched(here, there, states)
        if cost == self.links[here].get(there, math.inf):
            return False
        for tail, head in ((here, there), (there, here)):
            if math.isinf(cost):
                del self.links[tail][head]
            else:
                self.links[tail][head] = cost
            self._put_arc(tail, head, cost)
        return True

    def _vouched(self, here: str, there: str, states: Mapping[str, LinkState]) -> float:
        """What a link costs of which one end tells, while nothing at all is known of the other: the plan
        stands in for that end, never for both, and never for one that tells of other links."""
        planned = self._planned.get((here, there))
        if planned is None or (here in states) == (there in states):
            return math.inf
        end, beyond = (here, there) if here in states else (there, here)
        return max(states[end].links.get(beyond, math.inf), planned)

    def _put_arc(self, tail: str, head: str, cost: float) -> None:
        if not self.carries(tail):
            return
        arcs, index = self._into[self._indices[head]], self._indices[tail]
        if math.isinf(cost):
            del arcs[index]
        else:
            arcs[index] = cost + (DRAINING if tail in self.draining else 0.0)

    def _columns(self) -> _Arcs:
        if self._arcs is None:
            counts = np.fromiter(map(len, self._into), np.intp, len(self._into))
            firsts = np.concatenate(([0], np.cumsum(counts)))
            total = int(firsts[-1])
            heads = np.flatnonzero(counts)
            self._arcs = _Arcs(
                tails=np.fromiter(chain.from_iterable(self._into), np.intp, total),
                costs=np.fromiter(
                    chain.from_iterable(arcs.values() for arcs in self._into), np.float64, total
                ),
                firsts=firsts,
                heads=heads,
                starts=firsts[heads],
            )
        return self._arcs

    def _add_to_terminal(
        self, terminal: str, extra: float, arcs: _Arcs, costs: _Floats, first_links: _Floats
    ) -> None:
        index = self._indices[terminal]
        costs[arcs.firsts[index] : arcs.firsts[index + 1]] += extra
        first_links[index] += extra

    def _add_to_arc(self, here: str, there: str, extra: float, arcs: _Arcs, costs: _Floats) -> None:
        tail, head = self._indices[here], self._indices[there]
        first, end = arcs.firsts[head], arcs.firsts[head + 1]
        costs[first:end][arcs.tails[first:end] == tail] += extra
