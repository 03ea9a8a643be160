"""Errors as HTTP says them: problem documents (RFC 9457), with the code and the hint that errors have
everywhere on the bus.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from litestar import Response
from litestar.connection import Request
from litestar.exceptions import HTTPException, ValidationException

from landbridge import errors
from landbridge.errors import BusError

log = structlog.get_logger("landbridge.registry")

MEDIA_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str


#: The most special class first.
_STATUS: tuple[tuple[type[BusError], int], ...] = (
    (errors.Unauthenticated, 401),
    (errors.Forbidden, 403),
    (errors.TicketRefused, 403),
    (errors.TicketExpired, 410),
    (errors.UnknownCustomer, 404),
    (errors.UnknownTerminal, 404),
    (errors.UnknownGroup, 404),
    (errors.UnknownTopic, 404),
    (errors.UnknownPlan, 404),
    (errors.NameTaken, 409),
    (errors.GroupExists, 409),
    (errors.TopicExists, 409),
    (errors.StillHolds, 409),
    (errors.TooLarge, 413),
    (errors.LimitReached, 429),
    (errors.Unavailable, 503),
    (errors.StoreFull, 503),
    (errors.Misuse, 400),
    (errors.PeerFault, 400),
)
#: Codes of what HTTP itself refuses.
_CODES = {400: "bad_request", 404: "not_found", 405: "bad_method", 413: "too_large"}


def of_bus_error(_: Request[Any, Any, Any], error: BusError) -> Response[Problem]:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    response = _response(status, error.code, str(error), error.hint)
    if status == 401:
        # RFC 9110 15.5.2: a 401 says how to authenticate.
        response.headers["www-authenticate"] = "Bearer"
    if status == 429:
        response.headers["retry-after"] = "60"
    return response


def of_http_exception(_: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    detail = error.detail
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        detail = "; ".join(map(_text, error.extra))
    response = _response(error.status_code, _CODES.get(error.status_code, "internal"), detail, "")
    response.headers.update(error.headers or {})
    return response


def _text(entry: dict[str, str]) -> str:
    if entry.get("key") == "data":
        return "the body is missing"
    return f"{entry.get('key', '?')}: {entry.get('message', '')}"


def of_crash(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    # The text of an unforeseen error may hold anything: it goes to the log, not to whoever asks.
    log.error("request crashed", method=request.method, path=request.scope["path"], exc_info=error)
    return _response(500, BusError.code, "the registry failed", "see its log")


def _response(status: int, code: str, detail: str, hint: str) -> Response[Problem]:
    problem = Problem(
        type=f"urn:landbridge:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        hint=hint,
    )
    return Response(problem, status_code=status, media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})
