"""Lists in pages, by name: items that are added or removed between two pages don't shift the others."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from typing import TypeVar

from landbridge.client.registry_documents import ListPage
from landbridge.errors import BadRequest
from landbridge.registry.limits import RegistryLimits

V = TypeVar("V")


def page_size(limit: int, most: int) -> int:
    """Return the number of items on a page, at most ``most``."""
    if limit < 1:
        raise BadRequest(f"a page of {limit} items")
    return min(limit, most)


def page(items: Mapping[str, V], request: ListPage, limits: RegistryLimits) -> tuple[list[V], str | None]:
    """Return the items of a page, and the ``after`` of the next page; None on the last page."""
    limit = page_size(request.limit, limits.max_page)
    keys = nsmallest(limit + 1, (key for key in items if key > request.after))
    return [items[key] for key in keys[:limit]], keys[limit - 1] if len(keys) > limit else None
