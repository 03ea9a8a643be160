"""The graph against an enumeration of all paths."""

import math
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from landbridge.core.routing.graph import DRAINING, HOPS, Graph, Path
from landbridge.core.routing.linkstate import LinkState
from landbridge.core.trust.directory import Directory, TerminalEntry

SERVER, STUB, CLIENT = ("server", True), ("server", False), ("client", True)


def terminals(kinds, draining=()) -> Directory:
    return Directory(
        customer="acme",
        version=1,
        terminals=[
            TerminalEntry(id=id, name=id, mode=mode, transit=transit, keys=[], draining=id in draining)
            for id, (mode, transit) in kinds.items()
        ],
    )


def reports(kinds, links) -> dict[str, LinkState]:
    """``links``: (a, b) → what a says of its link to b."""
    return {
        id: LinkState(
            origin=id,
            epoch=1,
            sequence=1,
            time=0,
            links={b: cost for (a, b), cost in links.items() if a == id},
        )
        for id in kinds
    }


def both(links) -> dict[tuple[str, str], float]:
    return links | {(b, a): cost for (a, b), cost in links.items()}


def line(*ids, cost=1.0) -> dict[tuple[str, str], float]:
    return both(dict.fromkeys(pairwise(ids), cost))


class Bus:
    """A random bus, and what the rules say about it, word for word."""

    def __init__(self, kinds, links, draining):
        self.kinds, self.links, self.draining = kinds, links, draining
        self.graph = Graph(terminals(kinds, draining), reports(kinds, links))

    def neighbours(self, here):
        for there, (mode, _) in self.kinds.items():
            reported = (here, there) in self.links and (there, here) in self.links
            if reported and "server" in (mode, self.kinds[here][0]):
                yield there, max(self.links[here, there], self.links[there, here])

    def paths(self, source, there, avoid=()):
        """Every path, with its cost."""
        pending: list[tuple[tuple[str, ...], float]] = [((source,), 0.0)]
        while pending:
            way, cost = pending.pop()
            here = way[-1]
            if here == there:
                yield way[1:], cost
            elif len(way) <= HOPS and (here == source or self.kinds[here] == SERVER):
                extra = DRAINING if here in self.draining and here != source else 0.0
                for beyond, link in self.neighbours(here):
                    if beyond not in way and beyond not in avoid:
                        pending.append(((*way, beyond), cost + link + extra))

    def cheapest(self, source, there, avoid=()) -> float:
        return min((cost for _, cost in self.paths(source, there, avoid)), default=math.inf)


