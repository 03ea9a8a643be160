"""Middleware without a terminal: rows, schemas and how they may change, what is redacted."""

from __future__ import annotations

import copy
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.batch import Batch, build, encode_headers
from landbridge.core.middleware import event_types
from landbridge.core.middleware.compatibility import check_backward
from landbridge.core.middleware.event_types import EventType
from landbridge.core.middleware.redact import Redaction, parse_pointer
from landbridge.core.middleware.rows import LONGEST_FIELD, LONGEST_REASON, BatchRows
from landbridge.core.middleware.schema import LARGEST, check_schema, compile_schema, first_error
from landbridge.core.middleware.spec import RedactStage
from landbridge.errors import BadRequest, InvalidMessage, LimitReached, SchemaIncompatible

# -- schemas -------------------------------------------------------------------------------------------

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"}},
        }
    },
    "$ref": "#/$defs/node",
}


def bomb(levels: int) -> dict[str, Any]:
    """Each level refers to the next one twice, for the same part of a message."""
    steps = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**steps, f"a{levels}": {}}, "$ref": "#/$defs/a0"}


def chain(length: int) -> dict[str, Any]:
    steps = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(length)}
    return {"$defs": {**steps, f"a{length}": {}}, "$ref": "#/$defs/a0"}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        True, {}, TREE, bomb(5), nested(30), {"pattern": "(a+)+$"},
        {"items": {"$ref": "#"}, "additionalProperties": {"$ref": "#"}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]},
        {"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"type": "null"}}}]},
    ],
)  # fmt: skip
def test_schemas_that_can_be_used(schema: Any) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (5, "an object"),
        ("x", "an object"),
        ({"$ref": "#"}, "never end"),
        ({"allOf": [{"not": {"$ref": "#"}}]}, "never end"),
        ({"$defs": {"unused": {"$ref": "#/$defs/unused"}}}, "never end"),
        ({"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]}, "two ways"),
        ({"items": {"$ref": "#"}, "contains": {"$ref": "#"}}, "two ways"),
        ({"patternProperties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}, "two ways"),
        ({"properties": {"a": {"$ref": "#"}}, "patternProperties": {"a": {"$ref": "#"}}}, "two ways"),
        (bomb(40), "more than"),
        (chain(1500), "more than"),
        (nested(50), "deep"),
        ({"description": "x" * LARGEST}, "bytes"),
        ({"$ref": "https://example.com/x"}, "nothing is fetched"),
        ({"$ref": "file:///etc/passwd"}, "nothing is fetched"),
        ({"$ref": "#/$defs/x"}, "isn't there"),
        ({"$dynamicRef": "#x"}, "dynamicRef"),
        ({"items": {"$id": "https://example.com/x"}}, "\\$id"),
        ({"$schema": "https://example.com/x"}, "\\$schema"),
        ({"type": "text"}, "at /type"),
        ({"pattern": "(?=a)"}, "at /pattern"),
        ({"properties": {"a": {"pattern": "(a{1000}){1000}"}}}, "pattern"),
    ],
)
def test_schemas_that_could_harm_are_refused(schema: Any, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        check_schema(schema)


def test_a_large_message_with_many_alternatives_is_refused_without_the_place() -> None:
    """The library takes 17 s to find all errors of ten thousand elements with a hundred alternatives each."""
    checker = compile_schema({"items": {"anyOf": [{"const": f"v{n}"} for n in range(100)]}})
    assert checker.alternatives == 100
    assert first_error(checker, ["v1", "ab"], 11)[0] == "/1"
    looked: list[object] = []
    checker.validate = looked.append  # type: ignore[assignment]
    field, reason = first_error(checker, ["ab"] * 10_000, 50_000)
    assert (field, looked) == ("", [])
    assert "too large" in reason


def test_the_first_error_names_the_field_and_no_value() -> None:
    checker = compile_schema(
        {"properties": {"a/b": {"items": {"type": "integer"}}, "e": {"enum": [1, 2]}}, "required": ["r"]}
    )
    assert first_error(checker, {}, 2) == ("/r", "it is required, and missing")
    field, reason = first_error(checker, {"r": 1, "a/b": [1, "secret"]}, 30)
    assert field == "/a~1b/1"
    assert "integer" in reason
    assert "secret" not in reason
    assert first_error(compile_schema({"additionalProperties": False}), {"x": 1}, 8)[0] in ("/x", "")


# -- how schemas may change ----------------------------------------------------------------------------

OLD = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 0}, "name": {"type": "string", "maxLength": 5}},
    "required": ["id"],
}


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"title": "Order"}, ""),
        ({"required": []}, ""),
        ({"required": ["id", "name"]}, "at /name: it is required now"),
        ({"properties": {"id": {"type": "number"}}}, ""),
        ({"properties": {"id": {"type": "string"}}}, "the type integer is no longer allowed"),
        ({"properties": {**OLD["properties"], "new": {"type": "string"}}}, ""),  # type: ignore[dict-item]
        ({"properties": {"id": {"type": "integer", "minimum": 1}}}, "minimum is 1, and was 0"),
        ({"properties": {"id": {"type": "integer", "maximum": 9}}}, "maximum is 9, and was not there"),
        ({"properties": {"id": {"enum": [1, 2]}}}, "only some values are allowed now"),
        ({"properties": {"id": {"type": "integer", "multipleOf": 2}}}, "multipleOf is another one"),
        ({"additionalProperties": False}, "additionalProperties: nothing is allowed any more"),
        ({"type": ["object", "null"]}, ""),
        ({"type": "array"}, "the type object is no longer allowed"),
        ({"anyOf": [{"required": ["id"]}, {"required": ["x"]}]}, ""),
        ({"anyOf": [{"required": ["x"]}]}, "no alternative of the new anyOf takes it"),
        ({"allOf": [{"required": ["x"]}]}, "it refuses what was allowed"),
        ({"unevaluatedProperties": False}, "unevaluated"),
        ({"not": {"required": ["x"]}}, "not is another one"),
        ({"if": {"required": ["x"]}, "then": False}, "if is another one"),
    ],
)
def test_what_a_new_version_may_change(change: dict[str, Any], finding: str) -> None:
    new = {**copy.deepcopy(OLD), **change}
    check_schema(new)
    found = check_backward(OLD, new)
    assert [each for each in found if finding in each] if finding else found == [], found


