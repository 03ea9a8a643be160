"""Signatures of Standard Webhooks: an HMAC-SHA256 over ``id.timestamp.body``, one for each valid secret."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable

from landbridge.errors import BadRequest

PREFIX = "whsec_"
#: Bytes of a secret.
LEAST, MOST = 24, 64
#: An id that a header can hold, and that can't be mistaken for another one: a dot separates it from the
#: timestamp.
_PLAIN = re.compile(r"[A-Za-z0-9_@:/+=-]{1,256}\Z")


def write_secret(raw: bytes) -> str:
    """How a secret is written."""
    return PREFIX + base64.b64encode(raw).decode()


def read_secret(text: str) -> bytes:
    """The bytes of a secret. BadRequest where it is none; the error never repeats it."""
    hint = f"{PREFIX} and {LEAST} to {MOST} bytes in base64; leave it out, and one is made"
    if not text.startswith(PREFIX):
        raise BadRequest(f"a secret begins with {PREFIX}", hint=hint)
    try:
        raw = base64.b64decode(text.removeprefix(PREFIX).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise BadRequest("the secret is no base64", hint=hint) from None
    if not LEAST <= len(raw) <= MOST:
        raise BadRequest(f"a secret of {len(raw)} bytes, allowed are {LEAST} to {MOST}", hint=hint)
    return raw


def webhook_id(id: str) -> str:
    """The header webhook-id of a message. An id with characters that the header or the signature can't have
    is replaced by its hash, always the same."""
    return id if _PLAIN.match(id) else f"sha256-{hashlib.sha256(id.encode(errors='replace')).hexdigest()}"


def sign(secrets: Iterable[str], id: str, timestamp: int, body: bytes) -> str:
    """The header webhook-signature. ``timestamp``: seconds since 1970."""
    content = b"%b.%d.%b" % (id.encode("ascii"), timestamp, body)
    signatures = (hmac.digest(read_secret(secret), content, "sha256") for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(signature).decode()}" for signature in signatures)
