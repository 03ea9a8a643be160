"""The commands that mail and SMS outlets have in common, and how their options are read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landbridge.cli import completion, output, units
from landbridge.cli.loop import ask
from landbridge.cli.options import (
    Commands,
    ContextName,
    From,
    Note,
    OptionGroup,
    Topic,
    Until,
    argument,
    given,
    option,
    pairs,
    span,
)
from landbridge.cli.sending import ATTEMPTS
from landbridge.core.wording import counted
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from landbridge.protocol.operations import OutletTested

#: The status of a test that was not taken.
FAILED = 70

Name = Annotated[str, argument("NAME", "The outlet's name.", autocompletion=completion.outlet_names)]


class OutletFlags(OptionGroup):
    """What every outlet is told."""

    ordered: bool | None = option(
        "One message at a time, in order; one that fails holds the others.", "--ordered/--unordered"
    )
    rate: float | None = option("Messages per second at most, or 0 for no limit.", default="0", min=0)
    match_key: str | None = option("Only messages whose key matches, e.g. 'eu-*'.", metavar="PATTERN")
    match_header: list[str] | None = option(
        "Only messages whose header matches. Repeatable.", metavar="NAME=PATTERN"
    )

    def as_asked(self) -> dict[str, Any]:
        """Those that were given, as the terminal wants them."""
        from landbridge.core.delivery.filters import Match

        options = self.given("ordered")
        if self.rate is not None:
            options["rate"] = self.rate or None
        match = given(key=self.match_key, headers=pairs(self.match_header, "match") or None)
        return options | ({"match": Match(**match)} if match else {})


def read_secret(file: Path | None, what: str) -> str | None:
    """The first line of a file, or of standard input for "-"; None where none is named."""
    if file is None:
        return None
    try:
        text = sys.stdin.readline() if str(file) == "-" else file.read_text().partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"can't read the {what}: {error}") from None
    if not text.strip():
        where = "on standard input" if str(file) == "-" else f"in {file}"
        raise BadRequest(f"the {what} {where} is empty", hint="it is the first line")
    return text.rstrip("\r\n")


def add_commands(
    app: Commands,
    noun: str,
    calls: str,
    listed: Any,
    shown: Any,
    row: Callable[[Any], dict[str, Any]],
) -> None:
    """Add the commands to an app. ``noun``: its name on the command line. ``calls``: the noun of the bus.
    ``listed`` and ``shown``: columns of a list, and of one. ``row``: the fields of one."""

    def command(name: str, about: str, example: str) -> Callable[[Callable[..., None]], None]:
        def add(function: Callable[..., None]) -> None:
            function.__doc__ = f"{about}\n\nExamples:\n  landbridge {noun} {example}\n"
            app.command(name)(function)

        return add

    def of(bus: Any) -> Any:
        return getattr(bus, calls)

    @command("list", f"List {noun} outlets.", "list orders")
    def list_outlets(
        topic: str | None = argument("TOPIC", "Only this topic's.", show_default=True),
        context: ContextName = None,
    ) -> None:
        rows = ask(context, lambda bus: of(bus).list(topic=topic))
        output.rows(listed, rows, empty=f"none yet: 'landbridge {noun} create --help'")

    @command("show", "Show one: its options and its last attempts.", "show alerts ops")
    def show(topic: Topic, name: Name, context: ContextName = None) -> None:
        def print_it(found: Any) -> None:
            output.record(f"{found.topic} › {found.name}", shown, row(found))
            print()
            attempts = [output.fields(each) for each in found.attempts]
            output.table(ATTEMPTS, attempts, empty="  no attempts yet")

        output.emit(ask(context, lambda bus: of(bus).show(topic, name)), print_it)

    @command(
        "test",
        "Send a test, and show what came back. It is sent while the outlet is paused, too. Status 70 if it "
        "was not taken.",
        "test alerts ops",
    )
    def probe(
        topic: Topic,
        name: Name,
        within: float = span("How long to wait for the answer.", value=20.0),
        context: ContextName = None,
    ) -> None:
        tested: OutletTested = ask(context, lambda bus: of(bus).test(topic, name, within=within))
        output.emit(tested, _show_test)
        if tested.attempt is None or tested.attempt.verdict != "delivered":
            raise typer.Exit(FAILED)

    @command("pause", "Pause one. Its messages wait.", "pause alerts ops --note 'the server is moving'")
    def pause(topic: Topic, name: Name, note: Note = "", context: ContextName = None) -> None:
        paused = ask(context, lambda bus: of(bus).pause(topic, name, note=note))
        output.tell(paused, f"{noun} {name} of {topic} is paused")

    @command(
        "resume",
        "Let one that is paused or disabled go on, at once and as if nothing had failed.",
        "resume alerts ops",
    )
    def resume(topic: Topic, name: Name, context: ContextName = None) -> None:
        resumed = ask(context, lambda bus: of(bus).resume(topic, name))
        output.tell(resumed, f"{noun} {name} of {topic} goes on")

    @command(
        "replay",
        "Send a range of messages again, by offset or by time. What was not sent yet is not counted.",
        "replay alerts ops --from '2h ago'",
    )
    def replay(
        topic: Topic,
        name: Name,
        first: int | None = option("The first offset.", metavar="OFFSET", min=0),
        end: int | None = option("The offset behind the last one.", metavar="OFFSET", min=0),
        begin: Annotated[float | None, From] = None,
        until: Until = None,
        context: ContextName = None,
    ) -> None:
        if (first is None) == (begin is None):
            raise typer.BadParameter("give --first or --from, one of them")
        wanted = given(
            first=first,
            end=end,
            begin=None if begin is None else int(begin * units.SECOND),
            until=None if until is None else int(until * units.SECOND),
        )
        done = ask(context, lambda bus: of(bus).replay(topic, name, **wanted))
        output.tell(done, f"{noun} {name} of {topic} sends {counted(done.messages, 'message')} again")

    @command(
        "delete", "Delete one with its group. What it has not sent is not sent any more.", "delete alerts ops"
    )
    def delete(topic: Topic, name: Name, context: ContextName = None) -> None:
        deleted = ask(context, lambda bus: of(bus).delete(topic, name))
        output.tell(deleted, f"{noun} {name} of {topic} is deleted")


def _show_test(tested: OutletTested) -> None:
    if tested.attempt is None:
        output.notice(f"the test {tested.id} has no answer yet: see 'show'")
    else:
        output.table(ATTEMPTS, [output.fields(tested.attempt)], empty="")
