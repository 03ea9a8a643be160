"""``landbridge letter``: messages that groups have given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from landbridge.cli import completion, output
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, Group, OptionGroup, Topic, argument, flag, option
from landbridge.cli.output import columns
from landbridge.cli.units import parse_moment
from landbridge.core.time import SECOND
from landbridge.core.wording import counted

if TYPE_CHECKING:
    from landbridge.protocol.operations import LettersHandled

app = Commands(no_args_is_help=True, help="Dead letters: messages that groups have given up, by cause.")

SUMMARY = columns(
    "Topic@cyan | Group@cyan | Cause | Letters:count@red | Attempts:count | Oldest=first_at:moment | "
    "Newest=last_at:moment | In=dead_topic"
)
LIST = columns(
    "Offset@cyan | Cause | Attempts:count | Buried=buried_at:moment | Was at=was_at | Size=bytes:size | Id"
)

OfTopic = Annotated[
    str | None,
    argument("TOPIC", "Of this topic's groups alone.", autocompletion=completion.topic_names, value=None),
]


class ChoiceFlags(OptionGroup):
    """Which letters of a group."""

    cause: str | None = option("Letters of this cause alone.", metavar="CAUSE")
    offset: list[int] | None = option(
        "The letter with this offset in the dead-letter topic. Repeatable.", metavar="OFFSET"
    )
    dry_run: bool = flag("Count the letters, and change nothing.", "--dry-run")

    def as_asked(self) -> dict[str, Any]:
        """Those that were given, as the terminal wants them."""
        return {"cause": self.cause, "offsets": self.offset or None, "dry_run": self.dry_run}


@app.command()
def summary(
    topic: OfTopic = None,
    since: float | None = option(
        "Letters buried from this time on: ISO 8601 or -2h.", metavar="TIME", parser=parse_moment
    ),
    context: ContextName = None,
) -> None:
    """Count the dead letters that wait, by topic, group and cause.

    Examples:
      landbridge letter summary
      landbridge letter summary orders --since -2h --json
    """
    moment = None if since is None else int(since * SECOND)
    found = ask(context, lambda bus: bus.letters.summary(topic=topic, since=moment))
    output.rows(SUMMARY, found.causes, empty="no dead letters wait")
    if not found.whole:
        output.note(
            f"counted: the oldest {found.looked_at:,} of {found.stored:,} letters that are stored; name a "
            "topic, or --since TIME, for fewer"
        )


@app.command("list")
def list_letters(
    topic: Topic,
    group: Group,
    cause: str | None = option("Letters of this cause alone.", metavar="CAUSE"),
    limit: int = option("Letters at most.", min=1, max=1000, value=100),
    context: ContextName = None,
) -> None:
    """List the dead letters of a group that wait, oldest first.

    Examples:
      landbridge letter list orders billing
      landbridge letter list orders billing --cause timed_out
    """
    found = ask(context, lambda bus: bus.letters.list(topic=topic, group=group, cause=cause, limit=limit))
    output.rows(LIST, found.letters, empty="no dead letters wait")
    if found.next:
        output.note(f"there may be more; what they say: landbridge subscribe {found.dead_topic}")


@app.command()
def redrive(topic: Topic, group: Group, chosen: ChoiceFlags, context: ContextName = None) -> None:
    """Give a group dead letters again: all, those of a cause, or some. They go back into the topic, for this
    group alone.

    Examples:
      landbridge letter redrive orders billing --cause timed_out --dry-run
      landbridge letter redrive orders billing --offset 17 --offset 19
    """
    asked = chosen.as_asked()
    done = ask(context, lambda bus: bus.letters.redrive(topic=topic, group=group, **asked), within=None)
    _tell(done, f"redriven to {group} of {topic}")


@app.command()
def delete(topic: Topic, group: Group, chosen: ChoiceFlags, context: ContextName = None) -> None:
    """Give dead letters of a group up for good: all, those of a cause, or some.

    Examples:
      landbridge letter delete orders billing --cause bad_payload --dry-run
      landbridge letter delete orders billing --offset 17
    """
    asked = chosen.as_asked()
    done = ask(context, lambda bus: bus.letters.delete(topic=topic, group=group, **asked), within=None)
    _tell(done, "given up for good")


def _tell(done: LettersHandled, what: str) -> None:
    would = "would be " if done.dry_run else ""
    output.tell(done, f"{counted(done.letters, 'letter')} {would}{what}")
