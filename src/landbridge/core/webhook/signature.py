"""Signatures of Standard Webhooks over ``id.timestamp.body``, one for each valid secret: an HMAC-SHA256
(``v1``), or by an Ed25519 key (``v1a``), where the receiver is to have nothing that it could sign with."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from landbridge.errors import BadRequest

PREFIX = "whsec_"
#: Of a private key, which takes the place of a secret, and of the public one that receivers get.
PRIVATE, PUBLIC = "whsk_", "whpk_"
#: Bytes of a private key.
KEY_SIZE = 32
#: Bytes of a secret.
LEAST, MOST = 24, 64
#: An id that a header can hold, and that can't be mistaken for another one: a dot separates it from the
#: timestamp.
_PLAIN = re.compile(r"[A-Za-z0-9_@:/+=-]{1,256}\Z")


def write_secret(raw: bytes, prefix: str = PREFIX) -> str:
    """How a secret or a key is written."""
    return prefix + base64.b64encode(raw).decode()


def is_key(text: str) -> bool:
    """Whether a secret is a private key, which is never shown: its public one is."""
    return text.startswith(PRIVATE)


def public_key(text: str) -> str:
    """The public key of a private one, as receivers want it; empty for a secret that both sides have."""
    return write_secret(_key(text).public_key().public_bytes_raw(), PUBLIC) if is_key(text) else ""


@lru_cache(maxsize=256)
def _key(text: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(read_secret(text))


def read_secret(text: str) -> bytes:
    """The bytes of a secret. BadRequest where it is none; the error never repeats it."""
    prefix, least, most = (PRIVATE, KEY_SIZE, KEY_SIZE) if is_key(text) else (PREFIX, LEAST, MOST)
    size = f"{least}" if least == most else f"{least} to {most}"
    hint = f"{prefix} and {size} bytes in base64; leave it out, and one is made"
    if not text.startswith(prefix):
        raise BadRequest(f"a secret begins with {PREFIX}, a key with {PRIVATE}", hint=hint)
    try:
        raw = base64.b64decode(text.removeprefix(prefix).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise BadRequest("the secret is no base64", hint=hint) from None
    if not least <= len(raw) <= most:
        raise BadRequest(f"a secret of {len(raw)} bytes, allowed are {size}", hint=hint)
    return raw


def webhook_id(id: str) -> str:
    """The header webhook-id of a message. An id with characters that the header or the signature can't have
    is replaced by its hash, always the same."""
    return id if _PLAIN.match(id) else f"sha256-{hashlib.sha256(id.encode(errors='replace')).hexdigest()}"


def sign(secrets: Iterable[str], id: str, timestamp: int, body: bytes) -> str:
    """The header webhook-signature. ``timestamp``: seconds since 1970."""
    content = b"%b.%d.%b" % (id.encode("ascii"), timestamp, body)
    return " ".join(_signature(secret, content) for secret in secrets)


def _signature(secret: str, content: bytes) -> str:
    if is_key(secret):
        return f"v1a,{base64.b64encode(_key(secret).sign(content)).decode()}"
    return f"v1,{base64.b64encode(hmac.digest(read_secret(secret), content, 'sha256')).decode()}"
