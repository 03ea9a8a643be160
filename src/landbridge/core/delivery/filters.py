"""Filters: which messages of a topic are for a group. The hook that delivery calls, and the plain filter by
key and headers; content filters on payloads plug into the same hook.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from landbridge.core.delivery.delivery import Filter
from landbridge.core.log.batch import Batch, HeaderValue


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is given must hold. Values are patterns with ``*``, ``?`` and ``[…]``."""

    key: str | None = None
    headers: dict[str, str] = {}

    def __bool__(self) -> bool:
        return self.key is not None or bool(self.headers)


#: A pattern for one text alone: a wildcard stands in brackets of its own, as ``glob.escape`` puts it, if at
#: all. Not U+FFFD, which stands for any bytes that are no text, and no half of a pair, which no bytes give.
_LITERAL = re.compile(r"(?:[^*?\[\ufffd\ud800-\udfff]|\[[*?\[]\])*")
_BRACKETS = re.compile(r"\[(.)\]")


def sole_key(match: Match | None) -> bytes | None:
    """The only key that a message may have to match; None where there may be several."""
    if match is None or match.key is None or not _LITERAL.fullmatch(match.key):
        return None
    return _BRACKETS.sub(r"\1", match.key).encode()


def _text(value: HeaderValue) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def filter_of(match: Match | None) -> Filter | None:
    if not match:
        return None

    key = None if match.headers else sole_key(match)

    def choose(batch: Batch) -> Sequence[bool] | None:
        if key is not None and (found := batch.sole_key()) is not None:
            return None if found == key else [False] * len(batch)
        chosen = [True] * len(batch)
        if match.key is not None:
            pattern = match.key
            keys = batch.keys() or [b""] * len(batch)
            chosen = [fnmatchcase(_text(key), pattern) for key in keys]
        if match.headers:
            for index, wanted in enumerate(chosen):
                if wanted:
                    headers = batch.headers(index)
                    chosen[index] = all(
                        name in headers and fnmatchcase(_text(headers[name]), pattern)
                        for name, pattern in match.headers.items()
                    )
        return chosen

    return choose
