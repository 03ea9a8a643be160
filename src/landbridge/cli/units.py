"""Spans, sizes and moments on the command line: the words of ``core``, with the clock of this machine.

The parsers raise ValueError: as parsers of options they become usage errors that name the option.
"""

from __future__ import annotations

import math
import time

from landbridge.core import time as moments
from landbridge.core.sizes import parse_size
from landbridge.core.sizes import show_count as count
from landbridge.core.sizes import show_size as size
from landbridge.core.time import SECOND, parse_span
from landbridge.core.time import show_iso as iso
from landbridge.core.time import show_span as span

__all__ = ["SECOND", "UNLIMITED", "ago", "clock", "count", "iso", "parse_size", "parse_span", "size", "span"]

#: What "none" means on the command line: for ever, as much as you like.
UNLIMITED = math.inf


def parse_span_or_none(text: str) -> float:
    return UNLIMITED if text == "none" else parse_span(text)


def parse_size_or_none(text: str) -> float:
    return UNLIMITED if text == "none" else parse_size(text)


def parse_moment(text: str) -> float:
    """Seconds since 1970, see core.time."""
    return moments.parse_moment(text, time.time())


def parse_start(text: str) -> float | str:
    """Where to begin: ``earliest``, ``latest`` or a moment."""
    if text in ("earliest", "latest"):
        return text
    try:
        return parse_moment(text)
    except ValueError as error:
        raise ValueError(f"{error}; or 'earliest', 'latest'") from None


def milliseconds(value: float) -> str:
    """A span that is in milliseconds."""
    return span(value / 1000)


def cost(value: float) -> str:
    """A cost of a link or a path, which is in milliseconds."""
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"


def share(value: float) -> str:
    return f"{value:.1%}" if value < 0.9995 else "100%"


def exact(value: float) -> str:
    return f"{value:.3f}"


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def clock(moment: int) -> str:
    return moments.show_clock(moment, now())


def ago(moment: int) -> str:
    return moments.show_age(moment, now())
