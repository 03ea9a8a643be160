"""Tokens of random bytes: whoever shows one is taken for whom it was made for. Who made one stores its digest
only. 256 random bits can't be guessed from a digest, so no slow hash is needed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import zlib

#: Admin credentials, of customers and of the operator.
ADMIN = "lbac1_"
#: Enrolment tokens.
ENROLMENT = "lbet1_"
#: Credentials of services, which are traded for tokens of a few minutes.
SERVICE = "lbsc1_"
_BYTES = 32
#: Bytes of the checksum, which tells a mistyped token before it is looked up.
_CHECK = 4


def new(prefix: str) -> tuple[str, bytes]:
    """Make a token. Returns it with its digest."""
    secret = os.urandom(_BYTES)
    token = prefix + _encode(secret + _checksum(prefix, secret))
    return token, hashlib.sha256(token.encode()).digest()


def digest(prefix: str, token: str) -> bytes | None:
    """Return the digest by which its maker knows a token; None for a text that is no token."""
    if not token.startswith(prefix) or len(token) > 100:
        return None
    try:
        raw = _decode(token.removeprefix(prefix))
    except (binascii.Error, ValueError):
        return None
    if len(raw) != _BYTES + _CHECK or _checksum(prefix, raw[:_BYTES]) != raw[_BYTES:]:
        return None
    return hashlib.sha256(token.encode()).digest()


def new_id(prefix: str) -> str:
    """Make an id, as ``cus_…`` or ``ter_…``: 26 random characters, so that it can't be guessed."""
    return f"{prefix}_{_encode(os.urandom(16))}"


def _encode(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()


def _decode(text: str) -> bytes:
    return base64.b32decode(text.upper() + "=" * (-len(text) % 8))


def _checksum(prefix: str, secret: bytes) -> bytes:
    return zlib.crc32(prefix.encode() + secret).to_bytes(_CHECK, "big")
