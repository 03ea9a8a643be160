"""An HTTP port, in this loop: binds at once, serves an ASGI application, ends in good order."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
import uvicorn

from landbridge.errors import TerminalUnreachable
from landbridge.node.http_connection import HEAD_WITHIN, HttpConnection
from landbridge.node.listening import Endpoint
from landbridge.transport.listener import Listener
from landbridge.transport.strangers import Strangers

log = structlog.get_logger("landbridge.http")


#: Connections of callers that no application has let in yet: of one address, and in all.
MOST_STRANGERS_EACH, MOST_STRANGERS = 100, 1000


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the process handles signals itself

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []  # the port's listener takes the connections
        self.started = True


class HttpPort:
    """Serves ``app`` from now on. ``most``: requests at a time. ``hint``: what the user can do if the port
    is taken. ``web_sockets``: does the application serve WebSockets?"""

    def __init__(
        self,
        app: Any,
        endpoint: Endpoint,
        port: int,
        tls: ssl.SSLContext | None,
        *,
        most: int,
        hint: str,
        web_sockets: bool = False,
    ) -> None:
        host = endpoint.host
        try:
            # A port that is taken raises an error of ours.
            bound = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise TerminalUnreachable(f"can't listen on {host}:{port}: {error.strerror}", hint=hint) from None
        self.url = endpoint.url("http", bound.getsockname()[1])
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",  # a connection makes its own, see HttpConnection
            proxy_headers=False,  # anybody can write them, and who asks is counted by its address
            ws_per_message_deflate=False,  # what a peer sends would grow beyond what was counted
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        config.load()
        self._server = _Server(config)
        self._strangers = Strangers(MOST_STRANGERS_EACH, MOST_STRANGERS)
        # Our TLS context, not one that uvicorn makes from files: it follows when a certificate is renewed.
        self._listener = Listener(
            bound,
            lambda stranger: HttpConnection(
                config, self._server.server_state, self._strangers, stranger, most, web_sockets=web_sockets
            ),
            self._strangers,
            tls=tls,
            within=HEAD_WITHIN,
        )
        self._task = asyncio.ensure_future(self._server.serve())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("http failed", exc_info=task.exception())

    async def close(self) -> None:
        """Take no more connections, and end those there are when they are answered."""
        self._listener.close()
        self._server.should_exit = True
        await asyncio.wait([self._task])
