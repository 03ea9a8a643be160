"""What a statement needs of a topic: which offsets, which time, which columns. Found in the optimized plan of
the statement over stand-ins, so that of logs and lakes only that much is read.

Whatever isn't understood means "all of it": a need may be too wide, and never too narrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Spark's comparisons, and what they are with the sides exchanged.
_EXCHANGED = {
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "EqualTo": "EqualTo",
}


class Need(NamedTuple):
    """None: no bound, every column."""

    #: Offsets, from ``first`` to before ``end``.
    first: int | None = None
    end: int | None = None
    #: The column timestamp in microseconds, from ``since`` to before ``until``.
    since: int | None = None
    until: int | None = None
    columns: frozenset[str] | None = None

    def wider(self, other: Need) -> Need:
        """What serves both."""
        return Need(
            _least(self.first, other.first),
            _most(self.end, other.end),
            _least(self.since, other.since),
            _most(self.until, other.until),
            None if self.columns is None or other.columns is None else self.columns | other.columns,
        )

    def narrower(self, name: str, comparison: str, value: int) -> Need:
        """With ``name`` (offset or timestamp) compared to a whole number."""
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


ALL = Need()


def _least(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else min(one, other)


def _most(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def needs(frame: DataFrame) -> dict[str, Need]:
    """By topic, from a frame over stand-ins: leaves below a filter ``topic = …``."""
    found: dict[str, Need] = {}
    plan: Any = frame._jdf.queryExecution().optimizedPlan()
    for topic, need in _leaves(plan, []):
        found[topic] = found[topic].wider(need) if topic in found else need
    return found


def items(sequence: Any) -> list[Any]:
    """Of a Scala Seq."""
    return [sequence.apply(index) for index in range(sequence.length())]


def kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _leaves(plan: Any, above: list[Any]) -> Iterator[tuple[str, Need]]:
    """``above``: the filters and the projections right above, from the lowest."""
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
            # What is above it sees no other columns of the leaf.
            need = need._replace(columns=frozenset(used))
            break
        for condition in _conjuncts(node.condition()):
            compared = _comparison(condition, names)
            if compared is None:
                continue
            name, comparison, value = compared
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
    """(column of the leaf, comparison, literal), where it is that simple."""
    comparison = kind(condition)
    if comparison not in _EXCHANGED:
        return None
    left, right = items(condition.children())
    if kind(left) == "Literal":
        left, right, comparison = right, left, _EXCHANGED[comparison]
    if kind(left) != "AttributeReference" or kind(right) != "Literal" or left.exprId() not in names:
        return None
    name, value = names[left.exprId()], right.value()
    if name == "topic":
        value = value if value is None else value.toString()
    return None if value is None else (name, comparison, value)
