"""Services: decorated handlers with typed payloads, concurrency, retries and a graceful end."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

import landbridge
import landbridge.testing
from landbridge import Message, Retry, Service
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.errors import BadName, BadPayload, BadRequest, Disconnected, Forbidden, GroupExists
from landbridge.testing import FakeClock, attach
from tests.waiting import LIMIT, Reader, eventually


class Order(msgspec.Struct):
    id: int
    amount: float = 0.0


@dataclass
class Person:
    name: str


def settled(terminal: Terminal, topic: str, group: str) -> int:
    return terminal.broker.table.group(topic, group).delivery.cursor.floor


async def letters(bus: Any, topic: str, count: int) -> list[Any]:
    async with Reader(bus.subscribe(f"{topic}.dead", group="check", start="earliest")) as reader:
        return await reader.take(count)


async def test_typed_payloads(terminal: Terminal) -> None:
    service = Service("billing")
    seen: list[Any] = []

    @service.on("orders")
    async def order(order: Order) -> None:
        seen.append(order)

    @service.on("people")
    async def person(person: Person, message: Message) -> None:
        seen.append((person, message.topic, message.key))

    @service.on("raw")
    async def raw(data: bytes, bus: Bus) -> None:
        await bus.publish("echo", data)

    @service.on("text")
    async def text(text: str, message) -> None:
        seen.append((text, message.payload))

    @service.on("anything")
    async def anything(value) -> None:
        seen.append(value)

    async with attach(terminal) as bus, service.running(bus):
        await bus.publish("orders", {"id": 1, "amount": 2.5})
        await bus.publish("people", Person("Ada"), key="k")
        await bus.publish("raw", b"\x00\xff")
        await bus.publish("text", "Grüße")
        await bus.publish("anything", [1, {"a": None}])
        async with Reader(bus.subscribe("echo", group="g", start="earliest")) as echo:
            assert await echo.payloads(1) == [b"\x00\xff"]
        await eventually(lambda: len(seen) == 4)
    assert Order(1, 2.5) in seen
    assert (Person("Ada"), "people", "k") in seen
    assert ("Grüße", "Grüße".encode()) in seen
    assert [1, {"a": None}] in seen
    for topic in ("orders", "people", "raw", "text", "anything"):
        assert settled(terminal, topic, "billing") == 1


async def test_the_group_is_the_services_name_unless_given(terminal: Terminal) -> None:
    service = Service("billing")

    @service.on("a")
    async def a(value: bytes) -> None: ...

    @service.on("b", group="other")
    async def b(value: bytes) -> None: ...

    async with attach(terminal) as bus, service.running(bus):
        await eventually(lambda: {"a", "b"} <= set(terminal.broker.topics))
        await eventually(lambda: terminal.broker.topics["a"].groups and terminal.broker.topics["b"].groups)
    assert set(terminal.broker.topics["a"].groups) == {"billing"}
    assert set(terminal.broker.topics["b"].groups) == {"other"}


async def test_concurrency_is_as_much_as_allowed_and_no_more(terminal: Terminal) -> None:
    service = Service("billing")
    running = most = done = 0
    go_on = asyncio.Event()

    @service.on("orders", concurrency=5)
    async def handle(value: bytes) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1
        done += 1

    async with attach(terminal) as bus:
        for number in range(20):
            await bus.publish("orders", b"%d" % number)
        async with service.running(bus):
            await eventually(lambda: running == 5)
            go_on.set()
            await eventually(lambda: done == 20)
    assert most == 5
    assert settled(terminal, "orders", "billing") == 20


async def test_one_at_a_time_keeps_the_order(terminal: Terminal) -> None:
    service = Service("billing")
    seen: list[Any] = []

    @service.on("orders")
    async def handle(value: bytes) -> None:
        await asyncio.sleep(0)
        seen.append(int(value))

    async with attach(terminal) as bus, service.running(bus):
        async with bus.publisher("orders") as out:
            await out.send_many([b"%d" % n for n in range(300)])
        await eventually(lambda: len(seen) == 300)
    assert seen == list(range(300))


async def test_a_handler_that_fails_is_tried_again(
    timed: Terminal, clock: FakeClock, crashes: list[Any]
) -> None:
    service, attempts = Service("billing", retry=Retry(attempts=3, first=2.0)), []

    @service.on("orders")
    async def handle(order: Order, message: Message) -> None:
        attempts.append(message.attempt)
        raise ConnectionError("no database")

    async with attach(timed) as bus:
        async with service.running(bus):
            await bus.publish("orders", {"id": 1})
            await eventually(lambda: attempts == [1])
            for count, delay in ((2, 2.0), (3, 4.0)):
                await eventually(lambda: timed.broker.table.group("orders", "billing").delivery.cursor.tries)
                group = timed.broker.table.group("orders", "billing")
                await eventually(lambda group=group: not group.delivery.leases)
                clock.advance(delay - 0.1)
                assert group.delivery.pending == 0
                clock.advance(0.2)
                await eventually(lambda count=count: len(attempts) == count)
            (letter,) = await letters(bus, "orders", 1)
        assert letter.headers["lb-cause"] == "ConnectionError: no database"
        assert letter.headers["lb-attempts"] == 3
    assert attempts == [1, 2, 3]
    # Every failure was told to the loop's exception handler.
    assert [type(context["exception"]) for context in crashes] == [ConnectionError] * 3
    crashes.clear()


async def test_some_errors_are_buried_at_once(terminal: Terminal, crashes: list[Any]) -> None:
    service = Service("billing")

    @service.on("orders", retry=Retry(bury_on=(ValueError,)))
    async def handle(value: bytes) -> None:
        raise ValueError("never")

    async with attach(terminal) as bus, service.running(bus):
        await bus.publish("orders", b"1")
        (letter,) = await letters(bus, "orders", 1)
        assert (letter.headers["lb-cause"], letter.headers["lb-attempts"]) == ("ValueError: never", 1)
    crashes.clear()


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("orders", b"not json"),
        ("orders", b'{"id": "text"}'),
        ("orders", b'{"amount": 1.0}'),
        ("orders", b'{"id": "\xff"}'),
        ("text", b"\xff\xfe"),
    ],
)
async def test_a_payload_of_another_type_is_buried_at_once(
    terminal: Terminal, topic: str, payload: bytes
) -> None:
    service = Service("billing")
    seen: list[Any] = []

    @service.on("orders")
    async def order(order: Order) -> None:
        seen.append(order)

    @service.on("text")
    async def text(text: str) -> None:
        seen.append(text)

    async with attach(terminal) as bus, service.running(bus):
        await bus.publish(topic, payload)
        await bus.publish(topic, {"id": 2})
        (letter,) = await letters(bus, topic, 1)
        assert letter.payload == payload
        assert str(letter.headers["lb-cause"]).startswith("bad_payload")
        assert letter.headers["lb-attempts"] == 1
        await eventually(lambda: len(seen) == 1)
        await eventually(lambda: settled(terminal, topic, "billing") == 2)


async def test_a_bad_payload_of_the_handlers_own_making_is_its_failure(
    terminal: Terminal, crashes: list[Any]
) -> None:
    """It is not the message that is bad: the retry policy decides."""
    service, attempts = Service("billing", retry=Retry(attempts=2, first=0.0)), []

    @service.on("orders")
    async def handle(order: Order, message: Message, bus: Bus) -> None:
        attempts.append(message.attempt)
        await bus.publish("invoices", object())

    async with attach(terminal) as bus, service.running(bus):
        await bus.publish("orders", {"id": 1})
        (letter,) = await letters(bus, "orders", 1)
        assert str(letter.headers["lb-cause"]).startswith("BadPayload")
    assert attempts == [1, 2]
    assert {type(context["exception"]) for context in crashes} == {BadPayload}
    crashes.clear()


async def test_stop_finishes_what_is_in_hand(terminal: Terminal) -> None:
    """In-flight handlers end and their messages are acked; what was only prefetched goes back uncounted."""
    service, begun, finished = Service("billing"), [], []
    go_on = asyncio.Event()

    @service.on("orders", concurrency=3)
    async def handle(value: bytes) -> None:
        begun.append(value)
        await go_on.wait()
        finished.append(value)

    async with attach(terminal) as bus:
        for number in range(10):
            await bus.publish("orders", b"%d" % number)
        running = asyncio.ensure_future(service.run(bus))
        await eventually(lambda: len(begun) == 3)
        service.stop()
        for _ in range(20):
            await bus.ping()
        assert not running.done()
        go_on.set()
        async with asyncio.timeout(LIMIT):
            await running
        assert begun == finished == [b"0", b"1", b"2"]
        assert settled(terminal, "orders", "billing") == 3
        async with Reader(bus.subscribe("orders", group="billing")) as reader:
            assert [(m.payload, m.attempt) for m in await reader.take(7)] == [
                (b"%d" % n, 1) for n in range(3, 10)
            ]


async def test_stop_while_idle_returns(terminal: Terminal) -> None:
    service = Service("billing")
    seen: list[Any] = []

    @service.on("orders")
    async def handle(value: bytes) -> None:
        seen.append(value)

    async with attach(terminal) as bus:
        running = asyncio.ensure_future(service.run(bus))
        await bus.publish("orders", b"1")
        await eventually(lambda: seen == [b"1"])
        service.stop()
        async with asyncio.timeout(LIMIT):
            await running
        assert settled(terminal, "orders", "billing") == 1
        assert not terminal.broker.table.group("orders", "billing").consumers


async def test_stop_in_the_middle_of_a_flood_acks_what_was_done(terminal: Terminal) -> None:
    service = Service("billing", concurrency=4)
    seen: list[Any] = []

    @service.on("orders")
    async def handle(value: bytes) -> None:
        await asyncio.sleep(0)
        seen.append(int(value))

    async with attach(terminal) as bus:
        async with bus.publisher("orders") as out:
            await out.send_many([b"%d" % n for n in range(2000)])
        for part in range(1, 6):
            async with service.running(bus):
                await eventually(lambda part=part: len(seen) >= part * 100)
        async with service.running(bus):
            await eventually(lambda: len(seen) >= 2000)
    assert seen == list(range(2000)), "each once, though the service was stopped five times"


async def test_a_service_that_handles_nothing(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        with pytest.raises(BadRequest):
            await Service("idle").run(bus)


@pytest.mark.parametrize("topic", ["bad name", "a.*b", ["a", "b c"]])
def test_bad_topics_are_told_at_once(topic: Any) -> None:
    with pytest.raises(BadName):
        Service("billing").on(topic)(lambda value: None)


async def test_a_route_that_is_forbidden_ends_the_service(terminal: Terminal) -> None:
    service = Service("billing")

    @service.on("orders")
    async def orders(value: bytes) -> None: ...

    @service.on("secret")
    async def secret(value: bytes) -> None: ...

    async with attach(terminal, scopes=["subscribe:orders"]) as bus:
        async with asyncio.timeout(LIMIT):
            with pytest.raises(Forbidden):
                await service.run(bus)
        assert not terminal.broker.table.group("orders", "billing").consumers


async def test_a_closed_bus_ends_the_service(terminal: Terminal) -> None:
    service = Service("billing")

    @service.on("orders")
    async def orders(value: bytes) -> None: ...

    async with attach(terminal) as bus:
        running = asyncio.ensure_future(service.run(bus))
        await eventually(lambda: "orders" in terminal.broker.topics)
        await eventually(lambda: terminal.broker.topics["orders"].listening)
    async with asyncio.timeout(LIMIT):
        assert [type(r) for r in await asyncio.gather(running, return_exceptions=True)] in (
            [type(None)],
            [Disconnected],
        )


async def test_a_service_goes_on_after_a_lost_connection(terminal: Terminal) -> None:
    service, seen = Service("billing"), set()

    @service.on("orders")
    async def handle(value: bytes) -> None:
        seen.add(int(value))

    async with (
        attach(terminal, subject="svc") as bus,
        attach(terminal, subject="producer") as producer,
        service.running(bus),
    ):
        for part in range(5):
            for connection in list(terminal.connections):
                if connection.subject == "svc":
                    connection._transport.abort()
            async with producer.publisher("orders") as out:
                await out.send_many([b"%d" % n for n in range(part * 50, part * 50 + 50)])
            await eventually(lambda part=part: seen == set(range(part * 50 + 50)))


async def test_exactly_once_with_a_transaction(terminal: Terminal) -> None:
    """A handler that settles its message itself, together with what it publishes."""
    service = Service("billing", concurrency=8)

    @service.on("orders")
    async def handle(order: Order, message: Message, bus: Bus) -> None:
        async with bus.transaction() as t:
            await t.publish("invoices", {"order": order.id})
            await t.ack(message)

    async with attach(terminal) as bus:
        async with service.running(bus):
            for number in range(50):
                await bus.publish("orders", {"id": number})
            await eventually(lambda: settled(terminal, "orders", "billing") == 50)
        async with Reader(bus.subscribe("invoices", group="g")) as reader:
            assert sorted([m.json()["order"] for m in await reader.take(50)]) == list(range(50))
    assert terminal.broker.topics["invoices"].log.end == 50


async def test_options_of_the_group(terminal: Terminal) -> None:
    service = Service("billing")
    seen: list[int] = []

    @service.on("orders", discipline="priority", max_attempts=3, match={"key": "eu"}, start="latest")
    async def bill(number: int) -> None:
        seen.append(number)

    async with attach(terminal) as bus:
        await bus.publish("orders", 0, key="eu")
        async with service.running(bus):
            await eventually(lambda: "billing" in terminal.broker.topics["orders"].groups)
            await bus.publish("orders", 1, key="us")
            await bus.publish("orders", 2, key="eu")
            await eventually(lambda: seen)
        assert seen == [2]
        spec = terminal.broker.table.group("orders", "billing").spec
        assert (spec.discipline, spec.max_attempts) == ("priority", 3)
        # What it doesn't speak of is the operator's to change.
        await bus.call("group.update", topic="orders", name="billing", ack_within=5.0)
        async with service.running(bus):
            await bus.publish("orders", 3, key="eu")
            await eventually(lambda: seen == [2, 3])
        await bus.call("group.update", topic="orders", name="billing", discipline="lifo")
        with pytest.raises(GroupExists, match="discipline is lifo, not priority"):
            await service.run(bus)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"discipline": "random"}, "invalid enum value 'random'"),
        ({"displine": "fifo"}, "there is no option 'displine'"),
        ({"name": "x"}, "group="),
    ],
)
def test_wrong_options_are_told_where_they_are_written(options: dict[str, Any], message: str) -> None:
    async def handler(message: Message) -> None: ...

    with pytest.raises(BadRequest, match=message):
        Service("billing").on("orders", **options)(handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_gracefully(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    service, begun, finished = Service("billing"), asyncio.Event(), []
    go_on = asyncio.Event()

    @service.on("orders")
    async def handle(value: bytes) -> None:
        begun.set()
        await go_on.wait()
        finished.append(value)

    monkeypatch.setenv("LANDBRIDGE_URL", terminal.url)
    monkeypatch.setenv("LANDBRIDGE_TOKEN", terminal.issue_token("svc", ["admin"], 3600))
    async with attach(terminal) as bus:
        await bus.publish("orders", b"1")
        running = asyncio.ensure_future(service.run())
        async with asyncio.timeout(LIMIT):
            await begun.wait()
            os.kill(os.getpid(), number)
            await bus.ping()
            go_on.set()
            await running
    assert finished == [b"1"]
    assert settled(terminal, "orders", "billing") == 1


async def test_the_test_mode_of_users() -> None:
    """As the documentation shows it: no socket, no file, no setup."""
    service = Service("billing")
    seen: list[Any] = []

    @service.on("orders")
    async def handle(order: Order) -> None:
        seen.append(order.id)

    async with landbridge.testing.bus() as bus, service.running(bus):
        await bus.publish("orders", {"id": 1})
        await eventually(lambda: seen == [1])


# -- slow handlers ------------------------------------------------------------------------------------


async def test_a_slow_handler_keeps_its_message(timed: Terminal, clock: FakeClock) -> None:
    service, may_end = Service("slow"), asyncio.Event()
    handled: list[tuple[int, int]] = []

    @service.on("orders", concurrency=2, ack_within=0.1)
    async def handle(message: Message) -> None:
        handled.append((message.offset, message.attempt))
        await may_end.wait()

    async with attach(timed) as bus:
        async with bus.publisher("orders") as out:
            await out.send_many([b"0", b"1", b"2", b"3"])
        async with service.running(bus):
            await eventually(lambda: len(handled) == 2)
            delivery = timed.broker.table.group("orders", "slow").delivery
            for _ in range(30):
                clock.advance(0.08)
                await eventually(
                    lambda: all(lease.touched == clock() for lease in delivery.leases.values()),
                    "more time was asked for",
                )
            may_end.set()
            await eventually(lambda: settled(timed, "orders", "slow") == 4)
    assert handled == [(0, 1), (1, 1), (2, 1), (3, 1)]


async def test_a_handler_that_never_returns_keeps_its_message_for_so_long_and_no_longer(
    timed: Terminal, clock: FakeClock
) -> None:
    service, may_end = Service("stuck"), asyncio.Event()
    attempts: list[int] = []

    @service.on("orders", concurrency=2, ack_within=0.1, longest=0.0)
    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            await may_end.wait()

    async with attach(timed) as bus:
        await bus.publish("orders", b"0")
        async with service.running(bus):
            await eventually(lambda: attempts == [1])
            clock.advance(0.2)
            await eventually(lambda: attempts == [1, 2])
            await eventually(lambda: settled(timed, "orders", "stuck") == 1)
            may_end.set()


# -- models of pydantic -------------------------------------------------------------------------------


class Bill(pydantic.BaseModel):
    id: int
    due: datetime.date


async def test_models_of_pydantic(terminal: Terminal, crashes: list[Any]) -> None:
    service = Service("billing")
    seen: list[Any] = []

    @service.on("bills")
    async def one(bill: Bill) -> None:
        seen.append(bill)

    @service.on("lists")
    async def many(bills: list[Bill]) -> None:
        seen.append(bills)

    bill = Bill(id=1, due=datetime.date(2026, 1, 2))
    async with attach(terminal) as bus, service.running(bus):
        await bus.publish("bills", bill)
        await bus.publish("lists", [bill, {"id": 2, "due": "2026-01-03"}])
        await bus.publish("bills", {"id": "one", "due": "never"})
        [letter] = await letters(bus, "bills", 1)
        assert letter.json() == {"id": "one", "due": "never"}
        await eventually(lambda: len(seen) == 2)
    assert bill in seen
    assert [bill, Bill(id=2, due=datetime.date(2026, 1, 3))] in seen


async def test_a_type_that_no_payload_can_have_is_the_handlers_failure(
    terminal: Terminal, crashes: list[Any]
) -> None:
    service = Service("wrong", retry=Retry(attempts=1))

    @service.on("orders")
    async def handle(order: Terminal) -> None: ...

    async with attach(terminal) as bus, service.running(bus):
        await bus.publish("orders", {"id": 1})
        [letter] = await letters(bus, "orders", 1)
        assert "can't be read as" in str(letter.headers["lb-cause"])
    assert len(crashes) == 1
    crashes.clear()


# -- two limits on attempts ----------------------------------------------------------------------------


async def nothing(message: Message) -> None:
    pass


def test_more_attempts_than_the_group_allows_are_refused() -> None:
    service = Service("billing")
    with pytest.raises(BadRequest, match=r"attempts=5.*max_attempts=3"):
        service.on("orders", retry=Retry(attempts=5), max_attempts=3)(nothing)
    service.on("orders", retry=Retry(attempts=3), max_attempts=3)(nothing)


@pytest.mark.parametrize(("attempts", "warned"), [(10, False), (11, True)])
async def test_more_attempts_than_an_existing_group_allows_are_warned_of(
    terminal: Terminal, caplog: pytest.LogCaptureFixture, attempts: int, warned: bool
) -> None:
    service = Service("billing", retry=Retry(attempts=attempts))
    done = asyncio.Event()

    @service.on("orders")
    async def handle(message: Message) -> None:
        done.set()

    async with attach(terminal) as bus, service.running(bus):
        await bus.publish("orders", {})
        async with asyncio.timeout(LIMIT):
            await done.wait()
    assert ("--max-attempts 11" in caplog.text) == warned


async def test_a_handler_by_query(terminal: Terminal, crashes: list[Any]) -> None:
    service = Service("billing")
    seen: list[Any] = []

    @service.on(query={"state": ["paid"]})
    async def paid(order: dict[str, Any]) -> None:
        seen.append(order["n"])

    @service.on(["eu", "us"], query={"amount": [{"numeric": [">", 100]}]}, max_attempts=1)
    async def large(order: dict[str, Any], message: Message) -> None:
        raise ValueError(f"{order['n']} of {message.topic}")

    async with attach(terminal) as bus, service.running(bus):
        await eventually(lambda: sum(bool(topic.spec.rule) for topic in terminal.broker.topics.values()) == 3)
        rules = {rule.source: rule.rule for rule in await bus.rules.list()}
        assert set(rules) == {"$content", "eu", "us"}
        for number in range(4):
            await bus.publish(None, {"n": number, "state": "paid" if number % 2 else "open"})
            await bus.publish("us", {"n": number, "amount": 150 * number})
        await eventually(lambda: seen == [1, 3])
        buried = await letters(bus, rules["us"], 3)
        assert [letter.json()["n"] for letter in buried] == [1, 2, 3]
        assert (await bus.groups.show(rules["eu"], "billing")).options.max_attempts == 1
    assert {type(context["exception"]) for context in crashes} == {ValueError}
    crashes.clear()


def test_mistakes_in_a_handler_by_query() -> None:
    service = Service("billing")
    for arguments, options in (
        ((), {}),
        ((), {"query": {"state": "paid"}}),
        (("orders.*",), {"query": {"state": ["paid"]}}),
        (("orders",), {"query": {"state": ["paid"]}, "reply": True}),
    ):
        with pytest.raises(BadRequest):

            @service.on(*arguments, **options)
            async def handle(order: Any) -> None: ...
