"""Lists in pages, by name: what comes or goes meanwhile shifts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from typing import TypeVar

from landbridge.errors import BadRequest

V = TypeVar("V")


def page_size(limit: int, most: int) -> int:
    if limit < 1:
        raise BadRequest(f"a page of {limit} items")
    return min(limit, most)


def page(items: Mapping[str, V], after: str, limit: int, most: int) -> tuple[list[V], str | None]:
    """The items that follow ``after``, and what to give as ``after`` for those that follow them."""
    limit = page_size(limit, most)
    keys = nsmallest(limit + 1, (key for key in items if key > after))
    return [items[key] for key in keys[:limit]], keys[limit - 1] if len(keys) > limit else None
