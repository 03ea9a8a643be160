"""Pauses of topics, groups and services, while messages and requests go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from landbridge import Service
from landbridge.broker.group import PAUSE
from landbridge.broker.server import Terminal
from landbridge.core.log.store import PutDocument
from landbridge.core.pauses import PauseNote
from landbridge.errors import (
    BadRequest,
    Forbidden,
    NoResponder,
    TopicPaused,
    UnknownGroup,
    UnknownService,
    UnknownTopic,
)
from landbridge.stores.journal.store import JournalStore
from landbridge.testing import attach, run_terminal
from tests.waiting import LIMIT, Reader, eventually, turns


@asynccontextmanager
async def impatient(terminal: Terminal, **options: Any) -> AsyncIterator[Any]:
    """A bus that doesn't wait until a refusal is over."""
    async with attach(terminal, patience=0.0, **options) as bus:
        yield bus


# -- topics --------------------------------------------------------------------------------------------


async def test_a_paused_topic_takes_nothing_and_hands_out_what_it_has(terminal: Terminal, bus: Any) -> None:
    await bus.publish("orders", {"n": 1})
    paused = await bus.topics.pause("orders", note="moving house")
    assert (paused.pause.paused_by, paused.pause.note, paused.pause.delivery) == (
        "test",
        "moving house",
        False,
    )
    async with impatient(terminal) as other:
        for refused in (
            other.publish("orders", {"n": 2}),
            other.publish("orders", {"n": 2}, key="k"),
            other.trigger("orders", {"n": 2}),
            other.request("orders", {"n": 2}, timeout=LIMIT),
        ):
            with pytest.raises(TopicPaused, match="paused by test: moving house"):
                await refused
        with pytest.raises(TopicPaused):
            async with other.transaction() as transaction:
                await transaction.publish("other", b"x")
                await transaction.publish("orders", b"x")
        assert terminal.broker.topics["other"].log.end == 0
    async with Reader(bus.subscribe("orders", group="billing")) as reader:
        assert (await reader.next()).json() == {"n": 1}
    assert (await bus.topics.show("orders")).pause.note == "moving house"
    assert [row.pause is not None for row in await bus.topics.list() if row.name == "orders"] == [True]
    assert (await bus.topics.resume("orders")).pause is None
    await bus.publish("orders", {"n": 3})
    assert (await bus.topics.show("orders")).end == 2


async def test_a_publisher_waits_until_its_topic_is_resumed(terminal: Terminal) -> None:
    async with attach(terminal) as operator, attach(terminal, patience=LIMIT) as bus:
        await operator.topics.create("orders")
        await operator.topics.pause("orders")
        publishing = asyncio.ensure_future(bus.publish("orders", b"1"))
        await turns()
        assert not publishing.done()
        await operator.topics.resume("orders")
        assert (await publishing).offset == 0


async def test_a_topic_can_be_paused_with_its_groups(terminal: Terminal, bus: Any) -> None:
    await bus.publish("orders", b"1")
    await bus.topics.pause("orders", delivery=True)
    async with attach(terminal) as other:
        subscription: Any = other.subscribe("orders", group="billing")
        async with subscription:
            await eventually(lambda: subscription.paused is not None)
            await turns()
            assert not subscription.has_batches
            await bus.topics.pause("orders", note="publishes only")
            await eventually(lambda: subscription.paused is None)
            assert (await subscription.poll(LIMIT)).payload == b"1"


async def test_what_belongs_to_the_terminal_is_not_paused(bus: Any) -> None:
    await bus.status.set(default="messages")
    async with Reader(bus.subscribe("$bus", group="watch")):
        with pytest.raises(BadRequest, match="belongs to the terminal"):
            await bus.topics.pause("$bus")
        with pytest.raises(BadRequest, match="belongs to the terminal"):
            await bus.groups.pause("$bus", "watch")
    with pytest.raises(UnknownTopic):
        await bus.topics.pause("nothing")
    with pytest.raises(UnknownService):
        await bus.services.pause("nobody")


