"""Tokens of services that a registry has registered: how the registry signs them, and what a terminal needs
to know to take them. The registry's keys for tokens, one or a few for each customer, come with the directory.

A token lives ten minutes at most. One that has to end earlier is refused by its version. It says which
version the customer's directory had when it was made, and the directory says, by service, the version before
which tokens have ended. So no clock is compared, and a service that is resumed gets none of its old tokens
back.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from landbridge.core.names import is_reserved, matches
from landbridge.core.time import SECOND
from landbridge.core.trust.directory import Directory
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import BadRequest, Forbidden

#: Seconds that a token lives at most.
LIFE = 600.0
#: Seconds by which the clock of a terminal may be behind the registry's: its requests are refused beyond 30.
SKEW = 60.0
ISSUER = "landbridge-registry"
AUDIENCE = "landbridge"


def key_id(public: bytes) -> str:
    """The ``kid`` of tokens that the private half of this key signs."""
    return hashlib.sha256(public).hexdigest()[:16]


def sign(
    key: Ed25519PrivateKey,
    *,
    now: int,
    customer: str,
    version: int,
    subject: str,
    scopes: Sequence[str],
    life: float,
) -> tuple[str, str, int]:
    """Make a token: returns it, its id, and when it expires (microseconds). ``version``: of the directory."""
    if not 1 <= life <= LIFE:
        raise BadRequest(f"a token of {life} s", hint=f"1 to {LIFE:.0f} seconds")
    token_id, issued = uuid.uuid4().hex, now // SECOND
    expires = issued + int(life)
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": subject,
        "jti": token_id,
        "iat": issued,
        "exp": expires,
        "scope": " ".join(scopes),
        "customer": customer,
        "version": version,
    }
    headers = {"kid": key_id(key.public_key().public_bytes_raw())}
    return jwt.encode(claims, key, algorithm="EdDSA", headers=headers), token_id, expires * SECOND


def narrowed(granted: Sequence[str], wanted: Iterable[str] | None) -> list[str]:
    """The scopes of a token: those that are wanted, each covered by one that is granted; None: all that are
    granted. Forbidden where one is not covered."""
    if wanted is None:
        return list(granted)
    asked = list(dict.fromkeys(wanted))
    Scopes.parse(asked)
    for scope in asked:
        if not any(_covers(each, scope) for each in granted):
            raise Forbidden(f"the service has no scope {scope[:60]!r}", hint=f"it has {' '.join(granted)}")
    return asked


def _covers(granted: str, wanted: str) -> bool:
    if granted in ("admin", wanted) or (granted, wanted) == ("operate", "observe"):
        return True
    (verb, _, pattern), (wanted_verb, _, wanted_pattern) = granted.partition(":"), wanted.partition(":")
    # A pattern below another one is not worked out: a name is, and "everything" is.
    if verb != wanted_verb or not pattern or not wanted_pattern:
        return False
    if any(word in ("*", "#") for word in wanted_pattern.split(".")):
        return pattern == "#" and not is_reserved(wanted_pattern)
    return matches(pattern, wanted_pattern)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token of a registry says of itself, beside whom it is for: by this it may be ended early."""

    key_id: str
    customer: str
    subject: str
    #: The version of the customer's directory when the token was made.
    version: int


class RegisteredTokens:
    """The tokens of a registry that a terminal takes: those that the newest directory allows."""

    #: Who signs them, as the claim ``iss`` says it.
    issuer = ISSUER
    #: Claims that such a token has beside those of every token.
    claims = ("customer", "version")

    def __init__(self) -> None:
        #: Empty until there is a directory: then whether a token is right can't be said yet.
        self._customer = ""
        #: Key id → (the key, the moment it ends; 0: none).
        self._keys: dict[str, tuple[Ed25519PublicKey, int]] = {}
        #: Service → the version before which its tokens have ended.
        self._ended: dict[str, int] = {}
        self._names: frozenset[str] = frozenset()
        self._version = 0

    @property
    def is_ready(self) -> bool:
        """Has a directory come?"""
        return bool(self._customer)

    def follow(self, directory: Directory) -> None:
        """Go by this directory from now on."""
        self._customer = directory.customer
        self._keys = {
            key_id(key.public): (Ed25519PublicKey.from_public_bytes(key.public), key.until)
            for key in directory.token_keys
            if len(key.public) == 32
        }
        self._ended = directory.ended
        self._names = frozenset(directory.services)
        self._version = directory.version

    def knows(self, subject: str) -> bool:
        """Has the registry a service of this name?"""
        return subject in self._names

    def is_active(self, subject: str) -> bool:
        """Has the registry a service of this name that isn't suspended? Tokens of one that is have ended
        before a version that is still to come."""
        return subject in self._names and self._ended.get(subject, 0) <= self._version

    def key(self, now: int, key_id: str) -> Ed25519PublicKey | None:
        """The key of that id, if tokens by it are taken."""
        key, until = self._keys.get(key_id, (None, 0))
        return key if not until or now < until else None

    def grant(self, key_id: str, claims: Mapping[str, Any]) -> Grant:
        """What the claims of a token say, whose signature was checked. ValueError where they are none."""
        customer, version = claims["customer"], claims["version"]
        if type(customer) is not str or type(version) is not int:
            raise ValueError("claims of a token that are of another type")
        return Grant(key_id, customer, str(claims["sub"]), version)

    def holds(self, now: int, grant: Grant) -> bool:
        """Is the token of this grant still taken?"""
        return (
            grant.customer == self._customer
            and self.key(now, grant.key_id) is not None
            and grant.version >= self._ended.get(grant.subject, 0)
        )
