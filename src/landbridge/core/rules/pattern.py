"""Patterns of partial queries: what a message must have, in the manner of EventBridge.

Fields of an object must all hold (AND), and of the array at a field at least one alternative (OR). The
semantics of arrays, null, missing fields and numbers in messages are in docs/rules.md. A pattern is parsed
once, to a tree whose nodes test a message and say what fails.
"""

from __future__ import annotations

import ipaddress
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from landbridge.core.rules.bounds import (
    DEEPEST_PATTERN,
    LONGEST_TEXT,
    MOST_ALTERNATIVES,
    MOST_STARS,
    describe,
)
from landbridge.core.rules.budget import Spending
from landbridge.core.rules.content import MessageContent, attribute_header
from landbridge.errors import BadRequest

#: Names in a pattern that stand for something else than a field of the payload. A field whose own name begins
#: with "$" is written with another "$" before it.
OR, KEY, HEADERS, EVENT = "$or", "$key", "$headers", "$ce"
OPERATORS = (
    "prefix", "suffix", "wildcard", "equals-ignore-case", "anything-but", "numeric", "exists", "cidr",
)  # fmt: skip

Test: TypeAlias = Callable[[Any], bool]
Source = Literal["payload", "headers", "key"]

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LEAF_HINT = 'the value of a field is an array of alternatives, as in {"state": ["paid", {"prefix": "part"}]}'
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class _Missing:
    pass


_MISSING = _Missing()


def is_number(value: object) -> bool:
    return type(value) in (int, float)


def key_of(value: Any) -> Any:
    """A value as a key of a dictionary. Python takes True for 1, and JSON doesn't."""
    return (value,) if type(value) is bool else value


class Anchor(NamedTuple):
    """A condition without which an alternative can't hold, for the index of fields."""

    source: Source
    path: tuple[str, ...]
    how: Literal["equal", "folded", "prefix", "suffix", "present"]
    value: Any = None


class Mismatch(NamedTuple):
    """The first leaf of a pattern that does not hold."""

    place: str
    why: str


class Alternative(NamedTuple):
    """One of the values of an array in a pattern."""

    #: The alternative in JSON, for explanations.
    text: str
    how: Literal["equal", "folded", "prefix", "suffix", "present", "absent"]
    #: What an index looks for: of ``equal`` a key, of the others a text.
    value: Any
    test: Test


class Leaf:
    """A field with its alternatives."""

    __slots__ = ("accepts_absence", "alternatives", "name", "place", "source", "tests", "values")

    def __init__(self, place: str, source: Source, name: str, alternatives: list[Alternative]) -> None:
        self.place = place
        self.source = source
        #: The name of the field or header; of the key "".
        self.name = name
        self.alternatives = alternatives
        self.accepts_absence = any(each.how == "absent" for each in alternatives)
        #: The alternatives that are plain values, as keys.
        self.values = frozenset(each.value for each in alternatives if each.how == "equal")
        self.tests = tuple(each.test for each in alternatives if each.how not in ("equal", "absent"))

    def find(self, document: Mapping[str, Any], content: MessageContent) -> Any:
        if self.source == "payload":
            return document.get(self.name, _MISSING)
        if self.source == "headers":
            return content.headers.get(self.name, _MISSING)
        return _MISSING if content.key is None else content.key

    def holds(self, document: Mapping[str, Any], content: MessageContent, spending: Spending) -> bool:
        is_payload = self.source == "payload"
        value = document.get(self.name, _MISSING) if is_payload else self.find(document, content)
        kind = type(value)
        if kind is str:  # the most frequent kind, and most texts are one of the values or not
            return value in self.values or (bool(self.tests) and self.accepts(value))
        if kind is list:
            values = scalars(value, spending)
            spending.spend(len(values) * len(self.alternatives))
            return any(map(self.accepts, values)) if values else self.accepts_absence
        if kind is dict or value is _MISSING:
            return self.accepts_absence
        return self.accepts(value)

    def accepts(self, value: Any) -> bool:
        if ((value,) if type(value) is bool else value) in self.values:
            return True
        for test in self.tests:  # noqa: SIM110 - this is twice as fast as any()
            if test(value):
                return True
        return False

    def failure(
        self, document: Mapping[str, Any], content: MessageContent, spending: Spending
    ) -> Mismatch | None:
        if self.holds(document, content, spending):
            return None
        value = self.find(document, content)
        if value is _MISSING:
            what = {"payload": "field", "headers": "header", "key": "key"}[self.source]
            found = f"the message has no {what}" if self.source != "payload" else "there is no such field"
        elif type(value) is dict:
            found = "there is an object, and a leaf compares single values"
        else:
            found = f"found {describe(value)}"
        wanted = " or ".join(each.text for each in self.alternatives)
        wanted = wanted if len(wanted) <= 120 else f"{wanted[:117]}…"
        return Mismatch(self.place, f"{found}, wanted {wanted}")

    def cover(self, path: tuple[str, ...], cost: Callable[[Anchor], int]) -> list[Anchor] | None:
        """Anchors one of which each match has; None where there are none."""
        if self.accepts_absence:
            return None
        path = (*path, self.name) if self.source == "payload" else (self.name,)
        return [
            Anchor(self.source, path, each.how, each.value)
            for each in self.alternatives
            if each.how != "absent"
        ]

    def anchors(self, path: tuple[str, ...]) -> Iterator[Anchor]:
        """The anchors of all leaves."""
        yield from self.cover(path, lambda anchor: 0) or ()

    def leaves(self) -> Iterator[Leaf]:
        yield self


