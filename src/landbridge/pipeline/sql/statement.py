"""A statement of SQL: which tables it reads, whether it would write, and Spark's errors about it.

Spark's own parser finds the relations. ``topic.orders`` can't be the name of a temporary view. So names of
this form are replaced in the text by the names of views, and places that Spark reports in the new text are
translated back to the old one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from landbridge.errors import BadStatement, BusError
from landbridge.pipeline.connector.failure import meaning
from landbridge.pipeline.sql.need import items, kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The first part of a table's name: archive and log as one, the log, the archive.
KINDS = ("topic", "log", "archive")
READS = "a query reads: SELECT, WITH, VALUES, TABLE, SHOW, DESCRIBE, EXPLAIN"

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
#: Nodes that would write or run something else, and are none of Spark's commands → their statement.
_WRITING = {
    "InsertIntoDir": "INSERT",
    "ScriptTransformation": "TRANSFORM",
    "CompoundBody": "BEGIN … END",
    "UnresolvedExecuteImmediate": "EXECUTE IMMEDIATE",
}
#: Commands that only read.
_TELLING = re.compile(r"(Show|Describe|Explain)")
#: Where the grammar takes no alias after the name: TABLE name, and where a sample follows.
_NO_ALIAS_AFTER = re.compile(r"\btable\s*\(?\s*$", re.IGNORECASE)
_NO_ALIAS_BEFORE = re.compile(r"\s*(tablesample\b|with\s*\(|watermark\b)", re.IGNORECASE)
#: Spark's conditions that no statement is to blame for.
_FAULTS = ("INTERNAL_ERROR", "PYTHON_DATA_SOURCE_ERROR")
_PLACE = re.compile(r"\(?line (\d+), pos (\d+)\)?")


class View(NamedTuple):
    """A table of Landbridge that a statement names."""

    kind: str
    topic: str


class Relation(NamedTuple):
    """Where a statement names a view."""

    view: View
    #: In the text, from ``start`` to before ``stop``.
    start: int
    stop: int
    #: The alias that the view gets; None where the statement gives one itself, or none can be given.
    alias: str | None


class Statement:
    def __init__(self, text: str, relations: list[Relation]) -> None:
        self.text = text
        self.relations = sorted(relations, key=lambda each: each.start)

    @classmethod
    def parse(cls, spark: SparkSession, text: str) -> Statement:
        if not text.strip().strip(";"):
            raise BadStatement("there is no statement", hint='landbridge sql "SELECT * FROM topic.orders"')
        try:
            plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
        except Exception as error:
            raise refusal(error, Rewritten(text, [])) from None
        return cls(text, list(_relations(spark, plan, text)))

    @property
    def views(self) -> list[View]:
        return sorted({each.view for each in self.relations})

    def rewritten(self, names: Mapping[View, str]) -> Rewritten:
        """The statement with the names of temporary views in the place of Landbridge's."""
        pieces: list[str] = []
        moved: list[tuple[int, int, Relation]] = []
        at = new = 0
        for each in self.relations:
            before = self.text[at : each.start]
            name = quoted(names[each.view]) + (f" AS {quoted(each.alias)}" if each.alias else "")
            new += len(before)
            moved.append((new, new + len(name), each))
            new += len(name)
            pieces += [before, name]
            at = each.stop
        return Rewritten("".join([*pieces, self.text[at:]]), moved, self.text)


class Rewritten:
    """A text that Spark runs, and the way back to the text that the user wrote."""

    def __init__(
        self, text: str, moved: list[tuple[int, int, Relation]], original: str | None = None
    ) -> None:
        self.text = text
        self.original = text if original is None else original
        #: (from, to, relation): the stretches of ``text`` that stand for a relation of the original.
        self._moved = moved

    def back(self, index: int) -> int:
        """The place in the original of a place in the text."""
        shift = 0
        for start, stop, relation in self._moved:
            if index < start:
                break
            if index < stop:
                return relation.start
            shift = relation.stop - stop
        return index + shift


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _relations(spark: SparkSession, plan: Any, text: str) -> Iterator[Relation]:
    """The relations of a parsed plan. Raises BadStatement where it would do anything else than read."""
    for node, aliased in _nodes(plan):
        name = kind(node)
        if name in _WRITING or (
            not _TELLING.match(name)
            and (_is(spark, node, f"{_LOGICAL}.Command") or _is(spark, node, f"{_LOGICAL}.ParsedStatement"))
        ):
            raise BadStatement(f"{_verb(name)} is not a query", hint=READS)
        if name == "RelationTimeTravel":
            raise BadStatement("a topic has no versions", hint="WHERE timestamp < '2026-01-31 12:00:00'")
        if name not in ("UnresolvedRelation", "UnresolvedTableOrView"):
            continue
        parts = [str(part) for part in items(node.multipartIdentifier())]
        if len(parts) < 2 or parts[0].lower() not in KINDS:
            continue
        start, stop = int(node.origin().startIndex().get()), int(node.origin().stopIndex().get()) + 1
        can_have = (
            name == "UnresolvedRelation"
            and not aliased
            and not _NO_ALIAS_AFTER.search(text[:start])
            and not _NO_ALIAS_BEFORE.match(text[stop:])
        )
        view = View(parts[0].lower(), ".".join(parts[1:]))
        yield Relation(view, start, stop, parts[-1] if can_have else None)


