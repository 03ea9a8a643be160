"""The HTTP gateway in a process of its own: ``landbridge http``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from landbridge.client.bus import Bus
from landbridge.client.context import Context
from landbridge.client.wire import Dial, dial_of
from landbridge.core.trust import credential
from landbridge.core.trust.rate import AddressRate
from landbridge.errors import LimitReached, Unauthenticated
from landbridge.node import logs
from landbridge.node.assembly import MOST_REQUESTS, MOST_SOCKETS, OTHER_FILES, SitePort, allow_files, signals
from landbridge.node.http_port import MOST_STRANGERS, HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.site import Site
from landbridge.protocol.operations import SERVICE_TOKEN
from landbridge.transport.strangers import site_of

#: Requests without a token that an address may send in a minute.
MOST_TRADES = 600


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
    #: Serve Socket.IO, too.
    socketio: bool = False


class TokenDesk:
    """Trades credentials for tokens, as the HTTP port of the terminal does. The gateway has no credential of
    its own: it connects with the one that is shown, and the terminal decides."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._rate = AddressRate(MOST_TRADES, 60.0)

    async def answer(self, address: str, operation: str, arguments: dict[str, Any]) -> Any:
        """Answer an operation that needs no token: ``service.token`` is the only one."""
        if operation != SERVICE_TOKEN.name:
            raise Unauthenticated(f"{operation} needs a token")
        if not self._rate.take(time.time_ns() // 1000, site_of((address,))):
            raise LimitReached(
                f"more than {MOST_TRADES} requests a minute without a token from {address[:60]}",
                hint="a token is good for ten minutes: keep it",
            )
        given = SERVICE_TOKEN.read(arguments)
        wrong = Unauthenticated(
            "the service or its credential is wrong, or not accepted",
            hint="it was shown when the service was registered; 'landbridge service rotate' makes another",
        )
        if not given.credential.startswith(credential.SERVICE):
            raise wrong
        bus = Bus(self._dial, given.credential, name="http", patience=0.0)
        try:
            await bus.open()
            return await bus.call(operation, **arguments)
        except Unauthenticated:
            raise wrong from None
        finally:
            await bus.close()


async def serve(plan: GatewayPlan, ready: Callable[[str], None]) -> None:
    """Start the gateway, call ``ready`` with its address, and serve until SIGINT or SIGTERM."""
    endpoint = Endpoint(plan.host, plan.tls_cert, plan.tls_key)
    tls = endpoint.tls()
    logs.take_over(asyncio.get_running_loop())
    allow_files(MOST_REQUESTS + MOST_SOCKETS + MOST_STRANGERS + OTHER_FILES)
    with signals() as stop:
        dial = dial_of(plan.terminal)
        site = Site(
            dial, origins=plan.origins, answer_stranger=TokenDesk(dial).answer, socketio=plan.socketio
        )
        port = HttpPort(
            site,
            endpoint,
            plan.port,
            tls,
            most=MOST_REQUESTS + (MOST_SOCKETS if plan.socketio else 0),
            hint="give --port another number",
            web_sockets=True,
        )
        running = SitePort(site, port)
        try:
            ready(running.url)
            await stop.wait()
        finally:
            await running.close()
