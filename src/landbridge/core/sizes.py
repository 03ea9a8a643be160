"""Numbers of bytes and of things, as people write them and as they are shown to people."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kmgtp]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def parse_size(text: str) -> int:
    """Bytes: ``10MB`` and ``10M`` are ten million, ``1GiB`` is 2³⁰. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        raise ValueError(f"{text!r} is not a size: 4096, 10MB, 1GiB")
    base = 1024 if found[3] else 1000
    return round(float(found[1]) * float(base ** _POWERS[found[2].lower()]))


def show_size(value: float) -> str:
    """``999 B``, ``1.5 MB``, ``123 MB``"""
    if value < 999.5:
        return f"{value:.0f} B"
    power = min(5, next(power for power in range(1, 100) if value < 999.5 * 1000**power))
    value /= 1000**power
    unit = "kMGTP"[power - 1]
    return f"{value:.1f} {unit}B" if value < 99.95 else f"{value:.0f} {unit}B"


def show_count(value: float) -> str:
    """``1,234,567``"""
    return f"{value:,.0f}"


def little_of(disk: int) -> int:
    """Free bytes of a disk of this size below which somebody should make room: a tenth, at most 1 GiB."""
    return min(disk // 10, 1 << 30)
