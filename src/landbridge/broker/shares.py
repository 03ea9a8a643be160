"""What one service may have of something that all services of a terminal make, such as rules and webhooks.

A limit bounds all of them together. A service may have a part of that, the limit ``service_share``, so none
takes the place of all others. Whoever may operate the terminal could raise the limits, and has no share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from landbridge.broker.authority import TokenBearer
from landbridge.broker.documents import Documents
from landbridge.broker.figures import GatewayFigure
from landbridge.broker.limits import Limits
from landbridge.errors import LimitReached

#: Documents that are looked at together.
PAGE = 1000


class _Owned(msgspec.Struct):
    """What a document of any kind says of its owner."""

    owner: str = ""


_owned = msgspec.msgpack.Decoder(_Owned).decode


class Shares:
    """Asked before something is made."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        #: By the limit's name: requests that were refused.
        self._refused: Counter[str] = Counter()

    def check(self, limit: str, what: str, total: int, own: Callable[[], int], caller: TokenBearer) -> None:
        """LimitReached where there are as many as a limit allows, or where the caller has its share of them.
        ``own``: counts those of the caller."""
        self.check_all(limit, what, total)
        # Nobody has more of them than there are.
        if total >= self.of(limit) and not caller.scopes.has("operate"):
            self.check_own(limit, what, own(), caller.subject)

    def check_all(self, limit: str, what: str, total: int) -> None:
        """LimitReached where there are as many as a limit allows."""
        if total >= getattr(self._limits, limit):
            self._refused[limit] += 1
            raise LimitReached(
                f"there are {total} {what}, as many as {limit} allows",
                hint=f"delete some that nobody needs, or have an operator raise the limit {limit}",
            )

    def check_own(self, limit: str, what: str, own: int, subject: str) -> None:
        """LimitReached where a service has its share."""
        if own >= self.of(limit):
            self._refused[limit] += 1
            raise LimitReached(
                f"{subject} has {own} {what}, as many as its share of {limit} allows",
                hint=f"delete some, or have an operator raise the limit service_share or {limit}",
            )

    def has_room(self, limit: str, total: int, own: int, caller: TokenBearer) -> bool:
        """May the caller make one more?"""
        has_share = not caller.scopes.has("operate")
        return total < getattr(self._limits, limit) and not (has_share and own >= self.of(limit))

    def of(self, limit: str) -> int:
        """How many one service may have."""
        return max(1, int(getattr(self._limits, limit) * self._limits.service_share))

    def figures(self) -> Iterator[GatewayFigure]:
        """For the terminal's metrics."""
        for limit, count in self._refused.items():
            yield GatewayFigure(
                "landbridge_limit_refused",
                "requests refused because all of a limit, or a service's share of it, is taken",
                {"limit": limit},
                count,
            )


async def count_by_owner(documents: Documents, collection: str) -> Counter[str]:
    """How many documents of a collection each owner has. Those of one that can't be read are nobody's."""
    counts: Counter[str] = Counter()
    after, more = "", True
    while more:
        found, more = await documents.find_anywhere(collection, after, PAGE)
        for _, document in found:
            try:
                counts[_owned(document.value).owner] += 1
            except msgspec.MsgspecError:
                counts[""] += 1
        after = f"{found[-1][0].topic}/{found[-1][0].key}" if found else ""
    return counts
