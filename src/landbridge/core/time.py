"""Moments and spans of time: their unit, how people write them, and how they are shown to people.

A moment is a whole number of microseconds since 1970 (UTC), a span is a number of seconds, unless a name says
otherwise. Nothing here reads the clock: whatever depends on the present takes ``now``. The parsers raise
ValueError.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

#: In microseconds, the unit of moments.
SECOND = 1_000_000

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)? *(?:ms|min|[smhdw]) *)+")
_SPAN_PART = re.compile(r"(\d+(?:\.\d+)?) *(ms|min|[smhdw])")
_SPAN_WITH_UNIT = re.compile(r"[\d.]+\s*[a-z]+")

#: (below this number of seconds, the unit in seconds, the unit's name).
_UNITS = (
    (1e-3, 1e-6, "µs"),
    (1.0, 1e-3, "ms"),
    (120.0, 1.0, "s"),
    (7200.0, 60.0, "min"),
    (172800.0, 3600.0, "h"),
    (math.inf, 86400.0, "d"),
)


def uuid7(now: int, random_bytes: bytes) -> bytes:
    """A UUIDv7 (RFC 9562): its first 48 bits are the time in milliseconds, so ids sort by the time of their
    making. ``random_bytes``: 10 of them."""
    value = (now // 1000) << 80 | int.from_bytes(random_bytes, "big")
    # The version (7) and the variant (binary 10) replace random bits.
    value = value & ~(0xF << 76 | 3 << 62) | 7 << 76 | 2 << 62
    return value.to_bytes(16, "big")


def parse_span(text: str) -> float:
    """Seconds: ``30s``, ``1h30m``, ``7d``, ``500ms``; a bare number is seconds."""
    try:
        seconds = float(text)
    except ValueError:
        is_span = _SPAN.fullmatch(text)
        parts = _SPAN_PART.findall(text) if is_span else [("nan", "s")]
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{text!r} is not a span of time: 500ms, 30s, 5m, 1h30m, 7d")
    return seconds


def parse_moment(text: str, now: float) -> float:
    """Seconds since 1970: ISO 8601 (local time where no zone is given), ``10m ago``, ``10m`` or ``-10m``.

    ``now`` is in seconds since 1970, too.
    """
    stripped = text.strip()
    try:
        if stripped.startswith("-"):
            return now - parse_span(stripped[1:])
        if stripped.endswith("ago") or _SPAN_WITH_UNIT.fullmatch(stripped):
            return now - parse_span(stripped.removesuffix("ago").strip())
        return datetime.fromisoformat(stripped).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time: 2026-01-31T12:00:00Z, '10m ago' or -10m") from None


def show_span(seconds: float) -> str:
    """With one digit below the largest unit that fits: ``1.5 ms``, ``30 s``, ``7 d``."""
    if seconds < 0:
        return f"-{show_span(-seconds)}"
    unit, name = next((unit, name) for most, unit, name in _UNITS if seconds < most)
    value = seconds / unit
    return f"{value:.0f} {name}" if value >= 10 or value == int(value) else f"{value:.1f} {name}"


def show_iso(moment: int) -> str:
    """``2026-01-31T12:00:00.123Z``"""
    shown = datetime.fromtimestamp(moment / SECOND, UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")


def show_clock(moment: int, now: int) -> str:
    """The local time of day, with the date where the local day of ``now`` is another one."""
    local = datetime.fromtimestamp(moment / SECOND)
    is_today = local.date() == datetime.fromtimestamp(now / SECOND).date()
    return local.strftime("%H:%M:%S.%f" if is_today else "%Y-%m-%d %H:%M:%S.%f")[:-3]


def show_age(moment: int, now: int) -> str:
    """``60 s ago``, ``in 5 h`` or ``now``."""
    seconds = round((now - moment) / SECOND)
    return (
        "now" if not seconds else f"{show_span(seconds)} ago" if seconds > 0 else f"in {show_span(-seconds)}"
    )
