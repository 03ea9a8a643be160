"""What all HTTP ports of the product share: bearer tokens, and refusals as problem documents (RFC 9457).

The status of a refusal comes from the error itself (``errors.py``). ``code`` and ``hint`` are members of our
own: an error has them everywhere on the bus.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from landbridge.errors import BadRequest, BusError, InvalidMessage, ServiceFailed, TooLarge

MEDIA_TYPE = "application/problem+json"
#: Codes of refusals that HTTP itself makes, by status.
_CODES = {400: BadRequest.code, 404: "not_found", 405: "bad_method", 413: TooLarge.code}
#: Characters of a token: as many as the first frame of a connection can carry.
_LONGEST_TOKEN = 8192


def bearer_token(authorization: str) -> str:
    """Return the token of an ``Authorization`` header; "" where it has none, or one that is too long."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    # RFC 9110 11.1: the scheme's case doesn't matter.
    return token if scheme.lower() == "bearer" and len(token) <= _LONGEST_TOKEN else ""


#: The one algorithm of RFC 9530 that a digest is read of.
_SHA_256 = "sha-256=:"


def content_digest(digest: bytes) -> str:
    """Return the header ``Content-Digest`` (RFC 9530) of a body with this SHA-256."""
    return f"{_SHA_256}{base64.b64encode(digest).decode()}:"


def digest_in(header: str) -> bytes:
    """Return the SHA-256 in a header ``Content-Digest``; b"" where there is none."""
    for entry in header.split(","):
        entry = entry.strip()
        if entry.startswith(_SHA_256) and entry.endswith(":"):
            try:
                return base64.b64decode(entry[len(_SHA_256) : -1], validate=True)
            except ValueError:
                return b""
    return b""


#: Name of the ASGI extension by which an application tells its port that it has let a caller in.
LET_IN = "landbridge.let_in"


def caller_known(scope: Mapping[str, Any]) -> None:
    """Tell the port that the caller of a request has shown a good credential: it is no stranger any more."""
    extensions = scope.get("extensions") or {}
    if LET_IN in extensions:
        extensions[LET_IN]()


#: Name of the ASGI extension by which an application cuts a connection whose peer takes nothing.
CUT = "landbridge.cut"


def cut_caller(scope: Mapping[str, Any]) -> None:
    """Have the port cut a connection at once, with what its peer has not taken."""
    extensions = scope.get("extensions") or {}
    if CUT in extensions:
        extensions[CUT]()


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a refusal. ``detail`` is what happened, ``hint`` what to do about it."""

    # RFC 9457 3.1: every member may be missing; without these two a reader can't tell one error from another.
    code: str
    detail: str
    hint: str = ""
    type: str = "about:blank"
    title: str = ""
    status: int = 0
    #: The trace that the request belonged to; empty where the port follows no traces.
    trace_id: str = ""
    #: Who failed: the bus, or the service that answered the request. The code is that side's own.
    source: Literal["bus", "service"] = "bus"
    #: The name of the service that failed.
    service: str | msgspec.UnsetType = msgspec.UNSET
    #: Which message of the request is refused, from 0, and the JSON pointer of its field, where it is one.
    index: int | msgspec.UnsetType = msgspec.UNSET
    field: str | msgspec.UnsetType = msgspec.UNSET

    def encode(self) -> bytes:
        """Return the body as JSON."""
        return msgspec.json.encode(self)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer, its content type included."""
        headers = {"content-type": MEDIA_TYPE, "cache-control": "no-store"}
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"  # RFC 9110 15.5.2: a 401 says how to authenticate
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            headers["retry-after"] = "60"
        if self.status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers["retry-after"] = "2"
        return headers


def problem(status: int, code: str, detail: str, hint: str = "") -> Problem:
    """Return the problem document with its type and title filled in."""
    return Problem(
        type=f"urn:landbridge:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        hint=hint,
    )


def problem_of(error: BusError) -> Problem:
    """Return the problem document of an error of the bus, or of a service's own failure."""
    if isinstance(error, ServiceFailed):
        code = error.service_code
        return Problem(
            type=f"urn:landbridge:service-error:{code}",
            title=_phrase(error.status),
            status=error.status,
            detail=str(error),
            code=code,
            hint=error.hint,
            source="service",
            service=error.service,
        )
    refusal = problem(error.http_status, error.code, str(error), error.hint)
    if isinstance(error, InvalidMessage):
        return msgspec.structs.replace(refusal, index=error.index, field=error.field)
    return refusal


def _phrase(status: int) -> str:
    """The reason phrase of a status; a service may give one that has none."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Service Error"


def problem_of_http(status: int, detail: str, fields: object = None, hint: str = "") -> Problem:
    """Return the problem document of a refusal that HTTP itself makes: no such path, a body above the limit.

    ``fields`` is what a web framework found wrong, a list of ``{"key": …, "message": …}`` if anything."""
    entries = fields if isinstance(fields, list) else []
    wrong = [_wrong(entry) for entry in entries if isinstance(entry, dict)]
    code = _CODES.get(status, BadRequest.code if status < 500 else BusError.code)
    return problem(status, code, "; ".join(wrong) or detail, hint)


def _wrong(entry: dict[str, str]) -> str:
    if entry.get("key") == "data":
        return "the body is missing"
    return f"{entry.get('key', '?')}: {entry.get('message', '')}"
