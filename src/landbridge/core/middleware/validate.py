"""The stage ``validate``: each message against the schema of its event type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from landbridge.core.middleware.event_types import (
    DEFAULT,
    TYPE_HEADERS,
    VERSION_HEADERS,
    EventType,
    type_of,
    version_of,
)
from landbridge.core.middleware.rows import BatchRows
from landbridge.core.middleware.schema import Checker, compile_schema, first_error
from landbridge.errors import UnknownType


class Checkers:
    """The compiled schemas of a topic. A schema is compiled when the first message asks for it."""

    def __init__(self, types: Mapping[str, EventType]) -> None:
        self._types = types
        self._compiled: dict[tuple[str, int], Checker] = {}

    @property
    def names(self) -> list[str]:
        """The types that are listed."""
        return sorted(self._types)

    def find(self, type: str, version: int | None) -> Checker:
        """UnknownType where the topic doesn't list it."""
        if type not in self._types:
            raise UnknownType(f"the topic doesn't list the type {type[:60]!r}")
        found = self._types[type].find(version)
        checker = self._compiled.get((type, found.version))
        if checker is None:
            checker = self._compiled[type, found.version] = compile_schema(found.schema)
        return checker


class Validation:
    """The stage at work."""

    def __init__(self, checkers: Checkers, *, refuses_unlisted: bool) -> None:
        self._checkers = checkers
        self._refuses = refuses_unlisted

    def work(self, rows: BatchRows, lo: int, hi: int) -> None:
        """InvalidMessage for the first message that doesn't fit."""
        if not rows.may_have_header(b"type"):
            checker = self._find(rows, lo, DEFAULT, None)
            if checker is not None:
                self._check_all(rows, lo, hi, checker)
            return
        for at in range(lo, hi):
            headers = rows.headers(at)
            checker = self._find(rows, at, type_of(headers), version_of(headers))
            # Message by message: one that isn't checked need not be JSON.
            if checker is not None and not checker.is_valid(value := rows.value(at)):
                _refuse(rows, at, checker, value)

    def _check_all(self, rows: BatchRows, lo: int, hi: int, checker: Checker) -> None:
        if not rows.all_fit(lo, hi, checker.is_valid):
            for at, value in enumerate(rows.values(lo, hi), lo):
                if not checker.is_valid(value):
                    _refuse(rows, at, checker, value)

    def _find(self, rows: BatchRows, at: int, type: str, version: int | None) -> Checker | None:
        try:
            return self._checkers.find(type, version)
        except UnknownType as error:
            if not self._refuses and type not in self._checkers.names:
                return None
            if type in self._checkers.names:
                rows.refuse(
                    at, f"headers/{VERSION_HEADERS[1]}", f"of the type {type[:60]!r} {error}", hint=error.hint
                )
            listed = ", ".join(self._checkers.names[:10]) or "none"
            rows.refuse(
                at, f"headers/{TYPE_HEADERS[1]}",
                str(error) if type != DEFAULT else f"it names no type: {error}",
                hint=f"the topic lists these types: {listed}; 'landbridge type register' adds one",
            )  # fmt: skip


def _refuse(rows: BatchRows, at: int, checker: Checker, value: Any) -> None:
    field, reason = first_error(checker, value, len(rows.payloads[at]))
    rows.refuse(at, field, reason, hint="change the message, or register a schema that takes it")
