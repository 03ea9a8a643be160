"""``landbridge limits``: how much of everything a terminal allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from landbridge.cli import completion, output, units
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, argument, pairs
from landbridge.cli.output import columns
from landbridge.core.sizes import parse_size
from landbridge.core.time import parse_span
from landbridge.core.wording import did_you_mean
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from landbridge.protocol.operations import LimitRow, LimitRows

app = Commands(no_args_is_help=True, help="Limits: how much of everything the terminal allows.")

LIST = columns("Limit=name@cyan | Value@bold | From=origin | Least | Most | Bounds=help")


@app.command()
def show(
    name: Annotated[
        list[str] | None, argument("LIMIT…", "Only these.", autocompletion=completion.limit_names)
    ] = None,
    context: ContextName = None,
) -> None:
    """Show the limits, and where each value comes from: the default, an option of the start, or an operator.

    A limit without Least and Most is set by 'landbridge up --limit' alone.

    Examples:
      landbridge limits show
      landbridge limits show max_payload max_events --json
    """
    found = ask(context, lambda bus: bus.limits.show())
    known = {row.name: row for row in found.limits}
    for wanted in name or ():
        if wanted not in known:
            raise BadRequest(
                f"no limit {wanted!r}", hint=did_you_mean(wanted, known, "see 'landbridge limits show'")
            )
    rows = [known[each] for each in name] if name else found.limits
    output.rows(LIST, rows, empty="", show=_row)


def _row(row: LimitRow) -> dict[str, object]:
    origin = {"default": "default", "start": "--limit"}.get(row.source, "")
    if row.set_at is not None:
        since = units.ago(row.set_at) if output.on_terminal() else units.iso(row.set_at)
        origin = f"set by {row.set_by}, {since}; at start {_number(row.at_start)}"
    told = {name: _number(getattr(row, name)) for name in ("value", "least", "most")}
    return output.fields(row, origin=origin, **told)


def _number(value: int | float | None) -> str:
    if value is None:
        return ""
    value = int(value) if value == int(value) else value
    return f"{value:,}" if output.on_terminal() else str(value)


@app.command("set")
def set_limits(
    settings: Annotated[
        list[str],
        argument(
            "LIMIT=VALUE…",
            "The new values; 8MiB and 5s are understood.",
            autocompletion=completion.limit_settings,
        ),
    ],
    context: ContextName = None,
) -> None:
    """Set limits from now on, also after restarts. All of them are set, or none.

    Examples:
      landbridge limits set max_payload=8MiB max_events=200000
    """
    values: dict[str, int | float] = {
        name: _value(name, value) for name, value in pairs(settings, "limit").items()
    }
    _tell(ask(context, lambda bus: bus.limits.set(values)), list(values))


def _value(name: str, text: str) -> int | float:
    """A number, a size or a span."""
    for read in (int, float, parse_size, parse_span):
        try:
            found: int | float = read(text)
        except (ValueError, BadRequest):
            continue
        return found
    raise typer.BadParameter(f"{name}: {text!r} is neither a number nor a size nor a span of time")


@app.command()
def reset(
    names: Annotated[list[str], argument("LIMIT…", "Their names.", autocompletion=completion.limit_names)],
    context: ContextName = None,
) -> None:
    """Give limits the values again that the terminal was started with.

    Examples:
      landbridge limits reset max_payload
    """
    _tell(ask(context, lambda bus: bus.limits.reset(names)), names)


def _tell(found: LimitRows, names: list[str]) -> None:
    output.rows(LIST, [row for row in found.limits if row.name in names], empty="", show=_row)
