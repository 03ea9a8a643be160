"""Observers: changes are events of the topic ``$bus``; and the status log in a topic of the user's choice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from landbridge.broker.server import Terminal
from landbridge.core import changes, status
from landbridge.errors import BadRequest, Forbidden
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, attach, run_terminal
from tests.waiting import Reader, eventually


async def watch(bus: Any) -> None:
    """Whoever subscribes first makes the topic; from then on changes are kept, also when nobody listens."""
    async with bus.subscribe(changes.TOPIC):
        pass


async def told(bus: Any, topic: str = changes.TOPIC) -> list[dict[str, Any]]:
    """All events of a topic, without their time."""
    found = await bus.fetch(topic, 0)
    events = [msgspec.json.decode(p) for each in found.batches for p in each.batch.payloads()]
    for event in events:
        assert event.pop("time") > 0
    return events


async def test_changes_of_topics_and_groups_are_told(terminal: Terminal) -> None:
    async with attach(terminal, subject="ada") as bus, attach(terminal) as observer:
        await bus.topics.create("before")
        await watch(observer)
        await bus.topics.create("orders", max_backlog=1000)
        await bus.topics.create("orders", max_backlog=1000)  # it is there
        await bus.topics.update("orders", max_backlog=2000)
        await bus.topics.update("orders", max_backlog=2000)  # nothing is different
        await bus.groups.create("orders", "billing")
        await bus.groups.update("orders", "billing", ack_within=5.0)
        await bus.groups.seek("orders", "billing", to="latest")
        await bus.groups.delete("orders", "billing")
        await bus.topics.delete("orders")
        await terminal.broker.drain()
        events = await told(observer)
    spec = events[0].pop("to")
    assert (spec["name"], spec["max_backlog"]) == ("orders", 1000)
    events[2].pop("to")
    topic = {"what": "topic", "name": "orders", "who": "ada"}
    group = {"what": "group", "name": "orders/billing", "who": "ada"}
    assert events == [
        {**topic, "change": "created"},
        {**topic, "change": "updated", "from": {"max_backlog": 1000}, "to": {"max_backlog": 2000}},
        {**group, "change": "created"},
        {**group, "change": "updated", "from": {"ack_within": 30.0}, "to": {"ack_within": 5.0}},
        {**group, "change": "deleted"},
        {**topic, "change": "deleted"},
    ]


async def test_what_is_made_by_its_first_use_is_told_too(terminal: Terminal) -> None:
    async with attach(terminal, subject="ada") as bus, attach(terminal, subject="eve") as other:
        await watch(bus)
        await bus.publish("orders", b"1")
        async with Reader(other.subscribe("orders", group="g")) as reader:
            await (await reader.next()).ack(wait=True)
        async with Reader(other.subscribe("orders")):  # a group of its own, which is nobody's business
            pass
        await terminal.broker.drain()
        assert [(e["what"], e["name"], e["change"], e["who"]) for e in await told(bus)] == [
            ("topic", "orders", "created", "ada"),
            ("group", "orders/g", "created", "eve"),
        ]


async def test_observers_follow_with_a_scope_and_nobody_else_writes(terminal: Terminal) -> None:
    async with attach(terminal) as bus, attach(terminal, scopes=["subscribe:$bus"], subject="o") as observer:
        async with Reader(observer.subscribe(changes.TOPIC, group="watch")) as reader:
            await bus.topics.create("orders")
            assert msgspec.json.decode((await reader.next()).payload)["name"] == "orders"
        with pytest.raises(Forbidden):
            await bus.publish(changes.TOPIC, b"{}")
    async with attach(terminal, scopes=["subscribe:#"], subject="o") as other:
        with pytest.raises(Forbidden):
            await other.subscribe(changes.TOPIC).open()


async def test_other_parts_tell_of_their_changes_and_large_values_are_left_out(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await watch(bus)
        terminal.broker.observe("schedule", "nightly", "updated", "ada", {"a": 1, "b": 2}, {"a": 1, "b": 3})
        terminal.broker.observe("rule", "r", "created", after={"x": "y" * changes.LARGEST})
        terminal.broker.observe("topic", "$stage.x", "created")
        await bus.publish("orders", b"1")
        await terminal.broker.drain()
        events = await told(bus)
    assert events[0]["from"] == {"b": 2}
    assert events[0]["to"] == {"b": 3}
    assert events[1] == {"what": "rule", "name": "r", "change": "created"}
    assert [event["what"] for event in events] == ["schedule", "rule", "topic"]


# -- the status log, in another topic --------------------------------------------------------------


async def written(terminal: Terminal) -> None:
    terminal.broker.status_topic.write()
    await terminal.broker.drain()


async def test_the_status_log_goes_to_a_topic_of_choice_and_survives_a_restart() -> None:
    store = MemoryStore(units=4)
    for start in range(2):
        async with run_terminal(store, clock=FakeClock()) as terminal, attach(terminal) as bus:
            if not start:
                assert (await bus.status.set(topic="ops.log")).topic == "ops.log"
            await bus.publish("orders", b"%d" % start)
            await written(terminal)
            events = await told(bus, "ops.log")
            assert [e["messages"] for e in events if e["event"] == "publish"] == [1] * (start + 1)
            copied = {(e["event"], e.get("detail")) for e in events}
            assert copied <= {(e["event"], e.get("detail")) for e in await told(bus, status.TOPIC)}
    async with run_terminal(store, clock=FakeClock()) as terminal, attach(terminal) as bus:
        await bus.status.set(topic="")
        await written(terminal)
        end = terminal.broker.topics["ops.log"].log.end
        await bus.publish("orders", b"2")
        await written(terminal)
        assert terminal.broker.topics["ops.log"].log.end == end


async def test_reading_the_copy_makes_no_more_of_it() -> None:
    async with run_terminal(clock=FakeClock()) as terminal, attach(terminal) as bus:
        await bus.status.set(topic="ops.log", default="messages")
        async with Reader(bus.subscribe("ops.log", group="g")) as reader:
            await bus.publish("orders", b"1")
            await written(terminal)
            log = terminal.broker.topics["ops.log"].log
            for _ in range(log.end):
                await (await reader.next()).ack(wait=True)
            end = log.end
            for _ in range(3):
                await written(terminal)
            assert log.end == end
        assert any(event.get("topic") == "ops.log" for event in await told(bus, status.TOPIC))


async def test_a_full_copy_is_bounded_and_told() -> None:
    async with run_terminal(clock=FakeClock()) as terminal, attach(terminal) as bus:
        await bus.topics.create("ops.log", max_backlog=1000)
        await bus.groups.create("ops.log", "nobody")
        await bus.status.set(topic="ops.log", default="messages")
        for number in range(60):
            await bus.publish("orders", b"%d" % number)
            await written(terminal)
        await written(terminal)
        assert terminal.broker.topics["ops.log"].log.bytes < 3000
        errors = [e for e in await told(bus, status.TOPIC) if e["event"] == "error"]
        assert {(e["topic"], e["cause"]) for e in errors} == {("ops.log", "backlog_full")}


async def test_a_topic_that_was_deleted_is_made_again() -> None:
    async with run_terminal(clock=FakeClock()) as terminal, attach(terminal) as bus:
        await bus.status.set(topic="ops.log")
        await bus.topics.delete("ops.log", force=True)
        await bus.publish("orders", b"1")
        await written(terminal)
        await eventually(lambda: terminal.broker.topics["ops.log"].log.end > 0)


async def test_who_may_not_write_to_the_topic_can_not_choose_it(bus: Any) -> None:
    for name in ("$status", "$bus"):
        with pytest.raises(Forbidden):
            await bus.status.set(topic=name)
    await bus.topics.create("jobs", kind="queue")
    with pytest.raises(BadRequest):
        await bus.status.set(topic="jobs")
    assert (await bus.status.show()).topic == ""
