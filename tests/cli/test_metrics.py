"""The metrics gateway, on a terminal in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from landbridge.broker.server import Terminal
from landbridge.errors import LimitReached, StoreFailed, TerminalUnreachable
from landbridge.gateways.metrics import Metrics
from landbridge.node.assembly import dial_to
from landbridge.protocol.http import problem_of
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FaultyStore, run_terminal


@pytest.fixture
async def terminal() -> AsyncIterator[Terminal]:
    async with run_terminal() as running:
        yield running


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://terminal")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_an_observer_reads_metrics(terminal: Terminal) -> None:
    token = terminal.issue_token("prometheus", ["observe"], 60)
    async with client(Metrics(dial_to(terminal))) as http:
        found = await http.get("/metrics", headers=bearer(token))
        assert found.status_code == 200
        assert "landbridge_connections 1.0" in found.text
        # RFC 9110 11.1
        assert (await http.get("/metrics", headers={"Authorization": f"bearer  {token}"})).status_code == 200
        head = await http.head("/metrics", headers=bearer(token))
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 100
    assert not terminal.connections


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer("nonsense"),
        bearer("x" * 10_000),
        {"authorization": "Basic YTpi"},
        {"authorization": "Bearer"},
    ],
)
async def test_strangers_get_a_problem(terminal: Terminal, headers: dict[str, str]) -> None:
    async with client(Metrics(dial_to(terminal))) as http:
        refused = await http.get("/metrics", headers=headers)
    assert refused.status_code == 401
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["www-authenticate"] == "Bearer"
    problem = refused.json()
    assert (problem["status"], problem["code"]) == (401, "unauthenticated")
    assert problem["type"] == "urn:landbridge:error:unauthenticated"


async def test_other_scopes_are_not_enough(terminal: Terminal) -> None:
    token = terminal.issue_token("shop", ["publish:#", "subscribe:#"], 60)
    async with client(Metrics(dial_to(terminal))) as http:
        refused = await http.get("/metrics", headers=bearer(token))
    assert refused.status_code == 403
    assert refused.json()["code"] == "forbidden"


async def test_health_needs_no_token(terminal: Terminal) -> None:
    async with client(Metrics(dial_to(terminal))) as http:
        found = await http.get("/healthz")
        assert (found.status_code, found.text) == (200, "ok\n")
        assert (await http.get("/")).status_code == 404
        refused = await http.post("/healthz")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


async def test_health_tells_of_trouble() -> None:
    """Alive is alive; but who can't take messages is not ready for them."""
    async with run_terminal(store := FaultyStore(MemoryStore())) as terminal:
        condition = lambda: (not terminal.store.is_low, terminal.troubles)  # noqa: E731
        async with client(Metrics(dial_to(terminal), condition)) as http:
            assert (await http.get("/readyz")).text == "ok\n"
            terminal.broker.damage.note("a finding", "mend it")
            found = await http.get("/readyz")
            assert (found.status_code, found.text) == (200, "degraded\ndamage: 1 finding since the start\n")
            store.full = True
            alive, ready = await http.get("/healthz"), await http.get("/readyz")
            assert (alive.status_code, ready.status_code) == (200, 503)
            assert alive.text == ready.text
            assert alive.text.startswith("degraded\nno room on the disk")
            store.full = False
            assert (await http.get("/readyz")).status_code == 200


async def test_terminal_that_is_not_there() -> None:
    async def dial(factory: Callable[[], Any]) -> Any:
        raise TerminalUnreachable("nobody there")

    async with client(Metrics(dial)) as http:
        refused = await http.get("/metrics", headers=bearer("t"))
    assert refused.status_code == 503
    assert refused.json()["detail"] == "nobody there"


async def test_websockets_are_not_spoken(terminal: Terminal) -> None:
    async def nothing(*anything: Any) -> Any: ...

    with pytest.raises(RuntimeError, match="websocket"):
        await Metrics(dial_to(terminal))({"type": "websocket"}, nothing, nothing)


def test_statuses_of_errors() -> None:
    assert problem_of(LimitReached("too many")).status == 429
    assert problem_of(StoreFailed("broken")).status == 500
