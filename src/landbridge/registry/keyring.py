"""The registry's own keys: it signs directories with one and seals tickets with another. Both, and everything
of its customers that is secret, are kept under the master key, which is in no store.
"""

from __future__ import annotations

import os

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from landbridge.core.trust.tickets import KEY_SIZE, Mint, Vault
from landbridge.registry.audit import OPERATOR_LOG

KIND, KEY = "registry/keyring", "registry"
_SIGNING, _TICKETS = "registry signing key", "registry ticket key"


class TicketKey(msgspec.Struct, frozen=True):
    kept: bytes
    made_at: int


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The registry's own document."""

    signing_key: bytes
    #: Newest first: it makes tickets, the others only read them.
    ticket_keys: list[TicketKey]
    operator_digest: bytes
    #: Number that the next customer's audit log gets; none is given twice.
    next_log: int


def new(vault: Vault, operator_digest: bytes, now: int) -> Kept:
    signing = Ed25519PrivateKey.generate().private_bytes_raw()
    return Kept(
        signing_key=vault.keep(signing, _SIGNING),
        ticket_keys=[_new_ticket_key(vault, now)],
        operator_digest=operator_digest,
        next_log=OPERATOR_LOG + 1,
    )


def _new_ticket_key(vault: Vault, now: int) -> TicketKey:
    return TicketKey(vault.keep(os.urandom(KEY_SIZE), _TICKETS), now)


class Keyring:
    def __init__(self, vault: Vault, kept: Kept, *, ticket_life: float) -> None:
        """StoreCorrupt where the master key is another one."""
        self.vault = vault
        self.signing_key = Ed25519PrivateKey.from_private_bytes(vault.take(kept.signing_key, _SIGNING))
        self.public_key = self.signing_key.public_key().public_bytes_raw()
        self._ticket_life = ticket_life
        self.put(kept)

    def put(self, kept: Kept) -> None:
        self.kept = kept
        newest, *older = [self.vault.take(key.kept, _TICKETS) for key in kept.ticket_keys]
        self.mint = Mint(newest, older=older, life=self._ticket_life)

    def with_new_ticket_key(self, now: int, readable: int) -> Kept:
        """``readable``: microseconds that a ticket can be renewed for."""
        keys = self.kept.ticket_keys
        # A key is needed for as long as a ticket that it made last, when its successor came, can be renewed.
        needed = [key for key, newer in zip(keys[1:], keys, strict=False) if now < newer.made_at + readable]
        fresh = [_new_ticket_key(self.vault, now), keys[0], *needed]
        return msgspec.structs.replace(self.kept, ticket_keys=fresh)

    def rewrapped(self, by: Vault) -> Kept:
        """The same keys under another master key."""
        signing = by.keep(self.vault.take(self.kept.signing_key, _SIGNING), _SIGNING)
        tickets = [
            TicketKey(by.keep(self.vault.take(key.kept, _TICKETS), _TICKETS), key.made_at)
            for key in self.kept.ticket_keys
        ]
        return msgspec.structs.replace(self.kept, signing_key=signing, ticket_keys=tickets)
