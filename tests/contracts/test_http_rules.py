"""Rules by HTTP: messages without a topic, rules and their tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contracts.test_rules import PAID, rule_of, until_routed
from tests.contracts.web import Web, listening, take, web
from tests.rfc9535 import ASKED, selects
from tests.waiting import eventually

MANY = {"content-type": "application/vnd.landbridge.messages+json"}


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Web]:
    async with web() as found:
        yield found


async def test_from_a_query_to_a_message(site: Web) -> None:
    made = await site.http.post("/v1/rules", json={"match": PAID})
    assert (made.status_code, made.json()["is_new"]) == (201, True)
    rule = made.json()["rule"]
    sent = await site.http.post(
        "/v1/messages", json={"state": "paid", "n": 1}, headers={"landbridge-key": "eu"}
    )
    assert (sent.status_code, sent.json()["offset"]) == (201, 0)
    many = [{"json": {"state": "paid", "n": 2}}, {"json": {"state": "open", "n": 3}}]
    sent = await site.http.post("/v1/messages", json=many, headers=MANY)
    assert (sent.status_code, sent.json()["count"]) == (201, 2)
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    sent = await site.http.post("/v1/messages?until=acked", json={"state": "paid", "n": 4}, headers=event)
    assert sent.status_code == 201  # the rules have looked at it
    got = await site.pull(rule, "g", wait=20, max=3)
    while len(got) < 3:
        got += await site.pull(rule, "g", wait=20, max=3)
    assert [message["json"]["n"] for message in got] == [1, 2, 4]
    assert got[0]["key"] == "eu"
    traced = await site.http.get(f"/v1/rules/{rule}/offsets/2")
    assert traced.json() == {"source": "$content", "offset": 3}
    listed = await site.http.get("/v1/rules", params={"source": "$content"})
    assert [each["rule"] for each in listed.json()["rules"]] == [rule]
    shown = await site.http.get(f"/v1/rules/{rule}")
    assert (shown.json()["end"], shown.json()["lag"]) == (3, 0)
    await eventually(lambda: not site.terminal.broker.topics[rule].groups["g"].delivery.pending)
    assert (await site.http.delete(f"/v1/rules/{rule}")).status_code == 400
    gone = await site.http.delete(f"/v1/rules/{rule}", params={"force": "true"})
    assert gone.json() == {"deleted": rule}


async def test_a_test_of_a_message(site: Web) -> None:
    await site.bus.rules.create(PAID, "orders")
    asked = await site.http.post("/v1/rules/test", json={"payload": {"state": "open"}, "source": "orders"})
    (verdict,) = asked.json()["verdicts"]
    assert verdict == {
        "rule": rule_of(PAID, "orders"),
        "matches": False,
        "place": "match.state",
        "why": 'found "open", wanted "paid"',
        "exceeded": False,
    }


async def test_who_may(site: Web) -> None:
    async with site.client(site.token("publish:#", "subscribe:#")) as http:
        refused = await http.post("/v1/messages", json={})
        assert (refused.status_code, refused.json()["hint"]) == (403, "needs publish:$content")
        refused = await http.post("/v1/rules", json={"match": PAID})
        assert refused.status_code == 403
    async with site.client("") as http:
        assert (await http.post("/v1/messages", json={})).status_code == 401


@pytest.mark.parametrize(
    "match", [{"kind": "regexp", "pattern": "("}, {"kind": "x"}, {"a": []}, {"a": 1}, [], None, "text"]
)
async def test_a_query_that_is_wrong_is_named(site: Web, match: Any) -> None:
    refused = await site.http.post("/v1/rules", json={"match": match})
    assert refused.status_code == 400
    assert refused.json()["code"] in ("bad_request", "bad_payload")


async def test_the_examples_and_tables_of_rfc_9535(site: Web) -> None:
    """Each path is a rule, each document a message; the rule has the message where the library selects
    something."""
    rules: list[tuple[str, str, Any]] = []
    for number, (document, paths) in enumerate(ASKED):
        source = f"rfc{number}"
        for path in paths:
            query = {"kind": "jsonpath", "path": path}
            made = await site.http.post("/v1/rules", json={"match": query, "source": source})
            assert made.status_code == 201, (path, made.text)
            rules.append((made.json()["rule"], path, document))
        sent = await site.http.post(f"/v1/topics/{source}/messages", json=document)
        assert sent.status_code == 201
    for number in range(len(ASKED)):
        await until_routed(site.terminal, f"rfc{number}")
    matched = 0
    for rule, path, document in rules:
        found = (await site.http.get(f"/v1/rules/{rule}")).json()["messages"]
        assert found == selects(path, document), path
        matched += found
    assert 40 < matched < len(rules) - 15


@pytest.mark.parametrize(("place", "source"), [("/v1/messages", "$content"), ("/v1/topics/orders", "orders")])
async def test_a_pull_by_query_is_one_request(site: Web, place: str, source: str) -> None:
    path = f"{place}/groups/g/pull"
    first = await site.http.post(path, json={"match": PAID})
    rule = rule_of(PAID, source)
    assert (first.status_code, first.json()["messages"]) == (200, [])
    assert first.headers["landbridge-rule"] == rule
    assert [(each.rule, each.source) for each in await site.bus.rules.list()] == [(rule, source)]
    target = "/v1/messages" if source == "$content" else "/v1/topics/orders/messages"
    for state in ("open", "paid"):
        assert (await site.http.post(target, json={"state": state})).status_code == 201
    got = (await site.http.post(path, json={"match": PAID}, params={"wait": 20})).json()["messages"]
    assert [(each["topic"], each["json"]) for each in got] == [(rule, {"state": "paid"})]
    settled = await site.http.post(f"/v1/receipts/{got[0]['receipt']}/ack")
    assert settled.status_code == 204
    (entry,) = await site.bus.audit.list(operation="rule.create", name=rule)  # the second pull made none
    assert (entry.who, entry.origin) == ("admin", "127.0.0.1")
    sent = await site.http.post(target, json={"state": "paid", "n": 2})
    raw = {"accept": "application/octet-stream"}
    one = await site.http.post(path, json={"match": PAID}, params={"wait": 20}, headers=raw)
    assert (one.content, one.headers["landbridge-rule"]) == (b'{"state":"paid","n":2}', rule)
    assert sent.status_code == 201


@pytest.mark.parametrize(("place", "source"), [("/v1/messages", "$content"), ("/v1/topics/orders", "orders")])
async def test_a_stream_by_query_is_one_request(site: Web, place: str, source: str) -> None:
    rule = rule_of(PAID, source)
    target = "/v1/messages" if source == "$content" else "/v1/topics/orders/messages"
    query = {"match": json.dumps(PAID)}
    async with site.http.stream("GET", f"{place}/events", params=query) as answer:
        assert (answer.status_code, answer.headers["landbridge-rule"]) == (200, rule)
    for state in ("open", "paid"):
        assert (await site.http.post(target, json={"state": state})).status_code == 201
    back = {"last-event-id": f"{rule}:-1"}
    async with listening(site.http, f"{place}/events", params=query, headers=back) as events:
        (event,) = await take(events, 1)
        assert (event.id, event.json()["json"]) == (f"{rule}:0", {"state": "paid"})
    of_group = query | {"group": "g", "from": "earliest"}
    async with listening(site.http, f"{place}/events", params=of_group) as events:
        (event,) = await take(events, 1)
        assert (event.json()["json"], bool(event.json()["receipt"])) == ({"state": "paid"}, True)


async def test_subscriptions_by_query_that_are_refused_make_no_rule(site: Web) -> None:
    pull, follow = "/v1/messages/groups/g/pull", "/v1/messages/events"
    bodies: list[Any] = [None, {}, {"match": {"state": "paid"}}, {"match": []}, {"matches": PAID}, []]
    for body in bodies:
        refused = await site.http.post(pull, json=body)
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_request"), body
    assert (await site.http.post(pull, content=b"{")).json()["code"] == "bad_payload"
    assert (await site.http.post(pull, content=b" " * (65 << 10))).status_code == 413
    wrong: list[dict[str, str]] = [
        {},
        {"match": "[]"},
        {"match": '{"state": "paid"}'},
        {"match": json.dumps(PAID), "ack": "auto"},
        {"match": json.dumps(PAID), "group": "g", "form": "payload"},
        {"match": json.dumps(PAID), "group": "g", "from": "7"},
    ]
    for params in wrong:
        refused = await site.http.get(follow, params=params)
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_request"), params
    async with site.client(site.token("subscribe:#")) as http:
        for refused in (
            await http.post(pull, json={"match": PAID}),
            await http.get(follow, params={"match": json.dumps(PAID)}),
        ):
            assert (refused.status_code, refused.json()["hint"]) == (403, "needs subscribe:$content")
    for nothing in (b"", b" ", b"null", b"{}"):
        assert (await site.http.post("/v1/topics/orders/groups/g/pull", content=nothing)).status_code == 200
    of_rule = f"/v1/topics/{rule_of(PAID, 'orders')}/groups/g/pull"
    assert (await site.http.post(of_rule, json={"match": PAID})).status_code in (400, 404)
    assert await site.bus.rules.list() == []
