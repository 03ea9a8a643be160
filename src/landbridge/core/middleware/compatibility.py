"""Whether a new version of a schema takes what the version before takes ("backward" compatibility).

Whether one schema includes another one can't be decided in general, so this compares keyword by keyword, and
says no where it can't tell:

- annotations (title, description, default, examples, …) are not compared;
- ``type``, ``enum`` and ``const``: each type and value that was allowed still is;
- bounds (minimum, maxLength, maxItems, …): none is tighter than it was, and none is new;
- ``required``: nothing is required that was not;
- ``properties``: those that both versions describe are compared. One that is new may have any schema:
  messages of before are taken to have no properties that their schema didn't describe. One that is no longer
  described must be allowed by ``additionalProperties``;
- ``additionalProperties``, ``items`` and ``propertyNames`` are compared as schemas; what was open stays open;
- ``anyOf``: each alternative of before is taken by one of the new ones. ``allOf``: each new part takes what
  one of the parts of before, or the schema around them, takes;
- a schema with ``unevaluatedProperties`` or ``unevaluatedItems`` is the same as it was, and so are the
  keywords for arrays where ``prefixItems`` or ``additionalItems`` is used;
- every other keyword (pattern, format, multipleOf, oneOf, not, if, contains, …) is the same as it was, or
  gone;
- ``$ref`` is followed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from landbridge.core.middleware.schema import pointer, resolve
from landbridge.errors import BadRequest

_ANNOTATIONS = frozenset(
    (
        "$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "title", "description", "default",
        "examples", "deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding",
    )
)  # fmt: skip
#: What may only shrink, and what may only grow.
_AT_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
_AT_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
#: Schemas of parts. Where there was none, anything was allowed.
_PARTS = ("items", "propertyNames")
#: Keywords that mean nothing without each other. They are the same as before, or the first one is gone.
_TOGETHER = (("if", "then", "else"), ("contains", "minContains", "maxContains"))
#: Keywords that change what ``items`` is about: where one is there, all of them are the same as before.
_PLACES = ("prefixItems", "items", "additionalItems", "minItems", "maxItems")
#: What these refuse depends on all other keywords: nothing of their schema may change.
_REST = ("unevaluatedItems", "unevaluatedProperties")
_TYPES = ("null", "boolean", "object", "array", "number", "string")
#: Findings that are told, and comparisons that are made.
MOST_FOUND, MOST_COMPARED = 20, 20_000


def check_backward(old: dict[str, Any] | bool, new: dict[str, Any] | bool) -> list[str]:
    """Why the new schema may refuse what the old one takes, a sentence each with its place; empty if it
    doesn't."""
    comparison = _Comparison(old, new)
    try:
        comparison.compare(old, new, [])
    except (BadRequest, RecursionError) as error:
        return [*comparison.found, f"it can't be compared: {error}"]
    return comparison.found[:MOST_FOUND]


def is_equal(one: Any, other: Any) -> bool:
    """Are two JSON values the same? For Python 1 is true."""
    return _key(one) == _key(other)


