"""The registry's door: an ASGI application, everything under ``/v1``, described by ``/v1/openapi.json``.

It serves a registry that somebody else opens and closes, so it can stand beside other applications on one
port.
"""

from __future__ import annotations

from litestar import Litestar, MediaType
from litestar.datastructures import CacheControlHeader, State
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, License, SecurityScheme

import landbridge
from landbridge.errors import BusError
from landbridge.registry import problem, routes
from landbridge.registry.call import Call, note_refusal
from landbridge.registry.registry import Registry


def app(registry: Registry) -> Litestar:
    return Litestar(
        route_handlers=routes.ALL,
        state=State({"registry": registry}),
        request_class=Call,
        request_max_body_size=registry.limits.max_body,
        # Answers hold secrets, and what is refused now may be allowed in a second.
        cache_control=CacheControlHeader(no_store=True),
        exception_handlers={
            BusError: problem.of_bus_error,
            HTTPException: problem.of_http_exception,
            Exception: problem.of_crash,
        },
        after_exception=[note_refusal],
        openapi_config=_openapi(),
        logging_config=None,
        debug=False,
    )


def _openapi() -> OpenAPIConfig:
    def header(name: str, text: str) -> SecurityScheme:
        return SecurityScheme(type="apiKey", name=name, security_scheme_in="header", description=text)

    proof = "Ed25519 over the label, the terminal, METHOD PATH?QUERY, time, nonce and SHA-256 of the body"
    return OpenAPIConfig(
        title="Landbridge registry",
        version=landbridge.__version__,
        description="Customers, terminals, terminal groups, topics, their keys and tickets.",
        license=License(name="Apache-2.0", identifier="Apache-2.0"),
        path="/v1/openapi.json",
        # The document alone: a page that shows it would load its scripts from elsewhere.
        render_plugins=[JsonRenderPlugin(path="/", media_type=MediaType.JSON)],
        components=Components(
            security_schemes={
                "credential": SecurityScheme(type="http", scheme="bearer", bearer_format="lbac1"),
                "terminal": header("Landbridge-Terminal", "The terminal's id."),
                "timestamp": header("Landbridge-Timestamp", "Microseconds since 1970, right to 30 s."),
                "nonce": header("Landbridge-Nonce", "16 random bytes, base64, used once."),
                "proof": header("Landbridge-Proof", f"base64; {proof}."),
            }
        ),
    )
