"""The job ``route``: the rules of core over a topic's history, each chosen message once."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import landbridge.pipeline
from landbridge.core.log.batch import Batch, build, encode_headers
from landbridge.core.rules.query import Rule, read_query
from landbridge.core.rules.ruleset import RuleSet
from landbridge.errors import BadOption, BadRequest, LimitReached
from landbridge.pipeline import Place, Trigger
from landbridge.pipeline.jobs.route import Choosing, QueryRoute
from tests.pipeline.site import Site
from tests.rfc9535 import PATHS, documents, selects

QUERIES = [
    {"amount": [{"numeric": [">", 100]}], "state": ["paid", {"prefix": "part"}]},
    {"$key": [{"prefix": "vip"}]},
    {"$ce": {"type": [{"suffix": ".cancelled"}]}},
    {"$headers": {"retries": [{"numeric": [">=", 3]}], "raw": [{"anything-but": "x"}]}},
    {"kind": "regexp", "pattern": "urg[e]nt"},
    {"kind": "regexp", "pattern": "^5$", "place": "header:retries"},
    {"kind": "jsonpath", "path": "$.items[?@.price > 50 && match(@.sku, 'a.*')]"},
]
_ROWS: list[tuple[Any, str, dict[str, Any]]] = [
    ({"amount": 150, "state": "paid"}, "", {}),
    ({"amount": 150.5, "state": "partly"}, "eu", {}),
    ({"amount": 50, "state": "paid"}, "eu", {"retries": 2}),
    ({"amount": 1}, "vip-7", {}),
    ({}, "", {"ce-type": "order.cancelled"}),
    ({}, "", {"retries": 3, "raw": b"\xff"}),
    ({}, "", {"retries": 5}),
    (b"\xff urgent", "", {}),
    ({"items": [{"sku": "b", "price": 60}, {"sku": "abc", "price": 51}]}, "", {}),
    ({"items": [{"sku": "b", "price": 60}, {"sku": "abc", "price": 50}]}, "", {}),
    (b"", "", {}),
    (b"[]", "", {"on": True}),
]
MESSAGES: list[tuple[bytes, str, dict[str, Any]]] = [
    (json.dumps(payload).encode() if not isinstance(payload, bytes) else payload, key, headers)
    for payload, key, headers in _ROWS
]


def place(spark: Any, site: Site) -> Place:
    return Place(spark, site.checkpoint, Trigger(once=True), site.access)


def queries(*raw: Any) -> tuple[Any, ...]:
    return tuple(map(read_query, raw))


def publish(site: Site) -> None:
    for payload, key, headers in MESSAGES:
        site.bus.publish(site.topic(), payload, key=key or None, headers=headers)


def test_spark_chooses_what_core_chooses(spark: Any, site: Site) -> None:
    rules = RuleSet(Rule(f"{n}", query) for n, query in enumerate(queries(*QUERIES)))
    batch = build(
        [payload for payload, _, _ in MESSAGES],
        id=bytes(16),
        time=1,
        keys=[key.encode() for _, key, _ in MESSAGES],
        headers=[encode_headers(headers) for _, _, headers in MESSAGES],
    )
    found = rules.match_batch(Batch.decode(batch))
    assert [*map(len, found.rows.values())]
    assert len(found.rows) == len(QUERIES)
    wanted = [MESSAGES[row][0] for row in sorted({row for rows in found.rows.values() for row in rows})]
    publish(site)
    job = QueryRoute(site.topic(), queries(*QUERIES), to=site.topic("chosen"))
    done = landbridge.pipeline.run(job, place(spark, site))
    assert done.rows == len(MESSAGES)
    assert site.rows("chosen") == wanted
    kept = site.read(spark, "chosen", includeHeaders="true").where("key = 'vip-7'").collect()
    assert [bytes(row.value) for row in kept] == [b'{"amount": 1}']
    # Again: nothing is chosen twice, and what is new is.
    site.bus.publish(site.topic(), b"more urgent")
    landbridge.pipeline.run(job, place(spark, site))
    assert site.rows("chosen") == [*wanted, b"more urgent"]
    # Each rule alone, through the function that the workers run.
    for n, query in enumerate(queries(*QUERIES)):
        alone = QueryRoute(site.topic(), (query,), to="x")
        rows = alone.choose(site.read(spark, includeHeaders="true")).collect()
        assert [row.offset for row in rows if row.offset < len(MESSAGES)] == found.rows[f"{n}"]


@pytest.mark.slow
def test_a_terminal_and_spark_choose_the_same_by_the_tables_of_rfc_9535(spark: Any, site: Site) -> None:
    """All paths on all documents and on some with the same names: what the rules of the terminal have put
    into their topics is what Spark chooses of the history, and what the library says."""
    asked, found = documents(150), [read_query({"kind": "jsonpath", "path": path}) for path in PATHS]
    rules = [site.bus.rules.create({"kind": "jsonpath", "path": path}, site.topic()).rule for path in PATHS]
    for document in asked:
        site.bus.publish(site.topic(), json.dumps(document).encode())
    site.bus.messages.wait(site.topic(), len(asked) - 1, "acked")

    def each_alone(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chosen = [Choosing((query,)) for query in found]
        for rows in batches:
            for number, choose in enumerate(chosen):
                for taken in choose([rows]):
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([number] * len(taken), pa.int64()), taken.column("offset")],
                        ["rule", "offset"],
                    )

    history = site.read(spark, includeHeaders="true")
    by_spark: set[tuple[int, int]] = set()
    for row in history.mapInArrow(each_alone, "rule long, offset long").collect():
        by_spark.add((row.rule, row.offset))
    for number, (rule, path) in enumerate(zip(rules, PATHS, strict=True)):
        wanted = [offset for offset, document in enumerate(asked) if selects(path, document)]
        count = site.bus.rules.show(rule).end
        assert [site.bus.rules.trace(rule, at).offset for at in range(count)] == wanted, path
        assert sorted(offset for each, offset in by_spark if each == number) == wanted, path
    assert site.read(spark, subscribe=rules[0]).count() == site.bus.rules.show(rules[0]).end


def test_into_a_lake(spark: Any, site: Site) -> None:
    publish(site)
    job = QueryRoute(site.topic(), queries(*QUERIES[:2]), lake=str(site.folder / "lake"))
    at = Place(spark, job.checkpoint or "", Trigger(once=True), site.access)
    landbridge.pipeline.run(job, at)
    site.bus.publish(site.topic(), b'{"n": 1}', key="vip-8")
    landbridge.pipeline.run(job, at)
    stored = spark.read.parquet(f"{site.folder}/lake/messages").orderBy("offset").collect()
    assert [row.offset for row in stored] == [0, 1, 3, len(MESSAGES)]


def test_what_a_rule_cannot_decide_is_told(spark: Any, site: Site) -> None:
    large = json.dumps({"a": list(range(200))}).encode()
    for payload in (b'{"a": [7]}', large, b'{"a": [8]}'):
        site.bus.publish(site.topic(), payload, key="k")
    costly = queries({"a": [{"numeric": ["=", 7]}]})
    job = QueryRoute(site.topic(), costly, to=site.topic("sevens"), steps=100)
    landbridge.pipeline.run(job, place(spark, site))
    assert site.rows("sevens") == [b'{"a": [7]}']
    assert site.rows("sevens.rejects") == [large]
    [row] = site.read(spark, "sevens.rejects", includeHeaders="true").collect()
    assert [header.key for header in row.headers] == ["reject-reason"]
    assert b"rule 1 is undecided: it takes more than 100 steps" in bytes(row.headers[0].value)


def test_a_lake_has_no_place_for_what_is_undecided() -> None:
    """Through the function that the workers run: nothing is left out without a word."""
    large = json.dumps({"a": list(range(200))}).encode()
    rows = pa.RecordBatch.from_pydict(
        {
            "value": [b'{"a": [7]}', b"no", large],
            "key": [None, b"k", b""],
            "topic": ["t"] * 3,
            "offset": [5, 6, 7],
        }
    )
    costly = queries({"a": [{"numeric": ["=", 7]}]})
    into_lake = pickle.loads(pickle.dumps(Choosing(costly, 100, refuse=True)))
    with pytest.raises(
        LimitReached, match="t@7: rule 1 is undecided: it takes more than 100 steps"
    ) as caught:
        list(into_lake([rows]))
    assert "--steps" in caught.value.hint
    [taken] = Choosing(costly, 1000, refuse=True)([rows])
    assert taken.column("offset").to_pylist() == [5, 7]
    [told] = Choosing(costly, 100)([rows])
    assert [bool(each) for each in told.column("undecided").to_pylist()] == [False, True]
    # A message that another rule chooses needs no decision of the one that is exceeded.
    [both] = Choosing((*costly, *queries({"$key": [{"exists": False}]})), 100)([rows])
    assert both.column("undecided").to_pylist() == [None, None]


def _any(*values: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    return values


def test_what_a_route_refuses() -> None:
    some = queries(QUERIES[0])
    for wrong in _any(
        {"queries": ()},
        {"to": ""},
        {"lake": "x"},
        {"to": "orders"},
        {"at_most": 0},
        {"steps": 0},
    ):
        with pytest.raises(BadOption):
            QueryRoute(**({"topic": "orders", "queries": some, "to": "chosen"} | wrong))
    with pytest.raises(BadRequest, match="pattern: "):
        QueryRoute("orders", queries({"kind": "regexp", "pattern": "("}), to="chosen")
    job = QueryRoute("orders", some, to="chosen")
    assert pickle.loads(pickle.dumps(job)).name == job.name
    assert job.name != QueryRoute("orders", queries(QUERIES[1]), to="chosen").name
