"""``landbridge events``: ordered dispatch of events from a source to its clients, over TCP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from landbridge.cli import output, units
from landbridge.cli.options import ContextName, Json, given
from landbridge.errors import BadContext, BadRequest, TerminalUnreachable

if TYPE_CHECKING:
    from landbridge.broker.server import Terminal
    from landbridge.client.bus import Bus
    from landbridge.gateways.events import EventGateway, EventOptions

#: Whom the credential is for that a gateway in the process of a terminal gets.
SUBJECT = "events"
#: Seconds; a fresh one is made at every connection.
TOKEN_LIFE = 86400.0


class EventsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    host: str = "127.0.0.1"
    event_port: int = 9090
    client_port: int = 9099
    #: None: nothing is stored.
    topic: str | None = None


class EventsReady(msgspec.Struct, frozen=True):
    """What runs. Printed as JSON."""

    event_port: int
    client_port: int
    topic: str | None
    #: The terminal that is told what goes wrong; None: there is none.
    terminal: str | None
    pid: int


def events(
    event_port: Annotated[
        int, typer.Argument(min=0, max=65535, help="Where the source connects; 0 takes a free one.")
    ] = 9090,
    client_port: Annotated[
        int, typer.Argument(min=0, max=65535, help="Where the clients connect; 0 takes a free one.")
    ] = 9099,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    allow_strangers: Annotated[
        bool,
        typer.Option(
            "--allow-strangers",
            help="Listen on an address that other machines reach. The protocol knows no credentials: whoever "
            "connects is believed.",
        ),
    ] = False,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Pass events and notifications through topics, so that they survive. Needs a terminal.",
            show_default=False,
        ),
    ] = None,
    hold: Annotated[
        int, typer.Option(min=1, help="How many events may wait for a missing number.")
    ] = 100_000,
    on_gap: Annotated[
        Literal["skip", "refuse"],
        typer.Option(
            help="When more would wait: give the missing numbers up, or disconnect the source. "
            "With --topic it is always skip."
        ),
    ] = "skip",
    gap_within: Annotated[
        float | None,
        typer.Option(
            metavar="SPAN",
            parser=units.parse_span,
            help="Give a missing number up after this time in any case.",
            show_default="never",
        ),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Every source that connects begins at 1 again. Not with --topic."),
    ] = False,
    queue: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=units.parse_size,
            help="How far one client may be behind before it is disconnected.",
            show_default="8MiB",
        ),
    ] = None,
    context: ContextName = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="How much is logged, to stderr.")
    ] = "info",
    json: Json = False,
) -> None:
    """Pass events from a source on to clients: in order, to those whom they are for.

    The source sends lines 'sequence|type|from|to' in any order, a client its id. Without --topic it also runs
    where there is no terminal; then what goes wrong is only logged.

    \b
    Examples:
      landbridge events
      landbridge events 9090 9099 --topic events
      landbridge events --hold 10000 --gap-within 5s --on-gap skip
    """
    from landbridge.node import logs

    logs.configure(log_level)
    from landbridge.cli.loop import run
    from landbridge.client.context import is_loopback
    from landbridge.gateways.events import EventOptions

    if not is_loopback(host) and not allow_strangers:
        raise BadRequest(
            f"on {host} whoever connects would be believed: the protocol has no credentials",
            hint="listen on 127.0.0.1, or give --allow-strangers",
        )
    plan = EventsPlan(host=host, event_port=event_port, client_port=client_port, topic=topic)
    options = EventOptions(
        hold=hold, on_gap=on_gap, gap_within=gap_within, restart=restart, **given(queue=queue)
    )
    run(_serve(plan, options, context))


async def _serve(plan: EventsPlan, options: EventOptions, context: str | None) -> None:
    from landbridge.node import logs
    from landbridge.node.assembly import signals

    log = logs.take_over(asyncio.get_running_loop())
    with signals() as stop:
        async with AsyncExitStack() as stack:
            bus = await _terminal(stack, context, needed=plan.topic is not None)
            running = await stack.enter_async_context(gateway(plan, bus, options))
            _announce(plan, running, bus)
            await stop.wait()
        log.info("events", **msgspec.to_builtins(running.totals), held=running.dispatch.held)


@asynccontextmanager
async def gateway(
    plan: EventsPlan, bus: Bus | None, options: EventOptions | None = None
) -> AsyncIterator[EventGateway]:
    from landbridge.gateways.events import EventGateway

    async with EventGateway(bus, topic=plan.topic, options=options) as running:
        await running.listen(plan.host, plan.event_port, plan.client_port)
        yield running


@asynccontextmanager
async def beside(terminal: Terminal, plan: EventsPlan) -> AsyncIterator[EventGateway]:
    """A gateway in the process of a terminal, for ``up --events``. A client like any other: with a token
    of its own, over a link in memory."""
    from landbridge.client.bus import Bus
    from landbridge.node.assembly import dial_to

    # Creating the topics takes admin; without any the gateway only tells what goes wrong.
    scopes = ["publish:$status"] if plan.topic is None else ["admin"]

    def token() -> str:
        return terminal.issue_token(SUBJECT, scopes, TOKEN_LIFE)

    async with Bus(dial_to(terminal), token, name=SUBJECT) as bus, gateway(plan, bus) as running:
        yield running


async def _terminal(stack: AsyncExitStack, context: str | None, *, needed: bool) -> Bus | None:
    """A bus to the context's terminal. One that is not there is done without, unless it was named or is
    needed."""
    from landbridge.cli.loop import connected

    try:
        return await stack.enter_async_context(connected(context, "landbridge events"))
    except (BadContext, TerminalUnreachable) as error:
        if needed or context is not None:
            raise
        output.note(f"no terminal: {error}. What goes wrong is only logged here.")
        return None


def _announce(plan: EventsPlan, running: EventGateway, bus: Bus | None) -> None:
    ready = EventsReady(
        running.event_port,
        running.client_port,
        plan.topic,
        None if bus is None else bus.terminal,
        os.getpid(),
    )

    def show(ready: EventsReady) -> None:
        facts: dict[str, Any] = {
            "events": f"{plan.host}:{ready.event_port}",
            "clients": f"{plan.host}:{ready.client_port}",
            "topic": ready.topic or "none: nothing is stored",
            "terminal": ready.terminal or "none",
        }
        for fact, value in facts.items():
            print(f"{fact:<9} {value}")
        print(end="", flush=True)

    output.emit(ready, show)
