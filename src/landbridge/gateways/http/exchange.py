"""One request by HTTP and its answer, over ASGI: headers, parameters and the body, all read with limits."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from landbridge.core.wording import did_you_mean
from landbridge.errors import BadRequest, TooLarge
from landbridge.protocol.http import Problem, bearer_token

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
HeaderPair: TypeAlias = tuple[bytes, bytes]

JSON = b"application/json"
#: Parameters of one query.
MOST_PARAMETERS = 64
#: Request headers of our own begin with this.
OWN = b"landbridge-"
#: Headers of which a second one would be read by one program and passed over by another.
_ONCE = frozenset({b"authorization", b"content-type", b"idempotency-key", b"traceparent", b"last-event-id"})
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class ClientGone(Exception):
    """The client has ended the connection before its answer."""


class HttpRequest:
    """A request under way."""

    __slots__ = ("_body_end", "_receive", "_send", "headers", "is_answered", "method", "path_names", "scope")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self.method: str = scope["method"]
        pairs: list[HeaderPair] = scope["headers"]
        #: By name in lower case. Of a header that was sent twice, the last one.
        self.headers: dict[bytes, bytes] = dict(pairs)
        if len(self.headers) != len(pairs):
            _check_once(pairs)
        #: What stands in the path in place of the names in braces.
        self.path_names: dict[str, str] = {}
        #: The status line has been sent: no other answer can follow.
        self.is_answered = False
        #: The whole body was read.
        self._body_end = False

    # -- what the client says ----------------------------------------------------------------------

    @property
    def token(self) -> str:
        """The bearer token; "" where there is none."""
        return bearer_token(self.headers.get(b"authorization", b"").decode("latin-1"))

    @property
    def content_type(self) -> str:
        """The media type of the body without its parameters, in lower case."""
        said = self.headers.get(b"content-type", b"").decode("latin-1")
        return said.partition(";")[0].strip().lower()

    @property
    def trace_id(self) -> str:
        """The trace that the request belongs to (W3C traceparent), or one of its own."""
        said = _TRACEPARENT.fullmatch(self.headers.get(b"traceparent", b"").decode("latin-1"))
        return said[1] if said else secrets.token_hex(16)

    def query(self, known: Iterable[str]) -> dict[str, str]:
        """The parameters of the query. One that isn't known is refused, and so is one that is given twice."""
        raw: bytes = self.scope["query_string"]
        if not raw:
            return {}
        try:
            text = raw.decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_PARAMETERS, errors="strict")
        except ValueError as error:
            raise BadRequest(f"the query can't be read: {error}") from None
        found: dict[str, str] = {}
        names = tuple(known)
        for name, value in pairs:
            if name not in names:
                takes = f"it takes {', '.join(names) or 'none'}"
                raise BadRequest(
                    f"there is no parameter {name[:60]!r} here", hint=did_you_mean(name, names, takes)
                )
            if name in found:
                raise BadRequest(f"the parameter {name} is given twice")
            found[name] = value
        return found

    def own_headers(self, known: Mapping[bytes, Any], prefix: bytes = b"") -> None:
        """Refuse a header of ours that the request doesn't take: its writer expects something of it."""
        for name in self.headers:
            if name.startswith(OWN) and name not in known and not (prefix and name.startswith(prefix)):
                names = [one.decode() for one in known]
                said = name.decode("latin-1")
                raise BadRequest(
                    f"there is no header {said[:60]!r} here",
                    hint=did_you_mean(said, names, f"it takes {', '.join(names) or 'none'}"),
                )

    async def body(self, most: int, what: str = "a body") -> bytes:
        """Read the body, up to a size. It is not read further where it is larger."""
        if (coding := self.headers.get(b"content-encoding", b"identity").lower()) != b"identity":
            raise BadRequest(
                f"a body that is packed: {coding.decode('latin-1')[:40]!r}", hint="send it as it is"
            )
        said = self.headers.get(b"content-length", b"")
        size = int(said) if said.isdigit() else 0
        parts: list[bytes] = []
        if size <= most:
            size = 0
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                if size > most:
                    break
                if not message.get("more_body"):
                    self._body_end = True
                    return b"".join([*parts, part]) if parts else part
                parts.append(part)
        raise TooLarge(f"{what} of {size} bytes or more, the terminal takes {most}")

    async def gone(self) -> None:
        """Return when the client has ended the connection. What it still sends is thrown away."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return

    # -- the answer --------------------------------------------------------------------------------

    async def answer(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes = JSON,
        headers: Iterable[HeaderPair] = (),
    ) -> None:
        """Send the whole answer."""
        said: list[HeaderPair] = [(b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
        if body:
            said.append((b"content-type", content_type))
        self.is_answered = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*said, *headers]})
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, refusal: Problem, headers: Iterable[HeaderPair] = ()) -> None:
        """Answer by a problem document."""
        body = refusal.encode()
        said = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
        said.append((b"content-length", b"%d" % len(body)))
        self.is_answered = True
        await self._send(
            {"type": "http.response.start", "status": refusal.status, "headers": [*said, *headers]}
        )
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self, status: int, headers: list[HeaderPair]) -> None:
        """Begin an answer whose parts follow by ``send_part``."""
        self.is_answered = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send_part(self, part: bytes, *, more: bool = True) -> None:
        """Send a part of the answer. Returns when the connection takes more."""
        await self._send({"type": "http.response.body", "body": part, "more_body": more})


def _check_once(pairs: list[HeaderPair]) -> None:
    seen: set[bytes] = set()
    for name, _ in pairs:
        if name in seen and (name in _ONCE or name.startswith((OWN, b"ce-"))):
            raise BadRequest(f"the header {name.decode('latin-1')[:60]!r} is given twice")
        seen.add(name)


def text_of(value: bytes, name: str) -> str:
    """The text of a header: UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"the header {name} is not UTF-8") from None


def number_of(value: str, name: str, least: float, most: float) -> float:
    """A number of a query, within bounds."""
    try:
        found = float(value)
    except ValueError:
        found = float("nan")
    if not least <= found <= most:
        raise BadRequest(f"{name}={value[:40]}", hint=f"a number from {least:g} to {most:g}")
    return found
