"""An event gateway in a process of ours: on its own, or beside a terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.gateways.event_topics import event_gateway
from landbridge.gateways.events import EventGateway, EventOptions
from landbridge.node.plan import EventsPlan

#: The subject of the credential that a gateway in the process of a terminal gets.
SUBJECT = "events"
#: Seconds; a fresh credential is made at every connection.
TOKEN_LIFE = 86400.0


@asynccontextmanager
async def listening(
    plan: EventsPlan, bus: Bus | None, options: EventOptions | None = None
) -> AsyncIterator[EventGateway]:
    """A gateway on the ports of the plan. ``bus``: None where there is no terminal."""
    async with event_gateway(bus, plan.topic, options) as gateway:
        await gateway.listen(plan.host, plan.event_port, plan.client_port)
        yield gateway


@asynccontextmanager
async def beside(terminal: Terminal, plan: EventsPlan, dial: Dial) -> AsyncIterator[EventGateway]:
    """A gateway in the process of a terminal, for ``up --events``. The gateway is a client like any other,
    with a credential of its own; ``dial`` reaches the terminal in memory."""
    # Creating the topics takes admin; a gateway without topics only reports what goes wrong.
    scopes = ["publish:$status"] if plan.topic is None else ["admin"]

    def token() -> str:
        return terminal.issue_token(SUBJECT, scopes, TOKEN_LIFE)

    async with Bus(dial, token, name=SUBJECT) as bus, listening(plan, bus) as gateway:
        yield gateway