class Nested:
    """A field whose value has to hold a pattern of its own."""

    __slots__ = ("inner", "name")

    def __init__(self, name: str, inner: Conjunction) -> None:
        self.name = name
        self.inner = inner

    def holds(self, document: Mapping[str, Any], content: MessageContent, spending: Spending) -> bool:
        return self.inner.holds_in(document.get(self.name), content, spending)

    def failure(
        self, document: Mapping[str, Any], content: MessageContent, spending: Spending
    ) -> Mismatch | None:
        return self.inner.failure_in(document.get(self.name), content, spending)

    def cover(self, path: tuple[str, ...], cost: Callable[[Anchor], int]) -> list[Anchor] | None:
        return self.inner.cover((*path, self.name), cost)

    def anchors(self, path: tuple[str, ...]) -> Iterator[Anchor]:
        return self.inner.anchors((*path, self.name))

    def leaves(self) -> Iterator[Leaf]:
        return self.inner.leaves()


class Either:
    """``$or``: at least one of several patterns."""

    __slots__ = ("branches", "place")

    def __init__(self, place: str, branches: list[Conjunction]) -> None:
        self.place = place
        self.branches = branches

    def holds(self, document: Mapping[str, Any], content: MessageContent, spending: Spending) -> bool:
        return any(each.holds(document, content, spending) for each in self.branches)

    def failure(
        self, document: Mapping[str, Any], content: MessageContent, spending: Spending
    ) -> Mismatch | None:
        failures = []
        for each in self.branches:
            failure = each.failure(document, content, spending)
            if failure is None:
                return None
            failures.append(f"{failure.place}: {failure.why}")
        return Mismatch(self.place, f"none of its {len(failures)} patterns holds: {'; '.join(failures)}")

    def cover(self, path: tuple[str, ...], cost: Callable[[Anchor], int]) -> list[Anchor] | None:
        all_of_them: list[Anchor] = []
        for each in self.branches:
            cover = each.cover(path, cost)
            if cover is None:
                return None
            all_of_them += cover
        return all_of_them

    def anchors(self, path: tuple[str, ...]) -> Iterator[Anchor]:
        for each in self.branches:
            yield from each.anchors(path)

    def leaves(self) -> Iterator[Leaf]:
        for each in self.branches:
            yield from each.leaves()


