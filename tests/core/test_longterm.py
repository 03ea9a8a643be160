"""The mesh against an enumeration of all paths, and against the graph that terminals route by."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from landbridge.core.routing.graph import HOPS, Graph, Mesh
from landbridge.core.routing.linkstate import COST_MOST, LinkState
from landbridge.core.routing.meter import PRIOR, Meter
from landbridge.core.routing.plan import (
    Plan,
    PlannedLink,
    SinglePoint,
    check,
    long_term_cost,
    restricted,
    worst,
)
from landbridge.core.trust.directory import Directory, TerminalEntry
from landbridge.errors import BadRequest

Links = dict[tuple[str, str], float]


class Bus:
    """A bus, and what the rules say about it, word for word."""

    def __init__(self, carries: dict[str, bool], links: Links) -> None:
        self.carries, self.links = carries, links
        self.mesh = Mesh(carries, [(*ends, cost) for ends, cost in links.items()])

    def neighbours(self, here: str):
        for (a, b), cost in self.links.items():
            if here in (a, b):
                yield (b if a == here else a), cost

    def cheapest(self, source: str, there: str) -> float:
        best = math.inf
        pending: list[tuple[tuple[str, ...], float]] = [((source,), 0.0)]
        while pending:
            way, cost = pending.pop()
            if way[-1] == there:
                best = min(best, cost)
            elif len(way) <= HOPS and (len(way) == 1 or self.carries[way[-1]]):
                pending += [((*way, on), cost + c) for on, c in self.neighbours(way[-1]) if on not in way]
        return best

    def reaches(self, source: str, there: str, lost: str = "") -> bool:
        seen, pending = {source}, [source]
        while pending:
            here = pending.pop()
            if here == source or self.carries[here]:
                new = {on for on, _ in self.neighbours(here) if on != lost} - seen
                seen |= new
                pending += new
        return there in seen

    def lost_pairs(self, lost: str) -> set[tuple[str, str]]:
        others = sorted(set(self.carries) - {lost})
        return {
            pair
            for pair in combinations(others, 2)
            if self.reaches(*pair) and not self.reaches(*pair, lost=lost)
        }

    def paths(self, source: str | None = None) -> dict[tuple[str, str], tuple[float, tuple[str, ...]]]:
        names, found = self.mesh.names, {}
        for block in self.mesh.paths(source):
            for row in range(len(block.sources)):
                hops = block.hops[block.firsts[row] : block.firsts[row + 1]]
                assert hops[0] == block.next_hops[row]
                ends = names[block.sources[row]], names[block.destinations[row]]
                assert ends not in found
                found[ends] = float(block.costs[row]), tuple(names[hop] for hop in hops)
        return found


@st.composite
def buses(draw: st.DrawFn, most: int = 7) -> Bus:
    names = "abcdefghijklmn"[: draw(st.integers(1, most))]
    carries = {name: draw(st.integers(0, 3)) > 0 for name in names}
    costs = st.one_of(st.none(), st.none(), st.integers(1, 20))
    drawn = {pair: draw(costs) for pair in combinations(names, 2)}
    return Bus(carries, {pair: float(cost) for pair, cost in drawn.items() if cost is not None})


@given(buses())
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_paths_are_the_cheapest_and_follow_the_rules(bus: Bus) -> None:
    found = bus.paths()
    for source in bus.carries:
        for there in bus.carries:
            cost = bus.cheapest(source, there)
            if source == there or math.isinf(cost):
                assert (source, there) not in found
                continue
            said, hops = found[source, there]
            assert said == cost
            assert hops[-1] == there
            assert all(bus.carries[hop] for hop in hops[:-1])
            links = [bus.links[min(ends), max(ends)] for ends in pairwise((source, *hops))]
            assert len(links) <= HOPS
            assert sum(links) == cost
        assert bus.paths(source) == {ends: path for ends, path in found.items() if ends[0] == source}


@given(buses())
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_single_points_are_those_whose_loss_parts_somebody(bus: Bus) -> None:
    found = {point.terminal: point for point in bus.mesh.single_points()}
    for terminal in bus.carries:
        lost = bus.lost_pairs(terminal)
        if not lost:
            assert terminal not in found
            continue
        point = found[terminal]
        assert point.pairs == len(lost)
        # Everybody who is named loses somebody, and of each pair that is lost one is named.
        assert set(point.cut_off) <= {end for pair in lost for end in pair}
        assert all(set(pair) & set(point.cut_off) for pair in lost)
        assert point.cut_off == sorted(point.cut_off)


@given(buses(most=12))
@settings(max_examples=60, deadline=None)
def test_it_agrees_with_the_graph_that_terminals_route_by(bus: Bus) -> None:
    modes = {name: ("server" if carries else "client") for name, carries in bus.carries.items()}
    links = {
        (a, b): cost for (a, b), cost in bus.links.items() if bus.carries[a] or bus.carries[b]
    }  # clients have no links to clients
    bus = Bus(bus.carries, links)
    directory = Directory(
        customer="c",
        version=1,
        terminals=[TerminalEntry(id=name, name=name, mode=mode, keys=[]) for name, mode in modes.items()],  # type: ignore[arg-type]
    )
    states = {
        name: LinkState(origin=name, epoch=1, sequence=1, time=0, links=dict(bus.neighbours(name)))
        for name in modes
    }
    graph, found = Graph(directory, states), bus.paths()
    for source in modes:
        tree = graph.tree(source)
        for there in set(modes) - {source}:
            path = graph.path(source, there, tree)
            assert (None if path is None else path.cost) == found.get((source, there), (None,))[0]


def test_a_path_has_eight_links_at_most_even_if_a_longer_one_is_cheaper() -> None:
    chain = [f"t{n}" for n in range(11)]
    bus = Bus(dict.fromkeys(chain, True), dict.fromkeys(pairwise(chain), 1.0))
    bus.links["t10", "t2"] = 30.0
    bus = Bus(bus.carries, {(min(e), max(e)): cost for e, cost in bus.links.items()})
    found = bus.paths()
    # Nine links for 9 are one too many; from the next one on the chain, eight are cheapest.
    assert found["t1", "t10"] == (31.0, ("t2", "t10"))
    assert found["t2", "t10"] == (8.0, tuple(chain[3:]))
    assert ("t0", "t9") in found
    assert found["t0", "t9"][0] == 33.0


def test_blocks_are_cut_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    carries = {f"t{n}": n % 3 > 0 for n in range(9)}
    links = {
        (a, b): 1.0 + (len(a) * 7 + int(b[1:]) * 3 + int(a[1:])) % 5 for a, b in combinations(carries, 2)
    }
    whole = Bus(carries, links).paths()
    monkeypatch.setattr("landbridge.core.routing.graph._BLOCK", 2 * 2 * len(links))
    assert Bus(carries, links).paths() == whole


def test_an_empty_mesh_has_nothing() -> None:
    assert list(Mesh({}, []).paths()) == []
    assert list(Mesh({"a": True, "b": True}, []).paths()) == []
    assert Mesh({"a": True, "b": False}, []).single_points() == []


# -- the plan ------------------------------------------------------------------------------------------


def link(here: str = "a", there: str = "b", **said: float) -> PlannedLink:
    figures = {"cost": 20.0, "availability": 0.9, "rtt": 10.0, "rtt_95": 15.0, "loss": 0.01} | said
    return PlannedLink(here=here, there=there, **figures)


def plan(links=(), points=(), terminals="abc") -> Plan:
    return Plan(
        since=1,
        until=2,
        terminals=dict.fromkeys(terminals, True),
        links=list(links),
        single_points=list(points),
    )


@pytest.mark.parametrize(
    "odd",
    [
        plan([link(cost=math.nan)]),
        plan([link(cost=-1.0)]),
        plan([link(cost=COST_MOST * 2)]),
        plan([link(rtt_95=math.inf)]),
        plan([link(availability=0.0)]),
        plan([link(loss=1.1)]),
        plan([link("b", "a")]),
        plan([link("a", "a")]),
        plan([link(), link()]),
        plan([link("a", "z")]),
        plan([], [SinglePoint(terminal="z", cut_off=["a"], pairs=1)]),
        plan([], [SinglePoint(terminal="a", cut_off=["b"], pairs=0)]),
        plan(terminals="abcd"),
        plan(terminals=["a" * 65]),
        Plan(since=2, until=2, terminals={}, links=[], single_points=[]),
    ],
)
def test_what_makes_no_sense_is_refused(odd: Plan) -> None:
    with pytest.raises(BadRequest):
        check(odd, most_terminals=3)


def test_what_makes_sense_is_not() -> None:
    check(plan([link()], [SinglePoint(terminal="a", cut_off=["b"], pairs=1)]), most_terminals=3)


def test_a_plan_without_those_that_are_gone() -> None:
    points = [
        SinglePoint(terminal="a", cut_off=["b", "c"], pairs=2),
        SinglePoint(terminal="b", cut_off=["c"], pairs=1),
    ]
    left = restricted(plan([link(), link("b", "c")], points), {"a", "b"})
    assert left.links == [link()]
    assert left.terminals == {"a": True, "b": True}
    assert left.single_points == [SinglePoint(terminal="a", cut_off=["b"], pairs=2)]


def test_half_of_the_time_is_worth_a_quarter() -> None:
    assert long_term_cost(10.0, 1.0) == 10.0
    assert long_term_cost(10.0, 0.5) == 40.0
    assert long_term_cost(10.0, 1e-9) == COST_MOST


def test_the_worst_links_are_the_dearest_for_their_length() -> None:
    far, bad = link("a", "b", cost=300.0, rtt=280.0), link("a", "c", cost=200.0, rtt=20.0)
    assert worst(plan([far, bad]), 1) == [bad]


# -- as a prior ----------------------------------------------------------------------------------------


def directory(planned: list[tuple[int, int, float]]) -> Directory:
    entries = [TerminalEntry(id=id, name=id, mode="server", keys=[]) for id in "abcd"]
    return Directory(customer="c", version=1, terminals=entries, planned=planned)


def states(**links: dict[str, float]) -> dict[str, LinkState]:
    return {id: LinkState(origin=id, epoch=1, sequence=1, time=0, links=told) for id, told in links.items()}


PLANNED = [(0, 1, 20.0), (1, 2, 5.0)]


def test_the_plan_stands_in_for_an_end_of_which_nothing_is_known() -> None:
    known = states(a={"b": 10.0}, c={"b": 10.0, "d": 1.0})
    graph = Graph(directory(PLANNED), known)
    assert graph.links["a"] == {"b": 20.0}  # the greater, as between two ends
    assert graph.links["b"] == {"a": 20.0, "c": 10.0}
    assert graph.links["d"] == {}  # the plan has no such link
    assert graph.planned("b", "a") == 20.0
    assert graph.planned("a", "c") is None
    assert Graph(directory([]), known).links["a"] == {}


def test_what_an_end_tells_goes_before_the_plan() -> None:
    graph = Graph(directory(PLANNED), known := states(a={"b": 10.0}))
    assert graph.cost("a", ["b"]) == 20.0
    known |= states(b={"a": 3.0})
    assert graph.update(known, ["b"])
    assert graph.cost("a", ["b"]) == 10.0  # both tell: the plan has no say
    known |= states(b={})
    assert graph.update(known, ["b"])
    assert graph.links["a"] == {}  # the other end says that there is none
    del known["b"]
    known |= states(a={})
    graph.update(known, ["a", "b"])
    assert graph.links["a"] == {}


def test_the_plan_never_stands_in_for_both_ends() -> None:
    graph = Graph(directory(PLANNED), states(d={}))
    assert graph.links == {"a": {}, "b": {}, "c": {}, "d": {}}


def test_a_link_that_ages_out_at_one_end_stays_while_the_other_tells_of_it() -> None:
    known = states(a={"b": 10.0}, b={"a": 10.0})
    graph = Graph(directory(PLANNED), known)
    assert graph.cost("a", ["b"]) == 10.0
    del known["b"]
    assert graph.update(known, ["b"])
    assert graph.cost("a", ["b"]) == 20.0
    known |= states(a={})
    assert graph.update(known, ["a"])
    assert graph.links["b"] == {}


def test_a_link_that_comes_up_is_judged_by_the_plan_until_it_has_been_measured() -> None:
    meter, plain = Meter(), Meter()
    meter.prior = 500.0
    assert meter.cost is None  # no echo, no link: whatever the plan says
    totals = []
    for number in range(PRIOR):
        for each in (meter, plain):
            each.sent(number * 1_000_000, number)
            each.echoed(number * 1_000_000 + 20_000, number)
        assert meter.parts is not None
        assert plain.parts is not None
        assert meter.parts.total == pytest.approx(plain.parts.total + meter.parts.planned)
        totals.append(meter.parts.total)
    assert totals[0] > 400
    assert totals == sorted(totals, reverse=True)
    assert meter.parts == plain.parts  # from here on the plan has no part in it
    assert plain.parts is not None
    assert plain.parts.planned == 0.0
