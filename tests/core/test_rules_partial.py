"""Patterns of partial queries: documented semantics, a naive oracle, and bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from landbridge.core.log.batch import Batch, build, encode_headers
from landbridge.core.rules import fields
from landbridge.core.rules.budget import Budget, OverBudget, Spending
from landbridge.core.rules.content import content_of
from landbridge.core.rules.pattern import MessagePattern
from landbridge.core.rules.query import PartialQuery, Rule, canonical, read_query, topic_of
from landbridge.core.rules.ruleset import RuleSet
from landbridge.errors import BadRequest
from tests.core import rules_oracle

#: Examples of tests that take long for each: few in Hypothesis' profile "quick".
LARGE = settings().max_examples if settings().max_examples >= 100 else 12
EVENT = {
    "source": "aws.ec2",
    "time": "2017-10-02T16:24:49Z",
    "resources": ["arn:1", "arn:2"],
    "detail": {
        "c-count": 5,
        "d-count": 3,
        "x-limit": 301.8,
        "source-ip": "10.0.0.33",
        "state": "running",
        "nothing": None,
        "ok": True,
        "empty": "",
        "none": [],
    },
    "employees": [
        {"first": "John", "last": "Doe"},
        [{"first": "Anna", "last": "Smith"}, {"first": "Peter", "last": "Jones"}],
    ],
}


def holds(match: dict[str, Any], payload: Any = EVENT, key: bytes = b"", **headers: Any) -> bool:
    query = read_query(match)
    assert isinstance(query, PartialQuery)
    content = content_of(msgspec.json.encode(payload), key, encode_headers(headers))
    alone = MessagePattern(query.match).matches(content, Spending(Budget()))
    found = RuleSet([Rule("it", query)]).match(content)
    assert bool(found.rows) is alone
    return alone


@pytest.mark.parametrize(
    "match",
    [
        {"source": ["aws.ec2"]},
        {"source": ["other", "aws.ec2"], "detail": {"state": ["initializing", "running"]}},
        {"resources": ["arn:2"]},
        {"time": [{"prefix": "2017-10-02"}]},
        {"source": [{"prefix": {"equals-ignore-case": "AWS."}}]},
        {"source": [{"suffix": "ec2"}]},
        {"source": [{"suffix": {"equals-ignore-case": "EC2"}}]},
        {"source": [{"equals-ignore-case": "AWS.EC2"}]},
        {"source": [{"wildcard": "a*.*2"}]},
        {"source": [{"wildcard": "*"}]},
        {"detail": {"state": [{"anything-but": "initializing"}]}},
        {"detail": {"state": [{"anything-but": ["stopped", "overloaded"]}]}},
        {"detail": {"state": [{"anything-but": {"prefix": "init"}}]}},
        {"detail": {"state": [{"anything-but": {"suffix": ["a", "b"]}}]}},
        {"detail": {"state": [{"anything-but": {"wildcard": "*x*"}}]}},
        {"detail": {"state": [{"anything-but": 5}]}},
        {"detail": {"nothing": [{"anything-but": "x"}]}},
        {"resources": [{"anything-but": "arn:1"}]},
        {"detail": {"c-count": [{"numeric": [">", 0, "<=", 5]}], "x-limit": [{"numeric": ["=", 3.018e2]}]}},
        {"detail": {"c-count": [5.0]}},
        {"detail": {"source-ip": [{"cidr": "10.0.0.0/24"}]}},
        {"detail": {"c-count": [{"exists": True}]}},
        {"detail": {"nothing": [None]}},
        {"detail": {"nothing": [{"exists": True}]}},
        {"detail": {"missing": [{"exists": False}]}},
        {"detail": {"none": [{"exists": False}]}},
        {"detail": [{"exists": False}]},
        {"nowhere": {"missing": [{"exists": False}]}},
        {"detail": {"ok": [True], "empty": [""]}},
        {"detail": {"missing": [{"exists": False}, "x"]}},
        {"employees": {"first": ["Anna"], "last": ["Smith"]}},
        {"source": ["aws.ec2"], "$or": [{"detail": {"d-count": [4]}}, {"detail": {"c-count": [5]}}]},
        {"detail": {"$or": [{"d-count": [3]}, {"c-count": [4]}]}},
        {"$or": [{"$key": ["x"]}, {"source": ["aws.ec2"]}]},
    ],
)
def test_what_matches(match: dict[str, Any]) -> None:
    assert holds(match)


@pytest.mark.parametrize(
    "match",
    [
        {"source": ["aws"]},
        {"source": ["aws.ec2"], "detail": {"state": ["stopped"]}},
        {"detail": {"c-count": ["5"]}},
        {"detail": {"ok": [1]}},
        {"detail": {"c-count": [True]}},
        {"detail": {"c-count": [{"numeric": ["<", 5]}]}},
        {"detail": {"ok": [{"numeric": ["=", 1]}]}},
        {"detail": {"c-count": [{"prefix": "5"}]}},
        {"detail": {"missing": [{"anything-but": "x"}]}},
        {"detail": {"missing": [None]}},
        {"detail": {"nothing": [{"exists": False}]}},
        {"detail": {"none": [{"exists": True}]}},
        {"detail": [{"exists": True}]},
        {"detail": {"source-ip": [{"cidr": "10.0.1.0/24"}]}},
        {"detail": {"source-ip": [{"cidr": "::/0"}]}},
        {"employees": {"first": ["Anna"], "last": ["Jones"]}},
        {"source": [{"wildcard": "aws.ec2*2"}]},
        {"$or": [{"source": ["x"]}, {"detail": {"c-count": [4]}}]},
        {"$key": [{"exists": True}]},
    ],
)
def test_what_does_not_match(match: dict[str, Any]) -> None:
    assert not holds(match)


def test_keys_headers_and_attributes_of_events() -> None:
    headers = {
        "ce-type": "order.created",
        "content-type": "application/json",
        "retries": 3,
        "raw": b"\xff",
        "on": True,
    }
    for match in (
        {"$key": [{"prefix": "eu"}]},
        {"$headers": {"ce-type": ["order.created"]}},
        {"$ce": {"type": [{"suffix": ".created"}], "datacontenttype": ["application/json"]}},
        {"$headers": {"retries": ["3"], "on": ["true"]}},
        {"$headers": {"retries": [{"numeric": [">", 2]}]}},
        {"$headers": {"raw": [{"anything-but": ""}], "none": [{"exists": False}]}},
        {"$ce": {"type": ["order.created"]}, "source": ["aws.ec2"]},
    ):
        assert holds(match, EVENT, b"eu-7", **headers), match
    assert not holds({"$key": ["eu"]}, EVENT, b"eu-7")
    assert not holds({"$headers": {"ce-type": ["x"]}}, EVENT)
    assert holds({"$key": [{"exists": False}]}, EVENT)
    assert holds({"$$key": [1]}, {"$key": 1})


def test_a_payload_that_is_no_json_matches_by_key_and_headers_alone() -> None:
    rules = RuleSet(
        [
            Rule("payload", read_query({"a": [{"exists": False}]})),
            Rule("key", read_query({"$key": ["k"]})),
        ]
    )
    payloads = [b"\xff", b"", b"[" * 200 + b"]" * 200, b"{}", b'{"a": 1e999}', b" " * (2 << 20)]
    found = rules.match_batch(Batch.decode(build(payloads, id=bytes(16), time=1, keys=[b"k"] * 6)))
    assert found.rows == {"key": [0, 1, 2, 3, 4, 5], "payload": [3]}
    assert [each.row for each in found.unreadable] == [0, 1, 2, 4, 5]
    reasons = " ".join(each.reason for each in found.unreadable)
    assert all(word in reasons for word in ("not JSON", "empty", "deeper than 100", "2,097,152 bytes"))


@pytest.mark.parametrize(
    ("match", "place"),
    [
        ({}, "match: an empty pattern"),
        ({"a": 1}, r"match.a: an array"),
        ({"a": []}, r"match.a: no alternatives"),
        ({"a": {}}, r"match.a: an empty pattern"),
        ({"a": [[1]]}, r"match.a\[0\]: an alternative"),
        ({"a": [{"prefix": 1}]}, r"match.a\[0\].prefix: text is expected"),
        ({"a": [1, {"like": "x"}]}, r"match.a\[1\].like: there is no operator"),
        ({"a": [{"prefix": "a", "suffix": "b"}]}, r"match.a\[0\]: an operator is an object with one name"),
        ({"a": [{"numeric": [">"]}]}, r"match.a\[0\].numeric: one or two comparisons"),
        ({"a": [{"numeric": ["!", 1]}]}, r"numeric\[0\]: one of"),
        ({"a": [{"numeric": ["<", "1"]}]}, r"numeric\[1\]: a number"),
        ({"a": [{"numeric": ["<", True]}]}, r"numeric\[1\]: a number"),
        ({"a": [{"cidr": "10.0.0.1/8"}]}, r"cidr: .*host bits"),
        ({"a": [{"exists": 1}]}, r"exists: true or false"),
        ({"a": [{"anything-but": []}]}, r"anything-but: an empty array"),
        ({"a": [{"anything-but": {"numeric": ["=", 1]}}]}, r"anything-but: values are expected"),
        ({"a": [{"wildcard": "\\x"}]}, "wildcard: a backslash"),
        ({"a": [{"wildcard": "*a" * 17}]}, "17 stars"),
        ({"a": ["x" * 1025]}, "1,025 characters"),
        ({"a": [1 << 70]}, "64 bits"),
        ({"a": [float("nan")]}, "no number"),
        ({"$or": []}, r"match.\$or: an array of patterns"),
        ({"$x": [1]}, r"match.\$x: names with \$"),
        ({"a": {"$key": ["x"]}}, r"match.a.\$key: names with"),
        ({"$key": [5]}, r"match.\$key\[0\]: keys and headers are text"),
        ({"$headers": ["x"]}, r"match.\$headers: an object"),
        ({"a": list(range(513))}, "at most 512 alternatives"),
    ],
)
def test_a_wrong_pattern_is_refused_with_its_place(match: dict[str, Any], place: str) -> None:
    with pytest.raises(BadRequest, match=place):
        read_query(match)


def test_nesting_is_bounded() -> None:
    match: dict[str, Any] = {"a": [1]}
    for _ in range(2000):
        match = {"a": match}
    with pytest.raises(BadRequest, match="deeper than 16 objects"):
        read_query(match)
    match = {"a": [1]}
    for _ in range(900):
        match = {"$or": [match]}
    with pytest.raises(BadRequest, match="deeper than 16 times"):
        read_query(match)


# -- against the oracle ----------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c"])
words = st.sampled_from(["", "a", "ab", "aB", "abc", "10.0.0.1", "x*y"])
numbers = st.sampled_from([0, 1, 1.0, 2, 2.5, -3])
literals = st.one_of(words, numbers, st.booleans(), st.none())
documents = st.recursive(
    literals,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
comparisons = st.tuples(st.sampled_from(["=", "<", "<=", ">", ">="]), numbers).map(list)
operators = st.one_of(
    st.builds(
        lambda name, text: {name: text}, st.sampled_from(["prefix", "suffix", "equals-ignore-case"]), words
    ),
    st.builds(
        lambda name, text: {name: {"equals-ignore-case": text}}, st.sampled_from(["prefix", "suffix"]), words
    ),
    st.sampled_from(["*", "a*", "*b", "a*c", "*b*", "x**"]).map(lambda text: {"wildcard": text}),
    st.sampled_from(["10.0.0.0/8", "11.0.0.0/8", "::/0"]).map(lambda text: {"cidr": text}),
    comparisons.map(lambda pair: {"numeric": pair}),
    st.tuples(comparisons, comparisons).map(lambda pairs: {"numeric": pairs[0] + pairs[1]}),
    st.booleans().map(lambda yes: {"exists": yes}),
    st.one_of(literals, st.lists(literals, min_size=1, max_size=3)).map(
        lambda given: {"anything-but": given}
    ),
    st.builds(
        lambda name, texts: {"anything-but": {name: texts}},
        st.sampled_from(["prefix", "suffix", "equals-ignore-case"]),
        words | st.lists(words, min_size=1, max_size=2),
    ),
)
alternatives = st.lists(literals | operators, min_size=1, max_size=3)


def objects(inner: Any) -> Any:
    fields = st.dictionaries(names, inner, min_size=1, max_size=3)
    branches = st.lists(fields, min_size=1, max_size=3)
    return fields | st.builds(lambda some, either: {**some, "$or": either}, fields, branches)


patterns = objects(st.recursive(alternatives, objects, max_leaves=4))


@given(patterns, documents)
@example({"a": {"b": [{"exists": False}]}}, {"a": []})
@example({"a": ["a"], "$or": [{"b": ["a"]}, {"c": ["a"]}]}, [{"a": "a"}, {"b": "a"}])
def test_it_is_what_the_oracle_says(pattern: dict[str, Any], document: Any) -> None:
    assert holds(pattern, document) is rules_oracle.matches(pattern, document)


@settings(max_examples=LARGE)
@given(st.lists(patterns, min_size=1, max_size=12), st.lists(documents, min_size=1, max_size=4), st.data())
def test_many_rules_at_once_are_as_each_alone(
    many: list[dict[str, Any]], some: list[Any], data: st.DataObject
) -> None:
    rules = RuleSet([Rule(f"r{n}", read_query(each)) for n, each in enumerate(many)])
    gone = data.draw(st.sets(st.integers(0, len(many) - 1)))
    for n in gone:
        rules.remove(f"r{n}")
    batch = Batch.decode(build([msgspec.json.encode(each) for each in some], id=bytes(16), time=1))
    wanted = {
        f"r{n}": rows
        for n, pattern in enumerate(many)
        if n not in gone
        and (rows := [row for row, each in enumerate(some) if rules_oracle.matches(pattern, each)])
    }
    assert rules.match_batch(batch).rows == wanted
    for n in {*range(len(many))} - gone:
        rules.remove(f"r{n}")
    # Nothing stays behind of rules that are gone.
    assert not any(field.below or field.values for field in rules._fields._roots.values())
    assert rules.match_batch(batch) == ({}, [], [])


# -- the canonical form ----------------------------------------------------------------------------------


def shuffled(value: Any, data: st.DataObject) -> Any:
    """The same pattern, written in another way."""
    if isinstance(value, dict):
        if "numeric" in value:
            return value
        order = data.draw(st.permutations([*value]))
        return {name: shuffled(value[name], data) for name in order}
    if isinstance(value, list):
        several = [shuffled(each, data) for each in data.draw(st.permutations(value))]
        return [*several, several[0]]
    return float(value) if type(value) is int and data.draw(st.booleans()) else value


@settings(max_examples=LARGE)
@given(patterns, st.data())
def test_the_canonical_form_does_not_depend_on_how_a_pattern_is_written(
    pattern: dict[str, Any], data: st.DataObject
) -> None:
    query, other = read_query(pattern), read_query(shuffled(pattern, data))
    assert canonical(query) == canonical(other)
    assert topic_of(query) == topic_of(other)
    again = read_query(msgspec.json.decode(canonical(query)))
    assert canonical(again) == canonical(query)


@given(patterns, documents)
def test_the_canonical_form_means_the_same(pattern: dict[str, Any], document: Any) -> None:
    again = msgspec.json.decode(canonical(read_query(pattern)))["match"]
    assert rules_oracle.matches(again, document) is rules_oracle.matches(pattern, document)


def test_names_of_topics_are_stable() -> None:
    """They are stored: another name for the same query would orphan its topic."""
    query = read_query({"b": [2, 1.0], "a": [{"anything-but": "x"}]})
    assert canonical(query) == b'{"kind":"partial","match":{"a":[{"anything-but":["x"]}],"b":[1,2]}}'
    assert topic_of(query) == "match.c64ef02c873236cbd1b1df5964bc3c63"
    assert topic_of(query, "orders") != topic_of(query)
    assert canonical(read_query({"kind": "regexp", "pattern": "a+"})) == (
        b'{"kind":"regexp","pattern":"a+","place":"payload"}'
    )


# -- budgets ---------------------------------------------------------------------------------------------


def test_large_arrays_are_paid_for() -> None:
    document = {"a": [{"b": [n % 7 for n in range(100)]} for _ in range(1000)]}
    content = content_of(msgspec.json.encode(document))
    pattern = {"a": {"b": [8, {"prefix": "x"}, {"numeric": [">", 100]}]}}
    rules = RuleSet([Rule("costly", read_query(pattern)), Rule("other", read_query({"a": {"b": [3]}}))])
    found = rules.match(content)
    assert found.rows == {"other": [0]}
    assert [(each.rule, each.row) for each in found.exceeded] == [("costly", 0)]
    assert "more than 50,000 steps" in found.exceeded[0].cause
    now = iter(range(1000))
    timed = Budget(steps=1 << 40, seconds=5.0, clock=lambda: float(next(now)))
    with pytest.raises(OverBudget, match=r"more than 5\.0 s"):
        MessagePattern(pattern).matches(content, Spending(timed))


class LookedThrough(dict[str, bool]):
    """A table of rules that counts how often somebody looks through it."""

    times = 0

    def items(self) -> Any:
        self.times += 1
        return super().items()


@pytest.mark.parametrize("how", ["present", "equal"])
def test_many_rules_are_found_once_for_a_value_that_an_array_has_often(how: str) -> None:
    alternative: Any = {"numeric": [">", 5]} if how == "present" else 7
    rules = RuleSet(
        Rule(f"r{n}", read_query({"a": [alternative], "b": [{"exists": True}], "c": [n]})) for n in range(4)
    )
    index = rules._fields
    values = index._roots["payload"].below.setdefault("a", fields._Field()).values = fields._Values()
    table = LookedThrough({f"r{n}": False for n in range(100)})
    if how == "present":
        values.present = table
    else:
        values.equal[7] = table
    found = index.candidates(content_of(b'{"a": [%s]}' % b",".join([b"7"] * 1000)))
    assert len(found) == 100
    assert table.times == 1


def test_only_prefixes_that_a_text_can_have_are_looked_up() -> None:
    rules = RuleSet(Rule(f"r{n}", read_query({"a": [{"prefix": "y" * n}]})) for n in range(1, 300))
    values = rules._fields._roots["payload"].below["a"].values
    assert values is not None
    assert list(fields._lengths(values.prefix, 3)) == [1, 2, 3]
    assert list(fields._lengths(values.prefix, 1000)) == list(range(1, 300))
    matched = rules.match(content_of(b'{"a": "yyyx"}'))
    assert sorted(matched.rows) == ["r1", "r2", "r3"]
