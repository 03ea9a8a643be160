"""Damage: what could not be read when the terminal was opened. Each finding is told once and concerns one
topic, group or document; everything else starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from landbridge.core.status import StatusLog
from landbridge.errors import BusError, StoreCorrupt

T = TypeVar("T")
log = structlog.get_logger("landbridge.terminal")


def decoded(what: str, decode: Callable[[Any], T], raw: Any, hint: str = "") -> T:
    """Decode what was stored. StoreCorrupt, whatever the decoder makes of bytes that nobody wrote."""
    try:
        return decode(raw)
    except Exception as error:
        raise StoreCorrupt(f"{what} doesn't decode: {error}", hint=hint) from None


class Damage:
    """What was found damaged since the start."""

    def __init__(self, status: StatusLog, clock: Callable[[], int]) -> None:
        self._status, self._clock = status, clock
        self.found: list[str] = []

    def note(self, what: str, hint: str = "", *, topic: str = "", group: str = "") -> None:
        self.found.append(what)
        where = {name: value for name, value in (("topic", topic), ("group", group)) if value}
        # A warning where all is repaired; an error asks for somebody to do something.
        (log.error if hint else log.warning)("damage", detail=what, hint=hint, **where)
        detail = f"{what}; {hint}" if hint else what
        self._status.note(
            self._clock(), "damage", topic=topic, group=group, cause=StoreCorrupt.code, detail=detail
        )

    def decode(
        self,
        what: str,
        decode: Callable[[Any], T],
        raw: Any,
        otherwise: T,
        hint: str,
        *,
        topic: str = "",
        group: str = "",
    ) -> T:
        """Decode what was stored, or note that it is damaged and return something else."""
        try:
            return decoded(what, decode, raw)
        except BusError as error:
            self.note(str(error), hint, topic=topic, group=group)
            return otherwise
