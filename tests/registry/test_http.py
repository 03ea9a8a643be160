"""The door itself: its description, its bodies, its errors, and the client that knocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from landbridge.client.registry import RegistryClient
from landbridge.errors import BadContext, RegistryUnreachable
from landbridge.registry import routes
from landbridge.registry.limits import RegistryLimits
from tests.registry.site import Site, Tenant

SEED = {
    "createMessageBusCustomer",
    "createTerminal",
    "createTerminalGroup",
    "addTerminalToGroup",
    "createMessageBusTopic",
    "addGroupToTopic",
}


async def operations(site: Site) -> dict[str, dict[str, Any]]:
    document = (await site.http.get("/v1/openapi.json")).json()
    return {
        operation["operationId"]: {**operation, "path": path, "method": method}
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


async def test_openapi(quick: Site) -> None:
    answer = await quick.http.get("/v1/openapi.json")
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json()["openapi"].startswith("3.1")
    known = await operations(quick)
    assert known.keys() >= SEED
    assert known.keys() == {str(handler.operation_id) for handler in routes.ALL}
    for operation in known.values():
        assert operation["summary"]
        assert operation["path"].startswith("/v1/")
    public = {name for name, operation in known.items() if not operation.get("security")}
    assert public == {"showRegistry", "enrolTerminal", "createServiceToken"}


async def test_openapi_describes_bodies_and_problems(quick: Site) -> None:
    document = (await quick.http.get("/v1/openapi.json")).json()
    create = document["paths"]["/v1/terminals"]["post"]
    ref = create["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert "make_key" in document["components"]["schemas"][ref.rpartition("/")[2]]["properties"]
    assert "application/problem+json" in create["responses"]["400"]["content"]


async def test_no_page_that_loads_from_elsewhere(quick: Site) -> None:
    for path in ("/", "/v1", "/v1/swagger", "/v1/redoc", "/schema", "/v1/openapi.json/redoc"):
        answer = await quick.http.get(path)
        assert answer.status_code == 404
        assert "<script" not in answer.text


async def test_a_path_that_is_none_is_named(quick: Site) -> None:
    answer = (await quick.http.get("/v1/nowhere")).json()
    assert (answer["code"], answer["detail"]) == ("not_found", "there is no /v1/nowhere")
    assert "/docs" in answer["hint"]


async def test_every_operation_is_a_method_of_the_client(quick: Site) -> None:
    short = {
        "issue_ticket": "issue",
        "redeem_ticket": "redeem",
        "renew_ticket": "renew",
        "read_directory": "directory",
        "read_topology": "topology",
        "read_audit": "audit",
        "request_certificate": "certificate",
        "enrol_terminal": "enrol",
    }
    for name in await operations(quick):
        snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        method = getattr(RegistryClient, short.get(snake, snake), None)
        assert callable(method), name
        assert method.__doc__, name


async def test_every_operation_is_documented(quick: Site) -> None:
    text = (Path(__file__).parents[2] / "docs" / "registry.md").read_text()
    for name, operation in (await operations(quick)).items():
        assert f"| `{operation['method'].upper()} {operation['path']}` | `{name}` |" in text
        assert f"| {operation['summary']} |" in text


@pytest.mark.parametrize("limit", RegistryLimits.__struct_fields__)
def test_every_limit_is_documented(limit: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "registry.md").read_text()
    assert f"| `{limit}` | {getattr(RegistryLimits(), limit):g} |" in text


BAD_BODIES = [
    b"",
    b"null",
    b"[]",
    b"{",
    b'{"name": 1}',
    b'{"name": "x", "surprise": 1}',
    b'{"name": "x", "admin_cost": "5"}',
    b'{"name": "x", "admin_cost": NaN}',
    b'{"name": "x", "admin_cost": 1e999}',
    b'{"name": "x", "transit": 1}',
    b'{"name": "x", "mode": "router"}',
    b'{"name": "\xff"}',
    b'{"name": "a\\u0000b"}',
    b'{"name": "x", "keys": {"sign": "*", "wrap": ""}}',
    b"[" * 100_000,
    b'{"name":' * 20_000,
    b'{"surprise":' + b"[" * 100_000,
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:30]))
async def test_bad_bodies_are_the_callers_fault(quick: Site, acme: Tenant, body: bytes) -> None:
    headers = {"authorization": f"Bearer {acme.token}"}
    answer = await quick.http.post("/v1/terminals", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == f"urn:landbridge:error:{problem['code']}"
    assert problem.keys() == {"type", "title", "status", "detail", "code", "hint", "trace_id", "source"}
    assert problem["source"] == "bus"
    assert problem["status"] == 400
    assert problem["detail"]


async def test_bodies_are_bounded(quick: Site, acme: Tenant) -> None:
    for headers in ({"authorization": f"Bearer {acme.token}"}, {}):
        answer = await quick.http.post("/v1/enrol", content=b" " * 300_000, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_a_body_without_a_length_is_bounded(quick: Site, acme: Tenant) -> None:
    async def endless() -> Any:
        while True:
            yield b" " * 65536

    answer = await quick.http.post("/v1/enrol", content=endless())
    assert answer.status_code == 413


async def test_what_is_not_there(quick: Site) -> None:
    assert (await quick.http.get("/v1/nothing")).json()["code"] == "not_found"
    refused = await quick.http.put("/v1/terminals")
    assert (refused.status_code, refused.json()["code"]) == (405, "bad_method")
    assert "POST" in refused.headers["allow"]


async def test_nothing_is_cached(quick: Site, acme: Tenant) -> None:
    headers = {"authorization": f"Bearer {acme.token}"}
    for path in ("/v1/customer", "/v1/terminals/ter_x", "/v1/nothing"):
        assert (await quick.http.get(path, headers=headers)).headers["cache-control"] == "no-store"


async def test_registry_shows_its_public_key(quick: Site) -> None:
    assert (await quick.client().show_registry()).registry_key == quick.registry.public_key


# -- the client ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["ftp://x", "registry", "http://registry.example", "https://x/path", "https://", "http://[::1"]
)
def test_client_refuses_bad_addresses(url: str) -> None:
    with pytest.raises(BadContext):
        RegistryClient(url)


async def test_client_says_that_nobody_answers() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with RegistryClient("https://r", token="lbac1_x", transport=httpx.MockTransport(refuse)) as client:
        with pytest.raises(RegistryUnreachable) as failure:
            await client.show_registry()
    assert failure.value.retriable
    assert "lbac1_x" not in str(failure.value)


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>a login page</html>"),
        httpx.Response(302, headers={"location": "https://elsewhere.example/"}),
        httpx.Response(502, text="Bad Gateway"),
        httpx.Response(404, text="nothing here"),
    ],
    ids=lambda answer: str(answer.status_code),
)
async def test_client_knows_what_is_no_registry(answer: httpx.Response) -> None:
    transport = httpx.MockTransport(lambda _: answer)
    async with RegistryClient("https://r", transport=transport) as client:
        with pytest.raises(RegistryUnreachable):
            await client.show_registry()


async def test_client_quotes_what_it_puts_into_a_path(quick: Site, acme: Tenant) -> None:
    for name in ("../customer", "a/b", "?x=1", "#", "%2e%2e", "a b"):
        with pytest.raises(Exception, match=r"there is no|Not Found"):
            await acme.admin.show_message_bus_topic(name)
