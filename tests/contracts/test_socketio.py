"""Socket.IO: by the stock client of Python over each transport, and by hand what no stock client does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
import structlog
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from landbridge.gateways.http.forms import plain_form
from landbridge.gateways.socketio import client as gateway_client
from landbridge.gateways.socketio import engine, front, register, subscription, tail
from landbridge.node.site import Site
from tests.contracts.web import Web, web
from tests.proxy import Proxy
from tests.socketio_clients import Raw, Stock, raw, stock
from tests.waiting import Reader, eventually, turns

TRANSPORTS = (["polling"], ["websocket"], ["polling", "websocket"])
POLL = "/socket.io/?EIO=4&transport=polling"


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Web]:
    with structlog.testing.capture_logs() as logged:
        async with web(socketio=True, origins=["https://shop.example.com"], most=700) as found:
            await found.bus.topics.create("orders")
            yield found
            await eventually(lambda: not gateway(found).register.by_service, "every client was forgotten")
            await eventually(lambda: not gateway(found).engine.manager.rooms)
    assert not [line for line in logged if line["log_level"] in ("error", "critical")]


def gateway(site: Web) -> Any:
    assert site.site._socketio is not None
    return site.site._socketio.app


async def fill(site: Web, first: int, end: int) -> None:
    async with site.bus.publisher("orders") as publisher:
        for number in range(first, end):
            await publisher.send({"n": number})


@pytest.fixture(params=TRANSPORTS, ids="+".join)
def transports(request: pytest.FixtureRequest) -> list[str]:
    found: list[str] = request.param
    return found


# -- publish -------------------------------------------------------------------------------------------


async def test_what_is_published_comes_whole(site: Web, transports: list[str]) -> None:
    token = site.token("publish:orders", "subscribe:orders")
    async with stock(site.url, token, transports) as client:
        more = {"key": "customer-7", "priority": 4, "headers": {"a": "b", "n": 7, "yes": True}}
        stored = await client.done("publish", topic="orders", json={"n": [1, 2.5, None]}, **more)
        assert (stored["offset"], stored["repeated"]) == (0, False)
        await client.done("publish", topic="orders", payload=bytes(range(256)), id="mine")
        await client.done("publish", topic="orders", text="grüß Gott", headers={"content-type": "text/plain"})
        await client.done("publish", topic="orders", base64="AP8=")
        begun = await client.done("subscribe", topic="orders", **{"from": "earliest"})
        assert begun["offset"] == 0
        first, binary, text, encoded = await client.have(4)
        assert first["json"] == {"n": [1, 2.5, None]}
        assert {name: first[name] for name in more} == more
        assert (first["topic"], first["offset"], first["id"]) == ("orders", 0, stored["id"])
        assert (binary["payload"], binary["id"]) == (bytes(range(256)), "mine")
        assert (text["text"], encoded["payload"]) == ("grüß Gott", b"\x00\xff")
    async with Reader(site.bus.subscribe("orders", group="g", start="earliest")) as reader:
        seen = [message.payload for message in await reader.take(4)]
        assert seen[1:] == [bytes(range(256)), "grüß Gott".encode(), b"\x00\xff"]


async def test_json_is_stored_as_it_was_written(site: Web) -> None:
    async with raw(site.url, site.token("publish:orders")) as client:
        written = '{"b": 1.0,  "a": 123456789012345678901234567890, "é":"\\u00e9"}'
        await client.ask(f'["publish",{{"topic":"orders","json":{written}}}]')
    [message] = await site.pull(wait=10, max=1)
    raw_payload = await site.http.post(
        "/v1/topics/orders/groups/h/pull", headers={"accept": "application/octet-stream"}
    )
    assert message["json"]["b"] == 1.0
    assert raw_payload.text == written


async def test_a_repeat_with_a_key_is_stored_once(site: Web) -> None:
    async with stock(site.url, site.token("publish:orders")) as client:
        first = await client.done("publish", topic="orders", json=1, idempotency_key="order-1")
        again = await client.done("publish", topic="orders", json=1, idempotency_key="order-1")
        assert (again["id"], again["offset"], again["repeated"]) == (first["id"], 0, True)
        other = await client.call("publish", topic="orders", json=2, idempotency_key="order-1")
        assert other["problem"]["code"] == "key_reused"


async def test_many_at_a_time_keep_their_order(site: Web, transports: list[str]) -> None:
    """A stock client over polling sends all that has gathered in one POST, of which the library took 16."""
    async with stock(site.url, site.token("publish:#", "subscribe:#"), transports) as client:
        answers = [client.done("publish", topic="orders", json=number) for number in range(300)]
        offsets = [answer["offset"] for answer in await asyncio.gather(*answers)]
        assert offsets == list(range(300))
        await client.done("subscribe", topic="orders", **{"from": 0})
        assert [message["json"] for message in await client.have(300)] == list(range(300))


async def test_refusals_are_problem_documents(site: Web) -> None:
    async with stock(site.url, site.token("publish:orders", "subscribe:orders")) as client:
        for event, given, code in (
            ("publish", {"topic": "other", "json": 1}, "forbidden"),
            ("publish", {"topic": "orders"}, "bad_payload"),
            ("publish", {"topic": "orders", "json": 1, "text": "x"}, "bad_payload"),
            ("publish", {"topic": "orders", "json": 1, "payload": b"x"}, "bad_payload"),
            ("publish", {"topic": "orders", "json": 1, "priority": 10}, "bad_request"),
            ("publish", {"topic": "orders", "json": 1, "colour": "red"}, "bad_request"),
            ("publish", {"topic": "orders", "text": "x" * (5 << 20)}, "too_large"),
            ("subscribe", {"topic": "other"}, "forbidden"),
            ("subscribe", {"topic": "other", "group": "g"}, "forbidden"),
            ("subscribe", {"topic": "orders", "from": 7}, "other_log"),
            ("subscribe", {"topic": "orders", "from": 0, "log": "another"}, "other_log"),
            ("subscribe", {"topic": "orders", "group": "g", "from": 7}, "bad_request"),
            ("subscribe", {"topic": "orders", "credit": 7}, "bad_request"),
            ("subscribe", {"topic": "a b"}, "bad_name"),
            ("unsubscribe", {"subscription": 7}, "bad_request"),
            ("dance", {}, "bad_request"),
        ):
            problem = (await client.call(event, **given))["problem"]
            assert problem["code"] == code, (event, given, problem)
            assert problem["type"] == f"urn:landbridge:error:{code}"
        await client.sio.emit("publish", {"topic": "other", "json": 1})  # nobody waits for an answer
        await eventually(lambda: client.refused)
        assert client.refused[0]["event"] == "publish"
        assert client.refused[0]["problem"]["code"] == "forbidden"


async def noted(site: Web, cause: str) -> str:
    """What the status log says of a cause."""
    async with Reader(site.bus.subscribe("$status", group=f"of-{cause}", start="earliest")) as reader:
        while True:
            event = (await reader.next()).json()
            if event.get("cause") == cause:
                return str(event["detail"])


# -- a log ---------------------------------------------------------------------------------------------


async def test_a_client_that_comes_back_loses_nothing_and_gets_nothing_twice(
    site: Web, transports: list[str]
) -> None:
    await fill(site, 0, 400)
    seen: list[int] = []
    while len(seen) < 1000:
        async with stock(site.url, site.token("subscribe:orders"), transports) as client:
            await client.done("subscribe", topic="orders", **{"from": len(seen)})
            await client.have(min(137, 1000 - len(seen)))
            seen += [message["offset"] for message in client.messages]
        if site.terminal.broker.table.topic("orders").log.end == 400:
            await fill(site, 400, 1000)
    assert seen == list(range(1000))


async def test_latest_is_what_comes_from_now_on(site: Web) -> None:
    await fill(site, 0, 3)
    async with stock(site.url, site.token("subscribe:orders")) as client:
        begun = await client.done("subscribe", topic="orders")
        assert begun["offset"] == 3
        await fill(site, 3, 5)
        assert [message["offset"] for message in await client.have(2)] == [3, 4]
        await client.done("unsubscribe", subscription=begun["subscription"])
        await fill(site, 5, 6)
        await turns(100)
        assert len(client.messages) == 2


async def test_a_topic_that_is_made_anew_ends_its_subscription(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "WITHIN", 0.1)
    await fill(site, 0, 3)
    async with stock(site.url, site.token("subscribe:orders")) as client:
        begun = await client.done("subscribe", topic="orders", **{"from": "earliest"})
        await client.have(3)
        await site.bus.topics.delete("orders", force=True)
        await site.bus.topics.create("orders")
        await fill(site, 0, 4)
        await eventually(lambda: client.refused)
        assert client.refused[0]["problem"]["code"] in ("other_log", "unknown_topic")
        assert client.refused[0]["subscription"] == begun["subscription"]


# -- a group -------------------------------------------------------------------------------------------


async def test_callbacks_settle(site: Web, transports: list[str]) -> None:
    def settlement(message: dict[str, Any]) -> Any:
        if message["json"]["n"] == 1:
            return {"verb": "requeue", "after": 0, "cause": "later"} if message["attempt"] == 1 else "ack"
        return "bury" if message["json"]["n"] == 2 else "ack"

    await fill(site, 0, 4)
    token = site.token("subscribe:orders")
    async with stock(site.url, token, transports, settlement=settlement) as client:
        await client.done("subscribe", topic="orders", group="g", **{"from": "earliest"})
        seen = await client.have(5)
        assert sorted((m["json"]["n"], m["attempt"]) for m in seen) == [
            (0, 1),
            (1, 1),
            (1, 2),
            (2, 1),
            (3, 1),
        ]
        await eventually(lambda: gateway(site).register.figures.settled == 5)
    assert (await site.bus.groups.show("orders", "g")).lag == 0
    dead = await site.http.post("/v1/topics/orders.dead/groups/look/pull?wait=10")
    assert [message["json"] for message in dead.json()["messages"]] == [{"n": 2}]
    assert not client.refused


async def test_a_callback_that_says_nothing_is_no_ack(site: Web) -> None:
    """The stock clients call it by themselves where a program has no handler."""
    await fill(site, 0, 1)
    async with stock(site.url, site.token("subscribe:orders"), settlement=None) as client:
        await client.done("subscribe", topic="orders", group="g", **{"from": "earliest"})
        await eventually(lambda: client.refused)
        assert client.refused[0]["problem"]["code"] == "bad_request"
        assert "requeue" in client.refused[0]["problem"]["hint"]
    async with stock(site.url, site.token("subscribe:orders")) as client:  # what it had leased went back
        await client.done("subscribe", topic="orders", group="g")
        assert [message["offset"] for message in await client.have(1)] == [0]


async def test_receipts_settle_at_every_door(site: Web) -> None:
    await fill(site, 0, 3)
    token = site.token("subscribe:orders")
    async with stock(site.url, token) as client, site.client(token) as http:
        await client.done("subscribe", topic="orders", group="g", settle="receipt", **{"from": "earliest"})
        first, second, third = (message["receipt"] for message in await client.have(3))
        given = [{"receipt": first}, {"receipt": second, "verb": "bury"}, {"receipt": "forged"}]
        settled = (await client.done("settle", receipts=given))["receipts"]
        assert [one["settled"] for one in settled] == [True, True, False]
        assert (await http.post(f"/v1/receipts/{third}/ack")).status_code == 204
        foreign = site.client(site.token("subscribe:orders", subject="another"))
        assert (await foreign.post(f"/v1/receipts/{third}/ack")).json()["code"] == "lease_lost"
        await foreign.aclose()
    assert (await site.bus.groups.show("orders", "g")).lag == 0


async def test_no_more_than_the_credit_is_unsettled(site: Web) -> None:
    await fill(site, 0, 50)
    async with stock(site.url, site.token("subscribe:orders")) as client:
        begun = {"topic": "orders", "group": "g", "credit": 7, "settle": "receipt", "from": "earliest"}
        await client.done("subscribe", **begun)
        await client.have(7)
        await turns(200)
        assert len(client.messages) == 7
        await client.done("settle", receipts=[{"receipt": client.messages[0]["receipt"]}])
        await client.have(8)
        await turns(100)
        assert len(client.messages) == 8


async def test_two_clients_share_a_group(site: Web) -> None:
    await fill(site, 0, 200)
    token = site.token("subscribe:orders")
    async with stock(site.url, token) as one, stock(site.url, token) as two:
        for client in (one, two):
            given = {"topic": "orders", "group": "g", "credit": 5, "from": "earliest"}
            await client.done("subscribe", **given)
        await eventually(lambda: len(one.messages) + len(two.messages) >= 200)
        seen = [message["offset"] for message in one.messages + two.messages]
        assert sorted(seen) == list(range(200))
        assert one.messages
        assert two.messages


async def test_a_pause_is_told(site: Web) -> None:
    async with stock(site.url, site.token("subscribe:orders")) as client:
        begun = await client.done("subscribe", topic="orders", group="g")
        await site.bus.groups.pause("orders", "g", note="a repair")
        await eventually(lambda: client.paused)
        await site.bus.groups.resume("orders", "g")
        await eventually(lambda: len(client.paused) == 2)
        assert client.paused[0]["subscription"] == begun["subscription"]
        assert "a repair" in client.paused[0]["paused"]
        assert client.paused[1]["paused"] is None


# -- who may -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["", "nonsense", "x" * 9000], ids=["none", "wrong", "long"])
async def test_nobody_is_let_in_without_a_token(site: Web, given: str) -> None:
    client = Stock(reconnection=False)
    with pytest.raises(Exception, match="failed to connect"):
        await client.open(site.url, given)
    assert client.refusals[0]["data"]["code"] in ("unauthenticated", "bad_request")
    assert client.refusals[0]["data"]["hint"] or len(given) > 8192
    assert "127.0.0.1" in await noted(site, "socketio_refused")
    await client.close()


async def test_the_credential_of_a_service_signs_in(site: Web) -> None:
    registered = await site.bus.services.register("shop", scopes=["publish:orders"])
    async with stock(site.url, registered.credential) as client:
        await client.done("publish", topic="orders", json=1)
        assert (await client.call("publish", topic="audit", json=1))["problem"]["code"] == "forbidden"


async def test_a_revoked_token_ends_the_connection_and_the_next_one_goes_on(
    site: Web, transports: list[str]
) -> None:
    tokens = iter([site.token("subscribe:orders"), site.token("subscribe:orders", subject="next")])
    async with stock(site.url, lambda: next(tokens), transports) as client:
        await client.done("subscribe", topic="orders")
        await site.bus.tokens.revoke(subject="shop")
        await eventually(lambda: client.connects == 2)  # by itself, with a token that it asked for
        assert client.refused[0]["problem"]["code"] == "unauthenticated"
        await client.done("subscribe", topic="orders")


async def test_a_client_that_does_not_sign_in_is_ended(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_client, "KNOWN_WITHIN", 0.01)
    monkeypatch.setattr(gateway_client, "LINGER", 0.01)
    async with raw(site.url) as silent:
        with pytest.raises(ConnectionClosed):
            while True:
                await silent.next()
    begun = await site.http.get(POLL)
    sid = json.loads(begun.text[1:])["sid"]
    await eventually(lambda: not gateway(site).engine.peers)
    assert (await site.http.get(f"{POLL}&sid={sid}")).status_code == 400


async def test_clients_are_bounded(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "MOST_OF_SERVICE", 2)
    monkeypatch.setattr(register, "MOST_CLIENTS", 3)
    async with AsyncExitStack() as clients:
        for subject in ("one", "one", "two"):
            token = site.token("subscribe:orders", subject=subject)
            await clients.enter_async_context(stock(site.url, token))
        for subject in ("one", "three"):
            more = Stock(reconnection=False)
            with pytest.raises(Exception, match="failed to connect"):
                await more.open(site.url, site.token("subscribe:orders", subject=subject))
            assert more.refusals[0]["data"]["code"] == "limit_reached"
            await more.close()


async def test_subscriptions_of_a_client_are_bounded(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_client, "MOST_SUBSCRIPTIONS", 3)
    async with stock(site.url, site.token("subscribe:orders")) as client:
        answers = await asyncio.gather(*(client.call("subscribe", topic="orders") for _ in range(5)))
        assert sorted("problem" in answer for answer in answers) == [False] * 3 + [True] * 2


async def test_pages_of_other_web_sites(site: Web) -> None:
    shop, evil = {"origin": "https://shop.example.com"}, {"origin": "https://evil.example.com"}
    allowed = await site.http.get(POLL, headers=shop)
    assert allowed.headers["access-control-allow-origin"] == shop["origin"]
    refused = await site.http.get(POLL, headers=evil)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "access-control-allow-origin" not in refused.headers
    asks = {**shop, "access-control-request-method": "POST"}
    assert (await site.http.options(POLL, headers=asks)).status_code == 204
    async with raw(site.url, origin=shop["origin"]):
        pass
    with pytest.raises(Exception, match="403"):
        async with raw(site.url, origin=evil["origin"]):
            pass


async def test_sessions_are_named_by_the_server_and_set_no_cookie(site: Web) -> None:
    """So nobody can give a victim a session that he knows."""
    answer = await site.http.get(f"{POLL}&sid=AAAAAAAAAAAAAAAAAAAA")
    assert answer.status_code == 400
    begun = [await site.http.get(POLL) for _ in range(2)]
    assert len({json.loads(one.text[1:])["sid"] for one in begun}) == 2
    assert not any("set-cookie" in one.headers for one in begun)
    assert not gateway(site).engine.eio.http_compression


async def test_without_the_switch_there_is_nothing(crashes: list[Any]) -> None:
    async with web() as site:
        assert (await site.http.get(POLL)).status_code == 404


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landbridge.node.site.find_spec", lambda _: None)
    with pytest.raises(Exception, match="python-socketio") as raised:
        Site(lambda _: None, socketio=True)
    assert "landbridge[socketio]" in raised.value.hint  # type: ignore[attr-defined]


# -- hostile clients -----------------------------------------------------------------------------------

#: Frames after the sign-in, each of which ends the connection.
WRONG = {
    "an empty frame": [""],
    "no type": ["x"],
    "a type that there is none of": ["9"],
    "no packet of Socket.IO": ["4"],
    "a packet of JSON": ['4{"a":1}'],
    "a packet type that there is none of": ["47"],
    "a packet of a server": ['44{"message":"no"}'],
    "an event that is no array": ['42{"a":1}'],
    "an event that is cut off": ['42["publish"'],
    "deep JSON": ['42["publish",' + "[" * 100_000],
    "half of a surrogate pair": ['42["publish",{"topic":"orders","text":"\\ud800"}', "4"],
    "many arguments": ['42["publish",1,2,3,4]'],
    "another namespace": ['42/admin,["publish",{}]'],
    "many attachments": ['45999999999-["publish",{}]'],
    "more attachments than a packet may have": ['455-["publish",{}]'],
    "no attachments where some belong": ['45["publish",{}]'],
    "attachments where none belong": ['421-["publish",{}]'],
    "an attachment that nobody has announced": [b"abc"],
    "text where an attachment belongs": ['451-["publish",{}]', '42["publish",{}]'],
    "an acknowledgement of nothing": ["43[1]"],
    "an endless number": ["42" + "9" * 500 + '["publish",{}]'],
}


@pytest.mark.parametrize("frames", WRONG.values(), ids=WRONG)
async def test_what_is_no_protocol_ends_the_connection(
    site: Web, frames: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "LINGER", 0.01)
    async with raw(site.url, site.token("publish:#")) as client:
        await client.say(*frames)
        with pytest.raises(ConnectionClosed):
            while True:
                await client.next()
    await eventually(lambda: not gateway(site).engine.peers)


async def test_a_stranger_can_only_sign_in(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_client, "LINGER", 0.01)
    for frame in ('42["publish",{}]', "43[1]", "41", '40/admin,{"token":"x"}', "x" * 20_000):
        async with raw(site.url) as client:
            await client.say(frame)
            if frame.startswith("40/"):
                assert "Unable" in str(await client.next())
                continue
            with pytest.raises(ConnectionClosed):
                while True:
                    await client.next()


async def begin(http: httpx.AsyncClient, token: str) -> str:
    """A session by polling, signed in."""
    sid = json.loads((await http.get(POLL)).text[1:])["sid"]
    place = f"{POLL}&sid={sid}"
    assert (await http.post(place, content=f"40{json.dumps({'token': token})}")).text == "OK"
    assert (await http.get(place)).text.startswith('40{"sid"')
    return place


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"x",
        b"2",
        b"5",
        b"6",
        b"4",
        b"b!",
        b'4{"a":1}',
        b"d=42",
        b"\x1e".join([b'42["publish"]'] * 1001),
        b'42["publish",' + b"[" * 100_000,
    ],
    ids=lambda body: body[:12],
)
async def test_a_body_that_is_no_protocol_ends_the_session(site: Web, body: bytes) -> None:
    place = await begin(site.http, site.token("publish:#"))
    await site.http.post(place, content=body)
    await eventually(lambda: not gateway(site).engine.peers)
    assert (await site.http.post(place, content=b"42[1]")).status_code == 400


async def test_two_polls_of_one_session_end_it(site: Web) -> None:
    place = await begin(site.http, site.token("publish:#"))
    first = asyncio.ensure_future(site.http.get(place))
    await eventually(lambda: any(peer.polling for peer in gateway(site).engine.peers.values()))
    assert (await site.http.get(place)).status_code == 400
    assert "two requests GET" in (await first).text
    await eventually(lambda: not gateway(site).engine.peers)


async def test_requests_that_are_not_served(site: Web) -> None:
    for verb, query in (
        ("GET", f"{POLL}&j=1"),
        ("GET", "/socket.io/?EIO=3&transport=polling"),
        ("GET", "/socket.io/?EIO=4&transport=pigeon"),
        ("GET", f"{POLL}&sid=a&sid=b"),
        ("GET", f"{POLL}{'&a=1' * 20}"),
        ("POST", POLL),
        ("DELETE", POLL),
    ):
        assert (await site.http.request(verb, query, content=b"")).status_code == 400, query
    sid = json.loads((await site.http.get(POLL)).text[1:])["sid"]
    large = await site.http.post(f"{POLL}&sid={sid}", content=b"4" * (17 << 10))  # of a stranger
    assert large.status_code == 413


async def test_a_body_without_a_length_is_read(site: Web) -> None:
    place = await begin(site.http, site.token("publish:#"))

    async def parts() -> AsyncIterator[bytes]:
        yield b'420["publish",'
        yield b'{"topic":"orders","json":1}]'

    assert (await site.http.post(place, content=parts())).text == "OK"
    assert (await site.http.get(place)).text.startswith('430[{"id"')
    await site.http.post(place, content=b"1")


# -- slow clients --------------------------------------------------------------------------------------


async def stuck(client: Raw) -> None:
    """Read nothing more, not even by the library."""
    client.socket.transport.pause_reading()


async def test_a_slow_client_holds_up_nobody_and_little_memory(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "LINGER", 0.01)
    token = site.token("subscribe:orders")
    async with raw(site.url, token) as slow, raw(site.url, token) as group, stock(site.url, token) as other:
        await slow.say('42["subscribe",{"topic":"orders"}]')
        begun = {"topic": "orders", "group": "g", "credit": 10_000, "settle": "receipt", "from": "earliest"}
        await group.say(f'42["subscribe",{json.dumps(begun)}]')
        await eventually(lambda: sum(len(p._reading) for p in gateway(site).engine.peers.values()) == 2)
        await stuck(slow)
        await stuck(group)
        await other.done("subscribe", topic="orders")
        queues = [gateway(site).engine.queue_of(id) for id in gateway(site).engine.peers]
        most = 0
        for _ in range(30):
            for _ in range(10):
                await site.bus.publish("orders", b"x" * 50_000)
            most = max(most, *(queue.size for queue in queues))
        await other.have(300)
        most = max(most, *(queue.size for queue in queues))
        assert most < engine.MOST_WAITING + 60_000
        leased = (await site.bus.groups.show("orders", "g")).leased
        assert leased < 300  # the rest waits in the group, not in the gateway
        for client in (slow, group):
            client.socket.transport.abort()


async def test_messages_for_a_slow_client_are_made_one_at_a_time(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its subscriptions has one, and as JSON a message may take six times its bytes."""
    made: list[bytes] = []

    def counted(payload: bytes, content_type: object) -> Any:
        made.append(payload)
        return plain_form(payload, content_type)

    monkeypatch.setattr(subscription, "plain_form", counted)
    monkeypatch.setattr(gateway_client, "LINGER", 0.01)
    for _ in range(20):
        await site.bus.publish("orders", bytes(1 << 20))
    async with raw(site.url, site.token("subscribe:orders")) as slow:
        await stuck(slow)
        for number in range(20):
            start = {"topic": "orders", "from": "earliest"}
            if number % 2:
                start |= {"group": f"g{number}", "settle": "receipt"}
            await slow.say(f'42["subscribe",{json.dumps(start)}]')
        [peer] = gateway(site).engine.peers.values()
        await eventually(lambda: len(peer._reading) == 20)
        queue = gateway(site).engine.queue_of(peer.id)
        await eventually(lambda: queue.is_full)
        groups = site.terminal.broker.table.topic("orders").groups
        await eventually(lambda: sum(each.delivery.leased > 0 for each in groups.values()) == 10)
        await turns(200)
        assert len(made) < 8, "those that are on their way, and one that waits"
        assert max(each.delivery.leased for each in groups.values()) < 6, "not as many as it may take"
        slow.socket.transport.abort()


