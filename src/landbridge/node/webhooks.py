"""The sender of webhooks beside a terminal, in its process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial

from landbridge.broker.figures import GatewayFigure
from landbridge.broker.rule_topics import home_of
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.core.outlet.outlet import circuit
from landbridge.core.status import TOPIC
from landbridge.core.webhook.webhook import COLLECTION, STATES
from landbridge.gateways.outgoing import OutgoingHttp
from landbridge.gateways.webhooks import WebhookSenders

#: The subject of the sender's own credential, and what its connections call themselves.
SUBJECT = "webhooks"
#: Seconds; a fresh credential is made at every connection. When it expires, what is being sent then is sent
#: again, so it lives long.
TOKEN_LIFE = 86400.0


@asynccontextmanager
async def webhooks_of(
    terminal: Terminal, dial: Dial, allowed: Iterable[str], http: OutgoingHttp | None = None
) -> AsyncIterator[WebhookSenders]:
    """Send the webhooks of a terminal while the block lasts. ``allowed``: networks and hosts that may be
    posted to beside the public addresses; see ``landbridge.core.addresses``. ``http``: another way out."""

    own = [f"documents:{COLLECTION}", f"documents:{STATES}", f"publish:{TOPIC}"]

    def token() -> str:
        return terminal.issue_token(SUBJECT, own, TOKEN_LIFE)

    def token_of(owner: str, topic: str) -> str:
        # Of a rule's topic: who may read it is who may read its source.
        readable = home_of(terminal.broker.topics, topic)
        return terminal.lend_token(owner, [f"subscribe:{readable}"], [], TOKEN_LIFE)

    def bus_of(owner: str, topic: str) -> Bus:
        # For one topic alone. The terminal lets it in while the owner itself may read there.
        return Bus(dial, lambda: token_of(owner, topic), name=SUBJECT)

    async with (
        Bus(dial, token, name=SUBJECT) as bus,
        http or OutgoingHttp(allowed) as way_out,
        WebhookSenders(bus, bus_of, way_out, terminal.broker.clock) as senders,
    ):
        figures = partial(_figures, senders, terminal.broker.clock)
        terminal.broker.figures.append(figures)
        try:
            yield senders
        finally:
            terminal.broker.figures.remove(figures)


def _figures(senders: WebhookSenders, clock: Callable[[], int]) -> Iterator[GatewayFigure]:
    """For the terminal's metrics."""
    for (topic, name), state in senders.states.items():
        labels = {"topic": topic, "webhook": name}
        is_open = circuit(state, clock()) != "closed" or bool(state.disabled_at)
        yield from (
            GatewayFigure("landbridge_webhook_delivered", "messages taken", labels, state.delivered),
            GatewayFigure("landbridge_webhook_failures", "attempts that failed", labels, state.failed),
            GatewayFigure("landbridge_webhook_buried", "messages given up", labels, state.buried),
            GatewayFigure(
                "landbridge_webhook_held_back",
                "1 while its circuit is not closed, or it is disabled",
                labels,
                int(is_open),
                counts=False,
            ),
        )
