"""Spans, sizes and moments as people write them, and back.

The parsers raise ValueError: as parsers of options they become usage errors that name the option.
"""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime

_SPANS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kmgtp]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}

#: (below so many seconds, the unit in seconds, its name).
_UNITS = (
    (1e-3, 1e-6, "µs"),
    (1.0, 1e-3, "ms"),
    (120.0, 1.0, "s"),
    (7200.0, 60.0, "min"),
    (172800.0, 3600.0, "h"),
    (math.inf, 86400.0, "d"),
)

#: "none" on the command line: for ever, as much as you like.
UNLIMITED = math.inf


_SPAN_WITH_UNIT = re.compile(r"[\d.]+\s*[a-z]+")


def parse_span(text: str) -> float:
    """Seconds: ``30s``, ``1h30m``, ``7d``, ``500ms``; a bare number is seconds."""
    try:
        seconds = float(text)
    except ValueError:
        parts = _SPAN.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text.replace(" ", ""):
            raise ValueError(f"{text!r} is not a span of time: 500ms, 30s, 5m, 1h30m, 7d") from None
        seconds = sum(float(number) * _SPANS[unit] for number, unit in parts)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{text!r} is not a span of time: 500ms, 30s, 5m, 1h30m, 7d")
    return seconds


def parse_size(text: str) -> int:
    """Bytes: ``10MB`` and ``10M`` are ten million, ``1GiB`` is 2³⁰."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        raise ValueError(f"{text!r} is not a size: 4096, 10MB, 1GiB")
    base = 1024 if found[3] else 1000
    return round(float(found[1]) * float(base ** _POWERS[found[2].lower()]))


def parse_span_or_none(text: str) -> float:
    return UNLIMITED if text == "none" else parse_span(text)


def parse_size_or_none(text: str) -> float:
    return UNLIMITED if text == "none" else parse_size(text)


def parse_moment(text: str) -> float:
    """Seconds since 1970: ISO 8601 (local time where no zone is given), ``10m ago``, ``10m`` or ``-10m``."""
    said = text.strip()
    try:
        if said.startswith("-"):
            return time.time() - parse_span(said[1:])
        if said.endswith("ago") or _SPAN_WITH_UNIT.fullmatch(said):
            return time.time() - parse_span(said.removesuffix("ago").strip())
        return datetime.fromisoformat(said).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time: 2026-01-31T12:00:00Z, '10m ago' or -10m") from None


def parse_start(text: str) -> float | str:
    """Where to begin: ``earliest``, ``latest`` or a moment."""
    if text in ("earliest", "latest"):
        return text
    try:
        return parse_moment(text)
    except ValueError as error:
        raise ValueError(f"{error}; or 'earliest', 'latest'") from None


def count(value: float) -> str:
    return f"{value:,.0f}"


def size(value: float) -> str:
    if value < 999.5:
        return f"{value:.0f} B"
    power = min(5, next(power for power in range(1, 100) if value < 999.5 * 1000**power))
    value /= 1000**power
    unit = "kMGTP"[power - 1]
    return f"{value:.1f} {unit}B" if value < 99.95 else f"{value:.0f} {unit}B"


def span(seconds: float) -> str:
    """With one digit below the largest unit that fits: ``1.5 ms``, ``30 s``, ``7 d``."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    unit, name = next((unit, name) for most, unit, name in _UNITS if seconds < most)
    value = seconds / unit
    return f"{value:.0f} {name}" if value >= 10 or value == int(value) else f"{value:.1f} {name}"


def iso(microseconds: int) -> str:
    return (
        datetime.fromtimestamp(microseconds / 1e6, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def clock(microseconds: int) -> str:
    """Local time of day, with the date where it is another day's."""
    moment = datetime.fromtimestamp(microseconds / 1e6)
    today = moment.date() == datetime.now().date()
    return moment.strftime("%H:%M:%S.%f" if today else "%Y-%m-%d %H:%M:%S.%f")[:-3]


def ago(microseconds: int) -> str:
    seconds = round(time.time() - microseconds / 1e6)
    return "now" if not seconds else f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"
