"""The graph of a customer's terminals: which links there are, and the cheapest paths over them.

A path has at most eight links, so the cheapest path is not what Dijkstra finds: over 10,000 terminals every
third of his paths would be longer, though another one, a little dearer, would do. Bellman and Ford's rounds
give the cheapest path of at most k links after round k, which is the question. As vector operations over all
links they are also faster than a Dijkstra in Rust (docs/sizing.md).

Arcs lead from a terminal that carries for others to a neighbour. The first link of a path is not one of them:
there the source starts, which may be a client.

``Graph`` is what a terminal routes by: it follows every change, and is asked about one source at a time.
``Mesh`` is for the long-term plan: it never changes, and is asked about all sources at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import rustworkx

from landbridge.core.routing.linkstate import COST_MOST, LinkState, link_cost
from landbridge.core.routing.plan import SinglePoint
from landbridge.core.trust.directory import Directory, TerminalEntry

#: The most links in a path.
HOPS = 8
#: What a terminal that is being emptied adds to the paths through it, in ms: it is the last resort.
DRAINING = 10_000.0
#: What sharing a terminal or a link adds when an alternate is sought: more than any path can cost.
_SHARED = HOPS * (COST_MOST + DRAINING) * 2
#: Numbers in one intermediate matrix of a mesh, arcs × destinations: 32 MB.
_BLOCK = 1 << 22

_Floats: TypeAlias = npt.NDArray[np.float64]
_Indices: TypeAlias = npt.NDArray[np.intp]


class Path(msgspec.Struct, frozen=True):
    #: The terminals after the source, the destination last; empty if the destination is the source itself.
    hops: tuple[str, ...]
    cost: float  #: ms

    @property
    def through(self) -> tuple[str, ...]:
        """The terminals that carry the parcel for others."""
        return self.hops[:-1]


class _Arcs:
    """All arcs as columns, sorted by the terminal that they lead to."""

    def __init__(self, into: Sequence[Mapping[int, float]]) -> None:
        """``into``: of each terminal, the terminals that arcs lead from to it → their costs."""
        counts = np.fromiter(map(len, into), np.intp, len(into))
        #: Of each terminal, the first of the arcs to it; one more at the end.
        self.firsts: _Indices = np.concatenate(([0], np.cumsum(counts)))
        total = int(self.firsts[-1])
        #: Where each arc comes from, and what it costs.
        self.tails = np.fromiter(chain.from_iterable(into), np.intp, total)
        self.costs = np.fromiter(chain.from_iterable(arcs.values() for arcs in into), np.float64, total)
        #: The terminals that any arc leads to, and of each of these the first of its arcs.
        self.heads = np.flatnonzero(counts)
        self.starts = self.firsts[self.heads]

    def search(self, costs: _Floats, nowhere: _Floats, first_links: _Floats) -> list[_Floats]:
        """The rounds of Bellman and Ford: [k][v] is the least cost of reaching v over at most k links,
        infinite where that is impossible. ``nowhere``, ``first_links``: the rounds for k = 0 and 1. A matrix
        is many searches at once, one in each column."""
        rounds = [nowhere, first_links]
        while len(rounds) <= HOPS and len(self.heads):
            last = rounds[-1]
            cheapest = np.minimum.reduceat(last[self.tails] + costs, self.starts)
            following = last.copy()
            following[self.heads] = np.minimum(last[self.heads], cheapest)
            if np.array_equal(following, last):
                break
            rounds.append(following)
        return rounds


class Tree:
    """The cheapest paths from one source to everywhere, of at most 0, 1, … HOPS links."""

    def __init__(
        self, names: list[str], source: int, arcs: _Arcs, costs: _Floats, first_links: _Floats
    ) -> None:
        self._names = names
        self._source = source
        self._arcs = arcs
        self._costs = costs
        nowhere = np.full(len(names), np.inf)
        nowhere[source] = first_links[source] = 0.0
        self._rounds = arcs.search(costs, nowhere, first_links)

    def hops(self, there: int) -> tuple[str, ...] | None:
        """The terminals on the way, found backwards: which neighbour explains the cost? The sums are the very
        ones that ``search`` made, so the least of them is the one that it took."""
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

    def carries(self, terminal: str) -> bool:
        """Whether parcels may pass through it that are neither from nor for it."""
        return self._entries[terminal].carries

    def planned(self, here: str, there: str) -> float | None:
        """What a link costs by the long-term plan, in ms; None: the plan has no such link."""
        return self._planned.get((here, there))

    def update(self, states: Mapping[str, LinkState], changed: Iterable[str]) -> bool:
        """Take over the states of these terminals. Returns whether that changes any link or cost."""
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
        """The cost of this path now; infinite if a link of it is gone, or a terminal on it doesn't carry."""
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
        """The cheapest paths that go through none of ``avoid``; if ``apart_from`` is given, of those that
        share least with these paths."""
        if self._arcs is None:
            self._arcs = _Arcs(self._into)
        arcs, costs = self._arcs, self._arcs.costs
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
                head = self._indices[there]
                into = slice(arcs.firsts[head], arcs.firsts[head + 1])
                costs[into][arcs.tails[into] == self._indices[here]] += _SHARED
        return Tree(self._names, self._indices[source], arcs, costs, first_links)

    def dominators(self, source: str) -> dict[str, str]:
        """Terminal → the last terminal that every path to it from the source goes through, which may be the
        source itself. Only terminals that can be reached."""
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
        """The cost of a link that one end reports, while nothing at all is known of the other end. The plan
        stands in for that end; never for both, and never for an end that reports other links."""
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

    def _add_to_terminal(
        self, terminal: str, extra: float, arcs: _Arcs, costs: _Floats, first_links: _Floats
    ) -> None:
        index = self._indices[terminal]
        costs[arcs.firsts[index] : arcs.firsts[index + 1]] += extra
        first_links[index] += extra


