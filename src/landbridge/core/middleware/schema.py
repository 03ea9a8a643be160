"""JSON Schemas from users: checked, bounded, compiled.

A schema comes from a service, and messages come from strangers, so a schema must not be able to make the
check of a message take long. Regular expressions are run by an engine that takes linear time. References stay
inside of the schema, so nothing is ever fetched. A schema that refers to itself without going into the
message would never end; one that goes into the same part of a message by two ways that both lead back to it
takes twice as long with each level. Both are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, Protocol
from urllib.parse import unquote

import msgspec
import rustworkx

from landbridge.errors import BadRequest, MiddlewareFailed

#: Bytes of a schema as JSON, how deep it may be nested, and the subschemas that one part of a message may
#: have to be compared with.
LARGEST, DEEPEST, MOST_STEPS = 64 << 10, 40, 1_000
#: Bytes that one regular expression may take when it is compiled, and while it works.
EXPRESSION_SIZE = 1 << 20
_DRAFTS = {
    "https://json-schema.org/draft/2020-12/schema": "Draft202012Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
}
#: Keywords whose value is a schema, a list of schemas, or schemas by name, that look at the same part of a
#: message.
_SAME = ("not", "if", "then", "else")
_SAME_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_NAMED = ("dependentSchemas", "dependencies")
#: Those that look at parts of an array, and of an object.
_OF_ARRAYS = ("items", "additionalItems", "contains", "unevaluatedItems", "prefixItems")
_OF_OBJECTS = ("additionalProperties", "unevaluatedProperties", "patternProperties", "properties")
_ALONE = ("propertyNames",)


#: Bytes of a message, times the alternatives of its schema, up to which a refusal says where the message
#: doesn't fit. The library looks for the errors of all alternatives in all parts, at worst 2 µs for each such
#: byte.
MOST_EXPLAINED = 1_000_000
#: The same for what a terminal does by itself; the rest is left to another process.
EXPLAINED_HERE = 10_000


class _Validator(Protocol):
    def is_valid(self, instance: Any) -> bool: ...
    def validate(self, instance: Any) -> None:
        """ValidationError with the first error."""


class Checker:
    """A compiled schema."""

    def __init__(self, validator: _Validator, alternatives: int) -> None:
        self.is_valid, self.validate = validator.is_valid, validator.validate
        #: How many subschemas its anyOf and oneOf have.
        self.alternatives = alternatives


def compile_schema(schema: dict[str, Any] | bool) -> Checker:
    """A schema that was checked, ready for use. BadRequest where it is none. MiddlewareFailed without the
    library."""
    try:
        import jsonschema_rs
    except ImportError:
        raise MiddlewareFailed(
            "validate needs the package jsonschema-rs", hint="pip install 'landbridge[middleware]'"
        ) from None
    draft = getattr(jsonschema_rs, _DRAFTS[_draft_of(schema)])
    options = jsonschema_rs.RegexOptions(size_limit=EXPRESSION_SIZE, dfa_size_limit=EXPRESSION_SIZE)
    try:
        validator: _Validator = draft(
            schema, mask="the value", pattern_options=options, retriever=_fetch_nothing, validate_formats=True
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        place = "/".join(map(str, getattr(error, "instance_path", None) or ()))
        text = str(getattr(error, "message", error)).split("\n")[0][:200]
        raise BadRequest(f"the schema is none{f', at /{place}' if place else ''}: {text}") from None
    return Checker(validator, _alternatives(schema))


def _alternatives(schema: Any) -> int:
    found = 0
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(schema, dict | list):
        pairs = schema.items() if isinstance(schema, dict) else enumerate(schema)
    for name, inner in pairs:
        if isinstance(inner, dict | list):
            found += _alternatives(inner) + (len(inner) if name in ("anyOf", "oneOf") else 0)
    return found


def is_explained_here(checker: Checker, size: int) -> bool:
    """Is it told quickly where a message of this size doesn't fit?"""
    return size * checker.alternatives <= EXPLAINED_HERE


