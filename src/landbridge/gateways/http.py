"""Messages by HTTP: ``POST /v1/topics/{topic}/messages`` (sendMessage) stores one, and answers where it is.

A gateway is a client of its terminal: each request shows a bearer token and connects with it, so that rights
are the terminal's to check. The body is the payload, as it came; a JSON body has to be JSON.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal, TypeAlias

import msgspec
from litestar import Litestar, MediaType, Request, Response, post
from litestar.datastructures import CacheControlHeader, State
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, License, SecurityScheme
from litestar.params import FromPath, FromQuery

import landbridge
from landbridge.client.bus import Bus, Receipt
from landbridge.client.link import Dial
from landbridge.errors import BadPayload, BadRequest, BusError, TooLarge, Unauthenticated, UnknownTopic
from landbridge.gateways import metrics

Until: TypeAlias = Literal["stored", "arrived", "acked"]
#: Seconds: a message that is refused for now (backlog full) is tried again for so long; and the longest that
#: a request waits for its message to arrive, or to be acked.
PATIENCE, LONGEST_WAIT = 5.0, 60.0
#: Bytes of a body. The terminal's own limit, max_payload, is smaller unless somebody has raised it far.
LONGEST_BODY = 64 << 20
#: Names of our own in requests.
KEY, ID = "landbridge-key", "landbridge-id"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str


_PROBLEM = ResponseSpec(
    Problem, description="Refused.", generate_examples=False, media_type="application/problem+json"
)


@post(
    "/v1/topics/{topic:str}/messages",
    operation_id="sendMessage",
    summary="Send a message: the body is its payload",
    description=(
        "The headers Landbridge-Key and Landbridge-Id give the message a key and an id of your own; "
        "Content-Type is kept as its header content-type."
    ),
    security=[{"token": []}],
    responses=dict.fromkeys((400, 401, 403, 404, 413, 429, 503), _PROBLEM),
)
async def send_message(
    request: Request[Any, Any, Any],
    topic: FromPath[str],
    until: FromQuery[Until] = "stored",
    within: FromQuery[float] = 30.0,
) -> Receipt:
    if not 0 < within <= LONGEST_WAIT:
        raise BadRequest(f"within={within} s", hint=f"above 0, at most {LONGEST_WAIT:.0f} seconds")
    token = _bearer(request)
    payload = await request.body()
    headers = _headers(request, payload)
    dial: Dial = request.app.state.dial
    async with Bus(dial, token, name="http", patience=PATIENCE) as bus:
        return await bus.publish(
            topic,
            payload,
            key=request.headers.get(KEY),
            id=request.headers.get(ID),
            headers=headers,
            until=until,
            timeout=within,
        )


def _bearer(request: Request[Any, Any, Any]) -> str:
    # RFC 9110 11.1: the scheme's case doesn't matter.
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(token.strip()) <= metrics.LONGEST_TOKEN:
        raise Unauthenticated(
            "sending wants a token", hint="Authorization: Bearer TOKEN, with the scope publish:TOPIC"
        )
    return token.strip()


def _headers(request: Request[Any, Any, Any], payload: bytes) -> dict[str, str]:
    """The message's. A body that says it is JSON and isn't would trouble every consumer."""
    said = request.headers.get("content-type", "")
    if said.partition(";")[0].strip().lower() == "application/json":
        try:
            msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadPayload(f"the body is not JSON: {error}") from None
    return {"content-type": said} if said else {}


def app(dial: Dial) -> Litestar:
    """``dial`` reaches the terminal, as for a Bus."""
    return Litestar(
        route_handlers=[send_message],
        state=State({"dial": dial}),
        request_max_body_size=LONGEST_BODY,
        cache_control=CacheControlHeader(no_store=True),
        exception_handlers={BusError: _of_bus_error, HTTPException: _of_http_exception},
        openapi_config=OpenAPIConfig(
            title="Landbridge terminal",
            version=landbridge.__version__,
            description="Messages by HTTP.",
            license=License(name="Apache-2.0", identifier="Apache-2.0"),
            path="/v1/messages/openapi.json",
            render_plugins=[JsonRenderPlugin(path="/", media_type=MediaType.JSON)],
            components=Components(
                security_schemes={"token": SecurityScheme(type="http", scheme="bearer", bearer_format="JWT")}
            ),
        ),
        logging_config=None,
        debug=False,
    )


def _of_bus_error(_: Request[Any, Any, Any], error: BusError) -> Response[bytes]:
    # Where HTTP has a status of its own for what the metrics never meet.
    match error:
        case UnknownTopic():
            return _response(metrics.problem(404, error.code, str(error), error.hint))
        case TooLarge():
            return _response(metrics.problem(413, error.code, str(error), error.hint))
        case _:
            return _response(metrics.problem_of(error))


def _of_http_exception(_: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    codes = {400: "bad_request", 404: "not_found", 405: "bad_method", 413: "too_large"}
    detail = error.detail
    for entry in getattr(error, "extra", None) or []:
        if isinstance(entry, dict):
            detail = f"{entry.get('key', '?')}: {entry.get('message', '')}"
    hint = "POST /v1/topics/TOPIC/messages"
    response = _response(
        metrics.problem(error.status_code, codes.get(error.status_code, "bad_request"), detail, hint)
    )
    response.headers.update(error.headers or {})
    return response


def _response(found: metrics.Response) -> Response[bytes]:
    headers = {name: value for name, value in found.headers.items() if name != "content-type"}
    return Response(
        found.body,
        status_code=HTTPStatus(found.status),
        media_type=found.headers["content-type"],
        headers={**headers, "cache-control": "no-store"},
    )
