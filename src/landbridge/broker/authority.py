"""Who is let in: bearers of tokens, which are EdDSA JWTs that a terminal makes and checks, and services that
show their credential. The terminal keeps a list of the tokens that it takes back.

One algorithm, one key, every claim demanded. The subject of a token has to be a registered service that is
active (ADR 24). What is wrong in any way gets the same answer.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from landbridge.core.names import check_name
from landbridge.core.time import SECOND
from landbridge.core.trust import credential
from landbridge.core.trust.registered_tokens import Grant, RegisteredTokens
from landbridge.core.trust.scopes import Scopes
from landbridge.core.trust.service import ServiceSpec
from landbridge.errors import BadRequest, BusError, NameTaken, Unauthenticated, Unavailable

ISSUER = "landbridge"
AUDIENCE = "landbridge"
#: For whom the passes of nodes are, and the seconds that one is good for.
NODES, PASS_LIFE = "landbridge-nodes", 600
_CLAIMS = ["iss", "aud", "sub", "jti", "iat", "exp", "scope"]
#: The claim of a token that a terminal has made for its own process.
_OWN = "landbridge_own"
#: The claim of a token by which a part of the process does something for a service: what the service itself
#: has to be allowed for that.
_BEHALF = "landbridge_behalf"
_HEADER = {"alg", "typ", "kid"}


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """Who a token or a credential is for, and what its bearer may do."""

    subject: str
    token_id: str  #: empty for a credential
    scopes: Scopes
    expires_at: int  #: microseconds
    issued_at: int = 0  #: microseconds
    key: bytes = b""  #: the digest of the credential; empty for a token
    own: bool = False  #: a part of the terminal's own process bears it: its subject counts as registered
    #: A part of the process bears it for the service that is its subject, which may do this much by itself.
    behalf: Scopes | None = None
    #: Of a token that the customer's registry has signed; None: this terminal has.
    grant: Grant | None = None


class Registrations(Protocol):
    """The registered services, as far as who is let in depends on them."""

    def issued_at(self, now: int, subject: str) -> int:
        """The moment that a token of this service names as that of its making."""

    def admits(self, identity: TokenIdentity) -> bool:
        """Is the subject a registered, active service, which may do what the token says, and was the token
        made since the service was registered?"""

    def met(self, identity: TokenIdentity) -> None:
        """Somebody was let in."""

    def by_credential(self, now: int, key: bytes) -> TokenIdentity | None:
        """The service whose credential has this digest."""


class NobodyRegistered:
    """Lets nobody in."""

    def issued_at(self, now: int, subject: str) -> int:
        return now

    def admits(self, identity: TokenIdentity) -> bool:
        return False

    def met(self, identity: TokenIdentity) -> None:
        raise AssertionError("nobody is let in")

    def by_credential(self, now: int, key: bytes) -> TokenIdentity | None:
        return None


def check_scopes(scopes: list[str]) -> None:
    """BadRequest or BadName where no token can have these scopes."""
    Scopes.parse(scopes)
    if not scopes:
        raise BadRequest(
            "a token without scopes can do nothing", hint="publish:PATTERN, subscribe:PATTERN or admin"
        )


class TokenBearer(Protocol):
    """Who asks: a connection, mostly."""

    @property
    def subject(self) -> str: ...

    @property
    def scopes(self) -> Scopes: ...


class Authority:
    def __init__(
        self,
        key: Ed25519PrivateKey,
        revoked: Iterable[str] = (),
        registrations: Registrations | None = None,
    ) -> None:
        self._key: Ed25519PrivateKey
        self._public: Ed25519PublicKey
        self._key_id: str
        self._set_key(key)
        self._registrations = registrations or NobodyRegistered()
        #: Token ids and ``sub:NAME`` entries that are no longer taken.
        self.revoked = set(revoked)
        #: What is taken of tokens that the customer's registry has signed; None where there is no registry.
        self.registered: RegisteredTokens | None = None

    def use(self, raw: bytes) -> None:
        """Sign with this key from now on, and take what it has signed."""
        self._set_key(Ed25519PrivateKey.from_private_bytes(raw))

    def _set_key(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._public = key.public_key()
        public = self._public.public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._key_id = hashlib.sha256(public).hexdigest()[:16]

    def node_pass(self, now: int) -> str:
        """What a node shows to another one: short-lived, signed with the key that only nodes have."""
        claims = {"iss": ISSUER, "aud": NODES, "iat": now / SECOND, "exp": now // SECOND + PASS_LIFE}
        return jwt.encode(claims, self._key, algorithm="EdDSA", headers={"kid": self._key_id})

    def is_node(self, now: int, shown: str) -> bool:
        """Has a node of this terminal made this pass lately?"""
        try:
            options: Any = {"require": ["iss", "aud", "exp"], "verify_exp": False, "verify_iat": False}
            claims = jwt.decode(
                shown, self._public, algorithms=["EdDSA"], audience=NODES, issuer=ISSUER, options=options
            )
            return int(claims["exp"]) * SECOND > now
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            return False

    @staticmethod
    def new_key() -> bytes:
        """A signing key as 32 raw bytes."""
        key = Ed25519PrivateKey.generate()
        return key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())

    @classmethod
    def from_raw(
        cls, raw: bytes, revoked: Iterable[str] = (), registrations: Registrations | None = None
    ) -> Authority:
        return cls(Ed25519PrivateKey.from_private_bytes(raw), revoked, registrations)

    def issue(
        self,
        now: int,
        subject: str,
        scopes: list[str],
        life: float,
        *,
        own: bool = False,
        behalf: list[str] | None = None,
    ) -> tuple[str, str]:
        """(token, token id). ``own``: for a part of the terminal's own process, which nobody registers.
        ``behalf``: for such a part that does something for the subject; it is good while the subject itself
        is let in and has these scopes."""
        check_name(subject, "service")
        check_scopes(scopes)
        token_id = uuid.uuid4().hex
        issued_at = self._registrations.issued_at(now, subject)
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": subject,
            "jti": token_id,
            # RFC 7519 2: a moment may be a fraction. To the microsecond, because a name may be removed and
            # given again within a second, and it has to be clear whose token this is.
            "iat": issued_at / SECOND,
            "exp": now // SECOND + max(1, int(life)),
            "scope": " ".join(scopes),
            **({_OWN: True} if own else {}),
            **({} if behalf is None else {_BEHALF: " ".join(behalf)}),
        }
        return jwt.encode(claims, self._key, algorithm="EdDSA", headers={"kid": self._key_id}), token_id

    def verify(self, now: int, token: str) -> TokenIdentity:
        """Who shows a token, or a credential in its place. Unauthenticated says no more than that."""
        if token.startswith(credential.SERVICE):
            key = credential.digest(credential.SERVICE, token)
            identity = None if key is None else self._registrations.by_credential(now, key)
        else:
            identity = self._read(now, token)
            is_lent = identity is not None and identity.behalf is not None
            if is_lent and self.registered is not None and not self._is_good(now, identity):
                self._registered()  # who is registered there, nobody knows before the directory has come
        known = self._let_in(now, identity)
        if known.grant is None:
            self._registrations.met(known)
        return known

    def look_again(self, now: int, identity: TokenIdentity) -> TokenIdentity:
        """What somebody who was let in may do now. Unauthenticated where it would not be let in any more."""
        if identity.key:
            return self._let_in(now, self._registrations.by_credential(now, identity.key))
        return self._let_in(now, identity)

    def check_may(self, now: int, subject: str, scopes: list[str]) -> None:
        """Raise Unauthenticated or Forbidden unless a subject is let in now and has these scopes itself."""
        wanted, issued_at = Scopes.parse(scopes), self._registrations.issued_at(now, subject)
        identity = TokenIdentity(subject, "", wanted, now + SECOND, issued_at, behalf=wanted)
        self._let_in(now, identity)

    def accepts(self, subject: str, token_id: str, scopes: Iterable[str], issued_at: int) -> bool:
        """Would a token that was made here be accepted, as far as its time goes?"""
        identity = TokenIdentity(subject, token_id, Scopes.parse(scopes), 1, issued_at)
        return self._is_good(0, identity)

    def _let_in(self, now: int, identity: TokenIdentity | None) -> TokenIdentity:
        if identity is None or not self._is_good(now, identity):
            raise Unauthenticated("the token is missing, wrong, expired or revoked")
        return identity

    def _is_good(self, now: int, identity: TokenIdentity | None) -> bool:
        """The one place that judges who is let in."""
        return (
            identity is not None
            and identity.expires_at > now
            and not {identity.token_id, f"sub:{identity.subject}"} & self.revoked
            and self._admits(now, identity)
        )

    def _admits(self, now: int, identity: TokenIdentity) -> bool:
        registered = self.registered
        if identity.grant is not None:
            return registered is not None and registered.holds(now, identity.grant)
        if identity.behalf is not None and registered is not None:
            if not registered.is_ready and not self._registrations.admits(identity):
                self._registered()  # nobody knows yet whose service it is
            if registered.knows(identity.subject):
                return registered.is_active(identity.subject)
        return self._registrations.admits(identity)

    def _read(self, now: int, token: str) -> TokenIdentity | None:
        """What a token says that this terminal or the customer's registry has signed; None for any other."""
        try:
            header = jwt.get_unverified_header(token)
            key_id, registered = header.get("kid"), None
            if key_id != self._key_id:
                registered = self._registered()
            key = self._public if registered is None else registered.key(now, str(key_id))
            if set(header) - _HEADER or key is None:
                return None
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=["EdDSA"],
                audience=AUDIENCE,
                issuer=ISSUER if registered is None else registered.issuer,
                # The times are checked against the clock that was passed in.
                options={
                    "require": [*_CLAIMS, *(() if registered is None else registered.claims)],
                    "verify_exp": False,
                    "verify_iat": False,
                },
            )
            return TokenIdentity(
                str(claims["sub"]),
                str(claims["jti"]),
                Scopes.parse(str(claims["scope"]).split()),
                int(claims["exp"]) * SECOND,
                round(float(claims["iat"]) * SECOND),
                own=registered is None and claims.get(_OWN) is True,
                behalf=_scopes_of(claims.get(_BEHALF)) if registered is None else None,
                grant=None if registered is None else registered.grant(str(key_id), claims),
            )
        except Unavailable:
            raise
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError, BusError):
            return None

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


def claims_of(identity: TokenIdentity, service: ServiceSpec | None) -> dict[str, str]:
    """What is known of somebody who was let in, for messages that say who has published them. ``service``:
    the registered service, where this terminal has it."""
    grant = identity.grant
    claims = {
        "subject": identity.subject,
        "token": identity.token_id,
        "issuer": ISSUER if grant is None else RegisteredTokens.issuer,
        "issued_at": str(identity.issued_at),
        "expires_at": str(identity.expires_at),
        "scope": " ".join(identity.scopes.as_texts()),
    }
    if grant is not None:
        claims["customer"] = grant.customer
    if service is not None:
        claims |= {"version": service.version, "owner": service.owner}
        claims |= {f"metadata.{name}": value for name, value in service.metadata.items()}
    return {name: value for name, value in claims.items() if value}


def _scopes_of(claim: object) -> Scopes | None:
    return None if claim is None else Scopes.parse(str(claim).split())
