"""The terminal's operations by HTTP, the documents, and what a hostile client tries."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from openapi_spec_validator import validate

from landbridge.gateways.http import administration, catalogue, openapi
from landbridge.protocol.operations import OPERATIONS
from tests.contracts.web import Web, web


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Web]:
    async with web() as found:
        yield found


async def test_topics_groups_tokens_and_levels(site: Web) -> None:
    http = site.http
    made = await http.post("/v1/topics", json={"name": "orders", "retention": {"max_age": 60}})
    assert (made.status_code, made.json()["name"]) == (201, "orders")
    assert (await http.post("/v1/topics", json={"name": "orders", "kind": "queue"})).status_code == 409
    assert (await http.patch("/v1/topics/orders", json={"max_backlog": 1000})).json()["groups"] == 0
    shown = (await http.get("/v1/topics/orders")).json()
    assert (shown["options"]["max_backlog"], shown["options"]["retention"]["max_age"]) == (1000, 60)
    assert (await http.post("/v1/topics/orders/groups", json={"name": "g"})).status_code == 201
    assert (await http.get("/v1/groups", params={"topic": "orders"})).json()["groups"][0]["name"] == "g"
    assert (await http.post("/v1/topics/orders/groups/g/seek", json={"to": "latest"})).status_code == 200
    assert [row["name"] for row in (await http.get("/v1/topics?limit=1")).json()["topics"]] == ["$audit"]
    token = await http.post("/v1/tokens", json={"subject": "shop", "scopes": ["publish:orders"]})
    assert token.status_code == 201
    async with site.client(token.json()["token"]) as other:
        assert (await other.post("/v1/topics/orders/messages", content=b"x")).status_code == 201
        assert (await other.post("/v1/topics", json={"name": "more"})).status_code == 403
    levels = await http.patch("/v1/status/levels", json={"topics": {"orders": "messages"}})
    assert (await http.get("/v1/status/levels")).json() == levels.json()
    assert levels.json()["topics"] == {"orders": "messages"}
    assert (await http.get("/v1/terminal/metrics")).headers["content-type"].startswith("text/plain")
    assert (await http.post("/v1/status/notes", json={"cause": "x"})).status_code == 204
    assert (await http.delete("/v1/topics/orders")).json()["code"] in ("still_holds", "bad_request", "misuse")
    assert (await http.delete("/v1/topics/orders?force=true")).json() == {"deleted": "orders"}
    assert (await http.get("/v1/topics/orders")).json()["code"] == "unknown_topic"


async def test_documents(site: Web) -> None:
    path = "/v1/documents/prices"
    made = await site.http.post(path, json={"key": "a/b ü", "value": {"n": 1}})
    assert made.status_code == 201
    shown = (await site.http.get(f"{path}/a%2Fb%20%C3%BC")).json()
    assert shown["value"] == {"n": 1}
    changed = await site.http.patch(f"{path}/a%2Fb%20%C3%BC", json={"value": 2, "version": shown["version"]})
    assert changed.status_code == 200
    refused = await site.http.patch(f"{path}/a%2Fb%20%C3%BC", json={"value": 3, "version": shown["version"]})
    assert (refused.status_code, refused.json()["code"]) == (412, "document_changed")
    changes = (await site.http.get(f"{path}/changes?within=0.01")).json()
    assert set(changes) == {"changes", "after", "missed"}


@pytest.mark.parametrize(
    "body",
    [
        b"[",
        b"[]",
        b'"x"',
        b'{"name": "a", "name": "b"}',
        b'{"name": "a", "max_backlog": NaN}',
        b'{"name": "a", "max_backlog": 1e999}',
        b'{"name": "a", "max_backlog": %s}' % (b"9" * 5000),
        b'{"name": "a", "max_backlog": 16996431152717041239291553747304448}',
        b'{"name": "a", "retention": {"max_age": -1e400}}',
        b'{"name": "a", "nam": 1}',
        b'{"name": 1}',
        b'{"name": "a\x00"}',
        b'{"name": "\xff"}',
        b'{"name": "\\ud800"}',
        b'{"name": ' + b"[" * 100_000,
        b"{}",
    ],
)
async def test_bodies_that_make_no_sense(site: Web, body: bytes) -> None:
    refused = await site.http.post("/v1/topics", content=body)
    assert refused.status_code == 400, refused.text
    said = refused.json()
    assert {"type", "title", "status", "detail", "code", "source", "trace_id"} <= set(said)
    assert said["source"] == "bus"
    assert re.fullmatch("[0-9a-f]{32}", said["trace_id"])
    assert not await site.bus.topics.list()


async def test_parameters_that_make_no_sense(site: Web) -> None:
    for path in (
        "/v1/topics?limit=x",
        "/v1/topics?limt=1",
        "/v1/topics?limit=1&limit=2",
        f"/v1/topics?limit={10**30}",
    ):
        assert (await site.http.get(path)).status_code == 400, path
    await site.bus.topics.create("orders")
    assert (await site.http.patch("/v1/topics/orders", json={"name": "others"})).status_code == 400
    assert (await site.http.patch("/v1/topics/orders?max_backlog=1", json={})).status_code == 400
    assert (await site.http.delete("/v1/topics/orders?force=maybe")).status_code == 400
    assert (await site.http.get("/v1/topics/orders", headers={"landbridge-x": "1"})).status_code == 400


async def test_paths(site: Web) -> None:
    for path in (
        "/",
        "/v1",
        "/v1/none",
        "/v1/topics/",
        "/v1/topics//messages",
        "/v1/topics/a/b/c/d",
        "/v2/topics",
    ):
        answer = await site.http.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path
    answer = await site.http.put("/v1/topics")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST, GET")
    assert (await site.http.options("/v1/topics")).status_code == 405


async def test_who_asks(site: Web) -> None:
    """Nothing is answered without a token, and every operation asks for the scope of its entry."""
    async with site.client("") as nobody, site.client(site.token("documents:x")) as little:
        for route in catalogue.ROUTES:
            path = re.sub(r"\{\w+\}", "1", route.path)
            if not route.described.needs_token:
                continue  # whoever asks shows a credential in the request
            refused = await nobody.request(route.verb, path, content=b"{}")
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer"), path
        for name, operation in OPERATIONS.items():
            if operation.scope == "admin":
                asked = {field.name: 1 for field in msgspec.structs.fields(operation.request)}  # type: ignore[arg-type]
                path = operation.path
                in_path = re.findall(r"\{(\w+)\}", path)
                path = re.sub(r"\{\w+\}", "x", path)
                body = {k: v for k, v in asked.items() if k not in in_path}
                refused = await little.request(
                    operation.verb, path, content=b"" if operation.verb in "GET DELETE" else json.dumps(body)
                )
                assert refused.status_code in (400, 403), name
        for path in ("/v1/terminal/metrics", "/v1/tokens", "/v1/status/levels", "/metrics"):
            assert (await little.get(path)).status_code == 403, path
        for wrong in ("Basic eDp5", "Bearer", "Bearer a b", f"Bearer {'x' * 9000}"):
            answer = await nobody.get("/v1/topics", headers={"authorization": wrong})
            assert answer.status_code == 401, wrong
    none = b'{"alg":"none"}'.hex()
    assert (
        await site.http.get("/v1/topics", headers={"authorization": f"Bearer {none}.e30."})
    ).status_code == 401


async def test_identity_is_the_tokens_alone(site: Web) -> None:
    async with site.client(site.token("publish:orders", subject="shop")) as http:
        headers = {"x-forwarded-user": "admin", "x-remote-user": "admin", "x-customer": "other"}
        assert (await http.get("/v1/tokens", headers=headers)).status_code == 403
        for name in ("landbridge-subject", "landbridge-customer", "landbridge-scope"):
            assert (await http.get("/v1/terminal", headers={name: "admin"})).status_code == 400


async def test_the_trace_of_a_refusal_is_that_of_its_request(site: Web) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    assert (await site.http.get("/v1/topics/none", headers=headers)).json()["trace_id"] == trace
    headers = {"traceparent": "00-x-y-01"}
    assert (await site.http.get("/v1/topics/none", headers=headers)).json()["trace_id"] != trace


async def test_large_heads_are_refused(site: Web) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rsplit(":", 1)[1]))
    writer.write(b"GET /v1/topics HTTP/1.1\r\nhost: x\r\n" + b"a: " + b"x" * 200_000 + b"\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rsplit(":", 1)[1]))
    writer.write(
        b"POST /v1/topics HTTP/1.1\r\nhost: x\r\n"
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    assert (await reader.readline()).split()[1] in (b"400", b"401")
    writer.close()


# -- pages of other sites ------------------------------------------------------------------------------


async def test_pages_of_other_sites(crashes: list[Any]) -> None:
    page = "https://console.example.com"
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with web() as site:
        assert (await site.http.options("/v1/topics", headers={"origin": page, **asked})).status_code == 405
        answer = await site.http.get("/v1/topics", headers={"origin": page})
        assert "access-control-allow-origin" not in answer.headers
    async with web(origins=[page]) as site:
        allowed = await site.http.options("/v1/topics", headers={"origin": page, **asked})
        assert allowed.status_code == 204
        assert allowed.headers["access-control-allow-origin"] == page
        assert allowed.headers["access-control-allow-headers"] == "authorization"
        answer = await site.http.get("/v1/topics", headers={"origin": page})
        assert answer.headers["access-control-allow-origin"] == page
        other = {"origin": "https://evil.example", **asked}
        assert (await site.http.options("/v1/topics", headers=other)).status_code == 405
        assert "access-control-allow-origin" not in (await site.http.get("/v1/topics", headers=other)).headers


# -- the documents -------------------------------------------------------------------------------------


async def test_the_document_has_every_operation(site: Web) -> None:
    async with site.client("") as nobody:
        whole = (await nobody.get("/openapi.json")).json()
    validate(whole)
    names = [one["operationId"] for verbs in whole["paths"].values() for one in verbs.values()]
    assert len(names) == len(set(names))
    assert set(OPERATIONS) <= set(names)
    assert {"sendMessage", "pullMessages", "settleMessages", "streamMessages", "publishSeveral"} <= set(names)
    assert not any(path.startswith("/registry") for path in whole["paths"])


def test_the_document_has_the_registry_where_there_is_one() -> None:
    whole = json.loads(openapi.encode(openapi.document(catalogue.ROUTES, with_registry=True)))
    validate(whole)
    assert "/registry/v1/customers" in whole["paths"]


def test_answers_are_as_documented() -> None:
    for operation in OPERATIONS.values():
        described = administration.describe(operation)
        assert list(described.answers) == [administration.status_of(operation)]


async def test_the_reference_page_loads_nothing_from_elsewhere(site: Web) -> None:
    async with site.client("") as nobody:
        page = await nobody.get("/docs")
        style = await nobody.get("/docs/style.css")
    assert (page.status_code, style.status_code) == (200, 200)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text
    assert set(re.findall(r'(?:src|href)="([^"#]+)', page.text)) == {"/docs/style.css", "/openapi.json"}
    assert "sendMessage" in page.text
    assert "url(" not in style.text