async def test_the_topic_of_a_rule_is_paused_with_its_groups_alone(bus: Any) -> None:
    """Its rule fills it all the same."""
    rule = (await bus.rules.create({"n": [1]}, "orders")).rule
    with pytest.raises(BadRequest, match="nobody publishes to it") as refused:
        await bus.topics.pause(rule)
    assert "--delivery" in refused.value.hint
    paused = await bus.topics.pause(rule, delivery=True)
    assert paused.pause.delivery
    await bus.topics.resume(rule)


async def test_only_operators_pause(terminal: Terminal, bus: Any) -> None:
    await bus.topics.create("orders")
    await bus.groups.create("orders", "billing")
    async with attach(terminal, subject="shop", scopes=["publish:#", "subscribe:#"]) as shop:
        for refused in (
            shop.topics.pause("orders"),
            shop.topics.resume("orders"),
            shop.groups.pause("orders", "billing"),
            shop.services.pause("shop"),
        ):
            with pytest.raises(Forbidden, match=r"use (topic|group|service)\."):
                await refused
        assert (await shop.terminal.info()).paused == []
    await bus.groups.pause("orders", "billing", note="broken")
    await bus.topics.pause("orders", delivery=True)
    assert (await bus.terminal.info()).paused == [
        "the topic orders with its groups, by test",
        "the group billing of orders, by test: broken",
    ]


# -- groups --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"discipline": "lifo"}, {"discipline": "priority"}, {"order": "key"}, {}]
)
async def test_a_paused_group_loses_nothing_and_repeats_nothing(terminal: Terminal, options: Any) -> None:
    """Messages come while the group is paused and resumed again and again; each is handed out once."""
    count = 60
    async with attach(terminal) as bus, attach(terminal) as operator:
        await bus.groups.create("orders", "billing", **options)
        got: list[int] = []

        async def read() -> None:
            async with bus.subscribe("orders", group="billing", prefetch=3) as subscription:
                async for message in subscription:
                    got.append(message.json()["n"])
                    await message.ack()
                    if len(got) == count:
                        return

        reading = asyncio.ensure_future(read())
        for number in range(count):
            await operator.publish("orders", {"n": number}, key=str(number % 4), priority=number % 3)
            if number % 10 == 4:
                await operator.groups.pause("orders", "billing", note=str(number))
            elif number % 10 == 8:
                await operator.groups.resume("orders", "billing")
        await operator.groups.resume("orders", "billing")
        async with asyncio.timeout(LIMIT):
            await reading
        assert sorted(got) == list(range(count))
        if options.get("order") == "key":
            assert all([n for n in got if n % 4 == key] == list(range(key, count, 4)) for key in range(4))
        await eventually(
            lambda: terminal.broker.table.group("orders", "billing").delivery.cursor.lag(count) == 0
        )


async def test_a_paused_group_keeps_leases_and_order(terminal: Terminal, bus: Any) -> None:
    for number in range(4):
        await bus.publish("orders", {"n": number})
    async with attach(terminal) as other:
        subscription: Any = other.subscribe("orders", group="billing", prefetch=2)
        async with subscription:
            held = [await subscription.poll(LIMIT) for _ in range(2)]
            await bus.groups.pause("orders", "billing", note="look first")
            await eventually(lambda: subscription.paused is not None)
            assert subscription.paused.note == "look first"
            await held[0].ack(wait=True)
            await held[1].ack(wait=True)
            await turns()
            assert not subscription.has_batches
            shown = await bus.groups.show("orders", "billing")
            assert (shown.lag, shown.leased, len(shown.consumers)) == (2, 0, 1)
            assert shown.pause.paused_by == "test"
            await bus.groups.resume("orders", "billing")
            assert (await subscription.poll(LIMIT)).json() == {"n": 2}
            assert subscription.paused is None


