"""Many rules at once over batches: one decoding of each payload, one walk over its fields for all partial
rules, one pass for all regular expressions of a text, and JSONPath last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from landbridge.core.log.batch import Batch
from landbridge.core.rules.budget import COSTLY_RULES, USED_UP, Budget, OverBudget, RegexpAllowance, Spending
from landbridge.core.rules.content import (
    MessageContent,
    attribute_header,
    document_of,
    header_texts,
    key_text,
)
from landbridge.core.rules.fields import FieldIndex
from landbridge.core.rules.jsonpath import JsonPath
from landbridge.core.rules.pattern import MessagePattern
from landbridge.core.rules.query import JsonPathQuery, PartialQuery, Query, RegexpQuery, Rule, canonical
from landbridge.core.rules.regexps import Expression, ExpressionSet
from landbridge.errors import BadRequest

#: Of a query's parts, the longest text is what a document is searched for first.
_quoted = msgspec.json.Encoder().encode


class RegexpPlace(NamedTuple):
    """Where a regular expression is searched for."""

    source: str  #: "payload", "key" or "headers"
    header: str = ""


_PAYLOAD = RegexpPlace("payload")


def regexp_place(text: str) -> RegexpPlace:
    if text in ("payload", "key"):
        return _PAYLOAD if text == "payload" else RegexpPlace(text)
    source, _, name = text.partition(":")
    if source in ("header", "ce") and name:
        return RegexpPlace("headers", name if source == "header" else attribute_header(name))
    raise BadRequest(
        f"place: there is no place {text[:60]!r}", hint="one of: payload, key, header:NAME, ce:NAME"
    )


class CompiledQuery:
    """A query that is ready to run. Making one checks all of it: BadRequest names what is wrong."""

    def __init__(self, query: Query) -> None:
        canonical(query)  # checks the size
        self.query = query
        self.pattern: MessagePattern | None = None
        self.expression: Expression | None = None
        self.place: RegexpPlace | None = None
        self.path: JsonPath | None = None
        if isinstance(query, PartialQuery):
            self.pattern = MessagePattern(query.match)
        elif isinstance(query, RegexpQuery):
            self.place = regexp_place(query.place)
            self.expression = Expression(query.pattern, "pattern")
        else:
            self.path = JsonPath(query.path)

    @property
    def reads_document(self) -> bool:
        return self.path is not None or (self.pattern is not None and self.pattern.reads_payload)

    @property
    def reads_headers(self) -> bool:
        if self.pattern is not None:
            return self.pattern.reads_headers
        if self.place is not None:
            return self.place.source == "headers"
        return isinstance(self.query, JsonPathQuery) and self.query.place == "message"

    def matches(self, content: MessageContent, spending: Spending) -> bool:
        """Does it match this one message? Raises OverBudget."""
        if self.pattern is not None:
            return self.pattern.matches(content, spending)
        if self.place is not None and self.expression is not None:
            text = text_at(self.place, content)
            return text is not None and self.expression.is_in(text, spending)
        assert self.path is not None
        if content.unreadable:
            return False
        return self.path.selects(self.document(content), spending)

    def document(self, content: MessageContent) -> Any:
        """What is ``$`` of a JSONPath query."""
        if isinstance(self.query, JsonPathQuery) and self.query.place == "message":
            return {"payload": content.document, "key": content.key, "headers": content.headers}
        return content.document


def text_at(place: RegexpPlace, content: MessageContent) -> bytes | None:
    """The text that a regular expression is searched for in; None where the message doesn't have it."""
    if place.source == "payload":
        return content.payload
    text = content.key if place.source == "key" else content.headers.get(place.header)
    return None if text is None else text.encode(errors="surrogateescape")


class Exceeded(NamedTuple):
    """A rule that would have needed more than its budget for a message, so that nobody knows whether it
    matches."""

    rule: str
    row: int
    cause: str


class Unreadable(NamedTuple):
    """A message whose payload partial and JSONPath rules could not read."""

    row: int
    reason: str


class Matched(NamedTuple):
    """What rules have chosen of a batch."""

    #: Rule id → the rows that match, in order; without the rules that match none.
    rows: dict[str, list[int]]
    exceeded: list[Exceeded]
    unreadable: list[Unreadable]


