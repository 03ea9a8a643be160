"""JSONPath queries of RFC 9535: does a query select at least one node of a document?

The package ``jsonpath-rfc9535`` parses and checks a query. What it parsed is evaluated here, because an
evaluation has to stay within a budget, has to end at the first node, and must not run a document's regular
expressions by backtracking. Values are compared as in JSON: ``true`` is not 1, also inside of arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from landbridge.core.rules.bounds import DEEPEST_FILTER, LONGEST_TEXT, describe
from landbridge.core.rules.budget import Spending
from landbridge.core.rules.regexps import Expression
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathQuery
    from jsonpath_rfc9535.filter_expressions import Expression as FilterExpression
    from jsonpath_rfc9535.selectors import JSONPathSelector

#: Steps that a regular expression costs that is not known before, because it is in the document.
COMPILE_STEPS = 500
#: How often something is repeated, in a regular expression.
_COUNT = re.compile(r"\{[0-9]+(,[0-9]*)?\}")
#: Characters of a text that are compared in one step.
COMPARED_AT_ONCE = 64


class _Nothing:
    pass


#: The result of a singular query without a node, and of a function that has no answer.
NOTHING = _Nothing()


class Evaluation:
    """One evaluation of a query: the document, and what may still be spent."""

    __slots__ = ("root", "spending")

    def __init__(self, root: Any, spending: Spending) -> None:
        self.root = root
        self.spending = spending


#: From a node's value to the values of the nodes that are selected below it.
Select: TypeAlias = Callable[[Any, Evaluation], Iterator[Any]]
#: The value of an expression in a filter, for the current node.
Value: TypeAlias = Callable[[Any, Evaluation], Any]
Condition: TypeAlias = Callable[[Any, Evaluation], bool]


class JsonPath:
    """A query, ready to be evaluated."""

    def __init__(self, path: str, place: str = "path") -> None:
        """``place`` is what errors call the query."""
        parsed = _parsed(path, place)
        self.text = path
        self._nodes = _Compiler(place).query(parsed, 0)
        #: Texts that a document needs to have for the query to select something: names of its members, and
        #: values that they are compared with.
        self.needs: frozenset[str] = frozenset(text for text, _ in _needs(parsed))
        #: Those of them that are values: mostly fewer documents have a value than a name.
        self.needed_values: frozenset[str] = frozenset(text for text, is_value in _needs(parsed) if is_value)
        self._segments = [str(segment) for segment in parsed.segments]
        self._parsed, self._place = parsed, place

    def selects(self, document: Any, spending: Spending) -> bool:
        """Does it select a node of the document?"""
        for _ in self.nodes(document, spending):
            return True
        return False

    def nodes(self, document: Any, spending: Spending) -> Iterator[Any]:
        """The values of the nodes that it selects."""
        return self._nodes(document, Evaluation(document, spending))

    def first_empty(self, document: Any, spending: Spending) -> tuple[str, str]:
        """Of a query that selects nothing: the part before and the segment with which it selects nothing."""
        compiler = _Compiler(self._place)
        segments = self._parsed.segments
        for count in range(1, len(segments) + 1):
            nodes = compiler.segments(segments[:count], 0)
            if next(nodes(document, Evaluation(document, spending)), NOTHING) is NOTHING:
                return "$" + "".join(self._segments[: count - 1]), self._segments[count - 1]
        return self.text, ""


@lru_cache(1)
def _environment() -> JSONPathEnvironment:
    from jsonpath_rfc9535 import JSONPathEnvironment

    return JSONPathEnvironment()


def _parsed(path: str, place: str) -> JSONPathQuery:
    from jsonpath_rfc9535 import JSONPathError

    if len(path) > LONGEST_TEXT:
        raise BadRequest(f"{place}: {len(path):,} characters, allowed are {LONGEST_TEXT}")
    try:
        path.encode()
        return _environment().compile(path)
    except (JSONPathError, UnicodeEncodeError) as error:
        raise BadRequest(
            f"{place}: {error}", hint="a query of RFC 9535, as in $.items[?@.price > 100]"
        ) from None
    except RecursionError:
        raise BadRequest(f"{place}: the query is nested too deep") from None


class _Compiler:
    """Makes functions of what the package has parsed."""

    def __init__(self, place: str) -> None:
        from jsonpath_rfc9535 import filter_expressions, segments, selectors

        self._place = place
        self._f, self._s, self._segments = filter_expressions, selectors, segments

    def query(self, parsed: JSONPathQuery, depth: int) -> Select:
        return self.segments(parsed.segments, depth)

    def segments(self, segments: Iterable[Any], depth: int) -> Select:
        steps = []
        for segment in segments:
            selects = [self.selector(each, depth) for each in segment.selectors]
            is_descendant = isinstance(segment, self._segments.JSONPathRecursiveDescentSegment)
            below = selects[0] if len(selects) == 1 else _all_of(selects)
            steps.append(_descendants(below) if is_descendant else below)
        if len(steps) == 1:
            return steps[0]

        def nodes(value: Any, run: Evaluation) -> Iterator[Any]:
            found: Iterator[Any] = iter((value,))
            for step in steps:
                found = _each(step, found, run)
            return found

        return nodes

    def selector(self, selector: JSONPathSelector, depth: int) -> Select:
        s = self._s
        if isinstance(selector, s.NameSelector):
            return _named(selector.name)
        if isinstance(selector, s.IndexSelector):
            return _indexed(selector.index)
        if isinstance(selector, s.SliceSelector):
            return _sliced(selector.slice)
        if isinstance(selector, s.WildcardSelector):
            return _children
        assert isinstance(selector, s.FilterSelector)
        return _filtered(self.condition(selector.expression.expression, depth + 1))

    def condition(self, expression: FilterExpression, depth: int) -> Condition:
        """A test of a filter."""
        f = self._f
        if depth > DEEPEST_FILTER:
            raise BadRequest(f"{self._place}: filters are nested deeper than {DEEPEST_FILTER} levels")
        if isinstance(expression, f.LogicalExpression):
            left, right = self.condition(expression.left, depth), self.condition(expression.right, depth + 1)
            if expression.operator == "&&":
                return lambda node, run: left(node, run) and right(node, run)
            return lambda node, run: left(node, run) or right(node, run)
        if isinstance(expression, f.PrefixExpression):
            inner = self.condition(expression.right, depth + 1)
            return lambda node, run: not inner(node, run)
        if isinstance(expression, f.ComparisonExpression):
            first, second = self.value(expression.left, depth + 1), self.value(expression.right, depth + 1)
            return _comparison(expression.operator, first, second)
        if isinstance(expression, f.FilterQuery):
            nodes, is_absolute = self.filter_query(expression, depth)
            if is_absolute:
                return lambda node, run: any(True for _ in nodes(run.root, run))
            return lambda node, run: any(True for _ in nodes(node, run))
        if isinstance(expression, f.FunctionExtension) and expression.name in ("match", "search"):
            return self.regexp(expression, depth)
        raise BadRequest(f"{self._place}: {expression} is no test")  # the parser refuses this before

    def filter_query(self, expression: Any, depth: int) -> tuple[Select, bool]:
        nodes = self.query(expression.query, depth + 1)
        return nodes, isinstance(expression, self._f.RootFilterQuery)

    def value(self, expression: FilterExpression, depth: int) -> Value:
        """What is compared, or an argument of a function: a value, or NOTHING."""
        f = self._f
        if depth > DEEPEST_FILTER:
            raise BadRequest(f"{self._place}: filters are nested deeper than {DEEPEST_FILTER} levels")
        if isinstance(expression, f.FilterExpressionLiteral):
            constant = expression.value
            return lambda node, run: constant
        if isinstance(expression, f.FilterQuery):
            nodes, is_absolute = self.filter_query(expression, depth)
            if is_absolute:
                return lambda node, run: next(nodes(run.root, run), NOTHING)
            return lambda node, run: next(nodes(node, run), NOTHING)
        assert isinstance(expression, f.FunctionExtension)
        return self.function(expression, depth)

    def function(self, expression: Any, depth: int) -> Value:
        [argument] = expression.args
        if expression.name == "length":
            measured = self.value(argument, depth + 1)
            return lambda node, run: _length(measured(node, run))
        assert expression.name in ("count", "value")
        nodes, is_absolute = self.filter_query(argument, depth)
        if expression.name == "count":
            return lambda node, run: sum(1 for _ in nodes(run.root if is_absolute else node, run))

        def sole(node: Any, run: Evaluation) -> Any:
            found = nodes(run.root if is_absolute else node, run)
            value = next(found, NOTHING)
            return value if next(found, NOTHING) is NOTHING else NOTHING

        return sole

    def regexp(self, expression: Any, depth: int) -> Condition:
        text, pattern = (self.value(each, depth + 1) for each in expression.args)
        is_match = expression.name == "match"
        known: _IRegexp | None = None
        if isinstance(expression.args[1], self._f.StringLiteral):
            known = _IRegexp(expression.args[1].value)
            if known.refused is not None:
                raise BadRequest(f"{self._place}: {known.refused}")

        def test(node: Any, run: Evaluation) -> bool:
            wanted, given = pattern(node, run), text(node, run)
            if type(given) is not str or type(wanted) is not str:
                return False
            if known is not None:
                return known.holds(given, run.spending, is_match=is_match)
            run.spending.spend(COMPILE_STEPS)
            return _IRegexp(wanted).holds(given, run.spending, is_match=is_match)

        return test


# -- selectors -------------------------------------------------------------------------------------------


def _each(step: Select, values: Iterator[Any], run: Evaluation) -> Iterator[Any]:
    for value in values:
        yield from step(value, run)


def _all_of(selects: list[Select]) -> Select:
    def nodes(value: Any, run: Evaluation) -> Iterator[Any]:
        for select in selects:
            yield from select(value, run)

    return nodes


def _named(name: str) -> Select:
    def nodes(value: Any, run: Evaluation) -> Iterator[Any]:
        run.spending.spend(1)
        if type(value) is dict and name in value:
            yield value[name]

    return nodes


def _indexed(index: int) -> Select:
    def nodes(value: Any, run: Evaluation) -> Iterator[Any]:
        run.spending.spend(1)
        if type(value) is list and -len(value) <= index < len(value):
            yield value[index]

    return nodes


def _sliced(bounds: slice) -> Select:
    def nodes(value: Any, run: Evaluation) -> Iterator[Any]:
        if type(value) is list and bounds.step != 0:
            for index in range(*bounds.indices(len(value))):
                run.spending.spend(1)
                yield value[index]

    return nodes


def _children(value: Any, run: Evaluation) -> Iterator[Any]:
    kind = type(value)
    if kind is dict or kind is list:
        for each in value.values() if kind is dict else value:
            run.spending.spend(1)
            yield each


def _descendants(below: Select) -> Select:
    """The selected children of a node and of all nodes under it, a parent before its children."""

    def nodes(value: Any, run: Evaluation) -> Iterator[Any]:
        waiting = [value]
        while waiting:
            node = waiting.pop()
            run.spending.spend(1)
            yield from below(node, run)
            kind = type(node)
            if kind is dict:
                waiting += [each for each in reversed(node.values()) if type(each) in (dict, list)]
            elif kind is list:
                waiting += [each for each in reversed(node) if type(each) in (dict, list)]

    return nodes


def _filtered(test: Condition) -> Select:
    def nodes(value: Any, run: Evaluation) -> Iterator[Any]:
        for each in _children(value, run):
            if test(each, run):
                yield each

    return nodes


# -- expressions -----------------------------------------------------------------------------------------


def _comparison(sign: str, left: Value, right: Value) -> Condition:
    if sign == "==":
        return lambda node, run: _equal(left(node, run), right(node, run), run.spending)
    if sign == "!=":
        return lambda node, run: not _equal(left(node, run), right(node, run), run.spending)
    if sign == "<":
        return lambda node, run: _less(left(node, run), right(node, run))
    if sign == ">":
        return lambda node, run: _less(right(node, run), left(node, run))

    def at_most(node: Any, run: Evaluation) -> bool:
        first, second = left(node, run), right(node, run)
        if sign == ">=":
            first, second = second, first
        return _less(first, second) or _equal(first, second, run.spending)

    return at_most


def _less(left: Any, right: Any) -> bool:
    if type(left) is str and type(right) is str:
        return left < right
    numbers = (int, float)
    return type(left) in numbers and type(right) in numbers and bool(left < right)


def _equal(left: Any, right: Any, spending: Spending) -> bool:
    """As in JSON. Arrays and objects are compared without recursion, and paid for."""
    pairs = [(left, right)]
    while pairs:
        first, second = pairs.pop()
        kind, other = type(first), type(second)
        if kind is list and other is list:
            spending.spend(len(first))
            if len(first) != len(second):
                return False
            pairs += zip(first, second, strict=True)
        elif kind is dict and other is dict:
            spending.spend(len(first))
            if first.keys() != second.keys():
                return False
            pairs += [(value, second[name]) for name, value in first.items()]
        elif kind is str and other is str:
            spending.spend(1 + min(len(first), len(second)) // COMPARED_AT_ONCE)
            if first != second:
                return False
        elif kind in (int, float) and other in (int, float):
            if first != second:
                return False
        elif first is not second:  # true, false, null, and NOTHING, each of which is one object
            return False
    return True


def _length(value: Any) -> Any:
    return len(value) if type(value) in (str, list, dict) else NOTHING


class _IRegexp:
    """A regular expression of RFC 9485. One that is not of that form matches nothing, as RFC 9535 says."""

    __slots__ = ("_expression", "refused")

    def __init__(self, pattern: str) -> None:
        from iregexp_check import check

        self._expression: Expression | None = None
        #: Why a pattern of the right form is refused all the same.
        self.refused: str | None = None
        # The package refuses {2} and counts above some tens, which the RFC has. RE2 checks the counts.
        if len(pattern) <= LONGEST_TEXT and check(_COUNT.sub("{1,2}", pattern)):
            try:
                self._expression = Expression(_in_re2(pattern), f"the expression {describe(pattern)}")
            except BadRequest as error:
                self.refused = str(error)

    def holds(self, text: str, spending: Spending, *, is_match: bool) -> bool:
        if self._expression is None:
            return False
        encoded = text.encode()
        if is_match:
            return self._expression.is_all_of(encoded, spending)
        return self._expression.is_in(encoded, spending)


def _in_re2(pattern: str) -> str:
    """The same expression for RE2: the dot is any character but the ends of lines."""
    parts, is_escaped, is_in_class = [], False, False
    for letter in pattern:
        if is_escaped:
            is_escaped = False
        elif letter == "\\":
            is_escaped = True
        elif letter == "[":
            is_in_class = True
        elif letter == "]":
            is_in_class = False
        elif letter == "." and not is_in_class:
            letter = r"[^\n\r]"
        parts.append(letter)
    return "".join(parts)


# -- what a document needs to have -----------------------------------------------------------------------


def _needs(query: JSONPathQuery) -> Iterator[tuple[str, bool]]:
    """Texts without which a document has no node for the query: names of members, and texts that are
    compared, which are marked."""
    from jsonpath_rfc9535 import selectors

    for segment in query.segments:
        if len(segment.selectors) != 1:
            continue  # several selectors are alternatives
        selector = segment.selectors[0]
        if isinstance(selector, selectors.NameSelector):
            yield selector.name, False
        elif isinstance(selector, selectors.FilterSelector):
            yield from _needs_of_test(selector.expression.expression)


def _needs_of_test(expression: Any) -> Iterator[tuple[str, bool]]:
    from jsonpath_rfc9535 import filter_expressions as f

    if isinstance(expression, f.LogicalExpression) and expression.operator == "&&":
        yield from _needs_of_test(expression.left)
        yield from _needs_of_test(expression.right)
    elif isinstance(expression, f.FilterQuery):
        yield from _needs(expression.query)
    elif isinstance(expression, f.ComparisonExpression) and expression.operator != "!=":
        sides = (expression.left, expression.right)
        # NOTHING equals NOTHING, so a comparison needs its nodes only where the other side is a literal.
        if sum(isinstance(side, f.FilterExpressionLiteral) for side in sides) == 1:
            for side in sides:
                if isinstance(side, f.FilterQuery):
                    yield from _needs(side.query)
                elif isinstance(side, f.StringLiteral) and expression.operator == "==":
                    # A function makes no texts but of nodes, so the text is in the document.
                    yield side.value, True
