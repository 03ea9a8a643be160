"""Strangers who try to break the hub, or to break others with it; and owners who may do no more what they
could when they opened a feed."""

from __future__ import annotations

import asyncio
import socket
from threading import Event
from typing import Any

import pytest

from landbridge.broker.limits import Limits
from landbridge.core.websub import subscription as core
from landbridge.core.websub.feed import feed_url
from landbridge.errors import Unavailable
from landbridge.gateways import outgoing
from landbridge.gateways import websub as gateway
from landbridge.gateways.outgoing import OutgoingHttp
from landbridge.node.assembly import dial_to
from landbridge.node.websub import hub_of
from landbridge.testing import attach, run_terminal
from tests.contracts.test_websub import BASE, Scene, staged
from tests.contracts.test_websub import quick as quick
from tests.receivers import HANG, LOOPBACK, OK, Received, Receiver, says
from tests.subscribers import Subscriber
from tests.waiting import eventually


class Counted:
    """Counts the looks of the hub at subscriptions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        consider = gateway.WebSubHub._consider

        def counted(hub: gateway.WebSubHub, key: tuple[str, str]) -> None:
            self.looks += 1
            consider(hub, key)

        monkeypatch.setattr(gateway.WebSubHub, "_consider", counted)

    async def so_many(self, more: int) -> None:
        end = self.looks + more
        await eventually(lambda: self.looks >= end)


async def test_a_confirmation_that_cannot_be_stored_is_not_asked_for_all_the_time(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "AGAIN_AFTER", 0.001)
    looks = Counted(monkeypatch)
    async with staged(limits=Limits(max_groups=1)) as scene, Subscriber() as subscriber:
        await scene.open()
        await scene.bus.groups.create("news", "other")
        id = await scene.ask("subscribe", subscriber)
        await eventually(lambda: len(subscriber.asked) == 1)
        await looks.so_many(50)
        assert len(subscriber.asked) == 1
        # It is asked again after a while, and gets its place when there is one.
        await scene.bus.groups.delete("news", "other", force=True)
        scene.hub._unstored = {key: (count, 0.0) for key, (count, _) in scene.hub._unstored.items()}
        await scene.until(id, lambda shown: shown.state == "active")
        assert len(subscriber.asked) == 2
        assert not scene.hub._unstored


async def test_subscriptions_take_no_room_of_other_connections(crashes: list[Any]) -> None:
    async with staged(limits=Limits(max_connections=2)) as scene, Subscriber() as subscriber:
        await scene.open()
        for number in range(4):
            id = await scene.ask("subscribe", f"{subscriber.callback}&n={number}")
            await scene.until(id, lambda shown: shown.state == "active")
        await scene.bus.publish("news", b"1")
        await eventually(lambda: len(subscriber.got) == 4)
        async with attach(scene.terminal) as other:
            assert await other.topics.show("news")


async def test_a_source_whose_page_cannot_be_published_is_left_alone_for_a_while(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "AGAIN_AFTER", 0.001)
    rights = ["operate", "subscribe:news", "publish:news"]
    async with staged() as scene, Receiver(lambda _: says(200, body=b"page")) as source:
        await scene.bus.topics.create("news")
        await scene.bus.services.register("ana", scopes=rights)
        url = f"http://127.0.0.1:{source.port}/"
        async with attach(scene.terminal, subject="ana", scopes=rights) as own:
            await own.websub.open("news", base=BASE, source=url)
        await scene.fetched(1, source)
        await scene.bus.services.suspend("ana")
        scene.clock.advance(20)
        await scene.send([("hub.mode", "publish"), ("hub.url", url)])
        await eventually(lambda: len(source.requests) == 2)
        looks = 0
        consider = scene.hub._consider_source

        def counted(topic: str) -> None:
            nonlocal looks
            looks += 1
            consider(topic)

        monkeypatch.setattr(scene.hub, "_consider_source", counted)
        await eventually(lambda: looks >= 30)
        assert len(source.requests) == 2


async def test_a_feed_is_not_read_while_its_owner_may_not_read(crashes: list[Any]) -> None:
    rights = ["operate", "subscribe:news"]
    async with staged() as scene:
        await scene.bus.topics.create("news")
        await scene.bus.publish("news", b"1")
        await scene.bus.services.register("ana", scopes=rights)
        async with attach(scene.terminal, subject="ana", scopes=rights) as own:
            await own.websub.open("news", base=BASE)
        assert (await scene.bus.websub.read("news")).payload == b"1"
        await scene.bus.services.suspend("ana")
        for read in (
            scene.bus.call("websub.read", topic="news"),
            scene.terminal.answer_stranger("192.0.2.1", "websub.read", {"topic": "news"}),
        ):
            with pytest.raises(Unavailable, match="can't be read now"):
                await asyncio.wait_for(read, 10)
        await scene.bus.services.resume("ana")
        assert (await scene.bus.websub.read("news")).payload == b"1"


async def test_the_feed_of_a_rules_topic_is_sent_for_whoever_may_read_the_source(crashes: list[Any]) -> None:
    rights = ["operate", "subscribe:news"]
    async with staged() as scene, Subscriber() as subscriber:
        await scene.bus.topics.create("news")
        await scene.bus.services.register("ana", scopes=rights)
        async with attach(scene.terminal, subject="ana", scopes=rights) as own:
            name = (await own.rules.create({"paid": [True]}, "news")).rule
            await own.websub.open(name, base=BASE)
        asked = {"mode": "subscribe", "topic": feed_url(BASE, name), "callback": subscriber.callback}
        await scene.send([(f"hub.{key}", value) for key, value in asked.items()])
        await eventually(lambda: len(subscriber.asked) == 1)
        while not any(group.startswith("websub.") for group in scene.terminal.broker.topics[name].groups):
            await asyncio.sleep(0.005)
        await scene.bus.publish("news", {"paid": True})
        await eventually(lambda: subscriber.bodies == [b'{"paid":true}'])


async def test_dead_letters_that_a_group_gets_again_are_no_news(crashes: list[Any]) -> None:
    async with staged() as scene:
        await scene.open()
        await scene.bus.groups.create("news", "slow")
        await scene.bus.publish("news", b"old")
        async with scene.bus.subscribe("news", group="slow") as reading:
            message = await reading.poll(10)
            assert message is not None
            await message.bury("no")
        await scene.bus.publish("news", b"new")
        await scene.bus.groups.redrive("news", "slow")
        topic = scene.terminal.broker.topics["news"]
        await eventually(lambda: topic.log.end == 3)
        assert (await scene.bus.websub.read("news")).payload == b"new"


async def test_names_that_nobody_looks_up_hold_up_no_other_way_out(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, waits = Event(), list[str]()

    def getaddrinfo(host: str, *_: object, **__: object) -> list[Any]:
        if host.endswith(".stranger.example"):
            waits.append(host)
            hanging.wait(60)
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(gateway, "MOST_AT_ONCE", 40)
    try:
        async with (
            run_terminal() as terminal,
            hub_of(terminal, dial_to(terminal, is_part=True), LOOPBACK) as hub,
            attach(terminal) as bus,
        ):
            scene = Scene(terminal, bus, None, hub)  # type: ignore[arg-type]
            await scene.open()
            for number in range(20):
                await scene.ask("subscribe", f"http://{number}.stranger.example/")
            await eventually(lambda: len(waits) >= 16)
            assert await asyncio.wait_for(outgoing.resolve("hooks.example", 80), 30) == ["127.0.0.1"]
            assert len(waits) == 16  # and no thread more
    finally:
        hanging.set()


async def test_all_endpoints_share_one_set_of_certificates() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with OutgoingHttp(LOOPBACK, resolve=resolve) as http:
        for number in range(5):
            await http.send("GET", f"http://{number}.example:1/")
        transports: list[Any] = [endpoint.client._transport for endpoint in http._endpoints.values()]
        assert len(transports) == 5
        assert len({id(each._pool._ssl_context) for each in transports}) == 1


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_subscriber_that_is_slow_and_never_fails_does_not_keep_the_log(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    monkeypatch.setattr(gateway, "LOOK_BEHIND_EVERY", 0.01)
    monkeypatch.setattr(core, "MOST_BEHIND", 10)
    slow = Subscriber(takes=HANG, path="/slow?who=me")
    async with staged() as scene, slow, Subscriber(path="/also?who=me", takes=HANG) as also:
        await scene.open(ordered=ordered)
        ids = [await scene.subscribe(each) for each in (slow, also)]
        for number in range(5):
            await scene.bus.publish("news", str(number).encode())
        await eventually(lambda: slow.got and also.got)
        for number in range(5, 100):
            await scene.bus.publish("news", str(number).encode())
        topic = scene.terminal.broker.topics["news"]
        groups = [topic.groups[core.group_name(id)] for id in ids]
        await eventually(lambda: all(group.delivery.cursor.floor >= 90 for group in groups))
        # They go on with what is left.
        for each in (slow, also):
            each.takes = OK

        def are_through() -> bool:
            scene.clock.advance(0.5)  # what has failed meanwhile is due again
            return all(group.delivery.cursor.floor == 100 for group in groups)

        await eventually(are_through)
        assert b"99" in slow.bodies
        assert b"99" in also.bodies
        assert b"70" not in slow.bodies + also.bodies
        for id in ids:
            await scene.until(id, lambda shown: shown.state == "active")


async def test_a_group_that_is_deleted_while_it_is_moved_on_does_not_come_back(crashes: list[Any]) -> None:
    async with staged() as scene, Subscriber() as subscriber:
        await scene.open()
        id = await scene.subscribe(subscriber)
        await scene.ask("unsubscribe", subscriber)
        await scene.ended(id)
        await scene.hub._move_on(scene.bus, ("news", id), 0, 0)
        assert core.group_name(id) not in scene.terminal.broker.topics["news"].groups


class Silent(Subscriber):
    """Confirms, and doesn't answer when it is told of the end."""

    def _answer(self, request: Received) -> bytes:
        said = super()._answer(request)
        return HANG if b"denied" in request.path.encode() else said


async def test_callbacks_that_do_not_answer_their_denial_hold_no_messages(crashes: list[Any]) -> None:
    async with staged() as scene, Silent() as subscriber:
        await scene.open()
        id = await scene.subscribe(subscriber)
        await scene.bus.websub.close("news")
        await eventually(lambda: subscriber.denied)
        assert core.group_name(id) not in scene.terminal.broker.topics["news"].groups
        assert (await scene.bus.websub.inspect("news", id)).state == "ending"


async def test_strangers_write_nothing_into_the_audit_log(crashes: list[Any]) -> None:
    async with staged() as scene, Subscriber() as subscriber:
        await scene.open()
        before = [(each.operation, each.name) for each in await scene.bus.audit.list()]
        for _ in range(3):
            id = await scene.subscribe(subscriber)
            await scene.ask("unsubscribe", subscriber)
            await scene.ended(id)
        assert [(each.operation, each.name) for each in await scene.bus.audit.list()] == before
        # What an operator asks for has its entry.
        id = await scene.subscribe(subscriber)
        await scene.bus.websub.delete("news", id)
        await scene.ended(id)
        entries = await scene.bus.audit.list()
        assert [each.operation for each in entries[len(before) :]] == ["websub.delete"]