async def test_a_client_that_reads_nothing_is_cut_and_its_messages_go_back(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "SLOW_WITHIN", 0.2)
    monkeypatch.setattr(gateway_client, "LINGER", 0.01)
    await site.bus.publish("orders", b"first")
    token = site.token("subscribe:orders")
    async with raw(site.url, token) as slow:
        begun = {"topic": "orders", "group": "g", "settle": "receipt", "from": "earliest"}
        await slow.say(f'42["subscribe",{json.dumps(begun)}]')
        await eventually(lambda: sum(len(p._reading) for p in gateway(site).engine.peers.values()) == 1)
        await stuck(slow)
        for _ in range(400):
            await site.bus.publish("orders", b"x" * 50_000)
        await eventually(lambda: not gateway(site).register.by_service)
        assert gateway(site).register.figures.slow == 1
        assert await noted(site, "socketio_slow_client") == "a client of shop has read nothing for 0 s"
        slow.socket.transport.abort()
    monkeypatch.setattr(gateway_client, "SLOW_WITHIN", 60.0)
    async with stock(site.url, token) as client:
        await client.done("subscribe", topic="orders", group="g", credit=500)
        await client.have(401)
        assert sorted({message["offset"] for message in client.messages}) == list(range(401))


async def test_a_client_that_asks_and_does_not_read_is_not_read_from(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers would fill the memory."""
    async with raw(site.url, site.token("publish:orders"), write_limit=1 << 16) as client:
        await stuck(client)
        event = '42{}["publish",{"topic":"orders","json":1,"colour":"' + "r" * 20_000 + '"}]'
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for number in range(100_000):
                await client.say(event.replace("{}", str(number), 1))
                sent += 1

        flooding = asyncio.ensure_future(flood())
        [peer] = gateway(site).engine.peers.values()
        queue = gateway(site).engine.queue_of(peer.id)
        await eventually(lambda: peer._room.locked() or peer._held + 40_000 > gateway_client.MOST_HELD)
        await turns(200)
        assert peer._held <= gateway_client.MOST_HELD
        assert queue.is_full
        assert queue.size < engine.MOST_WAITING + 60_000
        assert sent < 100_000
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        client.socket.transport.abort()


# -- the gateway ---------------------------------------------------------------------------------------


async def test_figures_are_in_the_metrics(site: Web) -> None:
    async with stock(site.url, site.token("publish:orders")) as client:
        await client.done("publish", topic="orders", json=1)
        await client.call("publish", topic="audit", json=1)
        text = (await site.http.get("/metrics")).text
    assert "landbridge_socketio_clients 1" in text
    assert "landbridge_socketio_published_total 1" in text
    assert "landbridge_socketio_refused_total 1" in text


async def test_a_gateway_that_stops_tells_its_clients(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "LINGER", 0.01)
    async with web(socketio=True) as site:
        client = Stock(reconnection=False)
        await client.open(site.url, site.token("subscribe:#"))
        site.site.stop()
        await eventually(lambda: client.refused)
        assert client.refused[0]["problem"]["code"] == "shutting_down"
        await eventually(lambda: not client.sio.connected)
        await client.close()


@pytest.mark.parametrize("count", [100, pytest.param(500, marks=pytest.mark.slow)])
async def test_a_fan_out_reaches_everybody(site: Web, count: int) -> None:
    token = site.token("subscribe:orders")
    async with AsyncExitStack() as clients:
        everybody = [await clients.enter_async_context(raw(site.url, token)) for _ in range(count)]
        for client in everybody:
            await client.ask('["subscribe",{"topic":"orders"}]')
        await fill(site, 0, 5)
        for client in everybody:
            seen = [json.loads(str(await client.next())[2:])[1]["offset"] for _ in range(5)]
            assert seen == [0, 1, 2, 3, 4]


async def test_a_repeated_poll_gets_the_same_answer(site: Web) -> None:
    """As browsers and HTTP libraries repeat one whose answer was lost with the connection."""
    place = await begin(site.http, site.token("publish:#"))
    for _ in range(2):
        posted = await site.http.post(f"{place}&t=1", content=b'420["publish",{"topic":"orders","json":1}]')
        assert posted.text == "OK"
    first, again = [(await site.http.get(f"{place}&t=2")).text for _ in range(2)]
    assert first == again
    assert first.startswith('430[{"id"')
    await site.http.post(place, content=b"1")
    assert site.terminal.broker.table.topic("orders").log.end == 1


async def test_a_connection_that_is_cut_loses_and_doubles_nothing(
    site: Web, transports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is cut, also within a packet."""
    monkeypatch.setattr(engine, "PING_EVERY", 2)
    monkeypatch.setattr(engine, "PONG_WITHIN", 2)
    await fill(site, 0, 200)
    next_offset = 0
    async with Proxy(int(site.url.rpartition(":")[2])) as proxy:
        client = Stock(settlement=None)

        def on_message(message: dict[str, Any]) -> None:
            nonlocal next_offset
            assert message["offset"] == next_offset
            next_offset += 1

        async def on_connect() -> None:
            await client.sio.emit("subscribe", {"topic": "orders", "from": next_offset})

        client.sio.on("message", on_message)
        client.sio.on("connect", on_connect)
        try:
            await client.open(f"http://127.0.0.1:{proxy.port}", site.token("subscribe:orders"), transports)
            for cut in range(1, 4):
                await eventually(lambda cut=cut: next_offset >= 200 * cut)
                proxy.cut, proxy.after = "answer", cut
                await fill(site, 200 * cut, 200 * (cut + 1))
                await eventually(lambda cut=cut: proxy.cuts == cut)
            await eventually(lambda: next_offset == 800)
        finally:
            await client.close()


async def test_attachments_are_bounded_together_and_in_time(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever announces some and sends all but the last one makes the gateway keep them."""
    token = site.token("publish:orders")
    event = '["publish",{"topic":"orders","payload":{"_placeholder":true,"num":0}}]'
    monkeypatch.setattr(engine, "MOST_BYTES", 300_000)
    async with raw(site.url, token) as client:
        await client.say(f"454-{event}", bytes(200_000))
        await client.say(bytes(200_000))
        assert "with its attachments" in str(await client.next())
        with pytest.raises(ConnectionClosed):
            await client.next()
    monkeypatch.setattr(gateway_client, "ATTACHED_WITHIN", 0.0)
    async with raw(site.url, token) as client:
        await client.say(f"451-{event}")
        assert "did not come within" in str(await client.next())
        with pytest.raises(ConnectionClosed):
            await client.next()
    assert site.terminal.broker.table.topic("orders").log.end == 0


async def test_an_upgrade_that_fails_leaves_long_polling_as_it_was(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library answers every poll with nothing, and at once, from the beginning of an upgrade on."""
    token = site.token("publish:orders", "subscribe:orders")
    place = await begin(site.http, token)
    address = f"{site.url}{place}".replace("http", "ws", 1).replace("polling", "websocket")
    async with connect(address, compression=None):
        with pytest.raises(InvalidStatus, match="400"):
            await connect(address, compression=None)  # one at a time
    monkeypatch.setattr(front, "UPGRADE_WITHIN", 0.0)
    async with connect(address, compression=None) as silent:
        with pytest.raises(ConnectionClosed):
            await silent.recv()
    monkeypatch.undo()
    await eventually(lambda: not any(peer.scopes for peer in gateway(site).engine.peers.values()))
    answer = await site.http.post(place, content='420["publish",{"topic":"orders","json":1}]')
    assert answer.text == "OK"
    assert (await site.http.get(place)).text.startswith("430[")
    async with connect(address, compression=None) as socket:
        await socket.send("2probe")
        assert await socket.recv() == "3probe"
        await socket.send("5")
        await socket.send('421["publish",{"topic":"orders","json":2}]')
        while not str(answered := await socket.recv()).startswith("431["):
            assert answered in ("2", "6")
        await socket.send("1")


async def test_who_follows_a_topic_that_was_made_anew_does_not_read_all_the_time(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client of the same token still waits at the end of the log before."""
    reads: list[int] = []
    read = tail.LogTail.read

    async def counted(self: Any, offset: int) -> Any:
        reads.append(offset)
        return await read(self, offset)

    monkeypatch.setattr(tail.LogTail, "read", counted)
    await fill(site, 0, 10)
    token = site.token("subscribe:orders")
    async with stock(site.url, token) as before, stock(site.url, token) as after:
        await before.done("subscribe", topic="orders")
        await eventually(lambda: reads == [10])
        await site.bus.topics.delete("orders", force=True)
        await site.bus.topics.create("orders")
        await after.done("subscribe", topic="orders")
        await eventually(lambda: 0 in reads)
        await turns(500)
        assert reads.count(0) <= 2
        await fill(site, 0, 1)
        assert (await after.have(1))[0]["offset"] == 0