class RuleSet:
    """Rules by id, which match batches. Adding or removing a rule costs the same whatever else is there."""

    def __init__(self, rules: Iterable[Rule] = (), *, budget: Budget = Budget()) -> None:  # noqa: B008 - immutable
        self.budget = budget
        self._spending = Spending(budget)
        #: Steps that the rules have used up together for the message that is looked at.
        self._spent = 0
        self._rules: dict[str, CompiledQuery] = {}
        self._fields = FieldIndex()
        self._patterns: dict[str, MessagePattern] = {}
        #: The expressions by place. Those of the payload's are also what JSONPath rules need of it.
        self._expressions: dict[RegexpPlace, ExpressionSet] = {}
        #: What JSONPath rules need of a payload, alone: for those that are searched in another spelling.
        self._needs = ExpressionSet()
        self._paths: dict[str, CompiledQuery] = {}
        #: JSONPath rules that need no text.
        self._needless: set[str] = set()
        #: How many rules read the document, and the headers.
        self._documents = self._headers = 0
        for rule in rules:
            self.add(rule)

    def __len__(self) -> int:
        return len(self._rules)

    def __contains__(self, id: object) -> bool:
        return id in self._rules

    def query(self, id: str) -> Query:
        return self._rules[id].query

    # -- changes -----------------------------------------------------------------------------------------

    def add(self, rule: Rule) -> None:
        """Add a rule, or replace the one of that id. BadRequest, where the query is wrong, leaves all as it
        was."""
        compiled = CompiledQuery(rule.query)
        if rule.id in self._rules:
            self.remove(rule.id)
        id = rule.id
        self._rules[id] = compiled
        self._documents += compiled.reads_document
        self._headers += compiled.reads_headers
        if compiled.pattern is not None:
            self._patterns[id] = compiled.pattern
            self._fields.add(id, compiled.pattern)
        elif compiled.place is not None and compiled.expression is not None:
            self._expressions.setdefault(compiled.place, ExpressionSet()).add([(id, compiled.expression)])
        else:
            self._paths[id] = compiled
            self._add_need(id, compiled)

    def _add_need(self, id: str, compiled: CompiledQuery) -> None:
        need = _need_of(compiled)
        if need is None:
            self._needless.add(id)
            return
        self._needs.add([(id, need)])
        self._expressions.setdefault(_PAYLOAD, ExpressionSet()).add([(id, need)])

    def remove(self, id: str) -> None:
        compiled = self._rules.pop(id)
        self._documents -= compiled.reads_document
        self._headers -= compiled.reads_headers
        if compiled.pattern is not None:
            del self._patterns[id]
            self._fields.remove(id)
            return
        if compiled.place is not None:
            self._forget(compiled.place, id)
            return
        del self._paths[id]
        if id in self._needless:
            self._needless.remove(id)
        else:
            self._needs.remove(id)
            self._forget(_PAYLOAD, id)

    def _forget(self, place: RegexpPlace, id: str) -> None:
        expressions = self._expressions[place]
        expressions.remove(id)
        if not expressions:
            del self._expressions[place]

    # -- matching ----------------------------------------------------------------------------------------

    def match_batch(self, batch: Batch) -> Matched:
        """The rows of a batch that each rule chooses."""
        return self.match_until(_never, batch)[0]

    def match_until(self, is_over: Callable[[], bool], batch: Batch) -> tuple[Matched, int]:
        """The same of the first rows, and how many these are. Asked before each row but the first, whether it
        is over."""
        matched = Matched({}, [], [])
        if not self._rules:
            return matched, len(batch)
        keys = batch.keys()
        headers = batch.raw_headers() if self._headers else None
        for row, payload in enumerate(batch.payloads()):
            if row and is_over():
                return matched, row
            document, unreadable = document_of(payload) if self._documents else (None, "")
            content = MessageContent(
                payload,
                key_text(keys[row]) if keys is not None else None,
                header_texts(headers[row]) if headers is not None else {},
                document,
                unreadable,
            )
            if unreadable:
                matched.unreadable.append(Unreadable(row, unreadable))
            self._match(content, row, matched)
        return matched, len(batch)

    def match(self, content: MessageContent) -> Matched:
        """The rules that choose one message, as of a batch of one."""
        matched = Matched({}, [], [])
        if content.unreadable:
            matched.unreadable.append(Unreadable(0, content.unreadable))
        self._match(content, 0, matched)
        return matched

    def _match(self, content: MessageContent, row: int, matched: Matched) -> None:
        rows = matched.rows
        self._spent = 0
        allowance = RegexpAllowance(self.budget)
        if self._patterns:
            for id, decides in self._fields.candidates(content).items():
                if decides:
                    rows.setdefault(id, []).append(row)
                else:
                    self._try(id, content, row, matched)
        paths: set[str] = set()
        for place, expressions in self._expressions.items():
            text = content.payload if place is _PAYLOAD else text_at(place, content)
            if text is None:
                continue
            found, exceeded = expressions.search(text, self.budget, allowance)
            for id in found:
                if id in self._paths:
                    paths.add(id)
                else:
                    rows.setdefault(id, []).append(row)
            if not exceeded:
                continue
            for id, cause in exceeded:
                if id in self._paths:
                    paths.add(id)
                else:
                    matched.exceeded.append(Exceeded(id, row, cause))
        if self._paths and not content.unreadable:
            self._match_paths(paths, content, row, matched, allowance)

    def _match_paths(
        self, paths: set[str], content: MessageContent, row: int, matched: Matched, allowance: RegexpAllowance
    ) -> None:
        if self._needs and b"\\" in content.payload:
            # The texts may be spelled in other ways. In the document's own spelling they are in one way.
            found, exceeded = self._needs.search(_quoted(content.document), self.budget, allowance)
            paths = {*found, *(id for id, _ in exceeded)}
        for id in sorted(paths | self._needless) if self._needless else paths:
            self._try(id, content, row, matched)

    def _try(self, id: str, content: MessageContent, row: int, matched: Matched) -> None:
        spending = self._spending
        if self._spent >= COSTLY_RULES * self.budget.steps:
            matched.exceeded.append(Exceeded(id, row, USED_UP))
            return
        spending.begin()
        try:
            if self._rules[id].matches(content, spending):
                matched.rows.setdefault(id, []).append(row)
        except OverBudget as error:
            matched.exceeded.append(Exceeded(id, row, str(error)))
        self._spent += self.budget.steps - max(0, spending.left)


def _never() -> bool:
    return False


def _need_of(compiled: CompiledQuery) -> Expression | None:
    """An expression for a text that every payload has that the rule's JSONPath selects something of."""
    assert compiled.path is not None
    if isinstance(compiled.query, JsonPathQuery) and compiled.query.place == "message":
        return None  # the names and texts may be those of headers
    values = compiled.path.needed_values
    texts = sorted(compiled.path.needs, key=lambda text: (text not in values, -len(text), text))
    if not texts:
        return None
    import re2

    return Expression(re2.escape(_quoted(texts[0]).decode()), "path")
