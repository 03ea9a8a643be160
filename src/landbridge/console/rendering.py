"""Templates, and the filters by which values are shown."""

from __future__ import annotations

import hashlib
import time
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from landbridge.core import time as moments
from landbridge.core.sizes import show_count, show_size
from landbridge.core.text import printable, printable_block
from landbridge.core.wording import counted

#: Files that browsers may load, with their content types.
STATIC = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@cache
def templates() -> jinja2.Environment:
    """The environment of the templates in this package."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("landbridge.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        count=count, counted=counted,
        size=size, rate=rate, span=span, ms=ms, share=share, ago=ago, moment=moment, iso=iso,
        text=text, block=block, written=written, written_size=written_size,
    )  # fmt: skip
    made.globals["static"] = static_address
    return made


@cache
def static_file(name: str) -> bytes:
    """The content of a file that browsers may load."""
    return (resources.files("landbridge.console") / "static" / name).read_bytes()


@cache
def static_address(name: str) -> str:
    """Where a browser loads a file. Another content has another address, so that it may be kept."""
    digest = hashlib.sha256(static_file(name)).hexdigest()[:12]
    return f"/console/static/{name}?v={digest}"


def visible(value: Any) -> Any:
    """A value as it is put into a page: no text of a stranger turns the direction of what is around it."""
    return printable_block(value) if isinstance(value, str) and not isinstance(value, Markup) else value


# -- filters -------------------------------------------------------------------------------------------

MISSING = "–"


def count(value: float | None) -> str:
    """``1,234``"""
    return MISSING if value is None else show_count(value)


def size(value: float | None) -> str:
    """``1.5 MB``"""
    return MISSING if value is None else show_size(value)


def rate(value: float | None) -> str:
    """``0``, ``0.4``, ``12.5``, ``1,234``: how many per second."""
    if value is None:
        return MISSING
    return f"{value:.1f}" if 0 < value < 99.95 else show_count(value)


def span(seconds: float | None) -> str:
    """``1 h``"""
    return MISSING if seconds is None else moments.show_span(seconds)


def written(seconds: float | None) -> str:
    """A span as a form takes it: ``7d``, ``90s``; ``none`` for one without end."""
    if seconds is None:
        return "none"
    units = ((86400, "d"), (3600, "h"), (60, "m"))
    found = next(((size, name) for size, name in units if seconds >= size and not seconds % size), (1, "s"))
    return f"{seconds / found[0]:g}{found[1]}"


def written_size(value: int | None) -> str:
    """Bytes as a form takes them: ``64GiB``, ``10MB``; ``none`` for no limit."""
    if value is None:
        return "none"
    units = [unit for power, prefix in enumerate("TGMk") for unit in _units_of(4 - power, prefix)]
    found = next(((size, name) for size, name in units if value >= size and not value % size), (1, ""))
    return f"{value // found[0]}{found[1]}"


def _units_of(power: int, prefix: str) -> list[tuple[int, str]]:
    return [(1024**power, f"{prefix.upper()}iB"), (1000**power, f"{prefix}B")]


def ms(seconds: float | None) -> str:
    """``1.3 ms``"""
    if seconds is None:
        return MISSING
    value = seconds * 1000
    if value < 0.005:
        return "< 0.01 ms"
    return f"{value:.2f} ms" if value < 0.995 else f"{value:.1f} ms" if value < 99.95 else f"{value:,.0f} ms"


def share(value: float | None) -> str:
    """``12.5 %``"""
    return MISSING if value is None else f"{value:.1%}"


def iso(moment: int) -> str:
    """``2030-01-31T12:00:00.000000Z``"""
    return moments.show_iso(moment)


def ago(moment: int | None) -> Markup | str:
    """How long ago a moment was; the exact one is under the pointer."""
    if not moment:
        return MISSING
    exact = moments.show_iso(moment)
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(
        exact, moments.show_age(moment, time.time_ns() // 1000)
    )


def moment(value: int | None) -> Markup | str:
    """A moment in UTC, to the second; the exact one is under the pointer."""
    if not value:
        return MISSING
    exact = moments.show_iso(value)
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, exact[:19].replace("T", " "))


def text(value: Any) -> Markup:
    """Text of a stranger, on one line."""
    return escape(printable(str(value)))


def block(value: Any) -> Markup:
    """Text of a stranger, with its lines."""
    return escape(printable_block(str(value)))
