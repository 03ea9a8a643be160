"""The public client, the same over memory, over TCP and without async: publishing and receiving."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import landbridge
from landbridge import Receipt
from landbridge.broker.server import Terminal
from landbridge.client import context as contexts
from landbridge.client.context import Context
from landbridge.errors import (
    BadContext,
    BadFrame,
    BadName,
    BadPayload,
    BadRequest,
    BusError,
    GroupExists,
    TerminalUnreachable,
    TopicExists,
)
from landbridge.testing import FakeClock
from tests.contracts.ways import Way
from tests.waiting import LIMIT, Reader, eventually


class Point(msgspec.Struct):
    x: int
    y: float = 0.5


@dataclass
class Order:
    id: int
    tags: list[str]


MOMENT = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)

# -- publishing ---------------------------------------------------------------------------------------


async def test_receipt_names_the_message(bus: Any) -> None:
    first = await bus.publish("orders", b"1")
    second = await bus.publish("orders", b"2")
    assert isinstance(first, Receipt)
    assert (first.offset, second.offset) == (0, 1)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        messages = await reader.take(2)
        assert [(m.offset, m.id) for m in messages] == [(0, first.id), (1, second.id)]
        assert first.id != second.id


async def test_receipt_of_a_message_with_an_id(bus: Any) -> None:
    receipt = await bus.publish("orders", b"1", id="my-id")
    assert receipt.id == "my-id"
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        assert (await reader.next()).id == "my-id"


PAYLOADS: list[tuple[Any, bytes]] = [
    (b"\x00\xff raw", b"\x00\xff raw"),
    (b"", b""),
    (bytearray(b"array"), b"array"),
    (memoryview(b"view"), b"view"),
    ("Grüße", "Grüße".encode()),
    ("", b""),
    ({"id": 1, "ok": True, "n": None}, b'{"id":1,"ok":true,"n":null}'),
    ([1, "two", 3.5], b'[1,"two",3.5]'),
    (Order(1, ["a"]), b'{"id":1,"tags":["a"]}'),
    (Point(3), b'{"x":3,"y":0.5}'),
    (MOMENT, b'"2026-02-03T04:05:06Z"'),
    (7, b"7"),
    (None, b"null"),
]


async def test_payloads_of_every_kind(bus: Any) -> None:
    for payload, _ in PAYLOADS:
        await bus.publish("things", payload)
    async with bus.publisher("things") as out:
        for payload, _ in PAYLOADS:
            await out.send(payload)
        assert await out.send_many(payload for payload, _ in PAYLOADS) == len(PAYLOADS)
    async with Reader(bus.subscribe("things", group="g")) as reader:
        expected = [data for _, data in PAYLOADS] * 3
        assert await reader.payloads(len(expected)) == expected


async def test_payloads_as_typed_values(bus: Any) -> None:
    await bus.publish("things", Order(1, ["a"]))
    await bus.publish("things", Point(3, 1.5))
    await bus.publish("things", "text")
    async with Reader(bus.subscribe("things", group="g")) as reader:
        order, point, text = await reader.take(3)
        assert order.json() == {"id": 1, "tags": ["a"]}
        assert order.json(Order) == Order(1, ["a"])
        assert point.json(Point) == Point(3, 1.5)
        assert text.text() == "text"
        with pytest.raises(BadPayload):
            text.json()
        with pytest.raises(BadPayload):
            order.json(Point)


@pytest.mark.parametrize("data", [b'"\xff"', b"\xff", b"[" * 100_000], ids=["utf8", "bytes", "nesting"])
async def test_json_of_nonsense_is_a_bad_payload(bus: Any, data: bytes) -> None:
    await bus.publish("things", data)
    async with Reader(bus.subscribe("things", group="g")) as reader:
        message = await reader.next()
        with pytest.raises(BadPayload):
            message.json()


@pytest.mark.parametrize("payload", [object(), {1, object()}, "\ud800"], ids=["object", "set", "surrogate"])
async def test_payload_that_cannot_be_sent(bus: Any, payload: Any) -> None:
    with pytest.raises(BadPayload):
        await bus.publish("things", payload)
    async with bus.publisher("things") as out:
        with pytest.raises(BadPayload):
            await out.send(payload)
            await out.flush()
        await out.send(b"good")
    async with Reader(bus.subscribe("things", group="g")) as reader:
        assert await reader.payloads(1) == [b"good"]


ATTRIBUTES: dict[str, Any] = {
    "key": "eu-1",
    "priority": 7,
    "headers": {"text": "a", "bytes": b"\x00", "int": -5, "float": 1.5, "yes": True},
    "id": "given",
}


def assert_attributes(message: Any) -> None:
    assert {name: getattr(message, name) for name in ATTRIBUTES} == ATTRIBUTES


async def test_attributes_round_trip(bus: Any) -> None:
    before = datetime.now(UTC)
    await bus.publish("orders", b"1", **ATTRIBUTES)
    async with bus.publisher("orders") as out:
        await out.send(b"plain before")
        await out.send(b"2", **ATTRIBUTES)
        await out.send(b"plain after")
    async with bus.transaction() as t:
        await t.publish("orders", b"3", **ATTRIBUTES)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        one, plain_before, two, plain_after, three = await reader.take(5)
        for message in (one, two, three):
            assert_attributes(message)
        for message in (plain_before, plain_after):
            assert (message.key, message.priority, message.headers) == (None, 0, {})
            assert message.id not in ("", "given")
        for message in (one, two, three, plain_before):
            assert message.topic == "orders"
            assert message.attempt == 1
            published = datetime.fromtimestamp(message.time / 1e6, UTC)
            assert before - timedelta(seconds=1) <= published <= datetime.now(UTC)


async def test_batch_columns(bus: Any) -> None:
    async with bus.publisher("orders") as out:
        await out.send(b"a", key="k", headers={"h": 1})
        await out.send(b"b")
    async with Reader(bus.subscribe("orders", group="g"), batches=True) as reader:
        payloads: list[bytes] = []
        keys: list[bytes] = []
        headers: list[dict[str, Any]] = []
        offsets: list[int] = []
        while len(payloads) < 2:
            batch = await reader.next()
            payloads += batch.payloads
            keys += batch.keys
            headers += batch.headers
            offsets += list(batch.offsets)
            assert [m.payload for m in batch] == batch.payloads
            await batch.ack()
        assert (payloads, keys, headers, offsets) == ([b"a", b"b"], [b"k", b""], [{"h": 1}, {}], [0, 1])


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"priority": 10}, BadRequest),
        ({"priority": -1}, BadRequest),
        ({"priority": 1.5}, BadRequest),
        ({"key": 5}, BadRequest),
        ({"key": "\ud800"}, BadRequest),
        ({"id": 5}, BadRequest),
        ({"headers": {"a": None}}, BadRequest),
        ({"headers": {"a": [1]}}, BadRequest),
        ({"headers": {1: "a"}}, BadRequest),
        ({"headers": {"a": 1 << 70}}, BadRequest),
        ({"deliver_at": datetime(2026, 1, 1)}, BadRequest),  # without a zone, on purpose
        ({"deliver_at": 1e30}, BadRequest),
        ({"expires_at": -1.0}, BadRequest),
        ({"expires_at": float("nan")}, BadRequest),
        ({"expires_at": "tomorrow"}, BadRequest),
    ],
    ids=repr,
)
async def test_wrong_attributes_are_refused_and_harm_nothing_else(
    bus: Any, attributes: dict[str, Any], error: type[BusError]
) -> None:
    with pytest.raises(error):
        await bus.publish("orders", b"bad", **attributes)
    async with bus.publisher("orders") as out:
        await out.send(b"1")
        with pytest.raises(error):
            await out.send(b"bad", **attributes)
            await out.flush()
        await out.send(b"2")
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        received = await reader.payloads(1)
        while received[-1] != b"2":
            received += await reader.payloads(1)
        assert b"bad" not in received


@pytest.mark.parametrize("topic", ["", "a b", "a..b", "a/b", "x" * 201, "x" * 5000, "ü", "$mine"])
async def test_bad_topic_name_is_refused_and_the_bus_goes_on(bus: Any, topic: str) -> None:
    with pytest.raises(BusError):
        await bus.publish(topic, b"1")
    with pytest.raises(BusError):
        async with Reader(bus.subscribe(topic, group="g")):
            pass
    assert (await bus.publish("good", b"1")).offset == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"group": "a b"}, BadName),
        ({"group": "x" * 5000}, BadName),
        ({"group": ""}, BadName),
        ({"group": "g", "prefetch": 0}, BadRequest),
        ({"group": "g", "prefetch": 1_000_001}, BadRequest),
        ({"group": "g", "start": "yesterday"}, BadRequest),
        ({"group": "g", "start": "x" * 5000}, BadRequest),
        ({"group": "g", "start": -5.0}, BadRequest),
        ({"group": "g", "start": datetime(2026, 1, 1)}, BadRequest),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_wrong_subscription_is_refused_and_the_bus_goes_on(
    bus: Any, options: dict[str, Any], error: type[BusError]
) -> None:
    with pytest.raises(error):
        async with Reader(bus.subscribe("orders", **options)):
            pass
    assert (await bus.publish("orders", b"1")).offset == 0


# -- publishers ---------------------------------------------------------------------------------------


async def test_publisher_keeps_order_over_many_batches(bus: Any, way: Way) -> None:
    count = 1_000 if way.name == "sync" else 10_000  # each is a thread of its own there
    async with bus.publisher("orders") as out:
        for number in range(count):
            await out.send(b"%d" % number)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        assert await reader.payloads(count) == [b"%d" % number for number in range(count)]


async def test_flush_means_stored(terminal: Terminal, bus: Any) -> None:
    out = bus.publisher("orders")
    for number in range(100):
        await out.send(b"%d" % number)
    await out.flush()
    assert terminal.broker.topics["orders"].log.end == 100


async def test_leaving_the_block_means_stored(terminal: Terminal, bus: Any) -> None:
    async with bus.publisher("orders") as out:
        await out.send_many(b"%d" % number for number in range(20_000))
    assert terminal.broker.topics["orders"].log.end == 20_000


async def test_what_was_sent_before_an_error_of_ones_own_is_stored(terminal: Terminal, bus: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        async with bus.publisher("orders") as out:
            await out.send(b"1")
            raise ZeroDivisionError
    assert terminal.broker.topics["orders"].log.end == 1


async def test_send_many_large_messages(terminal: Terminal, bus: Any) -> None:
    payloads = [bytes([n]) * 300_000 for n in range(20)]
    async with bus.publisher("orders") as out:
        assert await out.send_many(payloads) == 20
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        assert await reader.payloads(20) == payloads


async def test_small_calls_of_send_many_share_batches(way: Way, terminal: Terminal, bus: Any) -> None:
    async with bus.publisher("orders") as out:
        for part in range(20):
            await out.send_many([b"%d" % number for number in range(part * 500, part * 500 + 500)])
    log = terminal.broker.topics["orders"].log
    assert log.end == 10_000
    if way.name != "sync":  # there each call is a turn of the loop
        assert len(log.firsts) <= 4
    async with Reader(bus.subscribe("orders", group="g", prefetch=10_000)) as reader:
        assert await reader.payloads(10_000) == [b"%d" % number for number in range(10_000)]


async def test_send_many_between_messages_with_keys(bus: Any) -> None:
    async with bus.publisher("orders") as out:
        await out.send_many([b"1", b"2"])
        await out.send(b"3", key="k")
        await out.send_many([b"4", bytes(500_000), bytes(100_000), b"5"])
        await out.send(b"6")
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        messages = await reader.take(8)
    assert [m.payload for m in messages if len(m.payload) == 1] == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert [m.payload for m in messages if m.key] == [b"3"]


async def test_publishers_of_one_bus_share_its_order(bus: Any) -> None:
    async with bus.publisher("a") as one, bus.publisher("b") as other:
        for number in range(100):
            await one.send(b"%d" % number)
            await other.send(b"%d" % number)
    for topic in ("a", "b"):
        async with Reader(bus.subscribe(topic, group="g")) as reader:
            assert await reader.payloads(100) == [b"%d" % number for number in range(100)]


# -- subscribing --------------------------------------------------------------------------------------


async def test_messages_one_by_one(bus: Any) -> None:
    for number in range(5):
        await bus.publish("orders", {"id": number})
    seen = []
    async for message in bus.subscribe("orders", group="billing", prefetch=1000):
        seen.append(message.json()["id"])
        await message.ack()
        if len(seen) == 5:
            break
    assert seen == [0, 1, 2, 3, 4]


async def test_batches(terminal: Terminal, bus: Any) -> None:
    async with bus.publisher("orders") as out:
        await out.send_many([b"%d" % n for n in range(10_000)])
    seen: list[bytes] = []
    async for batch in bus.subscribe("orders", group="lake").batches():
        assert len(batch) == len(batch.payloads) == len(batch.offsets)
        seen += batch.payloads
        await batch.ack(wait=True)
        if len(seen) >= 10_000:
            break
    assert seen == [b"%d" % n for n in range(10_000)]
    assert terminal.broker.table.group("orders", "lake").delivery.cursor.floor == 10_000


@pytest.mark.parametrize("prefetch", [1, 2, 7, 1000])
async def test_prefetch_bounds_what_is_unsettled(terminal: Terminal, bus: Any, prefetch: int) -> None:
    async with bus.publisher("orders") as out:
        await out.send_many([b"x"] * 50)
    async with Reader(bus.subscribe("orders", group="g", prefetch=prefetch)) as reader:
        group = terminal.broker.table.group("orders", "g")
        for _ in range(50):
            message = await reader.next()
            assert sum(lease.size for lease in group.delivery.leases.values()) <= prefetch
            await message.ack(wait=True)
        assert group.delivery.cursor.floor == 50


async def test_a_group_goes_on_where_it_was(bus: Any) -> None:
    async with bus.publisher("orders") as out:
        await out.send_many([b"%d" % n for n in range(10)])
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        assert await reader.payloads(4) == [b"0", b"1", b"2", b"3"]
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        assert await reader.payloads(6) == [b"4", b"5", b"6", b"7", b"8", b"9"]


async def test_groups_are_independent(bus: Any) -> None:
    await bus.publish("orders", b"1")
    async with (
        Reader(bus.subscribe("orders", group="a")) as a,
        Reader(bus.subscribe("orders", group="b")) as b,
    ):
        assert await a.payloads(1) == [b"1"]
        message = await b.next()
        await message.requeue(after=0.0)
        again = await b.next()
        assert (again.payload, again.attempt) == (b"1", 2)
        await again.ack()
        await bus.publish("orders", b"2")
        assert await a.payloads(1) == [b"2"]
        assert await b.payloads(1) == [b"2"]


async def test_consumers_of_a_group_share(terminal: Terminal, bus: Any) -> None:
    async with (
        Reader(bus.subscribe("orders", group="g", prefetch=100)) as a,
        Reader(bus.subscribe("orders", group="g", prefetch=100)) as b,
    ):
        async with bus.publisher("orders") as out:
            await out.send_many([b"%d" % n for n in range(100)])
        group = terminal.broker.table.group("orders", "g")
        await eventually(lambda: group.delivery.pending == 0, "everything is handed out")
        holders = {n: group.delivery.held_by(n)[0] for n in group.consumers}
        assert sum(holders.values()) == 100
        assert all(holders.values()), "each of them has some"
        counts = list(holders.values())
        first, second = await a.payloads(counts[0]), await b.payloads(counts[1])
        assert sorted(first + second, key=int) == [b"%d" % n for n in range(100)]


async def test_nothing_is_left_lying_while_consumers_have_room(terminal: Terminal, bus: Any) -> None:
    """Ten messages, three consumers, nobody acks: all ten are with somebody."""
    async with (
        Reader(bus.subscribe("orders", group="g", prefetch=4)),
        Reader(bus.subscribe("orders", group="g", prefetch=4)),
        Reader(bus.subscribe("orders", group="g", prefetch=4)),
    ):
        async with bus.publisher("orders") as out:
            await out.send_many([b"x"] * 10)
        group = terminal.broker.table.group("orders", "g")
        await eventually(lambda: group.delivery.pending == 0, "everything is handed out")


async def test_a_consumer_may_gather_as_many_as_its_prefetch_before_it_settles_any(bus: Any) -> None:
    async with Reader(bus.subscribe("orders", group="g", prefetch=100)) as reader:
        async with bus.publisher("orders") as out:
            await out.send_many([b"x"] * 80)
        gathered = await reader.take(80)
        async with bus.publisher("orders") as out:
            await out.send_many([b"x"] * 50)
        gathered += await reader.take(20)
        for message in gathered:
            await message.ack()
        assert len(await reader.take(30)) == 30


async def test_a_subscriber_without_a_group_gets_what_comes_from_now_on(terminal: Terminal, bus: Any) -> None:
    await bus.publish("news", b"old")
    async with Reader(bus.subscribe("news")) as a, Reader(bus.subscribe("news")) as b:
        await bus.publish("news", b"1")
        await bus.publish("news", b"2")
        assert await a.payloads(2) == [b"1", b"2"]
        assert await b.payloads(2) == [b"1", b"2"]
        assert len(terminal.broker.topics["news"].groups) == 2
    await eventually(lambda: not terminal.broker.topics["news"].groups, "they go with their subscribers")


async def test_a_subscriber_without_a_group_has_nothing_to_give_back(bus: Any) -> None:
    async with Reader(bus.subscribe("news")) as reader:
        await bus.publish("news", b"1")
        message = await reader.next()
        await message.ack()
        with pytest.raises(BadRequest):
            await message.requeue()
        with pytest.raises(BadRequest):
            await message.bury()


@pytest.mark.parametrize("group", [None, "g"])
async def test_start(timed: Terminal, clock: FakeClock, way: Way, group: str | None) -> None:
    async with way.connect(timed) as bus:
        moments = []
        for number in range(4):
            clock.advance(10)
            moments.append(clock.now / 1e6)
            await bus.publish("orders", b"%d" % number)
        starts: list[tuple[Any, list[bytes]]] = [
            ("earliest", [b"0", b"1", b"2", b"3", b"4"]),
            ("latest", [b"4"]),
            (moments[2], [b"2", b"3", b"4"]),
            (moments[2] + 0.001, [b"3", b"4"]),
            (datetime.fromtimestamp(moments[1], UTC), [b"1", b"2", b"3", b"4"]),
            (0, [b"0", b"1", b"2", b"3", b"4"]),
            (moments[3] + 1000, [b"4"]),
        ]
        readers = []
        for index, (start, _) in enumerate(starts):
            name = None if group is None else f"{group}{index}"
            readers.append(await Reader(bus.subscribe("orders", group=name, start=start)).__aenter__())
        await bus.publish("orders", b"4")
        for reader, (start, expected) in zip(readers, starts, strict=True):
            assert await reader.payloads(len(expected)) == expected, start
            await reader.__aexit__()


async def test_a_named_group_starts_at_the_earliest(bus: Any) -> None:
    await bus.publish("orders", b"1")
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        assert await reader.payloads(1) == [b"1"]


async def test_closing_ends_the_iteration(bus: Any) -> None:
    subscription = bus.subscribe("orders", group="g")
    await subscription.open()

    async def read() -> list[bytes]:
        return [message.payload async for message in subscription]

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    await subscription.close()
    async with asyncio.timeout(LIMIT):
        assert await reading == []


async def test_ping(bus: Any) -> None:
    assert await bus.ping() >= 0.0


# -- moments ------------------------------------------------------------------------------------------


async def test_deliver_at_and_expires_at(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed) as bus:
        now = clock.now / 1e6
        await bus.publish("orders", b"later", deliver_at=now + 60)
        await bus.publish("orders", b"short", expires_at=now + 30)
        await bus.publish("orders", b"now", deliver_at=datetime.fromtimestamp(now - 5, UTC))
        await bus.publish("orders", b"long", expires_at=datetime.fromtimestamp(now + 3600, UTC))
        async with Reader(bus.subscribe("orders", group="early")) as reader:
            assert await reader.payloads(3) == [b"short", b"now", b"long"]
            await reader.subscription.flush()
            clock.advance(59)
            await bus.publish("orders", b"marker")
            assert await reader.payloads(1) == [b"marker"]
            clock.advance(2)
            assert await reader.payloads(1) == [b"later"]
        async with Reader(bus.subscribe("orders", group="late")) as reader:
            assert await reader.payloads(4) == [b"later", b"now", b"long", b"marker"]
            await eventually(lambda: timed.broker.table.group("orders", "late").delivery.cursor.floor == 5)


async def test_a_span_is_a_timedelta_and_no_number(bus: Any) -> None:
    await bus.publish("orders", b"later", deliver_at=timedelta(hours=1))
    await bus.publish("orders", b"gone", expires_at=timedelta(seconds=-1))
    await bus.publish("orders", b"now", deliver_at=timedelta(), expires_at=timedelta(hours=1))
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        assert await reader.payloads(1) == [b"now"]
    for wrong in (5, 0.5, 86400, True, -1, 1e12, float("nan"), datetime(2030, 1, 1), "soon"):
        with pytest.raises(BadRequest) as refused:
            await bus.publish("orders", b"x", deliver_at=wrong)
        assert refused.value.hint
    with pytest.raises(BadRequest, match="5 is not a moment") as refused:
        bus.subscribe("orders", group="other", start=5)
    assert "timedelta" in refused.value.hint
    async with Reader(bus.subscribe("orders", group="ago", start=timedelta(hours=-1))) as reader:
        assert await reader.payloads(1) == [b"now"]


# -- connecting otherwise -----------------------------------------------------------------------------


async def test_an_asynchronous_bus_that_is_not_awaited(terminal: Terminal) -> None:
    connecting = landbridge.connect(terminal.url, token="t")
    # mypy would refuse it too, which is the point.
    with pytest.raises(BadRequest, match="asynchronous") as refused, connecting:  # type: ignore[attr-defined]
        pass
    assert "landbridge.sync.connect()" in refused.value.hint
    for name in ("publish", "subscribe", "publisher", "call", "close"):
        with pytest.raises(BadRequest, match=f"'{name}' of a bus that is not open") as refused:
            getattr(connecting, name)
        assert "async with" in refused.value.hint
    assert not hasattr(connecting, "publsh")


def test_the_bus_without_async_needs_no_import_of_its_own() -> None:
    code = "import landbridge, sys; assert 'landbridge.sync' not in sys.modules; landbridge.sync.connect"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not hasattr(landbridge, "synch")


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("127.0.0.1:7741", "lb://127.0.0.1:7741"),
        ("localhost:7741", "lb://localhost:7741"),
        ("east.example.com", "lbs://east.example.com"),
        ("http://127.0.0.1:7741", "lb://127.0.0.1:7420, or"),
    ],
)
async def test_an_address_without_its_scheme(
    address: str, hint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LANDBRIDGE_HOME", str(tmp_path))
    for token in (None, "t"):
        with pytest.raises(BadContext, match="is not an address") as refused:
            await landbridge.connect(address, token=token)
        assert refused.value.hint.startswith(hint)


def test_two_ways_to_write_an_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LANDBRIDGE_HOME", str(tmp_path))
    contexts.save("local", Context("lb://127.0.0.1:7420", "secret"))
    contexts.use("local")
    assert contexts.resolve("lb://127.0.0.1").token == "secret"
    with pytest.raises(BadContext, match="no token"):
        contexts.resolve("lb://127.0.0.1:7421")


@pytest.mark.parametrize(
    ("answer", "said", "hint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nserver: x\r\n\r\n", "'HTTP/1.1 400 Bad Request'", "port for HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "'SSH-2.0-OpenSSH_9.6'", "check the address"),
        (b"\x15\x03\x03\x00\x02\x02\x46\x00", "wants TLS", "lbs://"),
        (b"\x05\x00\x00\x00\x05\x00\x00\x00hello", "not a Landbridge terminal", "check the address"),
    ],
)
async def test_what_is_not_a_terminal(answer: bytes, said: str, hint: str) -> None:
    met: list[Stranger] = []

    def meet() -> Stranger:
        met.append(Stranger(answer))
        return met[-1]

    async with await asyncio.get_running_loop().create_server(meet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BadFrame, match="not a Landbridge terminal") as refused:
            await landbridge.connect(f"lb://127.0.0.1:{port}", token="t")
        assert said in str(refused.value)
        assert hint in refused.value.hint
        with pytest.raises(TerminalUnreachable, match="no TLS"):
            await landbridge.connect(f"lbs://127.0.0.1:{port}", token="t")
        await eventually(lambda: all(stranger.gone for stranger in met))


class Stranger(asyncio.Protocol):
    """A server of another kind: whatever it is told, it says the same."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.gone = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True


