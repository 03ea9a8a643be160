"""Messages by HTTP: ``POST /v1/topics/{topic}/messages`` (sendMessage) stores a message and answers with its
receipt.

A gateway is a client of its terminal: each request shows a bearer token, and the gateway connects to the
terminal with that token, so the terminal alone decides what the caller may do. The body is the payload,
unchanged; a body of the type application/json has to be JSON.
"""

from __future__ import annotations

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
from landbridge.client.wire import Dial
from landbridge.errors import BadPayload, BadRequest, BusError, TooLarge, Unauthenticated
from landbridge.protocol.http import (
    MEDIA_TYPE,
    Problem,
    bearer_token,
    caller_known,
    problem_of,
    problem_of_http,
)

Until: TypeAlias = Literal["stored", "arrived", "acked"]
#: Seconds in which a publish that is refused for now (backlog full) is repeated.
PATIENCE = 5.0
#: Seconds that a request may wait until its message has arrived or is acked.
LONGEST_WAIT = 60.0
#: Request headers of our own: the message's key and its id.
KEY, ID = "landbridge-key", "landbridge-id"


_PROBLEM = ResponseSpec(Problem, description="Refused.", generate_examples=False, media_type=MEDIA_TYPE)


@post(
    "/v1/topics/{topic:str}/messages",
    operation_id="sendMessage",
    summary="Send a message: the body is its payload",
    description=(
        "The headers Landbridge-Key and Landbridge-Id give the message a key and an id of your own; "
        "Content-Type is kept as its header content-type."
    ),
    security=[{"token": []}],
    responses=dict.fromkeys((400, 401, 403, 404, 409, 413, 429, 503, 504, 507), _PROBLEM),
)
async def send_message(
    request: Request[Any, Any, Any],
    topic: FromPath[str],
    until: FromQuery[Until] = "stored",
    within: FromQuery[float] = 30.0,
) -> Receipt:
    """Store the body of a request as a message, and wait until it has come as far as ``until`` asks."""
    if not 0 < within <= LONGEST_WAIT:
        raise BadRequest(f"within={within} s", hint=f"above 0, at most {LONGEST_WAIT:.0f} seconds")
    token = bearer_token(request.headers.get("authorization", ""))
    if not token:
        raise Unauthenticated(
            "sending wants a token", hint="Authorization: Bearer TOKEN, with the scope publish:TOPIC"
        )
    dial: Dial = request.app.state.dial
    # The terminal has taken the token before the body is read.
    async with Bus(dial, token, name="http", patience=PATIENCE) as bus:
        caller_known(request.scope)
        payload = await _payload(request, bus.max_payload)
        headers = _headers(request, payload)
        return await bus.publish(
            topic,
            payload,
            key=request.headers.get(KEY),
            id=request.headers.get(ID),
            headers=headers,
            until=until,
            timeout=within,
        )


async def _payload(request: Request[Any, Any, Any], most: int) -> bytes:
    """Read the body, up to the size that the terminal takes."""
    parts: list[bytes] = []
    size = request.content_length or 0
    if size <= most:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                break
            parts.append(part)
    if size > most:
        raise TooLarge(
            f"a body of {size} bytes or more, the terminal takes {most}",
            hint="send it in parts, or raise the terminal's limit max_payload",
        )
    return b"".join(parts)


def _headers(request: Request[Any, Any, Any], payload: bytes) -> dict[str, str]:
    """Return the headers of the message. A body that is declared as JSON and isn't would trouble every
    consumer, so it is refused here."""
    said = request.headers.get("content-type", "")
    if said.partition(";")[0].strip().lower() == "application/json":
        try:
            msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadPayload(f"the body is not JSON: {error}") from None
    return {"content-type": said} if said else {}


def app(dial: Dial) -> Litestar:
    """Return the ASGI application. ``dial`` reaches the terminal, as for a Bus."""
    return Litestar(
        route_handlers=[send_message],
        state=State({"dial": dial}),
        request_max_body_size=None,  # the terminal's max_payload counts, see _payload
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
    return _response(problem_of(error))


def _of_http_exception(_: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    hint = "POST /v1/topics/TOPIC/messages"
    response = _response(problem_of_http(error.status_code, error.detail, error.extra, hint))
    response.headers.update(error.headers or {})
    return response


def _response(refusal: Problem) -> Response[bytes]:
    return Response(
        refusal.encode(), status_code=refusal.status, media_type=MEDIA_TYPE, headers=refusal.headers
    )
