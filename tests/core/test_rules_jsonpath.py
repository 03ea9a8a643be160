"""JSONPath queries: the examples and tables of RFC 9535, the library as oracle, and bounds."""

from __future__ import annotations

from typing import Any

import jsonpath_rfc9535
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.batch import Batch, build
from landbridge.core.rules.budget import COSTLY_RULES, USED_UP, Budget, OverBudget, Spending
from landbridge.core.rules.content import content_of
from landbridge.core.rules.jsonpath import JsonPath
from landbridge.core.rules.query import Rule, read_query
from landbridge.core.rules.ruleset import RuleSet
from landbridge.errors import BadRequest


def nodes(path: str, document: Any, budget: Budget = Budget()) -> list[Any]:  # noqa: B008 - immutable
    return [*JsonPath(path).nodes(document, Spending(budget))]


def agrees(path: str, document: Any, wanted: list[Any] | None = None) -> None:
    """The nodes are those, and a rule of this path matches if there are any."""
    found = nodes(path, document)
    if wanted is not None:
        assert found == wanted, path
    rules = RuleSet([Rule("it", read_query({"kind": "jsonpath", "path": path}))])
    for payload in (msgspec.json.encode(document), spelled_otherwise(document)):
        assert bool(rules.match(content_of(payload)).rows) is bool(found), path


def table(rows: dict[str, list[Any]]) -> Any:
    return rows.items()


def spelled_otherwise(document: Any) -> bytes:
    """The same JSON with letters as escapes."""
    text = msgspec.json.encode(document).decode()
    if any(word in text for word in ("true", "false", "null", "\\")):
        return text.encode()
    return "".join(rf"\u{ord(letter):04x}" if letter in "abk" else letter for letter in text).encode()


STORE: dict[str, Any] = {
    "store": {
        "book": [
            {"category": "reference", "author": "Nigel Rees", "title": "Sayings of the Century", "price": 8.95},  # noqa: E501
            {"category": "fiction", "author": "Evelyn Waugh", "title": "Sword of Honour", "price": 12.99},
            {"category": "fiction", "author": "Herman Melville", "title": "Moby Dick",
             "isbn": "0-553-21311-3", "price": 8.99},
            {"category": "fiction", "author": "J. R. R. Tolkien", "title": "The Lord of the Rings",
             "isbn": "0-395-19395-8", "price": 22.99},
        ],
        "bicycle": {"color": "red", "price": 399},
    }
}  # fmt: skip
BOOKS = STORE["store"]["book"]
AUTHORS = [book["author"] for book in BOOKS]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("$.store.book[*].author", AUTHORS),
        ("$..author", AUTHORS),
        ("$.store.*", [BOOKS, STORE["store"]["bicycle"]]),
        ("$.store..price", [8.95, 12.99, 8.99, 22.99, 399]),
        ("$..book[2]", [BOOKS[2]]),
        ("$..book[2].author", ["Herman Melville"]),
        ("$..book[2].publisher", []),
        ("$..book[-1]", [BOOKS[3]]),
        ("$..book[0,1]", BOOKS[:2]),
        ("$..book[:2]", BOOKS[:2]),
        ("$..book[?@.isbn]", BOOKS[2:]),
        ("$..book[?@.price<10]", [BOOKS[0], BOOKS[2]]),
    ],
)
def test_the_book_store_of_the_rfc(path: str, wanted: list[Any]) -> None:
    agrees(path, STORE, wanted)


#: Document → path → the nodes that it selects.
LETTERS = ["a", "b", "c", "d", "e", "f", "g"]
WILD: dict[str, Any] = {"o": {"j": 1, "k": 2}, "a": [5, 3]}
DEEP: dict[str, Any] = {"o": {"j": 1, "k": 2}, "a": [5, 3, [{"j": 4}, {"k": 6}]]}
SELECTED: list[tuple[Any, dict[str, list[Any]]]] = [
    (
        {"o": {"j j": {"k.k": 3}}, "'": {"@": 2}},
        {
            "$.o['j j']": [{"k.k": 3}],
            "$.o['j j']['k.k']": [3],
            '$.o["j j"]["k.k"]': [3],
            """$["'"]["@"]""": [2],
        },
    ),
    ({"k": "v"}, {"$": [{"k": "v"}]}),
    (
        WILD,
        {
            "$[*]": [{"j": 1, "k": 2}, [5, 3]],
            "$.o[*]": [1, 2],
            "$.o[*, *]": [1, 2, 1, 2],
            "$.a[*]": [5, 3],
        },
    ),
    (["a", "b"], {"$[1]": ["b"], "$[-2]": ["a"]}),
    (
        LETTERS,
        {
            "$[1:3]": ["b", "c"],
            "$[5:]": ["f", "g"],
            "$[1:5:2]": ["b", "d"],
            "$[5:1:-2]": ["f", "d"],
            "$[::-1]": LETTERS[::-1],
            "$[0, 3]": ["a", "d"],
            "$[0:2, 5]": ["a", "b", "f"],
            "$[0, 0]": ["a", "a"],
            "$[::0]": [],
        },
    ),
    (DEEP, {"$..j": [1, 4], "$..[0]": [5, {"j": 4}], "$.o..[*, *]": [1, 2, 1, 2]}),
    (
        {"a": None, "b": [None], "c": [{}], "null": 1},
        {
            "$.a": [None],
            "$.a[0]": [],
            "$.a.d": [],
            "$.b[0]": [None],
            "$.b[*]": [None],
            "$.b[?@]": [None],
            "$.b[?@==null]": [None],
            "$.c[?@.d==null]": [],
            "$.null": [1],
        },
    ),
]


