"""A service's hooks and resources, its plain handlers in threads, and its handlers of several topics."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import landbridge.sync
from landbridge import Bus, Message, Retry, Service
from landbridge.broker.server import Terminal
from landbridge.errors import BadRequest, GroupExists
from landbridge.testing import attach
from tests.waiting import LIMIT, eventually


class Database:
    def __init__(self, name: str = "db") -> None:
        self.name = name
        self.open = True


class Cache:
    def __init__(self, database: Database) -> None:
        self.database = database


def settled(terminal: Terminal, topic: str, group: str) -> int:
    return terminal.broker.table.group(topic, group).delivery.cursor.floor


def recording(service: Service) -> list[str]:
    """A service with two resources and hooks that say when they run."""
    told: list[str] = []

    @service.resource
    async def database(bus: Bus) -> AsyncIterator[Database]:
        told.append("database")
        made = Database(bus.terminal_name)
        try:
            yield made
        finally:
            made.open = False
            told.append("database closed")

    @service.resource
    @asynccontextmanager
    async def cache(database: Database) -> AsyncIterator[Cache]:
        told.append("cache")
        try:
            yield Cache(database)
        finally:
            told.append("cache closed")

    @service.on_startup
    async def begin(bus: Bus, cache: Cache) -> None:
        assert cache.database.open
        told.append("begin")

    @service.on_shutdown
    async def end(database: Database) -> None:
        assert database.open
        told.append("end")

    @service.on_shutdown
    def end_first() -> None:
        told.append("end first")

    return told


async def test_handlers_get_resources_by_type(terminal: Terminal) -> None:
    service = Service("billing")
    told = recording(service)

    @service.on("orders")
    async def handle(payload: bytes, database: Database, cache: Cache) -> None:
        assert cache.database is database
        told.append(payload.decode())

    async with attach(terminal) as bus:
        await bus.publish("orders", b"one")
        async with service.running(bus):
            await eventually(lambda: "one" in told)
    assert told == [
        "database",
        "cache",
        "begin",
        "one",
        "end first",
        "end",
        "cache closed",
        "database closed",
    ]


async def test_a_service_may_run_again(terminal: Terminal) -> None:
    service = Service("billing")
    told = recording(service)

    @service.on("orders")
    async def handle(payload: bytes, database: Database) -> None:
        assert database.open
        told.append(payload.decode())

    async with attach(terminal) as bus:
        for word in ("one", "two"):
            await bus.publish("orders", word)
            async with service.running(bus):
                await eventually(lambda word=word: word in told)
    assert told.count("database closed") == 2


@pytest.mark.parametrize("where", ["resource", "startup"])
async def test_what_fails_at_the_start_ends_the_service_in_good_order(terminal: Terminal, where: str) -> None:
    service = Service("billing")
    told = recording(service)

    if where == "resource":

        @service.resource
        async def broken() -> Broken:
            raise ConnectionError("no such host")
    else:

        @service.on_startup
        def broken_hook() -> None:
            raise ConnectionError("no such host")

    @service.on("orders")
    async def handle(payload: bytes) -> None:
        told.append("handled")

    async with attach(terminal) as bus:
        await bus.publish("orders", b"x")
        with pytest.raises(ConnectionError, match="no such host") as caught:
            await service.run(bus)
        name = "the resource broken" if where == "resource" else "the startup hook broken_hook"
        assert caught.value.__notes__ == [f"in {name} of the service billing"]
    assert "handled" not in told
    assert told[-2:] == ["cache closed", "database closed"]
    assert "end" not in told


class Broken:
    pass


async def test_all_shutdown_hooks_run_though_one_fails(terminal: Terminal, crashes: list[Any]) -> None:
    service = Service("billing")
    told = recording(service)

    @service.on_shutdown
    async def fails() -> None:
        raise RuntimeError("first")

    @service.on_shutdown
    async def fails_too() -> None:
        raise RuntimeError("before it")

    @service.on("orders")
    async def handle(payload: bytes) -> None: ...

    async with attach(terminal) as bus:
        with pytest.raises(RuntimeError, match="before it"):
            async with service.running(bus):
                await eventually(lambda: "begin" in told)
    assert told[-4:] == ["end first", "end", "cache closed", "database closed"]
    assert [str(crash["exception"]) for crash in crashes] == ["first"]
    crashes.clear()


def test_mistakes_are_told_when_they_are_made() -> None:
    service = Service("billing")

    @service.resource
    async def database() -> Database:
        return Database()

    with pytest.raises(BadRequest, match="both make Database"):

        @service.resource
        async def another() -> AsyncIterator[Database]:
            yield Database()

    with pytest.raises(BadRequest, match="doesn't say the type"):

        @service.resource
        async def untyped():
            yield 1

    with pytest.raises(BadRequest, match="doesn't say the type"):

        @service.resource
        async def text() -> AsyncIterator[str]:
            yield "x"

    with pytest.raises(BadRequest, match="generator"):

        @service.on_startup
        async def hook():
            yield

    with pytest.raises(BadRequest, match="ordered"):
        service.on("orders", ordered="time")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="no topic"):
        service.on([])
    with pytest.raises(BadRequest):
        Service("x", threads=0)


async def test_a_hook_that_wants_what_is_not_there(terminal: Terminal) -> None:
    service = Service("billing")

    @service.on_startup
    async def begin(database: Database) -> None: ...

    @service.on("orders")
    async def handle(payload: bytes) -> None: ...

    async with attach(terminal) as bus:
        with pytest.raises(BadRequest, match="begin wants database: Database"):
            await service.run(bus)


# -- threads -------------------------------------------------------------------------------------------

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


async def test_plain_handlers_run_in_threads(terminal: Terminal) -> None:
    service = Service("billing", threads=2)
    seen: list[Any] = []
    main = threading.get_ident()
    gate = threading.Barrier(2, timeout=LIMIT)

    @service.resource
    async def database() -> Database:
        return Database()

    @service.on("orders", concurrency=4)
    def handle(order: dict[str, int], message: Message, bus: Bus, database: Database) -> None:
        assert threading.get_ident() != main
        assert isinstance(bus, landbridge.sync.Bus)
        gate.wait()  # two at once, and no more
        bus.publish("done", {"id": order["id"], "topic": message.topic, "who": WHO.get()})
        seen.append(database.name)

    @service.on("done")
    def check(payload: bytes, message: landbridge.sync.Message, bus: landbridge.sync.Bus) -> None:
        message.extend()
        seen.append(message.json())
        assert bus.topics.show("orders").name == "orders"

    async with attach(terminal) as bus:
        for number in range(6):
            await bus.publish("orders", {"id": number})
        WHO.set("me")
        async with service.running(bus):
            await eventually(lambda: len(seen) == 12)
            await eventually(lambda: settled(terminal, "orders", "billing") == 6)
    wanted = [{"id": number, "topic": "orders", "who": "me"} for number in range(6)]
    assert sorted((each for each in seen if each != "db"), key=lambda each: each["id"]) == wanted


async def test_a_slow_plain_handler_keeps_its_message(terminal: Terminal) -> None:
    service = Service("billing")
    go_on = threading.Event()
    calls: list[int] = []

    @service.on("orders", ack_within=0.1)
    def handle(message: Message) -> None:
        calls.append(message.attempt)
        assert go_on.wait(LIMIT)

    async with attach(terminal) as bus:
        await bus.publish("orders", b"x")
        async with service.running(bus):
            await eventually(lambda: calls)
            group = terminal.broker.table.group("orders", "billing")
            (lease,) = group.delivery.leases.values()
            handed = lease.touched
            await eventually(lambda: lease.touched > handed + 300_000)  # three times as long as ack_within
            go_on.set()
            await eventually(lambda: settled(terminal, "orders", "billing") == 1)
    assert calls == [1]


@pytest.mark.parametrize("error", [ValueError("bad"), StopIteration(), SystemExit(3)])
async def test_a_plain_handler_that_fails_has_its_message_tried_again(
    terminal: Terminal, error: BaseException, crashes: list[Any]
) -> None:
    service = Service("billing", retry=Retry(first=0.0))
    attempts: list[int] = []

    @service.on("orders")
    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise error

    async with attach(terminal) as bus:
        await bus.publish("orders", b"x")
        async with service.running(bus):
            await eventually(lambda: attempts == [1, 2, 3])
            await eventually(lambda: settled(terminal, "orders", "billing") == 1)
    crashes.clear()


# -- several topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("topics", ["orders.*", ["orders.eu", "orders.us"], ["orders.eu", "*.us"]])
async def test_a_handler_of_several_topics(terminal: Terminal, topics: Any) -> None:
    service = Service("billing")
    seen: list[str] = []

    @service.on(topics, concurrency=2, ack_within=12.0, max_attempts=4)
    async def handle(payload: bytes, message: Message) -> None:
        seen.append(message.topic)

    async with attach(terminal) as bus:
        await bus.publish("orders.eu", b"1")
        async with service.running(bus):
            await bus.publish("orders.us", b"2")
            await eventually(lambda: sorted(seen) == ["orders.eu", "orders.us"])
            for topic in ("orders.eu", "orders.us"):
                await eventually(lambda topic=topic: settled(terminal, topic, "billing") == 1)
                assert terminal.broker.table.group(topic, "billing").spec.ack_within == 12.0
            for connection in list(terminal.connections):
                connection._transport.abort()
            await bus.publish("orders.us", b"3")
            await eventually(lambda: len(seen) >= 3)


async def test_a_group_with_other_options_is_told(terminal: Terminal) -> None:
    service = Service("billing")

    @service.on(["orders.eu"], ordered="key")
    async def handle(payload: bytes) -> None: ...

    async with attach(terminal) as bus:
        await bus.topics.create("orders.eu")
        await bus.groups.create("orders.eu", "billing")
        with pytest.raises(GroupExists):
            await asyncio.wait_for(service.run(bus), LIMIT)
