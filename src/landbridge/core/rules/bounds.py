"""How large queries may be, and how their values are shown in errors."""

from __future__ import annotations

import msgspec

#: Bytes of a query's canonical form.
LARGEST_QUERY = 16 << 10
#: Characters of a text in a pattern, of a regular expression, and of a JSONPath query.
LONGEST_TEXT = 1024
#: How deep the objects of a pattern may be nested.
DEEPEST_PATTERN = 16
#: Alternatives of a pattern, in all its leaves together.
MOST_ALTERNATIVES = 512
#: Stars of a wildcard.
MOST_STARS = 16
#: Instructions of a regular expression, as RE2 compiles it.
LARGEST_PROGRAM = 2000
#: How deep filters, functions and negations of a JSONPath query may be nested.
DEEPEST_FILTER = 16


def describe(value: object) -> str:
    """A value of JSON, short enough for an error."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, UnicodeEncodeError, msgspec.MsgspecError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}…"
