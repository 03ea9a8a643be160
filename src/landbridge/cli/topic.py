"""``landbridge topic``: named streams of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from landbridge.cli import output, units
from landbridge.cli.loop import ask
from landbridge.cli.middleware import read_stages, show_stages
from landbridge.cli.options import (
    Commands,
    ContextName,
    OptionGroup,
    Registry,
    ShowAll,
    Topic,
    argument,
    flag,
    given,
    option,
    size,
    span,
)
from landbridge.cli.output import columns
from landbridge.cli.pausing import and_paused, told, with_pause
from landbridge.cli.registry_access import as_admin, change, everything, find_terminals, terminal_names
from landbridge.core.names import is_own

if TYPE_CHECKING:
    from landbridge.client.registry import RegistryClient
    from landbridge.client.registry_documents import TopicInfo
    from landbridge.protocol.operations import TopicDetails

app = Commands(no_args_is_help=True, help="Topics: named streams of messages.")


class TopicFlags(OptionGroup):
    """The options of a topic at one terminal."""

    max_age: float | None = span(
        "How long messages are kept (7d, 12h), or 'none' for ever. New topics: 7d.",
        parser=units.parse_span_or_none,
    )
    max_bytes: float | None = size(
        "How many bytes are kept (10GB, 512MiB), or 'none' for no limit. New topics: none.",
        parser=units.parse_size_or_none,
    )
    retain_settled: bool | None = option(
        "Keep or drop what every group has settled. A new stream keeps it, a queue drops it.",
        "--retain-settled/--drop-settled",
    )
    discard: Literal["settled", "any"] | None = option(
        "What --max-age and --max-bytes may remove: what all groups have settled, or anything."
    )
    max_backlog: int | None = size("Refuse publishes while the slowest group is this many bytes behind.")
    producer: str | None = option("The only one who may publish to this queue.", metavar="SUBJECT")
    delivery: Literal["at-least-once", "at-most-once"] | None = option(
        "Of a queue or a work queue: at-most-once settles a message when it is handed out."
    )
    prefetch: int | None = option("Of a work queue: messages that a consumer may hold. New ones: 16.")
    discipline: Literal["fifo", "lifo", "priority"] | None = option(
        "The order in groups that name none. New topics: fifo."
    )
    ids: Literal["any", "unique"] | None = option(
        "unique: a message whose id is known is not stored a second time. New topics: any."
    )
    middleware: list[str] | None = option(
        "A stage that messages go through: validate, compress, a JSON object, or @FILE. Repeatable, in their "
        "order. 'none' takes all away.",
        metavar="STAGE",
    )

    def as_asked(self) -> dict[str, Any]:
        """Those that were given, as the terminal wants them."""
        retention = self.given("max_age", "max_bytes", "discard")
        retention = {name: None if value == units.UNLIMITED else value for name, value in retention.items()}
        if self.retain_settled is not None:
            retention["settled"] = not self.retain_settled
        options = self.given("max_backlog", "producer", "delivery", "prefetch", "discipline", "ids")
        if self.middleware is not None:
            options["middleware"] = read_stages(self.middleware)
        return {**options, "retention": retention} if retention else options


class CrossingOptions(OptionGroup):
    """The options of a topic that crosses LANs, in the registry."""

    sender: list[str] | None = option(
        "With --registry: only these may send, or 'all'. Repeatable.", metavar="TERMINAL"
    )
    late_open: Literal["renew", "sender_only", "never"] | None = option(
        "With --registry: who may renew a ticket that expired on the way. New topics: renew."
    )
    ticket_scope: Literal["window", "message"] | None = option(
        "With --registry: a ticket for a minute's messages, or for each. New topics: window."
    )

    def as_asked(self, registry: bool, local: dict[str, Any], group: list[str] | None) -> dict[str, Any]:
        """Those that were given. ``local``: what was given for a topic at one terminal, of which only the age
        goes with --registry."""
        options = self.given("late_open", "ticket_scope")
        if not registry:
            if options or self.sender or group:
                raise typer.BadParameter(
                    "--group, --sender, --late-open and --ticket-scope are for --registry"
                )
            return {}
        retention: dict[str, Any] = local.get("retention", {})
        if set(local) - {"retention"} or set(retention) - {"max_age"}:
            raise typer.BadParameter("of a terminal's options, only --max-age goes with --registry")
        if retention.get("max_age", 0.0) is None:
            raise typer.BadParameter(
                "with --registry, --max-age is a span: no message can be opened for ever"
            )
        return options | retention


ManyGroups = Annotated[list[str], argument("GROUP…", "Terminal groups.")]

LIST = columns(
    "Topic=name@cyan | Kind | Messages:count | Size=bytes:size | Groups:count | Created=created_at:moment"
)
SHOW = columns(
    "Kind | Messages:count | Offsets | Size=bytes:size | Created=created_at:moment | Max age | "
    "Max bytes | Max backlog:size | Settled | Discard | Ids | Discipline | Middleware | Paused@yellow"
)
SHOW_QUEUE = columns("Delivery | Producer")
SHOW_WORK = columns("Delivery | Prefetch:count")
SHOW_RULE = columns("Source | Query")
#: Of topics in the registry.
LIST_CROSSING = columns(
    "Topic=name@cyan | Groups=group_names | Late=late_open | Ticket=ticket_scope | Key=kv:count | "
    "Created=created_at:moment"
)
SHOW_CROSSING = columns(
    "Groups=group_names | Producers=who | Late messages=late_open | A ticket for each=ticket_scope | "
    "Max age:span | Key version=kv:count | Created=created_at:moment"
)


@app.command()
def create(
    name: Topic,
    *,
    kind: Literal["stream", "queue", "work"] | None = option(
        "stream: any producers, any groups. queue: one producer, one group, one consumer. "
        "work: any producers, and consumers that share the messages.",
        default="stream",
    ),
    options: TopicFlags,
    registry: Registry = False,
    group: list[str] | None = option(
        "With --registry: a terminal group that gets it. Repeatable.", metavar="GROUP"
    ),
    crossing: CrossingOptions,
    context: ContextName = None,
) -> None:
    """Create a topic. Creating one that is there with the same options changes nothing.

    With --registry: a topic that crosses LANs, with the terminal groups that get its messages.

    Examples:
      landbridge topic create orders --max-age 30d
      landbridge topic create jobs --kind work
      landbridge topic create payroll --kind queue --producer scheduler
      landbridge topic create events --ids unique
      landbridge topic create orders --middleware validate --middleware compress
      landbridge topic create orders --registry --group billing --group shipping
    """
    local = options.as_asked()
    wanted = crossing.as_asked(registry, local | given(kind=kind), group)
    if registry:
        _create_crossing(context, name, group, crossing.sender, wanted)
        return
    made = ask(context, lambda bus: bus.topics.create(name, kind=kind or "stream", **local))
    output.tell(made, f"the {made.kind} {name} is there")


def create_crossing(
    name: Topic,
    group: list[str] | None = option("A terminal group that gets it. Repeatable.", metavar="GROUP"),
    context: ContextName = None,
) -> None:
    """Create a topic that crosses LANs: 'landbridge topic create --registry'."""
    _create_crossing(context, name, group, None, {})


def _create_crossing(
    context: str | None, name: str, groups: list[str] | None, sender: list[str] | None, options: Any
) -> None:
    async def work(client: RegistryClient) -> TopicInfo:
        producers = await _producers(client, sender)
        return await client.create_message_bus_topic(name, groups or [], producers=producers, **options)

    change(context, work, lambda made: f"the topic {name} is there, for {_groups(made)}")


async def _producers(client: RegistryClient, sender: list[str] | None) -> list[str] | None:
    """The ids of the terminals that may send; None: all."""
    return None if sender in (None, ["all"]) else await find_terminals(client, sender or ())


def _groups(topic: TopicInfo) -> str:
    return ", ".join(topic.groups) or "no group yet"


@app.command()
def update(
    name: Topic,
    *,
    options: TopicFlags,
    registry: Registry = False,
    crossing: CrossingOptions,
    context: ContextName = None,
) -> None:
    """Change a topic's options. What isn't given stays as it is.

    Examples:
      landbridge topic update orders --max-age 90d --max-bytes 10GB
      landbridge topic update orders --middleware @middleware.json
      landbridge topic update orders --middleware none
      landbridge topic update orders --registry --late-open never
    """
    local = options.as_asked()
    wanted = crossing.as_asked(registry, local, None)
    if not local and not wanted and crossing.sender is None:
        raise typer.BadParameter("nothing to change: give at least one option")

    async def work(client: RegistryClient) -> TopicInfo:
        if crossing.sender is not None:
            wanted["producers"] = await _producers(client, crossing.sender)
        return await client.update_message_bus_topic(name, **wanted)

    if registry:
        change(context, work, lambda _: f"the topic {name} is changed in the registry")
    else:
        changed = ask(context, lambda bus: bus.topics.update(name, **local))
        output.tell(changed, f"the topic {name} is changed")


@app.command("list")
def list_topics(registry: Registry = False, all: ShowAll = False, context: ContextName = None) -> None:
    """List the topics that you may publish or subscribe to.

    Examples:
      landbridge topic list
      landbridge topic list --all
      landbridge topic list --json | jq -r '.[].name'
    """
    if registry:
        crossing = as_admin(context, lambda client: everything(client.list_message_bus_topics))
        empty = "the registry has no topics yet: 'landbridge topic create NAME --registry'"
        output.rows(LIST_CROSSING, crossing, empty=empty, show=lambda topic: _crossing_row(topic, {}))
        return
    rows = ask(context, lambda bus: bus.topics.list())
    if not all:
        rows = output.without_own(rows, lambda row: is_own(row.name))
    empty = "no topics yet: 'landbridge topic create NAME', or just publish to one"
    output.rows(and_paused(LIST, rows), rows, empty=empty, show=with_pause)


@app.command()
def show(name: Topic, registry: Registry = False, context: ContextName = None) -> None:
    """Show a topic: what it holds, its options and its groups.

    Examples:
      landbridge topic show orders
    """

    async def work(client: RegistryClient) -> tuple[TopicInfo, dict[str, str]]:
        return await client.show_message_bus_topic(name), await terminal_names(client)

    if registry:
        found, names = as_admin(context, work)
        output.emit(found, lambda topic: output.record(name, SHOW_CROSSING, _crossing_row(topic, names)))
    else:
        output.emit(ask(context, lambda bus: bus.topics.show(name)), _show)


def _crossing_row(topic: TopicInfo, names: dict[str, str]) -> dict[str, Any]:
    """``names``: id → name of terminals."""
    who = None if topic.producers is None else ", ".join(names.get(id, id) for id in topic.producers)
    return output.fields(
        topic,
        group_names=", ".join(topic.groups),
        who="all terminals" if who is None else who,
        kv=topic.keys[0].kv if topic.keys else None,
    )


def _show(topic: TopicDetails) -> None:
    from landbridge.cli.group import LIST as GROUPS

    options, pretty = topic.options, output.on_terminal()
    age, most = options.retention.max_age, options.retention.max_bytes
    row = output.fields(
        topic,
        offsets=f"{topic.first} to {topic.end - 1}" if topic.messages else "",
        max_age="none" if age is None else units.span(age) if pretty else f"{age:g}",
        max_bytes="none" if most is None else units.size(most) if pretty else str(most),
        max_backlog=options.max_backlog,
        settled="dropped" if options.retention.settled else "kept",
        discard=options.retention.discard,
        delivery=options.delivery,
        prefetch=options.prefetch,
        ids=options.ids,
        discipline=options.discipline,
        middleware=show_stages(options.middleware) or "none",
        producer=options.producer or "whoever comes first",
        paused=told(topic.pause),
    )
    more = {"queue": SHOW_QUEUE, "work": SHOW_WORK}.get(topic.kind, [])
    if options.rule is not None:
        more = SHOW_RULE
        row |= {"source": options.rule.source, "query": msgspec.json.encode(options.rule.query).decode()}
    output.record(topic.name, SHOW + more, row)
    print()
    rows = [with_pause(group) for group in topic.groups]
    output.table(and_paused(GROUPS[1:], topic.groups), rows, empty="  no groups")


@app.command()
def pause(
    name: Topic,
    note: str = option("Why, for whoever looks at it.", metavar="TEXT", value=""),
    delivery: bool = flag("Its groups hand nothing out either.", "--delivery"),
    context: ContextName = None,
) -> None:
    """Take no messages for a topic until it is resumed. Publishers are refused, and clients wait for a while;
    what comes from other terminals waits there. What the topic has is handed out.

    Examples:
      landbridge topic pause orders --note 'moving to another disk'
      landbridge topic pause orders --delivery
    """
    paused = ask(context, lambda bus: bus.topics.pause(name, note=note, delivery=delivery))
    more = " with its groups" if delivery else ""
    output.tell(paused, f"the topic {name} is paused{more}")


@app.command()
def resume(name: Topic, context: ContextName = None) -> None:
    """Take messages for a paused topic again.

    Examples:
      landbridge topic resume orders
    """
    output.tell(ask(context, lambda bus: bus.topics.resume(name)), f"the topic {name} takes messages")


@app.command()
def delete(
    name: Topic,
    force: bool = flag("Also with messages that a group hasn't settled.", "--force"),
    registry: Registry = False,
    context: ContextName = None,
) -> None:
    """Delete a topic with its messages and groups, for good. With --registry: it no longer crosses LANs.

    Examples:
      landbridge topic delete orders
    """
    if not force:
        output.confirm(
            f"Delete the topic {name} {'from the registry' if registry else 'with all its messages'}?"
        )
    if registry:
        change(
            context,
            lambda client: client.remove_message_bus_topic(name, force=force),
            lambda _: f"the registry has no topic {name} any more",
            lambda _: {"deleted": name},
        )
    else:
        deleted = ask(context, lambda bus: bus.topics.delete(name, force=force))
        output.tell(deleted, f"the topic {name} is deleted")


@app.command("add-group")
def add_group(name: Topic, group: ManyGroups, context: ContextName = None) -> None:
    """Add terminal groups to a topic, in the registry. They get what is published from then on.

    Examples:
      landbridge topic add-group orders billing shipping
    """
    change(
        context,
        lambda client: client.add_group_to_topic(name, *group),
        lambda found: f"{name} is for {_groups(found)}",
    )


@app.command("remove-group")
def remove_group(
    name: Topic,
    group: ManyGroups,
    force: bool = flag("Also with messages on their way: they are given up.", "--force"),
    context: ContextName = None,
) -> None:
    """Take terminal groups off a topic, in the registry.

    Examples:
      landbridge topic remove-group orders shipping
    """

    async def work(client: RegistryClient) -> TopicInfo:
        for each in group:
            found = await client.remove_group_from_topic(name, each, force=force)
        return found

    change(context, work, lambda found: f"{name} is for {_groups(found)}")
