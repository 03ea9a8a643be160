"""The stage ``redact``: fields, headers and pieces of text are replaced or taken away.

A payload that is no JSON has no fields. Where fields or patterns are named, such a payload is refused before
storing; before delivery the replacement stands in its place, because nobody can tell what it holds. Patterns
are searched in all texts of a payload and in all headers that are text, names left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from landbridge.core.middleware.rows import BatchRows
from landbridge.core.middleware.spec import RedactStage
from landbridge.errors import BadRequest, InvalidMessage

if TYPE_CHECKING:
    import re2

#: Bytes that the automaton of one expression may take.
EXPRESSION_MEMORY = 1 << 20
#: What the names of the bus's own headers begin with. A pattern isn't searched in them: replies go by them.
OWN = "lb-"
#: What stands in the place of each element.
EACH = "*"


class Redaction:
    """The stage at work. BadRequest where a pointer or a pattern is none."""

    def __init__(self, spec: RedactStage) -> None:
        self._spec = spec
        self._paths = [parse_pointer(field) for field in spec.fields]
        self._headers = frozenset(name.lower() for name in spec.headers)
        self._patterns = [_compile(pattern) for pattern in spec.patterns]
        self._is_late = spec.at == "deliver"

    def work(self, rows: BatchRows, lo: int, hi: int) -> None:
        """InvalidMessage where a payload is no JSON, unless messages are delivered."""
        if (self._headers or self._patterns) and rows.may_have_header(b""):
            for at in range(lo, hi):
                self._redact_headers(rows, at)
        if not self._paths and not self._patterns:
            return
        for at in range(lo, hi):
            try:
                value = rows.value(at) if self._is_late else rows.values(lo, hi)[at - lo]
            except InvalidMessage:
                if not self._is_late:
                    raise
                rows.set_payload(at, (self._spec.replacement or "").encode())
                continue
            changed, value = self._redact(value)
            if changed:
                rows.set_value(at, value)

    def _redact_headers(self, rows: BatchRows, at: int) -> None:
        headers = rows.headers(at)
        after = {}
        for name, value in headers.items():
            if name.lower() in self._headers:
                if self._spec.replacement is None:
                    continue
                value = self._spec.replacement
            elif isinstance(value, str) and not name.startswith(OWN):
                value = self._in_text(value)
            after[name] = value
        if after != headers:
            rows.set_headers(at, after)

    def _redact(self, value: Any) -> tuple[bool, Any]:
        """Whether the value is changed, and what it is now."""
        changed = False
        for path in self._paths:
            if not path:
                return True, self._spec.replacement
            changed |= self._at(value, path, 0)
        if self._patterns:
            found, value = self._in_texts(value)
            changed |= found
        return changed, value

    def _at(self, value: Any, path: list[str], depth: int) -> bool:
        part, is_last = path[depth], depth == len(path) - 1
        keys: list[Any]
        if isinstance(value, dict):
            keys = list(value) if part == EACH else [part] if part in value else []
        elif isinstance(value, list):
            if part == EACH:
                keys = list(range(len(value)))
            else:
                keys = [int(part)] if _is_index(part) and int(part) < len(value) else []
        else:
            return False
        changed = False
        # From the end, so that what is taken out of a list moves nothing that comes later here.
        for key in reversed(keys):
            if not is_last:
                changed |= self._at(value[key], path, depth + 1)
                continue
            changed = True
            if self._spec.replacement is None:
                del value[key]
            else:
                value[key] = self._spec.replacement
        return changed

    def _in_texts(self, value: Any) -> tuple[bool, Any]:
        if isinstance(value, str):
            text = self._in_text(value)
            return text != value, text
        changed = False
        if isinstance(value, dict | list):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(inner, str | dict | list):
                    found, inner = self._in_texts(inner)
                    if found:
                        value[key] = inner
                        changed = True
        return changed, value

    def _in_text(self, text: str) -> str:
        for replace in self._patterns:
            text = replace(self._spec.replacement or "", text)
        return text


def parse_pointer(text: str) -> list[str]:
    """The parts of a JSON pointer. BadRequest where it is none."""
    if text and not text.startswith("/"):
        hint = "as /customer/name or /lines/*/card"
        raise BadRequest(f"redact: the field {text[:60]!r} is no JSON pointer", hint=hint)
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) < 10


def _compile(pattern: str) -> Callable[[str, str], str]:
    import re2

    options: re2.Options = re2.Options()
    options.max_mem = EXPRESSION_MEMORY
    options.log_errors = False
    try:
        found = re2.compile(pattern, options=options)
    except re2.error as error:
        hint = "the syntax is RE2's"
        raise BadRequest(f"redact: the pattern {pattern[:60]!r}: {error}", hint=hint) from None
    # As a function, so that the replacement's backslashes mean nothing.
    return lambda replacement, text: str(found.sub(lambda _: replacement, text))