async def test_who_subscribes_to_a_paused_group_is_told(terminal: Terminal, bus: Any) -> None:
    await bus.groups.create("orders", "billing")
    await bus.groups.pause("orders", "billing", note="not yet")
    async with attach(terminal) as other:
        subscription: Any = other.subscribe("orders", group="billing")
        heard: list[PauseNote | None] = []
        subscription.on_paused = heard.append
        async with subscription:
            await eventually(lambda: heard)
            assert heard[0] is not None
            assert (heard[0].paused_by, heard[0].note) == ("test", "not yet")
            await bus.groups.resume("orders", "billing")
            await eventually(lambda: heard[1:] == [None])
            # A pull of a paused group has nothing, and says nothing wrong.
        await bus.groups.pause("orders", "billing", note="again")
        await bus.publish("orders", b"1")
        pulling = other.pull_from("orders", "billing")
        await pulling.open()
        assert await pulling.pull(10) == []
        assert pulling.paused is not None
        await bus.groups.resume("orders", "billing")
        assert [message.payload for message in await pulling.pull(10, LIMIT)] == [b"1"]


async def test_every_kind_of_subscription_says_that_it_is_paused(terminal: Terminal, bus: Any) -> None:
    await bus.groups.create("orders", "billing")
    await bus.groups.pause("orders", "billing", note="not yet")
    reader = Reader(bus.subscribe("orders", group="billing"))
    async with reader, attach(terminal) as operator:
        await eventually(lambda: reader.subscription.paused is not None)
        assert reader.subscription.paused.note == "not yet"
        await operator.groups.resume("orders", "billing")
        await eventually(lambda: reader.subscription.paused is None)


async def test_a_group_without_a_name_is_not_paused(terminal: Terminal, bus: Any) -> None:
    async with Reader(bus.subscribe("orders")):
        (name,) = terminal.broker.topics["orders"].groups
        with pytest.raises(BadRequest, match="lives with its subscriber"):
            await bus.groups.pause("orders", name)
    with pytest.raises(UnknownGroup):
        await bus.groups.pause("orders", "billing")


# -- services ------------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(terminal: Terminal, name: str) -> AsyncIterator[None]:
    service = Service(name)

    @service.on("quotes", reply=True, group="quoting")
    async def quote(value: Any) -> Any:
        return {"by": name}

    responders = terminal.broker.requests
    before = responders.answering("quotes")
    async with attach(terminal, subject=name) as bus, service.running(bus):
        await eventually(lambda: responders.answering("quotes") == before + 1)
        yield


async def test_callers_of_a_paused_service_are_told_at_once(terminal: Terminal, bus: Any) -> None:
    async with attach(terminal) as caller, answering(terminal, "one"):
        assert (await caller.request("quotes", {}, timeout=LIMIT)).json() == {"by": "one"}
        paused = await bus.services.pause("one", note="new version")
        assert paused.pause.note == "new version"
        with pytest.raises(NoResponder, match="paused by test: new version"):
            await caller.request("quotes", {}, timeout=LIMIT)
        assert (await bus.services.show("one")).pause.note == "new version"
        # Stored requests wait.
        durable = asyncio.ensure_future(caller.request("quotes", {}, timeout=LIMIT, durable=True))
        async with answering(terminal, "two"):
            replies = [(await caller.request("quotes", {}, timeout=LIMIT)).json() for _ in range(4)]
            assert replies == [{"by": "two"}] * 4
            assert (await durable).json() == {"by": "two"}
        with pytest.raises(NoResponder):
            await caller.request("quotes", {}, timeout=LIMIT)
        assert (await bus.services.unpause("one")).pause is None
        assert (await caller.request("quotes", {}, timeout=LIMIT)).json() == {"by": "one"}


async def test_a_service_that_is_paused_finishes_what_it_has(terminal: Terminal, bus: Any) -> None:
    service, go_on, begun = Service("slow"), asyncio.Event(), asyncio.Event()

    @service.on("quotes", reply=True)
    async def quote(value: Any) -> Any:
        begun.set()
        await go_on.wait()
        return value

    async with attach(terminal, subject="slow") as own, service.running(own), attach(terminal) as caller:
        await eventually(lambda: terminal.broker.requests.answers("quotes"))
        asking = asyncio.ensure_future(caller.request("quotes", {"n": 1}, timeout=LIMIT))
        await begun.wait()
        await bus.services.pause("slow")
        with pytest.raises(NoResponder):
            await caller.request("quotes", {"n": 2}, timeout=LIMIT)
        go_on.set()
        assert (await asking).json() == {"n": 1}


