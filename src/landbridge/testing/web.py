"""A terminal with its HTTP port for tests: in this process, on any free port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from landbridge.node.assembly import SitePort, dial_to
from landbridge.node.http_port import HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.site import Site
from landbridge.testing.terminal import run_terminal


@asynccontextmanager
async def run_web(*, socketio: bool = False) -> AsyncIterator[tuple[str, str]]:
    """Yields the address of the HTTP port, and a token that may do everything. ``socketio``: with Socket.IO,
    too."""
    async with run_terminal() as terminal:
        site = Site(dial_to(terminal), socketio=socketio)
        port = HttpPort(site, Endpoint("127.0.0.1"), 0, None, most=1000, hint="", web_sockets=True)
        try:
            yield port.url, terminal.issue_token("test", ["admin"], 3600.0)
        finally:
            await SitePort(site, port).close()
