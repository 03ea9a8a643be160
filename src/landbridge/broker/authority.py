"""Tokens: EdDSA JWTs that a terminal makes and checks, and the list of those that it takes back.

One algorithm, one key, every claim demanded. A token that is wrong in any way gets the same answer.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from landbridge.core.names import check_name
from landbridge.core.time import SECOND
from landbridge.core.trust.registered_tokens import Grant, RegisteredTokens
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import BadRequest, BusError, NameTaken, Unauthenticated, Unavailable

ISSUER = "landbridge"
AUDIENCE = "landbridge"
_CLAIMS = ["iss", "aud", "sub", "jti", "iat", "exp", "scope"]
_HEADER = {"alg", "typ", "kid"}


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """Who a token is for, and what its bearer may do."""

    subject: str
    token_id: str
    scopes: Scopes
    expires_at: int  #: microseconds
    #: Of a token that the customer's registry has signed; None: this terminal has.
    grant: Grant | None = None


class TokenBearer(Protocol):
    """Who asks: a connection, mostly."""

    @property
    def subject(self) -> str: ...

    @property
    def scopes(self) -> Scopes: ...


class Authority:
    def __init__(self, key: Ed25519PrivateKey, revoked: Iterable[str] = ()) -> None:
        self._key = key
        self._public = key.public_key()
        raw = self._public.public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._key_id = hashlib.sha256(raw).hexdigest()[:16]
        #: Token ids and ``sub:NAME`` entries that are no longer taken.
        self.revoked = set(revoked)
        #: What is taken of tokens that the customer's registry has signed; None where there is no registry.
        self.registered: RegisteredTokens | None = None

    @staticmethod
    def new_key() -> bytes:
        """A signing key as 32 raw bytes."""
        key = Ed25519PrivateKey.generate()
        return key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())

    @classmethod
    def from_raw(cls, raw: bytes, revoked: Iterable[str] = ()) -> Authority:
        return cls(Ed25519PrivateKey.from_private_bytes(raw), revoked)

    def issue(self, now: int, subject: str, scopes: list[str], life: float) -> tuple[str, str]:
        """(token, token id)."""
        check_name(subject, "service")
        Scopes.parse(scopes)
        if not scopes:
            raise BadRequest(
                "a token without scopes can do nothing", hint="publish:PATTERN, subscribe:PATTERN or admin"
            )
        token_id = uuid.uuid4().hex
        issued = now // SECOND
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": subject,
            "jti": token_id,
            "iat": issued,
            "exp": issued + max(1, int(life)),
            "scope": " ".join(scopes),
        }
        return jwt.encode(claims, self._key, algorithm="EdDSA", headers={"kid": self._key_id}), token_id

    def verify(self, now: int, token: str) -> TokenIdentity:
        refused = Unauthenticated("the token is missing, wrong, expired or revoked")
        try:
            header = jwt.get_unverified_header(token)
            key_id, registered = header.get("kid"), None
            if key_id != self._key_id:
                registered = self._registered()
            key = self._public if registered is None else registered.key(now, str(key_id))
            if set(header) - _HEADER or key is None:
                raise refused
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=["EdDSA"],
                audience=AUDIENCE,
                issuer=ISSUER if registered is None else registered.issuer,
                # The times are checked below, against the clock that was passed in.
                options={
                    "require": [*_CLAIMS, *(() if registered is None else registered.claims)],
                    "verify_exp": False,
                    "verify_iat": False,
                },
            )
            expires_at = int(claims["exp"]) * SECOND
            subject, token_id = str(claims["sub"]), str(claims["jti"])
            scopes = Scopes.parse(str(claims["scope"]).split())
            grant = None if registered is None else registered.grant(str(key_id), claims)
        except Unavailable:
            raise
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError, BusError):
            raise refused from None
        if expires_at <= now or token_id in self.revoked or f"sub:{subject}" in self.revoked:
            raise refused
        identity = TokenIdentity(subject, token_id, scopes, expires_at, grant)
        if not self.holds(now, identity):
            raise refused
        return identity

    def holds(self, now: int, identity: TokenIdentity) -> bool:
        """Is a token that was taken earlier still taken, by what the registry says now?"""
        grant = identity.grant
        return grant is None or (self.registered is not None and self.registered.holds(now, grant))

    def check_own(self, subject: str) -> None:
        """Raise NameTaken for the name of a service that the customer's registry has: one name is one
        service, and who suspends it there must not leave tokens behind that were made here."""
        if self.registered is not None and self.registered.knows(subject):
            raise NameTaken(
                f"the customer's registry has a service {subject!r}",
                hint="get its token there: 'landbridge customer service token'; or choose another name",
            )

    def _registered(self) -> RegisteredTokens:
        """The registry's tokens, for one whose key is not this terminal's own."""
        if self.registered is None:
            raise Unauthenticated("no registry signs tokens for this terminal")
        if not self.registered.is_ready:
            raise Unavailable(
                "the directory has not come yet, so a token of the registry can't be checked",
                hint="try again in a moment: the terminal asks its registry",
            )
        return self.registered
