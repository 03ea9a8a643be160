"""``landbridge topic``: named streams of messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from landbridge.cli import crossing_topic, output, units
from landbridge.cli.options import ContextName, Json, Registry, Topic, given
from landbridge.cli.output import Column

app = typer.Typer(no_args_is_help=True, help="Topics: named streams of messages.")

MaxAge = Annotated[
    float | None,
    typer.Option(
        metavar="SPAN",
        parser=units.parse_span_or_none,
        help="Keep messages for so long (7d, 12h), or 'none' for ever. New topics: 7d.",
    ),
]
MaxBytes = Annotated[
    float | None,
    typer.Option(
        metavar="SIZE",
        parser=units.parse_size_or_none,
        help="Keep so many bytes (10GB, 512MiB), or 'none' for no limit. New topics: none.",
    ),
]
RetainSettled = Annotated[
    bool | None,
    typer.Option(
        "--retain-settled/--drop-settled",
        help="Keep or drop what every group has settled. A new stream keeps it, a queue drops it.",
    ),
]
Discard = Annotated[
    Literal["settled", "any"] | None,
    typer.Option(
        help="What --max-age and --max-bytes may remove: what all groups have settled, or anything."
    ),
]
MaxBacklog = Annotated[
    int | None,
    typer.Option(
        metavar="SIZE",
        parser=units.parse_size,
        help="Refuse publishes while the slowest group is so many bytes behind.",
    ),
]
Producer = Annotated[
    str | None, typer.Option(metavar="SUBJECT", help="The only one who may publish to this queue.")
]
Delivery = Annotated[
    Literal["at-least-once", "at-most-once"] | None,
    typer.Option(help="Of a queue: at-most-once settles a message when it is handed out."),
]

Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group", metavar="GROUP", help="With --registry: a terminal group that gets it. Repeatable."
    ),
]
Senders = Annotated[
    list[str] | None,
    typer.Option(
        "--sender", metavar="TERMINAL", help="With --registry: only these may send, or 'all'. Repeatable."
    ),
]
LateOpen = Annotated[
    Literal["renew", "sender_only", "never"] | None,
    typer.Option(help="With --registry: who may renew a ticket that expired on the way. New topics: renew."),
]
TicketScope = Annotated[
    Literal["window", "message"] | None,
    typer.Option(help="With --registry: a ticket for a minute's messages, or for each. New topics: window."),
]
ManyGroups = Annotated[
    list[str], typer.Argument(metavar="GROUP…", help="Terminal groups.", show_default=False)
]

LIST = [
    Column("Topic", "name", style="cyan"),
    Column("Kind", "kind"),
    Column("Messages", "messages", units.count),
    Column("Size", "bytes", units.size),
    Column("Groups", "groups", units.count),
    Column("Created", "created_at", units.ago, plain=units.iso),
]
SHOW = [
    Column("Kind", "kind"),
    Column("Messages", "messages", units.count),
    Column("Offsets", "offsets"),
    Column("Size", "bytes", units.size),
    Column("Created", "created_at", units.ago, plain=units.iso),
    Column("Max age", "max_age"),
    Column("Max bytes", "max_bytes"),
    Column("Max backlog", "max_backlog", units.size),
    Column("Settled", "settled"),
    Column("Discard", "discard"),
]
SHOW_QUEUE = [Column("Delivery", "delivery"), Column("Producer", "producer")]


def _options(
    max_age: float | None,
    max_bytes: float | None,
    retain_settled: bool | None,
    discard: str | None,
    max_backlog: int | None,
    producer: str | None,
    delivery: str | None,
) -> dict[str, Any]:
    """The options that were given, as the terminal wants them."""
    retention = given(max_age=max_age, max_bytes=max_bytes, discard=discard)
    for name in ("max_age", "max_bytes"):
        if retention.get(name) == units.UNLIMITED:
            retention[name] = None
    if retain_settled is not None:
        retention["settled"] = not retain_settled
    options = given(max_backlog=max_backlog, producer=producer, delivery=delivery)
    return {**options, "retention": retention} if retention else options


def _crossing(
    registry: bool,
    theirs: dict[str, Any],
    late_open: str | None,
    ticket_scope: str | None,
    *others: list[str] | None,
) -> dict[str, Any]:
    """The options of a registry's topic that were given. Those of a terminal's don't go with them."""
    options = given(late_open=late_open, ticket_scope=ticket_scope)
    if not registry and (options or any(others)):
        raise typer.BadParameter("--group, --sender, --late-open and --ticket-scope are for --registry")
    retention = theirs.get("retention", {})
    if registry and (set(theirs) - {"retention"} or set(retention) - {"max_age"}):
        raise typer.BadParameter("of a terminal's options, only --max-age goes with --registry")
    if registry and retention.get("max_age", 0.0) is None:
        raise typer.BadParameter("with --registry, --max-age is a span: no message can be opened for ever")
    return options | (given(max_age=retention.get("max_age")) if registry else {})


