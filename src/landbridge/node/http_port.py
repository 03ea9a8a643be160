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
from landbridge.node.listening import Endpoint

log = structlog.get_logger("landbridge.http")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the process handles signals itself


class HttpPort:
    """Serves ``app`` from now on. ``most``: requests and connections at a time. ``hint``: what the user
    can do if the port is taken."""

    def __init__(
        self, app: Any, endpoint: Endpoint, port: int, tls: ssl.SSLContext | None, *, most: int, hint: str
    ) -> None:
        host = endpoint.host
        try:
            # Bound here: a port that is taken raises an error of ours, and from now on connections can wait.
            self._socket = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise TerminalUnreachable(f"can't listen on {host}:{port}: {error.strerror}", hint=hint) from None
        # asyncio does this only for sockets that name their protocol, which create_server's don't: an answer
        # in two writes would wait 40 ms for the peer's delayed ack. Connections inherit it.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = endpoint.url("http", self._socket.getsockname()[1])
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=most,
            timeout_graceful_shutdown=2,
        )
        config.load()
        # Our context, not one that uvicorn makes from files: it follows when a certificate is renewed.
        config.ssl = tls
        self._server = _Server(config)
        self._task = asyncio.ensure_future(self._server.serve([self._socket]))
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("http failed", exc_info=task.exception())

    async def close(self) -> None:
        self._server.should_exit = True
        await asyncio.wait([self._task])
        self._socket.close()
