"""``landbridge audit``: who has changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from landbridge.cli import output, units
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, argument, given, option, start_of
from landbridge.cli.output import columns
from landbridge.cli.subscribe import Count, Reader, Wait, print_payloads
from landbridge.core import audit
from landbridge.core.text import printable

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.client.message import DeliveredBatch
    from landbridge.protocol.operations import AuditRow

app = Commands(no_args_is_help=True, help="The audit log: who has changed what of the terminal, and how.")

LIST = columns("When=time:moment | Who@cyan | Operation@bold | Name@cyan | Via | Change")
#: Rows of a list, unless --limit says more.
SHOWN = 200

What = Annotated[
    str | None, option("Only this kind of thing: topic, group, service, limit, …", metavar="KIND")
]
Who = Annotated[str | None, option("Only changes by this service.", metavar="SERVICE")]


@app.command("list")
def list_entries(
    name: Annotated[
        str | None, argument("NAME", "Only of this: a topic, TOPIC/GROUP, a service …", show_default=False)
    ] = None,
    what: What = None,
    who: Who = None,
    operation: str | None = option("Only by this operation, e.g. topic.update.", metavar="OPERATION"),
    since: float | None = option(
        "From this time on: ISO 8601, '10m ago' or -10m.",
        metavar="TIME",
        parser=units.parse_moment,
        default="the beginning",
    ),
    until: float | None = option(
        "Up to this time.", metavar="TIME", parser=units.parse_moment, default="now"
    ),
    limit: int = option("Only the newest so many.", min=1, value=SHOWN),
    context: ContextName = None,
) -> None:
    """List changes, the newest last: who, when, from where, and from what to what.

    Examples:
      landbridge audit list
      landbridge audit list orders --what topic --since '7d ago'
      landbridge audit list --who ana --json | jq .operation
    """
    moments = {"since": since, "until": until}
    asked = given(what=what, name=name, who=who, operation=operation)
    asked |= {key: int(at * units.SECOND) for key, at in moments.items() if at is not None}

    async def read(bus: Bus) -> list[AuditRow]:
        return (await bus.audit.list(**asked))[-limit:]

    output.rows(LIST, ask(context, read), empty="nothing was changed, as far as is asked for", show=_row)


@app.command()
def follow(
    start: str | None = start_of("Where to begin: an ISO 8601 time, '10m ago', -10m.", "latest"),
    count: Count = None,
    wait: Wait = None,
    context: ContextName = None,
) -> None:
    """Watch changes as they are made, until Ctrl-C.

    Examples:
      landbridge audit follow
      landbridge audit follow --from '1h ago' --json | jq 'select(.what == "limit")'
    """
    Reader(audit.TOPIC, None, start, count=count, wait=wait).run(
        context, print_payloads if output.choice.json else _print
    )


def _row(row: AuditRow) -> dict[str, Any]:
    return output.fields(
        row, change=_change(row.before, row.after), via=_via(row.peer, row.origin, row.program)
    )


def _change(before: Any, after: Any) -> str:
    """From what to what, for people."""
    parts = (f"from {_value(before)}" if before else "", f"to {_value(after)}" if after else "")
    return " ".join(part for part in parts if part)


def _value(value: Any) -> str:
    if not isinstance(value, dict):
        return "" if value is None else msgspec.json.encode(value).decode()
    return " ".join(f"{name}={msgspec.json.encode(each).decode()}" for name, each in value.items())


def _via(peer: str, origin: str, program: str) -> str:
    if peer == "memory":  # a program in the terminal's process, such as its HTTP port
        peer, origin = origin or "the terminal", ""
    where = f"{origin} by {peer}" if origin else peer
    return f"{where} ({program})" if program else where


def _print(batch: DeliveredBatch, count: int) -> None:
    for message in list(batch)[:count]:
        entry = audit.decode(message.payload)
        via, change = _via(entry.peer, entry.origin, entry.program), _change(entry.before, entry.after)
        line = f"{units.iso(entry.time)}  {entry.who}  {entry.operation}  {entry.name}  {via}  {change}"
        typer.echo(printable(line))
