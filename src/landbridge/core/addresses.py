"""Which addresses a terminal may send HTTP requests to, and what a URL names.

URLs of callbacks and webhooks come from strangers, and the terminal stands in a network that strangers can't
reach. So only public addresses are taken, unless the operator allows others (SSRF). An address inside another
one counts as itself and as the other one: IPv4 in IPv6 (mapped, compatible, NAT64, 6to4, Teredo). All ways of
writing an address that some resolver takes are read here as the address that they are: ``127.1``, ``0x7f.1``,
``2130706433``, ``0177.0.0.1``.

``ipaddress.is_global`` alone is not enough: it knows nothing of what is embedded, and its lists differ with
the version of Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from landbridge.errors import BadRequest

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

#: Characters of a URL, and of a host's name (RFC 1035).
LONGEST_URL, LONGEST_HOST = 2000, 253

#: Not for the public, by the registries of IANA for special purposes. 192.88.99.0/24 was 6to4's.
#: 168.63.129.16 belongs to no registry's list: it is Azure's own address within each virtual network.
_CLOSED_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
            "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
        ),
    )
)  # fmt: skip
#: All that is routed in public so far; and what in it is not.
_UNICAST_V6 = IPv6Network("2000::/3")
_CLOSED_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))

_MAPPED, _COMPATIBLE = IPv6Network("::ffff:0:0/96"), IPv6Network("::/96")
_TRANSLATED, _NAT64, _6TO4 = (
    IPv6Network("::ffff:0:0:0/96"),
    IPv6Network("64:ff9b::/96"),
    IPv6Network("2002::/16"),
)
_TEREDO = IPv6Network("2001::/32")

#: A host whose last part looks like this is an IPv4 address or nothing, as the URL standard has it.
_NUMERIC = re.compile(r"(\d+|0[xX][0-9a-fA-F]*)\.?\Z")
_HOST = re.compile(
    r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?\Z"
)


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL names."""

    scheme: str  #: "http" or "https"
    host: str  #: a name in lower case, or an address as it is written in this program
    port: int
    path: str  #: with the query; begins with "/"
    address: Address | None  #: None: the host is a name, which has to be looked up

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == _PORTS[self.scheme] else f"{shown}:{self.port}"


_PORTS = {"http": 80, "https": 443}


def read_url(url: str) -> Target:
    """What a URL names. BadRequest where it is none that a request can be sent to."""
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise BadRequest("a URL has at most 2000 printable ASCII characters, and no backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadRequest(f"no URL: {url[:60]!r}") from None
    if parts.scheme not in _PORTS:
        raise BadRequest(f"a URL with the scheme {parts.scheme[:20]!r}", hint="http:// or https://")
    if "@" in parts.netloc:
        raise BadRequest("a URL with a user name or a password in it", hint="leave them out")
    host = (parts.hostname or "").lower()
    if port == 0:
        raise BadRequest("a URL with the port 0")
    address = read_address(host, brackets="[" in parts.netloc)
    if address is None and (not _HOST.match(host) or len(host) > LONGEST_HOST):
        raise BadRequest(f"a URL with the host {host[:60]!r}")
    return Target(
        parts.scheme,
        host.rstrip(".") if address is None else str(address),
        port or _PORTS[parts.scheme],
        _path(parts),
        address,
    )


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def read_address(host: str, *, brackets: bool = False) -> Address | None:
    """The address that a host is, however it is written; None for a name. BadRequest for a number that is no
    address."""
    if brackets or ":" in host:
        try:
            return IPv6Address(host)  # with "%zone" it is a link's own, and refused by is_public
        except AddressValueError:
            raise BadRequest(f"no IPv6 address: {host[:60]!r}") from None
    parts = host.removesuffix(".").split(".")
    if not _NUMERIC.match(parts[-1]):
        return None
    numbers = [_number(part) for part in parts]
    if len(numbers) > 4 or any(number is None for number in numbers):
        raise BadRequest(f"no IPv4 address: {host[:60]!r}")
    *front, last = (number for number in numbers if number is not None)
    if any(number > 255 for number in front) or last >= 256 ** (4 - len(front)):
        raise BadRequest(f"no IPv4 address: {host[:60]!r}")
    value = last + sum(number << 8 * (3 - place) for place, number in enumerate(front))
    return IPv4Address(value)


def _number(part: str) -> int | None:
    """Decimal, octal (0…) or hexadecimal (0x…), as inet_aton reads them."""
    if not part.isascii() or len(part) > 40:
        return None
    try:
        if part[:2] in ("0x", "0X"):
            return int(part[2:] or "0", 16) if "_" not in part else None
        if len(part) > 1 and part[0] == "0":
            return int(part, 8) if part.isdecimal() else None
        return int(part) if part.isdecimal() else None
    except ValueError:
        return None


def embedded(address: Address) -> list[IPv4Address]:
    """The IPv4 addresses that an IPv6 address leads to."""
    if isinstance(address, IPv4Address):
        return []
    value = int(address)
    low = IPv4Address(value & 0xFFFFFFFF)
    if any(address in network for network in (_MAPPED, _COMPATIBLE, _TRANSLATED, _NAT64)):
        return [low]
    if address in _6TO4:
        return [IPv4Address(value >> 80 & 0xFFFFFFFF)]
    if address in _TEREDO:
        return [IPv4Address(value >> 64 & 0xFFFFFFFF), IPv4Address(~value & 0xFFFFFFFF)]
    return []


def is_public(address: Address) -> bool:
    """May anybody on the internet reach it?"""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _CLOSED_V4)
    if address.scope_id is not None:
        return False
    inner = embedded(address)
    if inner and address in _TEREDO:
        return False  # a tunnel through somebody's NAT
    if inner:
        # ::, ::1 and their like are in the range of compatible addresses, and in 0.0.0.0/8.
        return all(map(is_public, inner))
    return address in _UNICAST_V6 and not any(address in network for network in _CLOSED_V6)


class AllowList:
    """What an operator allows beside the public addresses: networks, and hosts by name."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._networks: list[Network] = []
        self._hosts: set[str] = set()
        #: Ends of names, with their dot: ``*.internal`` is ``.internal``.
        self._ends: set[str] = set()
        for entry in entries:
            self._add(entry.strip().lower())

    def _add(self, entry: str) -> None:
        try:
            self._networks.append(ip_network(entry))
            return
        except ValueError as error:
            if "/" in entry or ":" in entry:
                hint = "as 10.1.0.0/16, fd00::/8, hooks.example.com or *.internal"
                raise BadRequest(f"no network {entry[:60]!r}: {error}", hint=hint) from None
        name = entry.removeprefix("*.")
        if not _HOST.match(name) or _NUMERIC.match(name.rsplit(".", 1)[-1]):
            raise BadRequest(f"no network and no host: {entry[:60]!r}", hint="as 10.1.0.0/16 or *.internal")
        if name != entry:
            self._ends.add(f".{name}")
        else:
            self._hosts.add(name)

    def names(self, host: str) -> bool:
        """Is the host allowed by its name, wherever that leads?"""
        return host in self._hosts or any(host.endswith(end) for end in self._ends)

    def covers(self, address: Address) -> bool:
        """Is the address in an allowed network? One inside another one has to be allowed itself."""
        inner = embedded(address)
        return any(address in network for network in self._networks) or (
            bool(inner) and all(any(each in network for network in self._networks) for each in inner)
        )

    def allows(self, host: str, address: Address) -> bool:
        """May a request for this host go to this address?"""
        return is_public(address) or self.names(host) or self.covers(address)