@app.command()
def create(
    name: Topic,
    kind: Annotated[
        Literal["stream", "queue"] | None,
        typer.Option(
            help="stream: any producers, any groups. queue: one producer, one group, one consumer.",
            show_default="stream",
        ),
    ] = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    retain_settled: RetainSettled = None,
    discard: Discard = None,
    max_backlog: MaxBacklog = None,
    producer: Producer = None,
    delivery: Delivery = None,
    registry: Registry = False,
    group: Groups = None,
    sender: Senders = None,
    late_open: LateOpen = None,
    ticket_scope: TicketScope = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Create a topic. Creating one that is there with the same options changes nothing.

    With --registry: a topic that crosses LANs, with the terminal groups that get its messages.

    \b
    Examples:
      landbridge topic create orders --max-age 30d
      landbridge topic create jobs --kind queue --producer scheduler
      landbridge topic create orders --registry --group billing --group shipping
    """
    from landbridge.cli.loop import ask

    options = _options(max_age, max_bytes, retain_settled, discard, max_backlog, producer, delivery)
    crossing = _crossing(registry, options | given(kind=kind), late_open, ticket_scope, group, sender)
    if registry:
        crossing_topic.create(context, name, group or [], None if sender == ["all"] else sender, crossing)
        return
    result = ask(context, "topic.create", name=name, kind=kind or "stream", **options)
    output.emit(result, lambda topic: output.done(f"the {topic['kind']} {name} is there"))


@app.command()
def update(
    name: Topic,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    retain_settled: RetainSettled = None,
    discard: Discard = None,
    max_backlog: MaxBacklog = None,
    producer: Producer = None,
    delivery: Delivery = None,
    registry: Registry = False,
    sender: Senders = None,
    late_open: LateOpen = None,
    ticket_scope: TicketScope = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Change a topic's options. What isn't given stays as it is.

    \b
    Examples:
      landbridge topic update orders --max-age 90d --max-bytes 10GB
      landbridge topic update orders --registry --late-open never
    """
    from landbridge.cli.loop import ask

    options = _options(max_age, max_bytes, retain_settled, discard, max_backlog, producer, delivery)
    crossing = _crossing(registry, options, late_open, ticket_scope, sender)
    if not options and not crossing and sender is None:
        raise typer.BadParameter("nothing to change: give at least one option")
    if registry:
        crossing_topic.update(context, name, sender, crossing)
        return
    result = ask(context, "topic.update", name=name, **options)
    output.emit(result, lambda _: output.done(f"the topic {name} is changed"))


@app.command("list")
def list_topics(registry: Registry = False, context: ContextName = None, json: Json = False) -> None:
    """List the topics that you may publish or subscribe to.

    \b
    Examples:
      landbridge topic list
      landbridge topic list --json | jq -r '.[].name'
    """
    from landbridge.cli.loop import ask_all

    if registry:
        crossing_topic.list_all(context)
        return
    rows = ask_all(context, "topic.list", "topics")
    empty = "no topics yet: 'landbridge topic create NAME', or just publish to one"
    output.emit(rows, lambda rows: output.table(LIST, rows, empty=empty))


@app.command()
def show(name: Topic, registry: Registry = False, context: ContextName = None, json: Json = False) -> None:
    """Show a topic: what it holds, its options and its groups.

    \b
    Examples:
      landbridge topic show orders
    """
    from landbridge.cli.loop import ask

    if registry:
        crossing_topic.show(context, name)
        return
    output.emit(ask(context, "topic.show", name=name), _show)


def _show(topic: dict[str, Any]) -> None:
    from landbridge.cli.group import LIST as GROUPS

    options, retention = topic["options"], topic["options"]["retention"]
    pretty = output.on_terminal()
    age, most = retention["max_age"], retention["max_bytes"]
    row = {
        **topic,
        "offsets": f"{topic['first']} to {topic['end'] - 1}" if topic["messages"] else "",
        "max_age": "none" if age is None else units.span(age) if pretty else f"{age:g}",
        "max_bytes": "none" if most is None else units.size(most) if pretty else str(most),
        "max_backlog": options["max_backlog"],
        "settled": "dropped" if retention["settled"] else "kept",
        "discard": retention["discard"],
        "delivery": options["delivery"],
        "producer": options["producer"] or "whoever comes first",
    }
    output.record(topic["name"], SHOW + (SHOW_QUEUE if topic["kind"] == "queue" else []), row)
    print()
    output.table(GROUPS[1:], topic["groups"], empty="  no groups")


@app.command()
def delete(
    name: Topic,
    force: Annotated[
        bool, typer.Option("--force", help="Also with messages that a group hasn't settled.")
    ] = False,
    registry: Registry = False,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Delete a topic with its messages and groups, for good. With --registry: it no longer crosses LANs.

    \b
    Examples:
      landbridge topic delete orders
    """
    from landbridge.cli.loop import ask

    if not force:
        output.confirm(
            f"Delete the topic {name} {'from the registry' if registry else 'with all its messages'}?"
        )
    if registry:
        crossing_topic.delete(context, name, force=force)
        return
    result = ask(context, "topic.delete", name=name, force=force)
    output.emit(result, lambda _: output.done(f"the topic {name} is deleted"))


@app.command("add-group")
def add_group(name: Topic, group: ManyGroups, context: ContextName = None, json: Json = False) -> None:
    """Add terminal groups to a topic, in the registry. They get what is published from then on.

    \b
    Examples:
      landbridge topic add-group orders billing shipping
    """
    crossing_topic.add_groups(context, name, group)


@app.command("remove-group")
def remove_group(
    name: Topic,
    group: ManyGroups,
    force: Annotated[
        bool, typer.Option("--force", help="Also with messages on their way: they are given up.")
    ] = False,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Take terminal groups off a topic, in the registry.

    \b
    Examples:
      landbridge topic remove-group orders shipping
    """
    crossing_topic.remove_groups(context, name, group, force=force)
