"""``landbridge http``: the HTTP gateway alone, for a terminal that runs elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from landbridge.cli import output
from landbridge.cli.loop import run
from landbridge.cli.options import (
    CertificateFile,
    ContextName,
    KeyFile,
    ListenOn,
    LogLevel,
    flag,
    option,
    port,
)

if TYPE_CHECKING:
    from landbridge.node.gateway import GatewayPlan


class GatewayReady(msgspec.Struct, frozen=True):
    """What runs. Printed as JSON."""

    url: str
    #: Where the terminal is.
    terminal: str
    pid: int


def http(
    port: int = port("Port to listen on; 0 takes a free one.", value=7480),
    host: ListenOn = "127.0.0.1",
    tls_cert: CertificateFile = None,
    tls_key: KeyFile = None,
    origin: list[str] | None = option(
        "Let pages of this web site use it, e.g. https://console.example.com. Repeatable.", metavar="ORIGIN"
    ),
    socketio: bool = flag("Serve Socket.IO, too.", "--socketio"),
    context: ContextName = None,
    log_level: LogLevel = "info",
) -> None:
    """Serve a terminal by HTTP, until Ctrl-C or SIGTERM. 'landbridge up' does so by itself, on port 7480.

    The gateway has no credential of its own: every request shows a token, and the terminal decides.

    Examples:
      landbridge http --port 8080
      landbridge http --context paris --origin https://console.example.com
      landbridge http --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    from landbridge.client.context import resolve
    from landbridge.node.gateway import GatewayPlan

    plan = GatewayPlan(
        terminal=resolve(None, None, context, None),
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        origins=origin or [],
        socketio=socketio,
    )
    run(_serve(plan))


async def _serve(plan: GatewayPlan) -> None:
    from landbridge.node import gateway

    await gateway.serve(plan, lambda url: _announce(GatewayReady(url, plan.terminal.url, os.getpid())))


def _announce(ready: GatewayReady) -> None:
    facts = {"http": ready.url, "terminal": ready.terminal, "docs": f"{ready.url}/docs"}
    output.emit(ready, lambda _: output.facts(facts, width=9))
