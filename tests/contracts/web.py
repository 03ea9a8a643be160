"""A terminal with its HTTP port, for tests: in this process, on a port of the system's choice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.node.assembly import dial_to
from landbridge.node.console import ConsolePart
from landbridge.node.http_port import HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.site import Site
from landbridge.node.socketio import watching
from landbridge.testing import attach
from tests.contracts.whole import run_whole
from tests.waiting import LIMIT


@dataclass
class Web:
    terminal: Terminal
    site: Site
    port: HttpPort
    http: httpx.AsyncClient
    bus: Bus

    @property
    def url(self) -> str:
        return self.port.url

    def token(self, *scopes: str, subject: str = "shop", life: float = 3600.0) -> str:
        return self.terminal.issue_token(subject, list(scopes), life)

    def client(self, token: str) -> httpx.AsyncClient:
        """Another program, with another token. Close it."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=LIMIT)

    async def pull(self, topic: str = "orders", group: str = "g", **query: Any) -> list[dict[str, Any]]:
        answer = await self.http.post(f"/v1/topics/{topic}/groups/{group}/pull", params=query)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["messages"]
        return found

    @property
    def sessions(self) -> int:
        return len(self.site._gateway.app.pool)


@asynccontextmanager
async def web(**options: Any) -> AsyncIterator[Web]:
    site_options = {
        name: options.pop(name) for name in ("origins", "registry", "socketio") if name in options
    }
    with_console = options.pop("console", False)
    tls = options.pop("tls", (None, None))
    most = options.pop("most", 64)
    endpoint = Endpoint("localhost" if tls[0] else "127.0.0.1", *tls)
    async with run_whole(**options) as terminal, attach(terminal) as bus:
        console = ConsolePart(terminal, dial_to(terminal)).app if with_console else None
        site = Site(
            dial_to(terminal),
            answer_stranger=terminal.answer_stranger,
            console=console,
            **site_options,
        )
        port = HttpPort(site, endpoint, 0, endpoint.tls(), most=most, hint="", web_sockets=True)
        token = terminal.issue_token("admin", ["admin"], 3600.0)
        headers = {"authorization": f"Bearer {token}"}
        try:
            # Certificates are for those who look at them.
            async with (
                httpx.AsyncClient(
                    base_url=port.url, headers=headers, timeout=LIMIT, verify=not tls[0]
                ) as http,
                watching(terminal, dial_to(terminal, is_part=True), site, 0.001),
            ):
                yield Web(terminal, site, port, http, bus)
        finally:
            site.stop()
            await port.close()
            await site.close()


@dataclass
class ServerEvent:
    id: str
    kind: str
    data: str

    def json(self) -> Any:
        return json.loads(self.data)


@asynccontextmanager
async def listening(
    http: httpx.AsyncClient, path: str, **options: Any
) -> AsyncIterator[AsyncIterator[ServerEvent]]:
    """The events of a stream."""
    async with http.stream("GET", path, **options) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield _events(answer)


async def _events(answer: httpx.Response) -> AsyncIterator[ServerEvent]:
    id, kind = "", ""
    data: list[str] = []
    async for line in answer.aiter_lines():
        if not line:
            if data:
                yield ServerEvent(id, kind, "\n".join(data))
            kind, data = "", []
        elif line.startswith("id: "):
            id = line[4:]
        elif line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            data.append(line[6:])


async def take(events: AsyncIterator[ServerEvent], count: int) -> list[ServerEvent]:
    async with asyncio.timeout(LIMIT):
        return [await anext(events) for _ in range(count)]
