"""Filters: which messages of a topic are for a group. The hook that delivery calls, and the plain filter by
key and headers; content filters on payloads plug into the same hook.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from landbridge.core.batch import Batch, HeaderValue
from landbridge.core.delivery import Filter


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is given must hold. Values are patterns with ``*``, ``?`` and ``[…]``."""

    key: str | None = None
    headers: dict[str, str] = {}

    def __bool__(self) -> bool:
        return self.key is not None or bool(self.headers)


def _text(value: HeaderValue) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def filter_of(match: Match | None) -> Filter | None:
    if not match:
        return None

    def choose(batch: Batch) -> Sequence[bool]:
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
