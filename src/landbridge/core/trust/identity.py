"""Who a terminal is: its secure key, what it signs, and how others check it.

The secure key is 32 random bytes that never leave the terminal. A signing key and a wrapping key are derived
from it; the registry and the other terminals know only their public halves. Everything signed starts with a
label of its own, so that a signature for one purpose is worth nothing for another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections import Counter, OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from landbridge.core.time import SECOND
from landbridge.core.trust.directory import PublicKeys
from landbridge.core.trust.primitives import Field, derive, fields, is_signed, unwrap
from landbridge.errors import BadRequest, BadSeal, LimitReached, Unauthenticated

#: How far a proof's time may be from the registry's, microseconds.
FRESH = 30 * SECOND
#: Of proofs and of the link handshake, bytes.
NONCE_SIZE = 16
#: How many peers an identity keeps the secrets and the day's ciphers of; beyond, the oldest are derived
#: again.
_PEERS = 4096

_PREFIX = "lbsk1_"
_SEED_SIZE = 32
_CHECK_SIZE = 4

LinkRole = Literal["dialler", "listener"]


class SecureKey:
    """The secret of a terminal. ``str(key)`` is the text to keep; ``repr`` and formatting never show it."""

    __slots__ = ("_seed",)

    def __init__(self, seed: bytes) -> None:
        if len(seed) != _SEED_SIZE:
            raise BadRequest(f"a secure key has {_SEED_SIZE} bytes, not {len(seed)}")
        self._seed = seed

    @classmethod
    def new(cls) -> SecureKey:
        return cls(os.urandom(_SEED_SIZE))

    @classmethod
    def parse(cls, text: str) -> SecureKey:
        try:
            raw = base64.b64decode(text.strip().removeprefix(_PREFIX), altchars=b"-_", validate=True)
            key = cls(raw[:_SEED_SIZE])
        except (BadRequest, ValueError, binascii.Error):
            key = None
        # Comparing the whole text, not the checksum alone: base64 has several spellings of the same bytes.
        if key is None or not hmac.compare_digest(str(key).encode(), text.strip().encode()):
            raise BadRequest(
                "that is not a secure key",
                hint=f"it starts with {_PREFIX} and has 54 characters: copy it whole, or rotate the key",
            )
        return key

    def __str__(self) -> str:
        return _PREFIX + base64.urlsafe_b64encode(self._seed + _checksum(self._seed)).decode()

    def __repr__(self) -> str:
        return "<SecureKey>"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecureKey) and hmac.compare_digest(self._seed, other._seed)

    def __hash__(self) -> int:
        return hash(self._seed)

    def signing_key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(derive(self._seed, fields("signing key")))

    def wrapping_key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(derive(self._seed, fields("wrapping key")))

    @property
    def public(self) -> PublicKeys:
        """What the registry may know: a terminal can be enrolled with it before it has an id."""
        return PublicKeys(
            sign=self.signing_key().public_key().public_bytes_raw(),
            wrap=self.wrapping_key().public_key().public_bytes_raw(),
        )


def _checksum(seed: bytes) -> bytes:
    return hashlib.sha256(fields("secure key", seed)).digest()[:_CHECK_SIZE]


def check_public_keys(keys: PublicKeys) -> PublicKeys:
    """Check keys that a stranger sent: BadRequest unless they can be used. With a wrapping key of low order,
    whoever writes to that terminal would fail, or use a secret that everybody knows."""
    try:
        Ed25519PublicKey.from_public_bytes(keys.sign)
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(keys.wrap))
    except ValueError:
        raise BadRequest("these are not the public keys of a secure key") from None
    return keys


class Proof(msgspec.Struct, frozen=True):
    """Goes with a request to the registry, and proves that this terminal made it, now, with this body."""

    timestamp: int  #: microseconds since 1970
    nonce: bytes
    signature: bytes


class Identity:
    """A terminal of a customer with its keys. Has no state but caches; may be used from several threads."""

    def __init__(self, customer: str, terminal: str, key: SecureKey) -> None:
        self.customer = customer
        self.terminal = terminal
        self.public = key.public
        self._signing = key.signing_key()
        self._wrapping = key.wrapping_key()
        # An X25519 exchange takes ten times as long as the rest of a header: once per peer, not per day and
        # direction.
        self._shared_secret = lru_cache(_PEERS)(self._exchange)
        self.pair_cipher = lru_cache(2 * _PEERS)(self._pair_cipher)

    def __repr__(self) -> str:
        return f"<Identity {self.customer}/{self.terminal}>"

    def sign(self, label: str, *values: Field) -> bytes:
        return self._signing.sign(fields(label, *values))

    def pair_key(self, peer_wrap: bytes, source: str, destination: str, day: int) -> bytes:
        """32 bytes that only the two ends know; the same at both, another one for each direction and day.
        BadRequest if the peer's key can't be used."""
        info = fields("pair key", self.customer, source, destination, day)
        return derive(self._shared_secret(peer_wrap), info)

    def _pair_cipher(self, peer_wrap: bytes, source: str, destination: str, day: int) -> AESGCM:
        return AESGCM(self.pair_key(peer_wrap, source, destination, day))

    def _exchange(self, peer_wrap: bytes) -> bytes:
        try:
            return self._wrapping.exchange(X25519PublicKey.from_public_bytes(peer_wrap))
        except ValueError:
            raise BadRequest("a peer's wrapping key that can't be used") from None

    def unwrap(self, data: bytes, info: bytes) -> bytes:
        """Open a secret that was wrapped for this terminal's key and bound to ``info``."""
        secret = unwrap(data, self._wrapping, info)
        if secret is None:
            raise BadSeal("a key that was not wrapped for this terminal and this purpose")
        return secret

    def proof(self, op: str, body: bytes, now: int) -> Proof:
        nonce = os.urandom(NONCE_SIZE)
        return Proof(now, nonce, self.sign(*_proof_fields(self.terminal, op, digest_of(body), now, nonce)))


