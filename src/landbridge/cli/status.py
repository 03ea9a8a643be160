"""``landbridge status``: what happens on the terminal, and how much of it is written down."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from landbridge.cli import output, units
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, argument, flag, option, start_of
from landbridge.cli.output import columns
from landbridge.cli.subscribe import Count, Reader, Wait, print_payloads
from landbridge.core.text import printable
from landbridge.core.wording import counted

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.client.message import DeliveredBatch
    from landbridge.core.status import Event, Levels

app = Commands(no_args_is_help=True, help="The status log: who connected, published, failed, and why.")

LIST = columns("Of | Name@cyan | Level@bold")
#: Those of topics, producers and consumers are dicts of the same names on the terminal.
SIDES = ("topics", "producers", "consumers")

_STYLES = {
    "refuse": "red", "error": "red", "bury": "red",
    "expire": "yellow", "requeue": "yellow", "clock": "yellow",
    "publish": "cyan", "deliver": "green", "ack": "green",
}  # fmt: skip


@app.command()
def show(context: ContextName = None) -> None:
    """Show the levels of the status log.

    Examples:
      landbridge status show
    """
    output.emit(ask(context, lambda bus: bus.status.show()), _show)


def _show(levels: Levels) -> None:
    rows = [{"of": "everything else", "level": levels.default}]
    for side in SIDES:
        of_side = sorted(getattr(levels, side).items())
        rows += [{"of": side[:-1], "name": name, "level": level} for name, level in of_side]
    if levels.topic:
        rows.append({"of": "copy to", "name": levels.topic})
    output.table(LIST, rows, empty="")


@app.command()
def topic(
    name: Annotated[str | None, argument("TOPIC", "The topic; made where there is none.")] = None,
    off: bool = flag("Write it to no other topic any more.", "--off"),
    context: ContextName = None,
) -> None:
    """Write the status log to a topic of your choice as well, beside $status.

    It gets all events but those about itself, with its own retention. If its backlog is full, events are
    missing there, and $status says so.

    Examples:
      landbridge status topic ops.log
      landbridge status topic --off
    """
    if (name is None) != off:
        raise typer.BadParameter("give a topic, or --off")
    output.emit(ask(context, lambda bus: bus.status.set(topic=name or "")), _show)


@app.command()
def level(
    level: Annotated[
        Literal["off", "errors", "batches", "messages", "default"],
        argument(
            "LEVEL",
            "off, errors, batches, messages; or default, to undo a particular setting.",
            show_default=True,
        ),
    ],
    topic: str | None = option("Only for this topic.", metavar="NAME"),
    producer: str | None = option("Only for this producer.", metavar="NAME"),
    consumer: str | None = option("Only for this consumer.", metavar="NAME"),
    context: ContextName = None,
) -> None:
    """Set how much is logged, from now on: in general, or for one topic, producer or consumer.

    Examples:
      landbridge status level errors
      landbridge status level messages --topic orders
      landbridge status level default --topic orders
    """
    named = zip(SIDES, (topic, producer, consumer), strict=True)
    particular = [(side, name) for side, name in named if name is not None]
    if len(particular) > 1:
        raise typer.BadParameter("give one of --topic, --producer and --consumer")

    async def set_level(bus: Bus) -> Levels:
        if not particular:
            return await bus.status.set(default="batches" if level == "default" else level)
        side, name = particular[0]
        levels = getattr(await bus.status.show(), side)
        if level == "default":
            levels.pop(name, None)
        else:
            levels[name] = level
        return await bus.status.set(**{side: levels})

    output.emit(ask(context, set_level), _show)


@app.command()
def tail(
    start: str | None = start_of("Where to begin: an ISO 8601 time, '10m ago', -10m.", "latest"),
    count: Count = None,
    wait: Wait = None,
    context: ContextName = None,
) -> None:
    """Watch the status log, until Ctrl-C.

    Examples:
      landbridge status tail
      landbridge status tail --from '10m ago' --json | jq 'select(.event == "refuse")'
    """
    from landbridge.core.status import TOPIC

    Reader(TOPIC, None, start, count=count, wait=wait).run(
        context, print_payloads if output.choice.json else _print
    )


def _print(batch: DeliveredBatch, count: int) -> None:
    import msgspec

    from landbridge.core.status import Event

    events = [msgspec.json.decode(message.payload, type=Event) for message in islice(batch, count)]
    if not output.on_terminal():
        for event in events:
            print(f"{units.iso(event.time)}  {event.event:<12}  {_what(event)}", flush=True)
        return
    from rich.text import Text

    screen = output.console()
    for event in events:
        line = Text(f"{units.clock(event.time)}  ", style="dim")
        line.append(f"{event.event:<12}  ", style=f"not dim {_STYLES.get(event.event, 'default')}")
        line.append(_what(event), style="not dim")
        screen.print(line, soft_wrap=True)


def _what(event: Event) -> str:
    """An event's fields, those that it has, from who to why."""
    who = event.who or "-"
    parts = [f"{who}@{event.peer}" if event.peer else who]
    if event.topic:
        parts.append(f"{event.topic} › {event.group}" if event.group else event.topic)
    if event.messages:
        parts.append(counted(event.messages, "message"))
        if event.batches > 1:
            parts.append(f"{event.batches:,} batches")
    if event.bytes:
        parts.append(units.size(event.bytes))
    if event.offsets:
        parts.append(" ".join(f"{first}-{end - 1}" for first, end in event.offsets))
    if event.cause or event.detail:
        parts.append(": ".join(text for text in (event.cause, event.detail) if text))
    return printable("  ".join(parts))