def test_a_reference_is_followed_on_both_sides() -> None:
    new = copy.deepcopy(TREE)
    assert check_backward(TREE, new) == []
    new["$defs"]["node"]["required"] = ["left"]  # type: ignore[index]
    assert any("/left: it is required now" in each for each in check_backward(TREE, new))
    # The same text of a keyword, and another meaning of what it refers to.
    before = {"$defs": {"x": {"type": "integer"}}, "oneOf": [{"$ref": "#/$defs/x"}]}
    after = {"$defs": {"x": {"type": "string"}}, "oneOf": [{"$ref": "#/$defs/x"}]}
    assert check_backward(before, after) != []
    before, after = ({**each, "anyOf": each["oneOf"]} for each in (before, after))
    assert check_backward(before, after) != []


NAMES = st.sampled_from(["a", "b", "c"])
TYPES = st.sampled_from(["null", "boolean", "object", "array", "number", "string", "integer"])
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "yy", "zzz"]) | st.just(1.5)
)
KEYWORDS = {
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
    "enum": st.lists(SCALARS, min_size=1, max_size=4),
    "const": SCALARS,
    "minimum": st.integers(-2, 2),
    "maximum": st.integers(-2, 2),
    "minLength": st.integers(0, 2),
    "maxLength": st.integers(0, 3),
    "pattern": st.sampled_from(["x", "^y", "z$"]),
    "minItems": st.integers(0, 2),
    "maxItems": st.integers(0, 2),
    "uniqueItems": st.booleans(),
    "required": st.lists(NAMES, max_size=2, unique=True),
    "minProperties": st.integers(0, 2),
    "maxProperties": st.integers(0, 3),
    "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=1), max_size=1),
}


