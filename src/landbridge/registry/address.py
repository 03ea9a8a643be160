"""Addresses of terminals, as an admin gives them: they go into the directory and into certificates."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from landbridge.client.context import is_loopback
from landbridge.errors import BadRequest

#: RFC 1123, in lower case.
_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_HINT = "lbs://host:port, where host is a name or an IP address"


def check_address(address: str, *, mode: str) -> str:
    """Return the address in its normal form; "" where there is none. BadRequest if others can't dial it."""
    if mode == "client" and address:
        raise BadRequest("a client has no address: it dials out", hint="leave it out, or create a server")
    if not address:
        return ""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
        parts = None
    if parts is None or parts.scheme not in ("lb", "lbs") or not host or not port or len(address) > 300:
        raise BadRequest(f"{address[:60]!r} is not the address of a terminal", hint=_HINT)
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        raise BadRequest(f"{address[:60]!r} has more than a host and a port", hint=_HINT)
    if parts.scheme == "lb" and not is_loopback(host):
        raise BadRequest(
            f"{address[:60]!r} is without TLS, which nobody dials on another machine", hint=_HINT
        )
    return f"{parts.scheme}://{_host(host)}:{port}"


def _host(host: str) -> str:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        labels = host.split(".")
        # A name of nothing but numbers is a mistyped IP address, and some resolvers read it as one.
        if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
            raise BadRequest(f"{host[:60]!r} is not the name of a host", hint=_HINT) from None
        return host
    if found.is_unspecified:
        raise BadRequest(f"{host} is where to listen, not where to be dialled", hint=_HINT)
    if found.version == 6 and found.scope_id is not None:
        raise BadRequest(f"{host[:60]!r} is an address of one machine's interface", hint=_HINT)
    return f"[{found}]" if found.version == 6 else str(found)
