"""The hub of WebSub beside a terminal, in its process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial

from landbridge.broker.figures import GatewayFigure
from landbridge.broker.rule_topics import home_of
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.core.status import TOPIC
from landbridge.core.websub.feed import FEEDS, SOURCES
from landbridge.core.websub.subscription import STATES, SUBSCRIPTIONS
from landbridge.gateways.outgoing import OutgoingHttp, OutgoingLimits, OwnLookups
from landbridge.gateways.websub import WebSubHub

#: The subject of the hub's own credential, and what its connections call themselves.
SUBJECT = "websub"
#: Seconds; a fresh credential is made at every connection.
TOKEN_LIFE = 86400.0
#: Bytes of a source's page.
LARGEST_PAGE = 1 << 20


@asynccontextmanager
async def hub_of(
    terminal: Terminal,
    dial: Dial,
    allowed: Iterable[str],
    http: OutgoingHttp | None = None,
    pages: OutgoingHttp | None = None,
) -> AsyncIterator[WebSubHub]:
    """Serve the feeds of a terminal while the block lasts. ``allowed``: networks and hosts that may be asked
    beside the public addresses; see ``landbridge.core.addresses``. ``http`` and ``pages``: other ways out,
    to callbacks and to sources. Webhooks have a way of their own: what strangers make slow is not theirs."""
    allowed = list(allowed)
    own = [f"documents:{name}" for name in (FEEDS, SOURCES, SUBSCRIPTIONS, STATES)]

    def token() -> str:
        return terminal.issue_token(SUBJECT, ["operate", *own, f"publish:{TOPIC}"], TOKEN_LIFE)

    def lent(owner: str, scope: str, *more: str) -> Bus:
        # For one topic alone. The terminal lets it in while the owner itself may do that.
        return Bus(dial, lambda: terminal.lend_token(owner, [scope], [*more], TOKEN_LIFE), name=SUBJECT)

    def reader_of(owner: str, topic: str) -> Bus:
        # Of a rule's topic: who may read it is who may read its source.
        return lent(owner, f"subscribe:{home_of(terminal.broker.topics, topic)}")

    def writer_of(owner: str, topic: str) -> Bus:
        return lent(owner, f"publish:{topic}", f"documents:{SOURCES}")

    fetching = OutgoingLimits(most_read=LARGEST_PAGE)
    async with (
        Bus(dial, token, name=SUBJECT) as bus,
        http or OutgoingHttp(allowed, resolve=OwnLookups()) as to_callbacks,
        pages or OutgoingHttp(allowed, limits=fetching) as to_sources,
        WebSubHub(bus, reader_of, writer_of, to_callbacks, to_sources, terminal.broker.clock) as hub,
    ):
        figures = partial(_figures, hub)
        terminal.broker.figures.append(figures)
        try:
            yield hub
        finally:
            terminal.broker.figures.remove(figures)


def _figures(hub: WebSubHub) -> Iterator[GatewayFigure]:
    """For the terminal's metrics, by feed: anybody may subscribe, so there is no series for each."""
    sums: dict[str, list[int]] = {}
    for (topic, _), state in hub.senders.states.items():
        found = sums.setdefault(topic, [0, 0, 0, 0])
        for index, count in enumerate((1, state.delivered, state.failed, state.buried)):
            found[index] += count
    for topic, (active, delivered, failed, given_up) in sums.items():
        labels = {"topic": topic}
        yield from (
            GatewayFigure(
                "landbridge_websub_subscriptions", "subscriptions that hold", labels, active, counts=False
            ),
            GatewayFigure(
                "landbridge_websub_delivered",
                "messages taken by those that hold",
                labels,
                delivered,
                counts=False,
            ),
            GatewayFigure(
                "landbridge_websub_failures",
                "attempts that failed, of those that hold",
                labels,
                failed,
                counts=False,
            ),
            GatewayFigure(
                "landbridge_websub_given_up",
                "messages given up, of those that hold",
                labels,
                given_up,
                counts=False,
            ),
        )
