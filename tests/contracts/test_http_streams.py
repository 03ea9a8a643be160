"""Live streams: server-sent events and the WebSocket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from landbridge.client.publisher import Rows
from landbridge.core.log.batch import Batch
from landbridge.gateways.http import events as gateway_events
from landbridge.gateways.http import websocket
from landbridge.gateways.http.events import text_of_batch
from landbridge.node import http_connection
from landbridge.transport import reading_watch
from tests.contracts.web import Web, listening, take, web
from tests.waiting import LIMIT, eventually

EVENTS = "/v1/topics/orders/events"


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Web]:
    async with web() as found:
        await found.bus.topics.create("orders")
        yield found


async def fill(site: Web, first: int, end: int) -> None:
    async with site.bus.publisher("orders") as publisher:
        for number in range(first, end):
            await publisher.send({"n": number})


# -- the log -------------------------------------------------------------------------------------------


async def test_a_reader_that_comes_back_loses_nothing_and_gets_nothing_twice(site: Web) -> None:
    await fill(site, 0, 500)
    seen: list[int] = []
    last = ""
    headers: dict[str, str] = {}
    while len(seen) < 1000:
        async with listening(site.http, f"{EVENTS}?from=earliest", headers=headers) as events:
            for event in await take(events, 137):
                seen.append(event.json()["json"]["n"])
                last = event.id
        headers = {"last-event-id": last}
        if len(seen) < 300:
            await fill(site, 500 if len(seen) < 200 else 700, 700 if len(seen) < 200 else 1200)
    assert seen == list(range(len(seen)))
    assert last == f"orders:{len(seen) - 1}"


async def test_a_reader_that_had_no_event_yet_goes_on_from_where_it_began(site: Web) -> None:
    await fill(site, 0, 3)
    async with site.http.stream("GET", EVENTS) as answer:
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.aiter_lines()
        assert [await anext(lines) for _ in range(2)] == ["retry: 1000", "id: orders:2"]
    await fill(site, 3, 5)
    async with listening(site.http, EVENTS, headers={"last-event-id": "orders:2"}) as events:
        assert [event.json()["offset"] for event in await take(events, 2)] == [3, 4]


async def test_where_a_stream_begins(site: Web) -> None:
    await fill(site, 0, 5)
    async with listening(site.http, f"{EVENTS}?from=3&form=payload") as events:
        assert [event.data for event in await take(events, 2)] == ['{"n":3}', '{"n":4}']
    for query in ("from=6", "from=soon", "from=-1", "ack=auto", "credit=1", "form=x", "x=1"):
        refused = await site.http.get(f"{EVENTS}?{query}")
        assert refused.status_code == 400, query
    for last in ("audit:1", "orders:x", "orders", ":", "orders:1e3", "orders:" + "9" * 30):
        assert (await site.http.get(EVENTS, headers={"last-event-id": last})).status_code == 400, last
    assert (await site.http.get(EVENTS, headers={"last-event-id": "orders:99"})).json()["code"] == "other_log"
    assert (await site.http.get("/v1/topics/none/events")).json()["code"] == "unknown_topic"


async def test_a_stream_says_that_it_lives(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_events, "QUIET", 0.01)
    for query in ("", "?group=g"):
        async with site.http.stream("GET", EVENTS + query) as answer:
            async for line in answer.aiter_lines():
                if line.startswith(":"):
                    break


async def test_a_topic_that_is_made_anew_ends_its_stream(site: Web) -> None:
    await fill(site, 0, 5)
    async with listening(site.http, f"{EVENTS}?from=earliest") as events:
        await take(events, 5)
        await site.bus.topics.delete("orders", force=True)
        await site.bus.topics.create("orders")
        await fill(site, 0, 10)
        [event] = await take(events, 1)
        assert event.kind == "refused"
        assert event.json()["code"] in ("other_log", "unknown_topic")
        assert [event async for event in events] == []


async def test_the_deadlines_of_requests_are_not_those_of_a_websocket(
    site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that was let in is no stranger, of which there are few."""
    monkeypatch.setattr(http_connection, "BODY_WITHIN", 0.01)
    monkeypatch.setattr(http_connection, "HEAD_WITHIN", 0.01)
    headers = {"authorization": f"Bearer {site.token('publish:orders')}"}
    address = f"{site.url.replace('http', 'ws', 1)}/v1/stream"
    async with connect(
        address, subprotocols=[Subprotocol("landbridge.v1")], additional_headers=headers
    ) as socket:
        assert not len(site.port._strangers)
        for number in range(30):
            message = {"op": "publish", "message": {"topic": "orders", "json": number}, "ref": number}
            await socket.send(json.dumps(message))
            assert json.loads(await socket.recv())["offset"] == number
            await asyncio.sleep(0.001)


