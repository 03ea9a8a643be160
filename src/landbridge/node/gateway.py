"""The HTTP gateway in a process of its own: ``landbridge http``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from landbridge.client.context import Context
from landbridge.client.wire import dial_of
from landbridge.node import logs
from landbridge.node.assembly import MOST_REQUESTS, OTHER_FILES, SitePort, allow_files, signals
from landbridge.node.http_port import MOST_STRANGERS, HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.site import Site


class GatewayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to run."""

    #: Where the terminal is. Its token is not used: each request brings its own.
    terminal: Context
    host: str
    port: int
    tls_cert: Path | None
    tls_key: Path | None
    #: Web sites whose pages may use the gateway.
    origins: list[str]


async def serve(plan: GatewayPlan, ready: Callable[[str], None]) -> None:
    """Start the gateway, call ``ready`` with its address, and serve until SIGINT or SIGTERM."""
    endpoint = Endpoint(plan.host, plan.tls_cert, plan.tls_key)
    tls = endpoint.tls()
    logs.take_over(asyncio.get_running_loop())
    allow_files(MOST_REQUESTS + MOST_STRANGERS + OTHER_FILES)
    with signals() as stop:
        site = Site(dial_of(plan.terminal), origins=plan.origins)
        port = HttpPort(
            site,
            endpoint,
            plan.port,
            tls,
            most=MOST_REQUESTS,
            hint="give --port another number",
            web_sockets=True,
        )
        running = SitePort(site, port)
        try:
            ready(running.url)
            await stop.wait()
        finally:
            await running.close()
