"""The stage ``validate``: each message against the schema of its event type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol

import msgspec

from landbridge.core.log.batch import HeaderValue
from landbridge.core.middleware.event_types import (
    DEFAULT,
    TYPE_HEADERS,
    VERSION_HEADERS,
    EventType,
    type_of,
    version_of,
)
from landbridge.core.middleware.rows import BatchRows
from landbridge.core.middleware.schema import Checker, compile_schema, first_error, is_explained_here
from landbridge.core.middleware.weight import (
    CHECKED_BY_PROCESS,
    CHECKED_HERE,
    COMPILED_HERE,
    SchemaWeight,
    is_large,
    weigh,
)
from landbridge.errors import UnknownType

#: Messages that the other process checks in one go where nobody knows what that costs.
UNWEIGHED = 8
_HINT = "change the message, or register a schema that takes it"


class Misfit(NamedTuple):
    """A payload that doesn't fit its schema: which of those that were asked, the field, why, and a hint."""

    at: int
    field: str
    reason: str
    hint: str


class ChecksByProcess(Protocol):
    """Another process, which checks what may take long."""

    def first_misfit(self, schema: bytes, payloads: list[bytes]) -> Misfit | None: ...


class WeighedSchema:
    """A schema of a topic, with what its checks may cost."""

    def __init__(self, schema: dict[str, Any] | bool) -> None:
        self.encoded = msgspec.json.encode(schema)
        self.weight: SchemaWeight | None = None
        self._checker: Checker | None = None
        if not is_large(schema):
            self.weight = weigh(schema)
            if self.weight.compiling <= COMPILED_HERE:
                self._checker = compile_schema(schema)

    @property
    def checker(self) -> Checker:
        """For what is checked here."""
        assert self._checker is not None
        return self._checker

    def units(self, count: int, size: int) -> int | None:
        """What the checks of so many messages cost together at most, which have this size together. None:
        the other process makes them in any case."""
        if self._checker is None or self.weight is None:
            return None
        return count * self.weight.fixed + size * self.weight.per_byte


class TopicSchemas:
    """The schemas of a topic. One is compiled when the first message asks for it."""

    def __init__(self, types: Mapping[str, EventType]) -> None:
        self._types = types
        self._weighed: dict[tuple[str, int], WeighedSchema] = {}

    @property
    def names(self) -> list[str]:
        """The types that are listed."""
        return sorted(self._types)

    def find(self, type: str, version: int | None) -> WeighedSchema:
        """UnknownType where the topic doesn't list it."""
        if type not in self._types:
            raise UnknownType(f"the topic doesn't list the type {type[:60]!r}")
        found = self._types[type].find(version)
        schema = self._weighed.get((type, found.version))
        if schema is None:
            schema = self._weighed[type, found.version] = WeighedSchema(found.schema)
        return schema


class RowsPart(NamedTuple):
    """Messages that are checked in one go: here, or by the other process, which blocks."""

    lo: int
    hi: int
    by_process: bool


class ToBeExplained(Exception):
    """A message doesn't fit, and to say where may take long. ``tell`` raises the refusal; it blocks."""

    def __init__(self, tell: Callable[[], NoReturn]) -> None:
        super().__init__()
        self.tell = tell