async def test_a_revoked_token_ends_its_streams(site: Web) -> None:
    async with site.client(site.token("subscribe:orders")) as http:
        for query in ("", "?group=g"):
            async with listening(http, EVENTS + query) as events:
                await eventually(lambda: site.sessions)
                http.headers["authorization"] = f"Bearer {site.token('subscribe:orders', subject='next')}"
                await site.bus.tokens.revoke(subject="shop" if not query else "next")
                [event] = await take(events, 1)
                assert (event.kind, event.json()["code"]) == ("refused", "unauthenticated")


async def test_a_reader_that_leaves_costs_nothing_more(site: Web) -> None:
    for query in ("", "?group=g"):
        async with listening(site.http, EVENTS + query):
            await eventually(lambda: any(s.users for s in site.site._gateway.app.pool._sessions.values()))
        await eventually(lambda: not any(s.users for s in site.site._gateway.app.pool._sessions.values()))
    assert not (await site.bus.groups.show("orders", "g")).consumers


async def test_a_stream_that_nobody_reads_is_cut(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the end of its token would not end it: it waits for the peer to read."""
    monkeypatch.setattr(reading_watch, "READ_WITHIN", 0.02)
    token = site.token("subscribe:orders")
    for _ in range(8):
        await site.bus.publish("orders", bytes(1 << 20))
    assert (await site.http.get("/v1/topics")).status_code == 200  # the gateway begins
    head = f"GET {EVENTS}?from=earliest HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", int(site.url.rpartition(":")[2])))
        peer.sendall(head.encode())
        users = site.site._gateway.app.pool._sessions
        await eventually(lambda: any(session.users for session in users.values()))
        await eventually(lambda: not any(session.users for session in users.values()))


async def test_a_websocket_that_nobody_reads_is_cut(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_watch, "READ_WITHIN", 0.02)
    for _ in range(8):
        await site.bus.publish("orders", bytes(1 << 20))
    headers = {"authorization": f"Bearer {site.token('subscribe:orders')}"}
    address = f"{site.url.replace('http', 'ws', 1)}/v1/stream"
    async with connect(
        address, subprotocols=[Subprotocol("landbridge.v1")], additional_headers=headers
    ) as stream:
        peer = stream.transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.transport.pause_reading()
        await stream.send(
            json.dumps({"op": "subscribe", "id": 1, "topic": "orders", "group": "g", "start": "earliest"})
        )
        await eventually(lambda: "g" in site.terminal.broker.table.topic("orders").groups)
        group = site.terminal.broker.table.group("orders", "g")
        await eventually(lambda: group.delivery.leased)
        await eventually(lambda: not group.delivery.leased, "what it has not settled went back")
        stream.transport.abort()


payloads = st.one_of(
    st.binary(max_size=20),
    st.text(max_size=20).map(str.encode),
    st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5).map(
        lambda value: json.dumps(value, indent=1).encode()
    ),
)


@given(st.lists(payloads, min_size=1, max_size=8), st.booleans(), st.booleans())
def test_events_are_read_as_they_were_written(found: list[bytes], keys: bool, ids: bool) -> None:
    """By the rules of HTML's EventSource, whatever the payloads are."""
    rows = Rows()
    for number, payload in enumerate(found):
        rows.add(payload, key="k" if keys else None, id=f"i{number}" if ids else None)
    batch = Batch.decode(rows.build(bytes(16)))
    for is_payload in (False, True):
        text = text_of_batch("orders", 7, batch, is_payload=is_payload).decode()
        events = [block for block in text.split("\n\n") if block]
        assert len(events) == len(found)
        for number, (block, payload) in enumerate(zip(events, found, strict=True)):
            fields = [line.split(": ", 1) for line in block.split("\n")]
            assert fields[0] == ["id", f"orders:{7 + number}"]
            data = "\n".join(value for name, value in fields if name == "data")
            kind = next((value for name, value in fields if name == "event"), "")
            if is_payload:
                assert kind in ("", "base64")
                assert (payload == data.encode()) if not kind else True
                continue
            message = json.loads(data)
            assert message["offset"] == 7 + number
            assert message["id"] == batch.id_of(number)
            assert message.get("key") == ("k" if keys else None)
            if "json" in message:
                assert message["json"] == json.loads(payload)
            elif "text" in message:
                assert message["text"].encode() == payload


# -- a group -------------------------------------------------------------------------------------------


async def test_a_group_is_settled_by_receipts(site: Web) -> None:
    await fill(site, 0, 5)
    async with listening(site.http, f"{EVENTS}?group=g&credit=2&from=earliest") as events:
        first = await take(events, 2)
        for event in first:
            done = await site.http.post(f"/v1/receipts/{event.json()['receipt']}/ack")
            assert done.status_code == 204
        assert [event.json()["offset"] for event in await take(events, 2)] == [2, 3]
        assert (await site.bus.groups.show("orders", "g")).leased == 2
    await eventually(lambda: not site.terminal.broker.topics["orders"].groups["g"].consumers)
    assert [message["offset"] for message in await site.pull()] == [2, 3, 4]
    late = await site.http.post(f"/v1/receipts/{first[0].json()['receipt']}/ack")
    assert late.json()["code"] == "lease_lost"


async def test_a_group_that_is_settled_by_itself(site: Web) -> None:
    await fill(site, 0, 300)
    async with listening(site.http, f"{EVENTS}?group=g&ack=auto&form=payload&credit=10") as events:
        assert [json.loads(event.data)["n"] for event in await take(events, 300)] == list(range(300))
        group = site.terminal.broker.topics["orders"].groups["g"]
        await eventually(lambda: group.delivery.cursor.floor == 300)
    assert (await site.http.get(f"{EVENTS}?group=g&form=payload")).status_code == 400


# -- the WebSocket -------------------------------------------------------------------------------------


@asynccontextmanager
async def stream(site: Web, token: str | None = None, **options: Any) -> AsyncIterator[ClientConnection]:
    said = site.http.headers["authorization"] if token is None else f"Bearer {token}"
    headers = {"authorization": said} if said != "Bearer " else {}
    options = {"subprotocols": [Subprotocol("landbridge.v1")], **options}
    url = site.url.replace("http", "ws", 1) + "/v1/stream"
    async with connect(url, additional_headers=headers, **options) as found:
        yield found


async def ask(socket: ClientConnection, **op: Any) -> dict[str, Any]:
    await socket.send(json.dumps(op))
    return await hear(socket)


async def hear(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT):
        found: dict[str, Any] = json.loads(await socket.recv())
        return found


async def test_publish_subscribe_and_settle(site: Web) -> None:
    async with stream(site) as socket:
        for number in range(5):
            message = {"topic": "orders", "json": {"n": number}, "key": "k"}
            stored = await ask(socket, op="publish", ref=number, message=message)
            assert (stored["op"], stored["ref"], stored["offset"]) == ("done", number, number)
        await socket.send(
            json.dumps({"op": "subscribe", "id": 9, "topic": "orders", "group": "g", "credit": 2})
        )
        heard = [await hear(socket) for _ in range(3)]
        assert sorted(one["op"] for one in heard) == ["done", "message", "message"]
        messages = [one["message"] for one in heard if one["op"] == "message"]
        assert [one["json"]["n"] for one in messages] == [0, 1]
        group = site.terminal.broker.topics["orders"].groups["g"]
        assert group.delivery.held_by(next(iter(group.consumers)))[0] == 2  # no more than the credit
        receipts = [{"receipt": one["receipt"]} for one in messages]
        await socket.send(json.dumps({"op": "settle", "receipts": receipts, "ref": "s"}))
        heard = [await hear(socket) for _ in range(3)]
        assert {"op": "done", "ref": "s"} in heard
        assert [one["message"]["offset"] for one in heard if one["op"] == "message"] == [2, 3]
        again = await ask(socket, op="settle", receipts=receipts, ref="again")
        assert (again["op"], again["problem"]["code"]) == ("refused", "lease_lost")
        assert (await ask(socket, op="unsubscribe", id=9, ref=1))["op"] == "done"
    assert [message["offset"] for message in await site.pull()] == [2, 3, 4]


async def test_a_stream_subscribes_by_query(site: Web) -> None:
    paid = {"state": ["paid"]}
    async with stream(site) as socket:
        asked = await ask(socket, op="subscribe", id=1, match=paid, group="g", start="earliest", ref="s")
        rule = asked["topic"]
        assert asked == {"op": "done", "ref": "s", "topic": rule}
        assert [(each.rule, each.source) for each in await site.bus.rules.list()] == [(rule, "$content")]
        for state in ("open", "paid"):
            sent = await site.http.post("/v1/messages", json={"state": state})
            assert sent.status_code == 201
        message = (await hear(socket))["message"]
        assert (message["topic"], message["json"]) == (rule, {"state": "paid"})
        settled = await ask(socket, op="settle", receipts=[{"receipt": message["receipt"]}])
        assert settled["op"] == "done"
        of_orders = await ask(socket, op="subscribe", id=2, topic="orders", match=paid, group="g")
        assert of_orders["topic"] != rule
        for wrong in ({"match": {"state": "paid"}}, {"topic": rule, "match": paid}, {}):
            refused = await ask(socket, op="subscribe", id=3, group="g", **wrong)
            assert refused["problem"]["code"] == "bad_request", wrong
        (entry, *_) = await site.bus.audit.list(operation="rule.create", name=rule)
        assert entry.origin == "127.0.0.1"
    async with stream(site, site.token("subscribe:orders")) as socket:
        refused = await ask(socket, op="subscribe", id=1, match=paid, group="g")
        assert refused["problem"]["code"] == "forbidden"


async def test_the_token_may_come_first(site: Web) -> None:
    async with stream(site, "") as socket:
        assert (await ask(socket, op="auth", token=site.token("publish:orders"), ref=1)) == {
            "op": "done",
            "ref": 1,
        }
        refused = await ask(socket, op="subscribe", id=1, topic="orders", group="g")
        assert refused["problem"]["code"] == "forbidden"
        assert (await ask(socket, op="publish", message={"topic": "orders", "json": 1}))["offset"] == 0
    for first in (
        {"op": "auth", "token": "wrong"},
        {"op": "publish", "message": {"topic": "orders", "json": 1}},
    ):
        async with stream(site, "") as socket:
            assert (await ask(socket, **first))["problem"]["code"] == "unauthenticated"
            with pytest.raises(ConnectionClosed) as closed:
                await hear(socket)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4401


async def test_who_is_not_let_in(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with stream(site, "wrong"):
            pass
    assert refused.value.response.status_code == 401
    for options in ({"origin": "https://evil.example"}, {"subprotocols": None}):
        with pytest.raises(InvalidStatus) as refused:
            async with stream(site, **options):
                pass
        assert refused.value.response.status_code in (400, 403)
    monkeypatch.setattr(websocket, "AUTH_WITHIN", 0.05)
    async with stream(site, "") as socket:
        assert (await hear(socket))["problem"]["code"] == "unauthenticated"
    # A page of this very port, and a port that was asked without an upgrade.
    async with stream(site, origin=site.url):
        pass
    assert (await site.http.get("/v1/stream")).status_code == 426


async def test_what_a_stream_does_not_understand(site: Web) -> None:
    async with stream(site) as socket:
        for bad in (
            "{",
            "[]",
            '{"op": "eat"}',
            '{"op": "settle"}',
            "[" * 100_000,
            '{"op": "subscribe", "id": -1}',
        ):
            await socket.send(bad)
            assert (await hear(socket))["op"] == "refused", bad[:20]
        assert (await ask(socket, op="unsubscribe", id=3))["op"] == "refused"
        await socket.send(b"\x00")
        assert (await hear(socket))["problem"]["code"] == "bad_frame"
        with pytest.raises(ConnectionClosed):
            await hear(socket)


async def test_a_stranger_sends_little(site: Web) -> None:
    async with stream(site, "") as socket:
        await socket.send('{"op": "auth", "token": "%s"}' % ("x" * 100_000))
        with pytest.raises(ConnectionClosed) as closed:
            await hear(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_a_revoked_token_ends_the_stream(site: Web) -> None:
    async with stream(site, site.token("subscribe:orders")) as socket:
        await socket.send(json.dumps({"op": "subscribe", "id": 1, "topic": "orders", "group": "g"}))
        assert (await hear(socket))["op"] == "done"
        await site.bus.tokens.revoke(subject="shop")
        heard = [await hear(socket)]
        with pytest.raises(ConnectionClosed):
            while True:
                heard.append(await hear(socket))
        assert {one["problem"]["code"] for one in heard} == {"unauthenticated"}
    await eventually(lambda: not site.terminal.broker.topics["orders"].groups["g"].consumers)
