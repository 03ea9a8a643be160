"""SQL over topics: what a statement reads, what of it is read, and archive and log as one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.errors import BadOption, BadStatement, BusError, OffsetGone, OtherLog, UnknownTopic
from landbridge.pipeline.jobs.archive import Archive
from landbridge.pipeline.jobs.running import Place, Trigger, run
from landbridge.pipeline.sql.need import ALL, Need
from landbridge.pipeline.sql.statement import Relation, Rewritten, Statement, View
from landbridge.pipeline.sql.views import CLOCKS_APART, Views
from tests.pipeline.site import Site
from tests.pipeline.test_source import trim


class Watched(Views):
    """Views that remember what was asked of them."""

    opened: dict[View, Need]

    def open(self, view: View, need: Need = ALL) -> Any:
        self.__dict__.setdefault("opened", {})[view] = need
        return super().open(view, need)


def views(spark: Any, site: Site, **options: Any) -> Watched:
    return Watched(spark, where=site.access, **options)


def archive(spark: Any, site: Site, **options: Any) -> str:
    lake = str(site.folder / "lake")
    job = Archive(lake, topics=(site.topic(),), **options)
    run(job, Place(spark, str(site.folder / "archiving"), Trigger(once=True), site.access))
    return lake


def examples(document: str) -> dict[str, Any]:
    """What the Python blocks of a document leave behind."""
    text = (Path(__file__).parents[2] / "docs" / document).read_text()
    scope: dict[str, Any] = {}
    for block in re.findall(r"^```py\n(.*?)^```", text, re.S | re.M):
        exec(block, scope)
    return scope


# -- without Spark -----------------------------------------------------------------------------------


def test_a_need_that_serves_two_has_the_wider_bounds() -> None:
    one = Need(3, 9, 100, 200, frozenset({"key"}))
    assert one.wider(Need(5, 12, 50, 150, frozenset({"value"}))) == Need(
        3, 12, 50, 200, frozenset({"key", "value"})
    )
    assert one.wider(ALL) == ALL


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        ("GreaterThan", (8, 20)),
        ("GreaterThanOrEqual", (7, 20)),
        ("LessThan", (5, 7)),
        ("LessThanOrEqual", (5, 8)),
        ("EqualTo", (7, 8)),
    ],
)
def test_comparisons_narrow_a_need(comparison: str, expected: tuple[int, int]) -> None:
    need = Need(first=5, end=20).narrower("offset", comparison, 7)
    assert (need.first, need.end) == expected
    times = Need(since=5, until=20).narrower("timestamp", comparison, 7)
    assert (times.since, times.until) == expected


def test_places_lead_back_to_what_was_written() -> None:
    text = "SELECT a FROM topic.x, log.y WHERE b"
    relations = [Relation(View("topic", "x"), 14, 21, "x"), Relation(View("log", "y"), 23, 28, None)]
    new = Statement(text, relations).rewritten({View("topic", "x"): "v1", View("log", "y"): "view_2"})
    assert new.text == "SELECT a FROM `v1` AS `x`, `view_2` WHERE b"
    for word in ("SELECT", "a", "FROM", "WHERE"):
        assert new.back(new.text.index(word)) == text.index(word)
    assert new.back(len(new.text) - 1) == len(text) - 1
    assert new.back(new.text.index("v1")) == 14
    assert Rewritten("abc", []).back(2) == 2


# -- statements ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM topic.orders", [("topic", "orders", "orders")]),
        ("select * from TOPIC.orders o", [("topic", "orders", None)]),
        ("SELECT * FROM topic.eu.orders", [("topic", "eu.orders", "orders")]),
        ("SELECT * FROM topic.`eu.my-orders`", [("topic", "eu.my-orders", "eu.my-orders")]),
        ("SELECT * FROM topic.a TABLESAMPLE (5 ROWS)", [("topic", "a", None)]),
        ("TABLE log.a", [("log", "a", None)]),
        ("FROM topic.a |> WHERE key IS NULL", [("topic", "a", "a")]),
        (
            "WITH b AS (TABLE topic.a) SELECT (SELECT max(key) FROM log.c) FROM b JOIN archive.d USING (key) "
            "WHERE key IN (SELECT key FROM topic.e)",
            [("topic", "a", None), ("log", "c", "c"), ("archive", "d", "d"), ("topic", "e", "e")],
        ),
        ("EXPLAIN SELECT * FROM topic.a", [("topic", "a", "a")]),
        ("DESCRIBE topic.a", [("topic", "a", None)]),
        ("SELECT * FROM orders, other.x", []),
        ("SELECT 'FROM topic.a' -- FROM topic.b", []),
    ],
)
def test_the_relations_of_a_statement(
    spark: Any, text: str, expected: list[tuple[str, str, str | None]]
) -> None:
    statement = Statement.parse(spark, text)
    assert [(*each.view, each.alias) for each in statement.relations] == expected
    # What takes their place is SQL again.
    Statement.parse(spark, statement.rewritten(dict.fromkeys(statement.views, "some_view")).text)


@pytest.mark.parametrize(
    ("text", "verb"),
    [
        ("INSERT INTO topic.a VALUES (1)", "INSERT"),
        ("WITH b AS (SELECT 1) INSERT INTO c SELECT * FROM b", "INSERT"),
        ("INSERT OVERWRITE DIRECTORY '/nowhere' USING parquet SELECT 1", "INSERT"),
        ("EXPLAIN INSERT INTO a VALUES (1)", "INSERT"),
        ("CREATE VIEW a AS SELECT 1", "CREATE"),
        ("DROP TABLE a", "DROP"),
        ("DELETE FROM topic.a", "DELETE"),
        ("MERGE INTO a USING b ON a.x = b.x WHEN MATCHED THEN DELETE", "MERGE"),
        ("SET spark.sql.shuffle.partitions = 3", "SET"),
        ("CACHE TABLE a", "CACHE"),
        ("EXECUTE IMMEDIATE 'DROP TABLE a'", "EXECUTE IMMEDIATE"),
        ("BEGIN DROP TABLE a; END", "BEGIN … END"),
        ("SELECT TRANSFORM (a) USING 'cat' FROM b", "TRANSFORM"),
        ("ADD JAR '/nowhere.jar'", "ADD"),
    ],
)
def test_a_statement_that_does_more_than_reading_is_refused(spark: Any, text: str, verb: str) -> None:
    with pytest.raises(BadStatement, match=f"^{verb} is not a query"):
        Statement.parse(spark, text)


def marked(error: BusError) -> str:
    """What of the statement is marked."""
    line, marks = error.__notes__
    return line[marks.index("^") : marks.index("^") + marks.count("^")]


def test_errors_of_sql_are_short_and_marked(spark: Any, site: Site) -> None:
    site.publish(1)
    table = f"topic.{site.topic()}"
    tables = views(spark, site)
    with pytest.raises(BadStatement) as caught:
        tables.sql(f"SELECT a.key,\n  kee FROM {table} a JOIN log.{site.topic()} b USING (offset)")
    assert "`kee` cannot be resolved" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert marked(caught.value) == "kee"
    with pytest.raises(BadStatement) as caught:
        tables.sql(f"SELECT offset FROM {table} WHERE nope = 1")
    assert marked(caught.value) == "nope"  # behind a name that was exchanged for another
    with pytest.raises(BadStatement, match="Syntax error at or near 'SELEC'") as caught:
        tables.sql("SELEC 1")
    assert caught.value.__notes__ == ["SELEC 1", "^"]
    with pytest.raises(BadStatement, match="there is no table orders") as caught:
        tables.sql("SELECT * FROM orders")
    assert "topic.orders" in caught.value.hint
    with pytest.raises(UnknownTopic) as caught_topic:
        tables.sql(f"SELECT * FROM topic.{site.topic('order')}")
    assert site.topic() in caught_topic.value.hint
    with pytest.raises(BadStatement, match="no statement"):
        tables.sql(" ; ")
    with pytest.raises(BadOption, match="nothing says where the archive is"):
        tables.sql(f"SELECT * FROM archive.{site.topic()}")


def test_what_fails_while_rows_are_read_is_told_as_short(spark: Any, site: Site) -> None:
    site.publish(3)
    tables = views(spark, site)
    frame = tables.sql(f"SELECT 6 / (offset - 1) x FROM topic.{site.topic()} WHERE offset >= 0")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever Spark makes of it
        frame.collect()
    refused = tables.refusal(caught.value)
    assert isinstance(refused, BadStatement)
    assert str(refused).startswith("Division by zero")
    assert marked(refused) == "6 / (offset - 1)"
    with pytest.raises(ZeroDivisionError):
        tables.refusal(ZeroDivisionError())


# -- what is read --------------------------------------------------------------------------------------


def test_only_what_a_statement_needs_is_read(spark: Any, site: Site) -> None:
    site.publish(10)
    site.bus.publish(site.topic(), {"amount": 7}, key="eu")
    tables = views(spark, site)
    name = site.topic()
    text = (
        f"SELECT a.json:amount::int amount FROM topic.{name} a "
        f"WHERE a.offset > 4 AND a.timestamp >= timestamp_micros(0) AND cast(a.key AS string) = 'eu'"
    )
    assert [row.amount for row in tables.sql(text).collect()] == [7]
    need = tables.opened[View("topic", name)]
    assert (need.first, need.end, need.since) == (5, None, 0)
    assert need.columns == frozenset({"topic", "offset", "timestamp", "key", "value"})
    counted = tables.sql(
        f"SELECT (SELECT count(*) FROM log.{name} WHERE offset < 3) + count(*) n "
        f"FROM topic.{name} WHERE offset BETWEEN 5 AND 6"
    )
    assert counted.collect()[0].n == 5
    # Of a topic that is named twice, what serves both.
    assert tables.opened[View("log", name)] == Need(None, 7, columns=frozenset({"topic", "offset"}))


def test_the_log_is_read_from_the_time_that_is_asked_for(spark: Any, site: Site) -> None:
    site.publish(5)
    tables = views(spark, site)
    ends = site.bus.call("topic.show", name=site.topic())["end"]
    newest = tables.log(site.topic()).selectExpr("max(unix_micros(timestamp)) at").collect()[0].at
    late = Need(since=newest + CLOCKS_APART + 60_000_000)
    assert tables.log(site.topic(), late).count() == 0
    assert tables.log(site.topic(), Need(since=newest)).count() == ends  # clocks may be apart


def test_dotted_topics_joins_and_qualified_columns(spark: Any, site: Site) -> None:
    for which in ("left", "right"):
        site.publish(2, which)
    a, b = f"topic.{site.topic('left')}", f"log.`{site.topic('right')}`"
    text = f"SELECT left.offset, r.value FROM {a} JOIN {b} r ON left.offset = r.offset ORDER BY 1"
    rows = views(spark, site).sql(text).collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [(0, b"0"), (1, b"1")]


def test_topics_are_listed(spark: Any, site: Site) -> None:
    site.publish(3)
    for text in ("SHOW TOPICS", "show tables;"):
        rows = {row.topic: row for row in views(spark, site).sql(text).collect()}
        assert (rows[site.topic()].messages, rows[site.topic()].archived) == (3, None)


# -- archive and log -----------------------------------------------------------------------------------


def offsets(tables: Views, table: str, where: str = "true") -> list[int]:
    return [row.offset for row in tables.sql(f"SELECT offset FROM {table} WHERE {where}").collect()]


def test_archive_and_log_are_one_table(spark: Any, site: Site, terminal: Terminal) -> None:
    site.publish(3)
    lake = archive(spark, site, start_at="latest")  # these three stay in the log alone
    site.publish(3, first=3)
    site.publish(1, first=6)  # batches of their own: a log is trimmed by whole batches
    archive(spark, site, start_at="latest")
    site.publish(1, first=7)
    site.publish(1, first=8)
    tables = views(spark, site, lake=lake)
    name = site.topic()
    assert offsets(tables, f"archive.{name}") == [3, 4, 5, 6]
    # Where the log has all, nothing is there twice; the lake's part is the lake's.
    whole = tables.sql(f"SELECT offset, value, json::int n FROM topic.{name}").collect()
    assert [(row.offset, bytes(row.value), row.n) for row in whole] == [(n, b"%d" % n, n) for n in range(9)]
    for where, expected in (("offset < 2", [0, 1]), ("5 = offset", [5]), ("offset >= 6", [6, 7, 8])):
        assert offsets(tables, f"topic.{name}", where) == expected
    assert offsets(tables, f"topic.{name}", "timestamp < timestamp_micros(5)") == []
    trim(terminal, name, 6)  # the log has gone on: now the archive is all there is of the middle
    assert offsets(tables, f"topic.{name}") == [3, 4, 5, 6, 7, 8]
    trim(terminal, name, 8)  # faster than the archive
    with pytest.raises(OffsetGone, match=r"1 message of .* ends before offset 7, .* begins at 8"):
        tables.sql(f"SELECT * FROM topic.{name}")
    told: list[str] = []
    tolerant = views(spark, site, lake=lake, allow_gaps=True, tell=told.append)
    assert offsets(tolerant, f"topic.{name}") == [3, 4, 5, 6, 8]
    assert len(told) == 1
    # Deleted, it is still in the archive; made anew, it is another topic.
    site.bus.call("topic.delete", name=name, force=True)
    assert offsets(tables, f"topic.{name}") == [3, 4, 5, 6]
    for count in (1, 12):  # fewer and more than the archive has
        site.publish(count)
        for each in (tables, tolerant):
            with pytest.raises(OtherLog, match=r"are not one: .* made anew"):
                each.sql(f"SELECT * FROM topic.{name}")
    assert offsets(tables, f"archive.{name}") == [3, 4, 5, 6]
    assert offsets(tables, f"log.{name}") == list(range(13))


def test_a_topic_that_is_not_archived_is_its_log(spark: Any, site: Site) -> None:
    site.publish(2)
    tables = views(spark, site, lake=str(site.folder / "empty"))
    assert offsets(tables, f"topic.{site.topic()}") == [0, 1]
    with pytest.raises(UnknownTopic, match="the lake has no topic"):
        tables.sql(f"SELECT * FROM archive.{site.topic()}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_examples_of_the_document_run(spark: Any) -> None:
    scope = examples("pipeline-sql.md")
    assert scope["spark"] is spark
    assert (scope["total"], scope["few"]) == (5 + 6 + 7 + 8 + 9, 3)
