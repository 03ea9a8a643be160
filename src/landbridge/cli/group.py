"""``landbridge group``: the audiences of a topic."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from landbridge.cli import crossing_group, output, units
from landbridge.cli.options import ContextName, Group, Json, Registry, Topic, given, pairs
from landbridge.cli.output import Column
from landbridge.core.wording import counted

app = typer.Typer(no_args_is_help=True, help="Groups: the audiences of a topic. Each gets every message.")

LIST = [
    Column("Topic", "topic", style="cyan"),
    Column("Group", "name", style="cyan"),
    Column("Discipline", "discipline"),
    Column("Lag", "lag", units.count, "yellow"),
    Column("Leased", "leased", units.count),
    Column("Retrying", "retrying", units.count, "yellow"),
    Column("Consumers", "consumers", units.count),
    Column("Settled to", "floor", units.count),
]
SHOW = [
    Column("Discipline", "discipline"),
    Column("Lag", "lag", units.count, "yellow"),
    Column("Settled to", "floor", units.count),
    Column("Leased", "leased", units.count),
    Column("Retrying", "retrying", units.count),
    Column("Ack within", "ack_within", units.span),
    Column("Max attempts", "max_attempts", units.count),
    Column("Backoff", "backoff", units.span),
    Column("Backoff at most", "backoff_most", units.span),
    Column("Dead letters", "dead_letter"),
    Column("Match", "match"),
    Column("Kept", "kept"),
]
CONSUMERS = [
    Column("Consumer", "who", style="cyan"),
    Column("Held", "held", units.count),
    Column("Prefetch", "prefetch", units.count),
]


Discipline = Annotated[
    Literal["fifo", "lifo", "priority"] | None,
    typer.Option(help="In which order messages are taken.", show_default="fifo"),
]
AckWithin = Annotated[
    float | None,
    typer.Option(
        metavar="SPAN",
        parser=units.parse_span,
        help="Longest time without progress, after which another consumer gets the messages.",
        show_default="30s",
    ),
]
MaxAttempts = Annotated[
    int | None, typer.Option(min=1, help="Attempts before a message is buried.", show_default="10")
]
Backoff = Annotated[
    float | None,
    typer.Option(
        metavar="SPAN",
        parser=units.parse_span,
        help="Wait before the second attempt; doubles with each one.",
        show_default="1s",
    ),
]
BackoffMost = Annotated[
    float | None,
    typer.Option(metavar="SPAN", parser=units.parse_span, help="Longest wait.", show_default="1m"),
]
DeadLetter = Annotated[
    str | None,
    typer.Option(metavar="TOPIC", help="Where buried messages go, or 'none'.", show_default="TOPIC.dead"),
]
MatchKey = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="Only messages whose key matches, e.g. 'eu-*'.")
]
MatchHeader = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=PATTERN", help="Only messages whose header matches. Repeatable."),
]


#: TOPIC GROUP: of a topic, at one terminal. GROUP alone: a terminal group, in the registry.
First = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="The topic's name; of a terminal group, its own.", show_default=False
    ),
]
Second = Annotated[str | None, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False)]
Terminals = Annotated[
    list[str], typer.Argument(metavar="TERMINAL…", help="By name or id.", show_default=False)
]


@app.command()
def create(
    first: First,
    second: Second = None,
    discipline: Discipline = None,
    ack_within: AckWithin = None,
    max_attempts: MaxAttempts = None,
    backoff: Backoff = None,
    backoff_most: BackoffMost = None,
    dead_letter: DeadLetter = None,
    match_key: MatchKey = None,
    match_header: MatchHeader = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME",
            parser=units.parse_start,
            help="Where to begin: an ISO 8601 time, '10m ago', -10m.",
            show_default="earliest",
        ),
    ] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Or begin at this offset.")] = None,
    terminal: Annotated[
        list[str] | None,
        typer.Option(metavar="TERMINAL", help="Without a topic: where its consumers may be. Repeatable."),
    ] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Create a group. Creating one that is there with the same options changes nothing.

    Without a topic it is a terminal group, in the registry, for the topics that cross LANs.

    \b
    Examples:
      landbridge group create orders billing --ack-within 1m --max-attempts 5
      landbridge group create orders eu --match-key 'eu-*' --from latest
      landbridge group create billing --terminal tokyo --terminal osaka
    """
    from landbridge.cli.loop import ask

    options = _options(
        discipline, ack_within, max_attempts, backoff, backoff_most, dead_letter, match_key, match_header
    )
    begin = given(start=_start(start), offset=offset)
    if second is None:
        if options or begin:
            raise typer.BadParameter("these options are for a group of a topic: give TOPIC GROUP")
        crossing_group.create(context, first, terminal or [])
        return
    if terminal:
        raise typer.BadParameter("--terminal is for a terminal group: give GROUP alone")
    topic, name = first, second
    result = ask(context, "group.create", topic=topic, name=name, **options, **begin)
    output.emit(
        result, lambda group: output.done(f"the group {name} of {topic} is there, lag {group['lag']:,}")
    )


