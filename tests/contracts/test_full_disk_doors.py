"""A full disk behind the doors: what is refused is refused in the words of the protocol, what frees room goes
through, and whatever had to wait goes on by itself."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from landbridge.console import kept
from landbridge.console import sessions as console_sessions
from landbridge.console.navigation import SECTIONS
from landbridge.core.mqtt.session import SESSIONS
from landbridge.core.sms.spec import SmsProfile
from landbridge.core.time import SECOND
from landbridge.gateways import outlets
from landbridge.gateways.http import sessions as http_sessions
from landbridge.gateways.mqtt import port as mqtt_port
from landbridge.gateways.outgoing import OutgoingHttp
from landbridge.gateways.sms import SmsForm
from landbridge.node import outlets as buses
from landbridge.node.assembly import dial_to
from landbridge.node.sms import sms_of
from landbridge.node.webhooks import webhooks_of
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, FaultyStore, attach, run_terminal
from landbridge.testing.sms_provider import SmsProvider
from tests.contracts.mqtt import V5, V311, mqtt_site
from tests.contracts.web import web
from tests.receivers import LOOPBACK, OK, Receiver, says
from tests.socketio_clients import stock
from tests.waiting import eventually, turns


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(units=4))


@pytest.fixture
async def mqtt(store: FaultyStore, crashes: list[Any], monkeypatch: Any) -> AsyncIterator[Any]:
    monkeypatch.setattr(mqtt_port, "PATIENCE", 0.0)
    async with mqtt_site(store=store) as found:
        yield found
        store.full = False


@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])
async def test_clients_of_mqtt_take_what_waits_for_them_on_a_full_disk(
    mqtt: Any, store: FaultyStore, version: Any
) -> None:
    kept = {"clean": False, "expiry": 3600 if version == V5 else None}
    async with mqtt.client("dev", version, **kept) as dev:
        assert await dev.subscribe("orders/#", 1) == 1
    for number in range(3):
        await mqtt.bus.publish("orders.eu", b"%d" % number)
    await eventually(lambda: not mqtt.gateway.connections)
    connections = len(mqtt.terminal.connections)
    [before] = await mqtt.bus.documents.list(SESSIONS)
    store.full = True
    async with mqtt.client("dev", version, **kept) as dev:
        assert dev.session_present
        assert await dev.payloads(3) == [b"0", b"1", b"2"]
        assert await dev.subscribe("orders/#", 1) == 1, "as it has it already"
        assert await dev.subscribe("other/#", 1) == (0x97 if version == V5 else 0x80)
    fresh = mqtt.client("fresh", version, **kept)
    await fresh.connect()
    assert fresh.connack is not None
    assert fresh.connack[1].is_failure, "a session of which nothing can be kept"
    await fresh.close()
    async with mqtt.client("once", version) as once:
        assert await once.subscribe("orders/#", 1) == 1
    await eventually(lambda: not mqtt.gateway.connections)
    assert len(mqtt.terminal.connections) == connections
    groups = [group for group in await mqtt.bus.groups.list() if group.name.startswith("mqtt.")]
    assert [(group.topic, group.lag) for group in groups] == [("orders.eu", 0)]
    [document] = await mqtt.bus.documents.list(SESSIONS)
    assert document == before
    store.full = False
    await mqtt.gateway.sessions.write_again()
    [document] = await mqtt.bus.documents.list(SESSIONS)
    assert document.value["expires_at"] > before.value["expires_at"]
    assert [each["filter"] for each in document.value["filters"]] == ["orders/#"]


async def test_a_session_of_mqtt_ends_on_a_full_disk(
    mqtt: Any, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mqtt.client("dev", V5, clean=False, expiry=1) as dev:
        assert await dev.subscribe("orders/#", 1) == 1
        await mqtt.bus.publish("orders.eu", b"1")
        assert await dev.payloads(1) == [b"1"]
        store.full = True
    await eventually(lambda: not mqtt.gateway.connections)
    later = mqtt.gateway.clock() + 3600 * SECOND
    monkeypatch.setattr(mqtt.gateway.sessions, "_clock", lambda: later)
    await mqtt.gateway.sessions.end_those_over()
    assert not [group for group in await mqtt.bus.groups.list() if group.name.startswith("mqtt.")]
    assert not await mqtt.bus.documents.list(SESSIONS)


@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])
async def test_a_publish_of_mqtt_on_a_full_disk_is_not_acked(
    mqtt: Any, store: FaultyStore, version: Any
) -> None:
    async with mqtt.client("dev", version) as dev:
        store.full = True
        if version == V5:
            assert (await dev.publish("orders/eu", b"1")).value == 0x97
            assert (await dev.publish("orders/eu", b"1", retain=True)).value == 0x97
            store.full = False
            assert (await dev.publish("orders/eu", b"2")).value == 0
        else:
            info = dev.paho.publish("orders/eu", b"1", 1)
            await eventually(lambda: dev.ended is not None)
            assert info.mid not in dev.acked
            store.full = False
    assert mqtt.terminal.broker.table.topic("orders.eu").log.end == (1 if version == V5 else 0)


# -- outlets -------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outlets look often: the clock is moved by hand."""
    for name in ("LOOK_EVERY", "WRITE_AFTER", "AGAIN_AFTER", "LONGEST_AGAIN"):
        monkeypatch.setattr(outlets, name, 0.01)


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
async def test_an_outlet_whose_receiver_comes_back_makes_room_on_a_full_disk(
    store: FaultyStore, quick: None, crashes: list[Any], ordered: bool
) -> None:
    """A receiver that was away fills the disk. What the outlet knows of that can't be written, and its
    messages are the room that is wanted."""
    clock, answers = FakeClock(), [says(500)]
    async with (
        run_terminal(store, clock=clock) as terminal,
        webhooks_of(terminal, dial_to(terminal), (), OutgoingHttp(LOOPBACK)),
        attach(terminal, life=1e7) as bus,
        Receiver(lambda _: answers[0]) as receiver,
    ):
        await bus.topics.create("orders")
        await bus.webhooks.create("orders", "shop", receiver.url, ordered=ordered)
        for number in range(12):
            await bus.publish("orders", {"n": number})
        await eventually(lambda: receiver.requests)
        store.full = True
        clock.advance(7)
        seen = len(receiver.requests)

        def after(seconds: float, holds: bool) -> bool:
            clock.advance(seconds)
            return holds

        await eventually(lambda: after(7, len(receiver.requests) > seen))
        answers[0] = OK
        group = terminal.broker.table.group("orders", "webhook.shop")
        await eventually(lambda: after(30, group.delivery.cursor.floor == 12))
        sent = len(receiver.requests)
        store.full = False
        while (shown := await bus.webhooks.show("orders", "shop")).delivered < 12:
            clock.advance(1)
        assert (shown.state, shown.circuit, shown.lag, shown.buried) == ("active", "closed", 0, 0)
        assert len(receiver.requests) == sent, "nothing is sent again"