def with_parts(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = {
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(NAMES, inner, max_size=1),
        "propertyNames": inner,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "contains": inner,
        "unevaluatedItems": st.booleans(),
        "unevaluatedProperties": st.booleans(),
        **{name: st.lists(inner, min_size=1, max_size=2) for name in ("allOf", "anyOf", "oneOf")},
        **dict.fromkeys(("not", "if", "then", "else"), inner),
    }
    return st.booleans() | st.fixed_dictionaries({}, optional={**KEYWORDS, **parts})


SCHEMAS = st.recursive(st.fixed_dictionaries({}, optional=KEYWORDS), with_parts, max_leaves=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


def nodes(schema: Any) -> list[dict[str, Any]]:
    """A schema and those in it that have keywords."""
    if isinstance(schema, list):
        return [each for inner in schema for each in nodes(inner)]
    if not isinstance(schema, dict):
        return []
    return [*([schema] if schema else []), *(each for inner in schema.values() for each in nodes(inner))]


def loosened(draw: Any, name: str, value: Any) -> Any:
    """A value of a keyword that takes more, or as much, most of the time."""
    if name.startswith("min"):
        return value - draw(st.integers(0, 2))
    if name.startswith("max"):
        return value + draw(st.integers(0, 2))
    if name == "type":
        return sorted({*([value] if isinstance(value, str) else value), draw(TYPES)})
    if name in ("enum", "anyOf", "oneOf"):
        return [*value, draw(SCALARS if name == "enum" else SCHEMAS)]
    if name in ("required", "allOf") and value:
        return value[1:]
    return value


@st.composite
def changed(draw: Any) -> tuple[Any, Any]:
    """A schema and another one that takes more, as a rule, but not always."""
    old = draw(SCHEMAS)
    new = copy.deepcopy(old)
    for _ in range(draw(st.integers(1, 3))):
        if not (found := nodes(new)):
            break
        at = draw(st.sampled_from(found))
        name = draw(st.sampled_from(sorted(at)))
        match draw(st.integers(0, 5)):
            case 0 | 1 if name != "properties":
                del at[name]
            case 5 if name in KEYWORDS:
                at[name] = draw(KEYWORDS[name])
            case _:
                at[name] = loosened(draw, name, at[name])
    return old, new


def is_closed(old: Any, new: Any) -> bool:
    """Does no property come to be described that was not before? Of those the comparison says that messages
    of before are taken to have none."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(is_closed, old, new))
    if not isinstance(new, dict):
        return True
    if not isinstance(old, dict):
        return "properties" not in str(new)
    described = set(old.get("properties", {}))
    if set(new.get("properties", {})) - described:
        return False
    return all(is_closed(old.get(name, True), new[name]) for name in new)


# Several pairs in each example: many are not compatible, and tell nothing.
@given(st.lists(changed(), min_size=3, max_size=3), st.lists(VALUES, min_size=5, max_size=20))
def test_what_is_compatible_takes_what_was_taken(schemas: list[tuple[Any, Any]], values: list[Any]) -> None:
    for old, new in schemas:
        try:
            check_schema(old)
            check_schema(new)
        except BadRequest:
            continue
        if check_backward(old, new) or not is_closed(old, new):
            continue
        before, after = compile_schema(old), compile_schema(new)
        for value in values:
            assert not before.is_valid(value) or after.is_valid(value), (old, new, value)


def test_versions_are_numbered_once_and_bounded() -> None:
    def register(
        known: EventType | None, schema: Any, compatibility: Literal["backward", "none"] = "none"
    ) -> EventType:
        wanted = event_types.TypeRegistration(
            schema=schema, now=1, who="me", description=None, compatibility=compatibility
        )
        return event_types.register(known, wanted)

    known = register(None, {"const": 0})
    for n in range(1, event_types.MOST_VERSIONS):
        known = register(known, {"const": n})
    with pytest.raises(LimitReached, match="as many as it may"):
        register(known, {})
    less = event_types.without(known, known.newest)
    again = register(less, {})
    assert again.versions[-1].version == event_types.MOST_VERSIONS + 1
    assert event_types.decode(event_types.encode(again)) == again
    less = event_types.without(again, 1)
    with pytest.raises(SchemaIncompatible):
        register(less, False, "backward")


# -- rows ----------------------------------------------------------------------------------------------


def batch_of(payloads: list[bytes], **columns: Any) -> Batch:
    return Batch.decode(build(payloads, id=b"i" * 16, time=5, **columns))


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=50),
    st.integers(1, 20),
    st.integers(1, 500),
)
def test_slices_cover_all_messages_in_order(sizes: list[int], messages: int, size: int) -> None:
    rows = BatchRows(batch_of([b"x" * n for n in sizes]))
    slices = list(rows.slices(messages, size))
    assert [at for lo, hi in slices for at in range(lo, hi)] == list(range(len(sizes)))
    for lo, hi in slices:
        assert hi - lo <= messages
        # A slice may be larger by a message, or eight times where the whole batch is small.
        assert hi - lo == 1 or sum(sizes[lo:hi]) <= 8 * size + max(sizes)


def test_a_batch_that_nobody_changes_stays_the_same() -> None:
    batch = batch_of([b"1", b"2"])
    rows = BatchRows(batch)
    assert rows.values(0, 2) == [1, 2]
    assert rows.headers(1) == {}
    rows.end_slice()
    assert rows.to_batch() is batch


def test_a_changed_batch_keeps_all_else() -> None:
    batch = batch_of(
        [b"1", b"2", b"3"],
        keys=[b"a", b"", b"c"],
        headers=[b"", encode_headers({"n": 1}), b""],
        ids=[b"", b"two", b""],
        priorities=[1, 2, 3],
        deliver_at=[0, 7, 0],
        expires_at=[9, 0, 0],
        times=[1, 2, 3],
    ).slice(1, 3)
    rows = BatchRows(batch)
    rows.values(0, 2)
    rows.set_value(0, {"a": 1})
    rows.end_slice()
    rows.set_headers(1, {"m": "x"})
    after = rows.to_batch()
    assert after.payloads() == [b'{"a":1}', b"3"]
    assert [after.headers(at) for at in range(2)] == [{"n": 1}, {"m": "x"}]
    assert [after.id_of(at) for at in range(2)] == [batch.id_of(at) for at in range(2)]
    for column in ("keys", "priorities", "deliver_at", "expires_at", "times"):
        before = getattr(batch, column)()
        assert getattr(after, column)() == before or not any(before), column


def test_a_refusal_is_short_and_printable() -> None:
    rows = BatchRows(batch_of([b"1"]))
    with pytest.raises(InvalidMessage) as refused:
        rows.refuse(0, "/" + "x" * 1000, "bell \x07" + "y" * 1000)
    assert len(str(refused.value)) < LONGEST_FIELD + LONGEST_REASON + 50
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("payload", [b"{", b"\xff", b"[" * 100_000, b"", b"1 2"])
def test_what_is_no_json_is_refused_with_its_index(payload: bytes) -> None:
    rows = BatchRows(batch_of([b"1", payload]))
    with pytest.raises(InvalidMessage) as refused:
        rows.values(0, 2)
    assert refused.value.index == 1
    with pytest.raises(InvalidMessage):
        rows.value(1)


# -- redact --------------------------------------------------------------------------------------------


def remove(value: Any, path: list[str]) -> Any:
    """An oracle: the value without what the path names."""
    if not path:
        return None
    here, *rest = path
    if isinstance(value, dict):
        chosen = {name for name in value if here in ("*", name)}
        if not rest:
            return {name: inner for name, inner in value.items() if name not in chosen}
        return {name: remove(inner, rest) if name in chosen else inner for name, inner in value.items()}
    if isinstance(value, list):
        places = {at for at in range(len(value)) if here == "*" or here == str(at)}
        if not rest:
            return [inner for at, inner in enumerate(value) if at not in places]
        return [remove(inner, rest) if at in places else inner for at, inner in enumerate(value)]
    return value


@given(VALUES, st.lists(st.sampled_from(["a", "b", "c", "*", "0", "1"]), min_size=1, max_size=3))
def test_fields_are_taken_away(value: Any, path: list[str]) -> None:
    rows = BatchRows(batch_of([msgspec.json.encode(value)]))
    Redaction(RedactStage(fields=("/" + "/".join(path),), replacement=None)).work(rows, 0, 1)
    rows.end_slice()
    assert msgspec.json.decode(rows.to_batch().payload(0)) == remove(value, path)


def test_pointers_have_escapes() -> None:
    assert parse_pointer("/a~1b/~0") == ["a/b", "~"]
    assert parse_pointer("") == []


def test_the_headers_of_replies_are_never_changed_by_a_pattern() -> None:
    headers = encode_headers({"lb-reply-to": "secret", "x": "secret"})
    rows = BatchRows(batch_of([b'"secret"'], headers=[headers]))
    Redaction(RedactStage(patterns=("secret",))).work(rows, 0, 1)
    rows.end_slice()
    assert rows.headers(0) == {"lb-reply-to": "secret", "x": "[redacted]"}
    assert rows.to_batch().payload(0) == b'"[redacted]"'
