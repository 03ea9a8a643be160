"""What a command prints. For people: tables on a terminal, aligned columns on a pipe. For programs: JSON.

Results go to stdout, everything else (errors, progress, advice) to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from landbridge.cli.text import printable
from landbridge.errors import BusError

if TYPE_CHECKING:
    from rich.console import Console


class _Choice(msgspec.Struct):
    #: Was ``--json`` given?
    json: bool = False


choice = _Choice()


class Column(NamedTuple):
    """A column of a table: what it is called, and where its values are in a row."""

    title: str
    key: str
    #: How a value looks on a terminal; a pipe gets the exact value.
    show: Callable[[Any], str] | None = None
    #: A style of rich for those values that are not 0 or empty.
    style: str = ""
    #: How a value looks on a pipe.
    plain: Callable[[Any], str] | None = None

    def text(self, row: Mapping[str, Any], *, pretty: bool) -> str:
        value = row.get(self.key)
        if value is None or value == "":
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        form = self.show if pretty else self.plain
        return form(value) if form is not None else printable(str(value))


def on_terminal() -> bool:
    return sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def write_json(data: Any) -> None:
    """One line, at once: somebody may be waiting for it."""
    sys.stdout.write(msgspec.json.encode(data).decode() + "\n")
    sys.stdout.flush()


def emit(data: Any, render: Callable[[Any], None]) -> None:
    """A command's result."""
    if choice.json:
        write_json(data)
    else:
        render(data)


def note(text: str) -> None:
    """Advice for people. Programs don't see it."""
    if not choice.json and sys.stderr.isatty():
        console(stderr=True).print(printable(text), style="dim", markup=False, soft_wrap=True)


def notice(text: str) -> None:
    """News that is no result and no error, such as a lost connection. On stderr, whoever reads it."""
    if choice.json:
        print(msgspec.json.encode({"notice": text}).decode(), file=sys.stderr, flush=True)
    elif sys.stderr.isatty():
        console(stderr=True).print(printable(text), style="yellow", markup=False, soft_wrap=True)
    else:
        print(printable(text), file=sys.stderr, flush=True)


def table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], *, empty: str) -> None:
    if on_terminal():
        if not rows:
            console().print(empty, style="dim", markup=False)
            return
        _rich_table(columns, rows)
        return
    cells = [[column.title.upper().replace(" ", "_") for column in columns]]
    cells += [[column.text(row, pretty=False) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (
            cell.rjust(width) if column.show is not None and column.plain is None else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        print("  ".join(padded).rstrip())


def _rich_table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for column in columns:
        shown.add_column(column.title, justify="left" if column.show is None else "right", overflow="fold")
    for row in rows:
        shown.add_row(
            *(
                Text(column.text(row, pretty=True), style=column.style if row.get(column.key) else "dim")
                for column in columns
            )
        )
    console().print(shown)


def record(title: str, columns: Iterable[Column], row: Mapping[str, Any]) -> None:
    """One thing, a line for each of its columns."""
    pretty = on_terminal()
    lines = [(column.title, column.text(row, pretty=pretty), column.style) for column in columns]
    width = max(len(name) for name, _, _ in lines)
    if not pretty:
        for name, value, _ in lines:
            print(f"{name.ljust(width)}  {value}")
        return
    from rich.text import Text

    screen = console()
    screen.print(title, style="bold", markup=False)
    for name, value, style in lines:
        screen.print(
            Text(f"  {name.ljust(width)}  ", style="dim").append(Text(value, style=style or "default"))
        )


def done(text: str) -> None:
    """Something was done, and there is nothing more to show of it."""
    if on_terminal():
        from rich.text import Text

        console().print(Text("✓ ", style="green").append(Text(printable(text), style="default")))
    else:
        print(printable(text))


def report(error: BusError, *, code: str | None = None) -> None:
    """An error of ours, on stderr: what happened and what to do about it, without a traceback."""
    notes = [str(text) for text in getattr(error, "__notes__", ())]
    if choice.json:
        fields: dict[str, Any] = {"code": code or error.code, "message": str(error), "hint": error.hint}
        if notes:
            fields["notes"] = notes
        print(msgspec.json.encode({"error": fields}).decode(), file=sys.stderr)
        return
    lines = [("error: ", str(error)), *(("  note: ", text) for text in notes)]
    if error.hint:
        lines.append(("  hint: ", error.hint))
    _report(lines)


def _report(lines: list[tuple[str, str]]) -> None:
    if not sys.stderr.isatty():
        for head, text in lines:
            print(f"{head}{printable(text)}", file=sys.stderr)
        return
    from rich.text import Text

    screen = console(stderr=True)
    for head, text in lines:
        style = "bold red" if head == "error: " else "dim"
        line = Text(head, style=style).append(
            Text(printable(text), style="default" if style != "dim" else "dim")
        )
        screen.print(line, soft_wrap=True)


def confirm(question: str) -> None:
    """Ask before something that can't be undone, where there is somebody to ask."""
    import typer

    if not choice.json and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)