async def test_an_sms_waits_for_a_full_disk_and_costs_nothing_meanwhile(
    store: FaultyStore, quick: None, crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        run_terminal(store) as terminal,
        sms_of(terminal, dial_to(terminal), (), OutgoingHttp(LOOPBACK)) as senders,
        attach(terminal) as bus,
        SmsProvider() as provider,
    ):
        await bus.topics.create("alerts")
        await bus.sms.create(
            "alerts", "ops", account=provider.account, secret=provider.secret, sender="+15550000001",
            to="+15550000002", profile=SmsProfile(url=provider.url), per_day=3,
        )  # fmt: skip
        await bus.sms.pause("alerts", "ops")
        for number in range(3):
            await bus.publish("alerts", f"alert {number}")
        tried: list[int] = []
        admit = SmsForm.admit

        def admitted(*given: Any) -> Any:
            tried.append(1)
            return admit(*given)

        monkeypatch.setattr(SmsForm, "admit", admitted)
        await bus.sms.resume("alerts", "ops")
        store.full = True
        await eventually(lambda: tried)
        await turns(500)  # time for more tries, each of which counts one
        [sender] = senders.senders.values()
        assert not provider.sent
        store.full = False
        await eventually(lambda: len(provider.sent) == 3, "the budget is as it was")
        await eventually(lambda: sender.state.delivered == 3)
        await turns()
        assert sender.state.spent[1:] == (3, 3)


