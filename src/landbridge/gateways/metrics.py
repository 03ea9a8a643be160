"""Prometheus over HTTP: ``GET /metrics`` for the bearer of an admin token, ``GET /healthz`` for everybody.

An ASGI application. It holds no credential of its own: each scrape connects to the terminal with the token
that the scraper has shown, asks for the metrics and leaves. Errors are problem documents (RFC 9457).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, TypeAlias

import msgspec

from landbridge.client.bus import Bus
from landbridge.client.link import Dial
from landbridge.errors import (
    BusError,
    Forbidden,
    LimitReached,
    Misuse,
    TimedOut,
    Unauthenticated,
    Unavailable,
)

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Seconds for one scrape, so that a terminal in trouble doesn't gather waiting scrapers.
WITHIN = 10.0
#: What every Prometheus reads.
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
#: What a hello can carry.
LONGEST_TOKEN = 8192


class Response(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    headers: dict[str, str]


class Metrics:
    """``dial`` reaches the terminal, as for a Bus."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"metrics speak http, not {scope['type']}")
        response = await self._respond(scope)
        headers = {**response.headers, "content-length": str(len(response.body)), "cache-control": "no-store"}
        await send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            }
        )
        body = b"" if scope["method"] == "HEAD" else response.body
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, scope: Scope) -> Response:
        path = scope["path"]
        if path not in ("/metrics", "/healthz"):
            return problem(404, "not_found", f"there is no {path[:200]}", "GET /metrics or /healthz")
        if scope["method"] not in ("GET", "HEAD"):
            refused = problem(405, "bad_method", f"{path} can only be read", "use GET")
            return msgspec.structs.replace(refused, headers={**refused.headers, "allow": "GET, HEAD"})
        if path == "/healthz":
            return Response(200, b"ok\n", {"content-type": "text/plain; charset=utf-8"})
        try:
            text = await self._scrape(_bearer(scope))
        except BusError as error:
            return problem_of(error)
        return Response(200, text.encode(), {"content-type": TEXT_FORMAT})

    async def _scrape(self, token: str) -> str:
        try:
            async with asyncio.timeout(WITHIN), Bus(self._dial, token, name="metrics") as bus:
                return str(await bus.call("terminal.metrics"))
        except TimeoutError:
            raise TimedOut(f"no answer from the terminal within {WITHIN:.0f} s") from None


def _bearer(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            # RFC 9110 11.1: the scheme's case doesn't matter.
            if scheme.lower() == "bearer" and 0 < len(token.strip()) <= LONGEST_TOKEN:
                return str(token.strip())
    raise Unauthenticated("metrics want a token", hint="Authorization: Bearer TOKEN, with the scope admin")


def problem_of(error: BusError) -> Response:
    """The answer for an error of the bus."""
    match error:
        case Unauthenticated():
            refused = problem(401, error.code, str(error), error.hint)
            # RFC 9110 15.5.2: a 401 says how to authenticate.
            return msgspec.structs.replace(refused, headers={**refused.headers, "www-authenticate": "Bearer"})
        case Forbidden():
            status = 403
        case LimitReached():
            status = 429
        case Unavailable():
            status = 503
        case Misuse():
            status = 400
        case _:
            status = 500
    return problem(status, error.code, str(error), error.hint)


def problem(status: int, code: str, detail: str, hint: str) -> Response:
    """RFC 9457. ``code`` and ``hint`` are members of our own, as errors have them everywhere on the bus."""
    document = {
        "type": f"urn:landbridge:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "hint": hint,
    }
    return Response(status, msgspec.json.encode(document), {"content-type": "application/problem+json"})
