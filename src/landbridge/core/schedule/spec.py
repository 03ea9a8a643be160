"""The options of a schedule. Apart from the rest of schedules, because clients read them, too, and have no
library for crontab expressions."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

#: What becomes of a firing while the message of the one before is not settled in every group of the topic.
Overlap: TypeAlias = Literal["skip", "buffer-one", "buffer-all", "allow"]
#: Seconds that a firing may be late.
CATCH_UP = 600.0


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is published when."""

    topic: str
    name: str
    #: See ``landbridge.core.schedule.timetable``.
    when: str
    zone: str = "UTC"
    #: A text is sent as it is, anything else as JSON.
    payload: Any = None
    key: str | None = None
    headers: dict[str, str] = {}
    priority: int = 0
    overlap: Overlap = "skip"
    #: Seconds that a firing may be late; a later one is missed.
    catch_up: float = CATCH_UP
    #: Each firing is delayed by a span of its own, between 0 and so many seconds.
    jitter: float = 0.0
