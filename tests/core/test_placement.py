"""Placement, by random histories of nodes that come, go, drain and decide by tables of different age."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from landbridge.core.cluster.placement import MOVED_AT_ONCE, moves, shares_of
from landbridge.core.cluster.table import ClusterTable, NodeRecord
from landbridge.core.cluster.tenure import Tenure
from landbridge.core.time import SECOND
from landbridge.stores.memory_roster import MemoryRoster

T = TypeVar("T")
LIFE = 3.0


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the roster in memory waits for nothing")


@dataclass
class World:
    """Nodes with a shared table, whose time is moved by hand."""

    units: int
    together: bool = False
    now: int = 1_000_000 * SECOND
    #: Nodes that are alive, and the table that each has seen last.
    alive: dict[str, ClusterTable] = field(default_factory=dict)
    moved: int = 0

    def __post_init__(self):
        self.roster = MemoryRoster(self.units, lambda: self.now)

    def beat(self, id: str) -> ClusterTable:
        table = self.alive[id]
        plan = moves(table, id, self.together)
        record = NodeRecord(name=id, id=id, together=self.together)
        before = self.table.owners
        self.alive[id] = now(self.roster.beat(record, LIFE, plan.take, plan.release))
        self.moved += sum(
            owner != self.table.owners.get(unit) for unit, owner in before.items() if owner in self.alive
        )
        return self.alive[id]

    @property
    def table(self) -> ClusterTable:
        return now(self.roster.read())

    def join(self, id: str) -> None:
        self.alive[id] = self.table
        self.beat(id)

    def lose(self, id: str) -> None:
        del self.alive[id]

    def settle(self) -> ClusterTable:
        for _ in range(2 * self.units // MOVED_AT_ONCE + 8):
            self.now += SECOND
            for id in list(self.alive):
                self.beat(id)
        return self.table


NAMES = [f"n{number}" for number in range(6)]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from(NAMES)),
        st.tuples(st.just("lose"), st.sampled_from(NAMES)),
        st.tuples(st.just("drain"), st.sampled_from(NAMES)),
        st.tuples(st.just("resume"), st.sampled_from(NAMES)),
        st.tuples(st.just("beat"), st.sampled_from(NAMES)),
        st.tuples(st.just("wait"), st.integers(1, 5)),
    ),
    max_size=40,
)


def _play(world: World, steps) -> None:
    for what, which in steps:
        known = {node.name for node in world.table.nodes}
        if what == "join" and which not in world.alive and which not in known:
            world.join(which)
        elif what == "lose" and which in world.alive:
            world.lose(which)
        elif what == "beat" and which in world.alive:
            world.beat(which)
        elif what == "wait":
            world.now += which * SECOND
        elif what in ("drain", "resume") and (what == "resume" or which in known):
            now(world.roster.drain(which, what == "drain"))


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, 40), st.booleans())
def test_whatever_has_happened_units_settle_and_stay(steps, units, together):
    world = World(units, together)
    _play(world, steps)
    table = world.settle()
    candidates = table.candidates or table.live
    if candidates:
        assert table.free == []
        counts = sorted(len(table.owned(node.id)) for node in candidates)
        if together:
            assert counts == [0] * (len(counts) - 1) + [units]
        else:
            assert counts[-1] - counts[0] <= 1
        assert sum(counts) == units
    for node in table.live:
        assert moves(table, node.id, together) == ((), ())
    again = world.settle()
    assert again.owners == table.owners


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, 40), st.booleans())
def test_a_live_node_loses_a_unit_only_by_giving_it_up(steps, units, together):
    world = World(units, together)
    _play(world, steps)
    for id in list(world.alive):
        before = world.table
        plan = moves(world.alive[id], id, together)
        world.beat(id)
        after = world.table
        for unit, owner in before.owners.items():
            node = before.node(owner)
            if node is not None and before.is_live(node) and owner != id:
                assert after.owners[unit] == owner
            elif owner == id and node is not None and before.is_live(node):
                assert after.owners.get(unit) == id or unit in plan.release


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 64))
def test_a_node_that_joins_gets_its_share_and_nothing_else_moves(count, units):
    world = World(units)
    for name in NAMES[:count]:
        world.join(name)
    before = world.settle()
    world.moved = 0
    world.join("new")
    after = world.settle()
    changed = [unit for unit in range(units) if before.owners[unit] != after.owners[unit]]
    assert {after.owners[unit] for unit in changed} <= {"new"}
    assert len(changed) == len(after.owned("new")) == units // (count + 1)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(1, 64), st.data())
def test_when_a_node_is_lost_only_its_units_move(count, units, data):
    world = World(units)
    for name in NAMES[:count]:
        world.join(name)
    before = world.settle()
    lost = data.draw(st.sampled_from(NAMES[:count]))
    world.lose(lost)
    after = world.settle()
    changed = {unit for unit in range(units) if before.owners[unit] != after.owners[unit]}
    assert changed == set(before.owned(lost))


def test_nodes_that_decide_by_the_same_table_want_different_units():
    world = World(10)
    for name in NAMES[:3]:
        world.join(name)
    world = World(10)
    for name in NAMES[:3]:
        world.alive[name] = world.table
        now(world.roster.beat(NodeRecord(name=name, id=name), LIFE))
    plans = [moves(world.table, name) for name in NAMES[:3]]
    wanted = [unit for plan in plans for unit in plan.take]
    assert sorted(wanted) == list(range(10))


def test_together_the_one_that_has_most_gets_all():
    world = World(9)
    for name in NAMES[:3]:
        world.join(name)
    table = world.settle()
    assert sorted(shares_of(table).values()) == [3, 3, 3]
    world.together = True
    table = world.settle()
    assert table.is_together
    assert len(table.owned("n0")) == 9


def test_a_node_that_drains_keeps_its_units_while_there_is_no_other():
    world = World(4)
    world.join("n0")
    world.settle()
    now(world.roster.drain("n0", True))
    assert len(world.settle().owned("n0")) == 4
    world.join("n1")
    table = world.settle()
    assert (len(table.owned("n0")), len(table.owned("n1"))) == (0, 4)


def test_a_tenure_ends_before_the_lease_of_the_server():
    tenure = Tenure(3.0)
    assert tenure.is_over(0.0)
    tenure.renewed(10.0)  # answered at 11: the server's lease lasts at least until 13
    assert not tenure.is_over(12.9)
    assert tenure.is_over(13.0)
    tenure.renewed(9.0)  # an older answer that came late takes nothing away
    assert tenure.left(12.0) == 1.0
    tenure.ended()
    assert tenure.is_over(10.0)
