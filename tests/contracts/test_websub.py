"""Feeds and their subscriptions (W3C WebSub) against subscribers of this machine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

import landbridge
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.core.time import SECOND
from landbridge.core.websub import feed as feeds
from landbridge.core.websub import subscription as core
from landbridge.errors import (
    BadRequest,
    Forbidden,
    LimitReached,
    StoreCorrupt,
    Unauthenticated,
    UnknownFeed,
    UnknownGroup,
    UnknownSubscription,
)
from landbridge.gateways import outlets as sending
from landbridge.gateways import websub as gateway
from landbridge.gateways.outgoing import OutgoingHttp, OutgoingLimits
from landbridge.node.assembly import dial_to
from landbridge.node.websub import hub_of
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, attach, run_terminal
from tests.receivers import HANG, LOOPBACK, OK, Received, Receiver, says
from tests.subscribers import Subscriber
from tests.waiting import eventually

BASE = "https://hub.example"
FEED = f"{BASE}/v1/feeds/news"


def _has(things: list[Any], number: int) -> bool:
    return len(things) == number


def _has_failed(times: int, shown: Any) -> bool:
    return bool(shown.failed >= times)


class Scene:
    """A terminal with a hub, and a feed."""

    def __init__(self, terminal: Terminal, bus: Bus, clock: FakeClock, hub: gateway.WebSubHub) -> None:
        self.terminal, self.bus, self.clock, self.hub = terminal, bus, clock, hub

    async def open(self, **options: Any) -> Any:
        await self.bus.topics.create("news")
        return await self.bus.websub.open("news", **({"base": BASE} | options))

    async def ask(self, mode: str, subscriber: Subscriber | str, **more: Any) -> str:
        """As a stranger."""
        callback = subscriber if isinstance(subscriber, str) else subscriber.callback
        asked = {"mode": mode, "topic": FEED, "callback": callback, **more}
        return await self.send([(f"hub.{name}", str(value)) for name, value in asked.items()])

    async def send(self, form: list[tuple[str, str]], address: str = "192.0.2.1") -> str:
        said = {"form": form, "base": "http://localhost:7480"}
        return (await self.terminal.answer_stranger(address, "websub.call", said)).id

    async def subscribe(self, subscriber: Subscriber, **more: Any) -> str:
        if subscriber.secret:
            more["secret"] = subscriber.secret
        id = await self.ask("subscribe", subscriber, **more)
        await self.until(id, lambda shown: shown.state == "active" and not shown.waits_for)
        return id

    async def until(self, id: str, holds: Callable[[Any], Any]) -> Any:
        found: list[Any] = []

        async def look() -> bool:
            found[:] = [await self.bus.websub.inspect("news", id)]
            return bool(holds(found[0]))

        for _ in range(6000):
            if await look():
                return found[0]
            await asyncio.sleep(0.005)
        raise AssertionError(f"this never came true; it is {found[0]}")

    def signs_with(self, id: str) -> str:
        """The secret that the hub signs with now: it hears of a renewal a moment after it is on disk."""
        stored = self.hub.senders.senders["news", id].stored
        assert isinstance(stored, core.WebSubTarget)
        return stored.secret

    async def fetched(self, times: int, source: Receiver) -> None:
        """Until the source was fetched so often, the last time at this moment."""
        await eventually(lambda: len(source.requests) == times)
        while (await self.bus.websub.show("news")).fetched_at != self.clock():
            await asyncio.sleep(0.005)

    async def ended(self, id: str) -> None:
        """Until nothing of a subscription is left."""
        for _ in range(6000):
            try:
                await self.bus.websub.inspect("news", id)
            except UnknownSubscription:
                with pytest.raises(UnknownGroup):
                    await self.bus.groups.show("news", core.group_name(id))
                return
            await asyncio.sleep(0.005)
        raise AssertionError("the subscription is still there")


@asynccontextmanager
async def staged(
    store: Any = None, allowed: list[str] | None = None, way_out: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Scene]:
    clock = FakeClock()
    limits = OutgoingLimits(within=2.0)
    http = OutgoingHttp(LOOPBACK if allowed is None else allowed, limits=limits, **(way_out or {}))
    async with (
        run_terminal(store, clock=clock, **options) as terminal,
        hub_of(terminal, dial_to(terminal, is_part=True), LOOPBACK, http) as hub,
        attach(terminal, life=1e8) as bus,
    ):
        yield Scene(terminal, bus, clock, hub)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the clock often: it is moved by hand."""
    monkeypatch.setattr(sending, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(sending, "WRITE_AFTER", 0.01)
    monkeypatch.setattr(gateway, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(gateway, "DENY_AGAIN", 0.01)


@pytest.fixture(params=[1, 4], ids=["one unit", "four units"])
async def scene(crashes: list[Any], request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    async with staged(MemoryStore(units=request.param)) as made:
        yield made


async def test_a_subscriber_gets_what_is_published_signed_and_with_links(scene: Scene) -> None:
    await scene.open()
    await scene.bus.publish("news", b"before")
    async with Subscriber(secret="s3cret") as subscriber:
        id = await scene.subscribe(subscriber)
        (asked,) = subscriber.asked
        assert asked.pop("hub.challenge")
        assert asked == {
            "who": "me",
            "hub.mode": "subscribe",
            "hub.topic": FEED,
            "hub.lease_seconds": str(10 * 86400),
        }
        receipt = await scene.bus.publish("news", b"<p>\xff", headers={"content-type": "text/html"})
        await eventually(lambda: subscriber.got)
        (request,) = subscriber.got
        assert (request.path, request.body) == ("/callback?who=me", b"<p>\xff")
        assert request.headers["content-type"] == "text/html"
        assert request.headers["link"] == f'<{BASE}/v1/websub>; rel="hub", <{FEED}>; rel="self"'
        assert request.headers["landbridge-id"] == receipt.id
        assert subscriber.is_signed(request)
        shown = await scene.until(id, lambda shown: shown.delivered == 1)
        assert (shown.lag, shown.signed, shown.lease) == (0, True, 10 * 86400)
        assert shown.expires_at == scene.clock() + 10 * 86400 * SECOND
        assert "s3cret" not in str(shown)
        (feed,) = await scene.bus.websub.feeds()
        assert (feed.topic, feed.subscriptions, feed.pending, feed.path) == ("news", 1, 0, FEED)
        assert 'landbridge_websub_subscriptions{topic="news"} 1.0' in await scene.bus.terminal.metrics()


@pytest.mark.parametrize(
    "verdict",
    [
        says(200, body=b"something else"), says(204), says(404), says(302, "Location: /callback"),
        says(200, body=b"x" * (4 << 20)),
    ],
    ids=["other", "empty", "404", "redirect", "megabytes"],
)  # fmt: skip
async def test_what_does_not_confirm_makes_no_subscription(scene: Scene, verdict: bytes) -> None:
    await scene.open()
    async with Subscriber(verdict=verdict) as subscriber:
        id = await scene.ask("subscribe", subscriber)
        await eventually(lambda: subscriber.asked)
        await scene.ended(id)
        assert len(subscriber.asked) == 1
        await scene.bus.publish("news", b"1")
        assert not subscriber.got


async def test_a_callback_that_is_not_there_is_asked_again_a_few_times(scene: Scene) -> None:
    await scene.open()
    async with Subscriber(verdict=says(503)) as subscriber:
        id = await scene.ask("subscribe", subscriber)
        for number, span in enumerate(core.VERIFY_RETRIES, 1):
            await eventually(partial(_has, subscriber.asked, number))
            await scene.until(id, lambda shown: shown.state == "pending")
            if number == len(core.VERIFY_RETRIES):
                subscriber.verdict = None
            await asyncio.sleep(0.05)
            assert len(subscriber.asked) == number
            scene.clock.advance(span)
        await scene.until(id, lambda shown: shown.state == "active")
        assert len({asked["hub.challenge"] for asked in subscriber.asked}) == len(subscriber.asked)


async def test_a_lease_ends_and_a_renewal_replaces_lease_and_secret_once_it_is_confirmed(
    scene: Scene,
) -> None:
    await scene.open()
    async with Subscriber(secret="old") as subscriber:
        id = await scene.subscribe(subscriber, lease_seconds=3600)
        scene.clock.advance(3000)
        # Not confirmed: all stays as it was.
        subscriber.verdict = says(404)
        await scene.ask("subscribe", subscriber, lease_seconds=3600, secret="new")
        shown = await scene.until(id, lambda shown: shown.refused_why)
        assert (shown.state, shown.expires_at) == ("active", scene.clock() + 600 * SECOND)
        await scene.bus.publish("news", b"1")
        await eventually(lambda: subscriber.bodies == [b"1"])
        assert subscriber.is_signed(subscriber.got[0])
        subscriber.verdict, subscriber.secret = None, "new"
        await scene.subscribe(subscriber, lease_seconds=7200)
        await eventually(lambda: scene.signs_with(id) == "new")
        scene.clock.advance(3600)
        await scene.bus.publish("news", b"2")
        await eventually(lambda: subscriber.bodies == [b"1", b"2"])
        assert subscriber.is_signed(subscriber.got[1])
        scene.clock.advance(3600)
        await scene.ended(id)
        assert not subscriber.denied
        assert [asked.get("hub.lease_seconds") for asked in subscriber.asked] == ["3600", "3600", "7200"]


async def test_unsubscribing_is_verified_too(scene: Scene) -> None:
    await scene.open()
    async with Subscriber() as subscriber:
        id = await scene.subscribe(subscriber)
        subscriber.verdict = says(404)
        await scene.ask("unsubscribe", subscriber)
        await scene.until(id, lambda shown: "404" in shown.refused_why)
        await scene.bus.publish("news", b"1")
        await eventually(lambda: subscriber.bodies == [b"1"])
        subscriber.verdict = None
        await scene.ask("unsubscribe", subscriber)
        await scene.ended(id)
        assert subscriber.asked[-1]["hub.mode"] == "unsubscribe"
        assert "hub.lease_seconds" not in subscriber.asked[-1]
        with pytest.raises(UnknownSubscription):
            await scene.ask("unsubscribe", subscriber)


async def test_410_ends_a_subscription_and_other_failures_keep_it(scene: Scene) -> None:
    await scene.open()
    async with (
        scene.bus.subscribe("$status", group="watch", start="latest") as status,
        Subscriber(takes=says(500)) as failing,
        Subscriber(takes=says(410)) as gone,
    ):
        id, other = await scene.subscribe(failing), await scene.subscribe(gone)
        await scene.bus.publish("news", b"1")
        await scene.ended(other)
        for number in range(1, 9):
            await scene.until(id, partial(_has_failed, number))
            scene.clock.advance(40_000)
        shown = await scene.until(id, lambda shown: shown.given_up == 1)
        assert (shown.state, shown.lag) == ("active", 0)
        assert "news.dead" not in scene.terminal.broker.topics
        failing.takes = OK
        scene.clock.advance(3600)
        await scene.bus.publish("news", b"2")
        await scene.until(id, lambda shown: shown.delivered == 1)
        assert len(gone.got) == 1
        assert not gone.denied
        told = ""
        while "websub_ended" not in told:
            note = await status.poll(30)
            told += "" if note is None else note.text()
        assert f"subscription {other} of news: gone" in told


async def test_closing_and_deleting_tell_the_callback(scene: Scene) -> None:
    await scene.open()
    async with Subscriber() as one, Subscriber() as other:
        first, second = await scene.subscribe(one), await scene.subscribe(other)
        assert (await scene.bus.websub.delete("news", first)).deleted == f"news/{first}"
        await scene.ended(first)
        assert one.denied == ["an operator has ended it"]
        assert (await scene.bus.websub.close("news")).deleted == "news"
        await scene.ended(second)
        assert other.denied == ["the feed is closed"]
        with pytest.raises(UnknownFeed):
            await scene.subscribe(one)
        with pytest.raises(UnknownFeed):
            await scene.bus.websub.close("news")
        await scene.open()
        await scene.subscribe(one)


async def test_a_topic_that_is_deleted_takes_all_of_it_along(scene: Scene) -> None:
    await scene.open()
    async with Subscriber() as subscriber:
        await scene.subscribe(subscriber)
        await scene.bus.topics.delete("news")
        for collection in (feeds.FEEDS, feeds.SOURCES, core.SUBSCRIPTIONS, core.STATES):
            assert not (await scene.terminal.broker.documents.find(collection, "news", "", "", 10))[0]
        await eventually(lambda: not scene.hub.senders.states)
        await scene.open()
        await scene.bus.publish("news", b"1")
        id = await scene.subscribe(subscriber)
        await scene.bus.publish("news", b"2")
        await scene.until(id, lambda shown: shown.delivered == 1)
        assert subscriber.bodies == [b"2"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "pause"}, {"callback": ""}, {"callback": "ftp://a.example/"},
        {"callback": "http://a.example/#x"},
        {"callback": "http://a.example/" + "x" * 1000}, {"lease_seconds": "long"}, {"lease_seconds": "-1"},
        {"secret": "x" * 200}, {"secret": "ä" * 100},
    ],
)  # fmt: skip
async def test_what_the_hub_does_not_take(scene: Scene, wrong: dict[str, str]) -> None:
    await scene.open()
    asked = {"mode": "subscribe", "topic": FEED, "callback": "http://127.0.0.1:1/", **wrong}
    with pytest.raises(BadRequest):
        await scene.send([(f"hub.{name}", value) for name, value in asked.items()])
    assert await scene.bus.websub.list() == []


async def test_topics_that_are_no_feed_are_refused_and_unknown_parameters_are_not(scene: Scene) -> None:
    await scene.open()
    await scene.bus.topics.create("secret")
    async with Subscriber() as subscriber:
        for url in (
            f"{BASE}/v1/feeds/secret", "http://localhost:7480/v1/feeds/news", f"{FEED}?a=b",
            f"{BASE}/v1/feeds/$bus", f"{FEED}/", "news", f"{BASE}/v1/feeds/%00", "https://other.example/v1/feeds/news",
        ):  # fmt: skip
            with pytest.raises(UnknownFeed):
                await scene.ask("subscribe", subscriber, topic=url)
        assert subscriber.asked == []
        id = await scene.ask("subscribe", subscriber, verify="async", strange="1")
        await scene.until(id, lambda shown: shown.state == "active")


async def test_only_operators_who_may_read_a_topic_open_it(scene: Scene) -> None:
    await scene.bus.topics.create("news")
    for scopes in (["operate"], ["subscribe:news"], ["subscribe:news", "observe"]):
        async with attach(scene.terminal, subject="somebody", scopes=scopes) as bus:
            with pytest.raises(Forbidden):
                await bus.websub.open("news")
    async with attach(scene.terminal, subject="somebody", scopes=["operate", "subscribe:news"]) as bus:
        assert (await bus.websub.open("news")).owner == "somebody"
        with pytest.raises(Forbidden):
            await bus.websub.open("news", source="http://127.0.0.1/")
    wrong_options: list[dict[str, Any]] = [
        {"base": "hub.example"},
        {"base": "https://a/b"},
        {"source": "x"},
        {"content_type": "x"},
    ]
    for wrong in wrong_options:
        with pytest.raises(BadRequest):
            await scene.bus.websub.open("news", **wrong)
    with pytest.raises(BadRequest):
        await scene.bus.websub.open("$bus")
    await scene.bus.topics.create("jobs", kind="work")
    with pytest.raises(BadRequest):
        await scene.bus.websub.open("jobs")
    with pytest.raises(Unauthenticated):
        await scene.terminal.answer_stranger("192.0.2.1", "websub.list", {})


async def test_all_that_strangers_make_is_bounded(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from landbridge.broker.operations import websub as operations

    monkeypatch.setattr(operations, "MOST_PENDING_OF_HOST", 2)
    monkeypatch.setattr(operations, "MOST_PENDING", 3)
    limits = Limits(max_subscribers=4, max_feeds=1, max_requests_of_strangers=20)
    async with staged(limits=limits) as scene, Subscriber(verdict=HANG) as hanging:
        await scene.open()
        with pytest.raises(LimitReached, match="max_feeds"):
            await scene.bus.websub.open("other")
        for number in range(2):
            await scene.ask("subscribe", f"{hanging.callback}&n={number}")
        with pytest.raises(LimitReached, match=r"wait for 127\.0\.0\.1"):
            await scene.ask("subscribe", f"{hanging.callback}&n=9")
        # One that waits already may be asked for again: it takes no other place.
        await scene.ask("subscribe", f"{hanging.callback}&n=0")
        await scene.ask("subscribe", "http://a.example/")
        with pytest.raises(LimitReached, match="wait to be verified"):
            await scene.ask("subscribe", "http://b.example/")
        with pytest.raises(LimitReached, match="requests a minute"):
            for _ in range(20):
                await scene.ask("subscribe", "http://a.example/")


async def test_an_address_that_is_not_allowed_is_not_asked(crashes: list[Any]) -> None:
    async with staged(allowed=[]) as scene, Subscriber() as subscriber:
        await scene.open()
        id = await scene.ask("subscribe", subscriber)
        for span in (*core.VERIFY_RETRIES, 1):
            await asyncio.sleep(0.05)
            scene.clock.advance(span)
        await scene.ended(id)
        assert subscriber.asked == []


async def test_a_name_that_leads_to_another_address_later_gets_nothing_there(crashes: list[Any]) -> None:
    found = ["127.0.0.1"]

    async def resolve(host: str, port: int) -> list[str]:
        return found

    async with staged(way_out={"resolve": resolve}) as scene, Subscriber() as subscriber:
        await scene.open()
        callback = subscriber.callback.replace("127.0.0.1", "rebind.example")
        id = await scene.ask("subscribe", callback)
        await scene.until(id, lambda shown: shown.state == "active")
        found[0] = "10.0.0.1"
        await scene.bus.publish("news", b"1")
        shown = await scene.until(id, lambda shown: shown.failed == 1)
        assert "may not send to" in shown.attempts[0].detail
        assert not subscriber.got
        found[0] = "127.0.0.1"
        scene.clock.advance(10)
        await scene.until(id, lambda shown: shown.delivered == 1)


@pytest.mark.parametrize(
    "takes",
    [HANG, says(302, "Location: http://127.0.0.1:1/"), b"SSH-2.0\r\n\r\n", says(500, body=b"x" * (4 << 20))],
    ids=["hang", "redirect", "no HTTP", "megabytes"],
)  # fmt: skip
async def test_callbacks_that_are_no_good_fail_and_hold_nobody_up(scene: Scene, takes: bytes) -> None:
    await scene.open()
    async with Subscriber(takes=takes) as bad, Subscriber() as good:
        id, other = await scene.subscribe(bad), await scene.subscribe(good)
        for number in range(20):
            await scene.bus.publish("news", b"%d" % number)
        await scene.until(other, lambda shown: shown.delivered == 20)
        shown = await scene.until(id, lambda shown: shown.failed >= 1)
        assert (shown.state, shown.delivered) == ("active", 0)
        assert all(len(attempt.answer) <= 200 for attempt in shown.attempts)


async def test_a_source_is_fetched_at_pings_and_published_when_it_has_changed(scene: Scene) -> None:
    page = [b"one"]

    def answer(request: Received) -> bytes:
        if request.headers.get("if-none-match") == f'"{page[0].decode()}"':
            return says(304)
        return says(200, f'ETag: "{page[0].decode()}"', "Content-Type: text/xml", body=page[0])

    async with Receiver(answer) as source, Subscriber() as subscriber:
        await scene.open(source=source.url)
        await scene.fetched(1, source)
        feed = {"topic": source.url}
        await scene.ask("publish", "", **feed)
        id = await scene.ask("subscribe", subscriber, **feed)
        await scene.until(id, lambda shown: shown.state == "active")
        page[0] = b"two"
        for _ in range(3):
            await scene.ask("publish", "", **feed)
        assert len(source.requests) == 1
        scene.clock.advance(feeds.FETCH_EVERY)
        await eventually(lambda: subscriber.got)
        await scene.fetched(2, source)
        (request,) = subscriber.got
        assert (request.body, request.headers["content-type"]) == (b"two", "text/xml")
        assert f'<{source.url}>; rel="self"' in request.headers["link"]
        scene.clock.advance(60)
        await scene.ask("publish", "", **feed)
        await scene.fetched(3, source)
        scene.clock.advance(60)
        page[0] = b"three"
        await scene.send([("hub.mode", "publish"), ("hub.url", source.url), ("hub.url", FEED)])
        await eventually(lambda: subscriber.bodies == [b"two", b"three"])
        assert len(source.requests) == 4
        shown = await scene.bus.websub.show("news")
        assert (shown.options.source, shown.trouble) == (source.url, "")
        assert shown.fetched_at == scene.clock()


async def test_a_source_that_fails_is_fetched_again_and_says_why(scene: Scene) -> None:
    answers = [says(200, body=b"x" * (2 << 20))]
    async with Receiver(lambda request: answers[0]) as source:
        await scene.open(source=source.url)
        await eventually(lambda: len(source.requests) == 1)
        await eventually(lambda: scene.terminal.broker.topics["news"].log.end == 0)

        async def says_why(text: str) -> bool:
            return text in (await scene.bus.websub.show("news")).trouble

        while not await says_why("more than"):
            await asyncio.sleep(0.01)
        answers[0] = says(500)
        scene.clock.advance(feeds.FETCH_RETRIES[0])
        while not await says_why("500"):
            await asyncio.sleep(0.01)
        answers[0] = says(200, body=b"page")
        scene.clock.advance(feeds.FETCH_RETRIES[1])
        await eventually(lambda: scene.terminal.broker.topics["news"].log.end == 1)
        assert (await scene.bus.websub.read("news")).payload == b"page"
        scene.clock.advance(1e6)
        await asyncio.sleep(0.05)
        assert len(source.requests) == 3


async def test_the_newest_message_can_be_read(scene: Scene) -> None:
    with pytest.raises(UnknownFeed):
        await scene.bus.websub.read("news")
    await scene.open(content_type="text/plain")
    empty = await scene.bus.websub.read("news", base="http://localhost:1")
    assert (empty.payload, empty.id, empty.url, empty.hub) == (b"", "", FEED, f"{BASE}/v1/websub")
    await scene.bus.publish("news", b"1")
    receipt = await scene.bus.publish("news", b"2")
    now = scene.clock()
    await scene.bus.publish("news", b"later", deliver_at=now / SECOND + 60)
    await scene.bus.publish("news", b"gone", expires_at=now / SECOND + 30)
    scene.clock.advance(40)
    found = await scene.bus.websub.read("news")
    assert (found.payload, found.id, found.content_type) == (b"2", receipt.id, "text/plain")
    scene.clock.advance(60)
    assert (await scene.bus.websub.read("news")).payload == b"later"


@pytest.mark.parametrize("suspended", [False, True])
async def test_a_subscription_that_fails_does_not_keep_the_log_for_ever(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, suspended: bool
) -> None:
    monkeypatch.setattr(core, "MOST_BEHIND", 10)
    await scene.open()
    async with Subscriber(takes=says(500)) as subscriber, Subscriber() as good:
        if suspended:
            await scene.bus.services.register("opener", scopes=["operate", "subscribe:news"])
            async with attach(scene.terminal, subject="opener", scopes=["operate", "subscribe:news"]) as bus:
                await bus.websub.open("news")
        id, other = await scene.subscribe(subscriber), await scene.subscribe(good)
        if suspended:
            await scene.bus.services.suspend("opener")
        for number in range(30):
            await scene.bus.publish("news", b"%d" % number)
        if not suspended:
            await scene.until(id, lambda shown: shown.failed >= 5)
            await scene.until(other, lambda shown: shown.delivered == 30)
        await scene.hub._catch_up("news", {core.group_name(each) for each in (id, other)})
        shown = await scene.bus.groups.show("news", core.group_name(id))
        assert shown.floor >= 20
        assert shown.lag == (0 if suspended else 10)
        if not suspended:
            # Whoever has all of it gets nothing twice.
            await scene.bus.publish("news", b"last")
            await scene.until(other, lambda shown: shown.delivered == 31)
            assert len(good.got) == 31


async def test_a_damaged_subscription_can_be_deleted(scene: Scene) -> None:
    await scene.open()
    async with Subscriber() as subscriber:
        id = await scene.subscribe(subscriber)
        async with attach(scene.terminal, subject="x", scopes=[f"documents:{core.SUBSCRIPTIONS}"]) as bus:
            found = await bus.documents.read(core.SUBSCRIPTIONS, id, topic="news")
            await bus.documents.update(core.SUBSCRIPTIONS, id, {"no": 1}, version=found.version, topic="news")
        with pytest.raises(StoreCorrupt):
            await scene.bus.websub.inspect("news", id)
        with pytest.raises(StoreCorrupt, match=id):
            await scene.bus.websub.list()
        async with Subscriber() as another:
            await scene.subscribe(another)
        await scene.bus.websub.delete("news", id)
        await scene.ended(id)
        await scene.subscribe(subscriber)


def test_the_errors_have_hints() -> None:
    assert re.match("see 'landbridge websub", landbridge.errors.UnknownFeed("x").hint)
