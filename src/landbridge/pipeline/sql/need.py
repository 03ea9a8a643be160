"""What a statement needs of a topic: which offsets, which time, which columns. It is found in the optimized
plan of the statement over stand-ins, so that no more of logs and lakes is read.

A condition that isn't understood means "everything": a need may be too wide, and never too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Spark's comparisons → the same with the sides exchanged.
_EXCHANGED = {
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "EqualTo": "EqualTo",
}


class Need(NamedTuple):
    """None means: no bound, or every column."""

    #: Offsets, from ``first`` to before ``end``.
    first: int | None = None
    end: int | None = None
    #: The column timestamp in microseconds, from ``since`` to before ``until``.
    since: int | None = None
    until: int | None = None
    columns: frozenset[str] | None = None

    def wider(self, other: Need) -> Need:
        """The need that serves both."""

        def both(choose: Callable[[int, int], int], one: int | None, two: int | None) -> int | None:
            return None if one is None or two is None else choose(one, two)

        return Need(
            both(min, self.first, other.first),
            both(max, self.end, other.end),
            both(min, self.since, other.since),
            both(max, self.until, other.until),
            None if self.columns is None or other.columns is None else self.columns | other.columns,
        )

    def narrower(self, name: str, comparison: str, value: int) -> Need:
        """The need with one more condition: ``name`` (offset or timestamp) is compared to a whole number."""
        low, high = (self.first, self.end) if name == "offset" else (self.since, self.until)
        if comparison in ("GreaterThan", "GreaterThanOrEqual", "EqualTo"):
            least = value + (comparison == "GreaterThan")
            low = least if low is None else max(low, least)
        if comparison in ("LessThan", "LessThanOrEqual", "EqualTo"):
            most = value + (comparison != "LessThan")
            high = most if high is None else min(high, most)
        if name == "offset":
            return self._replace(first=low, end=high)
        return self._replace(since=low, until=high)

    def overlaps(self, first: int, end: int) -> bool:
        """Whether anything between these offsets is needed."""
        above = self.first is None or self.first < end
        return first < end and above and (self.end is None or self.end > first)


ALL = Need()


def needs(frame: DataFrame) -> dict[str, Need]:
    """By topic, from a frame over stand-ins, which are leaves below a filter ``topic = …``."""
    found: dict[str, Need] = {}
    plan: Any = frame._jdf.queryExecution().optimizedPlan()
    for topic, need in _leaves(plan, []):
        found[topic] = found[topic].wider(need) if topic in found else need
    return found


def items(sequence: Any) -> list[Any]:
    """The items of a Scala Seq."""
    return [sequence.apply(index) for index in range(sequence.length())]


def kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _leaves(plan: Any, above: list[Any]) -> Iterator[tuple[str, Need]]:
    """``above``: the filters and projections right above, the lowest first."""
    children = items(plan.children())
    if not children and (found := _need(plan, above)) is not None:
        yield found
    onward = [plan, *above] if kind(plan) in ("Filter", "Project") else []
    for child in children:
        yield from _leaves(child, onward)
    for inner in items(plan.subqueries()):
        yield from _leaves(inner, [])


def _need(leaf: Any, above: list[Any]) -> tuple[str, Need] | None:
    names = {each.exprId(): str(each.name()) for each in items(leaf.output())}
    topic: str | None = None
    need = ALL
    used: set[str] = set()
    for node in above:
        used |= {names[id] for each in items(node.references().toSeq()) if (id := each.exprId()) in names}
        if kind(node) == "Project":
            # The nodes above it see no other columns of the leaf.
            need = need._replace(columns=frozenset(used))
            break
        for condition in _conjuncts(node.condition()):
            name, comparison, value = _comparison(condition, names) or ("", "", None)
            if name == "topic" and comparison == "EqualTo":
                topic = str(value)
            elif name in ("offset", "timestamp") and isinstance(value, int):
                need = need.narrower(name, comparison, value)
    return None if topic is None else (topic, need)


def _conjuncts(condition: Any) -> Iterator[Any]:
    if kind(condition) == "And":
        for side in items(condition.children()):
            yield from _conjuncts(side)
    else:
        yield condition


def _comparison(condition: Any, names: dict[Any, str]) -> tuple[str, str, Any] | None:
    """(column of the leaf, comparison, literal); None where the condition isn't that simple."""
    comparison = kind(condition)
    if comparison not in _EXCHANGED:
        return None
    left, right = items(condition.children())
    if kind(left) == "Literal":
        left, right, comparison = right, left, _EXCHANGED[comparison]
    if kind(left) != "AttributeReference" or kind(right) != "Literal" or left.exprId() not in names:
        return None
    name, value = names[left.exprId()], right.value()
    if value is None:
        return None
    return name, comparison, value.toString() if name == "topic" else value
