"""The mesh of the long-term plan: the best path between any two terminals, and single points of failure.

The rules are those of ``core.graph``: at most eight links, and only terminals that carry in between. There
one source is asked about at a time, and again with every change; here all of them at once, and never again:
whole matrices, a block of destinations at a time. Best paths over at most k links are found from those over
at most k − 1, for k up to eight, so each path comes with the neighbour to begin with: the next hop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import rustworkx

from landbridge.core.routing.graph import HOPS
from landbridge.core.routing.plan import SinglePoint

_Floats: TypeAlias = npt.NDArray[np.float64]
_Indices: TypeAlias = npt.NDArray[np.intp]
#: Numbers of one intermediate matrix, links × destinations: 32 MB.
_BLOCK = 1 << 22


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
        ends = [at for at, links in enumerate(self._links) if links]
        if not ends:
            return
        tails = np.repeat(np.arange(len(self.names)), [len(links) for links in self._links])
        heads = np.concatenate([np.array(sorted(self._links[at]), np.intp) for at in ends])
        costs = np.array([self._links[tail][head] for tail, head in zip(tails, heads, strict=True)])
        starts = np.flatnonzero(np.diff(tails, prepend=-1))
        arcs = _Arcs(np.array(ends, np.intp), heads, costs, starts)
        width = max(1, _BLOCK // len(heads))
        only = None if source is None else self.names.index(source)
        for first in range(0, len(self.names), width):
            yield self._block(arcs, np.arange(first, min(first + width, len(self.names))), only)

    def _block(self, arcs: _Arcs, destinations: _Indices, only: int | None) -> Paths:
        columns = np.arange(len(destinations))
        shape = len(self.names), len(destinations)
        #: The least cost from each terminal to each destination, over the links that are allowed so far.
        least = np.full(shape, np.inf)
        least[destinations, columns] = 0.0
        #: [k]: where to go first, if there are k links left.
        rounds = [np.full(shape, -1, np.intp)]
        while len(rounds) <= HOPS:
            onward = np.where(self._carries[:, None], least, np.inf)
            onward[destinations, columns] = 0.0
            sums = onward[arcs.heads] + arcs.costs[:, None]
            found = np.minimum.reduceat(sums, arcs.starts)
            better = found < least[arcs.tails]  # fewer links do as well
            if not better.any():
                break
            is_least = sums == np.repeat(found, np.diff(arcs.starts, append=len(sums)), axis=0)
            # Of several as good, the first by its id: the same every time.
            at = np.minimum.reduceat(np.where(is_least, arcs.heads[:, None], len(self.names)), arcs.starts)
            following = rounds[-1].copy()
            following[arcs.tails] = np.where(better, at, following[arcs.tails])
            least[arcs.tails] = np.where(better, found, least[arcs.tails])
            rounds.append(following)
        reached = np.isfinite(least)
        reached[destinations, columns] = False
        if only is not None:
            reached[np.arange(len(self.names)) != only] = False
        sources, column = np.nonzero(reached)
        return self._followed(rounds, sources, column, destinations, least[sources, column])

    @staticmethod
    def _followed(
        rounds: list[_Indices], sources: _Indices, column: _Indices, destinations: _Indices, costs: _Floats
    ) -> Paths:
        steps = np.full((len(sources), len(rounds) - 1), -1, np.intp)
        at = sources
        for step, where_to in enumerate(reversed(rounds[1:])):
            steps[:, step] = np.where(at == destinations[column], -1, where_to[at, column])
            at = np.where(steps[:, step] < 0, at, steps[:, step])
        lengths = (steps >= 0).sum(axis=1)
        return Paths(
            sources=sources,
            destinations=destinations[column],
            costs=costs,
            hops=steps[steps >= 0],
            firsts=np.concatenate(([0], np.cumsum(lengths))),
        )

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


class _Arcs(NamedTuple):
    """All links in both directions, by the terminal that they lead from."""

    tails: _Indices  #: the terminals that have any
    heads: _Indices
    costs: _Floats
    starts: _Indices  #: of each of ``tails``, its first


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