async def test_the_requests_of_a_paused_service_that_leaves_go_to_another(
    terminal: Terminal, bus: Any
) -> None:
    stuck = Service("stuck")
    begun, end = asyncio.Event(), asyncio.Event()

    @stuck.on("quotes", reply=True, group="quoting")
    async def quote(value: Any) -> Any:
        begun.set()
        await end.wait()

    async with attach(terminal) as caller, attach(terminal, subject="stuck") as own, stuck.running(own):
        stuck_bus: Any = own
        await eventually(lambda: terminal.broker.requests.answers("quotes"))
        asking = asyncio.ensure_future(caller.request("quotes", {}, timeout=LIMIT))
        await begun.wait()
        await bus.services.pause("stuck")
        async with answering(terminal, "two"):
            stuck_bus.wire._transport.abort()
            assert (await asking).json() == {"by": "two"}
            end.set()


async def test_all_responders_of_a_paused_group_are_paused(terminal: Terminal, bus: Any) -> None:
    async with attach(terminal) as caller, answering(terminal, "one"):
        await bus.groups.pause("quotes", "quoting")
        with pytest.raises(NoResponder, match="paused"):
            await caller.request("quotes", {}, timeout=LIMIT)
        async with answering_later(terminal, "two"):
            with pytest.raises(NoResponder, match="paused"):
                await caller.request("quotes", {}, timeout=LIMIT)
        await bus.groups.resume("quotes", "quoting")
        assert (await caller.request("quotes", {}, timeout=LIMIT)).json() == {"by": "one"}


@asynccontextmanager
async def answering_later(terminal: Terminal, name: str) -> AsyncIterator[None]:
    """A service that subscribes while its group is paused."""
    service = Service(name)

    @service.on("quotes", reply=True, group="quoting")
    async def quote(value: Any) -> Any:
        return {"by": name}

    group = terminal.broker.table.group("quotes", "quoting")
    before = len(group.consumers)
    async with attach(terminal, subject=name) as bus, service.running(bus):
        await eventually(lambda: len(group.consumers) == before + 1)
        yield


# -- lasting -------------------------------------------------------------------------------------------


async def test_a_pause_that_is_damaged_goes_on(tmp_path: Path) -> None:
    store = tmp_path / "bus"
    async with run_terminal(JournalStore(store)) as terminal, attach(terminal) as bus:
        await bus.topics.create("orders")
        await bus.topics.pause("orders", note="a")
        key = terminal.broker.topics["orders"].pause_key
        await terminal.broker.write([PutDocument(PAUSE, key, b"damaged")])
    async with run_terminal(JournalStore(store)) as terminal, impatient(terminal) as bus:
        with pytest.raises(TopicPaused, match="is damaged"):
            await bus.publish("orders", b"1")
        assert any("the pause" in finding for finding in (await bus.terminal.info()).damage)
        await bus.topics.resume("orders")
        await bus.publish("orders", b"1")


async def test_pauses_survive_a_restart(tmp_path: Path) -> None:
    store = tmp_path / "bus"
    async with run_terminal(JournalStore(store)) as terminal, attach(terminal) as bus:
        await bus.services.register("shop")
        for name in ("orders", "prices", "gone"):
            await bus.groups.create(name, "billing")
        await bus.topics.pause("orders", note="a", delivery=True)
        await bus.groups.pause("prices", "billing", note="b")
        await bus.services.pause("shop", note="c")
        await bus.topics.pause("gone")
        await bus.groups.pause("gone", "billing")
        told = (await bus.terminal.info()).paused
        metrics = await bus.terminal.metrics()
        for what, count in (("topic", 2), ("group", 2), ("service", 1)):
            assert f'landbridge_paused{{what="{what}"}} {count}.0' in metrics
        await bus.topics.delete("gone")
    async with run_terminal(JournalStore(store)) as terminal, attach(terminal) as bus:
        assert (await bus.terminal.info()).paused == [line for line in told if "gone" not in line]
        await bus.topics.create("gone")
        assert (await bus.topics.show("gone")).pause is None
        await bus.topics.resume("orders")
        await bus.groups.resume("prices", "billing")
        await bus.services.unpause("shop")
    async with run_terminal(JournalStore(store)) as terminal, attach(terminal) as bus:
        assert (await bus.terminal.info()).paused == []
