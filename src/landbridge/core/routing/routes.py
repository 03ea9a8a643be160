"""Routes: which way a batch goes, and to which terminal of a group. The terminal that sends decides.

The graph says what is cheapest now. Costs are measured, so that changes all the time; a route that followed
every change would flap between two paths that are about as good. So a route needs a reason to change: the new
path costs less than 0.8 of the old and the last change is 30 s ago, or the old path is dead, and then it
changes at once.

No batch waits for a look at the whole graph: changes are taken over at most once a second, and answers are
kept until then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from landbridge.core.routing.graph import Graph, Path, Tree
from landbridge.core.routing.linkstate import MAX_FRAME, LinkStates
from landbridge.core.routing.meter import Parts
from landbridge.core.time import SECOND
from landbridge.core.trust.directory import Directory

#: How much cheaper than the old path a new one must be, and how long the last change must be ago.
BETTER, HOLD = 0.8, 30 * SECOND
#: Between two updates of the graph, but for a link of our own: its loss counts at once.
EVERY = SECOND
#: What a terminal that can do no more adds to the cost of choosing it, in ms.
LOAD_COST = 100.0
#: Trees around terminals to avoid that are kept until the graph changes.
_TREES = 64


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """A link on one of the explained paths."""

    here: str
    there: str
    cost: float  #: ms; the greater of the next two
    here_says: float | None  #: None: has just stopped saying so
    there_says: float | None
    parts: Parts | None = None  #: how the cost came about; known at its ends only


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    there: str
    best: Path | None  #: the cheapest now; None: there is no path
    #: The path in use; None if nothing was sent there yet, or the source is another terminal.
    current: Path | None
    why: str  #: why the current one is in use, or why there is no path
    alternates: list[Path]
    links: list[LinkView]  #: of all these paths, each once


@dataclass(slots=True, eq=False)
class Choice:
    """The path in use to one destination."""

    path: Path | None = None
    #: When it was last changed, in microseconds.
    since: int = 0
    #: Of the graph that was last looked at, and when a look is due although that has not changed.
    version: int = -1
    look_at: float = math.inf
    why: str = "nothing was sent there yet"

    def consider(self, now: int, cost: float, best: Path | None, *, emptied: bool = False) -> None:
        """Keep the path in use, or take ``best`` instead. ``cost``: of the path in use, now; infinite if it
        is dead. ``emptied``: the path in use goes through a terminal that is being emptied, and ``best`` does
        not."""
        self.look_at = math.inf
        if self.path is not None and best is not None and self.path.hops == best.hops:
            self.path, self.why = best, "it is the cheapest"
        elif best is None:
            self.path, self.why = None, "no path leads there"
        elif self.path is None or math.isinf(cost):
            self.why = (
                "the first choice" if self.path is None else f"the path before is dead: {_words(self.path)}"
            )
            self.path, self.since = best, now
        elif emptied:
            self.why = f"the path before goes through a terminal that is being emptied: {_words(self.path)}"
            self.path, self.since = best, now
        elif best.cost >= BETTER * cost:
            self.path = Path(self.path.hops, cost)
            self.why = f"kept: {_words(best)} costs {best.cost:.1f}, not below {BETTER} of {cost:.1f}"
        elif now - self.since < HOLD:
            self.path = Path(self.path.hops, cost)
            self.look_at = self.since + HOLD
            self.why = (
                f"kept: {_words(best)} is better, but the last change was less than {HOLD // SECOND} s ago"
            )
        else:
            self.why = f"cost {best.cost:.1f} instead of {cost:.1f} over {_words(self.path)}"
            self.path, self.since = best, now


class Routes:
    def __init__(self, me: str, states: LinkStates, directory: Directory) -> None:
        self.me = me
        self._states = states
        self.graph: Graph
        #: Of the graph that the answers below are about.
        self._version = -1
        #: (source, terminals to avoid) → tree, the oldest first.
        self._trees: dict[tuple[str, frozenset[str]], Tree] = {}
        #: Destination → the best path from here; None where there is none.
        self._best: dict[str, Path | None] = {}
        #: (source, destination, how many) → the alternates.
        self._alternates: dict[tuple[str, str, int], list[Path]] = {}
        #: Destination → the path in use.
        self._choices: dict[str, Choice] = {}
        #: When the graph was last updated; None: not since the directory came.
        self._updated_at: int | None = None
        self.follow(directory)

    # -- the graph ---------------------------------------------------------------------------------

    def follow(self, directory: Directory) -> None:
        """Take a new directory. Paths through terminals that are no longer in it are dead."""
        self._states.changed.clear()
        self.graph = Graph(directory, self._states.states)
        self._choices = {there: choice for there, choice in self._choices.items() if there in self.graph}
        for choice in self._choices.values():
            choice.version = -1
        self._forget()

    def refresh(self, now: int) -> bool:
        """Take over changed link states, if it is time. Returns whether any path may have changed."""
        changed = self._states.changed
        is_too_early = self._updated_at is not None and 0 <= now - self._updated_at < EVERY
        if not changed or (is_too_early and self.me not in changed):
            return False
        self._updated_at = now
        differs = self.graph.update(self._states.states, changed)
        changed.clear()
        if differs:
            self._forget()
        return differs

    # -- paths -------------------------------------------------------------------------------------

    def best(self, there: str, avoid: Collection[str] = (), *, source: str | None = None) -> Path | None:
        """The cheapest path; None if there is none of at most eight links."""
        source = self.me if source is None else source
        if there == source:
            return Path((), 0.0)
        if there not in self.graph or source not in self.graph or there in avoid:
            return None
        if avoid or source != self.me:
            return self.graph.path(source, there, self._tree(source, frozenset(avoid)))
        if there not in self._best:
            self._best[there] = self.graph.path(source, there, self._tree(source, frozenset()))
        return self._best[there]

    def alternates(self, there: str, count: int = 2, *, source: str | None = None) -> list[Path]:
        """Further paths, each sharing as little as possible with the best one and those before it."""
        source = self.me if source is None else source
        best = self.best(there, source=source)
        if best is None or not best.hops:
            return []
        key = (source, there, count)
        if key not in self._alternates:
            found = [best]
            while len(found) <= count:
                tree = self.graph.tree(source, apart_from=found)
                path = self.graph.path(source, there, tree)
                if path is None or path.hops in [known.hops for known in found]:
                    break
                found.append(path)
            self._alternates[key] = found[1:]
        return list(self._alternates[key])

    def route(self, now: int, there: str) -> Path | None:
        """The path to use: the best one, unless the path before is kept (see above)."""
        self.refresh(now)
        choice = self._choices.get(there)
        if choice is None:
            if there not in self.graph:
                return None
            choice = self._choices[there] = Choice()
        if choice.version != self._version or now >= choice.look_at:
            choice.version = self._version
            cost = math.inf if choice.path is None else self.graph.cost(self.me, choice.path.hops)
            best = self.best(there)
            emptied = self._drains(choice.path) and not self._drains(best)
            choice.consider(now, cost, best, emptied=emptied)
        return choice.path

    def hops(self, now: int, there: str, avoid: Collection[str] = ()) -> list[str] | None:
        """The terminals on the way, the destination last: of the path in use, or of the cheapest one through
        none of ``avoid``. None if there is no path, or it leads nowhere else than here."""
        path = self.best(there, avoid) if avoid else self.route(now, there)
        return list(path.hops) if path is not None and path.hops else None

    @property
    def least_frame(self) -> float:
        """No terminal has a smaller limit for a frame, in bytes."""
        return self._states.least_frame

    def max_frame(self, hops: Iterable[str]) -> int:
        """Bytes of the greatest frame that all of these terminals take."""
        states = self._states.states
        return min((states[hop].max_frame for hop in hops if hop in states), default=MAX_FRAME)

    def wide(self, there: str, size: int, avoid: Collection[str] = ()) -> list[str] | None:
        """The terminals on the cheapest way on which all take a frame of so many bytes; None if there is
        none."""
        narrow = {each for each, state in self._states.states.items() if state.max_frame < size}
        path = self.best(there, narrow.union(avoid))
        return list(path.hops) if path is not None and path.hops else None

    def why(self, there: str, source: str | None = None) -> str:
        """Why the path in use is the one in use, or why there is no path."""
        if source in (None, self.me) and there in self._choices:
            return self._choices[there].why
        if self.best(there, source=source) is None:
            return "no path leads there" if there in self.graph else "it is not in the directory, or revoked"
        is_own = source in (None, self.me)
        return "it is the cheapest" if is_own else f"as {source} would choose, without its history"

    # -- members of a group --------------------------------------------------------------------------

    def choose_member(
        self,
        now: int,
        members: Sequence[str],
        current: str | None,
        consumers_of: Callable[[str], int],
        *,
        since: int = 0,
    ) -> str | None:
        """The terminal of a group to send to. ``since``: when ``current`` was chosen.

        One with consumers if there is any, not draining, of the least path cost and load. If none has
        consumers, one where messages can wait for them. If none can be reached, the current one."""
        self.refresh(now)
        ranks = {member: rank for member in members if (rank := self._rank(member, consumers_of)) is not None}
        if not ranks:
            return current if current in members else None
        best = min(ranks, key=lambda member: (*ranks[member], member))
        if current is None or current not in ranks or ranks[current][:2] != ranks[best][:2]:
            return best
        worth = ranks[best][2] < BETTER * ranks[current][2] and now - since >= HOLD
        return best if worth else current

    def _rank(self, member: str, consumers_of: Callable[[str], int]) -> tuple[bool, bool, float] | None:
        """The member with the lowest rank is chosen. None for a member that can't be reached."""
        path = self.best(member)
        if path is None:
            return None
        state = self._states.states.get(member)
        load = state.load if state is not None else 0.0
        return member in self.graph.draining, consumers_of(member) <= 0, path.cost + load * LOAD_COST

    # -- for people ----------------------------------------------------------------------------------

    def explain(
        self,
        there: str,
        *,
        source: str | None = None,
        parts: Mapping[str, Parts] | None = None,
        count: int = 2,
    ) -> Explanation:
        """``parts``: neighbour → what our own meter of the link to it says."""
        source = self.me if source is None else source
        best = self.best(there, source=source)
        choice = self._choices.get(there) if source == self.me else None
        current = choice.path if choice is not None else None
        alternates = self.alternates(there, count, source=source)
        links: dict[frozenset[str], LinkView] = {}
        for path in (current, best, *alternates):
            hops = (source, *path.hops) if path is not None else ()
            for here, beyond in pairwise(hops):
                if beyond in self.graph.links.get(here, {}):
                    links.setdefault(frozenset((here, beyond)), self._view(here, beyond, parts or {}))
        return Explanation(
            source=source,
            there=there,
            best=best,
            current=current,
            why=self.why(there, source),
            alternates=alternates,
            links=list(links.values()),
        )

    def single_points(self, *, source: str | None = None) -> dict[str, list[str]]:
        """Terminal → the terminals that its loss would cut off from here, sorted; never none."""
        above = self.graph.dominators(self.me if source is None else source)
        cut_off: dict[str, list[str]] = {}
        for terminal in sorted(above):
            at = above[terminal]
            while at in above:  # up to the source, which is under nobody
                cut_off.setdefault(at, []).append(terminal)
                at = above[at]
        return cut_off

    # -- inside ------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._version += 1
        self._trees.clear()
        self._best.clear()
        self._alternates.clear()

    def _drains(self, path: Path | None) -> bool:
        return path is not None and not self.graph.draining.isdisjoint(path.through)

    def _tree(self, source: str, avoid: frozenset[str]) -> Tree:
        tree = self._trees.get((source, avoid))
        if tree is None:
            if len(self._trees) >= _TREES:
                del self._trees[next(iter(self._trees))]
            tree = self._trees[source, avoid] = self.graph.tree(source, avoid=avoid)
        return tree

    def _view(self, here: str, there: str, parts: Mapping[str, Parts]) -> LinkView:
        says = self._states.states
        neighbour = there if here == self.me else here if there == self.me else ""
        return LinkView(
            here=here,
            there=there,
            cost=self.graph.links[here][there],
            here_says=says[here].links.get(there) if here in says else None,
            there_says=says[there].links.get(here) if there in says else None,
            parts=parts.get(neighbour),
        )


def _words(path: Path) -> str:
    return " > ".join(path.hops) if path.hops else "here"
