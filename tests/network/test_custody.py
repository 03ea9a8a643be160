"""Who has to keep a shipment, and until when: the hop before until it is stored, its source until it has
arrived."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

import pytest

from landbridge.core.shipping import outbound, reassembly
from landbridge.core.shipping.parcel import Ask, Parcel
from landbridge.crossing.arrivals import Arrivals
from landbridge.crossing.ground import Settings
from landbridge.crossing.peer import Fate
from landbridge.crossing.shelf import Shelf
from landbridge.stores.memory import MemoryStore
from landbridge.testing.faults import FaultyStore
from landbridge.testing.fleet import Fleet, FleetMember, until
from tests.waiting import LIMIT, Reader

#: What it is, and whom to tell.
Caught: TypeAlias = tuple[Parcel, memoryview, Fate]


@contextmanager
def caught(member: FleetMember) -> Iterator[list[Caught]]:
    """Shipments for a terminal, taken from the link before it sees them, with whom to tell what becomes of
    them."""
    found: list[Caught] = []
    with pytest.MonkeyPatch.context() as patch:

        def received(parcel: Parcel, data: memoryview, decide: Fate) -> None:
            found.append((parcel, memoryview(bytes(data)), decide))

        patch.setattr(member.network.arrivals, "received", received)
        yield found


class Site:
    """Paris sends to tokyo, whose store waits or fails when told to. The shipment of message 1 was caught,
    and that of message 2; message 0 has arrived, so tokyo has the key."""

    def __init__(self, fleet: Fleet, paris: FleetMember, tokyo: FleetMember, store: FaultyStore) -> None:
        self.fleet, self.paris, self.tokyo, self.store = fleet, paris, tokyo, store
        self.shipments: list[Caught] = []
        #: (hop, what it was told)
        self.told: list[tuple[str, str | None]] = []

    async def open(self) -> None:
        await self.fleet.topic("orders", billing=[self.tokyo])
        await self.fleet.linked()
        async with self.fleet.attach(self.paris) as here:
            await here.publish("orders", b"0", until="arrived")
            with caught(self.tokyo) as self.shipments:
                for number in (1, 2):
                    await here.publish("orders", b"%d" % number)
                    await until(lambda wanted=number: len(self.shipments) == wanted)  # type: ignore[misc]
        await self.tokyo.terminal.broker.drain()

    def bring(self, hop: str, number: int) -> None:
        """A hop hands over the shipment of a message."""
        parcel, data, _ = self.shipments[number - 1]
        self.tokyo.network.arrivals.received(parcel, data, partial(self._tell, hop))

    def _tell(self, hop: str, code: str | None) -> None:
        self.told.append((hop, code))

    async def said(self) -> None:
        """Until paris has heard what tokyo has said so far: an answer doesn't overtake it."""
        topic = self.paris.terminal.broker.topics["orders"]
        ask = Ask("orders", topic.created_at, "billing", 0, False)
        assert await self.paris.network.forwarder.ask(self.tokyo.id, ask, LIMIT) is not None

    @property
    def on_the_way(self) -> int:
        """Shipments that paris doesn't know to have arrived."""
        return len(self.paris.network.forwarder.lanes["orders", self.tokyo.id].outbound.shipments)

    @property
    def stored(self) -> int:
        return self.tokyo.terminal.broker.topics["orders"].log.end


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch):
    # Nothing is sent again by itself while a test looks, however long that takes.
    for place, name in (
        (outbound, "AGAIN_AFTER"),
        (outbound, "AGAIN_AFTER_MOST"),
        (reassembly, "MISSING_AFTER"),
    ):
        monkeypatch.setattr(place, name, 3600.0)
    store = FaultyStore(MemoryStore())
    async with Fleet(settings=Settings()) as fleet:
        found = Site(fleet, await fleet.server("paris"), await fleet.server("tokyo", store=store), store)
        try:
            await found.open()
            yield found
        finally:
            store.gate.set()


async def test_of_two_hops_with_the_same_shipment_none_is_told_before_it_is_stored(site: Site) -> None:
    site.store.gate.clear()
    site.bring("one", 1)
    site.bring("other", 1)
    await site.said()
    assert (site.told, site.stored, site.on_the_way) == ([], 1, 2)
    site.store.gate.set()
    await until(lambda: len(site.told) == 2)
    assert (sorted(site.told), site.stored) == ([("one", None), ("other", None)], 2)
    await until(lambda: site.on_the_way == 1)


async def test_two_hops_whose_shipment_can_not_be_stored_both_keep_it(site: Site) -> None:
    site.store.gate.clear()
    site.bring("one", 1)
    site.bring("other", 1)
    site.store.failing = True
    site.store.gate.set()
    await until(lambda: len(site.told) == 2)
    assert sorted(site.told) == [("one", "store_full"), ("other", "store_full")]
    await site.said()
    assert (site.stored, site.on_the_way) == (1, 2)
    # Whichever of them brings it again, it is stored then.
    site.store.failing = False
    site.bring("other", 1)
    await until(lambda: site.stored == 2)
    await until(lambda: site.on_the_way == 1)


