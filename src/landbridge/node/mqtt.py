"""The MQTT gateway beside a terminal, in its process."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

from landbridge.broker.figures import GatewayFigure
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.core.mqtt.session import RETAINED, SESSIONS
from landbridge.core.status import TOPIC
from landbridge.gateways.mqtt.bounds import MqttBounds, Processes
from landbridge.gateways.mqtt.port import MqttPort

#: The subject of the gateway's own credential, and what its own connection calls itself.
SUBJECT = "mqtt"
#: Seconds; a fresh credential is made at every connection.
TOKEN_LIFE = 86400.0


@asynccontextmanager
async def mqtt_of(
    terminal: Terminal, own_dial: Dial, dial: Dial, host: str, port: int, tls: ssl.SSLContext | None
) -> AsyncIterator[tuple[MqttPort, int]]:
    """Serve MQTT while the block lasts. Yields the gateway and its port. ``own_dial`` reaches the terminal
    for the gateway itself, ``dial`` for its clients, whose connections count like those of any program."""
    scopes = ["operate", f"documents:{SESSIONS}", f"documents:{RETAINED}", f"publish:{TOPIC}"]

    def token() -> str:
        return terminal.issue_token(SUBJECT, scopes, TOKEN_LIFE)

    def who(shown: str) -> str:
        return terminal.authority.verify(terminal.broker.clock(), shown).subject

    bounds = partial(_bounds, terminal)
    async with (
        Bus(own_dial, token, name=SUBJECT) as bus,
        MqttPort(bus, dial, who, bounds, terminal.broker.clock, _processes(terminal)) as gateway,
    ):
        bound = await gateway.listen(host, port, tls)
        figures = partial(_figures, gateway)
        terminal.broker.figures.append(figures)
        try:
            yield gateway, bound
        finally:
            terminal.broker.figures.remove(figures)


def _processes(terminal: Terminal) -> Processes | None:
    """The nodes of the terminal; None: it is one process."""
    cluster = terminal.cluster
    if cluster is None:
        return None
    return Processes(
        cluster.me,
        lambda node: any(each.id == node for each in cluster.table.live),
        lambda: cluster.node_of(0) == cluster.me,
        lambda: True,
    )


def _bounds(terminal: Terminal) -> MqttBounds:
    limits = terminal.broker.limits
    return MqttBounds(
        strangers=limits.max_strangers,
        all_connections=limits.max_connections,
        connections=limits.max_mqtt_connections,
        sessions=limits.max_mqtt_sessions,
        session_life=limits.mqtt_session_life,
        retained=limits.max_retained,
    )


def _figures(gateway: MqttPort) -> Iterator[GatewayFigure]:
    """For the terminal's metrics."""
    live, totals = gateway.clients.values(), gateway.totals

    def now(name: str, help: str, value: int) -> GatewayFigure:
        return GatewayFigure(f"landbridge_mqtt_{name}", help, {}, value, counts=False)

    def count(name: str, help: str, value: int) -> GatewayFigure:
        return GatewayFigure(f"landbridge_mqtt_{name}", help, {}, value)

    yield now("clients", "MQTT clients that are connected", len(live))
    yield now("sessions", "MQTT sessions that outlive their connection", len(gateway.sessions))
    yield now("retained", "retained messages", len(gateway.retained))
    yield now("in_flight", "messages without a PUBACK of their client", sum(len(c.window) for c in live))
    yield count("connections", "CONNECTs that were accepted", totals.connections)
    yield count("refused", "CONNECTs, publishes, subscriptions and wills that were refused", totals.refused)
    yield count("received", "messages from MQTT clients", totals.received + sum(c.received for c in live))
    yield count(
        "delivered", "messages sent to MQTT clients", totals.delivered + sum(c.delivered for c in live)
    )
    yield count(
        "dropped",
        "messages that were not sent: QoS 0 to a client that takes nothing, or larger than it takes",
        totals.dropped + sum(c.dropped for c in live),
    )
    yield count("wills", "wills that were published", totals.wills)
