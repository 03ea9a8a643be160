"""What every answer of the console has, and what every request is checked for."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from landbridge.errors import Forbidden

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: Cookies of a request that are looked at.
MOST_COOKIES = 4
#: What answers are; litestar adds the charset to a text.
HTML, JSON = "text/html", "application/json"
#: Nothing from elsewhere, nothing inline, no page of others around it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    # With "no-referrer" browsers would say "Origin: null" of our own forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def guarded(send: Send) -> Send:
    """``send`` with these headers on every answer; nothing is kept by a browser unless the answer says so."""

    async def answer(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            said = list(message.get("headers", ()))
            if not any(name.lower() == b"cache-control" for name, _ in said):
                said.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*said, *HEADERS]}
        await send(message)

    return answer


def header(scope: Mapping[str, Any], name: bytes) -> str:
    """The header of a request; "" where there is none."""
    return next((value.decode("latin-1") for each, value in scope["headers"] if each == name), "")


def check_origin(scope: Mapping[str, Any]) -> None:
    """Raise Forbidden unless a page of this port has sent the request. Ports of one host count as one site
    for cookies, so the cookie alone doesn't show it."""
    origin = header(scope, b"origin")
    try:
        is_own = bool(origin) and urlsplit(origin).netloc == header(scope, b"host")
    except ValueError:  # no URL
        is_own = False
    if not is_own:
        raise Forbidden(
            "this request did not come from a page of the console", hint="use the buttons of the console"
        )


# -- the cookie ----------------------------------------------------------------------------------------


def cookie_name(scope: Mapping[str, Any]) -> str:
    """Terminals of one host have different ports, and browsers send the cookies of all to each. The port is
    the one that the browser knows: nodes behind one address have ports of their own."""
    _, colon, port = header(scope, b"host").rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5:
        port = "443" if scope["scheme"] == "https" else "80"
    return f"landbridge-console-{port}"


def cookies(scope: Mapping[str, Any]) -> list[str]:
    """The values of the console's cookie in a request: the first few, for each is looked up in the store. A
    browser has more than one where others of the host have set it for other paths."""
    name = cookie_name(scope)
    pairs = (part.strip().partition("=") for part in header(scope, b"cookie").split(";"))
    return [value for each, _, value in pairs if each == name][:MOST_COOKIES]


def set_cookie(scope: Mapping[str, Any], value: str, life: int) -> str:
    """The header that gives a browser its cookie; ``life`` 0 takes it away."""
    secure = "; Secure" if scope["scheme"] == "https" else ""
    return f"{cookie_name(scope)}={value}; Path=/; Max-Age={life}; HttpOnly; SameSite=Strict{secure}"


def encode(data: object) -> bytes:
    """As JSON."""
    return json.dumps(data).encode()
