"""``landbridge schedule``: messages at given times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
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
from landbridge.cli.output import columns
from landbridge.core.wording import counted

if TYPE_CHECKING:
    from landbridge.protocol.operations import ScheduleDetails, ScheduleRow

app = Commands(no_args_is_help=True, help="Schedules: messages for a topic at given times, each once.")

LIST = columns(
    "Topic@cyan | Schedule=name@cyan | When | Zone | State | Next=next_at:moment | Last=last_at:moment | "
    "Fired:count | Skipped:count@yellow | Missed:count@red | Refused:count@red"
)
SHOW = columns(
    "When | Zone | State | Owner | Overlap | Catch-up=catch_up:span | Jitter:span | Key | Payload | "
    "Fired:count | Skipped:count@yellow | Missed:count@red | Refused:count@red | Waiting:count@yellow | "
    "Paused=paused_at:moment | Paused by | Note"
)
NEXT = columns("Next=at@cyan | In zone=local | When=moment:moment")
FIRINGS = columns(
    "Fire time=at@cyan | Outcome | Cause=why | Decided=decided_at:moment | Offset | Count:count | "
    "Error=cause@red"
)

Name = Annotated[str, argument("NAME", "The schedule's name.", autocompletion=completion.schedule_names)]
Expression = Annotated[
    str, argument("WHEN", "'30 2 * * mon-fri', @daily, '@every 90s', '@at 2026-12-24T18:00'.")
]


class ScheduleFlags(OptionGroup):
    """The options of a schedule."""

    zone: str | None = option("Time zone, such as Europe/Berlin.", default="UTC")
    payload: str | None = option("The payload: JSON, or a text as it is.", metavar="JSON|TEXT")
    key: str | None = option("Key of the messages.")
    header: list[str] | None = option("A header of the messages. Repeatable.", metavar="NAME=VALUE")
    priority: int | None = option("Priority of the messages.", min=0, max=9, default="0")
    overlap: Literal["skip", "buffer-one", "buffer-all", "allow"] | None = option(
        "What becomes of a firing while the message before is not settled.", default="skip"
    )
    catch_up: float | None = span("How late a firing may be before it is missed.", default="10m")
    jitter: float | None = span("Delay each firing by up to this span.", default="0s")

    def as_asked(self) -> dict[str, Any]:
        """Those that were given, as the terminal wants them."""
        options = self.given("zone", "key", "priority", "overlap", "catch_up", "jitter")
        payload = None if self.payload is None else _value(self.payload)
        return options | given(payload=payload, headers=pairs(self.header, "header") or None)


def _value(text: str) -> Any:
    """JSON where it is an object or a list, otherwise the text as it is."""
    if text[:1] not in ("{", "["):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"the payload begins like JSON and isn't: {error}") from None


@app.command()
def create(
    topic: Topic, name: Name, when: Expression, *, options: ScheduleFlags, context: ContextName = None
) -> None:
    """Create a schedule. It publishes to the topic in your name, so you need the scope publish:TOPIC.

    Examples:
      landbridge schedule create reports nightly '30 2 * * *' --zone Europe/Berlin --payload '{"a": 1}'
      landbridge schedule create jobs poll '@every 90s' --overlap buffer-one
      landbridge schedule create mail greeting '@at 2030-12-24T18:00' --payload 'Merry Christmas'
    """
    made = ask(context, lambda bus: bus.schedules.create(topic, name, when, **options.as_asked()))
    output.tell(made, f"the schedule {name} of {topic} is there, {_next(made)}")


def _next(row: ScheduleRow) -> str:
    if row.next_at is None:
        return f"it is {row.state}"
    return f"it fires next at {_local(row.next_at, row.zone)} ({units.ago(row.next_at)})"


def _local(moment: int, zone: str) -> str:
    """What the clocks of a zone show at a moment."""
    from landbridge.core.schedule.zones import datetime_of, read_zone

    return f"{datetime_of(moment, read_zone(zone)):%a %Y-%m-%d %H:%M:%S %Z}"


@app.command()
def update(
    topic: Topic,
    name: Name,
    when: str | None = option("Another expression; it counts from now on.", metavar="WHEN"),
    *,
    options: ScheduleFlags,
    context: ContextName = None,
) -> None:
    """Change a schedule's options. From then on it publishes in your name.

    Examples:
      landbridge schedule update reports nightly --when '0 3 * * *'
      landbridge schedule update jobs poll --catch-up 1h
    """
    wanted = options.as_asked() | given(when=when)
    if not wanted:
        raise typer.BadParameter("nothing to change: give an option")
    changed = ask(context, lambda bus: bus.schedules.update(topic, name, **wanted))
    output.tell(changed, f"the schedule {name} of {topic} is changed, {_next(changed)}")


@app.command("list")
def list_schedules(
    topic: str | None = argument("TOPIC", "Only this topic's.", show_default=True),
    context: ContextName = None,
) -> None:
    """List schedules, with when they fire next.

    Examples:
      landbridge schedule list
      landbridge schedule list reports
    """
    rows = ask(context, lambda bus: bus.schedules.list(topic=topic))
    output.rows(LIST, rows, empty="no schedules yet: 'landbridge schedule create TOPIC NAME WHEN'")


@app.command()
def show(
    topic: Topic,
    name: Name,
    count: int = option("Next firings to show.", value=5, min=0, max=100),
    context: ContextName = None,
) -> None:
    """Show a schedule: its options, its next firings, and what became of the last ones.

    Examples:
      landbridge schedule show reports nightly
      landbridge schedule show reports nightly --count 20
    """
    output.emit(ask(context, lambda bus: bus.schedules.show(topic, name, count)), _show)


def _show(found: ScheduleDetails) -> None:
    row = output.fields(found.options) | output.fields(found, waiting=len(found.waiting))
    payload = found.options.payload
    row["payload"] = payload if isinstance(payload, str) else msgspec.json.encode(payload).decode()
    output.record(f"{found.topic} › {found.name}", SHOW, row)
    print()
    following = [
        {"at": units.iso(at), "local": _local(at, found.zone), "moment": at} for at in found.next_firings
    ]
    output.table(NEXT, following, empty="  no next firings")
    print()
    last = [output.fields(each, at=units.iso(each.at)) for each in found.last_firings]
    output.table(FIRINGS, last, empty="  nothing has fired yet")


@app.command()
def pause(
    topic: Topic,
    name: Name,
    note: Note = "",
    context: ContextName = None,
) -> None:
    """Pause a schedule. What it would have published meanwhile is not made up for.

    Examples:
      landbridge schedule pause reports nightly --note 'the printer is broken'
    """
    paused = ask(context, lambda bus: bus.schedules.pause(topic, name, note=note))
    output.tell(paused, f"the schedule {name} of {topic} is paused")


@app.command()
def resume(topic: Topic, name: Name, context: ContextName = None) -> None:
    """Let a paused schedule go on from now.

    Examples:
      landbridge schedule resume reports nightly
    """
    resumed = ask(context, lambda bus: bus.schedules.resume(topic, name))
    output.tell(resumed, f"the schedule {name} of {topic} goes on, {_next(resumed)}")


@app.command()
def trigger(topic: Topic, name: Name, context: ContextName = None) -> None:
    """Publish a schedule's message once, now.

    Examples:
      landbridge schedule trigger reports nightly
    """
    done = ask(context, lambda bus: bus.schedules.trigger(topic, name))
    output.tell(done, f"{topic} gets the message {done.id}")


@app.command()
def backfill(
    topic: Topic,
    name: Name,
    begin: Annotated[float, From],
    until: Until = None,
    context: ContextName = None,
) -> None:
    """Publish the messages of a range of the past, with the ids that they would have had.

    Examples:
      landbridge schedule backfill reports nightly --from '7d ago'
      landbridge schedule backfill reports nightly --from 2026-01-01T00:00:00Z --until 2026-01-31T23:59:59Z
    """
    first = int(begin * units.SECOND)
    last = units.now() if until is None else int(until * units.SECOND)
    done = ask(context, lambda bus: bus.schedules.backfill(topic, name, begin=first, until=last))
    output.tell(done, f"{topic} gets {counted(done.firings, 'message')} of the schedule {name}")


@app.command()
def remove(topic: Topic, name: Name, context: ContextName = None) -> None:
    """Remove a schedule. What it has published stays.

    Examples:
      landbridge schedule remove reports nightly
    """
    removed = ask(context, lambda bus: bus.schedules.remove(topic, name))
    output.tell(removed, f"the schedule {name} of {topic} is removed")
