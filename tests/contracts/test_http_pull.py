"""Pulling and settling by HTTP, and the sessions behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from landbridge.gateways.http import sessions
from landbridge.testing import FakeClock
from tests.contracts.web import Web, web
from tests.waiting import eventually

PULL = "/v1/topics/orders/groups/g/pull"


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Web]:
    async with web() as found:
        yield found


async def fill(site: Web, count: int, **options: Any) -> None:
    for number in range(count):
        await site.bus.publish("orders", {"n": number}, **options)


async def lag(site: Web) -> int:
    return (await site.bus.groups.show("orders", "g")).lag


async def test_payloads_in_the_form_that_loses_nothing(site: Web) -> None:
    await site.bus.publish("orders", b'{"n" : 1}')
    await site.bus.publish("orders", "hi", key="k", priority=3, headers={"a": b"\x00", "n": 1})
    await site.bus.publish("orders", b"\xff")
    await site.bus.publish("orders", b"1", headers={"content-type": "text/plain"})
    await site.bus.publish("orders", b"{", headers={"content-type": "application/json"})
    found = await site.pull()
    assert [{k: m[k] for k in ("json", "text", "base64") if k in m} for m in found] == [
        {"json": {"n": 1}},
        {"text": "hi"},
        {"base64": "/w=="},
        {"text": "1"},
        {"base64": "ew=="},
    ]
    assert (found[1]["key"], found[1]["priority"], found[1]["headers"]) == ("k", 3, {"a": "AA==", "n": 1})
    assert [m["offset"] for m in found] == list(range(5))
    assert len({m["receipt"] for m in found}) == 5


async def test_never_more_than_asked_for(site: Web) -> None:
    await fill(site, 10)
    first = await site.pull(max=3)
    assert [m["offset"] for m in first] == [0, 1, 2]
    assert (await site.bus.groups.show("orders", "g")).leased == 3
    second = await site.pull(max=4)
    assert [m["offset"] for m in second] == [3, 4, 5, 6]
    assert (await site.bus.groups.show("orders", "g")).leased == 7


async def test_a_long_poll_ends_with_the_first_message(site: Web) -> None:
    polls = [asyncio.ensure_future(site.pull(wait=30, max=1)) for _ in range(3)]
    await eventually(lambda: site.terminal.broker.topics.get("orders"))
    for number in range(3):
        await site.bus.publish("orders", number)
    found = [m["json"] for poll in polls for m in await poll]
    assert sorted(found) == [0, 1, 2]
    assert await site.pull() == []


async def test_each_way_to_settle(site: Web) -> None:
    await fill(site, 4)
    acked, requeued, buried, extended = await site.pull()
    answer = await site.http.post(
        "/v1/receipts",
        json={
            "receipts": [
                {"receipt": acked["receipt"]},
                {"receipt": requeued["receipt"], "verb": "requeue", "after": 0, "cause": "busy"},
                {"receipt": buried["receipt"], "verb": "bury", "cause": "bad"},
                {"receipt": extended["receipt"], "verb": "extend"},
            ]
        },
    )
    assert [one["settled"] for one in answer.json()["receipts"]] == [True] * 4
    [again] = await site.pull(wait=10)
    assert (again["offset"], again["attempt"]) == (1, 2)
    assert (await site.http.post(f"/v1/receipts/{again['receipt']}/ack")).status_code == 204
    lost = await site.http.post(f"/v1/receipts/{again['receipt']}/ack")
    assert (lost.status_code, lost.json()["code"]) == (409, "lease_lost")
    path = f"/v1/receipts/{extended['receipt']}"
    assert (await site.http.post(f"{path}/requeue", params={"after": 0, "cause": "x"})).status_code == 204
    [third] = await site.pull(wait=10)
    assert (await site.http.post(f"/v1/receipts/{third['receipt']}/bury?cause=no")).status_code == 204
    dead = await site.pull(topic="orders.dead", wait=10)
    assert [m["json"]["n"] for m in dead] == [2, 3]
    assert await lag(site) == 0


async def test_each_receipt_is_settled_for_itself(site: Web) -> None:
    await fill(site, 2)
    one, two = await site.pull()
    receipts = [one["receipt"], "forged", one["receipt"], two["receipt"]]
    body = {"receipts": [{"receipt": receipt} for receipt in receipts]}
    answer = (await site.http.post("/v1/receipts", json=body)).json()["receipts"]
    assert [row["receipt"] for row in answer] == receipts
    assert [row["settled"] for row in answer] == [True, False, False, True]
    assert [row.get("code") for row in answer] == [None, "lease_lost", "lease_lost", None]
    assert await lag(site) == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"receipts": 1}',
        b'{"receipts": [{"receipt": "x", "verb": "eat"}]}',
        b'{"receipts": [{"receipt": "x", "after": -1}]}',
        b'{"receipts": [{"receipt": "x", "after": NaN}]}',
        b'{"receipts": [{"receipt": "x", "why": 1}]}',
        b'{"receipts": [%s]}' % b",".join([b'{"receipt": "x"}'] * 1001),
        b'{"receipts": ' + b"[" * 100_000,
    ],
)
async def test_settlements_that_are_none(site: Web, body: bytes) -> None:
    assert (await site.http.post("/v1/receipts", content=body)).status_code == 400


async def test_a_receipt_is_of_one_identity(site: Web) -> None:
    await fill(site, 1)
    scopes = ("subscribe:orders",)
    mine = site.token(*scopes, subject="mine")
    async with site.client(mine) as me, site.client(site.token(*scopes, subject="other")) as other:
        [message] = (await me.post(PULL)).json()["messages"]
        receipt = message["receipt"]
        for forged in (receipt[:-2] + "AA", receipt[:20] + "BBBB" + receipt[24:], "A" * len(receipt)):
            assert (await me.post(f"/v1/receipts/{forged}/ack")).json()["code"] == "lease_lost"
        stolen = await other.post(f"/v1/receipts/{receipt}/ack")
        unknown = await other.post(f"/v1/receipts/{'A' * len(receipt)}/ack")
        said = [{k: v for k, v in one.json().items() if k != "trace_id"} for one in (stolen, unknown)]
        assert said[0] == said[1], "whoever asks learns nothing of the receipts of others"
        assert stolen.status_code == 409
        async with site.client(site.token("subscribe:#", subject="mine")) as wider:
            assert (await wider.post(f"/v1/receipts/{receipt}/ack")).status_code == 409
        # The same service with its next token.
        async with site.client(site.token(*scopes, subject="mine", life=7200.0)) as renewed:
            assert (await renewed.post(f"/v1/receipts/{receipt}/ack")).status_code == 204
    assert await lag(site) == 0


async def test_parameters_of_a_pull(site: Web) -> None:
    for query in ("max=0", "max=1001", "max=x", "wait=-1", "wait=61", "wait=inf", "maxx=1", "max=1&max=2"):
        assert (await site.http.post(f"{PULL}?{query}")).status_code == 400, query
    headers = {"accept": "application/octet-stream"}
    assert (await site.http.post(f"{PULL}?max=2", headers=headers)).status_code == 400
    assert (await site.http.post(PULL, headers={"accept": "image/png"})).status_code == 400
    assert (await site.http.post(PULL, headers=headers)).status_code == 204
    assert (await site.http.post("/v1/topics/a%2Fb/groups/g/pull")).json()["code"] == "bad_name"
    assert (await site.http.post("/v1/topics/%ff/groups/g/pull")).status_code == 400


async def test_a_payload_as_it_is(site: Web) -> None:
    await site.bus.publish(
        "orders", b"\x00\xff", key="k\r\nx: y", headers={"color": "r\r\nevil: 1", "content-type": "image/png"}
    )
    answer = await site.http.post(PULL, headers={"accept": "application/octet-stream"})
    assert (answer.status_code, answer.content) == (200, b"\x00\xff")
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["landbridge-header-color"] == "r??evil: 1"
    assert "evil" not in answer.headers
    done = await site.http.post(f"/v1/receipts/{answer.headers['landbridge-receipt']}/ack")
    assert done.status_code == 204


async def test_a_group_that_settles_on_delivery_has_no_receipts(site: Web) -> None:
    await site.bus.topics.create("jobs", kind="queue", delivery="at-most-once")
    await site.bus.publish("jobs", 1)
    [message] = await site.pull(topic="jobs", wait=10)
    assert "receipt" not in message
    assert await site.pull(topic="jobs") == []


async def test_a_queue_has_one_consumer(site: Web) -> None:
    await site.bus.topics.create("jobs", kind="queue")
    await site.pull(topic="jobs")
    async with site.client(site.token("subscribe:jobs")) as other:
        refused = await other.post("/v1/topics/jobs/groups/g/pull")
        assert (refused.status_code, refused.json()["code"]) == (409, "queue_taken")


# -- sessions ------------------------------------------------------------------------------------------


async def test_requests_share_the_connection_of_their_token(site: Web) -> None:
    before = len(site.terminal.connections)
    for _ in range(5):
        assert (await site.http.post("/v1/topics/orders/messages", content=b"x")).status_code == 201
        await site.http.get("/v1/topics")
    await asyncio.gather(*(site.http.get("/v1/terminal") for _ in range(20)))
    assert len(site.terminal.connections) == before + 1
    async with site.client(site.token("admin")) as other:
        answers = await asyncio.gather(*(other.get("/v1/terminal") for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
    assert len(site.terminal.connections) == before + 2


async def test_a_revoked_token_ends_its_session_and_gives_back_what_it_had(site: Web) -> None:
    await fill(site, 1)
    token = site.token("subscribe:orders", subject="shop")
    async with site.client(token) as http:
        [message] = (await http.post(PULL)).json()["messages"]
        poll = asyncio.ensure_future(http.post(PULL, params={"wait": 60}))
        await eventually(lambda: len(site.terminal.connections) >= 2)
        await site.bus.tokens.revoke(subject="shop")
        assert (await poll).status_code == 401
        for path in (PULL, f"/v1/receipts/{message['receipt']}/ack"):
            refused = await http.post(path)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    [again] = await site.pull(wait=10)
    assert (again["offset"], again["attempt"]) == (0, 1)


async def test_an_expired_token_gets_401_on_its_live_session(crashes: list[Any]) -> None:
    clock = FakeClock()
    async with web(clock=clock) as site, site.client(site.token("publish:orders", life=60.0)) as http:
        assert (await http.post("/v1/topics/orders/messages", content=b"x")).status_code == 201
        clock.advance(61)
        refused = await http.post("/v1/topics/orders/messages", content=b"x")
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")


async def test_an_idle_session_ends(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "IDLE", 0.0)
    monkeypatch.setattr(sessions, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(sessions, "GRACE", 0.0)
    await site.bus.topics.create("orders")
    await site.bus.groups.create("orders", "g", ack_within=0.3)
    await fill(site, 1)
    [message] = await site.pull()
    assert site.sessions == 1  # it has a lease
    await eventually(lambda: not site.sessions)
    late = await site.http.post(f"/v1/receipts/{message['receipt']}/ack")
    assert (late.status_code, late.json()["code"]) == (409, "lease_lost")


async def test_sessions_are_bounded(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 3)
    for number in range(6):
        async with site.client(site.token("admin", subject=f"s{number}")) as http:
            assert (await http.get("/v1/terminal")).status_code == 200
    assert site.sessions == 3
    tokens = [site.token("subscribe:orders", subject=f"p{number}") for number in range(3)]
    clients = [site.client(token) for token in tokens]
    polls = [asyncio.ensure_future(http.post(PULL, params={"wait": 30})) for http in clients]
    await eventually(
        lambda: all(s.users for s in site.site._gateway.app.pool._sessions.values()) and site.sessions == 3
    )
    refused = await site.http.get("/v1/terminal")
    assert (refused.status_code, refused.json()["code"]) == (429, "limit_reached")
    assert "retry-after" in refused.headers
    await fill(site, 3)
    assert {(await poll).status_code for poll in polls} == {200}
    for http in clients:
        await http.aclose()


async def test_a_client_that_leaves_ends_its_long_poll(site: Web) -> None:
    async with site.client(site.token("subscribe:orders")) as http:
        poll = asyncio.ensure_future(http.post(PULL, params={"wait": 60}))
        await eventually(lambda: site.terminal.broker.topics.get("orders"))
        poll.cancel()
    await eventually(lambda: not any(s.users for s in site.site._gateway.app.pool._sessions.values()))
    await fill(site, 1)
    [message] = await site.pull(wait=10)
    assert message["attempt"] == 1


async def test_what_is_paused_is_told(site: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PATIENCE", 0.1)
    await fill(site, 1)
    assert (await site.http.post("/v1/topics/orders/groups", json={"name": "g"})).status_code == 201
    answer = await site.http.post("/v1/topics/orders/groups/g/pause", json={"note": "wait"})
    assert answer.json()["pause"]["note"] == "wait"
    assert (await site.http.post("/v1/topics/orders/pause", json={"note": "too"})).status_code == 200
    for _ in range(2):
        refused = await site.http.post("/v1/topics/orders/messages", json={"n": 1})
        assert (refused.status_code, refused.json()["code"]) == (503, "topic_paused")
        assert refused.headers["retry-after"] == "2"
        made = await site.http.post("/v1/topics/orders/groups", json={"name": "other"})
        assert made.status_code == 201
    pulled = await site.http.post(PULL, params={"wait": 0.3})
    assert pulled.json() == {"messages": [], "paused": "by admin: wait"}
    assert pulled.headers["landbridge-paused"] == "by admin: wait"
    raw = await site.http.post(PULL, headers={"accept": "application/octet-stream"})
    assert (raw.status_code, raw.headers["landbridge-paused"]) == (204, "by admin: wait")
    for what in ("orders/groups/g", "orders"):
        assert (await site.http.post(f"/v1/topics/{what}/resume")).status_code == 200
    assert (await site.http.post("/v1/topics/orders/messages", json={"n": 1})).status_code == 201
    assert len(await site.pull(wait=5)) == 2
    (entry,) = (await site.http.get("/v1/audit", params={"operation": "topic.pause"})).json()["entries"]
    assert (entry["origin"], entry["peer"], entry["to"]["pause"]["note"]) == ("127.0.0.1", "memory", "too")
