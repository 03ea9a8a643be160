"""Attacks on services, schedules, events and the HTTP gateway by somebody who has a token for something else,
or none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.publisher import Rows
from landbridge.core.trust.directory import Directory
from landbridge.core.trust.registered_tokens import RegisteredTokens
from landbridge.errors import BadName, BadRequest, Forbidden, Unauthenticated, Unavailable
from landbridge.gateways.http import sessions, websocket
from landbridge.node.http_port import HttpPort
from landbridge.node.listening import Endpoint
from landbridge.testing import attach
from tests.contracts.test_http_streams import hear, stream
from tests.contracts.test_schedules import Stage, staged
from tests.contracts.web import Web, listening, take, web
from tests.waiting import LIMIT, Reader


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Web]:
    async with web() as found:
        yield found


# -- schedules -----------------------------------------------------------------------------------------


async def reporting(stage: Stage, *scopes: str) -> Any:
    """A registered service with a schedule that has fired once. Returns its credential."""
    made = await stage.bus.services.register("reporter", scopes=list(scopes or ("publish:reports",)))
    async with attach(stage.terminal, token=made.credential) as own:
        await own.schedules.create("reports", "each", "* * * * *", payload="hi")
    await stage.quiet()
    await stage.pass_time(61)
    assert len(stage.ids()) == 1
    return made.credential


async def test_a_removed_service_publishes_nothing_by_its_schedules() -> None:
    async with staged() as stage:
        await reporting(stage)
        await stage.bus.services.remove("reporter")
        for _ in range(3):
            await stage.pass_time(61)
        assert len(stage.ids()) == 1
        assert "reporter" not in {row.name for row in await stage.bus.services.list()}


async def test_a_service_without_the_scope_publishes_nothing_by_its_schedules() -> None:
    async with staged() as stage:
        await reporting(stage)
        await stage.bus.services.update("reporter", scopes=["publish:other"])
        for _ in range(3):
            await stage.pass_time(61)
        assert len(stage.ids()) == 1


async def test_a_narrow_token_of_the_owner_publishes_nothing_by_its_schedules() -> None:
    async with staged() as stage:
        credential = await reporting(stage, "publish:reports", "subscribe:reports")
        async with attach(stage.terminal, token=credential) as own:
            traded = await own.call(
                "service.token", service="reporter", credential=credential, scopes=["subscribe:reports"]
            )
        async with attach(stage.terminal, token=traded["token"]) as narrow:
            with pytest.raises(Forbidden):
                await narrow.schedules.trigger("reports", "each")
            with pytest.raises(Forbidden):
                await narrow.schedules.backfill("reports", "each", begin=0, until=1)
        await stage.quiet()
        assert len(stage.ids()) == 1


async def test_a_service_of_the_registry_publishes_by_its_schedules_while_it_is_active(
    terminal: Terminal,
) -> None:
    authority = terminal.authority
    token = terminal.lend_token("shop", ["publish:reports"], ["documents:$schedules"], 60.0)

    def check() -> None:
        authority.verify(terminal.broker.clock(), token)

    with pytest.raises(Unauthenticated):
        check()
    authority.registered = registered = RegisteredTokens()
    with pytest.raises(Unavailable):
        check()
    registered.follow(Directory(customer="c", version=3, services=["shop"], ended={"shop": 2}))
    check()
    for services, ended in ((["shop"], {"shop": 5}), ([], {})):
        registered.follow(Directory(customer="c", version=4, services=services, ended=ended))
        with pytest.raises(Unauthenticated):
            check()
    assert not terminal.services.names()


# -- messages and documents ----------------------------------------------------------------------------


async def test_where_a_message_is_is_told_to_those_who_may_see_its_topic(terminal: Terminal) -> None:
    async with attach(terminal) as admin:
        receipt = await admin.publish("secret", "x", id="order-1")
        made = await admin.publish("secret", "y")
        await admin.groups.create("secret", "billing")
        async with attach(terminal, subject="mallory", scopes=["publish:mine"]) as other:
            for id, options in (
                ("order-1", {"topic": "secret"}),
                ("order-1", {"topic": "secret", "offset": receipt.offset}),
                (made.id, {"topic": "secret"}),
            ):
                with pytest.raises(Forbidden):
                    await other.call("message.where", id=id, **options)
        async with attach(terminal, subject="watcher", scopes=["observe"]) as watcher:
            found = await watcher.call("message.where", id="order-1", topic="secret")
            assert found["places"][0]["offset"] == receipt.offset


async def test_changes_are_kept_of_collections_that_there_can_be(terminal: Terminal) -> None:
    """What is watched is remembered: so it must not be as long as a frame."""
    async with attach(terminal, subject="mallory", scopes=["documents:mine"]) as other:
        with pytest.raises(BadName):
            await other.call("document.wait", collection="mine", topic="x" * 100_000, after="", within=0)
        await other.call("document.wait", collection="mine", topic="*", after="", within=0)
        await other.call("document.wait", collection="mine", topic="", after="", within=0)


# -- events --------------------------------------------------------------------------------------------


async def test_an_outcome_is_of_the_events_own_message(terminal: Terminal) -> None:
    """A message that names somebody else's event can't be published: a reply to it would end the event."""
    async with attach(terminal) as bus:
        id = await bus.trigger("loans.decide", {"amount": 5}, id="loan-7")
        headers = {"lb-reply-to": terminal.broker.name, "lb-correlation": id}
        rows = Rows()
        rows.add(b"x")
        rows.add(b"y", headers=headers)
        async with attach(terminal, subject="mallory", scopes=["publish:#", "subscribe:mine"]) as other:
            for topic in ("mine", "loans.decide"):
                with pytest.raises(BadRequest):
                    await other.publish(topic, "x", headers=headers)
                with pytest.raises(BadRequest):
                    await other.publish_batch(topic, rows)
                with pytest.raises(BadRequest):
                    await other.publish(topic, "x", headers=headers, idempotency_key="k")
                with pytest.raises(BadRequest):
                    async with other.transaction() as transaction:
                        await transaction.publish(topic, "x", headers=headers)
            await other.publish("mine", "x", headers={"why": "lb-reply-to"})
        async with Reader(bus.subscribe("loans.decide", group="g", start="earliest")) as reader:
            message = await reader.next()
            assert (message.json(), (await bus.outcome(id)).state) == ({"amount": 5}, "pending")
            await message.reply({"granted": False})
            assert (await bus.outcome(id, wait=LIMIT)).json() == {"granted": False}
        assert terminal.broker.topics["loans.decide"].log.end == 1


# -- HTTP ----------------------------------------------------------------------------------------------


async def test_attributes_of_an_event_that_no_header_can_carry(site: Web) -> None:
    """A message whose headers look like attributes of an event is delivered all the same."""
    await site.bus.publish("orders", "x", headers={"ce-a\r\nset-cookie": "b", "ce-\u00e9": "c", "ce-": "d"})
    answer = await site.http.post(
        "/v1/topics/orders/groups/g/pull", headers={"accept": "application/octet-stream"}
    )
    assert (answer.status_code, answer.content) == (200, b"x")
    assert "set-cookie" not in answer.headers


SURROGATE = '"\\ud800"'
EVENT = '"specversion":"1.0","id":"1","source":"/s","type":"t"'


@pytest.mark.parametrize(
    "event",
    [
        f'{{{EVENT},"a":{SURROGATE}}}',
        f'{{{EVENT},"datacontenttype":"text/plain","data":{SURROGATE}}}',
        f'{{{EVENT},"data_base64":{SURROGATE}}}',
        f'{{{EVENT},"a":{"[" * 100_000}{"]" * 100_000}}}',
        f'{{{EVENT},"a":{"[" * 900}{"]" * 900}}}',
        f'{{{EVENT},"a":1e999}}',
        f'{{{EVENT},"time":[1]}}',
        f'{{{EVENT},"partitionkey":{SURROGATE}}}',
    ],
)
async def test_events_that_are_wrong_get_a_clear_answer(site: Web, event: str) -> None:
    for kind, body in (("cloudevents", event), ("cloudevents-batch", f"[{event}]")):
        answer = await site.http.post(
            "/v1/topics/orders/messages",
            content=body.encode(),
            headers={"content-type": f"application/{kind}+json"},
        )
        assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize(
    "moment", ["9" * 400, "99999999999999999999", "+99999999999d", "+9e300s", "nan", "-1", "+-5s", "1e308"]
)
async def test_moments_beyond_all_clocks(site: Web, moment: str) -> None:
    for name in ("deliver-at", "expires-at"):
        answer = await site.http.post(
            "/v1/topics/orders/messages", content=b"1", headers={f"landbridge-{name}": moment}
        )
        assert 400 <= answer.status_code < 500, (name, answer.text)
        answer = await site.http.post(
            "/v1/publish",
            json={"messages": [{"topic": "orders", "text": "x", name.replace("-", "_"): moment}]},
        )
        assert 400 <= answer.status_code < 500, (name, answer.text)


async def test_what_is_stored_is_never_answered_by_an_error(crashes: list[Any]) -> None:
    """Whatever ends the wait: a client that gets an error would publish again."""
    async with web(limits=Limits(max_waits=10)) as site:
        topic = "/v1/topics/orders/messages?until=acked&within=0.01"
        answers = [(await site.http.post(topic, content=b"1")).status_code]  # there is no group yet
        await site.bus.groups.create("orders", "g")
        waits = site.terminal.broker.limits.max_waits * 5
        for _ in range(waits // 10):
            many = await asyncio.gather(*(site.http.post(topic, content=b"1") for _ in range(10)))
            answers += [answer.status_code for answer in many]
        assert set(answers) == {202}
        async with (
            asyncio.timeout(LIMIT),
            listening(site.http, "/v1/topics/orders/events?from=earliest") as events,
        ):
            await take(events, 1)  # the waits have ended at the terminal, too: there is room for others


async def test_requests_under_way_of_a_stream_are_few_bytes(site: Web, monkeypatch: Any) -> None:
    """A client that doesn't read its answers isn't read from; one that does gets all of them."""
    monkeypatch.setattr(websocket, "MOST_HELD", 1000)
    async with stream(site) as socket:
        for number in range(50):
            message = {"topic": "orders", "text": "x" * (2000 if number % 7 == 0 else 300)}
            await socket.send(json.dumps({"op": "publish", "ref": number, "message": message}))
        heard = [await hear(socket) for _ in range(50)]
    assert {one["ref"] for one in heard if one["op"] == "done"} == set(range(50))


async def test_who_asks_is_not_who_a_header_says() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["client"][0], scope["scheme"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    port = HttpPort(app, Endpoint("127.0.0.1"), 0, None, most=4, hint="")
    try:
        async with httpx.AsyncClient(base_url=port.url, timeout=LIMIT) as http:
            await http.get("/", headers={"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https"})
    finally:
        await port.close()
    assert seen == [("127.0.0.1", "http")]


async def test_one_service_does_not_use_up_the_sessions(site: Web, monkeypatch: Any) -> None:
    """Whoever has a credential can have any number of tokens."""
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 8)
    monkeypatch.setattr(sessions, "MOST_OF_ONE", 4)
    await site.bus.publish("orders", 1)
    async with site.client(site.token("subscribe:#", subject="mine")) as me:
        pulled = (await me.post("/v1/topics/orders/groups/g/pull")).json()["messages"]
        for number in range(12):
            token = site.token("publish:#", subject="mallory", life=1000.0 + number)
            async with site.client(token) as other:
                assert (await other.get("/v1/terminal")).status_code == 200
        answer = await me.post(f"/v1/receipts/{pulled[0]['receipt']}/ack")
        assert answer.status_code == 204, answer.text
    assert site.sessions <= 6
