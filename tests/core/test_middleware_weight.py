"""What checks of messages may cost, no less than a naive count of comparisons; and parts of batches."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.batch import Batch, build, encode_headers
from landbridge.core.middleware.event_types import DEFAULT, EventType, SchemaVersion, TypeRegistration
from landbridge.core.middleware.rows import BatchRows
from landbridge.core.middleware.schema import check_form, resolve
from landbridge.core.middleware.validate import Misfit, TopicSchemas, Validation
from landbridge.core.middleware.weight import CHECKED_BY_PROCESS, CHECKED_HERE, instructions, weigh
from landbridge.errors import BadRequest


def chain(levels: int) -> dict[str, Any]:
    """Each level leads to the next part of a message by two ways: twice as many checks with each."""
    steps = {
        f"a{n}": {"allOf": [{"properties": {"x": {"$ref": f"#/$defs/a{n + 1}"}}}] * 2} for n in range(levels)
    }
    return {"$defs": {**steps, f"a{levels}": {"type": "null"}}, "$ref": "#/$defs/a0"}


def nested(levels: int) -> Any:
    found: Any = None
    for _ in range(levels):
        found = {"x": found}
    return found


class Count:
    """Evaluates a schema as slowly as it can be done: everything is looked at, and counted."""

    def __init__(self, root: Any) -> None:
        self._root, self.compared = root, 0

    def look(self, schema: Any, value: Any) -> None:
        self.compared += 1
        if isinstance(schema, bool):
            return
        for name in ("allOf", "anyOf"):
            for each in schema.get(name, ()):
                self.look(each, value)
        for name in ("not", "if", "then"):
            if name in schema:
                self.look(schema[name], value)
        if "$ref" in schema:
            self.look(resolve(self._root, schema["$ref"]), value)
        self.compared += len(schema.get("enum", ())) + len(schema.get("required", ()))
        if isinstance(value, str) and "pattern" in schema:
            self.compared += len(value)
        if isinstance(value, dict):
            self._look_into(schema, value)
        if isinstance(value, list):
            for at, each in enumerate(value):
                for name in ("items", "contains"):
                    if name in schema:
                        self.look(schema[name], each)
                if at < len(schema.get("prefixItems", ())):
                    self.look(schema["prefixItems"][at], each)

    def _look_into(self, schema: Any, value: dict[str, Any]) -> None:
        for name, each in value.items():
            if "propertyNames" in schema:
                self.look(schema["propertyNames"], name)
            if name in schema.get("properties", {}):
                self.look(schema["properties"][name], each)
            for pattern, inner in schema.get("patternProperties", {}).items():
                self.compared += len(name)
                if re.search(pattern, name):
                    self.look(inner, each)
            if "additionalProperties" in schema:
                self.look(schema["additionalProperties"], each)


NAMES = st.sampled_from(["a", "b", "c"])
values = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["", "a", "abc" * 5]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=25,
)
references = st.sampled_from([{"$ref": "#"}, {"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}])
schemas = st.recursive(
    st.sampled_from(
        [True, {}, {"type": "string"}, {"enum": ["a", 1]}, {"pattern": "a+b"}, {"required": ["a"]}]
    )
    | references,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "allOf": st.lists(inner, min_size=1, max_size=3),
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "not": inner,
            "items": inner,
            "contains": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=3),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "patternProperties": st.dictionaries(st.sampled_from(["a", "a|b"]), inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": st.sampled_from([True, {"pattern": "a"}]),
        },
    ),
    max_leaves=12,
)
whole = st.builds(
    lambda schema, one, two: schema if schema is True else {**schema, "$defs": {"one": one, "two": two}},
    schemas,
    schemas,
    schemas,
)


@given(whole, st.lists(values, min_size=1, max_size=5))
def test_a_check_costs_no_more_than_its_weight(schema: Any, found: list[Any]) -> None:
    try:
        check_form(schema)
    except BadRequest:
        return
    weight = weigh(schema)
    for value in found:
        count = Count(schema)
        count.look(schema, value)
        assert count.compared <= weight.of(len(msgspec.json.encode(value))), (schema, value)


@pytest.mark.parametrize("levels", [3, 8, 12])
def test_a_chain_weighs_what_it_takes(levels: int) -> None:
    schema, value = chain(levels), nested(levels)
    check_form(schema)
    count = Count(schema)
    count.look(schema, value)
    assert 2**levels < count.compared <= weigh(schema).of(len(msgspec.json.encode(value)))


def test_a_long_chain_is_counted_up_to_a_bound() -> None:
    schema = chain(500)
    check_form(schema)
    assert weigh(schema).of(10) > CHECKED_HERE


def test_a_schema_that_is_costly_to_compile_is_noticed() -> None:
    def is_costly(schema: Any) -> bool:
        return TypeRegistration(
            schema=schema, now=0, who="me", description=None, compatibility="none"
        ).is_costly

    assert instructions("(a{1,100}){1,100}") > 10_000
    assert not is_costly({"properties": {"id": {"pattern": "^[A-Z]{2,3}-[0-9]{4}$"}}})
    assert is_costly({"pattern": "(a{1,100}){1,100}"})
    assert is_costly({"enum": ["v" * 10_000]})
    with pytest.raises(BadRequest, match="bytes"):
        is_costly({"enum": ["v" * 100_000]})


class OtherProcess:
    """Notes what it is asked, and lets everything pass."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def first_misfit(self, schema: bytes, payloads: list[bytes]) -> Misfit | None:
        self.asked += payloads
        return None


