"""Operations on rules."""

from __future__ import annotations

from typing import Annotated, Any

from landbridge.core.names import CONTENT_TOPIC
from landbridge.protocol.operations.common import After, Deleted, Force, Next
from landbridge.protocol.operations.events import MessageHeaders, MessageKey, Payload
from landbridge.protocol.operations.operation import Arguments, Result, about, operation

RuleName = Annotated[str, about("The rule, by the name of its topic: match. and 32 hexadecimal digits.")]
RuleSource = Annotated[str, about("The topic whose messages the rule chooses from.")]
RuleQuery = Annotated[
    dict[str, Any],
    about("The query. Without a kind it is the pattern of a partial query: {'state': ['paid']}."),
]


class OfRule(Arguments, frozen=True):
    """A rule by the name of its topic."""

    rule: RuleName


class RuleCreate(Arguments, frozen=True):
    """A rule to make."""

    match: RuleQuery
    source: RuleSource = CONTENT_TOPIC


class RuleList(Arguments, frozen=True, kw_only=True):
    """A page of the rules."""

    source: Annotated[str | None, about("Rules of this source alone; None: of all.")] = None
    after: After = ""


class RuleDelete(OfRule, frozen=True, kw_only=True):
    """A rule to delete."""

    force: Force = False


class RuleTest(Arguments, frozen=True, kw_only=True):
    """A message that is not published, to see what rules make of it."""

    payload: Payload = None
    headers: MessageHeaders = {}
    key: MessageKey = ""
    source: Annotated[str, about("The topic that it would be published to.")] = CONTENT_TOPIC
    match: Annotated[
        dict[str, Any] | None, about("Ask this query, which need not be a rule's, and no rule.")
    ] = None
    rule: Annotated[str | None, about("Ask this rule alone.")] = None
    after: After = ""


class RuleTrace(OfRule, frozen=True):
    """A message in the topic of a rule."""

    offset: Annotated[int, about("Its offset there.")]


class RuleRow(Result, frozen=True, kw_only=True):
    """A rule, in short."""

    rule: RuleName
    source: RuleSource
    match: RuleQuery
    owner: Annotated[str, about("The subject that has made it.")]
    messages: Annotated[int, about("Messages that its topic holds.")]
    end: Annotated[int, about("Messages that it has chosen since it was made.")]
    groups: Annotated[int, about("Number of groups of its topic.")]
    lag: Annotated[int, about("Messages of the source that the rules have not looked at yet.")]


class RuleMade(RuleRow, frozen=True, kw_only=True):
    """A rule that is there now."""

    is_new: Annotated[bool, about("False: the same query had a rule already, and this is it.")]


class RuleRows(Result, frozen=True, kw_only=True):
    """Some of the rules, by name."""

    rules: Annotated[list[RuleRow], about("The rules of this page.")]
    next: Next


class RuleDetails(RuleRow, frozen=True, kw_only=True):
    """A rule."""

    created_at: Annotated[int, about("When it was made, in microseconds.")]
    begin: Annotated[int, about("The offset of the source from which on it chooses.")]


class RuleVerdict(Result, frozen=True, kw_only=True):
    """What a rule makes of a message."""

    rule: Annotated[str, about("The rule; empty: the query of the request.")]
    matches: Annotated[bool, about("Whether the rule would choose the message.")]
    place: Annotated[str, about("The part of the query that decides; empty: all of it.")]
    why: Annotated[str, about("One sentence with the value that was found.")]
    exceeded: Annotated[bool, about("The rule has too small a budget for the message, so it does not match.")]


class RuleVerdicts(Result, frozen=True, kw_only=True):
    """What some rules make of a message, by name."""

    verdicts: Annotated[list[RuleVerdict], about("Of each rule: whether it matches, and why.")]
    next: Next


class RuleTraced(Result, frozen=True, kw_only=True):
    """Where a message of a rule's topic comes from."""

    source: RuleSource
    offset: Annotated[int | None, about("Its offset there; None: that is not kept of this message.")]


# -- the entries ---------------------------------------------------------------------------------------

_RULE = "/v1/rules/{rule}"

RULE_CREATE = operation(
    "rule.create", RuleCreate, RuleMade, "POST /v1/rules",
    "Make the rule of a query, with the topic of the messages that it chooses from now on; a query that has "
    "one keeps it.", scope="subscribe:{source}",
    where="topic:{source}",
)  # fmt: skip
RULE_LIST = operation(
    "rule.list", RuleList, RuleRows, "GET /v1/rules",
    "List the rules whose sources the token may read; all of them for observers.",
    where="topic:{source}",
)  # fmt: skip
RULE_SHOW = operation(
    "rule.show", OfRule, RuleDetails, f"GET {_RULE}", "Show a rule.", scope="observe|subscribe:{rule}",
    where="topic:{rule}",
)  # fmt: skip
RULE_TEST = operation(
    "rule.test", RuleTest, RuleVerdicts, "POST /v1/rules/test",
    "Tell which rules would choose a message, and why the others would not. Nothing is published.",
    scope="observe|subscribe:{source}", safe=True,
    where="topic:{rule|source}",
)  # fmt: skip
RULE_TRACE = operation(
    "rule.trace", RuleTrace, RuleTraced, f"GET {_RULE}/offsets/{{offset}}",
    "Tell where in its source a message of a rule's topic is.", scope="subscribe:{rule}",
    where="topic:{rule}",
)  # fmt: skip
RULE_DELETE = operation(
    "rule.delete", RuleDelete, Deleted, f"DELETE {_RULE}",
    "Delete a rule with its topic. Its owner may, and an operator.",
    where="topic:{rule}",
)  # fmt: skip