async def test_a_provider_that_calls_back_on_a_full_disk_is_told_so(
    store: FaultyStore, crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buses, "PATIENCE", 0.0, raising=False)
    async with (
        web(store=store) as site,
        sms_of(site.terminal, dial_to(site.terminal), (), OutgoingHttp(LOOPBACK)) as senders,
        SmsProvider() as provider,
    ):
        for topic in ("alerts", "sms.in"):
            await site.bus.topics.create(topic)
        await site.bus.sms.create(
            "alerts", "ops", account=provider.account, secret=provider.secret, sender="+15550000001",
            to="+15550000002", profile=SmsProfile(url=provider.url), incoming="sms.in", reached_at=site.url,
        )  # fmt: skip
        await eventually(lambda: senders.senders)
        url = (await site.bus.sms.show("alerts", "ops")).incoming_url
        sms = {"MessageSid": "SM1", "From": "+15550000002", "Body": "hello"}
        store.full = True
        assert await provider.call(url, sms) == 507
        store.full = False
        assert [await provider.call(url, sms) for _ in range(2)] == [204, 204]
        assert site.terminal.broker.table.topic("sms.in").log.end == 1


async def test_a_client_of_socketio_settles_on_a_full_disk(
    store: FaultyStore, crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_sessions, "PATIENCE", 0.0)
    async with web(store=store, socketio=True) as site:
        for number in range(20):
            await site.bus.publish("orders", {"n": number})
        token = site.token("publish:orders", "subscribe:orders")
        async with stock(site.url, token, ["websocket"]) as client:
            store.full = True
            refused = await client.call("publish", topic="orders", json=1, idempotency_key="k")
            assert refused["problem"]["code"] == "store_full"
            await client.done("subscribe", topic="orders", group="g", **{"from": "earliest"})
            await client.have(20)
            group = site.terminal.broker.table.group("orders", "g")
            await eventually(lambda: group.delivery.cursor.floor == 20)
            store.full = False
            stored = [
                await client.done("publish", topic="orders", json=1, idempotency_key="k") for _ in range(2)
            ]
            assert [(each["offset"], each["repeated"]) for each in stored] == [(20, False), (20, True)]


# -- the console ---------------------------------------------------------------------------------------


async def test_the_console_leads_out_of_a_full_disk(
    store: FaultyStore, crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_sessions, "PATIENCE", 0.0)
    async with web(store=store, console=True) as site:
        for number in range(3):
            await site.bus.publish("orders", {"n": number})
        await site.bus.groups.create("orders", "g", start="earliest")
        store.full = True
        site.terminal.broker.room.tick()
        await eventually(lambda: site.terminal.broker.room.state == "low")
        # The sign-in, too: what is kept of it is in memory, and on disk when there is room.
        path = (await site.http.post("/console/links")).json()["path"]
        async with httpx.AsyncClient(base_url=site.url, headers={"origin": site.url}) as browser:
            signed_in = await browser.post("/console/sign-in", data={"code": path.partition("code=")[2]})
            assert signed_in.status_code == 303
            for page in [path for paths in SECTIONS.values() for path in paths]:
                assert (await browser.get(page)).status_code == 200, page
            found = re.search(r'name="csrf" value="([^"]+)"', (await browser.get("/")).text)
            assert found is not None

            async def act(action: str, /, **fields: str) -> Any:
                sent = {"csrf": found[1], "confirmed": "yes", **fields}
                headers = {"console-module": "live"}
                return await browser.post(f"/console/actions/{action}", data=sent, headers=headers)

            refused = await act("message.publish", topic="orders", payload="1", type="text/plain")
            assert refused.status_code == 507
            moved = await act("group.seek", topic="orders", name="g", where="latest")
            assert moved.json()["outcome"] == "done", moved.text
            deleted = await act("topic.delete", name="orders", force="true")
            assert deleted.json()["outcome"] == "done", deleted.text
            assert "orders" not in site.terminal.broker.topics
            again = await browser.post("/console/sign-in", data={"code": path.partition("code=")[2]})
            assert again.status_code == 401, "a link is used once, wherever it is kept"
            assert not await site.bus.documents.list(kept.SESSIONS)
            store.full = False
            monkeypatch.setattr(console_sessions, "WRITE_EVERY", -3600.0)
            await site.site._console.app.sessions.look()  # type: ignore[union-attr]
            assert len(await site.bus.documents.list(kept.SESSIONS)) == 1
            assert (await browser.post("/console/sign-out", data={"csrf": found[1]})).status_code == 200
            assert not await site.bus.documents.list(kept.SESSIONS)
            assert (await browser.get("/")).status_code == 401