async def test_of_two_hops_with_an_early_shipment_none_is_told_before_it_is_on_the_shelf(site: Site) -> None:
    here = site.tokyo.network.arrivals
    site.store.gate.clear()
    site.bring("one", 2)
    site.bring("other", 2)
    await until(lambda: not here.table._held_bytes)  # on its way to the shelf: the one before it doesn't come
    await site.said()
    assert (site.told, here.totals.shelved) == ([], 0)
    site.store.gate.set()
    await until(lambda: len(site.told) == 2)
    assert sorted(site.told) == [("one", None), ("other", None)]
    await site.said()
    assert (here.totals.shelved, site.stored, site.on_the_way) == (1, 1, 2)
    site.bring("one", 1)
    await until(lambda: site.on_the_way == 0)
    assert site.stored == 3


async def test_a_shipment_on_the_shelf_stays_there_until_its_twin_is_stored(site: Site) -> None:
    here = site.tokyo.network.arrivals
    site.bring("one", 2)
    await until(lambda: here.table.on_shelf == 1)
    site.store.gate.clear()
    site.bring("one", 1)
    site.bring("other", 2)  # the next one now, from the hop and from the shelf
    await site.said()
    assert (site.stored, site.on_the_way) == (1, 2)
    site.store.gate.set()
    await until(lambda: site.on_the_way == 0)
    assert site.stored == 3
    await until(lambda: here.table.on_shelf == 0)


async def test_a_crash_between_storing_a_shipment_and_clearing_the_shelf_does_no_harm(site: Site) -> None:
    here, broker = site.tokyo.network.arrivals, site.tokyo.terminal.broker
    site.bring("one", 2)
    await until(lambda: here.table.on_shelf == 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(here._shelf, "remove", lambda place: None)  # the crash comes before it is written
        site.bring("one", 1)
        await until(lambda: site.stored == 3)
        await until(lambda: site.on_the_way == 0)
    shelf = Shelf(broker, "$sealed", 1 << 20)
    again = Arrivals(site.tokyo.network, shelf)
    await again.open()
    assert (shelf.count, again.table.on_shelf) == (1, 1)
    await until(lambda: (shelf.count, again.table.on_shelf) == (0, 0))
    await broker.drain()
    assert (site.stored, again.totals.repeated) == (3, 1)
    await again.close()


async def test_of_two_groups_in_a_lane_one_goes_elsewhere_when_nothing_is_confirmed() -> None:
    async with Fleet(settings=Settings()) as fleet:
        paris, tokyo, osaka = [await fleet.server(name) for name in ("paris", "tokyo", "osaka")]
        await fleet.admin.update_terminal(osaka.id, admin_cost=5000.0)  # tokyo is the first choice
        await fleet.topic("orders", billing=[tokyo, osaka], audit=[tokyo])
        await fleet.linked()
        async with (
            fleet.attach(paris) as here,
            fleet.attach(tokyo) as there,
            fleet.attach(osaka) as elsewhere,
            # First, so that osaka keeps what comes to it: it has a consumer before it knows of one in tokyo.
            Reader(elsewhere.subscribe("orders", group="billing")) as billing,
            Reader(there.subscribe("orders", group="billing")),
            Reader(there.subscribe("orders", group="audit")) as audit,
        ):
            states = paris.network.states.states
            await until(lambda: [len(states[each.id].groups) for each in (tokyo, osaka)] == [2, 1])
            kept = osaka.network.forwarder.placements
            await until(lambda: [kept[key].target for key in kept if key[1] == "billing"] == [osaka.id])
            placements = paris.network.forwarder.placements
            with caught(tokyo) as lost:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(outbound, "AGAIN_AFTER", 0.1)
                    await here.publish("orders", b"1")
                    await until(lambda: bool(lost))
                for number in (2, 3):
                    await here.publish("orders", b"%d" % number)
                await until(lambda: placements["orders", "billing"].target == osaka.id)
                assert tokyo.id in paris.network.forwarder.suspects  # and for no other reason
                assert placements["orders", "audit"].target == tokyo.id
                assert await billing.payloads(3) == [b"1", b"2", b"3"]
            for _, _, decide in lost:
                decide("declined")  # all of them come again now, rather than in ten seconds
            assert await audit.payloads(3) == [b"1", b"2", b"3"]
            await until(lambda: not paris.network.forwarder.held())
        first = next(iter(paris.network.forwarder.records.shipments.values()))
        assert (first.destination, first.groups) == (tokyo.id, ["audit", "billing"])
        assert paris.network.forwarder.totals.failovers == 1
        # Tokyo has them for the group that stayed, and for it alone.
        log = tokyo.terminal.broker.topics["orders"].log
        found = [await log.read(offset) for offset in range(log.end)]
        assert [batch.audience for _, batch in filter(None, found)] == [frozenset({"audit"})] * 3