class Conjunction:
    """An object of a pattern: all its parts have to hold, of one and the same object of the message."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Leaf | Nested | Either]) -> None:
        # The cheap parts first.
        self.parts = tuple(sorted(parts, key=lambda part: not isinstance(part, Leaf)))

    def holds(self, document: Mapping[str, Any], content: MessageContent, spending: Spending) -> bool:
        for part in self.parts:  # noqa: SIM110 - this is twice as fast as all()
            if not part.holds(document, content, spending):
                return False
        return True

    def holds_in(self, value: Any, content: MessageContent, spending: Spending) -> bool:
        """Does it hold for a value? An array is whichever of its elements holds; what is no object has no
        fields."""
        kind = type(value)
        if kind is dict:
            return self.holds(value, content, spending)
        if kind is list:
            return any(self.holds(each, content, spending) for each in objects(value, spending))
        return self.holds({}, content, spending)

    def failure(
        self, document: Mapping[str, Any], content: MessageContent, spending: Spending
    ) -> Mismatch | None:
        failures = (part.failure(document, content, spending) for part in self.parts)
        return next((each for each in failures if each is not None), None)

    def failure_in(self, value: Any, content: MessageContent, spending: Spending) -> Mismatch | None:
        if type(value) is not list:
            return self.failure(value if type(value) is dict else {}, content, spending)
        first, count = None, 0
        for each in objects(value, spending):
            failure = self.failure(each, content, spending)
            if failure is None:
                return None
            first, count = first or failure, count + 1
        if first is None or count == 1:
            return first
        return Mismatch(first.place, f"{first.why}, and so on in all {count:,} elements of the array")

    def cover(self, path: tuple[str, ...], cost: Callable[[Anchor], int]) -> list[Anchor] | None:
        covers = [cover for part in self.parts if (cover := part.cover(path, cost)) is not None]
        return min(covers, key=lambda cover: sum(map(cost, cover))) if covers else None

    def anchors(self, path: tuple[str, ...]) -> Iterator[Anchor]:
        for part in self.parts:
            yield from part.anchors(path)

    def leaves(self) -> Iterator[Leaf]:
        for part in self.parts:
            yield from part.leaves()


def scalars(value: list[Any], spending: Spending) -> list[Any]:
    """The values in an array and the arrays in it, objects left out."""
    found, arrays = [], [value]
    while arrays:
        array = arrays.pop()
        spending.spend(len(array))
        for each in array:
            kind = type(each)
            if kind is list:
                arrays.append(each)
            elif kind is not dict:
                found.append(each)
    return found


def objects(value: list[Any], spending: Spending) -> Iterator[Mapping[str, Any]]:
    """The elements of an array and the arrays in it, as objects: what is none has no fields. An array without
    elements is like a field that is missing: one object without fields."""
    arrays, empty = [value], True
    while arrays:
        array = arrays.pop()
        spending.spend(len(array))
        for each in array:
            kind = type(each)
            if kind is list:
                arrays.append(each)
            else:
                empty = False
                yield each if kind is dict else {}
    if empty:
        yield {}


# -- parsing -------------------------------------------------------------------------------------------


class MessagePattern:
    """A whole pattern."""

    def __init__(self, match: Mapping[str, Any]) -> None:
        self.root = _Parser().conjunction(match, "match", 0)
        leaves = list(self.root.leaves())
        self.reads_payload = any(leaf.source == "payload" for leaf in leaves)
        self.reads_headers = any(leaf.source == "headers" for leaf in leaves)
        #: Whether a leaf that holds is a message that matches.
        self.is_one_leaf = len(leaves) == 1 and not leaves[0].accepts_absence

    def matches(self, content: MessageContent, spending: Spending) -> bool:
        if self.reads_payload:
            return not content.unreadable and self.root.holds_in(content.document, content, spending)
        return self.root.holds({}, content, spending)

    def failure(self, content: MessageContent, spending: Spending) -> Mismatch | None:
        if not self.reads_payload:
            return self.root.failure({}, content, spending)
        if content.unreadable:
            return Mismatch("payload", content.unreadable)
        return self.root.failure_in(content.document, content, spending)


class _Parser:
    def __init__(self) -> None:
        self._alternatives = 0

    def conjunction(self, raw: Any, place: str, depth: int) -> Conjunction:
        if not isinstance(raw, Mapping):
            raise BadRequest(f"{place}: an object is expected, not {describe(raw)}")
        if depth > DEEPEST_PATTERN:
            raise BadRequest(f"{place[:60]}…: the pattern is nested deeper than {DEEPEST_PATTERN} objects")
        if not raw:
            raise BadRequest(
                f"{place}: an empty pattern would match everything",
                hint="subscribe to the topic itself for all its messages",
            )
        parts: list[Leaf | Nested | Either] = []
        is_top = depth == 0
        for name, value in raw.items():
            if not isinstance(name, str) or len(name) > LONGEST_TEXT:
                raise BadRequest(f"{place}: the name of a field is text of at most {LONGEST_TEXT} characters")
            here = f"{place}.{name}"
            if name == OR:
                parts.append(self._either(value, here, depth))
            elif is_top and name == KEY:
                parts.append(Leaf(here, "key", "", self._array(value, here, is_text=True)))
            elif is_top and name in (HEADERS, EVENT):
                parts += self._headers(value, here, is_event=name == EVENT)
            elif name.startswith("$") and not name.startswith("$$"):
                raise BadRequest(
                    f"{here}: names with $ are {OR}, and outside of fields {KEY}, {HEADERS} and {EVENT}",
                    hint=f"a field of the payload with this name is written ${name}",
                )
            else:
                field = name.removeprefix("$") if name.startswith("$$") else name
                if isinstance(value, Mapping):
                    parts.append(Nested(field, self.conjunction(value, here, depth + 1)))
                else:
                    parts.append(Leaf(here, "payload", field, self._array(value, here, is_text=False)))
        return Conjunction(parts)

    def _either(self, raw: Any, place: str, depth: int) -> Either:
        if not isinstance(raw, list) or not raw:
            raise BadRequest(f"{place}: an array of patterns is expected, not {describe(raw)}")
        # A branch speaks of the same object. It counts as deeper all the same, unless it is at the top.
        if len(raw) > MOST_ALTERNATIVES:
            raise BadRequest(f"{place}: {len(raw):,} patterns, allowed are {MOST_ALTERNATIVES}")
        inner = [self._branch(each, f"{place}[{index}]", depth) for index, each in enumerate(raw)]
        return Either(place, inner)

    def _branch(self, raw: Any, place: str, depth: int) -> Conjunction:
        if place.count(OR) > DEEPEST_PATTERN:
            raise BadRequest(f"{place[:60]}…: {OR} is nested deeper than {DEEPEST_PATTERN} times")
        return self.conjunction(raw, place, depth)

    def _headers(self, raw: Any, place: str, *, is_event: bool) -> list[Leaf | Nested | Either]:
        if not isinstance(raw, Mapping) or not raw:
            raise BadRequest(f"{place}: an object is expected, not {describe(raw)}")
        leaves: list[Leaf | Nested | Either] = []
        for name, value in raw.items():
            here = f"{place}.{name}"
            header = attribute_header(name) if is_event else name
            leaves.append(Leaf(here, "headers", header, self._array(value, here, is_text=True)))
        return leaves

    def _array(self, raw: Any, place: str, *, is_text: bool) -> list[Alternative]:
        if not isinstance(raw, list):
            raise BadRequest(f"{place}: an array is expected, not {describe(raw)}", hint=_LEAF_HINT)
        if not raw:
            raise BadRequest(f"{place}: no alternatives, so nothing would match", hint=_LEAF_HINT)
        self._alternatives += len(raw)
        self._check_count(place)
        return [
            self._alternative(each, f"{place}[{index}]", is_text=is_text) for index, each in enumerate(raw)
        ]

    def _check_count(self, place: str) -> None:
        if self._alternatives > MOST_ALTERNATIVES:
            raise BadRequest(f"{place}: a pattern has at most {MOST_ALTERNATIVES} alternatives in all")

    def _alternative(self, raw: Any, place: str, *, is_text: bool) -> Alternative:
        if not isinstance(raw, Mapping):
            if isinstance(raw, list):
                raise BadRequest(f"{place}: an alternative is a value or an operator, not an array")
            _check_literal(raw, place, is_text=is_text)
            return Alternative(describe(raw), "equal", key_of(raw), lambda value: False)
        if len(raw) != 1:
            raise BadRequest(
                f"{place}: an operator is an object with one name, not {describe(raw)}",
                hint="one of: " + ", ".join(OPERATORS),
            )
        [(name, operand)] = raw.items()
        here = f"{place}.{name}"
        text = describe(raw)
        if name == "exists":
            if not isinstance(operand, bool):
                raise BadRequest(f"{here}: true or false is expected, not {describe(operand)}")
            return Alternative(text, "present" if operand else "absent", None, lambda value: True)
        if name == "anything-but":
            return Alternative(text, "present", None, self._anything_but(operand, here, is_text=is_text))
        if name == "numeric":
            return Alternative(text, "present", None, _numeric(operand, here, is_text=is_text))
        return self._text_operator(name, operand, here, text)

    def _text_operator(self, name: Any, operand: Any, place: str, text: str) -> Alternative:
        if name in ("prefix", "suffix"):
            folds = isinstance(operand, Mapping) and [*operand] == ["equals-ignore-case"]
            given = _text(operand["equals-ignore-case"] if folds else operand, place)
            if folds:
                test = _begins_folded(given) if name == "prefix" else _ends_folded(given)
                return Alternative(text, "present", None, test)
            return Alternative(text, name, given, _begins(given) if name == "prefix" else _ends(given))
        if name == "equals-ignore-case":
            folded = _text(operand, place).casefold()
            return Alternative(
                text, "folded", folded, lambda value: type(value) is str and value.casefold() == folded
            )
        if name == "wildcard":
            return Alternative(text, "present", None, _wildcard(operand, place))
        if name == "cidr":
            return Alternative(text, "present", None, _cidr(operand, place))
        raise BadRequest(
            f"{place}: there is no operator {describe(name)}", hint=f"one of: {', '.join(OPERATORS)}"
        )

    def _anything_but(self, raw: Any, place: str, *, is_text: bool) -> Test:
        """What none of the given values or patterns accepts. The field has to be there."""
        if isinstance(raw, Mapping):
            if len(raw) != 1 or (name := next(iter(raw))) not in (
                "prefix", "suffix", "wildcard", "equals-ignore-case", "cidr",
            ):  # fmt: skip
                raise BadRequest(
                    f"{place}: values are expected, or one operator on texts",
                    hint="one of: prefix, suffix, wildcard, equals-ignore-case, cidr",
                )
            operands = raw[name] if isinstance(raw[name], list) else [raw[name]]
            refused: list[Any] = [{name: operand} for operand in operands]
        else:
            refused = raw if isinstance(raw, list) else [raw]
            if any(isinstance(each, Mapping | list) for each in refused):
                raise BadRequest(f"{place}: single values are expected", hint='or {"prefix": [TEXT, …]}')
        if not refused:
            raise BadRequest(f"{place}: an empty array; use exists")
        self._alternatives += len(refused)
        self._check_count(place)
        leaf = Leaf(
            place,
            "payload",
            "",
            [self._alternative(each, f"{place}[{i}]", is_text=is_text) for i, each in enumerate(refused)],
        )
        accepts = leaf.accepts
        return lambda value: not accepts(value)


def _check_literal(raw: Any, place: str, *, is_text: bool) -> None:
    if isinstance(raw, str):
        _text(raw, place)
    elif is_text:
        raise BadRequest(
            f"{place}: keys and headers are text, so text is expected, not {describe(raw)}",
            hint='as in ["5"], or {"numeric": ["=", 5]}, which reads the text as a number',
        )
    elif raw is not None and type(raw) not in (bool, int, float):
        raise BadRequest(f"{place}: text, a number, true, false or null is expected, not {describe(raw)}")
    elif not isinstance(raw, bool | None) and not _is_sound(raw):
        raise BadRequest(f"{place}: {describe(raw)} is no number that fits into 64 bits")


def _is_sound(number: float) -> bool:
    """Neither infinite, nor NaN, nor too large to be written in a document."""
    return -(1 << 63) <= number < 1 << 63 if isinstance(number, int) else number - number == 0


def _text(raw: Any, place: str) -> str:
    if not isinstance(raw, str):
        raise BadRequest(f"{place}: text is expected, not {describe(raw)}")
    if len(raw) > LONGEST_TEXT:
        raise BadRequest(f"{place}: {len(raw):,} characters, allowed are {LONGEST_TEXT}")
    return raw


def _begins(given: str) -> Test:
    return lambda value: type(value) is str and value.startswith(given)


def _ends(given: str) -> Test:
    return lambda value: type(value) is str and value.endswith(given)


def _begins_folded(given: str) -> Test:
    folded = given.casefold()
    return lambda value: type(value) is str and value.casefold().startswith(folded)


def _ends_folded(given: str) -> Test:
    folded = given.casefold()
    return lambda value: type(value) is str and value.casefold().endswith(folded)


def _wildcard(raw: Any, place: str) -> Test:
    """``*`` is any text, also none; ``\\*`` and ``\\\\`` are these characters themselves."""
    pieces, at, given = [""], 0, _text(raw, place)
    while at < len(given):
        letter = given[at]
        if letter == "\\":
            at += 1
            if at == len(given) or given[at] not in "*\\":
                raise BadRequest(f"{place}: a backslash stands before '*' or another backslash only")
            pieces[-1] += given[at]
        elif letter == "*":
            pieces.append("")
        else:
            pieces[-1] += letter
        at += 1
    if len(pieces) - 1 > MOST_STARS:
        raise BadRequest(f"{place}: {len(pieces) - 1} stars, allowed are {MOST_STARS}")
    first, *middle = pieces
    last = middle.pop() if middle else None

    def test(value: Any) -> bool:
        if type(value) is not str:
            return False
        if last is None:
            return bool(value == first)
        if len(value) < len(first) + len(last) or not value.startswith(first) or not value.endswith(last):
            return False
        # The leftmost place of each piece leaves the most room for the next: no need to try others.
        at, end = len(first), len(value) - len(last)
        for piece in middle:
            at = value.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return test


def _numeric(raw: Any, place: str, *, is_text: bool) -> Test:
    hint = 'as in {"numeric": [">", 0, "<=", 5]}'
    if not isinstance(raw, list) or len(raw) not in (2, 4):
        raise BadRequest(f"{place}: one or two comparisons are expected, not {describe(raw)}", hint=hint)
    comparisons = []
    for at in range(0, len(raw), 2):
        sign, number = raw[at], raw[at + 1]
        if not isinstance(sign, str) or sign not in _COMPARISONS:
            raise BadRequest(
                f"{place}[{at}]: one of {', '.join(_COMPARISONS)} is expected, not {describe(sign)}",
                hint=hint,
            )
        if not is_number(number) or not _is_sound(number):
            raise BadRequest(f"{place}[{at + 1}]: a number is expected, not {describe(number)}", hint=hint)
        comparisons.append((_COMPARISONS[sign], number))
    checks = tuple(comparisons)

    if len(checks) == 1 and not is_text:
        [(compare, bound)] = checks
        return lambda value: type(value) in (int, float) and compare(value, bound)

    def test(value: Any) -> bool:
        if is_text:
            value = _number_in(value)
        return type(value) in (int, float) and all(compare(value, number) for compare, number in checks)

    return test


def _number_in(text: str) -> Any:
    """The number that a text is in JSON; None for other texts."""
    try:
        return msgspec.json.decode(text) if len(text) <= LONGEST_TEXT else None
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None


def _cidr(raw: Any, place: str) -> Test:
    try:
        network = ipaddress.ip_network(_text(raw, place))
    except ValueError as error:
        raise BadRequest(f"{place}: {error}", hint='as in "10.0.0.0/24" or "2001:db8::/32"') from None
    version = network.version

    def test(value: Any) -> bool:
        if type(value) is not str or len(value) > 64:
            return False
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            return False
        return address.version == version and address in network

    return test


# -- the canonical form ----------------------------------------------------------------------------------


def canonical_pattern(match: Mapping[str, Any]) -> dict[str, Any]:
    """The same pattern with its alternatives in order and each once, and with numbers written in one way.
    Raises BadRequest for what is no pattern."""
    MessagePattern(match)
    return _canonical_object(match)


def _canonical_object(raw: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in raw.items():
        if name == OR:
            result[name] = _sorted([_canonical_object(each) for each in value])
        elif isinstance(value, Mapping):
            result[name] = _canonical_object(value)
        else:
            result[name] = _sorted([_canonical_alternative(each) for each in value])
    return result


def _canonical_alternative(raw: Any) -> Any:
    if not isinstance(raw, Mapping):
        return _canonical_number(raw)
    [(name, operand)] = raw.items()
    if name == "numeric":
        pairs = _sorted(
            [[operand[at], _canonical_number(operand[at + 1])] for at in range(0, len(operand), 2)]
        )
        return {name: [each for pair in pairs for each in pair]}
    if name == "anything-but":
        if isinstance(operand, Mapping):
            [(inner, given)] = operand.items()
            return {name: {inner: _sorted(given if isinstance(given, list) else [given])}}
        given = operand if isinstance(operand, list) else [operand]
        return {name: _sorted(list(map(_canonical_number, given)))}
    return dict(raw)


def _canonical_number(raw: Any) -> Any:
    if isinstance(raw, float) and raw.is_integer() and abs(raw) < 1 << 53:
        return int(raw)
    return raw


def _sorted(values: list[Any]) -> list[Any]:
    """In the order of their JSON, each once."""
    try:
        known = {_encode_sorted(each): each for each in values}
    except UnicodeEncodeError as error:
        raise BadRequest(f"the pattern can't be written as JSON: {error}") from None
    return [known[text] for text in sorted(known)]