@app.command()
def update(
    topic: Topic,
    name: Group,
    discipline: Discipline = None,
    ack_within: AckWithin = None,
    max_attempts: MaxAttempts = None,
    backoff: Backoff = None,
    backoff_most: BackoffMost = None,
    dead_letter: DeadLetter = None,
    match_key: MatchKey = None,
    match_header: MatchHeader = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Change a group's options, from now on. What its consumers hold is handed out again.

    \b
    Examples:
      landbridge group update orders billing --max-attempts 20
      landbridge group update orders billing --discipline priority
    """
    from landbridge.cli.loop import ask

    options = _options(
        discipline, ack_within, max_attempts, backoff, backoff_most, dead_letter, match_key, match_header
    )
    if not options:
        raise typer.BadParameter("nothing to change: give an option")
    result = ask(context, "group.update", topic=topic, name=name, **options)
    output.emit(
        result, lambda group: output.done(f"the group {name} of {topic} is changed, lag {group['lag']:,}")
    )


def _options(
    discipline: str | None,
    ack_within: float | None,
    max_attempts: int | None,
    backoff: float | None,
    backoff_most: float | None,
    dead_letter: str | None,
    match_key: str | None,
    match_header: list[str] | None,
) -> dict[str, Any]:
    match = given(key=match_key, headers=pairs(match_header or [], "match") or None)
    return given(
        discipline=discipline,
        ack_within=ack_within,
        max_attempts=max_attempts,
        backoff=backoff,
        backoff_most=backoff_most,
        dead_letter="" if dead_letter == "none" else dead_letter,
        match=match or None,
    )


def _start(start: str | float | None) -> str | int | None:
    """As the terminal wants it: a moment in microseconds."""
    return int(start * 1_000_000) if isinstance(start, float) else start


@app.command("list")
def list_groups(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only this topic's.")] = None,
    registry: Registry = False,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """List groups, with how far behind they are.

    \b
    Examples:
      landbridge group list
      landbridge group list orders
    """
    from landbridge.cli.loop import ask_all

    if registry:
        if topic is not None:
            raise typer.BadParameter("with --registry, all groups are listed: name no topic")
        crossing_group.list_all(context)
        return
    rows = ask_all(context, "group.list", "groups", **given(topic=topic))
    empty = "no groups yet: 'landbridge group create TOPIC GROUP', or just subscribe with one"
    output.emit(rows, lambda rows: output.table(LIST, rows, empty=empty))


@app.command()
def show(
    first: First,
    second: Second = None,
    registry: Registry = False,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Show a group: where it is, its options and its consumers. With --registry: its terminals and topics.

    \b
    Examples:
      landbridge group show orders billing
      landbridge group show billing --registry
    """
    from landbridge.cli.loop import ask

    if _is_crossing(second, registry):
        crossing_group.show(context, first)
        return
    output.emit(ask(context, "group.show", topic=first, name=second), _show)


def _is_crossing(second: str | None, registry: bool) -> bool:
    if registry == (second is not None):
        raise typer.BadParameter("give TOPIC GROUP, or GROUP --registry for a terminal group")
    return registry


def _show(group: dict[str, Any]) -> None:
    options = group["options"]
    dead = options["dead_letter"]
    match = options["match"] or {}
    patterns = {"key": match.get("key"), **match.get("headers", {})}
    row = {
        **options,
        **group,
        "dead_letter": f"{group['topic']}.dead" if dead is None else dead or "none",
        "match": " ".join(f"{name}={pattern}" for name, pattern in patterns.items() if pattern)
        or "everything",
        "kept": "on disk" if group["durable"] else "while its subscriber is connected",
    }
    output.record(f"{group['topic']} › {group['name']}", SHOW, row)
    print()
    output.table(CONSUMERS, group["consumers"], empty="  no consumers")


@app.command()
def seek(
    topic: Topic,
    name: Group,
    to: Annotated[
        str | None, typer.Option(metavar="OFFSET|earliest|latest", help="Go to an offset, or to an end.")
    ] = None,
    time: Annotated[
        float | None,
        typer.Option(
            metavar="TIME", parser=units.parse_moment, help="Go to a time: ISO 8601, '10m ago' or -10m."
        ),
    ] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Move a group: back to read messages again, or forward to skip some.

    \b
    Examples:
      landbridge group seek orders billing --to earliest
      landbridge group seek orders billing --to 1200
      landbridge group seek orders billing --time '2h ago'
    """
    from landbridge.cli.loop import ask

    if (to is None) == (time is None):
        raise typer.BadParameter("give either --to or --time")
    target: dict[str, Any]
    if to is None:
        assert time is not None
        target = {"time": int(time * 1_000_000)}
    elif to in ("earliest", "latest"):
        target = {"to": to}
    elif to.isascii() and to.isdecimal():
        target = {"to": int(to)}
    else:
        raise typer.BadParameter(f"{to!r} is neither an offset nor 'earliest' or 'latest'")
    result = ask(context, "group.seek", topic=topic, name=name, **target)
    offset = target.get("to")
    beyond = isinstance(offset, int) and offset > result["floor"]
    ended = f", its end (there is no offset {offset:,} yet)" if beyond else ""
    output.emit(
        result,
        lambda group: output.done(
            f"{name} goes on at offset {group['floor']:,} of {topic}{ended}, lag {group['lag']:,}"
        ),
    )


@app.command()
def redrive(topic: Topic, name: Group, context: ContextName = None, json: Json = False) -> None:
    """Give a group its dead letters again. Those go back into the topic, for this group alone.

    \b
    Examples:
      landbridge group redrive orders billing
    """
    from landbridge.cli.loop import ask

    result = ask(context, "group.redrive", within=None, topic=topic, name=name)
    output.emit(
        result,
        lambda result: output.done(f"{counted(result['redriven'], 'message')} redriven to {name} of {topic}"),
    )


@app.command()
def delete(
    first: First,
    second: Second = None,
    force: Annotated[bool, typer.Option("--force", help="Also if it hasn't settled everything.")] = False,
    registry: Registry = False,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Delete a group. The messages stay in the topic.

    \b
    Examples:
      landbridge group delete orders billing
      landbridge group delete billing --registry
    """
    from landbridge.cli.loop import ask

    if _is_crossing(second, registry):
        crossing_group.delete(context, first, force=force)
        return
    result = ask(context, "group.delete", topic=first, name=second, force=force)
    output.emit(result, lambda _: output.done(f"the group {second} of {first} is deleted"))


@app.command("add-terminal")
def add_terminal(name: Group, terminal: Terminals, context: ContextName = None, json: Json = False) -> None:
    """Add terminals to a terminal group, in the registry: its consumers may be there.

    \b
    Examples:
      landbridge group add-terminal billing tokyo osaka
    """
    crossing_group.add_terminals(context, name, terminal)


@app.command("remove-terminal")
def remove_terminal(
    name: Group,
    terminal: Terminals,
    force: Annotated[
        bool, typer.Option("--force", help="Also with messages on their way: they are given up.")
    ] = False,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Take terminals out of a terminal group, in the registry.

    \b
    Examples:
      landbridge group remove-terminal billing osaka
    """
    crossing_group.remove_terminals(context, name, terminal, force=force)
