"""``landbridge group``: the audiences of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from landbridge.cli import completion, output, units
from landbridge.cli.loop import ask
from landbridge.cli.mistyped import Watch
from landbridge.cli.options import (
    START,
    Commands,
    ContextName,
    Group,
    OptionGroup,
    Registry,
    ShowAll,
    Topic,
    argument,
    flag,
    given,
    option,
    pairs,
    span,
    start_of,
)
from landbridge.cli.output import columns
from landbridge.cli.pausing import and_paused, told, with_pause
from landbridge.cli.registry_access import as_admin, change, everything, find_terminals, terminal_names
from landbridge.core.names import is_reserved
from landbridge.core.wording import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from landbridge.client.bus import Bus
    from landbridge.client.registry import RegistryClient
    from landbridge.client.registry_documents import TerminalGroup
    from landbridge.protocol.operations import GroupDetails, GroupRow

app = Commands(
    no_args_is_help=True,
    help="Groups of a topic: its audiences. Each gets every message. With --registry: terminal groups.",
)

LIST = columns(
    "Topic@cyan | Group=name@cyan | Discipline | Lag:count@yellow | Leased:count | "
    "Retrying:count@yellow | Consumers:count | Settled to=floor:count"
)
SHOW = columns(
    "Discipline | Order | Lag:count@yellow | Settled to=floor:count | Leased:count | Retrying:count | "
    "Ack within:span | Max attempts:count | Backoff:span | Backoff at most=backoff_most:span | "
    "Dead letters=dead_letter | Match | Open=hours | Kept | "
    "Paused@yellow"
)
#: Of terminal groups.
LIST_CROSSING = columns(
    "Group=name@cyan | Terminals=terminal_names | Topics=topic_names | Created=created_at:moment"
)
CONSUMERS = columns("Consumer=who@cyan | Held:count | Prefetch:count")


class GroupFlags(OptionGroup):
    """The options of a group of a topic."""

    discipline: Literal["fifo", "lifo", "priority"] | None = option(
        "In which order messages are taken.", default="fifo"
    )
    order: Literal["any", "key"] | None = option(
        "key: messages of one key go one at a time, in order, over all consumers.", default="any"
    )
    ack_within: float | None = span(
        "Longest time without progress, after which another consumer gets the messages.", default="30s"
    )
    max_attempts: int | None = option(
        "Deliveries before the terminal buries a message, whoever the consumer is.", min=1, default="10"
    )
    backoff: float | None = span("Wait before the second attempt; doubles with each one.", default="1s")
    backoff_most: float | None = span("Longest wait.", default="1m")
    dead_letter: str | None = option(
        "Where buried messages go, or 'none'.", metavar="TOPIC", default="TOPIC.dead"
    )
    match_key: str | None = option("Only messages whose key matches, e.g. 'eu-*'.", metavar="PATTERN")
    match_header: list[str] | None = option(
        "Only messages whose header matches. Repeatable.", metavar="NAME=PATTERN"
    )

    hours: list[str] | None = option(
        "When it hands out messages, or 'always'. Repeatable.",
        metavar="'mon-fri 08:00-18:00 Europe/Berlin'",
    )

    def as_asked(self) -> dict[str, Any]:
        """Those that were given, as the terminal wants them."""
        options = self.given("discipline", "order", "ack_within", "max_attempts", "backoff", "backoff_most")
        match = given(key=self.match_key, headers=pairs(self.match_header, "match") or None)
        dead_letter = "" if self.dead_letter == "none" else self.dead_letter
        hours = [] if self.hours == ["always"] else self.hours
        return options | given(dead_letter=dead_letter, match=match or None, hours=hours)


#: TOPIC GROUP: of a topic, at one terminal. GROUP --registry: a terminal group, in the registry.
First = Annotated[
    str,
    argument(
        "TOPIC",
        "The topic's name; with --registry, the terminal group's.",
        autocompletion=completion.topic_names,
    ),
]
Second = Annotated[str | None, argument("GROUP", "The group's name.", autocompletion=completion.group_names)]
TerminalGroupName = Annotated[str, argument("GROUP", "The terminal group's name.")]
Terminals = Annotated[list[str], argument("TERMINAL…", "By name or id.")]


@app.command()
def create(
    first: First,
    second: Second = None,
    *,
    options: GroupFlags,
    start: str | None = start_of(START, "earliest"),
    offset: int | None = option("Or begin at this offset.", min=0),
    registry: Registry = False,
    terminal: list[str] | None = option(
        "With --registry: where its consumers may be. Repeatable.", metavar="TERMINAL"
    ),
    context: ContextName = None,
) -> None:
    """Create a group of a topic. Creating one that is there with the same options changes nothing.

    With --registry: create a terminal group, which says at which terminals the consumers of the groups with
    this name may be, for the topics that cross LANs.

    Examples:
      landbridge group create orders billing --ack-within 1m --max-attempts 5
      landbridge group create orders eu --match-key 'eu-*' --from latest
      landbridge group create orders office --hours 'mon-fri 08:00-18:00 Europe/Berlin'
      landbridge group create orders billing --order key
      landbridge group create billing --registry --terminal tokyo --terminal osaka
    """
    begin: Any = start  # parsed: a word, or a moment in seconds
    if isinstance(begin, float):
        begin = int(begin * units.SECOND)
    wanted = options.as_asked() | given(start=begin, offset=offset)
    if second is None:
        if wanted:
            raise typer.BadParameter("these options are for a group of a topic: give TOPIC GROUP")
        if not registry and not terminal:
            raise typer.BadParameter(
                f"of which topic is the group {first}? 'landbridge group create TOPIC {first}'; "
                f"'landbridge group create {first} --registry' makes a terminal group"
            )
        create_terminal_group(first, terminal, context)
        return
    if terminal or registry:
        raise typer.BadParameter("--registry and --terminal are for a terminal group: give GROUP alone")

    async def make(bus: Bus) -> GroupRow:
        watch = await Watch.begin(bus, first)
        found = await bus.groups.create(first, second, **wanted)
        await watch.tell()
        return found

    made = ask(context, make)
    output.tell(made, f"the group {second} of {first} is there, lag {made.lag:,}")


def create_terminal_group(
    name: TerminalGroupName,
    terminal: list[str] | None = option("Where its consumers may be. Repeatable.", metavar="TERMINAL"),
    context: ContextName = None,
) -> None:
    """Create a terminal group: 'landbridge group create --registry'."""
    _change(context, terminal or [], lambda client, ids: client.create_terminal_group(name, ids))


def _change(
    context: str | None,
    terminals: list[str],
    work: Callable[[RegistryClient, list[str]], Awaitable[TerminalGroup]],
) -> None:
    """Change a terminal group in the registry, and tell where its consumers may be. ``work`` gets the ids
    of ``terminals``, which are names or ids."""

    async def both(client: RegistryClient) -> tuple[TerminalGroup, dict[str, str]]:
        group = await work(client, await find_terminals(client, terminals))
        return group, await terminal_names(client)

    def text(done: tuple[TerminalGroup, dict[str, str]]) -> str:
        group, names = done
        where = ", ".join(names.get(id, id) for id in group.terminals) or "no terminal yet"
        return f"the terminal group {group.name} has its consumers at {where}"

    change(context, both, text, lambda done: output.fields(done[0]))


@app.command()
def update(topic: Topic, name: Group, *, options: GroupFlags, context: ContextName = None) -> None:
    """Change a group's options, from now on. What its consumers hold is handed out again.

    Examples:
      landbridge group update orders billing --max-attempts 20
      landbridge group update orders billing --discipline priority
    """
    wanted = options.as_asked()
    if not wanted:
        raise typer.BadParameter("nothing to change: give an option")
    changed = ask(context, lambda bus: bus.groups.update(topic, name, **wanted))
    output.tell(changed, f"the group {name} of {topic} is changed, lag {changed.lag:,}")


@app.command("list")
def list_groups(
    topic: str | None = argument("TOPIC", "Only this topic's.", show_default=True),
    registry: Registry = False,
    all: ShowAll = False,
    context: ContextName = None,
) -> None:
    """List groups, with how far behind they are.

    Examples:
      landbridge group list
      landbridge group list orders
    """
    if registry:
        if topic is not None:
            raise typer.BadParameter("with --registry, all groups are listed: name no topic")
        groups, names = as_admin(context, _crossing_groups)
        empty = "no terminal groups yet: 'landbridge group create NAME --registry --terminal TERMINAL'"
        output.rows(LIST_CROSSING, groups, empty=empty, show=lambda group: _crossing_row(group, names))
        return
    rows = ask(context, lambda bus: bus.groups.list(topic=topic))
    if not all and topic is None:
        rows = output.without_own(rows, lambda row: is_reserved(row.topic) or is_reserved(row.name))
    empty = "no groups yet: 'landbridge group create TOPIC GROUP', or just subscribe with one"
    output.rows(and_paused(LIST, rows), rows, empty=empty, show=with_pause)


async def _crossing_groups(client: RegistryClient) -> tuple[list[TerminalGroup], dict[str, str]]:
    return await everything(client.list_terminal_groups), await terminal_names(client)


def _crossing_row(group: TerminalGroup, names: dict[str, str]) -> dict[str, Any]:
    """``names``: id → name of terminals."""
    where = ", ".join(names.get(id, id) for id in group.terminals)
    return output.fields(group, terminal_names=where, topic_names=", ".join(group.topics))


@app.command()
def show(
    first: First, second: Second = None, registry: Registry = False, context: ContextName = None
) -> None:
    """Show a group: where it is, its options and its consumers. With --registry: its terminals and topics.

    Examples:
      landbridge group show orders billing
      landbridge group show billing --registry
    """

    async def work(client: RegistryClient) -> tuple[TerminalGroup, dict[str, str]]:
        return await client.show_terminal_group(first), await terminal_names(client)

    group = _group_of_topic(second, registry)
    if group is None:
        found, names = as_admin(context, work)
        output.emit(found, lambda row: output.record(first, LIST_CROSSING[1:], _crossing_row(row, names)))
    else:
        output.emit(ask(context, lambda bus: bus.groups.show(first, group)), _show)


def _group_of_topic(second: str | None, registry: bool) -> str | None:
    """The name of the group; None where a terminal group is meant."""
    if registry == (second is not None):
        raise typer.BadParameter("give TOPIC GROUP, or GROUP --registry for a terminal group")
    return second


def _show(group: GroupDetails) -> None:
    options, match = group.options, group.options.match
    patterns = {} if match is None else {"key": match.key, **match.headers}
    row = output.fields(options) | output.fields(
        group,
        dead_letter=options.dead_topic or "none",
        match=" ".join(f"{name}={pattern}" for name, pattern in patterns.items() if pattern) or "everything",
        hours=_hours(group),
        kept="on disk" if group.durable else "while its subscriber is connected",
        paused=told(group.pause),
    )
    output.record(f"{group.topic} › {group.name}", SHOW, row)
    print()
    output.table(CONSUMERS, row["consumers"], empty="  no consumers")


def _hours(group: GroupDetails) -> str:
    hours = "; ".join(group.options.hours) or "always"
    return hours if group.closed_until is None else f"{hours} (closed until {units.iso(group.closed_until)})"


@app.command()
def seek(
    topic: Topic,
    name: Group,
    to: str | None = option("Go to an offset, or to an end.", metavar="OFFSET|earliest|latest"),
    time: float | None = option(
        "Go to a time: ISO 8601, '10m ago' or -10m.", metavar="TIME", parser=units.parse_moment
    ),
    context: ContextName = None,
) -> None:
    """Move a group: back to read messages again, or forward to skip some.

    Examples:
      landbridge group seek orders billing --to earliest
      landbridge group seek orders billing --to 1200
      landbridge group seek orders billing --time '2h ago'
    """
    if (to is None) == (time is None):
        raise typer.BadParameter("give either --to or --time")
    target: dict[str, Any]
    if to is None:
        assert time is not None
        target = {"time": int(time * units.SECOND)}
    elif to in ("earliest", "latest"):
        target = {"to": to}
    elif to.isascii() and to.isdecimal():
        target = {"to": int(to)}
    else:
        raise typer.BadParameter(f"{to!r} is neither an offset nor 'earliest' or 'latest'")
    moved = ask(context, lambda bus: bus.groups.seek(topic, name, **target))
    offset = target.get("to")
    beyond = isinstance(offset, int) and offset > moved.floor
    ended = f", its end (there is no offset {offset:,} yet)" if beyond else ""
    output.tell(moved, f"{name} goes on at offset {moved.floor:,} of {topic}{ended}, lag {moved.lag:,}")


@app.command()
def redrive(topic: Topic, name: Group, context: ContextName = None) -> None:
    """Give a group its dead letters again. Those go back into the topic, for this group alone.

    Examples:
      landbridge group redrive orders billing
    """
    done = ask(context, lambda bus: bus.groups.redrive(topic, name), within=None)
    output.tell(done, f"{counted(done.redriven, 'message')} redriven to {name} of {topic}")


@app.command()
def pause(
    topic: Topic,
    name: Group,
    note: str = option("Why, for whoever looks at it.", metavar="TEXT", value=""),
    context: ContextName = None,
) -> None:
    """Hand out no messages of a group until it is resumed. Its consumers stay connected, and settle what they
    hold; its place and its messages are kept.

    Examples:
      landbridge group pause orders billing --note 'the ledger is being repaired'
    """
    paused = ask(context, lambda bus: bus.groups.pause(topic, name, note=note))
    output.tell(paused, f"the group {name} of {topic} is paused, lag {paused.lag:,}")


@app.command()
def resume(topic: Topic, name: Group, context: ContextName = None) -> None:
    """Hand out the messages of a paused group again.

    Examples:
      landbridge group resume orders billing
    """
    resumed = ask(context, lambda bus: bus.groups.resume(topic, name))
    output.tell(resumed, f"the group {name} of {topic} goes on, lag {resumed.lag:,}")


@app.command()
def delete(
    first: First,
    second: Second = None,
    force: bool = flag("Also if it hasn't settled everything.", "--force"),
    registry: Registry = False,
    context: ContextName = None,
) -> None:
    """Delete a group. The messages stay in the topic.

    Examples:
      landbridge group delete orders billing
      landbridge group delete billing --registry
    """
    group = _group_of_topic(second, registry)
    if group is None:
        change(
            context,
            lambda client: client.remove_terminal_group(first, force=force),
            lambda _: f"the terminal group {first} is deleted",
            lambda _: {"deleted": first},
        )
    else:
        deleted = ask(context, lambda bus: bus.groups.delete(first, group, force=force))
        output.tell(deleted, f"the group {group} of {first} is deleted")


@app.command("add-terminal")
def add_terminal(name: TerminalGroupName, terminal: Terminals, context: ContextName = None) -> None:
    """Add terminals to a terminal group, in the registry: its consumers may be there.

    Examples:
      landbridge group add-terminal billing tokyo osaka
    """
    _change(context, terminal, lambda client, ids: client.add_terminal_to_group(name, *ids))


@app.command("remove-terminal")
def remove_terminal(
    name: TerminalGroupName,
    terminal: Terminals,
    force: bool = flag("Also with messages on their way: they are given up.", "--force"),
    context: ContextName = None,
) -> None:
    """Take terminals out of a terminal group, in the registry.

    Examples:
      landbridge group remove-terminal billing osaka
    """

    async def remove(client: RegistryClient, ids: list[str]) -> TerminalGroup:
        for id in ids:
            group = await client.remove_terminal_from_group(name, id, force=force)
        return group

    _change(context, terminal, remove)
