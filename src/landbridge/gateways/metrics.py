"""Prometheus over HTTP: ``GET /metrics`` for the bearer of a token with the scope observe. For everybody:
``GET /healthz``, which says whether the process lives, and ``GET /readyz``, which says whether it takes
messages.

An ASGI application. It holds no credential of its own: each scrape connects to the terminal with the token
that the scraper has shown, asks for the metrics and leaves. Errors are problem documents (RFC 9457).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.errors import BusError, TimedOut, Unauthenticated
from landbridge.protocol.http import Problem, bearer_token, caller_known, problem, problem_of

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
#: Whether a terminal takes messages, and what an operator should look at, a line each.
Condition: TypeAlias = Callable[[], tuple[bool, list[str]]]
#: Status, headers and body of an answer.
Answer: TypeAlias = tuple[int, dict[str, str], bytes]

#: Seconds for one scrape, so that scrapers don't pile up at a terminal in trouble.
WITHIN = 10.0
#: The text format that every version of Prometheus reads.
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The application. ``dial`` reaches the terminal, as for a Bus. ``condition``: whether the terminal takes
    messages, and what an operator should look at."""

    def __init__(self, dial: Dial, condition: Condition = lambda: (True, [])) -> None:
        self._dial = dial
        self._condition = condition

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            raise RuntimeError(f"metrics speak http, not {scope['type']}")
        status, headers, body = await self._answer(scope)
        headers = {**headers, "content-length": str(len(body)), "cache-control": "no-store"}
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            }
        )
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: Scope) -> Answer:
        path = scope["path"]
        if path not in ("/metrics", "/healthz", "/readyz"):
            hint = "GET /metrics, /healthz or /readyz"
            return _refusal(problem(404, "not_found", f"there is no {path[:200]}", hint))
        if scope["method"] not in ("GET", "HEAD"):
            return _refusal(
                problem(405, "bad_method", f"{path} can only be read", "use GET"), allow="GET, HEAD"
            )
        if path != "/metrics":
            takes_messages, troubles = self._condition()
            # Alive is alive, or whoever restarts what is ill would restart a full disk for ever.
            status = 200 if takes_messages or path == "/healthz" else 503
            lines = ["degraded" if troubles else "ok", *troubles]
            return (
                status,
                {"content-type": "text/plain; charset=utf-8"},
                "".join(f"{x}\n" for x in lines).encode(),
            )
        try:
            text = await self._scrape(_token(scope))
            caller_known(scope)
        except BusError as error:
            return _refusal(problem_of(error))
        return 200, {"content-type": TEXT_FORMAT}, text.encode()

    async def _scrape(self, token: str) -> str:
        try:
            async with asyncio.timeout(WITHIN), Bus(self._dial, token, name="metrics") as bus:
                return await bus.terminal.metrics()
        except TimeoutError:
            raise TimedOut(f"no answer from the terminal within {WITHIN:.0f} s") from None


def _token(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization" and (token := bearer_token(value.decode("latin-1"))):
            return token
    raise Unauthenticated("metrics want a token", hint="Authorization: Bearer TOKEN, with the scope observe")


def _refusal(refusal: Problem, **headers: str) -> Answer:
    return refusal.status, {**refusal.headers, **headers}, refusal.encode()