CHEAP: dict[str, Any] = {"type": "array"}
DEAR: dict[str, Any] = {"items": {"anyOf": [{"const": n} for n in range(200)]}}


def schemas_of(**types: Any) -> TopicSchemas:
    def known(schema: Any) -> EventType:
        version = SchemaVersion(version=1, schema=schema, registered_at=0, registered_by="me")
        return EventType(newest=1, versions=(version,))

    return TopicSchemas({name: known(schema) for name, schema in types.items()})


@given(
    st.lists(
        st.tuples(st.sampled_from(["cheap", "dear", "none"]), st.integers(0, 3000)), min_size=1, max_size=40
    )
)
def test_parts_are_bounded_and_cover_all_messages(given_rows: list[tuple[str, int]]) -> None:
    payloads = [msgspec.json.encode([1] * count) for _, count in given_rows]
    headers = [encode_headers({"type": kind}) for kind, _ in given_rows]
    rows = BatchRows(Batch.decode(build(payloads, id=b"i" * 16, time=5, headers=headers)))
    schemas, process = schemas_of(cheap=CHEAP, dear=DEAR), OtherProcess()
    validation = Validation(schemas, process, refuses_unlisted=False)
    parts = []
    for part in validation.parts(rows, 0, len(rows)):
        parts.append(part)
        validation.work(rows, part.lo, part.hi, by_process=part.by_process)
        rows.end_slice()
    assert [part.lo for part in parts] == [0, *(part.hi for part in parts[:-1])]
    assert parts[-1].hi == len(rows)
    sent = []
    for lo, hi, by_process in parts:
        cost = 0
        for at in range(lo, hi):
            kind = given_rows[at][0]
            units = 0 if kind == "none" else schemas.find(kind, None).units(1, len(payloads[at]))
            assert units is not None
            assert (units > CHECKED_HERE) == by_process
            cost += units
        assert hi - lo == 1 or cost <= (CHECKED_BY_PROCESS if by_process else CHECKED_HERE)
        sent += payloads[lo:hi] if by_process else []
    assert process.asked == sent


def test_small_messages_without_types_are_one_part() -> None:
    rows = BatchRows(Batch.decode(build([b"[1]"] * 100, id=b"i" * 16, time=5)))
    validation = Validation(schemas_of(**{DEFAULT: CHEAP}), OtherProcess(), refuses_unlisted=True)
    assert list(validation.parts(rows, 0, 100)) == [(0, 100, False)]
