"""``landbridge events``: ordered dispatch of events from a source to its clients, over TCP."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from landbridge.cli import output
from landbridge.cli.loop import connected, run
from landbridge.cli.options import ContextName, LogLevel, argument_port, flag, given, option, size, span
from landbridge.errors import BadContext, BadRequest, TerminalUnreachable
from landbridge.node.plan import EventsPlan

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.gateways.events import EventGateway, EventOptions


class EventsReady(msgspec.Struct, frozen=True):
    """What runs. Printed as JSON."""

    event_port: int
    client_port: int
    topic: str | None
    #: The terminal that is told what goes wrong; None: there is none.
    terminal: str | None
    pid: int


def events(
    event_port: Annotated[int, argument_port("Where the source connects; 0 takes a free one.")] = 9090,
    client_port: Annotated[int, argument_port("Where the clients connect; 0 takes a free one.")] = 9099,
    host: str = option("Address to listen on.", value="127.0.0.1"),
    allow_strangers: bool = flag(
        "Listen on an address that other machines reach. The protocol knows no credentials: whoever connects "
        "is believed.",
        "--allow-strangers",
    ),
    topic: str | None = option(
        "Pass events and notifications through topics, so that they survive. Needs a terminal.",
        metavar="TOPIC",
        show_default=False,
    ),
    hold: int = option("How many events may wait for a missing number.", min=1, value=100_000),
    on_gap: Literal["skip", "refuse"] = option(
        "When more would wait: give the missing numbers up, or disconnect the source. With --topic it is "
        "always skip.",
        value="skip",
    ),
    gap_within: float | None = span("Give a missing number up after this time in any case.", default="never"),
    restart: bool = flag("Every source that connects begins at 1 again. Not with --topic.", "--restart"),
    queue: int | None = size("How far one client may be behind before it is disconnected.", default="8MiB"),
    context: ContextName = None,
    log_level: LogLevel = "info",
) -> None:
    """Pass events from a source on to clients: in order, to those whom they are for.

    The source sends lines 'sequence|type|from|to' in any order, a client its id. Without --topic it also runs
    where there is no terminal; then what goes wrong is only logged.

    Examples:
      landbridge events
      landbridge events 9090 9099 --topic events
      landbridge events --hold 10000 --gap-within 5s --on-gap skip
    """
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
    from landbridge.node.events import listening

    log = logs.take_over(asyncio.get_running_loop())
    with signals() as stop:
        async with AsyncExitStack() as stack:
            bus = await _terminal(stack, context, needed=plan.topic is not None)
            running = await stack.enter_async_context(listening(plan, bus, options))
            _announce(plan, running, bus)
            await stop.wait()
        log.info("events", **msgspec.to_builtins(running.totals), held=running.dispatch.held)


async def _terminal(stack: AsyncExitStack, context: str | None, *, needed: bool) -> Bus | None:
    """A bus to the context's terminal. One that is not there is done without, unless it was named or is
    needed."""

    try:
        return await stack.enter_async_context(connected(context))
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
        None if bus is None else bus.terminal_name,
        os.getpid(),
    )

    facts = {
        "events": f"{plan.host}:{ready.event_port}",
        "clients": f"{plan.host}:{ready.client_port}",
        "topic": ready.topic or "none: nothing is stored",
        "terminal": ready.terminal or "none",
    }
    output.emit(ready, lambda _: output.facts(facts, width=9))