class _Comparison:
    def __init__(self, old: Any, new: Any) -> None:
        self._old, self._new = old, new
        self.found: list[str] = []
        #: Pairs that are being compared, or were: a recursive schema comes by again.
        self._pairs: set[tuple[int, int]] = set()
        self._room = MOST_COMPARED

    def takes(self, old: Any, new: Any) -> bool:
        """Does one schema take what another one takes? Tells nothing of why it doesn't."""
        inner = _Comparison(self._old, self._new)
        inner._pairs, inner._room = set(self._pairs), self._room
        inner.compare(old, new, [])
        self._room = inner._room
        return not inner.found

    def compare(self, old: Any, new: Any, path: list[str | int]) -> None:
        self._room -= 1
        if self._room < 0:
            raise BadRequest("the schemas are too large to be compared")
        if new is True or new == {} or old is False or (is_equal(old, new) and not _refers(new)):
            return
        if isinstance(old, dict) and isinstance(new, dict):
            if (id(old), id(new)) in self._pairs:
                return
            self._pairs.add((id(old), id(new)))
        if new is False:
            self._tell(path, "nothing is allowed any more")
            return
        before: dict[str, Any] = {} if old is True else old
        if (root_old := self._followed(before, self._old)) is not None:
            self.compare(root_old, new, path)
            return
        if (root_new := self._followed(new, self._new)) is not None:
            self.compare(before, root_new, path)
            return
        if any(name in new for name in _REST):
            self._tell(path, "a schema with unevaluatedProperties or unevaluatedItems was changed")
            return
        self._values(before, new, path)
        self._bounds(before, new, path)
        self._objects(before, new, path)
        is_placed = "prefixItems" in {*before, *new} or isinstance(
            new.get("items", before.get("items")), list
        )
        if is_placed and not all(_is_same(before, new, name) for name in _PLACES):
            self._tell(path, "an array whose places have schemas is another one")
        for name in _PARTS:
            if name in new and not (is_placed and name == "items"):
                self.compare(before.get(name, True), new[name], [*path, name])
        self._combined(before, new, path)
        self._others(before, new, path)

    def _followed(self, schema: dict[str, Any], root: Any) -> Any:
        """What a schema that is nothing but a reference means; None for any other."""
        if "$ref" in schema and not set(schema) - {"$ref"} - _ANNOTATIONS:
            return resolve(root, schema["$ref"])
        return None

    def _tell(self, path: list[str | int], text: str) -> None:
        if len(self.found) < MOST_FOUND:
            self.found.append(f"at {pointer(path) or 'the top'}: {text}")

    def _values(self, old: dict[str, Any], new: dict[str, Any], path: list[str | int]) -> None:
        values = _values_of(old)
        if (allowed := _values_of(new)) is not None:
            if values is None:
                self._tell(path, "only some values are allowed now")
            elif missing := [each for each in values if each not in allowed]:
                self._tell(path, f"the value {_shown(missing[0])} is no longer allowed")
        if "type" not in new:
            return
        types = _types(new)
        if values is not None:
            for each in values:
                if not types & _types_of_value(_plain(each)):
                    self._tell(path, f"the value {_shown(each)} is of a type that is no longer allowed")
        elif missing_types := _types(old) - types:
            if "integer" in types:
                missing_types -= {"integer"}
            if missing_types:
                self._tell(path, f"the type {min(missing_types)} is no longer allowed")

    def _bounds(self, old: dict[str, Any], new: dict[str, Any], path: list[str | int]) -> None:
        for names, sign in ((_AT_LEAST, 1), (_AT_MOST, -1)):
            for name in names:
                if name in _TOGETHER[1]:
                    continue
                if isinstance(new.get(name, old.get(name)), bool):  # of draft 4
                    if new.get(name) != old.get(name):
                        self._tell(path, f"{name} is another one")
                elif name in new and (name not in old or sign * new[name] > sign * old[name]):
                    self._tell(path, f"{name} is {new[name]}, and was {old.get(name, 'not there')}")

    def _objects(self, old: dict[str, Any], new: dict[str, Any], path: list[str | int]) -> None:
        required = set(_names(new, "required")) - set(_names(old, "required"))
        for name in sorted(required):
            self._tell([*path, name], "it is required now")
        before, after = _mapping(old, "properties"), _mapping(new, "properties")
        for name in before.keys() & after.keys():
            self.compare(before[name], after[name], [*path, "properties", name])
        described = [*_mapping(old, "patternProperties").values()]
        if isinstance(old.get("additionalProperties"), dict):
            described.append(old["additionalProperties"])
        for name in after.keys() - before.keys():
            for each in described:
                self.compare(each, after[name], [*path, "properties", name])
        others = new.get("additionalProperties", True)
        if {"patternProperties"} & {*old, *new} and not _is_same(old, new, "patternProperties"):
            self._tell(path, "patternProperties is another one")
        if others is not True:
            for name in before.keys() - after.keys():
                self.compare(before[name], others, [*path, "properties", name])
            self.compare(old.get("additionalProperties", True), others, [*path, "additionalProperties"])

    def _combined(self, old: dict[str, Any], new: dict[str, Any], path: list[str | int]) -> None:
        for name in ("dependentRequired", "dependentSchemas", "dependencies"):
            if name in new and not _is_same(old, new, name):
                self._tell(path, f"{name} is another one")
        if "anyOf" in new and not _is_same(old, new, "anyOf"):
            for at, each in enumerate(old.get("anyOf") or [old]):
                if not any(self.takes(each, alternative) for alternative in new["anyOf"]):
                    where = [*path, "anyOf", at] if "anyOf" in old else path
                    self._tell(where, "no alternative of the new anyOf takes it")
        if "allOf" in new and not _is_same(old, new, "allOf"):
            around = {name: value for name, value in old.items() if name != "allOf"}
            for at, part in enumerate(new["allOf"]):
                if not any(self.takes(each, part) for each in (*(old.get("allOf") or ()), around)):
                    self._tell([*path, "allOf", at], "it refuses what was allowed")

    def _others(self, old: dict[str, Any], new: dict[str, Any], path: list[str | int]) -> None:
        for group in _TOGETHER:
            if group[0] in new and not all(_is_same(old, new, name) for name in group):
                self._tell(path, f"{group[0]} is another one")
        for name in sorted(new.keys() - _COMPARED - _ANNOTATIONS):
            if not _is_same(old, new, name):
                self._tell(path, f"{name} is another one, or refers to something")


def _is_same(old: dict[str, Any], new: dict[str, Any], name: str) -> bool:
    """Is a keyword the same in both, or in neither? One that refers to something may not be: that may have
    changed."""
    if name not in old or name not in new:
        return name not in old and name not in new
    return bool(_key(old[name]) == _key(new[name])) and not _refers(new[name])


_COMPARED = frozenset(
    (
        "type", "enum", "const", "required", "properties", "additionalProperties", "patternProperties",
        "anyOf", "allOf", "dependentRequired", "dependentSchemas", "dependencies", "prefixItems",
        "additionalItems", *_AT_LEAST, *_AT_MOST, *_PARTS, *_REST,
        *(name for group in _TOGETHER for name in group),
    )
)  # fmt: skip


def _refers(value: Any) -> bool:
    """Is there a reference in it? What it refers to may have changed."""
    if isinstance(value, dict):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


def _types(schema: dict[str, Any]) -> set[str]:
    named = schema.get("type", list(_TYPES))
    found = {named} if isinstance(named, str) else set(named)
    return found | {"integer"} if "number" in found else found


def _types_of_value(value: Any) -> set[str]:
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if value == int(value) else {"number"}
    kinds: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return {kinds[type(value)]}


def _values_of(schema: dict[str, Any]) -> list[bytes] | None:
    """The values that enum and const leave, encoded, so that 1 is not true; None: any."""
    if "const" in schema:
        return [_key(schema["const"])]
    return list(map(_key, schema["enum"])) if "enum" in schema else None


def _key(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _plain(key: bytes) -> Any:
    return msgspec.json.decode(key)


def _shown(key: bytes) -> str:
    text = key.decode()
    return text if len(text) <= 60 else f"{text[:57]}…"


def _names(schema: dict[str, Any], name: str) -> list[str]:
    found = schema.get(name)
    return found if isinstance(found, list) else []


def _mapping(schema: dict[str, Any], name: str) -> dict[str, Any]:
    found = schema.get(name)
    return found if isinstance(found, dict) else {}