def first_error(checker: Checker, value: Any, size: int) -> tuple[str, str]:
    """The JSON pointer of the field that doesn't fit, and why. Values of the message are not repeated.
    ``size``: bytes of the message."""
    from jsonschema_rs import ValidationError

    if size * checker.alternatives > MOST_EXPLAINED:
        return "", "it doesn't fit the schema, and is too large to say which of its alternatives fails where"
    try:
        checker.validate(value)
    except ValidationError as error:
        path = list(error.instance_path)
        missing = getattr(error.kind, "property", None)
        if isinstance(missing, str):
            return pointer([*path, missing]), "it is required, and missing"
        unexpected = getattr(error.kind, "unexpected", None)
        if isinstance(unexpected, list) and unexpected:
            return pointer([*path, str(unexpected[0])]), "the schema has no such property"
        return pointer(path), str(error.message)
    return "", "it doesn't fit the schema"


def pointer(path: list[str | int]) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def check_schema(schema: Any) -> None:
    """BadRequest for what is no schema, or none that may be used here."""
    check_form(schema)
    compile_schema(schema)


def check_form(schema: Any) -> None:
    """The same, but for what the library alone can tell when it compiles the schema."""
    check_size(schema)
    _check_depth(schema, 0)
    _draft_of(schema)
    if isinstance(schema, dict):
        try:
            SchemaWalk(schema).check()
        except RecursionError:
            raise BadRequest("the schema's references follow each other too far") from None


def check_size(schema: Any) -> None:
    """BadRequest for what is no JSON of a schema's size."""
    if not isinstance(schema, dict | bool):
        raise BadRequest("a schema is an object, true or false")
    try:
        size = len(msgspec.json.encode(schema))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        raise BadRequest("the schema is no JSON value") from None
    if size > LARGEST:
        raise BadRequest(f"a schema of {size} bytes, allowed are {LARGEST}", hint="take the type apart")


def _check_depth(value: Any, depth: int) -> None:
    if depth > DEEPEST:
        raise BadRequest(f"a schema that is nested more than {DEEPEST} deep")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, depth + 1)


def _draft_of(schema: dict[str, Any] | bool) -> str:
    named = schema.get("$schema", next(iter(_DRAFTS))) if isinstance(schema, dict) else next(iter(_DRAFTS))
    found = str(named).removesuffix("#")
    if found not in _DRAFTS:
        raise BadRequest(f"the schema's $schema is {str(named)[:60]!r}", hint=f"one of: {', '.join(_DRAFTS)}")
    return found


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"{uri[:100]} is outside of the schema, and nothing is fetched")


