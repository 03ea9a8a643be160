"""Retention: up to which offset a log may forget.

The safe rule is the default: nothing that a group has still to settle is removed, whatever the age and size
limits say; a topic that fills up refuses publishes instead (``max_backlog``). A topic may opt out with
``discard="any"``, as is usual for telemetry: then age and size win, and the groups skip what is gone.
"""

from __future__ import annotations

import msgspec


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages a topic removes."""

    #: Remove a message as soon as every group has settled it (a topic without groups keeps its messages).
    settled: bool = False
    #: Seconds; None = for ever.
    max_age: float | None = 7 * 86400.0
    #: Bytes of stored batches; None = no limit.
    max_bytes: int | None = None
    #: "settled": age and size remove only what all groups have settled. "any": they remove regardless.
    discard: str = "settled"


def trim_point(
    retention: Retention, *, settled_to: int | None, first: int, end: int, aged_to: int, sized_to: int
) -> int:
    """Everything below the answer may go.

    settled_to: lowest floor of the groups, None where there is no group. aged_to, sized_to: below which
    offset the age and the size limit would remove (``first`` where they wouldn't)."""
    point = first
    floor = end if settled_to is None else settled_to
    if retention.settled and settled_to is not None:
        point = max(point, settled_to)
    limit = max(aged_to, sized_to)
    if retention.discard != "any":
        limit = min(limit, floor)
    return min(end, max(point, limit))
