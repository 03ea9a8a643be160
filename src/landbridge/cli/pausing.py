"""Pauses, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from landbridge.cli import output, units

if TYPE_CHECKING:
    from landbridge.core.pauses import PauseNote


def told(pause: PauseNote | None) -> str:
    """Since when, by whom and why; empty while nothing is paused."""
    if pause is None:
        return ""
    since = units.ago(pause.paused_at) if output.on_terminal() else units.iso(pause.paused_at)
    return f"{since}, {pause.told}"


def with_pause(row: Any) -> dict[str, Any]:
    """A row of a list, with its pause in words."""
    return output.fields(row, paused=told(row.pause))
