"""Middleware on a command line: stages as names, as JSON, or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from landbridge.core.middleware.spec import AnyStage

NONE = "none"
HINT = (
    'a name (\'validate\', \'compress\'), an object (\'{"stage": "redact", "fields": ["/card"]}\'), '
    "@FILE, or 'none'"
)


def read_stages(values: Sequence[str]) -> list[dict[str, Any]]:
    """The stages that options name, in their order. A value is the name of a stage, a JSON object, a JSON
    array of such, '@FILE' for a file with one of these, or 'none'."""
    if list(values) == [NONE]:
        return []
    stages: list[dict[str, Any]] = []
    for value in values:
        found: Any = value
        if value.startswith("@"):
            try:
                found = Path(value[1:]).read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise BadRequest(f"middleware: {value[1:]} can't be read: {error}") from None
        if found.lstrip()[:1] in ("{", "["):
            try:
                found = msgspec.json.decode(found)
            except msgspec.DecodeError as error:
                raise BadRequest(f"middleware: {value[:60]!r} is no JSON: {error}", hint=HINT) from None
        else:
            found = {"stage": found.strip()}
        for stage in found if isinstance(found, list) else [found]:
            if not isinstance(stage, dict):
                raise BadRequest(f"middleware: {str(stage)[:60]!r} is no stage", hint=HINT)
            stages.append(stage)
    return stages


def show_stages(stages: Sequence[AnyStage]) -> str:
    """The stages on one line, each with the options that are not as by default."""
    from landbridge.core.middleware.spec import name_of

    shown = []
    for stage in stages:
        fields = msgspec.structs.fields(stage)
        values = {field.name: getattr(stage, field.name) for field in fields}
        said = {field.name: values[field.name] for field in fields if values[field.name] != _default(field)}
        options = f" {msgspec.json.encode(said).decode()}" if said else ""
        shown.append(f"{name_of(stage)}{options}")
    return ", ".join(shown)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
