"""Publishing by HTTP: one, many, several topics, CloudEvents; what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from landbridge.broker.limits import Limits
from tests.contracts.web import Web, web
from tests.waiting import Reader

PATH = "/v1/topics/orders/messages"
MANY = {"content-type": "application/vnd.landbridge.messages+json"}


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Web]:
    async with web() as found:
        yield found


async def log_of(site: Web, topic: str = "orders") -> list[tuple[bytes, bytes, dict[str, Any]]]:
    found = []
    for fetched in (await site.bus.fetch(topic, 0)).batches:
        batch = fetched.batch
        found += [(batch.payload(i), batch.key(i), batch.headers(i)) for i in range(len(batch))]
    return found


async def test_one_message_with_all_it_may_have(site: Web) -> None:
    headers = {
        "landbridge-key": "käse",
        "landbridge-priority": "7",
        "landbridge-id": "mine",
        "landbridge-expires-at": "2099-01-01T00:00:00Z",
        "landbridge-deliver-at": "+0s",
        "landbridge-header-color": "red",
        "content-type": "text/x-any",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    sent = await site.http.post(
        PATH, content=b"\x00\xff", headers={k.encode(): v.encode() for k, v in headers.items()}
    )
    assert (sent.status_code, sent.json()) == (201, {"id": "mine", "offset": 0})
    async with Reader(site.bus.subscribe("orders", group="r")) as reader:
        message = await reader.next()
        assert (message.payload, message.key, message.priority, message.id) == (
            b"\x00\xff",
            "käse",
            7,
            "mine",
        )
        assert message.headers == {
            "color": "red",
            "content-type": "text/x-any",
            "traceparent": headers["traceparent"],
        }


async def test_messages_that_come_together_share_a_batch(site: Web) -> None:
    answers = await asyncio.gather(*(site.http.post(PATH, content=b"%d" % n) for n in range(50)))
    assert {answer.status_code for answer in answers} == {201}
    receipts = {answer.json()["id"]: answer.json()["offset"] for answer in answers}
    assert sorted(receipts.values()) == list(range(50))
    found = await site.bus.fetch("orders", 0)
    for fetched in found.batches:
        for index in range(len(fetched.batch)):
            assert receipts[fetched.batch.id_of(index)] == fetched.first + index
    for answer in answers:  # whose receipt is whose
        offset = answer.json()["offset"]
        [batch] = [f for f in found.batches if f.first <= offset < f.end]
        assert batch.batch.payload(offset - batch.first) == answer.request.content


@pytest.mark.parametrize(
    ("headers", "hint"),
    [
        ({"landbridge-kee": "a"}, "landbridge-key"),
        ({"landbridge-subject": "admin"}, "it takes"),
        ({"landbridge-priority": "10"}, "0 to 9"),
        ({"landbridge-priority": "x"}, "0 to 9"),
        ({"landbridge-deliver-at": "tomorrow"}, "2026-01-31"),
        ({"landbridge-deliver-at": "2026-01-31T12:00:00"}, "2026-01-31"),
        ({"content-encoding": "gzip"}, "as it is"),
    ],
)
async def test_headers_of_ours_that_make_no_sense(site: Web, headers: dict[str, str], hint: str) -> None:
    refused = await site.http.post(PATH, content=b"x", headers=headers)
    assert refused.status_code == 400
    assert hint in refused.json()["hint"]
    assert not (await site.bus.topics.list())


async def test_parameters_that_make_no_sense(site: Web) -> None:
    for query in (
        "untill=acked",
        "until=soon",
        "within=0",
        "within=nan",
        "until=stored&until=acked",
        "%ff=1",
    ):
        refused = await site.http.post(f"{PATH}?{query}", content=b"x")
        assert refused.status_code == 400, query
    assert "until" in (await site.http.post(f"{PATH}?untill=acked", content=b"x")).json()["hint"]


async def test_a_header_that_is_sent_twice_is_refused(site: Web) -> None:
    twice = [("landbridge-key", "a"), ("landbridge-key", "b")]
    refused = await site.http.post(PATH, content=b"x", headers=twice)
    assert (refused.status_code, "twice" in refused.json()["detail"]) == (400, True)


async def test_lines(site: Web) -> None:
    headers = {"content-type": "application/x-ndjson; charset=utf-8"}
    sent = await site.http.post(PATH, content=b'{"n": 1}\r\n\n[2]\n"three"\n4', headers=headers)
    assert sent.status_code == 201
    said = sent.json()
    assert (said["count"], said["first"]["offset"], said["last"]["offset"]) == (4, 0, 3)
    assert [payload for payload, _, _ in await log_of(site)] == [b'{"n": 1}', b"[2]", b'"three"', b"4"]
    for bad in (b"", b"\n\n", b'{"n": 1}\n{', b"NaN\n", b'"\xff"', b"[" * 100_000):
        refused = await site.http.post(PATH, content=bad, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_payload"), bad[:20]
    assert len(await log_of(site)) == 4


async def test_many_are_stored_together_or_not_at_all(site: Web) -> None:
    messages = [
        {"json": {"n": 1}, "key": "a", "priority": 3, "headers": {"h": 1, "t": True}},
        {"text": "hallo ü", "id": "own"},
        {"base64": "AAH/"},
        {"json": None},
    ]
    sent = await site.http.post(PATH, json=messages, headers=MANY)
    assert sent.status_code == 201
    said = sent.json()
    assert (said["count"], said["first"]["offset"], said["last"]["offset"]) == (4, 0, 3)
    found = await log_of(site)
    assert [payload for payload, _, _ in found] == [b'{"n":1}', "hallo ü".encode(), b"\x00\x01\xff", b"null"]
    assert (found[0][1], found[0][2]) == (b"a", {"h": 1, "t": True})
    for bad in (
        [],
        [{"json": 1}, {}],
        [{"json": 1}, {"json": 1, "text": "x"}],
        [{"json": 1}, {"base64": "?"}],
        [{"json": 1}, {"json": 1, "priority": 10}],
        [{"json": 1}, {"json": 1, "prio": 1}],
        [{"json": 1}, {"json": 1, "deliver_at": "soon"}],
        {"json": 1},
    ):
        refused = await site.http.post(PATH, json=bad, headers=MANY)
        assert refused.status_code == 400, bad
    assert len(await log_of(site)) == 4


async def test_several_topics_at_once(site: Web) -> None:
    messages = [
        {"topic": "orders", "json": 1},
        {"topic": "audit", "text": "x", "id": "one"},
        {"topic": "orders", "json": 2},
    ]
    sent = await site.http.post("/v1/publish", json={"messages": messages})
    assert sent.status_code == 201
    receipts = sent.json()["receipts"]
    assert [(one["topic"], one["offset"]) for one in receipts] == [("orders", 0), ("audit", 0), ("orders", 1)]
    assert receipts[1]["id"] == "one"
    for one in receipts:
        [place] = (await site.bus.messages.where(one["id"], topic=one["topic"])).places
        assert place.offset == one["offset"]
    token = site.token("publish:orders")
    async with site.client(token) as http:
        refused = await http.post("/v1/publish", json={"messages": messages})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert len(await log_of(site)) == 2


async def test_what_runs_out_is_no_error(site: Web) -> None:
    await site.pull(group="slow")
    sent = await site.http.post(PATH, json=1, params={"until": "acked", "within": 0.05})
    assert sent.status_code == 202
    where = sent.headers["location"]
    state = (await site.http.get(where)).json()
    assert state["places"][0]["offset"] == sent.json()["offset"] == 0
    many = await site.http.post(
        PATH, json=[{"json": 2}], headers=MANY, params={"until": "acked", "within": 0.05}
    )
    assert many.status_code == 202
    waiting = asyncio.ensure_future(site.http.post(PATH, json=3, params={"until": "acked"}))
    got: list[dict[str, Any]] = []
    while len(got) < 3:
        got += await site.pull(group="slow", wait=30)
    settled = await site.http.post(
        "/v1/receipts", json={"receipts": [{"receipt": one["receipt"]} for one in got]}
    )
    assert all(one["settled"] for one in settled.json()["receipts"])
    assert (await waiting).status_code == 201


async def test_a_group_that_is_behind_is_told_as_a_refusal_for_now(site: Web) -> None:
    await site.http.post("/v1/topics", json={"name": "small", "max_backlog": 100})
    await site.pull(topic="small")
    statuses = []
    for _ in range(3):
        sent = await site.http.post("/v1/topics/small/messages", content=bytes(200))
        statuses.append(sent.status_code)
        if sent.status_code == 503:
            assert (sent.json()["code"], "retry-after" in sent.headers) == ("backlog_full", True)
            break
    assert statuses[-1] == 503


async def test_sizes(crashes: list[Any]) -> None:
    async with web(limits=Limits(max_payload=1000, max_frame=1 << 16)) as site:
        assert (await site.http.post(PATH, content=bytes(1000))).status_code == 201
        refused = await site.http.post(PATH, content=bytes(1001))
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
        lines = json.dumps("x" * 2000) + "\n1\n"
        headers = {"content-type": "application/x-ndjson"}
        assert (await site.http.post(PATH, content=lines, headers=headers)).status_code == 413
        lines = '"%s"\n' % ("x" * 900) * 100
        assert (await site.http.post(PATH, content=lines, headers=headers)).status_code == 413
        assert (await site.bus.topics.show("orders")).end == 1


# -- requests that are repeated -------------------------------------------------------------------------

LINES = {"content-type": "application/x-ndjson"}
EVENT_TYPE = {"content-type": "application/cloudevents+json"}


@pytest.mark.parametrize(
    ("path", "content", "headers"),
    [
        (PATH, b"x", {"landbridge-key": "k", "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}),
        (PATH, b"x", {"landbridge-id": "mine"}),
        (PATH, b"1\n2\n3", LINES),
        (PATH, b'[{"json": 1}, {"json": 2}, {"json": 3, "id": "i"}]', MANY),
        (PATH, b'{"specversion":"1.0","id":"x","source":"/s","type":"t"}', EVENT_TYPE),
        (
            "/v1/publish",
            b'{"messages": [{"topic": "orders", "json": 1}, {"topic": "audit", "json": 2}]}',
            {},
        ),
    ],
    ids=["one", "an id", "lines", "many", "event", "several"],
)
async def test_a_repeat_gets_the_first_answer(
    site: Web, path: str, content: bytes, headers: dict[str, str]
) -> None:
    headers = {**headers, "idempotency-key": '"0198-abc"'}
    first = await site.http.post(path, content=content, headers=headers)
    assert (first.status_code, "landbridge-repeated" in first.headers) == (201, False), first.text
    stored = len(await log_of(site))
    if "traceparent" in headers:
        headers["traceparent"] = headers["traceparent"].replace("2", "3")
    await site.http.post(PATH, content=b"between")
    for again in await asyncio.gather(
        *(site.http.post(path, content=content, headers=headers) for _ in range(3))
    ):
        # The offset in a topic of another unit of the store is not remembered.
        said = json.loads(again.text.replace('"offset":-1', '"offset":0'))
        assert (again.status_code, said) == (201, first.json())
        assert again.headers["landbridge-repeated"] == "true"
    assert len(await log_of(site)) == stored + 1
    body = content.replace(b"x", b"y") if b"x" in content else content.replace(b"1", b"7")
    other = await site.http.post(path, content=body, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    async with site.client(site.token("admin", subject="another")) as http:
        theirs = await http.post(path, content=content, headers=headers)
        assert (theirs.status_code, "landbridge-repeated" in theirs.headers) == (201, False)


async def test_a_unique_id_is_stored_once(site: Web) -> None:
    await site.http.post("/v1/topics", json={"name": "orders", "ids": "unique"})
    answers = [await site.http.post(PATH, content=b"x", headers={"landbridge-id": "mine"}) for _ in range(3)]
    assert [answer.json() for answer in answers] == [{"id": "mine", "offset": 0}] * 3
    assert ["landbridge-repeated" in answer.headers for answer in answers] == [False, True, True]


async def test_keys_that_are_none(site: Web) -> None:
    for key in ("", '""', "x" * 256, "a\tb"):
        refused = await site.http.post(PATH, content=b"x", headers={"idempotency-key": key})
        assert refused.status_code == 400, key


# -- CloudEvents ---------------------------------------------------------------------------------------

EVENT = {"specversion": "1.0", "id": "A1", "source": "/shop", "type": "com.example.order"}


async def test_an_event_in_binary_form(site: Web) -> None:
    headers = {f"ce-{name}": value for name, value in EVENT.items()}
    headers |= {
        "ce-subject": "gr%C3%BCn%20%22x%22",
        "ce-partitionkey": "k",
        "content-type": "application/json",
    }
    assert (await site.http.post(PATH, content=b'{"n":1}', headers=headers)).status_code == 201
    [(payload, key, said)] = await log_of(site)
    assert (payload, key) == (b'{"n":1}', b"k")
    assert said == {f"ce-{k}": v for k, v in EVENT.items()} | {
        "ce-subject": 'grün "x"',
        "content-type": "application/json",
    }
    answer = await site.http.post(
        "/v1/topics/orders/groups/g/pull", headers={"accept": "application/octet-stream"}
    )
    assert answer.content == b'{"n":1}'
    assert answer.headers["content-type"] == "application/json"
    assert {k: v for k, v in answer.headers.items() if k.startswith("ce-")} == {
        **{f"ce-{k}": v for k, v in EVENT.items()},
        "ce-subject": "gr%C3%BCn%20%22x%22",
    }
    assert answer.headers["landbridge-key"] == "k"


async def test_events_in_structured_form_and_in_batches(site: Web) -> None:
    structured = EVENT | {"data": {"n": 1}, "time": "2026-01-31T12:00:00.123Z", "flag": True, "count": 3}
    headers = {"content-type": "application/cloudevents+json"}
    assert (await site.http.post(PATH, json=structured, headers=headers)).status_code == 201
    batch = [EVENT | {"data_base64": "AP8="}, EVENT | {"datacontenttype": "text/plain", "data": "hi"}, EVENT]
    headers = {"content-type": "application/cloudevents-batch+json; charset=utf-8"}
    sent = await site.http.post(PATH, json=batch, headers=headers)
    assert (sent.status_code, sent.json()["count"]) == (201, 3)
    assert [payload for payload, _, _ in await log_of(site)] == [b'{"n":1}', b"\x00\xff", b"hi", b""]
    answer = await site.http.post(
        "/v1/topics/orders/groups/g/pull", headers={"accept": "application/cloudevents-batch+json"}
    )
    events = answer.json()
    assert events[0] | structured == events[0] | {"datacontenttype": "application/json"}
    assert (events[1]["data_base64"], events[2]["data"]) == ("AP8=", "hi")
    assert "data" not in events[3]
    done = await site.http.post(f"/v1/receipts/{events[0]['landbridgereceipt']}/ack")
    assert done.status_code == 204


@pytest.mark.parametrize(
    "event",
    [
        {},
        {**EVENT, "specversion": "0.3"},
        {**EVENT, "id": ""},
        {k: v for k, v in EVENT.items() if k != "type"},
        {**EVENT, "data": 1, "data_base64": "AA=="},
        {**EVENT, "data_base64": "?"},
        {**EVENT, "Upper": "x"},
        {**EVENT, "nested": {}},
        {**EVENT, "big": 1 << 40},
        {**EVENT, "time": "yesterday"},
        {**EVENT, "source": None},
        [],
    ],
)
async def test_events_that_are_none(site: Web, event: Any) -> None:
    headers = {"content-type": "application/cloudevents+json"}
    refused = await site.http.post(PATH, json=event, headers=headers)
    assert refused.status_code == 400
    assert refused.headers["content-type"] == "application/problem+json"
    batch = {"content-type": "application/cloudevents-batch+json"}
    assert (await site.http.post(PATH, json=[EVENT, event], headers=batch)).status_code == 400
    assert not await site.bus.topics.list()


async def test_a_message_that_was_no_event_becomes_one(site: Web) -> None:
    sent = await site.http.post(PATH, json={"n": 1}, headers={"landbridge-key": "k"})
    answer = await site.http.post(
        "/v1/topics/orders/groups/g/pull", headers={"accept": "application/cloudevents+json"}
    )
    event = answer.json()
    assert event["id"] == sent.json()["id"]
    assert (event["specversion"], event["source"], event["data"]) == ("1.0", "/v1/topics/orders", {"n": 1})
    assert event["partitionkey"] == "k"
    nothing = await site.http.post(
        "/v1/topics/orders/groups/g/pull", headers={"accept": "application/cloudevents+json"}
    )
    assert nothing.status_code == 204


async def test_one_invalid_message_refuses_its_own_request_alone(site: Web) -> None:
    """Messages of requests that come together share a batch, and a refusal concerns one of them."""
    await site.bus.topics.create("orders", middleware=cast(Any, [{"stage": "validate"}]))
    schema = {"required": ["id"], "properties": {"id": {"type": "integer"}}}
    made = await site.http.post("/v1/topics/orders/types/default", json={"schema": schema})
    assert (made.status_code, made.json()["versions"]) == (200, [1])
    sent = await asyncio.gather(
        *(site.http.post(PATH, json={"id": "x" if n % 5 == 2 else n}) for n in range(20))
    )
    for n, answer in enumerate(sent):
        assert answer.status_code == (422 if n % 5 == 2 else 201), answer.text
    problem = sent[2].json()
    assert (problem["code"], problem["index"], problem["field"]) == ("invalid_message", 0, "/id")
    stored = sorted(json.loads(payload)["id"] for payload, _, _ in await log_of(site))
    assert stored == [n for n in range(20) if n % 5 != 2]
    many = await site.http.post(
        PATH, content=b'{"id": 1}\n{"id": 2}\n{}', headers={"content-type": "application/x-ndjson"}
    )
    assert (many.status_code, many.json()["index"], many.json()["field"]) == (422, 2, "/id")
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "order.lost", "data": {"id": 1}}
    lost = await site.http.post(PATH, json=event, headers={"content-type": "application/cloudevents+json"})
    assert (lost.status_code, lost.json()["field"]) == (422, "headers/type")
