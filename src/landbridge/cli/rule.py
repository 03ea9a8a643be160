"""``landbridge rule``: queries, and the topics of the messages that they choose."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from landbridge.cli import completion, output
from landbridge.cli.loop import ask
from landbridge.cli.mistyped import making
from landbridge.cli.options import Commands, ContextName, argument, flag, given, option, pairs
from landbridge.cli.output import columns
from landbridge.cli.publish import read_file
from landbridge.core.names import CONTENT_TOPIC
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.protocol.operations import RuleDetails, RuleMade, RuleVerdict

app = Commands(no_args_is_help=True, help="Rules: messages chosen by what they say, each rule with a topic.")

LIST = columns("Rule@cyan | Source | Query | Messages:count | Groups:count | Behind=lag:count@yellow | Owner")
SHOW = columns(
    "Source | Query | Owner | Made=created_at:moment | From offset=begin | Chosen=end:count | "
    "Messages:count | Groups:count | Behind=lag:count@yellow"
)
VERDICTS = columns("Rule@cyan | Matches | Place | Why")

Rule = Annotated[
    str, argument("RULE", "The rule, by the name of its topic.", autocompletion=completion.rule_names)
]
Query = Annotated[str, argument("JSON | @FILE", "The query, or a file that has it; '@-' for standard input.")]
Source = Annotated[
    str,
    option(
        "The topic to choose from; without, what is published without a topic.",
        metavar="TOPIC",
        show_default=False,
        autocompletion=completion.topic_names,
    ),
]


def read_match(text: str) -> dict[str, Any]:
    """The query that somebody has typed, or that a file has. BadRequest says what is wrong with it."""
    if text.startswith("@"):
        try:
            text = sys.stdin.read() if text == "@-" else Path(text[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"can't read {text[1:]}: {error}") from None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"the query is not JSON: {error}", hint='as in \'{"state": ["paid"]}\'') from None
    if not isinstance(found, dict):
        raise BadRequest("a query is a JSON object", hint='as in \'{"state": ["paid"]}\'')
    return found


def _as_row(row: Any) -> dict[str, Any]:
    return output.fields(row, query=msgspec.json.encode(row.match).decode())


@app.command()
def create(query: Query, source: Source = CONTENT_TOPIC, context: ContextName = None) -> None:
    """Make the rule of a query. Its topic has the messages that the query chooses, published from now on.

    'landbridge subscribe --match' does so too. You need the scope subscribe:TOPIC.

    Examples:
      landbridge rule create '{"state": ["paid"], "amount": [{"numeric": [">", 100]}]}'
      landbridge rule create '{"kind": "regexp", "pattern": "urgent"}' --source orders
      landbridge rule create @query.json --source orders --json
    """
    match = read_match(query)

    async def work(bus: Bus) -> RuleMade:
        async with making(bus, source):
            return await bus.rules.create(match, source)

    made = ask(context, work)
    does = "gets" if made.is_new else "was there and gets"
    output.tell(made, f"{made.rule} {does} what the query chooses of {source}")


@app.command("list")
def list_rules(
    source: str | None = option(
        "Only rules that choose from this topic.", metavar="TOPIC", autocompletion=completion.topic_names
    ),
    context: ContextName = None,
) -> None:
    """List rules, with their queries.

    Examples:
      landbridge rule list
      landbridge rule list --source orders --json | jq -r '.[].rule'
    """
    rows = ask(context, lambda bus: bus.rules.list(source=source))
    output.rows(LIST, rows, empty="no rules yet: 'landbridge rule create QUERY'", show=_as_row)


@app.command()
def show(rule: Rule, context: ContextName = None) -> None:
    """Show a rule.

    Examples:
      landbridge rule show match.5b1fedc7fe265ab79ca355def6714767
    """
    output.emit(ask(context, lambda bus: bus.rules.show(rule)), _show)


def _show(found: RuleDetails) -> None:
    output.record(found.rule, SHOW, _as_row(found))


@app.command("test")
def try_message(
    payload: str | None = argument("PAYLOAD", "The message: JSON, or a text as it is."),
    file: Path | None = option("Ask about the whole file as one message.", metavar="PATH"),
    key: str = option("The message's key.", value=""),
    header: list[str] | None = option("A header of the message. Repeatable.", metavar="NAME=VALUE"),
    source: Source = CONTENT_TOPIC,
    rule: str | None = option("Ask this rule alone.", autocompletion=completion.rule_names),
    match: str | None = option("Ask this query, which no rule needs to have.", metavar="JSON|@FILE"),
    matching: bool = flag("Show the rules that match alone.", "--matching"),
    context: ContextName = None,
) -> None:
    """Tell which rules would choose a message, and why the others would not. Nothing is published.

    Examples:
      landbridge rule test '{"state": "open", "amount": 150}'
      landbridge rule test '{"amount": 5}' --key eu --header source=shop --source orders --matching
      landbridge rule test '{"amount": 5}' --match '{"amount": [{"numeric": [">", 100]}]}'
      landbridge rule test --file order.json --source orders --json
    """
    if (payload is None) == (file is None):
        raise typer.BadParameter("give a payload or --file")
    query = None if match is None else read_match(match)
    message: str | bytes = payload or "" if file is None else read_file(file)
    wanted = given(headers=pairs(header, "header") or None, rule=rule, match=query)
    found = ask(context, lambda bus: bus.rules.test(payload=message, key=key, source=source, **wanted))
    if matching:
        found = [each for each in found if each.matches]
    empty = "no rule matches" if matching else f"{source} has no rules"
    output.rows(VERDICTS, found, empty=empty, show=_verdict)


def _verdict(verdict: RuleVerdict) -> dict[str, Any]:
    return output.fields(verdict, rule=verdict.rule or "the query")


@app.command()
def trace(
    rule: Rule,
    offset: Annotated[int, argument("OFFSET", "Offset of a message in the rule's topic.", min=0)],
    context: ContextName = None,
) -> None:
    """Tell which message of the source one of a rule's topic is.

    Examples:
      landbridge rule trace match.5b1fedc7fe265ab79ca355def6714767 17
    """
    found = ask(context, lambda bus: bus.rules.trace(rule, offset))
    place = "at an offset that was not kept" if found.offset is None else f"at offset {found.offset}"
    output.tell(found, f"it is in {found.source} {place}")


@app.command()
def delete(
    rule: Rule,
    force: bool = flag("Even if groups haven't settled all messages.", "--force"),
    context: ContextName = None,
) -> None:
    """Delete a rule with its topic. What it has chosen stays in the source.

    Examples:
      landbridge rule delete match.5b1fedc7fe265ab79ca355def6714767 --force
    """
    ask(context, lambda bus: bus.rules.delete(rule, force=force))
    output.tell({"deleted": rule}, f"the rule {rule} is deleted")
