"""What the check of a message by a schema may cost at most, counted without making the check.

The library that checks holds the interpreter until it is done, in any thread. So whoever calls it has to know
before whether that may take long. The unit is about what one comparison of two short texts takes, some ten
nanoseconds. The sum is an upper bound: most checks take a small part of it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
import rustworkx

from landbridge.core.middleware.schema import SchemaWalk

#: Bytes of a schema as JSON, and units of compiling, from which on a terminal leaves the schema to another
#: process. To weigh it takes some time, too.
LARGE, COMPILED_HERE = 8 << 10, 5_000
#: Units of checks that a terminal makes in one go, some milliseconds at worst. A message that may take more
#: is checked by another process, and so many units of such messages in one go.
CHECKED_HERE, CHECKED_BY_PROCESS = 2_000_000, 50_000_000
#: Nothing is counted beyond this.
MOST = 1 << 50
#: Of the recursive parts of a schema: for what looks at a value with all that is in it, at each level.
_LEVELS = 50
_CONTAINER, _UNIQUE, _FORMAT = 30, 20, 2
_REPEATED = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_CLASSES = re.compile(r"\\[wWpP]")
_LONGEST_COUNT = 9


class SchemaWeight(NamedTuple):
    """Units for one check: some for each message, and some for each byte of it. And those for compiling."""

    fixed: int
    per_byte: int
    compiling: int

    def of(self, size: int) -> int:
        """Units that the check of a message of this size takes at most."""
        return self.fixed + self.per_byte * size


def is_large(schema: dict[str, Any] | bool) -> bool:
    """Is it too large to be weighed?"""
    return len(msgspec.json.encode(schema)) > LARGE


def weigh(schema: dict[str, Any] | bool) -> SchemaWeight:
    """The weight of a schema that ``check_form`` has accepted."""
    if isinstance(schema, bool):
        return SchemaWeight(1, 1, 1)
    return _Weighing(SchemaWalk(schema)).weight(schema)


def instructions(pattern: object) -> int:
    """How many instructions a regular expression has at most, when it is compiled."""
    text = pattern if isinstance(pattern, str) else ""
    found = len(text) + 200 * len(_CLASSES.findall(text))
    for least, most in _REPEATED.findall(text):
        count = (most or least)[-_LONGEST_COUNT:]
        found = min(MOST, found * max(1, int(count)))
    return found


class _Weighing:
    def __init__(self, walk: SchemaWalk) -> None:
        self._walk = walk
        self._all = walk.all_parts()
        #: By a schema's identity: its units for a message, and for a byte.
        self._known: dict[int, tuple[int, int]] = {}

    def weight(self, schema: dict[str, Any]) -> SchemaWeight:
        graph: rustworkx.PyDiGraph[int, None] = rustworkx.PyDiGraph()
        places = dict(zip(self._all, graph.add_nodes_from(list(self._all)), strict=True))
        for key, each in self._all.items():
            for inner in self._inner(each):
                graph.add_edge(places[key], places[id(inner)], None)
        # Those that others refer to come first.
        for circle in rustworkx.strongly_connected_components(graph):
            keys = {graph[node] for node in circle}
            first = self._all[next(iter(keys))]
            if len(keys) == 1 and all(inner is not first for inner in self._inner(first)):
                self._known[id(first)] = self._plain(first)
            else:
                self._recursive(keys)
        fixed, per_byte = self._known[id(schema)]
        compiling = sum(map(_compiling, self._all.values()))
        return SchemaWeight(min(fixed, MOST), min(per_byte, MOST), min(compiling, MOST))

    def _inner(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        return [*self._walk.same(schema), *(inner for _, _, inner in self._walk.below(schema))]

    def _plain(self, schema: dict[str, Any]) -> tuple[int, int]:
        """Of a schema that doesn't lead back to itself."""
        fixed, per_byte = _own(schema), _per_byte(schema)
        for inner in self._walk.same(schema):
            more_fixed, more_per_byte = self._known[id(inner)]
            fixed, per_byte = fixed + more_fixed, per_byte + more_per_byte
        named = [0]
        for place, inner in self._walk.parts(schema):
            more_fixed, more_per_byte = self._known[id(inner)]
            if place == "one":  # a property, or a place in an array: each part of a message is one of these
                fixed += more_fixed
                named.append(more_per_byte)
            else:  # any number of parts, of two bytes at least
                per_byte += more_fixed // 2 + 1 + more_per_byte
        return min(fixed, MOST), min(per_byte + max(named), MOST)

    def _recursive(self, keys: set[int]) -> None:
        """Of schemas that lead back to each other: each looks at a part of a message once, but the values
        that one compares may be whole branches, at each level."""
        per_byte = 0
        for key in keys:
            schema = self._all[key]
            per_byte += _own(schema) + _LEVELS * _per_byte(schema)
            for inner in self._inner(schema):
                if id(inner) not in keys:
                    per_byte += sum(self._known[id(inner)])
        for key in keys:
            self._known[key] = min(per_byte, MOST), min(per_byte, MOST)


def _own(schema: dict[str, Any]) -> int:
    """What a schema compares of each value, whatever its size."""
    found = 1 + len(schema)
    if "const" in schema:
        found += _size(schema["const"])
    if isinstance(schema.get("enum"), list):
        found += sum(map(_size, schema["enum"]))
    for name in ("required", "properties", "patternProperties"):
        value = schema.get(name)
        found += len(value) if isinstance(value, dict | list) else 0
    for name in ("dependentRequired", "dependencies"):
        value = schema.get(name)
        for each in value.values() if isinstance(value, dict) else ():
            found += 1 + (len(each) if isinstance(each, list) else 0)
    return found


def _per_byte(schema: dict[str, Any]) -> int:
    """What it does with each byte of a value."""
    found = 1
    if "format" in schema:
        found += _FORMAT
    if schema.get("uniqueItems"):
        found += _UNIQUE
    if "pattern" in schema:
        found += 4 + instructions(schema["pattern"]) // 4
    patterns = schema.get("patternProperties")
    for pattern in patterns if isinstance(patterns, dict) else ():
        found += 4 + instructions(pattern) // 4
    return found


def _compiling(schema: dict[str, Any]) -> int:
    patterns = schema.get("patternProperties")
    found = sum(map(instructions, patterns)) if isinstance(patterns, dict) else 0
    return found + _own(schema) + (instructions(schema["pattern"]) if "pattern" in schema else 0)


def _size(value: Any) -> int:
    """Of a value that others are compared with."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return _CONTAINER + sum(_CONTAINER + _size(each) for each in inner)
    return 1 + (len(value) // 16 if isinstance(value, str) else 0)