class Validation:
    """The stage at work."""

    def __init__(self, schemas: TopicSchemas, checking: ChecksByProcess, *, refuses_unlisted: bool) -> None:
        self._schemas = schemas
        self._checking = checking
        self._refuses = refuses_unlisted
        #: The schemas of the messages of a slice that name their types, for ``work``.
        self._found: dict[int, WeighedSchema | None] = {}

    def parts(self, rows: BatchRows, lo: int, hi: int) -> Iterator[RowsPart]:
        """Divide messages into parts that ``work`` takes one after the other."""
        self._found.clear()
        sizes = list(map(len, rows.payloads[lo:hi]))
        names_types = rows.may_have_header(b"type")
        if not names_types and (step := self._step(max(sizes))):
            for begin in range(lo, hi, step):
                yield RowsPart(begin, min(begin + step, hi), False)
            return
        begin, total, last = lo, 0, None
        for at, size in enumerate(sizes, lo):
            schema = self._note_schema(at, rows.headers(at) if names_types else {})
            units = 0 if schema is None else schema.units(1, size)
            # The other process checks those of one schema together.
            dear = schema if units is None or units > CHECKED_HERE else None
            cost = CHECKED_BY_PROCESS // UNWEIGHED if units is None else units
            most = CHECKED_HERE if dear is None else CHECKED_BY_PROCESS
            if at > begin and (dear is not last or total + cost > most):
                yield RowsPart(begin, at, last is not None)
                begin, total = at, 0
            total, last = total + cost, dear
        yield RowsPart(begin, hi, last is not None)

    def _step(self, size: int) -> int:
        """How many messages that name no type are checked here in one go, where none is larger than this; 0:
        one is for the other process."""
        try:
            units = self._schemas.find(DEFAULT, None).units(1, size)
        except UnknownType:
            units = 1
        return 0 if units is None else CHECKED_HERE // units

    def _note_schema(self, at: int, headers: dict[str, HeaderValue]) -> WeighedSchema | None:
        """The schema of a message with these headers; None where it has none or names one that isn't there,
        which ``work`` tells."""
        try:
            self._found[at] = self._schemas.find(type_of(headers), version_of(headers))
        except UnknownType:
            return None
        return self._found[at]

    def work(self, rows: BatchRows, lo: int, hi: int, *, by_process: bool = False) -> None:
        """InvalidMessage for the first message that doesn't fit."""
        if by_process:
            self._work_by_process(rows, lo, hi)
            return
        if not rows.may_have_header(b"type"):
            schema = self._find(rows, lo, DEFAULT, None)
            if schema is not None:
                self._check_all(rows, lo, hi, schema)
            return
        for at in range(lo, hi):
            schema = self._found.get(at)
            if schema is None:
                headers = rows.headers(at)
                schema = self._find(rows, at, type_of(headers), version_of(headers))
            # Message by message: one that isn't checked need not be JSON.
            if schema is not None and not schema.checker.is_valid(value := rows.value(at)):
                self._refuse(rows, at, schema, value)

    def _work_by_process(self, rows: BatchRows, lo: int, hi: int) -> None:
        schema = self._found[lo]
        assert schema is not None
        payloads = [rows.payload_now(at) for at in range(lo, hi)]
        misfit = self._checking.first_misfit(schema.encoded, payloads)
        if misfit is not None:
            rows.refuse(lo + misfit.at, misfit.field, misfit.reason, hint=misfit.hint or _HINT)

    def _check_all(self, rows: BatchRows, lo: int, hi: int, schema: WeighedSchema) -> None:
        fits = schema.checker.is_valid
        if not rows.all_fit(lo, hi, fits):
            for at, value in enumerate(rows.values(lo, hi), lo):
                if not fits(value):
                    self._refuse(rows, at, schema, value)

    def _refuse(self, rows: BatchRows, at: int, schema: WeighedSchema, value: Any) -> NoReturn:
        size = len(rows.payloads[at])
        if is_explained_here(schema.checker, size):
            field, reason = first_error(schema.checker, value, size)
            rows.refuse(at, field, reason, hint=_HINT)
        raise ToBeExplained(partial(self._refuse_by_process, rows, at, schema, rows.payload_now(at)))

    def _refuse_by_process(self, rows: BatchRows, at: int, schema: WeighedSchema, payload: bytes) -> NoReturn:
        misfit = self._checking.first_misfit(schema.encoded, [payload])
        field, reason = ("", "it doesn't fit the schema") if misfit is None else misfit[1:3]
        rows.refuse(at, field, reason, hint=_HINT)

    def _find(self, rows: BatchRows, at: int, type: str, version: int | None) -> WeighedSchema | None:
        try:
            return self._schemas.find(type, version)
        except UnknownType as error:
            if not self._refuses and type not in self._schemas.names:
                return None
            if type in self._schemas.names:
                rows.refuse(
                    at, f"headers/{VERSION_HEADERS[1]}", f"of the type {type[:60]!r} {error}", hint=error.hint
                )
            listed = ", ".join(self._schemas.names[:10]) or "none"
            rows.refuse(
                at, f"headers/{TYPE_HEADERS[1]}",
                str(error) if type != DEFAULT else f"it names no type: {error}",
                hint=f"the topic lists these types: {listed}; 'landbridge type register' adds one",
            )  # fmt: skip
