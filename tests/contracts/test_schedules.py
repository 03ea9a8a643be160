"""Schedules at a terminal whose clock is moved by hand: what is published, once, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.core.schedule.schedule import COLLECTION
from landbridge.core.time import SECOND
from landbridge.errors import (
    BadRequest,
    BusError,
    Forbidden,
    LimitReached,
    ScheduleExists,
    UnknownSchedule,
)
from landbridge.gateways.scheduler import Scheduler
from landbridge.node.assembly import dial_to
from landbridge.node.schedules import scheduling
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, FaultyStore, attach, run_terminal
from tests.waiting import Reader, eventually, turns

#: 2027-01-15 08:00:00 UTC, a Friday.
START = 1_800_000_000_000_000
MINUTE = 60 * SECOND


class Stage:
    """A terminal with a scheduler and a clock."""

    def __init__(self, terminal: Terminal, bus: Bus, scheduler: Scheduler, clock: FakeClock) -> None:
        self.terminal, self.bus, self.scheduler, self.clock = terminal, bus, scheduler, clock

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.scheduler.look()
        await self.quiet()

    async def quiet(self) -> None:
        """Until the scheduler has nothing to do at this moment."""
        while True:
            found, _ = await self.terminal.broker.documents.find_anywhere(COLLECTION, "", 1000)
            stored = {(place.topic, place.key): document.version for place, document in found}
            if self.scheduler.versions == stored and self.scheduler.is_idle:
                break
            await asyncio.sleep(0.001)
        for topic in self.terminal.broker.topics.values():  # so that ``ids`` finds them in memory
            at = topic.log.first
            while (here := await topic.log.read(at)) is not None:
                at = here[0] + len(here[1])

    def times(self, topic: str = "reports") -> list[str]:
        """The fire times of what was published, in minutes and seconds."""
        return [id.partition("@")[2][14:19] for id in self.ids(topic)]

    def ids(self, topic: str = "reports") -> list[str]:
        found = self.terminal.broker.topics.get(topic)
        return (
            []
            if found is None
            else [batch.id_of(index) for _, batch in _batches(found) for index in range(len(batch))]
        )


def _batches(topic: Any) -> Any:
    at = topic.log.first
    while at < topic.log.end:
        here = topic.log.batch_at(at)
        assert here is not None, "it is in the cache"
        yield here
        at = here[0] + len(here[1])


@asynccontextmanager
async def staged(clock: FakeClock | None = None, store: Any = None, **options: Any) -> AsyncIterator[Stage]:
    clock = clock or FakeClock(START)
    async with (
        run_terminal(store, clock=clock, **options) as terminal,
        scheduling(terminal, dial_to(terminal)) as scheduler,
        attach(terminal, life=1e7) as bus,
    ):
        yield Stage(terminal, bus, scheduler, clock)


@pytest.fixture
async def stage(crashes: list[Any]) -> AsyncIterator[Stage]:
    async with staged() as made:
        yield made


async def test_a_schedule_publishes_at_its_times_with_headers_key_and_payload(stage: Stage) -> None:
    made = await stage.bus.schedules.create(
        "reports",
        "nightly",
        "*/10 * * * *",
        payload={"kind": "daily"},
        key="eu",
        headers={"a": "b"},
        priority=3,
    )
    assert (made.next_at, made.owner, made.state) == (START + 10 * MINUTE, "test", "active")
    await stage.quiet()
    async with stage.bus.subscribe("reports", group="readers") as subscription:
        await stage.pass_time(599)
        assert stage.times() == []
        await stage.pass_time(1)
        message = await anext(aiter(subscription))
        assert message.json() == {"kind": "daily"}
        assert (message.key, message.priority, message.id) == ("eu", 3, "nightly@2027-01-15T08:10:00Z")
        assert message.headers == {
            "a": "b",
            "lb-schedule": "nightly",
            "lb-fire-time": "2027-01-15T08:10:00Z",
            "lb-count": "1",
        }
        await message.ack()
    shown = await stage.bus.schedules.show("reports", "nightly", count=2)
    assert shown.next_firings == [START + 20 * MINUTE, START + 30 * MINUTE]
    assert [(each.at, each.outcome, each.offset) for each in shown.last_firings] == [
        (START + 10 * MINUTE, "fired", 0)
    ]


async def test_a_clock_that_is_set_back_repeats_nothing_and_one_set_forward_is_caught_up(
    stage: Stage,
) -> None:
    await stage.bus.schedules.create("reports", "often", "*/5 * * * *")
    await stage.quiet()
    await stage.pass_time(600)
    assert stage.times() == ["05:00", "10:00"]
    await stage.pass_time(-3600)
    await stage.pass_time(3600)
    assert stage.times() == ["05:00", "10:00"]
    await stage.pass_time(300)
    assert stage.times() == ["05:00", "10:00", "15:00"]


async def test_a_missed_firing_is_an_event_that_names_the_schedule(stage: Stage) -> None:
    await stage.bus.schedules.create("reports", "often", "*/5 * * * *", catch_up=60)
    await stage.quiet()
    await stage.pass_time(30 * 60 + 30)
    assert stage.times() == ["30:00"]
    shown = await stage.bus.schedules.show("reports", "often")
    assert [(each.outcome, each.count) for each in shown.last_firings] == [("fired", 1), ("missed", 5)]
    assert (shown.fired, shown.missed) == (1, 5)
    stage.terminal.broker.status_topic.write()
    async with stage.bus.subscribe("$status", group="look", start="earliest") as events:
        async for message in events:
            event = message.json()
            if event.get("cause") == "schedule_missed":
                break
    assert (event["topic"], event["messages"]) == ("reports", 5)
    assert "schedule often of reports" in event["detail"]
    assert "2027-01-15T08:05:00Z" in event["detail"]


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", ["05:00"]),
        ("buffer-one", ["05:00"]),
        ("buffer-all", ["05:00"]),
        ("allow", ["05:00", "10:00", "15:00", "20:00"]),
    ],
)
async def test_what_becomes_of_firings_while_the_message_before_is_not_settled(
    stage: Stage, overlap: Any, expected: list[str]
) -> None:
    await stage.bus.schedules.create("reports", "often", "*/5 * * * *", overlap=overlap)
    await stage.bus.groups.create("reports", "slow", ack_within=1e6)
    await stage.quiet()
    async with Reader(stage.bus.subscribe("reports", group="slow")) as reader:
        for _ in range(4):
            await stage.pass_time(300)
        assert stage.times() == expected
        message = await reader.next()
        await message.ack()
        later = {"skip": [], "buffer-one": ["10:00"], "buffer-all": ["10:00"], "allow": []}[overlap]
        await eventually(lambda: stage.times() == expected + later)
        if overlap == "buffer-all":
            await (await reader.next()).ack()
            await eventually(lambda: stage.times() == ["05:00", "10:00", "15:00"])
        shown = await stage.bus.schedules.show("reports", "often")
        skipped = {"skip": 3, "buffer-one": 2, "buffer-all": 0, "allow": 0}[overlap]
        assert (shown.skipped, shown.missed) == (skipped, 0)
        if overlap == "skip":
            await stage.pass_time(300)
            assert stage.times() == ["05:00", "25:00"]


async def test_without_a_group_nothing_overlaps(stage: Stage) -> None:
    await stage.bus.schedules.create("reports", "often", "*/5 * * * *")
    await stage.quiet()
    for _ in range(3):
        await stage.pass_time(300)
    assert stage.times() == ["05:00", "10:00", "15:00"]


async def test_a_paused_schedule_publishes_nothing_and_makes_up_for_nothing(stage: Stage) -> None:
    await stage.bus.schedules.create("reports", "often", "*/5 * * * *")
    paused = await stage.bus.schedules.pause("reports", "often", note="the printer is broken")
    assert (paused.state, paused.next_at) == ("paused", None)
    await stage.quiet()
    await stage.pass_time(1200)
    assert stage.times() == []
    shown = await stage.bus.schedules.show("reports", "often")
    assert (shown.note, shown.paused_by, shown.paused_at) == ("the printer is broken", "test", START)
    await stage.bus.schedules.resume("reports", "often")
    await stage.quiet()
    await stage.pass_time(300)
    assert stage.times() == ["25:00"]
    shown = await stage.bus.schedules.show("reports", "often")
    assert (shown.missed, shown.note, shown.paused_at) == (0, "", None)


async def test_trigger_publishes_now_also_while_paused_and_each_time_with_an_id_of_its_own(
    stage: Stage,
) -> None:
    await stage.bus.schedules.create("reports", "yearly", "@yearly")
    await stage.bus.schedules.pause("reports", "yearly")
    first = await stage.bus.schedules.trigger("reports", "yearly")
    second = await stage.bus.schedules.trigger("reports", "yearly")
    await stage.quiet()
    assert stage.ids() == [first.id, second.id]
    assert first.id == "yearly@2027-01-15T08:00:00Z!"
    shown = await stage.bus.schedules.show("reports", "yearly")
    assert [(each.why, each.offset) for each in shown.last_firings] == [("trigger", 1), ("trigger", 0)]


async def test_a_backfill_publishes_the_firings_of_a_range_with_their_own_ids(stage: Stage) -> None:
    await stage.bus.schedules.create("reports", "hourly", "@hourly")
    begun = await stage.bus.schedules.backfill(
        "reports", "hourly", begin=START - 300 * 60 * MINUTE, until=START
    )
    assert begun.firings == 301
    await stage.quiet()
    ids = stage.ids()
    assert (len(ids), len(set(ids))) == (301, 301)
    assert (ids[0], ids[-1]) == ("hourly@2027-01-02T20:00:00Z", "hourly@2027-01-15T08:00:00Z")
    await stage.pass_time(3600)
    assert stage.ids()[301:] == ["hourly@2027-01-15T09:00:00Z"]
    for begin, until in ((START, START - 1), (START, START + 2 * 3600 * SECOND)):
        with pytest.raises(BadRequest, match="range of the past"):
            await stage.bus.schedules.backfill("reports", "hourly", begin=begin, until=until)
    with pytest.raises(BadRequest, match="more than 10,000"):
        await stage.bus.schedules.backfill("reports", "hourly", begin=0, until=START)


async def test_a_moment_fires_once_and_then_the_schedule_is_done(stage: Stage) -> None:
    await stage.bus.schedules.create("reports", "once", "@at 2027-01-15T09:05", zone="Europe/Berlin")
    await stage.quiet()
    await stage.pass_time(300)
    assert stage.ids() == ["once@2027-01-15T08:05:00Z"]
    assert (await stage.bus.schedules.show("reports", "once")).state == "done"
    with pytest.raises(BadRequest, match="no moment that is to come"):
        await stage.bus.schedules.create("reports", "late", "@at 2027-01-15T08:01:00Z")


async def test_an_update_counts_from_now_and_keeps_the_rest(stage: Stage) -> None:
    await stage.bus.schedules.create("reports", "a", "@every 90s", payload="one", key="k")
    await stage.quiet()
    await stage.pass_time(100)
    await stage.bus.schedules.update("reports", "a", when="@every 60s", payload="two")
    await stage.quiet()
    await stage.pass_time(60)
    assert stage.times() == ["01:30", "02:40"]
    shown = await stage.bus.schedules.show("reports", "a")
    assert (shown.options.payload, shown.options.key, shown.fired) == ("two", "k", 2)


async def test_jitter_delays_a_firing_and_keeps_its_fire_time(stage: Stage) -> None:
    await stage.bus.schedules.create("reports", "a", "*/10 * * * *", jitter=300)
    await stage.quiet()
    await stage.pass_time(600)
    before = stage.times()
    await stage.pass_time(300)
    assert (before, stage.times()) == ([], ["10:00"])


async def test_a_restart_in_the_middle_fires_once() -> None:
    """The disk is gone from one of the commits around a firing on; the terminal starts again from what was
    stored."""
    for fail_on in range(1, 12):
        clock, memory = FakeClock(START), MemoryStore(units=4)
        async with staged(clock, memory) as stage:
            await stage.bus.schedules.create("reports", "a", "*/5 * * * *", overlap="allow")
            await stage.quiet()
        clock.advance(300)
        await _until_it_fails(clock, FaultyStore(memory, fail_on=range(fail_on, 10_000)), fail_on)
        async with staged(clock, memory) as stage:
            await stage.quiet()
            assert stage.ids() == ["a@2027-01-15T08:05:00Z"], fail_on
            await stage.pass_time(300)
            assert stage.times() == ["05:00", "10:00"]


async def _until_it_fails(clock: FakeClock, store: FaultyStore, fail_on: int) -> None:
    try:
        async with staged(clock, store) as stage:
            await eventually(lambda: store.commits >= fail_on or bool(stage.ids()))
            await turns()
    except BusError:
        await store.close()  # it could not even start


async def test_two_schedulers_fire_once(stage: Stage) -> None:
    async with scheduling(stage.terminal, dial_to(stage.terminal)) as other:
        for name in "abcdefgh":
            await stage.bus.schedules.create("reports", name, "*/5 * * * *")
        await stage.quiet()
        for _ in range(3):
            stage.clock.advance(300)
            other.look()
            await stage.pass_time(0)
            await eventually(lambda: other.is_idle)
        assert len(stage.ids()) == len(set(stage.ids())) == 24


# -- whose ---------------------------------------------------------------------------------------------


async def test_a_schedule_publishes_in_its_owners_name_and_only_where_the_owner_may(stage: Stage) -> None:
    async with attach(stage.terminal, subject="shop", scopes=["publish:orders.*"]) as shop:
        with pytest.raises(Forbidden):
            await shop.schedules.create("reports", "mine", "@hourly")
        with pytest.raises(Forbidden):
            await shop.schedules.create("$status", "mine", "@hourly")
        await shop.schedules.create("orders.eu", "mine", "@hourly")
        assert (await shop.schedules.show("orders.eu", "mine")).owner == "shop"
        async with attach(stage.terminal, subject="other", scopes=["publish:orders.*"]) as other:
            assert [each.name for each in await other.schedules.list()] == ["mine"]
            for change in (other.schedules.pause, other.schedules.trigger, other.schedules.remove):
                with pytest.raises(Forbidden, match="is shop's"):
                    await change("orders.eu", "mine")
            with pytest.raises(Forbidden, match="is shop's"):
                await other.schedules.update("orders.eu", "mine", payload="mine now")
            with pytest.raises(ScheduleExists):
                await other.schedules.create("orders.eu", "mine", "@hourly")
    await stage.quiet()
    stage.terminal.revoke("sub:shop")
    await stage.pass_time(3600)
    shown = await stage.bus.schedules.show("orders.eu", "mine")
    assert stage.ids("orders.eu") == []
    assert [(each.outcome, each.cause) for each in shown.last_firings] == [("refused", "unauthenticated")]
    # An operator who changes what it publishes becomes its owner.
    changed = await stage.bus.schedules.update("orders.eu", "mine", payload="again")
    assert changed.owner == "test"
    await stage.quiet()
    await stage.pass_time(3600)
    assert len(stage.ids("orders.eu")) == 1


async def test_a_topic_that_is_deleted_takes_its_schedules_along(stage: Stage) -> None:
    for name in ("a", "b"):
        await stage.bus.schedules.create("reports", name, "@hourly")
    await stage.bus.schedules.create("orders", "other", "@hourly")
    await stage.bus.topics.delete("reports")
    assert [each.name for each in await stage.bus.schedules.list()] == ["other"]
    await stage.pass_time(3600)
    assert "reports" not in stage.terminal.broker.topics
    assert len(stage.ids("orders")) == 1
    await stage.bus.schedules.create("reports", "a", "@hourly")
    await stage.pass_time(3600)
    assert len(stage.ids("reports")) == 1


async def test_a_backfill_that_is_too_large_holds_up_nobody(stage: Stage) -> None:
    await stage.bus.schedules.create("reports", "often", "* * * * *")
    asked = asyncio.ensure_future(stage.bus.schedules.backfill("reports", "often", begin=0, until=START))
    others = 0
    while not asked.done():
        await stage.bus.topics.show("reports")
        others += 1
    with pytest.raises(BadRequest, match="10,000 firings"):
        await asked
    assert others > 3


async def test_an_owner_that_is_suspended_removed_or_may_less_publishes_no_more(stage: Stage) -> None:
    services, schedules = stage.bus.services, stage.bus.schedules
    await services.register("shop", scopes=["publish:orders.*"])
    async with attach(stage.terminal, subject="shop", scopes=["publish:orders.*"]) as shop:
        await shop.schedules.create("orders.eu", "mine", "@hourly")

    async def fires() -> tuple[int, str | None]:
        await stage.quiet()
        before = len(stage.ids("orders.eu"))
        await stage.pass_time(3600)
        last = (await schedules.show("orders.eu", "mine")).last_firings[0]
        return len(stage.ids("orders.eu")) - before, last.cause if last.outcome == "refused" else None

    refused = (0, "unauthenticated")
    assert await fires() == (1, None)
    await services.suspend("shop")
    assert await fires() == refused
    await services.resume("shop")
    assert await fires() == (1, None)
    await services.update("shop", scopes=["publish:orders.us", "subscribe:#"])
    assert await fires() == refused
    await services.update("shop", scopes=["publish:orders.#"])
    assert await fires() == (1, None)
    await services.remove("shop")
    assert await fires() == refused
    assert await fires() == refused
    assert "shop" not in [each.name for each in await services.list()]


async def test_schedules_of_topics_that_a_token_may_not_see_are_not_listed(stage: Stage) -> None:
    await stage.bus.schedules.create("reports", "secret", "@hourly")
    async with attach(stage.terminal, subject="shop", scopes=["subscribe:orders"]) as shop:
        assert await shop.schedules.list() == []
        with pytest.raises(Forbidden):
            await shop.schedules.show("reports", "secret")
        with pytest.raises(Forbidden):
            await shop.documents.list(COLLECTION, topic="*")


async def test_what_does_not_exist_and_what_is_there_already(stage: Stage) -> None:
    calls = stage.bus.schedules
    for work in (calls.show, calls.pause, calls.resume, calls.trigger, calls.remove):
        with pytest.raises(UnknownSchedule):
            await work("reports", "none")
    await calls.create("reports", "a", "@hourly")
    await calls.create("reports", "a", "@hourly")
    with pytest.raises(ScheduleExists, match="when is @hourly, not @daily"):
        await calls.create("reports", "a", "@daily")
    await calls.remove("reports", "a")
    assert await calls.list() == []
    await stage.quiet()
    await stage.pass_time(7200)
    assert stage.ids() == []


async def test_there_are_no_more_schedules_than_max_schedules(crashes: list[Any]) -> None:
    async with staged(limits=Limits(max_schedules=2)) as stage:
        await stage.bus.schedules.create("a", "one", "@hourly")
        await stage.bus.schedules.create("b", "two", "@hourly")
        with pytest.raises(LimitReached, match="max_schedules"):
            await stage.bus.schedules.create("c", "three", "@hourly")
        await stage.bus.schedules.remove("a", "one")
        await stage.bus.schedules.create("c", "three", "@hourly")


@pytest.mark.parametrize(
    "value", [17, {"spec": {}}, {"spec": {"topic": "reports", "name": "b", "when": "H"}}]
)
async def test_a_document_that_is_no_schedule_troubles_nobody_else(stage: Stage, value: Any) -> None:
    await stage.bus.schedules.create("reports", "good", "*/5 * * * *")
    await stage.bus.documents.create(COLLECTION, "bad", value, topic="reports")
    for _ in range(2):
        stage.clock.advance(300)
        stage.scheduler.look()
        await eventually(lambda: bool(stage.ids()))
    await eventually(lambda: len(stage.ids()) == 2)


async def test_a_full_disk_delays_a_firing(crashes: list[Any]) -> None:
    async with staged() as stage:
        await stage.bus.schedules.create("reports", "a", "*/5 * * * *")
        await stage.quiet()
        await stage.bus.topics.update("reports", max_backlog=1)
        await stage.bus.groups.create("reports", "slow")
        await stage.bus.publish("reports", b"x" * 100)
        stage.clock.advance(300)
        stage.scheduler.look()
        await turns(200)
        assert len(stage.ids()) == 1
        await stage.bus.topics.update("reports", max_backlog=1 << 30)
        await eventually(lambda: len(stage.ids()) == 2)


# -- opening hours of groups ---------------------------------------------------------------------------


async def test_a_closed_group_hands_out_nothing_and_says_until_when(
    timed: Terminal, clock: FakeClock
) -> None:
    clock.advance(0)
    clock.now = START  # a Friday, 08:00 UTC
    async with attach(timed, life=1e7) as bus:
        await bus.groups.create("orders", "office", hours=["mon-fri 09:00-17:00 UTC"], ack_within=1e6)
        await bus.publish("orders", "early")
        async with Reader(bus.subscribe("orders", group="office")) as reader:
            await turns(200)
            shown = await bus.groups.show("orders", "office")
            assert (shown.leased, shown.closed_until) == (0, START + 60 * MINUTE)
            assert "landbridge_group_closed_until_seconds" in await bus.terminal.metrics()
            clock.advance(3600)
            message = await reader.next()
            assert message.text() == "early"
            assert (await bus.groups.show("orders", "office")).closed_until is None
            clock.advance(8 * 3600)
            await message.ack()  # what was handed out can be settled at any time
            await bus.publish("orders", "late")
            await turns(200)
            assert (await bus.groups.show("orders", "office")).leased == 0
            clock.advance(3600)
            clock.advance(-2 * 3600)  # somebody sets the clock back into the opening hours
            assert (await reader.next()).text() == "late"
            await bus.publish("orders", "more")
            await bus.groups.update("orders", "office", hours=[])
            clock.advance(12 * 3600)
            assert (await reader.next()).text() == "more"
        with pytest.raises(BadRequest, match="opening hours"):
            await bus.groups.create("orders", "other", hours=["from nine to five"])
