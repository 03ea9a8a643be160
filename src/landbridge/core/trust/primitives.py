"""The algorithms, chosen once; nothing else in ``core`` names one. HPKE (X25519, HKDF-SHA256, AES-256-GCM),
HKDF-SHA256, AES-256-GCM, and one way to write down the context that a key, a signature or a ciphertext is
bound to.
"""

from __future__ import annotations

import os
import struct
from functools import lru_cache

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, hpke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from landbridge.errors import BadRequest

#: What fields are made of. Which type stands where follows from the label, so the types need no mark.
Field = str | bytes | int

NONCE_SIZE = 12  #: of AES-GCM
TAG_SIZE = 16
_SUITE = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)
_length = struct.Struct(">I").pack
_integer = struct.Struct(">Q").pack


def fields(label: str, *values: Field) -> bytes:
    """Values in one unambiguous string: each has its length in front, so ("ab", "c") isn't ("a", "bc"). The
    label says what the string is for: what is made under one label is worth nothing under another."""
    parts: list[bytes] = []
    for value in ("landbridge/1 " + label, *values):
        if isinstance(value, int):
            value = _integer(value)
        elif isinstance(value, str):
            value = value.encode()
        parts += (_length(len(value)), value)
    return b"".join(parts)


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Is this the signature of the holder of an Ed25519 key? False for a key that is none, too."""
    try:
        _signing_key(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(4096)
def _signing_key(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)


def derive(secret: bytes, info: bytes, size: int = 32) -> bytes:
    return HKDF(hashes.SHA256(), size, None, info).derive(secret)


def encrypt(cipher: AESGCM, plaintext: bytes, aad: bytes) -> bytes:
    """Under a nonce of its own, which goes in front. Random nonces are good for 2^32 texts under one key."""
    nonce = os.urandom(NONCE_SIZE)
    return nonce + cipher.encrypt(nonce, plaintext, aad)


def decrypt(cipher: AESGCM, data: bytes | memoryview, aad: bytes) -> bytes | None:
    """What ``encrypt`` was given; None if it was another key, another context, or changed."""
    if len(data) < NONCE_SIZE + TAG_SIZE:
        return None
    try:
        return cipher.decrypt(data[:NONCE_SIZE], data[NONCE_SIZE:], aad)
    except InvalidTag:
        return None


def wrap(secret: bytes, public: bytes, info: bytes) -> bytes:
    """For the holder of the private half of an X25519 key."""
    try:
        return _SUITE.encrypt(secret, X25519PublicKey.from_public_bytes(public), info)
    except ValueError:
        raise BadRequest("a public key that can't be used") from None


def unwrap(data: bytes, private: X25519PrivateKey, info: bytes) -> bytes | None:
    try:
        return _SUITE.decrypt(data, private, info)
    except InvalidTag:
        return None
