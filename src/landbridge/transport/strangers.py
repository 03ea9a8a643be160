"""Strangers: connections whose peer has not shown yet who it is, by the address that they come from.

A stranger costs a file and memory, and whoever can reach a port can be many strangers. So their number is
bounded, in all and for each address, and the one that has waited longest gives way to the next. A peer that
shows its credential at once is hardly ever the one that has waited longest, so those who are silent can't
keep it out, even if they come from its own address.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Any

#: Leading bytes of an IPv6 address that one site shares (RFC 4291 2.5.4): its machines choose the others.
_SITE = 8


class Stranger:
    """One connection that nobody has been let in on yet. ``cut`` ends it."""

    __slots__ = ("address", "cut")

    def __init__(self, address: str, cut: Callable[[], object]) -> None:
        self.address = address
        self.cut = cut


class Strangers:
    """The strangers of one port: at most ``most``, and at most ``each`` of one address."""

    def __init__(self, each: int, most: int) -> None:
        self.each = each
        self.most = most
        #: The one that has waited longest stands first, here and for each address. No entry for none.
        self._all: OrderedDict[Stranger, None] = OrderedDict()
        self._at: dict[str, OrderedDict[Stranger, None]] = {}

    def enter(self, address: str, cut: Callable[[], object]) -> Stranger:
        """Count one more, and cut the one that has waited longest where there are too many."""
        here = self._at.get(address, ())
        if len(here) >= self.each:
            self._cut(next(iter(here)))
        elif len(self._all) >= self.most:
            self.make_room()
        stranger = Stranger(address, cut)
        self._all[stranger] = None
        self._at.setdefault(address, OrderedDict())[stranger] = None
        return stranger

    def leave(self, stranger: Stranger) -> None:
        """A stranger has become known, or is gone. Nothing happens if it has left already."""
        if stranger not in self._all:
            return
        del self._all[stranger]
        here = self._at[stranger.address]
        del here[stranger]
        if not here:
            del self._at[stranger.address]

    def make_room(self) -> bool:
        """Cut the one that has waited longest of all. False: there is none."""
        if not self._all:
            return False
        self._cut(next(iter(self._all)))
        return True

    def _cut(self, stranger: Stranger) -> None:
        self.leave(stranger)
        stranger.cut()

    def __len__(self) -> int:
        return len(self._all)


def site_of(peer: tuple[Any, ...]) -> str:
    """Return the address to count a peer under: for IPv6 that of its site."""
    try:
        address = ip_address(peer[0].partition("%")[0])
    except ValueError:
        return str(peer[0])
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(address.packed[:_SITE] + bytes(16 - _SITE)))
