"""The status log and the metrics: what happened, to whom, how often and why."""

from __future__ import annotations

from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.errors import BadRequest, Forbidden, LeaseLost, Unauthenticated
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, attach, run_terminal
from tests.contracts.ways import Way
from tests.waiting import Reader, eventually


class Status:
    """Reads ``$status`` like any topic."""

    def __init__(self, terminal: Terminal, clock: FakeClock) -> None:
        self._terminal, self._clock = terminal, clock

    async def __aenter__(self) -> Status:
        self._bus = await attach(self._terminal, subject="watcher", life=1e6).open()
        self._reader = await Reader(self._bus.subscribe("$status", group="watch")).__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._reader.__aexit__()
        await self._bus.close()

    async def events(self, who: str | None = None) -> list[dict[str, Any]]:
        """What has happened since the last call."""
        self._clock.advance(0.001)
        await self._terminal.broker.drain()
        log = self._terminal.broker.topics["$status"].log
        events = []
        while self._terminal.broker.table.group("$status", "watch").delivery.cursor.floor < log.end:
            message = await self._reader.next()
            events.append(message.json())
            await message.ack(wait=True)
        return [e for e in events if e.get("who") != "watcher" and who in (None, e.get("who", ""))]


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]


async def test_the_life_of_a_connection(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with Status(timed, clock) as status:
        await status.events()
        async with way.connect(timed, subject="svc"):
            pass
        await eventually(lambda: len(timed.connections) == 1)
        events = await status.events()
        assert [e["event"] for e in events] == ["connect", "authenticate", "disconnect"]
        connect, authenticate, disconnect = events
        assert authenticate["who"] == disconnect["who"] == "svc"
        assert connect["peer"] == authenticate["peer"] == disconnect["peer"]
        assert all(e["time"] > 0 for e in events)


async def test_counts_of_what_goes_through(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with Status(timed, clock) as status, way.connect(timed, subject="svc") as bus:
        await status.events()
        async with bus.publisher("orders") as out:
            await out.send_many([bytes(10)] * 100)
            await out.flush()
            await out.send_many([bytes(10)] * 50)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await reader.payloads(150)
            await reader.subscription.flush()
        events = await status.events("svc")
        (publish,) = of(events, "publish")
        assert (publish["topic"], publish["messages"], publish["batches"]) == ("orders", 150, 2)
        assert publish["bytes"] > 1500
        (deliver,) = of(events, "deliver")
        assert (deliver["topic"], deliver["group"], deliver["messages"]) == ("orders", "g", 150)
        (ack,) = of(events, "ack")
        assert (ack["topic"], ack["group"], ack["messages"]) == ("orders", "g", 150)
        (subscribe,) = of(events, "subscribe")
        assert (subscribe["topic"], subscribe["group"]) == ("orders", "g")


async def test_requeue_bury_and_expire_say_why(timed: Terminal, clock: FakeClock) -> None:
    async with Status(timed, clock) as status, attach(timed, subject="svc") as bus:
        await bus.call("group.create", topic="orders", name="g", ack_within=10.0)
        for number in range(3):
            await bus.publish("orders", b"%d" % number)
        await bus.publish("orders", b"short", expires_at=clock.now / 1e6 + 1)
        clock.advance(2)
        await status.events()
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            messages = await reader.take(3)
            await messages[0].requeue(after=5000.0, cause="later")
            await messages[1].bury("broken")
            clock.advance(11)
            await eventually(lambda: "orders.dead" in timed.broker.topics)
            events = await status.events()
        (expire,) = of(events, "expire")
        assert (expire["topic"], expire["group"], expire["messages"]) == ("orders", "g", 1)
        causes = {e["cause"] for e in of(events, "requeue")}
        assert causes == {"later", "ack_within"}
        (bury,) = of(events, "bury")
        assert (bury["group"], bury["cause"], bury["offsets"]) == ("g", "broken", [[1, 2]])


async def test_refusals_say_who_and_why(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with Status(timed, clock) as status:
        async with way.connect(timed, subject="svc", scopes=["publish:orders", "subscribe:orders"]) as bus:
            await status.events()
            with pytest.raises(Forbidden):
                await bus.publish("secret", b"1")
            await bus.publish("orders", b"1")
            async with Reader(bus.subscribe("orders", group="g")) as reader:
                message = await reader.next()
                await message.ack(wait=True)
                with pytest.raises(LeaseLost):
                    await message.ack(wait=True)
            refused = of(await status.events("svc"), "refuse")
            assert [e["cause"] for e in refused if e.get("detail")] == ["forbidden", "lease_lost"]
        with pytest.raises(Unauthenticated):
            async with attach(timed, token="wrong"):
                pass
        (refusal,) = of(await status.events(""), "refuse")
        assert refusal["cause"] == "unauthenticated"


async def test_tokens_are_never_in_the_status_log(timed: Terminal, clock: FakeClock) -> None:
    import json

    token = timed.issue_token("svc", ["admin"], 3600)
    async with Status(timed, clock) as status:
        async with attach(timed, token=token):
            pass
        with pytest.raises(Unauthenticated):
            async with attach(timed, token=token[:-3] + "abc"):
                pass
        assert token[:-3] not in json.dumps(await status.events())


async def test_level_messages_names_the_offsets(timed: Terminal, clock: FakeClock) -> None:
    async with Status(timed, clock) as status, attach(timed, subject="svc") as bus:
        await bus.call("status.levels", topics={"orders": "messages"})
        await status.events()
        for number in range(3):
            await bus.publish("orders", b"%d" % number)
        await bus.publish("others", b"1")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            for message in await reader.take(3):
                await message.ack(wait=True)
        events = await status.events("svc")
        assert [e["offsets"] for e in of(events, "publish") if e["topic"] == "orders"] == [
            [[0, 1]],
            [[1, 2]],
            [[2, 3]],
        ]
        assert [e["offsets"] for e in of(events, "ack")] == [[[0, 1]], [[1, 2]], [[2, 3]]]
        assert [e.get("offsets") for e in of(events, "publish") if e["topic"] == "others"] == [None]


async def test_levels_change_while_running(timed: Terminal, clock: FakeClock) -> None:
    async with (
        Status(timed, clock) as status,
        attach(timed, subject="loud") as loud,
        attach(timed, subject="quiet") as quiet,
        attach(timed, subject="admin") as admin,
    ):

        async def publishes() -> set[tuple[str, str]]:
            await status.events()
            for bus in (loud, quiet):
                for topic in ("a", "b"):
                    await bus.publish(topic, b"1")
            return {(e["who"], e["topic"]) for e in of(await status.events(), "publish")}

        everything = {("loud", "a"), ("loud", "b"), ("quiet", "a"), ("quiet", "b")}
        assert await publishes() == everything
        await admin.call("status.levels", topics={"a": "off"})
        assert await publishes() == {("loud", "b"), ("quiet", "b")}
        await admin.call("status.levels", producers={"loud": "batches"})
        assert await publishes() == {("loud", "a"), ("loud", "b"), ("quiet", "b")}
        await admin.call("status.levels", topics={}, producers={"quiet": "off"})
        assert await publishes() == {("loud", "a"), ("loud", "b")}
        await admin.call("status.levels", producers={}, default="errors")
        assert await publishes() == set()
        with pytest.raises(BadRequest):
            await admin.call("status.levels", default="loud")
        with pytest.raises(Forbidden):
            await loud.publish("$status", b"x")
        assert of(await status.events(), "refuse")
        await admin.call("status.levels", default="off")
        with pytest.raises(Forbidden):
            await loud.publish("$status", b"x")
        assert not of(await status.events(), "refuse")
        await admin.call("status.levels", default="batches")
        assert await publishes() == everything


async def test_consumers_have_levels_too(timed: Terminal, clock: FakeClock) -> None:
    async with Status(timed, clock) as status, attach(timed, subject="svc") as bus:
        await bus.call("status.levels", consumers={"svc": "off"})
        await status.events()
        await bus.publish("orders", b"1")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await (await reader.next()).ack(wait=True)
        assert {e["event"] for e in await status.events("svc")} == {"publish"}


async def test_levels_survive_a_restart(crashes: list[Any]) -> None:
    store = MemoryStore()
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.call("status.levels", default="errors", topics={"a": "messages"})
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        levels = await bus.call("status.levels")
        assert levels == {
            "default": "errors",
            "topics": {"a": "messages"},
            "producers": {},
            "consumers": {},
            "topic": "",
        }


async def test_reading_the_status_log_writes_none(timed: Terminal, clock: FakeClock) -> None:
    async with Status(timed, clock) as status:
        for _ in range(5):
            await status.events()
        end = timed.broker.topics["$status"].log.end
        for _ in range(20):
            await status.events()
        assert timed.broker.topics["$status"].log.end == end


async def test_the_status_log_is_written_by_itself(terminal: Terminal) -> None:
    """By the real clock, once a second."""
    async with attach(terminal) as bus, Reader(bus.subscribe("$status", group="g")) as reader:
        assert (await reader.next()).json()["event"] == "connect"


async def test_status_is_not_ones_own_to_delete(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        async with Reader(bus.subscribe("$status", group="g")):
            with pytest.raises(BadRequest):
                await bus.call("topic.delete", name="$status", force=True)
        with pytest.raises(BadRequest):
            await bus.call("topic.create", name="$mine")


# -- metrics ------------------------------------------------------------------------------------------


def metric(text: str, name: str, **labels: str) -> float:
    for line in text.splitlines():
        named = line.startswith(name) and line[len(name)] in " {"
        if named and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no {name} {labels} in the metrics")


async def test_metrics(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        async with bus.publisher("orders") as out:
            await out.send_many([b"x"] * 100)
        async with Reader(bus.subscribe("orders", group="g", prefetch=30)) as reader:
            messages = await reader.take(10)
            for message in messages[:7]:
                await message.ack(wait=True)
            await messages[7].requeue(after=100.0)
            await messages[8].bury("bad")
            await eventually(lambda: "orders.dead" in terminal.broker.topics)
            text = await bus.call("terminal.metrics")
            assert metric(text, "landbridge_published_total") == 100
            assert metric(text, "landbridge_acked_total") == 7
            assert metric(text, "landbridge_requeued_total") == 1
            assert metric(text, "landbridge_buried_total") == 1
            assert metric(text, "landbridge_connections") == 1
            assert metric(text, "landbridge_topic_messages_total", topic="orders") == 100
            assert metric(text, "landbridge_group_lag", topic="orders", group="g") == 92
            assert metric(text, "landbridge_delivered_total") >= 30


async def test_info(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal, scopes=["publish:a"]) as bus:
        info = await bus.call("terminal.info")
        assert (info["name"], info["start"], info["connections"]) == ("terminal", 1, 1)


async def test_groups_are_listed_by_the_page(terminal: Terminal) -> None:
    """More groups than a page, in topics whose names are prefixes of each other."""
    async with attach(terminal) as bus:
        made = set()
        for topic in ("a", "a-b", "a.b", "ab"):
            for number in range(400):
                await bus.call("group.create", topic=topic, name=f"g{number}")
                made.add((topic, f"g{number}"))
        found: list[tuple[str, str]] = []
        after = ""
        while True:
            page = await bus.call("group.list", after=after)
            found += [(row["topic"], row["name"]) for row in page["groups"]]
            after = page["next"]
            if not after:
                break
        assert sorted(found) == sorted(made)


async def test_topics_are_listed_by_the_page(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        for number in range(25):
            await bus.call("topic.create", name=f"t{number}")
        found: list[str] = []
        after = ""
        while True:
            page = await bus.call("topic.list", after=after, limit=10)
            assert len(page["topics"]) <= 10
            found += [row["name"] for row in page["topics"]]
            after = page["next"]
            if not after:
                break
        assert sorted(set(found) - {"$status", "$audit"}) == sorted(f"t{n}" for n in range(25))
        assert len(found) == len(set(found))
