"""Tokens that are nothing but random bytes: whoever shows one is who it was made for. The registry keeps
their digests alone. 256 random bits need no slow hash: there is nothing to guess from.
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
_BYTES = 32
#: The checksum tells a mistyped token from a wrong one before anybody looks for it.
_CHECK = 4


def new(prefix: str) -> str:
    secret = os.urandom(_BYTES)
    return prefix + _encode(secret + _checksum(prefix, secret))


def digest(prefix: str, token: str) -> bytes | None:
    """What the registry knows a token by; None for what isn't one."""
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
    """``cus_…``, ``ter_…``: 26 characters that nobody can guess or count."""
    return f"{prefix}_{_encode(os.urandom(16))}"


def _encode(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()


def _decode(text: str) -> bytes:
    return base64.b32decode(text.upper() + "=" * (-len(text) % 8))


def _checksum(prefix: str, secret: bytes) -> bytes:
    return zlib.crc32(prefix.encode() + secret).to_bytes(_CHECK, "big")