def test_the_tables_of_selectors_and_segments_of_the_rfc() -> None:
    for document, rows in SELECTED:
        for path, wanted in rows.items():
            agrees(path, document, wanted)
    assert len(nodes("$..*", DEEP)) == len(nodes("$..[*]", DEEP)) == 11


FILTERED: dict[str, Any] = {
    "a": [3, 5, 1, 2, 4, 6, {"b": "j"}, {"b": "k"}, {"b": {}}, {"b": "kilo"}],
    "o": {"p": 1, "q": 2, "r": 3, "s": 5, "t": {"u": 6}},
    "e": "f",
}


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("$.a[?@.b == 'kilo']", [{"b": "kilo"}]),
        ("$.a[?(@.b == 'kilo')]", [{"b": "kilo"}]),
        ("$.a[?@>3.5]", [5, 4, 6]),
        ("$.a[?@.b]", FILTERED["a"][6:]),
        ("$[?@.*]", [FILTERED["a"], FILTERED["o"]]),
        ("$[?@[?@.b]]", [FILTERED["a"]]),
        ("$.o[?@<3, ?@<3]", [1, 2, 1, 2]),
        ('$.a[?@<2 || @.b == "k"]', [1, {"b": "k"}]),
        ('$.a[?match(@.b, "[jk]")]', [{"b": "j"}, {"b": "k"}]),
        ('$.a[?search(@.b, "[jk]")]', [{"b": "j"}, {"b": "k"}, {"b": "kilo"}]),
        ("$.o[?@>1 && @<4]", [2, 3]),
        ("$.o[?@.u || @.x]", [{"u": 6}]),
        ("$.a[?@.b == $.x]", [3, 5, 1, 2, 4, 6]),
        ("$.a[?@ == @]", FILTERED["a"]),
    ],
)
def test_the_table_of_filters_of_the_rfc(path: str, wanted: list[Any]) -> None:
    agrees(path, FILTERED, wanted)


COMPARED = {"obj": {"x": "y"}, "arr": [2, 3]}


@pytest.mark.parametrize(
    ("comparison", "wanted"),
    [
        ("$.absent1 == $.absent2", True),
        ("$.absent1 <= $.absent2", True),
        ("$.absent == 'g'", False),
        ("$.absent1 != $.absent2", False),
        ("$.absent != 'g'", True),
        ("1 <= 2", True),
        ("1 > 2", False),
        ("13 == '13'", False),
        ("'a' <= 'b'", True),
        ("'a' > 'b'", False),
        ("$.obj == $.arr", False),
        ("$.obj != $.arr", True),
        ("$.obj == $.obj", True),
        ("$.obj != $.obj", False),
        ("$.arr == $.arr", True),
        ("$.arr != $.arr", False),
        ("$.obj == 17", False),
        ("$.obj != 17", True),
        ("$.obj <= $.arr", False),
        ("$.obj < $.arr", False),
        ("$.obj <= $.obj", True),
        ("$.arr <= $.arr", True),
        ("1 <= $.arr", False),
        ("1 >= $.arr", False),
        ("1 > $.arr", False),
        ("1 < $.arr", False),
        ("true <= true", True),
        ("true > true", False),
    ],
)
def test_the_table_of_comparisons_of_the_rfc(comparison: str, wanted: bool) -> None:
    agrees(f"$[?{comparison}]", COMPARED, [COMPARED["obj"], COMPARED["arr"]] if wanted else [])