def resolve(root: dict[str, Any], reference: str) -> Any:
    """What a reference inside of a schema means. BadRequest where it leads out of it, or to nothing."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise BadRequest(
            f"the schema refers to {str(reference)[:60]!r}, outside of it: nothing is fetched",
            hint="put what is referred to into $defs, and refer to it by '#/$defs/NAME'",
        )
    if not reference.startswith("#/") and reference != "#":
        raise BadRequest(
            f"the schema refers to the anchor {reference[:60]!r}", hint="refer by a path: '#/$defs/NAME'"
        )
    found: Any = root
    for part in reference[2:].split("/") if len(reference) > 1 else ():
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            raise BadRequest(f"the schema refers to {reference[:60]!r}, which isn't there")
    return found


class SchemaWalk:
    """A look at all parts of a schema and at how they refer to each other."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        #: Schema, by its identity → how many subschemas look at the same part of a message, itself included;
        #: 0 while that is being counted.
        self._steps: dict[int, int] = {}

    def check(self) -> None:
        """BadRequest for what takes too long, or refers to something that isn't here."""
        seen = self.all_parts()
        for schema in seen.values():
            self._count(schema)
        self._check_growth(seen)

    def all_parts(self) -> dict[int, dict[str, Any]]:
        """All schemas of the schema, by identity."""
        seen: dict[int, dict[str, Any]] = {}
        todo = [self._root, *self._definitions(self._root)]
        while todo:
            schema = todo.pop()
            if id(schema) in seen:
                continue
            seen[id(schema)] = schema
            if (
                "$dynamicRef" in schema
                or "$recursiveRef" in schema
                or ("$id" in schema and schema is not self._root)
            ):
                raise BadRequest(
                    "a schema with $dynamicRef, $recursiveRef or an $id inside",
                    hint="refer by '#/$defs/NAME'",
                )
            for inner in (*self.same(schema), *self._definitions(schema)):
                todo.append(inner)
            for _, _, inner in self.below(schema):
                todo.append(inner)
        return seen

    def _count(self, schema: dict[str, Any]) -> int:
        known = self._steps.get(id(schema))
        if known == 0:
            raise BadRequest("the schema refers to itself without going into the message: it would never end")
        if known is None:
            self._steps[id(schema)] = 0
            known = 1 + sum(map(self._count, self.same(schema)))
            if known > MOST_STEPS:
                raise BadRequest(
                    f"the schema compares a part of a message with more than {MOST_STEPS} schemas",
                    hint="use fewer alternatives",
                )
            self._steps[id(schema)] = known
        return known

    def _check_growth(self, seen: dict[int, dict[str, Any]]) -> None:
        """A recursive schema must lead back to itself by one way for each part of a message."""
        graph: rustworkx.PyDiGraph[int, None] = rustworkx.PyDiGraph()
        places = dict(zip(seen, graph.add_nodes_from(list(seen)), strict=True))
        for key, schema in seen.items():
            for inner in (*self.same(schema), *(each for _, _, each in self.below(schema))):
                graph.add_edge(places[key], places[id(inner)], None)
        for number, circle in enumerate(rustworkx.strongly_connected_components(graph)):
            for node in circle:
                places[graph[node]] = number
        sizes = Counter(places.values())
        for key, schema in seen.items():
            number = places[key]
            ways: dict[str, set[tuple[int, str]]] = {}
            for each in self._closure(schema) if sizes[number] > 1 or self._refers_below(schema) else ():
                for place, way, inner in self.below(each):
                    if places[id(inner)] == number:
                        ways.setdefault(place, set()).add((id(each), way))
            if any(len(found) > 1 for found in ways.values()):
                raise BadRequest(
                    "the schema leads back to itself by two ways for the same part of a message: its check "
                    "would take twice as long with each level",
                    hint="describe the parts that all alternatives have in one place",
                )

    def _refers_below(self, schema: dict[str, Any]) -> bool:
        return any(inner is schema for _, _, inner in self.below(schema))

    def _closure(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        """The schemas that look at the same part of a message as this one."""
        found, todo = {id(schema): schema}, [schema]
        while todo:
            for inner in self.same(todo.pop()):
                if id(inner) not in found:
                    found[id(inner)] = inner
                    todo.append(inner)
        return list(found.values())

    def same(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        """The schemas that look at the same part of a message as this one, as it says itself."""
        found: list[Any] = [schema.get(name) for name in _SAME]
        for name in _SAME_LISTS:
            found += schema[name] if isinstance(schema.get(name), list) else []
        for name in _SAME_NAMED:
            found += schema[name].values() if isinstance(schema.get(name), dict) else []
        if "$ref" in schema:
            found.append(resolve(self._root, schema["$ref"]))
        return [each for each in found if isinstance(each, dict)]

    @staticmethod
    def below(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
        """The schemas that look at parts of this one's: of what ("array", "object"), by which way, and the
        schema. Different ways may concern the same part."""
        found: list[tuple[str, str, Any]] = []
        for name in (*_OF_ARRAYS, *_OF_OBJECTS, *_ALONE):
            value = schema.get(name)
            place = "array" if name in _OF_ARRAYS else "object" if name in _OF_OBJECTS else name
            way = name if name == "contains" else ""
            if isinstance(value, list):
                found += [(place, way, each) for each in value]
            elif isinstance(value, dict) and name == "properties":
                found += [(place, way, each) for each in value.values()]
            elif isinstance(value, dict) and name == "patternProperties":
                found += [(place, pattern, each) for pattern, each in value.items()]
            elif isinstance(value, dict):
                found.append((place, way, value))
        return [each for each in found if isinstance(each[2], dict)]

    @staticmethod
    def parts(schema: dict[str, Any]) -> list[tuple[Literal["one", "many"], dict[str, Any]]]:
        """The same schemas as ``below``, each with how many parts it may look at: "one" for a property and
        for a place in an array."""
        found: list[tuple[Literal["one", "many"], Any]] = []
        for name in (*_OF_ARRAYS, *_OF_OBJECTS, *_ALONE):
            value = schema.get(name)
            if isinstance(value, list):
                found += [("one", each) for each in value]
            elif isinstance(value, dict) and name in ("properties", "patternProperties"):
                found += [("one" if name == "properties" else "many", each) for each in value.values()]
            elif isinstance(value, dict):
                found.append(("many", value))
        return [each for each in found if isinstance(each[1], dict)]

    @staticmethod
    def _definitions(schema: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[Any] = []
        for name in ("$defs", "definitions"):
            found += schema[name].values() if isinstance(schema.get(name), dict) else []
        return [each for each in found if isinstance(each, dict)]
