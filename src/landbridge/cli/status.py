"""``landbridge status``: what happens on the terminal, and how much of it is written down."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from landbridge.cli import output, units
from landbridge.cli.options import ContextName, Json
from landbridge.cli.output import Column
from landbridge.cli.subscribe import Count, Reader, Wait, print_payloads
from landbridge.cli.text import printable
from landbridge.core.wording import counted

if TYPE_CHECKING:
    from landbridge.client.message import DeliveredBatch
    from landbridge.core.status import Event

app = typer.Typer(no_args_is_help=True, help="The status log: who connected, published, failed, and why.")

LIST = [Column("Of", "of"), Column("Name", "name", style="cyan"), Column("Level", "level", style="bold")]
#: Those of topics, producers and consumers are dicts of the same names on the terminal.
SIDES = ("topics", "producers", "consumers")

_STYLES = {
    "refuse": "red", "error": "red", "bury": "red",
    "expire": "yellow", "requeue": "yellow", "clock": "yellow",
    "publish": "cyan", "deliver": "green", "ack": "green",
}  # fmt: skip


@app.command()
def show(context: ContextName = None, json: Json = False) -> None:
    """Show the levels of the status log.

    \b
    Examples:
      landbridge status show
    """
    from landbridge.cli.loop import ask

    output.emit(ask(context, "status.levels"), _show)


def _show(levels: dict[str, Any]) -> None:
    rows = [{"of": "everything else", "level": levels["default"]}]
    for side in SIDES:
        rows += [
            {"of": side[:-1], "name": name, "level": level} for name, level in sorted(levels[side].items())
        ]
    output.table(LIST, rows, empty="")


@app.command()
def level(
    level: Annotated[
        Literal["off", "errors", "batches", "messages", "default"],
        typer.Argument(
            metavar="LEVEL", help="off, errors, batches, messages; or default, to undo a particular setting."
        ),
    ],
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="Only for this topic.")] = None,
    producer: Annotated[str | None, typer.Option(metavar="NAME", help="Only for this producer.")] = None,
    consumer: Annotated[str | None, typer.Option(metavar="NAME", help="Only for this consumer.")] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Set how much is logged, from now on: in general, or for one topic, producer or consumer.

    \b
    Examples:
      landbridge status level errors
      landbridge status level messages --topic orders
      landbridge status level default --topic orders
    """
    from landbridge.cli.loop import connected, run

    particular = [
        (side, name)
        for side, name in zip(SIDES, (topic, producer, consumer), strict=True)
        if name is not None
    ]
    if len(particular) > 1:
        raise typer.BadParameter("give one of --topic, --producer and --consumer")

    async def main() -> Any:
        async with connected(context, "landbridge status") as bus:
            if not particular:
                return await bus.call("status.levels", default="batches" if level == "default" else level)
            side, name = particular[0]
            levels = (await bus.call("status.levels"))[side]
            if level == "default":
                levels.pop(name, None)
            else:
                levels[name] = level
            return await bus.call("status.levels", **{side: levels})

    output.emit(run(main()), _show)


@app.command()
def tail(
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME",
            parser=units.parse_start,
            help="Where to begin: an ISO 8601 time, '10m ago', -10m.",
            show_default="latest",
        ),
    ] = None,
    count: Count = None,
    wait: Wait = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Watch the status log, until Ctrl-C.

    \b
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
