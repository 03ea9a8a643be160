"""Pages of other web sites (CORS): off by default, and for named origins only. A bearer token is needed
anyway; no cookie is ever looked at."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from landbridge.errors import BadRequest
from landbridge.gateways.http.exchange import HeaderPair, HttpRequest, Scope, Send

#: Seconds for which a browser may remember what it was allowed.
REMEMBERED = b"600"
_SHOWN = (
    b"Location, Retry-After, Landbridge-Repeated, Landbridge-Receipt, Landbridge-Offset, "
    b"Landbridge-Id, Landbridge-Paused"
)


class CrossOrigin:
    """The origins that are allowed; false where there is none."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(_origin(one) for one in origins)

    def __bool__(self) -> bool:
        return bool(self._origins)

    def allows(self, scope: Scope) -> bool:
        """May the page that asks do so? Programs that are no browsers name no origin, and may; so may pages
        of this port itself."""
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin is None:
            return True
        host = headers.get(b"host", b"").lower()
        said = urlsplit(origin.decode("latin-1").lower())
        return origin.lower() in self._origins or (bool(host) and said.netloc.encode() == host)

    def is_preflight(self, request: HttpRequest) -> bool:
        """Does a browser ask what it may do, for a page of an origin that is allowed?"""
        asks = b"access-control-request-method" in request.headers
        return asks and request.headers.get(b"origin", b"").lower() in self._origins

    async def answer_preflight(self, request: HttpRequest) -> None:
        """Allow what a page asks for."""
        headers: list[HeaderPair] = [
            (b"access-control-allow-methods", b"GET, POST, PATCH, PUT, DELETE"),
            (b"access-control-max-age", REMEMBERED),
        ]
        if asked := request.headers.get(b"access-control-request-headers"):
            headers.append((b"access-control-allow-headers", asked))
        await request.answer(204, headers=headers)

    def answering(self, scope: Scope, send: Send) -> Send:
        """Let the page read the answers that go out by ``send``, where its origin is allowed."""
        origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")

        async def allowed(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], (b"vary", b"origin")]
                if origin.lower() in self._origins:
                    headers += [
                        (b"access-control-allow-origin", origin),
                        (b"access-control-expose-headers", _SHOWN),
                    ]
                message = {**message, "headers": headers}
            await send(message)

        return allowed


def _origin(text: str) -> bytes:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
        raise BadRequest(f"{text[:60]!r} is not an origin", hint="https://console.example.com")
    return f"{parts.scheme}://{parts.netloc}".lower().encode()
