"""Contexts: named places to connect to, each a small file that only its owner can read.

    $LANDBRIDGE_HOME, or ~/.config/landbridge
      contexts/NAME.json    url and token; ca, data, and how to reach a registry, if there are such
      current               the name of the context in use

Arguments in code win over LANDBRIDGE_URL and LANDBRIDGE_TOKEN, which win over the context.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from landbridge.core.names import check_name
from landbridge.errors import BadContext

DEFAULT_PORT = 7420


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place to connect to."""

    #: A terminal's address, or those of its nodes with commas between them: lb://HOST:PORT,HOST:PORT. Empty
    #: in a context that leads to a registry alone.
    url: str
    #: The token for that terminal.
    token: str
    #: A file with the certificates to trust, for lbs:// with a CA of one's own.
    ca: str | None = None
    #: The data folder of the terminal for which ``landbridge up`` made the context; None for a terminal in
    #: memory, and for a context that was added by hand.
    data: str | None = None
    #: The registry's address, http:// or https://.
    registry: str | None = None
    #: The credential of a customer's admin there.
    registry_token: str | None = None
    #: The credential of the registry's operator.
    operator_token: str | None = None


class Address(msgspec.Struct, frozen=True):
    """Where a terminal listens."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'lbs' if self.tls else 'lb'}://{host}:{self.port}"


def home() -> Path:
    """The folder of the contexts."""
    given = os.environ.get("LANDBRIDGE_HOME")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "landbridge"


def names() -> list[str]:
    """The names of all contexts, sorted."""
    return sorted(path.stem for path in (home() / "contexts").glob("*.json"))


def current() -> str | None:
    """The name of the context in use; None if there is none."""
    given = os.environ.get("LANDBRIDGE_CONTEXT")
    if given:
        return given
    try:
        return (home() / "current").read_text().strip() or None
    except FileNotFoundError:
        return None


def load(name: str) -> Context:
    """Read a context. BadContext if there is none of that name, or it can't be read."""
    check_name(name, "context")
    path = home() / "contexts" / f"{name}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Context)
    except FileNotFoundError:
        raise _unknown(name) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise BadContext(
            f"the context {name!r} can't be read: {error}", hint=f"mend or remove {path}"
        ) from None


def _unknown(name: str) -> BadContext:
    from landbridge.core.wording import did_you_mean

    hint = did_you_mean(name, names(), BadContext.default_hint)
    return BadContext(f"there is no context {name!r}", hint=hint)


def save(name: str, context: Context) -> Path:
    """Write a context. Returns its file."""
    check_name(name, "context")
    folder = home() / "contexts"
    path = folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, msgspec.json.encode(context))
    except OSError as error:
        raise BadContext(
            f"the context {name} can't be written: {error.strerror}: {error.filename}",
            hint="LANDBRIDGE_HOME may name another folder",
        ) from None
    return path


def use(name: str) -> None:
    """Make a context the one in use."""
    load(name)
    _write(home() / "current", name.encode())


def remove(name: str) -> None:
    """Delete a context. If it was the one in use, none is in use afterwards."""
    check_name(name, "context")
    try:
        (home() / "contexts" / f"{name}.json").unlink()
    except FileNotFoundError:
        raise _unknown(name) from None
    chosen = home() / "current"
    if chosen.exists() and chosen.read_text().strip() == name:
        chosen.unlink()


def _write(path: Path, data: bytes) -> None:
    # A new file in place of the old one: never half a context, never readable by others.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)


def resolve(
    url: str | None = None, token: str | None = None, context: str | None = None, ca: str | None = None
) -> Context:
    """Where to connect to, by the arguments, the environment and the contexts."""
    if context is None:
        url = url or os.environ.get("LANDBRIDGE_URL")
        token = token or os.environ.get("LANDBRIDGE_TOKEN")
        ca = ca or os.environ.get("LANDBRIDGE_CA")
    # A mistyped address is reported before anything else.
    address = None if url is None else parse_urls(url)[0]
    if url is not None and token is not None:
        return Context(url, token, ca)
    name = context or current()
    if name is None:
        if url is not None:
            raise BadContext(f"no token for {url}", hint="give token=, or set LANDBRIDGE_TOKEN")
        raise BadContext("nothing says where to connect to")
    found = load(name)
    if not found.url:
        raise BadContext(
            f"the context {name} leads to a registry, not to a terminal",
            hint="name a terminal's with --context: 'landbridge context list'",
        )
    if address is not None and address not in parse_urls(found.url):
        # A context's token is for its own terminal; it is not shown to any other.
        raise BadContext(f"no token for {url}", hint="give token=, or set LANDBRIDGE_TOKEN")
    return Context(found.url, token or found.token, ca or found.ca)


def parse_urls(url: str) -> list[Address]:
    """Read the addresses of a terminal's nodes: lb://host:port,host:port. A scheme is that of those behind
    it, too."""
    found, scheme = [], ""
    for part in url.split(","):
        before, separator, _ = part.partition("://")
        scheme = f"{before}://" if separator else scheme
        found.append(parse_url(part.strip() if separator else f"{scheme}{part.strip()}"))
    return found


def parse_url(url: str) -> Address:
    """Read lb://host:port, or lbs:// for TLS. Connections without TLS are for this machine only."""
    hint = "lb://127.0.0.1:7420, or lbs://host:7420 with TLS"
    if "://" not in url:
        said = urlsplit(f"//{url}").hostname
        scheme = "lb" if said and is_loopback(said) else "lbs"
        raise BadContext(f"{url!r} is not an address: it has no scheme", hint=f"{scheme}://{url}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError as error:
        raise BadContext(f"{url!r} is not an address: {error}", hint=hint) from None
    if parts.scheme not in ("lb", "lbs") or not host or parts.path not in ("", "/"):
        raise BadContext(f"{url!r} is not an address", hint=hint)
    if parts.scheme == "lb" and not is_loopback(host):
        raise BadContext(f"{url!r} would send the token in the clear", hint=f"use lbs://{host}:{port}")
    return Address(host, port, parts.scheme == "lbs")


def is_loopback(host: str) -> bool:
    """Is it an address of this machine alone?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
