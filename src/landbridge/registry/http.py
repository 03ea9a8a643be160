"""The registry's HTTP: an ASGI application, everything under ``/v1``, described by ``/v1/openapi.json``.

Whoever makes the application opens and closes the registry, so that it can share a port with others.
"""

from __future__ import annotations

from typing import Any

import structlog
from litestar import Litestar, MediaType, Request, Response
from litestar.datastructures import CacheControlHeader, State
from litestar.exceptions import HTTPException, NotFoundException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, License, SecurityScheme

import landbridge
from landbridge.errors import BusError
from landbridge.protocol.http import MEDIA_TYPE, Problem, problem, problem_of, problem_of_http
from landbridge.registry import routes
from landbridge.registry.call import RegistryCall, note_refusal
from landbridge.registry.registry import Registry

log = structlog.get_logger("landbridge.registry")

NO_PATH = "the paths are in /v1/openapi.json; of a terminal's HTTP port in /docs"


def app(registry: Registry) -> Litestar:
    """Return the application of a registry."""
    return Litestar(
        route_handlers=routes.ALL,
        state=State({"registry": registry}),
        request_class=RegistryCall,
        request_max_body_size=registry.limits.max_body,
        # Answers hold secrets, and a request that is refused now may be allowed in a second.
        cache_control=CacheControlHeader(no_store=True),
        exception_handlers={
            BusError: _of_bus_error,
            HTTPException: _of_http_exception,
            Exception: _of_crash,
        },
        after_exception=[note_refusal],
        openapi_config=_openapi(),
        logging_config=None,
        debug=False,
    )


def _openapi() -> OpenAPIConfig:
    def header(name: str, text: str) -> SecurityScheme:
        return SecurityScheme(type="apiKey", name=name, security_scheme_in="header", description=text)

    digest = "sha-256=:base64: of the body (RFC 9530); not needed without a body"
    proof = "Ed25519 over the label, the terminal, METHOD PATH?QUERY, time, nonce and SHA-256 of the body"
    return OpenAPIConfig(
        title="Landbridge registry",
        version=landbridge.__version__,
        description="Customers, terminals, terminal groups, topics, their keys and tickets.",
        license=License(name="Apache-2.0", identifier="Apache-2.0"),
        path="/v1/openapi.json",
        # The document alone: a page that shows it would load scripts from other hosts.
        render_plugins=[JsonRenderPlugin(path="/", media_type=MediaType.JSON)],
        components=Components(
            security_schemes={
                "credential": SecurityScheme(type="http", scheme="bearer", bearer_format="lbac1"),
                "terminal": header("Landbridge-Terminal", "The terminal's id."),
                "timestamp": header("Landbridge-Timestamp", "Microseconds since 1970, right to 30 s."),
                "nonce": header("Landbridge-Nonce", "16 random bytes, base64, used once."),
                "proof": header("Landbridge-Proof", f"base64; {proof}."),
                "digest": header("Content-Digest", f"{digest}."),
            }
        ),
    )


def _of_bus_error(_: Request[Any, Any, Any], error: BusError) -> Response[Problem]:
    return _response(problem_of(error))


def _of_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    if isinstance(
        error, NotFoundException
    ):  # also of a terminal's HTTP port: what it doesn't know is asked here
        return _response(problem(404, "not_found", f"there is no {request.scope['path'][:200]}", NO_PATH))
    response = _response(problem_of_http(error.status_code, error.detail, error.extra))
    response.headers.update(error.headers or {})
    return response


def _of_crash(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    # The text of an unforeseen error may hold a secret: it goes to the log, not into the answer.
    log.error("request crashed", method=request.method, path=request.scope["path"], exc_info=error)
    return _response(problem(500, BusError.code, "the registry failed", "see its log"))


def _response(refusal: Problem) -> Response[Problem]:
    return Response(refusal, status_code=refusal.status, media_type=MEDIA_TYPE, headers=refusal.headers)
