"""Where a store on a server is: the URL of ``--store``, taken apart, and shown without its password."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from landbridge.errors import BadRequest

#: Units of a store that is made without a number of them.
UNITS = 64
#: Most units that a store may have: each has a connection or a share of one.
MOST_UNITS = 4096
#: The store's name where the URL gives none: the prefix of its keys in Redis, its schema in PostgreSQL.
NAME = "landbridge"
REDIS, POSTGRES = ("redis", "rediss"), ("postgresql", "postgres")
#: The options of ours that a URL may have behind the question mark.
OWN = ("name", "units", "replicas", "ca")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The parts of a store's URL."""

    scheme: str
    #: Host and port of each server; port None: the usual one. Empty: what the driver takes by itself.
    hosts: tuple[tuple[str, int | None], ...]
    user: str = ""
    password: str = field(default="", repr=False)
    #: The database: a number in Redis, a name in PostgreSQL; empty for the usual one.
    database: str = ""
    #: What the store is called within its server. Several stores may be in one.
    name: str = NAME
    #: None: as many as the store has, and ``UNITS`` where it is made.
    units: int | None = None
    #: Replicas that have to have each commit on disk; None: every one that the server has.
    replicas: int | None = None
    #: A file with the certificates that the server's is signed by; empty: those of the system.
    ca: str = ""
    #: Options that are the server's own business, as ``sslmode`` is PostgreSQL's.
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def has_secret(self) -> bool:
        return bool(self.password) or any(_is_secret(name) for name, _ in self.options)

    def __str__(self) -> str:
        """The URL without passwords, and without the number of units, which the store knows."""
        hosts = ",".join(_shown(host, port) for host, port in self.hosts)
        user = f"{self.user}@" if self.user else ""
        given = {
            "name": None if self.name == NAME else self.name,
            "replicas": self.replicas,
            "ca": self.ca or None,
            **{name: value for name, value in self.options if not _is_secret(name)},
        }
        query = urlencode({name: value for name, value in given.items() if value is not None}, safe="/,:")
        database = f"/{self.database}" if self.database else ""
        return f"{self.scheme}://{user}{hosts}{database}{'?' + query if query else ''}"

    def beside(self, suffix: str, units: int) -> StoreAddress:
        """Another store on the same server."""
        return replace(self, name=f"{self.name}_{suffix}", units=units)


def is_address(text: str) -> bool:
    """Is it the URL of a store on a server, and not the name of an embedded one?"""
    return "://" in text


def parse_address(text: str) -> StoreAddress:
    """BadRequest, which never repeats the text: it may have a password in it."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in (*REDIS, *POSTGRES):
        raise BadRequest(
            "the store's URL has to begin with redis://, rediss:// or postgresql://",
            hint="for example redis://db.lan:6379 or postgresql://landbridge@db.lan/bus",
        )
    # urlsplit knows one host; what is between the slashes may name several.
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    try:
        parts = urlsplit(f"x://x{rest[len(authority) :]}")
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise BadRequest("the options behind the '?' of the store's URL can't be read") from None
    own = {name: value for name, value in pairs if name in OWN}
    credentials, _, hosts = authority.rpartition("@")
    user, _, password = credentials.partition(":")
    name = own.get("name", NAME)
    if not _NAME.fullmatch(name):
        raise BadRequest("the store's name has to be of a-z, 0-9 and '_', at most 40 characters")
    if "@" in parts.path:
        # Else a part of the password would be shown as one of the database.
        raise BadRequest(
            "the store's URL has an '@' behind a '/'",
            hint="write %2F and %40 where they are part of a password",
        )
    if scheme in REDIS and len(own) < len({name for name, _ in pairs}):
        raise BadRequest(
            "the store's URL has an option that a store in Redis doesn't know",
            hint=f"there are {', '.join(OWN)}; the database's number is behind the host: redis://HOST/3",
        )
    if parts.fragment:
        raise BadRequest("the store's URL has a '#'", hint="write %23 where it is part of a password")
    return StoreAddress(
        scheme="postgresql" if scheme in POSTGRES else scheme,
        hosts=tuple(_host(each) for each in hosts.split(",") if each),
        user=unquote(user),
        password=unquote(password),
        database=unquote(parts.path.strip("/")),
        name=name,
        units=_number(own, "units", 1, MOST_UNITS),
        replicas=_number(own, "replicas", 0, 100),
        ca=own.get("ca", ""),
        options=tuple((name, value) for name, value in pairs if name not in OWN),
    )


def _is_secret(option: str) -> bool:
    return "password" in option


def _number(options: dict[str, str], name: str, least: int, most: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise BadRequest(f"{name} in the store's URL has to be a number from {least} to {most}")
    return int(text)


def _host(text: str) -> tuple[str, int | None]:
    host, _, port = text.rpartition(":") if re.search(r":\d+$", text) else (text, "", "")
    host = unquote(host.strip("[]") if host.startswith("[") else host)
    if not host or (port and not 0 < int(port) < 65536) or (":" in text and not port and "[" not in text):
        raise BadRequest("a host in the store's URL can't be read", hint="write HOST:PORT, or [IPv6]:PORT")
    return host, int(port) if port else None


def _shown(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"