def test_functions() -> None:
    document = {"values": ["abc", "bab", "b", "ä", "a\nb", True, [1], {}], "regex": "b.?b"}
    for path, wanted in table(
        {
            "$.values[?length(@) == 1]": ["b", "ä", [1]],
            "$.values[?match(@, $.regex)]": ["bab"],
            "$.values[?search(@, 'a.b')]": [],
            "$.values[?match(@, '\\\\p{Ll}')]": ["b", "ä"],
            "$[?count(@.*) == 8]": [document["values"]],
            "$.values[?match(@, value($..regex))]": ["bab"],
            "$.values[?match(@, value($..*))]": [],
            "$.values[?match(@, '(')]": [],
            "$.values[?match(@, '[ab]{2}.')]": ["abc", "bab"],
            "$.values[?match(@, '[abc]{2,100}')]": ["abc", "bab"],
            "$.values[?length(@) > length($.absent)]": [],
            "$.values[?length(@) == length($.absent)]": [True],
        }
    ):
        agrees(path, document, wanted)


def test_values_are_compared_as_in_json() -> None:
    assert nodes("$[?@.a == @.b]", [{"a": [1], "b": [True]}, {"a": {"x": 1}, "b": {"x": 1.0}}]) == [
        {"a": {"x": 1}, "b": {"x": 1.0}}
    ]
    assert nodes("$[?@]", [False, 0, None, ""]) == [False, 0, None, ""]


@pytest.mark.parametrize(
    "path",
    ["", "a", "$.", "$[", " $", "$.a ", "$[01]", "$[?@.a", "$[?@.a = 1]", "$[?length(@)]", "$[?nothing(@.a)]",
     "$[?count(1) == 1]", "$[?@.* == 1]", "$['\\x']", "$[9007199254740992]", "$[?match(@, '(a{900}){900}')]",
     "$" + ".a" * 600, "$[?" + "(" * 500 + "@" + ")" * 500 + "]", "$" + "[?@" * 40 + "]" * 40,
     "$[?" + "!(" * 30 + "@" + ")" * 30 + "]"],
)  # fmt: skip
def test_a_wrong_query_is_refused(path: str) -> None:
    with pytest.raises(BadRequest, match="path: "):
        RuleSet([Rule("it", read_query({"kind": "jsonpath", "path": path}))])


# -- the library as oracle -------------------------------------------------------------------------------

# The library takes true for 1 inside of arrays, and an existing false for something missing. So there are
# neither.
scalars = st.sampled_from([None, 0, 1, 2, 2.5, "", "a", "b", 'k"', "é", "ab"])
names = st.sampled_from(["a", "b", "c", "k"])
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3),
    max_leaves=15,
)
literals = st.sampled_from(["1", "2.5", "null", "'a'", "'b'", '"ab"', "'k\"'", "'é'"])
index = st.integers(-3, 3).map(str)
slices = st.sampled_from([":", "1:", ":2", "::2", "::-1", "-2:", "0:3:2"])


def paths(root: str, filters: Any) -> Any:
    selector = st.one_of(names.map(lambda name: f"'{name}'"), index, slices, st.just("*"), filters)
    several = st.lists(selector, min_size=1, max_size=2).map(", ".join)
    segment = st.one_of(
        names.map(lambda name: f".{name}"),
        several.map(lambda text: f"[{text}]"),
        names.map(lambda name: f"..{name}"),
        several.map(lambda text: f"..[{text}]"),
        st.just(".*"),
    )
    return st.lists(segment, min_size=1, max_size=3).map(lambda parts: root + "".join(parts))


singular = st.builds(
    lambda root, parts: root + "".join(parts),
    st.sampled_from(["@", "$"]),
    st.lists(names.map(lambda name: f".{name}") | index.map(lambda at: f"[{at}]"), min_size=1, max_size=2),
)
value = st.one_of(
    literals,
    singular,
    singular.map(lambda path: f"length({path})"),
    singular.map(lambda path: f"value({path})"),
    st.just("count(@.*)"),
    st.just("value($..a)"),
)
comparison = st.builds(
    lambda left, sign, right: f"{left} {sign} {right}",
    value,
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    value,
)
test = st.one_of(
    comparison,
    st.builds(
        "{}({}, {})".format,
        st.sampled_from(["match", "search"]),
        singular,
        st.sampled_from(["'a.?'", "'[ab]'"]),
    ),
    paths("@", st.nothing()),
    paths("$", st.nothing()),
)
logic = st.recursive(
    test,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner), st.builds("({} || {})".format, inner, inner),
        inner.map(lambda text: f"!({text})"),
    ),
    max_leaves=3,
)  # fmt: skip
queries = paths("$", logic.map(lambda text: f"?{text}"))


@given(queries, documents)
def test_it_is_what_the_library_says(path: str, document: Any) -> None:
    wanted = jsonpath_rfc9535.find(path, document).values()
    agrees(path, document, wanted)


