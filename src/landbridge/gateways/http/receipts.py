"""Receipts: what a client shows to settle a message that it has pulled.

A receipt names the session, subscription, lease and offset. It is sealed under a key of the process and the
identity of the token, so that nobody else's token can settle the message, and nobody can make one up. A
receipt of another identity, of an earlier process and a forged one are refused alike: whoever asks learns
nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import struct
from typing import NamedTuple

from landbridge.errors import BadRequest, LeaseLost

_PLACE = struct.Struct(">IIQQ")
_SEAL = 16
_LENGTH = (_PLACE.size + _SEAL) * 4 // 3 + 2


class LeasePlace(NamedTuple):
    """Where a lease is."""

    #: Number of the session of the gateway, and of the subscription of its bus.
    session: int
    subscription: int
    lease: int
    offset: int


class ReceiptSeal:
    """Makes and opens receipts for the tokens of one identity."""

    def __init__(self, key: bytes, identity: bytes) -> None:
        self._begun = hashlib.blake2b(identity, key=key, digest_size=_SEAL)

    def make(self, session: int, subscription: int, lease: int, offset: int) -> str:
        """The receipt of a leased message."""
        place = _PLACE.pack(session, subscription, lease, offset)
        seal = self._begun.copy()
        seal.update(place)
        return base64.urlsafe_b64encode(place + seal.digest()).rstrip(b"=").decode()

    def open(self, receipt: str) -> LeasePlace:
        """The place that a receipt names; LeaseLost if it isn't one of this process and identity."""
        if len(receipt) > _LENGTH:
            raise BadRequest("this is not a receipt", hint="'receipt' of a message that was pulled")
        try:
            raw = base64.b64decode(receipt.encode("ascii") + b"=" * (-len(receipt) % 4), b"-_", validate=True)
        except (ValueError, binascii.Error):
            raise BadRequest("this is not a receipt", hint="'receipt' of a message that was pulled") from None
        seal = self._begun.copy()
        seal.update(raw[: _PLACE.size])
        if len(raw) != _PLACE.size + _SEAL or not hmac.compare_digest(seal.digest(), raw[_PLACE.size :]):
            raise LeaseLost(
                "no message is leased by this receipt",
                hint="it has come back to its group, or another token has pulled it",
            )
        return LeasePlace(*_PLACE.unpack_from(raw))


def new_key() -> bytes:
    """A key for the receipts of this process."""
    return os.urandom(32)
