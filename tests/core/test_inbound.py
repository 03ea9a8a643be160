"""Once and in order, whatever the network does: a source and a destination against a list."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from landbridge.core.log.ranges import RangeSet
from landbridge.core.shipping.inbound import MOST_HOLES, Inbound, Position, Verdict
from landbridge.core.shipping.outbound import Outbound
from landbridge.core.shipping.parcel import Piece

GROUPS = ("billing", "audit")


class Crossing(RuleBasedStateMachine):
    """One source, one destination, a network that loses, repeats and reorders. The destination may crash back
    to what it had stored, the source may start again, knowing only what was confirmed."""

    @initialize()
    def begin(self) -> None:
        self.published = self.ids = 0
        self.epoch = 1
        self.outbound = Outbound(self.epoch)
        #: Per group: what the source has shipped in this epoch, and what it knows to have arrived.
        self.shipped = dict.fromkeys(GROUPS, 0)
        self.settled = {group: RangeSet() for group in GROUPS}
        #: (epoch, sequence, oldest, {group: floor}, runs): copies that may still arrive.
        self.network: list[tuple[int, int, int, dict[str, int], list[tuple[int, int]]]] = []
        self.confirmations: list[tuple[int, int]] = []
        self.inbound = Inbound()
        self.log: dict[str, list[int]] = {group: [] for group in GROUPS}

    def floor(self, group: str) -> int:
        first = self.settled[group].first() if self.settled[group] else (0, 0)
        return first[1] if first[0] == 0 else 0

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        self.published += count

    @rule(size=st.integers(1, 4), both=st.booleans(), which=st.sampled_from(GROUPS))
    def ship(self, size: int, both: bool, which: str) -> None:
        first = self.shipped[which]
        groups = [group for group in GROUPS if self.shipped[group] == first] if both else [which]
        wanted = [
            offset
            for offset in range(first, min(first + size, self.published))
            if not all(offset in self.settled[group] for group in groups)
        ]
        for group in groups:
            self.shipped[group] = max(first, min(first + size, self.published))
        if not wanted:
            return
        self.ids += 1
        shipment = self.outbound.new(self.ids.to_bytes(16, "big"), len(wanted))
        runs = [(offset, offset + 1) for offset in wanted]
        shipment.pieces = [Piece(runs, False, 1)]
        shipment.legs = [(group, 0, runs) for group in groups]
        self.outbound.add(shipment)
        self.send(shipment.sequence)

    def send(self, sequence: int) -> None:
        shipment = self.outbound.shipments[sequence]
        floors = {group: self.floor(group) for group in shipment.groups}
        runs = shipment.pieces[0].runs
        self.network.append((self.outbound.epoch, sequence, self.outbound.oldest, floors, runs))

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        if self.outbound.shipments:
            self.send(data.draw(st.sampled_from(sorted(self.outbound.shipments))))

    @rule(data=st.data(), keep=st.booleans(), lost=st.booleans())
    def deliver(self, data: st.DataObject, keep: bool, lost: bool) -> None:
        if not self.network:
            return
        index = data.draw(st.integers(0, len(self.network) - 1))
        epoch, sequence, oldest, groups, runs = self.network[index] if keep else self.network.pop(index)
        if lost:
            return
        verdict = self.inbound.position.judge(epoch, sequence, oldest)
        if verdict is Verdict.NEXT:
            for group in groups:
                fresh = self.inbound.fresh(group, runs)
                self.log[group] += [offset for first, end in fresh for offset in range(first, end)]
            self.inbound.apply(epoch, sequence, groups, runs)
            self.inbound = Inbound.decode(self.inbound.encode())  # what a crash would leave
        if verdict in (Verdict.NEXT, Verdict.REPEATED):
            self.confirmations.append((epoch, sequence))

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        if not self.confirmations:
            return
        index = data.draw(st.integers(0, len(self.confirmations) - 1))
        epoch, sequence = self.confirmations.pop(index)
        for shipment in self.outbound.arrived(epoch, [sequence]):
            for group, _, runs in shipment.legs:
                for first, end in runs:
                    self.settled[group].add(first, end)

    @rule()
    def restart_the_source(self) -> None:
        self.epoch += 1
        self.outbound = Outbound(self.epoch)
        self.shipped = {group: self.floor(group) for group in GROUPS}

    @invariant()
    def once_and_in_order(self) -> None:
        for group in GROUPS:
            assert self.log[group] == sorted(set(self.log[group]))

    @invariant()
    def what_is_settled_has_arrived(self) -> None:
        for group in GROUPS:
            assert {o for first, end in self.settled[group] for o in range(first, end)} <= set(
                self.log[group]
            )

    def teardown(self) -> None:
        """Heal: everything is shipped, sent and confirmed in the end."""
        if not hasattr(self, "outbound"):
            return
        for _ in range(3):
            for which in GROUPS:
                while self.shipped[which] < self.published:
                    self.ship(4, False, which)
            for sequence in sorted(self.outbound.shipments):
                self.send(sequence)
                epoch, sequence, oldest, groups, runs = self.network.pop()
                if self.inbound.position.judge(epoch, sequence, oldest) is Verdict.NEXT:
                    for group in groups:
                        fresh = self.inbound.fresh(group, runs)
                        self.log[group] += [o for first, end in fresh for o in range(first, end)]
                    self.inbound.apply(epoch, sequence, groups, runs)
        for group in GROUPS:
            assert self.log[group] == list(range(self.published))


TestCrossing = Crossing.TestCase
TestCrossing.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_a_destination_that_lost_its_memory_goes_on_where_the_source_is():
    assert Position().judge(5, 50, 50) is Verdict.NEXT
    assert Position().judge(5, 51, 50) is Verdict.EARLY
    assert Position().judge(5, 49, 50) is Verdict.REPEATED


def test_an_epoch_that_is_over_is_stale():
    inbound = Inbound()
    inbound.apply(2, 1, {"g": 0}, [(0, 5)])
    assert inbound.position.judge(1, 2, 1) is Verdict.STALE
    assert inbound.position.judge(2, 1, 1) is Verdict.REPEATED
    assert inbound.position.judge(3, 1, 1) is Verdict.NEXT


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), max_size=20), st.integers(0, 60))
def test_what_the_source_has_nothing_of_is_wanted_again_if_it_comes(runs, floor):
    """It went to another terminal of the group, which may lose it; then it is sent here."""
    inbound, came = Inbound(), set[int]()
    for sequence, (first, length) in enumerate(runs, 1):
        inbound.apply(1, sequence, {"g": 0}, [(first, first + length)])
        came |= set(range(first, first + length))
    inbound.apply(1, len(runs) + 1, {"g": floor}, [])
    inbound = Inbound.decode(inbound.encode())
    wanted = {offset for first, end in inbound.fresh("g", [(0, 60)]) for offset in range(first, end)}
    assert wanted == set(range(60)) - came
    assert len(inbound._groups["g"].above) <= max(0, 60 - floor)
    inbound.apply(1, len(runs) + 2, {"g": floor}, [(0, 60)])
    assert inbound.fresh("g", [(0, 60)]) == [], "once"


def test_state_stays_small_whatever_holes_filters_and_other_terminals_leave():
    inbound = Inbound()
    for number in range(10_000):
        first = 10 * number
        inbound.apply(1, number + 1, {"g": first}, [(first, first + 1)])
    holes = inbound._groups["g"].holes
    assert len(holes) == MOST_HOLES
    assert holes.last() == (99_981, 99_990), "those with the highest offsets"
    assert len(inbound.encode()) < 20 * MOST_HOLES
