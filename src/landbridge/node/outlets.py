"""What the senders of all outlets need beside a terminal: connections, and a place in its metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import NamedTuple

from landbridge.broker.figures import GatewayFigure
from landbridge.broker.rule_topics import home_of
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.core.outlet.outlet import circuit
from landbridge.core.status import TOPIC
from landbridge.gateways.outlets import OutletSenders

#: Seconds; a fresh credential is made at every connection. When it expires, what is being sent then is sent
#: again, so it lives long.
TOKEN_LIFE = 86400.0
#: Seconds in which a publish that is refused for now (backlog or disk full) is repeated. Whoever calls back
#: is told before it gives up.
PATIENCE = 5.0


class OutletBuses(NamedTuple):
    """Connections of a sender."""

    #: For its documents and the status log.
    bus: Bus
    #: Makes one in the name of an owner, to read a topic.
    reader_of: Callable[[str, str], Bus]
    #: Makes one in the name of an owner, to publish to a topic.
    writer_of: Callable[[str, str], Bus]


@asynccontextmanager
async def outlet_buses(
    terminal: Terminal,
    dial: Dial,
    subject: str,
    collections: tuple[str, ...],
    *more: str,
    whole: Dial | None = None,
) -> AsyncIterator[OutletBuses]:
    """The connections of a sender while the block lasts. ``subject``: of its own credential, and what its
    connections call themselves. ``collections``: of its documents. ``more``: scopes. ``dial`` reaches what
    this node has, ``whole`` all that the terminal has; None: that is the same."""
    own = [*(f"documents:{each}" for each in collections), f"publish:{TOPIC}", *more]

    def token() -> str:
        return terminal.issue_token(subject, own, TOKEN_LIFE)

    def lent(dial: Dial, owner: str, scope: str) -> Bus:
        # For one topic alone. The terminal lets it in while the owner itself may do that.
        token = partial(terminal.lend_token, owner, [scope], [], TOKEN_LIFE)
        return Bus(dial, token, name=subject, patience=PATIENCE)

    def reader_of(owner: str, topic: str) -> Bus:
        # Of a rule's topic: who may read it is who may read its source.
        return lent(dial, owner, f"subscribe:{home_of(terminal.broker.topics, topic)}")

    def writer_of(owner: str, topic: str) -> Bus:
        # It may be another topic than the outlet's, and so at another node.
        return lent(whole or dial, owner, f"publish:{topic}")

    async with Bus(dial, token, name=subject) as bus:
        yield OutletBuses(bus, reader_of, writer_of)


@contextmanager
def counted_in(terminal: Terminal, senders: OutletSenders) -> Iterator[None]:
    """Have the figures of outlets among the terminal's metrics while the block lasts."""
    figures = partial(_figures, senders, terminal.broker.clock)
    terminal.broker.figures.append(figures)
    try:
        yield
    finally:
        terminal.broker.figures.remove(figures)


def _figures(senders: OutletSenders, clock: Callable[[], int]) -> Iterator[GatewayFigure]:
    noun = senders.form.noun
    for (topic, name), state in senders.states.items():
        labels = {"topic": topic, noun: name}
        is_open = circuit(state, clock()) != "closed" or bool(state.disabled_at)
        yield from (
            GatewayFigure(f"landbridge_{noun}_delivered", "messages taken", labels, state.delivered),
            GatewayFigure(f"landbridge_{noun}_failures", "attempts that failed", labels, state.failed),
            GatewayFigure(f"landbridge_{noun}_buried", "messages given up", labels, state.buried),
            GatewayFigure(
                f"landbridge_{noun}_held_back",
                "1 while its circuit is not closed, or it is disabled",
                labels,
                int(is_open),
                counts=False,
            ),
        )
