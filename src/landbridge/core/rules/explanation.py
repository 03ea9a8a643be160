"""Why a rule matches a message, or doesn't: for people who write rules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from landbridge.core.rules.bounds import describe
from landbridge.core.rules.budget import Budget, OverBudget, Spending
from landbridge.core.rules.content import MessageContent
from landbridge.core.rules.query import JsonPathQuery, Query, RegexpQuery
from landbridge.core.rules.ruleset import CompiledQuery, text_at

#: Nodes that are counted of a JSONPath query that matches.
MOST_NODES = 100


class MatchExplanation(msgspec.Struct, frozen=True):
    """What a query makes of a message."""

    matches: bool
    #: The part of the query that decides: of a partial query the first leaf that fails. "" = all of it.
    place: str
    #: One sentence with the value that was found.
    why: str
    #: The rule needs more than its budget for this message; then it does not match.
    exceeded: bool = False


def explain(query: Query, content: MessageContent, budget: Budget = Budget()) -> MatchExplanation:  # noqa: B008 - immutable
    """Why a query matches a message, or doesn't. ``content_of`` makes the content."""
    compiled = CompiledQuery(query)
    try:
        if compiled.pattern is not None:
            failure = compiled.pattern.failure(content, Spending(budget))
            if failure is None:
                return MatchExplanation(True, "", "all fields of the pattern hold")
            return MatchExplanation(False, failure.place, failure.why)
        if isinstance(query, RegexpQuery):
            return _explain_regexp(query, compiled, content, Spending(budget))
        assert isinstance(query, JsonPathQuery)
        return _explain_path(query, compiled, content, budget)
    except OverBudget as error:
        return MatchExplanation(False, "", str(error), exceeded=True)


def _explain_regexp(
    query: RegexpQuery, compiled: CompiledQuery, content: MessageContent, spending: Spending
) -> MatchExplanation:
    assert compiled.place is not None
    assert compiled.expression is not None
    text = text_at(compiled.place, content)
    if text is None:
        what = "key" if compiled.place.source == "key" else f"header {compiled.place.header}"
        return MatchExplanation(False, query.place, f"the message has no {what}")
    if compiled.expression.is_in(text, spending):
        return MatchExplanation(True, query.place, "the regular expression is found in it")
    return MatchExplanation(
        False,
        query.place,
        f"the regular expression is not found in its {len(text):,} bytes: "
        f"{describe(text.decode(errors='replace'))}",
    )


def _explain_path(
    query: JsonPathQuery, compiled: CompiledQuery, content: MessageContent, budget: Budget
) -> MatchExplanation:
    assert compiled.path is not None
    if content.unreadable:
        return MatchExplanation(False, query.place, content.unreadable)
    document = compiled.document(content)
    if compiled.path.selects(document, Spending(budget)):
        count = _count(compiled.path.nodes(document, Spending(budget)))
        more = " or more" if count == MOST_NODES else ""
        return MatchExplanation(
            True, query.path, f"it selects {count}{more} node{'' if count == 1 and not more else 's'}"
        )
    before, segment = compiled.path.first_empty(document, Spending(budget))
    if not segment:
        return MatchExplanation(False, query.path, "it selects nothing")
    reached = next(_nodes_of(before, document, budget), None)
    return MatchExplanation(
        False, segment, f"{before} selects {describe(reached)}, and {segment} selects nothing of it"
    )


def _count(nodes: Iterator[Any]) -> int:
    try:
        return sum(1 for _ in islice(nodes, MOST_NODES))
    except OverBudget:  # It matches, and only the counting is too expensive.
        return MOST_NODES


def _nodes_of(path: str, document: Any, budget: Budget) -> Iterator[Any]:
    from landbridge.core.rules.jsonpath import JsonPath

    return JsonPath(path).nodes(document, Spending(budget))