@given(st.lists(queries, min_size=1, max_size=8), st.lists(documents, min_size=1, max_size=4))
def test_many_rules_at_once_are_as_each_alone(many: list[str], some: list[Any]) -> None:
    rules = RuleSet(
        Rule(f"r{n}", read_query({"kind": "jsonpath", "path": each})) for n, each in enumerate(many)
    )
    found = rules.match_batch(Batch.decode(build([*map(msgspec.json.encode, some)], id=bytes(16), time=1)))
    wanted = {
        f"r{n}": rows
        for n, path in enumerate(many)
        if (
            rows := [
                row for row, each in enumerate(some) if jsonpath_rfc9535.find_one(path, each) is not None
            ]
        )
    }
    assert found == (wanted, [], [])


# -- bounds ----------------------------------------------------------------------------------------------


def test_key_and_headers_are_there_for_those_who_ask() -> None:
    rules = RuleSet(
        [Rule("it", read_query({"kind": "jsonpath", "path": "$[?@ == 'eu']", "place": "message"}))]
    )
    assert rules.match(content_of(b"1", b"eu")).rows == {"it": [0]}
    assert rules.match(content_of(b'"eu"', b"us")).rows == {"it": [0]}
    assert rules.match(content_of(b'"us"', b"us")).rows == {}


TREE: Any = 0
for _ in range(5):
    TREE = [TREE] * 8
LINE: Any = 0
for _ in range(90):
    LINE = [LINE, 1]


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("$..*..*..*..x", TREE),
        ("$..[?@..[?@..x]]", LINE),
        ("$..[?@..[?@..x]]", TREE),
        ("$[?@ == $[0]].x", [[0] * 2000] * 100),
        ("$[?@ == $[0]].x", ["a" * 5000] * 2000),
        ("$[?match(@, $[0])].x", ["(a?){30}a{30}"] * 3000),
        ("$[?match(@, '(a|b|ab)*c')].x", ["ab" * 40_000] * 30),
        ("$" + "[::1, ::-1]" * 8 + ".x", [[[[TREE]]]]),
        ("$" + "[*,*,*,*,*,*,*,*]" * 6 + ".x", [[[[[[1]]]]]]),
    ],
)
def test_a_costly_query_ends_with_its_budget(path: str, document: Any) -> None:
    with pytest.raises(OverBudget, match="more than"):
        nodes(path, document)


def test_a_rule_that_exceeds_its_budget_is_reported_and_others_run() -> None:
    rules = RuleSet(
        [
            Rule("costly", read_query({"kind": "jsonpath", "path": "$..*..*..*..*[?@ == 'x']"})),
            Rule("other", read_query({"kind": "jsonpath", "path": "$[0]"})),
        ]
    )
    document = [["x", [[[n] for n in range(9)] for _ in range(9)]] for _ in range(30)]
    batch = Batch.decode(build([b"[1]", msgspec.json.encode(document)], id=bytes(16), time=1))
    found = rules.match_batch(batch)
    assert found.rows == {"other": [0, 1]}
    assert [(each.rule, each.row) for each in found.exceeded] == [("costly", 1)]


def test_many_costly_rules_are_bounded_together_and_cheap_ones_are_not_their_victims() -> None:
    costly = [
        Rule(f"c{n:03}", read_query({"kind": "jsonpath", "path": f"$.n[?count($.n[?@ > {n}]) > 100000]"}))
        for n in range(200)
    ]
    cheap = Rule("cheap", read_query({"state": ["paid"]}))
    rules = RuleSet([*costly, cheap], budget=Budget(steps=2_000))
    content = content_of(msgspec.json.encode({"state": "paid", "n": [*range(1, 100)]}))
    for _ in range(2):  # the next message has steps of its own
        found = rules.match(content)
        assert found.rows == {"cheap": [0]}
        assert len(found.exceeded) == 200
        assert sum(each.cause == USED_UP for each in found.exceeded) == 200 - COSTLY_RULES


def test_many_costly_expressions_are_bounded_together() -> None:
    many = [Rule(f"r{n:03}", read_query({"kind": "regexp", "pattern": f"x{n}.{{0,90}}y"})) for n in range(60)]
    rules = RuleSet(many, budget=Budget(regexp_steps=1 << 16))
    found = rules.match(content_of(b"z" * 5_000))
    assert found.rows == {}
    assert len(found.exceeded) == 60
    assert {each.cause == USED_UP for each in found.exceeded} == {False}, "each by its own budget"
    rules = RuleSet(many, budget=Budget(regexp_steps=1 << 22))
    found = rules.match(content_of(b"z" * 5_000))
    assert 0 < len(found.exceeded) <= 60 - COSTLY_RULES
    assert {each.cause for each in found.exceeded} == {USED_UP}
