"""Explanations: the first leaf that fails, with the value that was found; and they agree with the rules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from landbridge.core.log.batch import encode_headers
from landbridge.core.rules.budget import Budget
from landbridge.core.rules.content import content_of
from landbridge.core.rules.explanation import MatchExplanation, explain
from landbridge.core.rules.query import read_query
from landbridge.errors import BadRequest
from tests.core import rules_oracle
from tests.core.test_rules_partial import documents, patterns

ORDER = {
    "state": "paid",
    "amount": 50,
    "items": [{"sku": "a", "price": 5}, {"sku": "b", "price": 60}],
    "customer": {"region": "us-1"},
}


def said(query: Any, payload: Any = ORDER, key: bytes = b"", **headers: Any) -> MatchExplanation:
    body = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    return explain(read_query(query), content_of(body, key, encode_headers(headers)))


@pytest.mark.parametrize(
    ("query", "place", "why"),
    [
        ({"state": ["paid"], "amount": [{"numeric": [">", 100]}]}, "match.amount",
         'found 50, wanted {"numeric":[">",100]}'),
        ({"state": ["paid"], "when": ["now"]}, "match.when", 'there is no such field, wanted "now"'),
        ({"customer": ["x"]}, "match.customer",
         'there is an object, and a leaf compares single values, wanted "x"'),
        ({"customer": {"region": [{"prefix": "eu"}, "de"]}}, "match.customer.region",
         'found "us-1", wanted {"prefix":"eu"} or "de"'),
        ({"items": {"sku": ["b"], "price": [5]}}, "match.items.sku",
         'found "a", wanted "b", and so on in all 2 elements of the array'),
        ({"$or": [{"state": ["open"]}, {"amount": [1]}]}, "match.$or",
         'none of its 2 patterns holds: match.$or[0].state: found "paid", wanted "open"; '
         "match.$or[1].amount: found 50, wanted 1"),
        ({"$key": ["eu"]}, "match.$key", 'the message has no key, wanted "eu"'),
        ({"$ce": {"type": ["x"]}}, "match.$ce.type", 'the message has no header, wanted "x"'),
        ({"kind": "regexp", "pattern": "urgent", "place": "header:tags"}, "header:tags",
         "the message has no header tags"),
        ({"kind": "jsonpath", "path": "$.items[?@.price > 100]"}, "[?@['price'] > 100]",
         '$[\'items\'] selects [{"sku":"a","price":5},{"sku":"b","price":60}], '
         "and [?@['price'] > 100] selects nothing of it"),
    ],
)  # fmt: skip
def test_the_first_leaf_that_fails(query: Any, place: str, why: str) -> None:
    assert said(query) == MatchExplanation(False, place, why)


def test_what_is_no_json() -> None:
    for query, place in (({"a": [1]}, "payload"), ({"kind": "jsonpath", "path": "$"}, "payload")):
        found = said(query, b"{no")
        assert (found.matches, found.place) == (False, place)
        assert found.why.startswith("the payload is not JSON: ")
    assert said({"kind": "regexp", "pattern": "^no$"}, b"{no").why == (
        'the regular expression is not found in its 3 bytes: "{no"'
    )
    assert said({"kind": "regexp", "pattern": "no"}, b"{no").matches
    assert said({"$key": ["k"]}, b"{no", b"k").matches


def test_what_matches() -> None:
    assert said({"state": ["paid"]}) == MatchExplanation(True, "", "all fields of the pattern hold")
    found = said({"kind": "jsonpath", "path": "$.items[*]"})
    assert found == MatchExplanation(True, "$.items[*]", "it selects 2 nodes")
    assert (
        said({"kind": "jsonpath", "path": "$..*"}, [list(range(200))]).why == "it selects 100 or more nodes"
    )


def test_a_rule_beyond_its_budget() -> None:
    content = content_of(msgspec.json.encode([list(range(100))]))
    query = read_query({"kind": "jsonpath", "path": "$..[?@ == 'x']"})
    found = explain(query, content, Budget(steps=50))
    assert (found.matches, found.exceeded) == (False, True)
    assert "more than 50 steps" in found.why


@given(patterns, documents)
def test_it_agrees_with_the_rule(pattern: dict[str, Any], document: Any) -> None:
    assert said(pattern, document).matches is rules_oracle.matches(pattern, document)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "a query is an object, not "),
        ("x", "a query is an object"),
        ({"kind": "sql", "match": {}}, "kind: there is no kind of query 'sql'"),
        ({"kind": "partial"}, "match"),
        ({"kind": "partial", "match": 1}, "query: match: "),
        ({"kind": "jsonpath", "path": "$", "place": "key"}, "query: place: "),
        ({f"f{n}": ["x" * 1000] for n in range(30)}, r"a query of 30,\d+ bytes, allowed are 16,384"),
    ],
)
def test_a_wrong_query_is_refused_with_its_place(raw: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        read_query(raw)