def verify(public_sign: bytes, signature: bytes, label: str, *values: Field) -> bool:
    return is_signed(public_sign, signature, fields(label, *values))


# --- proofs: requests to the registry ----------------------------------------------------------------


def digest_of(body: bytes) -> bytes:
    """What a proof signs of a request's body. It goes with the request, so that the proof can be checked
    before the body has come."""
    return hashlib.sha256(body).digest()


def _proof_fields(
    terminal: str, op: str, digest: bytes, timestamp: int, nonce: bytes
) -> tuple[str, str, str, int, bytes, bytes]:
    return ("proof", terminal, op, timestamp, nonce, digest)


#: What fits into a signed field; a timestamp outside is wrong anyway.
_LATEST = 2**63
#: Checked where the terminal is unknown, so that this takes as long as a wrong signature.
_NOBODY = SecureKey(bytes(_SEED_SIZE)).public


def bad_proof() -> Unauthenticated:
    """Return the refusal of a proof: the same one whatever was wrong with it."""
    return Unauthenticated(
        "the proof of this request is not good",
        hint="check the terminal's id and secure key, that its clock is right to 30 s, "
        "and that it has not been revoked",
    )


class Proofs:
    """Checks proofs and remembers their nonces for as long as they are fresh, so that each is good for one
    request."""

    def __init__(self, max_per_terminal: int = 65_536, *, since: int = -1) -> None:
        """``since``: proofs from before are refused; the moment of the start, because what was remembered
        until then is lost."""
        #: Requests that one terminal may make in the time that a nonce is remembered (60 s).
        self.max_per_terminal = max_per_terminal
        #: (terminal, nonce) → (when it came, its timestamp), oldest first. Only of proofs that were good.
        self._seen: OrderedDict[tuple[str, bytes], tuple[int, int]] = OrderedDict()
        #: Terminal → how many of its nonces are remembered. No entry for none.
        self._counts: Counter[str] = Counter()
        # The greatest timestamp among forgotten nonces. It is long stale on a clock that only goes forward;
        # after one that was ahead and was set back, it keeps a forgotten proof from being fresh again.
        self._floor = since

    def check(
        self, now: int, terminal_id: str, keys: Sequence[PublicKeys], op: str, digest: bytes, proof: Proof
    ) -> PublicKeys:
        """Returns the keys that the terminal has used, out of ``keys`` (none for an unknown or revoked one).
        ``digest``: of the body. Raises Unauthenticated with one and the same text, whatever is wrong."""
        self._forget(now)
        entry = (terminal_id, proof.nonce)
        timestamp = min(max(proof.timestamp, 0), _LATEST)
        signed = _proof_fields(terminal_id, op, digest, timestamp, proof.nonce)
        used = [key for key in keys or (_NOBODY,) if verify(key.sign, proof.signature, *signed)]
        fresh = proof.timestamp > self._floor and abs(now - proof.timestamp) <= FRESH
        if not (keys and used and fresh and len(proof.nonce) == NONCE_SIZE and entry not in self._seen):
            raise bad_proof()
        if self._counts[terminal_id] >= self.max_per_terminal:
            raise LimitReached(
                f"{self.max_per_terminal} requests of one terminal within a minute", hint="ask less often"
            )
        self._seen[entry] = (now, proof.timestamp)
        self._counts[terminal_id] += 1
        return used[0]

    def _forget(self, now: int) -> None:
        # A proof may be FRESH ahead of our clock when it comes, and is fresh for as long again after that.
        while self._seen:
            entry = next(iter(self._seen))
            came, timestamp = self._seen[entry]
            if came >= now - 2 * FRESH:
                break
            del self._seen[entry]
            self._floor = max(self._floor, timestamp)
            terminal = entry[0]
            self._counts[terminal] -= 1
            if not self._counts[terminal]:
                del self._counts[terminal]

    def __len__(self) -> int:
        return len(self._seen)


# --- links: two terminals that connect ---------------------------------------------------------------
#
#   dialler → listener   customer, dialler, nonce_a
#   listener → dialler   listener, nonce_b, signature as listener
#   dialler → listener   signature as dialler
#
# Each signs the other's nonce, so neither signature can be an old one; each signs its role, so neither can be
# handed back to its maker.


class Handshake(msgspec.Struct, frozen=True):
    """What both sides of a new link sign."""

    customer: str  #: our own, never the peer's word for it
    dialler: str
    listener: str
    nonce_a: bytes  #: the dialler's
    nonce_b: bytes  #: the listener's
    #: Names the channel, such as the digest of the listener's certificate: with it, a signature can't be
    #: passed on over another connection.
    binding: bytes = b""

    def sign(self, identity: Identity, role: LinkRole) -> bytes:
        return identity.sign("link", role, *msgspec.structs.astuple(self))

    def is_signed(self, role: LinkRole, keys: Sequence[PublicKeys], signature: bytes) -> bool:
        """``keys``: those of the terminal in this role."""
        if self.dialler == self.listener or {len(self.nonce_a), len(self.nonce_b)} != {NONCE_SIZE}:
            return False
        signed = msgspec.structs.astuple(self)
        return any(verify(key.sign, signature, "link", role, *signed) for key in keys)
