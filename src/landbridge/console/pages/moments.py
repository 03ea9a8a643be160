"""Moments in forms, as people write them."""

from __future__ import annotations

import time

from landbridge.core.time import SECOND, parse_moment
from landbridge.errors import BadRequest

HINT = "2030-01-31T12:00:00Z, or -2h for two hours ago"


def read_moment(text: str) -> int:
    """The microseconds of a moment. Raises BadRequest."""
    try:
        return int(parse_moment(text, time.time()) * SECOND)
    except (ValueError, OverflowError) as error:
        raise BadRequest(f"not a moment: {error}", hint=HINT) from None


def read_optional(text: str) -> int | None:
    """The same; None where nothing is given."""
    return read_moment(text) if text.strip() else None