# -- operations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "arguments", "message", "hint"),
    [
        ("topic.show", {"nme": "t"}, "topic.show: there is no argument 'nme'", "did you mean name?"),
        ("topic.show", {}, "topic.show: name missing", "it takes name"),
        ("group.show", {}, "group.show: topic and name missing", "it takes topic, name"),
        ("topic.show", {"name": 5}, "topic.show: name: expected str, got int", ""),
        ("terminal.info", {"x": 1}, "terminal.info: there is no argument 'x'", "it takes none"),
        ("topic.create", {"name": "t", "self": 1}, "there is no argument 'self'", "it takes name"),
        (
            "topic.create",
            {"name": "t", "connection": 1},
            "there is no argument 'connection'",
            "it takes name",
        ),
        ("topic.create", {"name": "t", "kind": "queu"}, "kind: invalid enum value 'queu'", "one of: stream"),
        ("token.create", {"subject": "s", "scopes": [1]}, "scopes", ""),
        ("token.list", {"after": "x"}, "token.list after 'x'", "give the 'next'"),
    ],
)
async def test_operations_say_what_they_want(
    bus: Any, op: str, arguments: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await bus.call(op, **arguments)
    assert message in str(refused.value)
    assert "Operations" not in str(refused.value)
    assert refused.value.hint.startswith(hint)


async def test_what_exists_with_other_options_says_which(bus: Any) -> None:
    await bus.call("topic.create", name="payments")
    with pytest.raises(TopicExists, match="kind is stream, not queue"):
        await bus.call("topic.create", name="payments", kind="queue")
    await bus.call("group.create", topic="payments", name="g")
    with pytest.raises(GroupExists, match="discipline is fifo, not lifo"):
        await bus.call("group.create", topic="payments", name="g", discipline="lifo")
    await bus.publish("payments", b"1")
    with pytest.raises(BadRequest, match="holds 1 message that"):
        await bus.call("topic.delete", name="payments")
