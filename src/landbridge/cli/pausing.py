"""Pauses, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from landbridge.cli import output, units
from landbridge.cli.output import TableColumn, columns

if TYPE_CHECKING:
    from landbridge.core.pauses import PauseNote

#: In lists in which something is paused.
COLUMN = columns("Paused@yellow")


def told(pause: PauseNote | None) -> str:
    """Since when, by whom and why; empty while nothing is paused."""
    if pause is None:
        return ""
    since = units.ago(pause.paused_at) if output.on_terminal() else units.iso(pause.paused_at)
    return f"{since}, {pause.told}"


def with_pause(row: Any) -> dict[str, Any]:
    """A row of a list, with its pause in words."""
    return output.fields(row, paused=told(row.pause))


def and_paused(shown: Sequence[TableColumn], rows: Sequence[Any]) -> list[TableColumn]:
    """The columns of a list, and one more where something is paused."""
    return [*shown, *(COLUMN if any(row.pause is not None for row in rows) else ())]
