"""Requests and replies: one and all, failures, nobody there, responders and requesters that leave, limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from landbridge import RequestMessage, Service, ServiceFailed
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.subscription import Subscription
from landbridge.core.replies import TOPIC
from landbridge.errors import (
    BadRequest,
    BusError,
    Disconnected,
    Forbidden,
    LeaseLost,
    LimitReached,
    NoResponder,
    TimedOut,
    TooLarge,
    WrongVersion,
)
from landbridge.protocol import frames
from landbridge.testing import FakeClock, attach, run_terminal
from tests.waiting import LIMIT, Reader, eventually

QUOTES = "prices.quote"
ODD = "a payload of the type object can't be sent: JSON can't say a value of the type object"


@asynccontextmanager
async def answering(terminal: Terminal, name: str = "quotes", **options: Any) -> AsyncIterator[Service]:
    """A service that returns twice what it gets, and fails in several ways."""
    service = Service(name)

    @service.on(QUOTES, reply=True, **options)
    async def quote(value: Any) -> Any:
        match value:
            case {"code": code}:
                raise ServiceFailed("no such thing", service_code=code, status=404)
            case {"raise": kind}:
                raise {"key": KeyError("x"), "exit": SystemExit(3), "cancel": asyncio.CancelledError()}[kind]
            case {"odd": _}:
                return object()
            case {"n": number}:
                return {"price": 2 * number}
        return value

    async with attach(terminal, subject=name) as bus, service.running(bus):
        await eventually(lambda: terminal.broker.requests.answers(QUOTES))
        yield service


def cut(bus: Any) -> None:
    """End the connection of a bus without a word."""
    bus.wire._transport.abort()


def unanswered(bus: Any) -> dict[int, Any]:
    found: dict[int, Any] = bus.wire._answers
    return found


async def request(bus: Any, topic: str = QUOTES, payload: Any = b"x", **options: Any) -> Any:
    return await bus.request(topic, payload, **{"timeout": LIMIT, **options})


# -- one reply -------------------------------------------------------------------------------------------


async def test_a_request_gets_its_reply(terminal: Terminal, bus: Any) -> None:
    async with answering(terminal):
        for durable in (False, True):
            reply = await request(bus, payload={"n": 21}, durable=durable)
            assert reply.json() == {"price": 42}
            assert (reply.source, reply.error) == ("quotes", None)
    assert terminal.broker.totals.requests == terminal.broker.totals.replies


async def test_nobody_who_answers_is_told_at_once(terminal: Terminal, bus: Any) -> None:
    for topic in ("no.such.topic", QUOTES):
        with pytest.raises(NoResponder):
            await request(bus, topic)
        await bus.publish(QUOTES, b"a consumer that answers nothing")
        async with Reader(bus.subscribe(QUOTES, group="g")) as reader:
            await reader.payloads(1)
            with pytest.raises(NoResponder):
                await request(bus)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_failed_handler_replies_an_error_and_settles(
    terminal: Terminal, crashes: list[Any], durable: bool
) -> None:
    async with attach(terminal) as bus, answering(terminal):
        for payload, code, status, text in (
            ({"code": "no_thing"}, "no_thing", 404, "no such thing"),
            ({"raise": "key"}, "failed", 500, "KeyError: 'x'"),
            ({"raise": "exit"}, "failed", 500, "RuntimeError: the handler raised SystemExit: 3"),
            ({"raise": "cancel"}, "failed", 500, "RuntimeError: the handler was cancelled from within"),
            ({"odd": 1}, "bad_payload", 400, ODD),
            (b"no JSON", "bad_payload", 400, None),
        ):
            with pytest.raises(ServiceFailed) as caught:
                await request(bus, payload=payload, durable=durable)
            error = caught.value
            assert (error.service_code, error.status, error.service) == (code, status, "quotes")
            assert text is None or str(error) == text
        assert (await request(bus, payload={"n": 1}, durable=durable)).json() == {"price": 2}
        if durable:
            cursor = terminal.broker.table.group(QUOTES, "quotes").delivery.cursor
            await eventually(lambda: cursor.floor == terminal.broker.topics[QUOTES].log.end)
    assert len(crashes) == 3
    crashes.clear()


async def test_a_plain_subscription_replies_by_hand(terminal: Terminal, bus: Any) -> None:
    async with (
        attach(terminal, subject="hand") as other,
        Reader(other.subscribe(QUOTES, group="g", reply=True)) as reader,
    ):
        for durable in (False, True):
            asked = asyncio.ensure_future(
                request(bus, payload="Grüße", durable=durable, headers={"a": 1}, key="k")
            )
            message = await reader.next()
            assert message.wants_reply
            assert isinstance(message, RequestMessage) is not durable
            assert (message.text(), message.key, message.headers["a"]) == ("Grüße", "k", 1)
            assert message.topic == QUOTES
            await message.reply({"ok": True}, headers={"b": "c"})
            reply = await asked
            assert (reply.json(), reply.source) == ({"ok": True}, "hand")
            assert durable or reply.headers == {"b": "c"}
        asked = asyncio.ensure_future(request(bus))
        message = await reader.next()
        await message.fail("not today")
        with pytest.raises(ServiceFailed, match="not today"):
            await asked
        await bus.publish(QUOTES, b"wants nothing")
        message = await reader.next()
        assert not message.wants_reply
        with pytest.raises(BadRequest):
            await message.reply(b"x")
        await message.ack(wait=True)


async def test_requests_are_spread_over_the_consumers_of_a_group(terminal: Terminal, bus: Any) -> None:
    async with attach(terminal, subject="one") as one, attach(terminal, subject="two") as two:
        services = []
        for each in (one, two):
            service = Service("quotes")

            @service.on(QUOTES, reply=True)
            async def echo(value: Any) -> Any:
                return value

            services.append(service.running(each))
        async with services[0], services[1]:
            await eventually(lambda: terminal.broker.requests.answers(QUOTES))
            await eventually(lambda: len(terminal.broker.table.group(QUOTES, "quotes").consumers) == 2)
            sources = {(await request(bus, payload={"n": n})).source for n in range(4)}
    assert sources == {"one", "two"}


# -- several replies -------------------------------------------------------------------------------------


async def test_gather_asks_one_of_each_group(terminal: Terminal, bus: Any) -> None:
    async with answering(terminal, "a"), answering(terminal, "b"), answering(terminal, "c"):
        await eventually(lambda: len(terminal.broker.topics[QUOTES].groups) == 3)
        replies = await request(bus, payload={"n": 1}, gather=True)
        assert sorted(reply.source for reply in replies) == ["a", "b", "c"]
        assert len(await request(bus, payload={"n": 1}, replies=2)) == 2
        assert len(await request(bus, payload={"n": 1}, replies=1)) == 1
        sources = {(await request(bus, payload={"n": 1})).source for _ in range(3)}
        assert sources == {"a", "b", "c"}  # each group has its turn
        failed = await request(bus, payload={"code": "x"}, gather=True)
        assert [reply.error.service_code for reply in failed] == ["x", "x", "x"]
        with pytest.raises(ServiceFailed):
            failed[0].json()
        with pytest.raises(BadRequest):
            await request(bus, gather=True, durable=True)
    await eventually(lambda: terminal.broker.requests.outstanding == 0)
    with pytest.raises(NoResponder):
        await request(bus, gather=True)


async def test_gather_returns_what_has_come_when_the_time_is_over(timed: Terminal, clock: FakeClock) -> None:
    async with (
        attach(timed) as bus,
        answering(timed, "quick"),
        attach(timed, subject="mute") as mute,
        Reader(mute.subscribe(QUOTES, group="mute", reply=True)) as reader,
    ):
        asked = asyncio.ensure_future(request(bus, payload={"n": 1}, gather=True))
        message = await reader.next()
        await eventually(lambda: timed.broker.totals.replies == 1)
        clock.advance(LIMIT + 1)
        assert [reply.source for reply in await asked] == ["quick"]
        await message.reply(b"late")
        await eventually(lambda: timed.broker.totals.late_replies == 1)


# -- time, and those who leave ---------------------------------------------------------------------------


async def test_a_late_reply_is_dropped_and_counted(timed: Terminal, clock: FakeClock) -> None:
    async with (
        attach(timed) as bus,
        attach(timed, subject="mute") as mute,
        Reader(mute.subscribe(QUOTES, group="mute", reply=True)) as reader,
    ):
        asked = asyncio.ensure_future(request(bus))
        message = await reader.next()
        clock.advance(LIMIT + 1)
        with pytest.raises(TimedOut):
            await asked
        assert timed.broker.requests.outstanding == timed.broker.requests.bytes == 0
        await message.reply(b"late")
        await eventually(lambda: timed.broker.totals.late_replies == 1)
        with pytest.raises(TimedOut):
            await bus.request(QUOTES, b"", timeout=0.01)
        assert not unanswered(bus)


async def test_what_a_responder_leaves_behind_goes_to_the_next(terminal: Terminal) -> None:
    async with attach(terminal) as bus, attach(terminal, subject="first") as first:
        subscription = first.subscribe(QUOTES, group="g", reply=True)
        reader = Reader(subscription)
        await subscription.open()
        asked = [asyncio.ensure_future(request(bus, payload=str(n))) for n in range(3)]
        for _ in range(3):
            await reader.next()
        async with (
            attach(terminal, subject="next") as second,
            Reader(second.subscribe(QUOTES, group="g", reply=True)) as others,
        ):
            cut(first)
            for n in range(3):
                message = await others.next()
                assert message.text() == str(n)
                await message.reply(message.payload)
            replies = await asyncio.gather(*asked)
        assert [(reply.text(), reply.source) for reply in replies] == [(str(n), "next") for n in range(3)]


async def test_the_last_responder_that_leaves_fails_its_requests(terminal: Terminal) -> None:
    async with attach(terminal) as bus, attach(terminal, subject="first") as first:
        subscription = first.subscribe(QUOTES, group="g", reply=True, prefetch=1)
        reader = Reader(subscription)
        await subscription.open()
        asked = [asyncio.ensure_future(request(bus, payload=str(n))) for n in range(3)]
        await reader.next()
        await subscription.close()
        for each in asked:
            with pytest.raises(NoResponder):
                await each
    assert terminal.broker.requests.outstanding == terminal.broker.requests.bytes == 0
    assert not terminal.broker.requests._due
    assert not terminal.broker.requests._busy


async def test_a_requester_that_leaves_is_forgotten(terminal: Terminal, crashes: list[Any]) -> None:
    async with (
        attach(terminal, subject="mute") as mute,
        Reader(mute.subscribe(QUOTES, group="g", reply=True, prefetch=1)) as reader,
    ):
        async with attach(terminal) as bus:
            asked = [asyncio.ensure_future(request(bus)) for _ in range(3)]
            message = await reader.next()
            cut(bus)
            for each in asked:
                with pytest.raises(Disconnected):
                    await each
        await eventually(lambda: terminal.broker.requests.outstanding == 0)
        await message.reply(b"x")
        await eventually(lambda: terminal.broker.totals.late_replies == 1)


async def test_requests_wait_while_all_responders_are_busy(terminal: Terminal) -> None:
    async with (
        attach(terminal) as bus,
        attach(terminal, subject="slow") as slow,
        Reader(slow.subscribe(QUOTES, group="g", reply=True, prefetch=2)) as reader,
    ):
        asked = [asyncio.ensure_future(request(bus, payload=str(n))) for n in range(10)]
        await eventually(lambda: terminal.broker.requests.outstanding == 10)
        (held,) = (len(each) for each in terminal.broker.requests._busy.values())
        assert held == 2
        for n in range(10):
            message = await reader.next()
            assert message.text() == str(n)
            await message.reply(message.payload)
        assert [reply.text() for reply in await asyncio.gather(*asked)] == [str(n) for n in range(10)]


async def test_a_service_handles_no_more_than_its_concurrency(terminal: Terminal) -> None:
    service, at_work, most = Service("quotes"), 0, 0
    gate = asyncio.Event()

    @service.on(QUOTES, reply=True, concurrency=3)
    async def quote(value: Any) -> Any:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await gate.wait()
        at_work -= 1
        return value

    async with attach(terminal) as bus, attach(terminal) as other, service.running(other):
        await eventually(lambda: terminal.broker.requests.answers(QUOTES))
        asked = [asyncio.ensure_future(request(bus, payload=n)) for n in range(20)]
        await eventually(lambda: at_work == 3)
        gate.set()
        assert [reply.json() for reply in await asyncio.gather(*asked)] == list(range(20))
    assert most == 3


# -- who may, and how much -------------------------------------------------------------------------------


async def test_a_request_takes_publish_and_a_responder_subscribe(terminal: Terminal) -> None:
    async with answering(terminal), attach(terminal, scopes=["subscribe:#"]) as reader:
        for durable in (False, True):
            with pytest.raises(Forbidden):
                await request(reader, durable=durable)
        async with attach(terminal, scopes=["publish:prices.*"], subject="shop") as bus:
            assert (await request(bus, payload={"n": 1})).json() == {"price": 2}
            assert (await request(bus, payload={"n": 1}, durable=True)).json() == {"price": 2}
            with pytest.raises(Forbidden):
                await bus.subscribe(QUOTES, group="mine", reply=True).open()
            for name in (TOPIC, "$errors"):
                with pytest.raises(Forbidden):
                    await request(bus, name)
                with pytest.raises(Forbidden):
                    await bus.publish(name, b"forged")


async def test_only_the_holder_of_a_message_replies_to_it(terminal: Terminal) -> None:
    async with attach(terminal, subject="shop") as shop, attach(terminal, subject="svc") as holder:
        asked = asyncio.ensure_future(request(shop, durable=True))
        await eventually(lambda: QUOTES in terminal.broker.topics)
        async with Reader(holder.subscribe(QUOTES, group="g")) as reader:
            message = await reader.next()
            async with (
                attach(terminal, subject="thief") as thief,
                Reader(thief.subscribe(QUOTES, group="g")) as others,
            ):
                number = others.subscription.number

                def forged(request: int) -> frames.SendReply:
                    return frames.SendReply(request, number, message.batch.lease, message.offset)

                with pytest.raises(LeaseLost):
                    await thief.ask(forged, b"stolen")
            await message.reply(b"mine")
            assert (await asked).payload == b"mine"
            with pytest.raises(BusError):
                await message.reply(b"twice")


async def test_limits_of_requests() -> None:
    limits = Limits(max_requests=2, request_bytes=300, max_payload=200)
    async with (
        run_terminal(limits=limits) as terminal,
        attach(terminal, subject="mute") as mute,
        Reader(mute.subscribe(QUOTES, group="g", reply=True)) as reader,
        attach(terminal) as bus,
    ):
        with pytest.raises(TooLarge):
            await request(bus, payload=bytes(201))
        first = asyncio.ensure_future(request(bus, payload=bytes(200)))
        await reader.next()
        async with attach(terminal) as other:
            with pytest.raises(LimitReached, match="request_bytes"):
                await request(other, payload=bytes(101))
        second = asyncio.ensure_future(request(bus))
        await reader.next()
        with pytest.raises(LimitReached, match="max_requests"):
            await request(bus)
        for each in (first, second):
            each.cancel()
        for timeout in (0, -1, 4000):
            with pytest.raises(BadRequest):
                await bus.request(QUOTES, b"", timeout=timeout)


async def test_odd_frames_are_refused(terminal: Terminal) -> None:
    async with answering(terminal), attach(terminal) as bus:
        for frame in (
            lambda n: frames.SendRequest(n, QUOTES, 1 << 60),
            lambda n: frames.SendRequest(n, QUOTES, 1000, 1, {"a": [1]}),
        ):
            with pytest.raises(BadRequest):
                await bus.ask(frame, b"")
        subscription = bus.subscribe(QUOTES, group="plain")
        await subscription.open()
        assert isinstance(subscription, Subscription)
        with pytest.raises(BadRequest):
            await bus.ask(lambda n: frames.SendReply(n, subscription.number, 7), b"")
        assert (await request(bus, payload={"n": 1})).json() == {"price": 2}


async def test_a_terminal_that_knows_no_requests_is_told_of(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        bus.features = frozenset()
        with pytest.raises(WrongVersion):
            await request(bus)
        assert bus.closed is None
        assert bus.is_connected


async def test_a_durable_request_survives_a_responder_that_comes_late(terminal: Terminal, bus: Any) -> None:
    asked = asyncio.ensure_future(request(bus, payload={"n": 3}, durable=True))
    await eventually(lambda: QUOTES in terminal.broker.topics)
    async with answering(terminal):
        assert (await asked).json() == {"price": 6}


async def test_requests_as_an_operation(terminal: Terminal, bus: Any) -> None:
    async with answering(terminal):
        for durable in (False, True):
            answer = await bus.requests.send(QUOTES, {"n": 4}, durable=durable)
            assert (answer.value, answer.source) == ({"price": 8}, "quotes")
            with pytest.raises(ServiceFailed) as caught:
                await bus.requests.send(QUOTES, {"code": "no_thing"}, durable=durable)
            assert (caught.value.service_code, caught.value.status) == ("no_thing", 404)
    with pytest.raises(NoResponder):
        await bus.requests.send(QUOTES)
    with pytest.raises(TimedOut):
        await bus.requests.send(QUOTES, timeout=0.01, durable=True)
