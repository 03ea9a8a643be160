"""The index of partial rules: which of them may match a message, by one walk over its fields.

Each rule is entered under a few anchors, one of which each of its matches has: values of a field where there
are some, otherwise the field itself. The index finds candidates. The rule's pattern then decides, unless it
has one leaf.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from landbridge.core.rules.content import MessageContent
from landbridge.core.rules.pattern import Anchor, MessagePattern

#: Rule id → whether the anchor alone decides that the rule matches.
Entries = dict[str, bool]

#: Rules that are added again without asking whether they were.
FEW = 4
#: So many leaves with an anchor make it a common one.
COMMON = 8
#: What an anchor costs besides the rules that are under it already: each message looks at more of them.
_COSTS = {"equal": 0, "folded": 2, "prefix": 4, "suffix": 4, "present": 64}


class _Values:
    """The rules that look at the values of one field."""

    __slots__ = ("equal", "folded", "prefix", "present", "suffix")

    def __init__(self) -> None:
        self.equal: dict[Any, Entries] = {}
        #: By the text in folded case.
        self.folded: dict[str, Entries] = {}
        #: Length → text of that length → rules.
        self.prefix: dict[int, dict[str, Entries]] = {}
        self.suffix: dict[int, dict[str, Entries]] = {}
        self.present: Entries = {}

    def entries(self, anchor: Anchor) -> Entries | None:
        if anchor.how == "present":
            return self.present
        table: Mapping[Any, Entries] = (
            getattr(self, anchor.how)
            if anchor.how in ("equal", "folded")
            else getattr(self, anchor.how).get(len(anchor.value), {})
        )
        return table.get(anchor.value)

    def enter(self, anchor: Anchor, id: str, *, decides: bool) -> None:
        entries = self.entries(anchor)
        if entries is None:
            table = getattr(self, anchor.how)
            if anchor.how in ("prefix", "suffix"):
                table = table.setdefault(len(anchor.value), {})
            entries = table.setdefault(anchor.value, {})
        entries[id] = decides

    def leave(self, anchor: Anchor, id: str) -> None:
        entries = self.entries(anchor)
        if entries is None:
            return
        entries.pop(id, None)
        if entries or anchor.how == "present":
            return
        table = getattr(self, anchor.how)
        if anchor.how in ("prefix", "suffix"):
            lengths, length = table, len(anchor.value)
            table = lengths[length]
            if len(table) == 1:
                del lengths[length]
        table.pop(anchor.value, None)

    def is_empty(self) -> bool:
        return not (self.equal or self.folded or self.prefix or self.suffix or self.present)

    def look(self, value: Any, found: Entries, seen: set[int]) -> None:
        """Add the rules that look for this value. ``seen``: tables of many rules that were added for this
        message already, by their ``id``; an array may have a value a hundred thousand times."""
        if self.present:
            _add(self.present, found, seen)
        entries = self.equal.get((value,) if type(value) is bool else value)
        if entries:
            _add(entries, found, seen)
        if type(value) is str:
            if self.folded and (entries := self.folded.get(value.casefold())):
                _add(entries, found, seen)
            if self.prefix:
                for length in _lengths(self.prefix, len(value)):
                    if entries := self.prefix[length].get(value[:length]):
                        _add(entries, found, seen)
            if self.suffix:
                for length in _lengths(self.suffix, len(value)):
                    if entries := self.suffix[length].get(value[-length:] if length else ""):
                        _add(entries, found, seen)


def _lengths(tables: dict[int, dict[str, Entries]], most: int) -> Iterable[int]:
    """The lengths up to a most that there are tables of. It takes no more steps than the text has letters."""
    if len(tables) > most:
        return [length for length in range(most + 1) if length in tables]
    return [length for length in tables if length <= most]


def _add(entries: Entries, found: Entries, seen: set[int]) -> None:
    if len(entries) > FEW:
        if id(entries) in seen:
            return
        seen.add(id(entries))
    for rule, decides in entries.items():
        if decides or rule not in found:
            found[rule] = decides


class _Field:
    """A name in the paths of anchors: the fields below it, and the rules that look at its values."""

    __slots__ = ("below", "values")

    def __init__(self) -> None:
        self.below: dict[str, _Field] = {}
        self.values: _Values | None = None


class FieldIndex:
    """The anchors of all partial rules."""

    def __init__(self) -> None:
        self._roots = {"payload": _Field(), "headers": _Field(), "key": _Field()}
        #: Rules without an anchor: they look for what is missing.
        self._others: Entries = {}
        #: Rule id → its anchors.
        self._anchors: dict[str, list[Anchor]] = {}
        self._patterns: dict[str, MessagePattern] = {}
        #: How many leaves have each anchor, whether a rule is entered under it or not.
        self._mentions: dict[Anchor, int] = {}

    def add(self, id: str, pattern: MessagePattern) -> None:
        self._patterns[id] = pattern
        common = []
        for anchor in pattern.root.anchors(()):
            mentions = self._mentions[anchor] = self._mentions.get(anchor, 0) + 1
            if mentions == COMMON:
                common.append(anchor)
        self._enter(id, pattern)
        # The first rules with this value were entered when nobody knew that many have it.
        for anchor in common:
            for other in [*(self._entries(anchor) or ())]:
                self._withdraw(other)
                self._enter(other, self._patterns[other])

    def _enter(self, id: str, pattern: MessagePattern) -> None:
        anchors = pattern.root.cover((), self._cost)
        if anchors is None:
            self._others[id] = False
            return
        self._anchors[id] = anchors
        for anchor in anchors:
            field = self._roots[anchor.source]
            for name in anchor.path:
                field = field.below.setdefault(name, _Field())
            if field.values is None:
                field.values = _Values()
            decides = pattern.is_one_leaf and anchor.how != "present"
            field.values.enter(anchor, id, decides=decides)

    def remove(self, id: str) -> None:
        for anchor in self._patterns.pop(id).root.anchors(()):
            mentions = self._mentions[anchor] - 1
            if mentions:
                self._mentions[anchor] = mentions
            else:
                del self._mentions[anchor]
        self._withdraw(id)

    def _withdraw(self, id: str) -> None:
        if id in self._others:
            del self._others[id]
            return
        for anchor in self._anchors.pop(id):
            self._leave(self._roots[anchor.source], anchor, 0, id)

    def _leave(self, field: _Field, anchor: Anchor, depth: int, id: str) -> None:
        if depth == len(anchor.path):
            if field.values is not None:
                field.values.leave(anchor, id)
                if field.values.is_empty():
                    field.values = None
            return
        name = anchor.path[depth]
        below = field.below.get(name)
        if below is not None:
            self._leave(below, anchor, depth + 1, id)
            if not below.below and below.values is None:
                del field.below[name]

    def _cost(self, anchor: Anchor) -> int:
        """How many rules a message that has the anchor would find, about. An anchor that many rules have
        already is a bad one: of a type and a customer, the customer."""
        return 1 + _COSTS[anchor.how] + self._mentions.get(anchor, 0)

    def _entries(self, anchor: Anchor) -> Entries | None:
        field: _Field | None = self._roots[anchor.source]
        for name in anchor.path:
            field = field.below.get(name) if field is not None else None
        return None if field is None or field.values is None else field.values.entries(anchor)

    def candidates(self, content: MessageContent) -> Entries:
        """The rules that may match a message. What is True of a rule is that it does."""
        found, seen = dict(self._others), set[int]()
        roots = self._roots
        if roots["payload"].below:
            _walk(roots["payload"], content.document, found, seen)
        if content.headers and roots["headers"].below:
            _walk(roots["headers"], content.headers, found, seen)
        if content.key is not None and (field := roots["key"].below.get("")) is not None:
            _walk(field, content.key, found, seen)
        return found


def _walk(field: _Field, value: Any, found: Entries, seen: set[int]) -> None:
    kind = type(value)
    if kind is dict:
        below = field.below
        if len(below) <= len(value):
            for name, each in below.items():
                if name in value:
                    _walk(each, value[name], found, seen)
        else:
            for name, inner in value.items():
                known = below.get(name)
                if known is not None:
                    _walk(known, inner, found, seen)
    elif kind is list:
        for each in value:
            _walk(field, each, found, seen)
    elif field.values is not None:
        field.values.look(value, found, seen)