@st.composite
def buses(draw, most=7):
    ids = [f"t{n}" for n in range(draw(st.integers(2, most)))]
    kinds = {id: draw(st.sampled_from([SERVER, SERVER, SERVER, SERVER, STUB, CLIENT])) for id in ids}
    pairs = [(a, b) for a in ids for b in ids if a < b]
    cost = st.integers(0, 50).map(float)
    links: dict[tuple[str, str], float] = {}
    for a, b in draw(st.lists(st.sampled_from(pairs), unique=True, min_size=len(pairs) // 2)):
        links[a, b] = draw(cost)
        if draw(st.integers(0, 9)):  # now and then one end only
            links[b, a] = draw(cost)
    return Bus(kinds, links, draw(st.sets(st.sampled_from(ids), max_size=1)))


@settings(max_examples=3 * settings().max_examples)
@given(buses(), st.data())
def test_path_is_the_cheapest(bus, data):
    source, there = data.draw(st.lists(st.sampled_from(list(bus.kinds)), min_size=2, max_size=2, unique=True))
    avoid = data.draw(st.sets(st.sampled_from(list(bus.kinds)), max_size=2)) - {source, there}
    path = bus.graph.path(source, there, bus.graph.tree(source, avoid=avoid))
    wanted = bus.cheapest(source, there, avoid)
    if path is None:
        assert math.isinf(wanted)
    else:
        assert path.cost == wanted
        assert (path.hops, path.cost) in set(bus.paths(source, there, avoid))


def shares(path, other, source) -> bool:
    links = {frozenset(link) for link in pairwise((source, *path))}
    return bool(
        set(path[:-1]) & set(other[:-1]) or links & {frozenset(link) for link in pairwise((source, *other))}
    )


@settings(max_examples=3 * settings().max_examples)
@given(buses(), st.data())
def test_path_apart_from_others_shares_nothing_if_that_is_possible(bus, data):
    source, there = data.draw(st.lists(st.sampled_from(list(bus.kinds)), min_size=2, max_size=2, unique=True))
    found: list[Path] = []
    every = dict(bus.paths(source, there))
    for _ in range(3):
        path = bus.graph.path(source, there, bus.graph.tree(source, apart_from=found))
        if path is None:
            assert not every
            return
        apart = {hops for hops in every if not any(shares(hops, known.hops, source) for known in found)}
        if apart:
            assert path.hops in apart
            assert path.cost == min(every[hops] for hops in apart)
        else:
            assert path.hops in every
        found.append(path)


def disjoint_paths(bus, source, there) -> int:
    """How many paths there are that share no terminal, by Menger's count: the most of a flow where each
    terminal that carries lets one through. Every terminal is two nodes, (t, 0) in and (t, 1) out."""
    room: dict[tuple, dict[tuple, int]] = {}

    def add(a, b):
        room.setdefault(a, {})[b] = 1
        room.setdefault(b, {}).setdefault(a, 0)

    for here, kind in bus.kinds.items():
        if kind == SERVER and here not in (source, there):
            add((here, 0), (here, 1))
        if here == source or kind == SERVER:
            for beyond, _ in bus.neighbours(here):
                add((here, 1), (beyond, 0))
    flow = 0
    while True:
        before: dict[tuple, tuple] = {}
        pending = [(source, 1)]
        while pending and (there, 0) not in before:
            at = pending.pop()
            for beyond, free in room.get(at, {}).items():
                if free and beyond not in before and beyond != (source, 1):
                    before[beyond] = at
                    pending.append(beyond)
        if (there, 0) not in before:
            return flow
        at = (there, 0)
        while at != (source, 1):
            room[before[at]][at] -= 1
            room[at][before[at]] += 1
            at = before[at]
        flow += 1


@settings(max_examples=3 * settings().max_examples)
@given(buses(), st.data())
def test_best_and_first_alternate_are_as_disjoint_as_the_graph_allows(bus, data):
    """Two disjoint paths from the flow; the pair found is disjoint too, unless the cheapest path itself lies
    across every other: then it is still the one to use, and its alternate shares something."""
    source, there = data.draw(st.lists(st.sampled_from(list(bus.kinds)), min_size=2, max_size=2, unique=True))
    best = bus.graph.path(source, there, bus.graph.tree(source))
    flow = disjoint_paths(bus, source, there)
    assert (best is not None) == (flow > 0)
    if best is None or flow < 2:
        return
    second = bus.graph.path(source, there, bus.graph.tree(source, apart_from=[best]))
    assert second is not None
    lies_across = all(shares(hops, best.hops, source) for hops, _ in bus.paths(source, there))
    assert shares(second.hops, best.hops, source) == lies_across


@st.composite
def changes(draw):
    ids = [f"t{n}" for n in range(5)]
    said = st.dictionaries(st.sampled_from(ids), st.integers(1, 3).map(float), max_size=4)
    step = st.tuples(st.sampled_from(ids), st.one_of(st.none(), st.tuples(said, st.booleans())))
    return draw(st.lists(step, max_size=20))


@given(changes())
def test_updated_graph_is_the_one_built_anew(steps):
    kinds = {"t0": SERVER, "t1": SERVER, "t2": STUB, "t3": CLIENT, "t4": CLIENT}
    directory = terminals(kinds)
    states: dict[str, LinkState] = {}
    graph = Graph(directory, states)
    for id, said in steps:
        if said is None:
            states.pop(id, None)
        else:
            states[id] = LinkState(origin=id, epoch=1, sequence=1, time=0, links=said[0], draining=said[1])
        version, before = graph.version, {here: dict(links) for here, links in graph.links.items()}
        differs = graph.update(states, [id])
        anew = Graph(directory, states)
        assert graph.links == anew.links
        assert graph.draining == anew.draining
        assert graph._into == anew._into
        assert differs == (graph.version != version)
        assert differs or graph.links == before


def test_path_has_at_most_eight_links():
    ids = [f"t{n}" for n in range(10)]
    kinds = dict.fromkeys(ids, SERVER)
    graph = Graph(terminals(kinds), reports(kinds, line(*ids)))
    tree = graph.tree("t0")
    path = graph.path("t0", "t8", tree)
    assert path is not None
    assert path.hops == tuple(ids[1:9])
    assert graph.path("t0", "t9", tree) is None


def test_dearer_path_is_taken_where_the_cheapest_is_too_long():
    """Where Dijkstra is wrong: his tree leads through t8 over eight links, and t9 is one more."""
    ids = [f"t{n}" for n in range(10)]
    kinds = dict.fromkeys(ids, SERVER)
    graph = Graph(terminals(kinds), reports(kinds, line(*ids) | line("t0", "t2", cost=5.0)))
    path = graph.path("t0", "t9", graph.tree("t0"))
    assert path is not None
    assert (path.hops, path.cost) == (("t2", *ids[3:]), 12.0)


def test_client_neither_carries_nor_links_to_a_client():
    kinds = {"a": SERVER, "b": SERVER, "c": CLIENT, "d": CLIENT}
    graph = Graph(terminals(kinds), reports(kinds, line("a", "c", "b") | line("c", "d")))
    assert graph.path("a", "b", graph.tree("a")) is None
    assert "d" not in graph.links["c"]
    path = graph.path("c", "b", graph.tree("c"))
    assert path is not None
    assert path.hops == ("b",)


def test_revoked_and_unknown_terminals_are_not_there():
    kinds = dict.fromkeys("abc", SERVER)
    states = reports(kinds, line("a", "b", "c") | line("a", "x", "c"))
    directory = Directory(customer="acme", version=2, terminals=terminals(kinds).terminals, revoked=["b"])
    graph = Graph(directory, states | reports(["x"], line("a", "x", "c")))
    assert "b" not in graph
    assert graph.links == {"a": {}, "c": {}}
    assert graph.cost("a", ("b", "c")) == math.inf


@settings(max_examples=2 * settings().max_examples)
@given(buses(), st.data())
def test_dominators_are_those_without_whom_there_is_no_path(bus, data):
    source = data.draw(st.sampled_from(list(bus.kinds)))
    above = bus.graph.dominators(source)
    for there in bus.kinds:
        if there == source:
            continue
        on_every = [set(hops[:-1]) for hops, _ in bus.paths(source, there)]
        assert (there in above) == bool(on_every)
        chain, at = set(), above.get(there, source)
        while at != source:
            chain.add(at)
            at = above[at]
        assert chain == (set.intersection(*on_every) if on_every else set())