def _verb(name: str) -> str:
    """The first word of the statement of a node: InsertIntoStatement is an INSERT."""
    word = re.match(r"(?:Unresolved)?([A-Z][a-z]+)", name)
    return _WRITING.get(name) or (word[1].upper() if word else name)


def _nodes(plan: Any, aliased: bool = False) -> Iterator[tuple[Any, bool]]:
    """All nodes, with those of subqueries and common tables, and whether each is right below an alias."""
    yield plan, aliased
    name = kind(plan)
    inner = items(plan.children())
    if name == "ExplainCommand":
        inner = [plan.logicalPlan()]
    elif name == "DescribeQueryCommand":
        inner = [plan.plan()]
    elif name not in ("UnresolvedRelation", "UnresolvedTableOrView"):
        inner += items(plan.innerChildren())
    for each in inner:
        yield from _nodes(each, name == "SubqueryAlias")


def _is(spark: SparkSession, node: Any, name: str) -> bool:
    from py4j.java_gateway import is_instance_of

    return bool(is_instance_of(spark.sparkContext._gateway, node, name))


def refusal(error: BaseException, statement: Rewritten) -> BusError:
    """Spark's error in one sentence, with the place marked. Raises an error again that isn't about the
    statement."""
    if (known := meaning(error)) is not None:
        return known
    condition = _of(error, "getCondition")
    if condition is None or condition.startswith(_FAULTS):
        raise error
    text = str(error).split("\n\n== SQL")[0].split("\nJVM stacktrace")[0]
    text = re.split(r"\n|\s*SQLSTATE: ", text.strip(), maxsplit=1)[0].removeprefix(f"[{condition}] ").strip()
    hint = None
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        name = (_of(error, "getMessageParameters") or {}).get("relationName", "").replace("`", "")
        text = f"there is no table {name}"
        hint = f"topics are topic.NAME: did you mean topic.{name}?" if "." not in name else "see SHOW TOPICS"
    if condition.startswith("INVALID_LIMIT_LIKE_EXPRESSION"):
        hint = "offset is a word of SQL: write NAME.offset, where NAME is the last word of the topic's name"
    refused = BadStatement(text, hint=hint)
    span = _span(error, statement)
    if span is not None:
        start, length = span
        begin = statement.original.rfind("\n", 0, start) + 1
        line = statement.original[begin:].split("\n", 1)[0]
        refused.add_note(line.replace("\t", " "))
        refused.add_note(" " * (start - begin) + "^" * max(1, min(length, len(line) - (start - begin))))
    return refused


def _span(error: BaseException, statement: Rewritten) -> tuple[int, int] | None:
    """(place in the original, length) of what Spark marks; None where it marks nothing."""
    for context in _of(error, "getQueryContext") or ():
        try:
            start, stop = context.startIndex(), context.stopIndex()
        except Exception:  # The context of a DataFrame has no places.
            continue
        if 0 <= start <= stop < len(statement.text):
            first, last = statement.back(start), statement.back(stop + 1)
            return first, max(1, last - first)
    if found := _PLACE.search(str(error)):
        lines = statement.text.split("\n")
        line, column = int(found[1]) - 1, int(found[2])
        if line < len(lines):
            return statement.back(sum(len(each) + 1 for each in lines[:line]) + column), 1
    return None


def _of(error: BaseException, method: str) -> Any:
    """The answer of a Spark error to a method; None where the error is none of Spark's, or has no answer."""
    ask = getattr(error, method, None)
    try:
        return None if ask is None else ask()
    except Exception:  # The session of the error has ended.
        return None