# --- the long-term plan -------------------------------------------------------------------------------


class Paths(NamedTuple):
    """Best paths as columns, a row for each; terminals by their places in ``Mesh.names``."""

    sources: _Indices
    destinations: _Indices
    costs: _Floats  #: ms
    #: The terminals after the source, of one path after the other.
    hops: _Indices
    #: Where in ``hops`` each path begins; one more at the end.
    firsts: _Indices

    @property
    def next_hops(self) -> _Indices:
        return self.hops[self.firsts[:-1]]


class Mesh:
    """``carries``: terminal → may it carry what is neither from nor for it? ``links``: two terminals and the
    cost, in ms, which must not be 0."""

    def __init__(self, carries: Mapping[str, bool], links: Iterable[tuple[str, str, float]]) -> None:
        self.names = sorted(carries)
        index = {name: at for at, name in enumerate(self.names)}
        self._carries = np.array([carries[name] for name in self.names], bool)
        #: Terminal → neighbour → cost.
        self._links: list[dict[int, float]] = [{} for _ in self.names]
        for here, there, cost in links:
            self._links[index[here]][index[there]] = self._links[index[there]][index[here]] = cost

    # -- paths -------------------------------------------------------------------------------------

    def paths(self, source: str | None = None) -> Iterator[Paths]:
        """Between any two terminals that can reach each other; or from this one to all that it can reach."""
        into = [{at: cost for at, cost in links.items() if self._carries[at]} for links in self._links]
        arcs, only = _Arcs(into), None if source is None else self.names.index(source)
        width = max(1, _BLOCK // max(1, len(arcs.tails)))
        for first in range(0, len(self.names), width):
            block = self._block(arcs, np.arange(first, min(first + width, len(self.names))), only)
            if len(block.sources):
                yield block

    def _block(self, arcs: _Arcs, destinations: _Indices, only: int | None) -> Paths:
        """Links cost the same in both directions, so the search starts at the destinations: where it comes
        from is then the next hop of whoever goes there."""
        count, columns = len(self.names), np.arange(len(destinations))
        nowhere = np.full((count, len(columns)), np.inf)
        nowhere[destinations, columns] = 0.0
        first_links = nowhere.copy()
        for place, destination in enumerate(destinations):
            for there, cost in self._links[destination].items():
                first_links[there, place] = cost
        costs = arcs.costs[:, None]
        rounds = arcs.search(costs, nowhere, first_links)
        #: [k]: where to go first, with k + 1 links left; -1 where there is no path.
        next_hops = [np.where(np.isfinite(first_links), destinations, -1)]
        for before, after in pairwise(rounds[1:]):
            sums = before[arcs.tails] + costs
            is_least = sums == np.repeat(after[arcs.heads], np.diff(arcs.starts, append=len(sums)), axis=0)
            # Of several as good, the first by its id: the same every time.
            via = np.minimum.reduceat(np.where(is_least, arcs.tails[:, None], count), arcs.starts)
            following = next_hops[-1].copy()
            # Where more links make it no cheaper, the path with fewer stays.
            is_better = after[arcs.heads] < before[arcs.heads]
            following[arcs.heads] = np.where(is_better, via, following[arcs.heads])
            next_hops.append(following)
        reached = np.isfinite(rounds[-1])
        reached[destinations, columns] = False
        if only is not None:
            reached[np.arange(count) != only] = False
        sources, column = np.nonzero(reached)
        return _follow(next_hops, sources, column, destinations, rounds[-1][sources, column])

    # -- single points of failure ------------------------------------------------------------------

    def single_points(self) -> list[SinglePoint]:
        """The terminals whose loss would part others that reach each other now, the worst first."""
        carriers = [at for at in range(len(self.names)) if self._carries[at]]
        graph: rustworkx.PyGraph[int, None] = rustworkx.PyGraph(multigraph=False)
        place = dict(zip(carriers, graph.add_nodes_from(carriers), strict=True))
        for at in carriers:
            graph.add_edges_from_no_data(
                [(place[at], place[there]) for there in self._links[at] if there in place and at < there]
            )
        islands = [{carriers[node] for node in nodes} for nodes in rustworkx.connected_components(graph)]
        suspects = {carriers[node] for node in rustworkx.articulation_points(graph)}
        whole = _Islands(self._links, self._carries, islands)
        # Who has one way only to the others: that way.
        suspects.update(next(iter(ways)) for ways in whole.ways() if len(ways) == 1)
        found = []
        for suspect in sorted(suspects):
            if (point := self._single_point(suspect, whole, graph, place, carriers)) is not None:
                found.append(point)
        return sorted(found, key=lambda point: (-point.pairs, point.terminal))

    def _single_point(
        self,
        lost: int,
        whole: _Islands,
        graph: rustworkx.PyGraph[int, None],
        place: dict[int, int],
        carriers: list[int],
    ) -> SinglePoint | None:
        # The island of the lost one falls apart; the others stay as they are.
        [broken] = whole.at[lost]
        rest = graph.subgraph([place[at] for at in whole.islands[broken] if at != lost])
        parts = [{rest[node] for node in nodes} for nodes in rustworkx.connected_components(rest)]
        touched = whole.members[broken] - {lost}
        pieces = _Islands(self._links, self._carries, parts, touched)
        greatest = max(range(len(parts)), key=lambda part: (len(pieces.members[part]), -part), default=None)
        outside = touched - (pieces.members[greatest] if greatest is not None else set())
        cut_off: list[int] = []
        pairs = within = 0
        #: Those who have lost the same are many: a hub's clients.
        known: dict[tuple[frozenset[int], frozenset[int]], set[int]] = {}
        for terminal in sorted(outside):
            key = whole.at[terminal], pieces.at.get(terminal, frozenset())
            direct = self._direct(terminal)
            missed = known.get(key) if not direct else None
            if missed is None:
                kept = set().union(*(pieces.members[part] for part in key[1])) | direct
                kept |= set().union(*(whole.members[island] for island in key[0] - {broken}))
                missed = touched - kept
                if not direct:
                    known[key] = missed
            count = len(missed) - (terminal in missed)
            if count:
                cut_off.append(terminal)
                pairs += count
                within += len(missed & outside) - (terminal in missed)
        if not cut_off:
            return None
        # A pair of two that are both cut off was counted from either end.
        return SinglePoint(
            terminal=self.names[lost],
            cut_off=[self.names[at] for at in cut_off],
            pairs=pairs - within // 2,
        )

    def _direct(self, terminal: int) -> set[int]:
        """Those that it reaches over one link, whoever else is lost, and not through islands."""
        if self._carries[terminal]:
            return set()
        return {there for there in self._links[terminal] if not self._carries[there]}


class _Islands:
    """Carriers that reach each other, and whoever is linked to one of them."""

    def __init__(
        self,
        links: list[dict[int, float]],
        carries: npt.NDArray[np.bool_],
        islands: list[set[int]],
        among: set[int] | None = None,
    ) -> None:
        self.islands = islands
        self._links = links
        self._carries = carries
        #: Island → its carriers, and those that are linked to one.
        self.members: list[set[int]] = []
        touching: defaultdict[int, set[int]] = defaultdict(set)
        for number, island in enumerate(islands):
            linked = {there for at in island for there in links[at] if not carries[there]} | island
            if among is not None:
                linked &= among
            self.members.append(linked)
            for terminal in linked:
                touching[terminal].add(number)
        #: Terminal → the islands that it belongs to or is linked to.
        self.at = {terminal: frozenset(numbers) for terminal, numbers in touching.items()}

    def ways(self) -> Iterator[set[int]]:
        """For each terminal that doesn't carry and each of its islands: the carriers that link it to it."""
        for terminal, islands in self.at.items():
            if not self._carries[terminal]:
                for island in islands:
                    yield self._links[terminal].keys() & self.islands[island]


def _follow(
    next_hops: list[_Indices], sources: _Indices, column: _Indices, destinations: _Indices, costs: _Floats
) -> Paths:
    steps = np.full((len(sources), len(next_hops)), -1, np.intp)
    at = sources
    for step, following in enumerate(reversed(next_hops)):
        steps[:, step] = np.where(at == destinations[column], -1, following[at, column])
        at = np.where(steps[:, step] < 0, at, steps[:, step])
    lengths = (steps >= 0).sum(axis=1)
    return Paths(
        sources=sources,
        destinations=destinations[column],
        costs=costs,
        hops=steps[steps >= 0],
        firsts=np.concatenate(([0], np.cumsum(lengths))),
    )
