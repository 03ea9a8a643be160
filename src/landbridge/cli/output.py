"""What a command prints. For people: tables on a terminal, aligned columns on a pipe. For programs: JSON.

Results go to stdout, everything else (errors, progress, advice) to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, TypeVar

import msgspec

from landbridge.cli import units
from landbridge.core.text import printable
from landbridge.errors import BusError

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
#: Seconds before a bar appears, so that short work doesn't flicker.
BAR_AFTER = 0.3


class _Choice(msgspec.Struct):
    #: Was ``--json`` given?
    json: bool = False
    #: The command that runs, such as "landbridge topic list".
    command: str = "landbridge"


choice = _Choice()


class TableColumn(NamedTuple):
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
        """The cell of this column."""
        value = row.get(self.key)
        if value is None or value == "":
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        form = self.show if pretty else self.plain
        return form(value) if form is not None else printable(str(value))


#: Name of a form → how a value looks on a terminal, and on a pipe (None: as it is).
FORMS: dict[str, tuple[Callable[[Any], str], Callable[[Any], str] | None]] = {
    "count": (units.count, None),
    "size": (units.size, None),
    "span": (units.span, None),
    "ms": (units.milliseconds, None),
    "cost": (units.cost, units.exact),
    "share": (units.share, units.exact),
    "moment": (units.ago, units.iso),
    "list": (", ".join, ",".join),
    "path": (" → ".join, ",".join),
}


def columns(specs: str) -> list[TableColumn]:
    """Columns, written as ``Title=key:form@style | …``. The key is the title in lower case unless it is said;
    form and style may be missing."""
    found = []
    for spec in specs.split("|"):
        rest, _, style = spec.strip().partition("@")
        rest, _, form = rest.partition(":")
        title, _, key = rest.partition("=")
        show, plain = FORMS[form] if form else (None, None)
        found.append(TableColumn(title, key or title.lower().replace(" ", "_"), show, style, plain))
    return found


def fields(answer: Any, **more: Any) -> dict[str, Any]:
    """The fields of an answer as JSON has them, and some more: a row of a table."""
    row: dict[str, Any] = msgspec.to_builtins(answer)
    return row | more


def on_terminal() -> bool:
    """Does somebody look at the results, or does a program read them?"""
    return sys.stdout.isatty()


def console(*, stderr: bool = False) -> Console:
    """The screen behind stdout or stderr."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def write_json(data: Any) -> None:
    """One line, at once: somebody may be waiting for it."""
    sys.stdout.write(msgspec.json.encode(data).decode() + "\n")
    sys.stdout.flush()


def emit(data: T, render: Callable[[T], None]) -> None:
    """A command's result."""
    if choice.json:
        write_json(data)
    else:
        render(data)


def tell(data: Any, text: str) -> None:
    """A command's result, of which people need no more than a sentence."""
    emit(data, lambda _: done(text))


def rows(
    columns: Sequence[TableColumn],
    data: Sequence[T],
    *,
    empty: str,
    show: Callable[[T], Mapping[str, Any]] = fields,
) -> None:
    """A command's result that is a list. ``show``: a row as people see it."""
    emit(data, lambda data: table(columns, [show(row) for row in data], empty=empty))


def without_own(data: list[T], is_own: Callable[[T], bool]) -> list[T]:
    """The rows of a list without those that the bus has for itself, where somebody looks at it; programs get
    all of them."""
    if choice.json or not on_terminal():
        return data
    shown = [row for row in data if not is_own(row)]
    if len(shown) < len(data):
        note(f"{len(data) - len(shown)} of the bus itself are left out: --all shows them")
    return shown


def note(text: str) -> None:
    """Advice for people. Programs don't see it."""
    if not choice.json and sys.stderr.isatty():
        _say(sys.stderr, text, "dim")


def notice(text: str) -> None:
    """News that is no result and no error, such as a lost connection. On stderr, whoever reads it."""
    if choice.json:
        print(msgspec.json.encode({"notice": text}).decode(), file=sys.stderr, flush=True)
    else:
        _say(sys.stderr, text, "yellow")


def _say(file: TextIO, text: str, style: str, head: str = "", head_style: str = "") -> None:
    """Print one line: with styles where somebody looks at it."""
    if not file.isatty():
        print(f"{head}{printable(text)}", file=file, flush=True)
        return
    from rich.text import Text

    line = Text(head, style=head_style).append(Text(printable(text), style=style))
    console(stderr=file is sys.stderr).print(line, soft_wrap=True)


def table(columns: Sequence[TableColumn], rows: Sequence[Mapping[str, Any]], *, empty: str) -> None:
    """Rows, a line each. ``empty``: what people are told where there are none."""
    if on_terminal():
        if rows:
            _rich_table(columns, rows)
        else:
            console().print(empty, style="dim", markup=False)
        return
    cells = [[column.title.upper() for column in columns]]
    cells += [[column.text(row, pretty=False) for column in columns] for row in rows]
    numbers = {at for at, column in enumerate(columns) if column.show is not None and column.plain is None}
    aligned(cells, sys.stdout, right=numbers)


def aligned(lines: Sequence[Sequence[str]], file: TextIO, right: Container[int] = ()) -> None:
    """Write cells as columns. ``right``: the numbers of columns that are aligned there."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        file.write("  ".join(padded).rstrip() + "\n")


def _rich_table(columns: Sequence[TableColumn], rows: Sequence[Mapping[str, Any]]) -> None:
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


def record(title: str, columns: Iterable[TableColumn], row: Mapping[str, Any]) -> None:
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
    _say(sys.stdout, text, "default", "✓ " if on_terminal() else "", "green")


def facts(facts: Mapping[str, str], *, width: int = 8) -> None:
    """What a process that stays has to say when it is ready, at once."""
    for fact, value in facts.items():
        print(f"{fact:<{width}} {value}")
    sys.stdout.flush()


def report(error: BusError, *, code: str | None = None) -> None:
    """An error of ours, on stderr: what happened and what to do about it, without a traceback."""
    notes = [str(text) for text in getattr(error, "__notes__", ())]
    if choice.json:
        fields: dict[str, Any] = {"code": code or error.code, "message": str(error), "hint": error.hint}
        if notes:
            fields["notes"] = notes
        print(msgspec.json.encode({"error": fields}).decode(), file=sys.stderr)
        return
    _say(sys.stderr, str(error), "default", "error: ", "bold red")
    for text in notes:
        _say(sys.stderr, text, "dim", "  note: ", "dim")
    if error.hint:
        _say(sys.stderr, error.hint, "dim", "  hint: ", "dim")


def confirm(question: str) -> None:
    """Ask before something that can't be undone, where there is somebody to ask."""
    import typer

    if not choice.json and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)


@contextmanager
def progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where somebody is looking and it takes long."""
    if choice.json or not sys.stderr.isatty():
        yield lambda done, whole: None
        return
    import time

    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn(text),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=console(stderr=True), transient=True)
    task = bar.add_task("", total=None)
    begin = time.monotonic()

    def tell(done: int, whole: int) -> None:
        bar.update(task, completed=done, total=whole)
        if not bar.live.is_started and time.monotonic() - begin > BAR_AFTER:
            bar.start()

    try:
        yield tell
    finally:
        bar.stop()


def watching() -> Callable[[str], AbstractContextManager[Callable[[int, int], None]]] | None:
    """How progress is shown by a process that stays: as a bar where somebody looks, else by its log."""
    return None if choice.json or not sys.stderr.isatty() else progress
