"""The registry of a terminal with several nodes, as each of them serves it: one node has it, the others pass
requests on."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from landbridge.errors import BusError, NotOwner, TerminalUnreachable
from landbridge.node.site import App, Scope
from landbridge.protocol.http import problem_of

#: Headers that are about one connection, and not passed on.
OF_A_CONNECTION = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"host", b"content-length")
)
#: Seconds to connect, and to wait for an answer: some requests wait for a newer directory.
CONNECT_WITHIN, ANSWER_WITHIN = 3.0, 90.0


class RegistryDoor:
    """An ASGI application. ``here``: the registry's own, while it is in this process. ``there``: where HTTP
    of the node is that has it; empty where nobody has it at the moment. ``ca``: certificates to trust."""

    def __init__(self, here: Callable[[], App | None], there: Callable[[], str], ca: str | None) -> None:
        self._here = here
        self._there = there
        self._ca = ca
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        app = self._here()
        if app is not None:
            await app(scope, receive, send)
            return
        try:
            await self._pass_on(scope, receive, send)
        except BusError as error:
            refusal = problem_of(error)
            headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
            await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
            await send({"type": "http.response.body", "body": refusal.encode()})

    async def _pass_on(self, scope: Scope, receive: Any, send: Any) -> None:
        there = self._there()
        if not there:
            raise NotOwner("no node of the terminal has the registry at the moment")
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope.get("query_string") or b""
        url = f"{there}/registry{path.decode('latin-1')}{'?' if query else ''}{query.decode('latin-1')}"
        headers = [(name, value) for name, value in scope["headers"] if name not in OF_A_CONNECTION]
        request = self._made().build_request(scope["method"], url, headers=headers, content=_body(receive))
        try:
            answer = await self._made().send(request, stream=True)
        except (httpx.HTTPError, OSError) as error:
            raise TerminalUnreachable(f"the node at {there} can't be reached: {error}") from None
        try:
            kept = [
                (name, value) for name, value in answer.headers.raw if name.lower() not in OF_A_CONNECTION
            ]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()

    def _made(self) -> httpx.AsyncClient:
        if self._client is None:
            trust = ssl.create_default_context(cafile=self._ca)
            timeout = httpx.Timeout(ANSWER_WITHIN, connect=CONNECT_WITHIN)
            self._client = httpx.AsyncClient(verify=trust, timeout=timeout, trust_env=False)
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


async def _body(receive: Any) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return
        yield message.get("body", b"")
        if not message.get("more_body"):
            return
