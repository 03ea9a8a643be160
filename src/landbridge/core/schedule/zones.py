"""Time zones of the IANA database, and local times that exist twice or not at all.

The database is read from the system or from the package ``tzdata``, once for each zone. That is the only
reading in ``core``, and it depends on nothing but the name.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from landbridge.core.time import SECOND
from landbridge.errors import BadRequest

#: A moment of the bus is a number of microseconds since this one.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")
#: Files beside the zones: of other databases, of this machine, and one that stands for no zone.
_NO_ZONES = re.compile(r"(posix|right)/.*|localtime|posixrules|Factory", re.IGNORECASE)


def read_zone(name: str) -> tzinfo:
    """The zone of a name. BadRequest for what is no name of the IANA database."""
    if name == "UTC":
        return UTC
    if len(name) <= 60 and _NAME.fullmatch(name) and not _NO_ZONES.fullmatch(name):
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise BadRequest(
        f"there is no time zone {name[:60]!r}",
        hint="a name of the IANA database: UTC, Europe/Berlin, Asia/Tokyo",
    )


def moment_of(local: datetime) -> int:
    """The moment of a datetime that has a zone."""
    return (local - EPOCH) // _MICROSECOND


def datetime_of(moment: int, zone: tzinfo = UTC) -> datetime:
    """The datetime of a moment, in a zone."""
    return (EPOCH + timedelta(microseconds=moment)).astimezone(zone)


def exists(local: datetime) -> bool:
    """Is there such a local time? Clocks that are set forward leave a gap."""
    return local.astimezone(UTC).astimezone(local.tzinfo) == local


def first_moment(local: datetime) -> int:
    """The first moment of a local time. One in a gap becomes the end of the gap."""
    first = local.replace(fold=0)
    if exists(first):
        return moment_of(first)
    # Within a gap, fold 1 counts by the offset after the gap, which gives a moment before the gap.
    zone = local.tzinfo
    assert zone is not None
    return change_between(moment_of(local.replace(fold=1)), moment_of(first), zone)


def change_between(before: int, after: int, zone: tzinfo) -> int:
    """The moment of the one change of a zone's clocks between two moments."""
    offset = datetime_of(before, zone).utcoffset()
    while after - before > 1:
        middle = (before + after) // 2
        if datetime_of(middle, zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after


def moments(local: datetime) -> list[int]:
    """Every moment of a local time: none in a gap, two where clocks were set back, otherwise one."""
    first = local.replace(fold=0)
    if not exists(first):
        return []
    found = [moment_of(first)]
    second = moment_of(local.replace(fold=1))
    return found if second == found[0] else [*found, second]


#: Microseconds; no clock that is in use is set back by more at once.
LARGEST_SHIFT = 4 * 3600 * SECOND
