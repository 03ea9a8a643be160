"""The registry's own keys: one signs directories, another seals tickets. They and all secrets of customers
are stored under the master key, which is in no store.
"""

from __future__ import annotations

import os
from itertools import pairwise

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from landbridge.core.log.store import PutDocument
from landbridge.core.trust.tickets import KEY_SIZE, Mint, Vault
from landbridge.registry import authority, codec
from landbridge.registry.audit import OPERATOR_LOG
from landbridge.registry.entities import AuthorityRecord, CustomerRecord, TokenKeyRecord

KIND, KEY = "registry/keyring", "registry"
_SIGNING, _TICKETS, _AUTHORITY = "registry signing key", "registry ticket key", "certificate authority"
_TOKENS = "token signing key"


class TicketKey(msgspec.Struct, frozen=True):
    """A key that seals tickets, itself sealed."""

    kept: bytes
    made_at: int


class KeyringRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The registry's own document."""

    signing_key: bytes
    #: Newest first: it makes tickets, the others only read them.
    ticket_keys: list[TicketKey]
    operator_digest: bytes
    #: Number that the next customer's audit log gets; none is given twice.
    next_log: int
    #: Id of the customer of the host: of the terminal in whose process the registry is. Empty: none was made.
    host: str = ""


def new(vault: Vault, operator_digest: bytes, now: int) -> KeyringRecord:
    """Return the keys of a registry that starts for the first time."""
    signing = Ed25519PrivateKey.generate().private_bytes_raw()
    return KeyringRecord(
        signing_key=vault.keep(signing, _SIGNING),
        ticket_keys=[_new_ticket_key(vault, now)],
        operator_digest=operator_digest,
        next_log=OPERATOR_LOG + 1,
    )


def document(kept: KeyringRecord) -> PutDocument:
    """Return the write that stores the registry's own document."""
    return PutDocument(KIND, KEY, codec.encode(kept))


def _new_ticket_key(vault: Vault, now: int) -> TicketKey:
    return TicketKey(vault.keep(os.urandom(KEY_SIZE), _TICKETS), now)


class Keyring:
    """The keys in use. StoreCorrupt where the master key is not the one that they are stored under."""

    def __init__(self, vault: Vault, kept: KeyringRecord, *, ticket_life: float) -> None:
        self.vault = vault
        self.signing_key = Ed25519PrivateKey.from_private_bytes(vault.take(kept.signing_key, _SIGNING))
        #: Ed25519, 32 bytes: terminals check directories with it.
        self.public_key = self.signing_key.public_key().public_bytes_raw()
        self._ticket_life = ticket_life
        self.put(kept)

    def put(self, kept: KeyringRecord) -> None:
        """Use the keys of a new document."""
        self.kept = kept
        newest, *older = [self.vault.take(key.kept, _TICKETS) for key in kept.ticket_keys]
        self.mint = Mint(newest, older=older, life=self._ticket_life)

    def with_new_ticket_key(self, now: int, readable: int) -> KeyringRecord:
        """Return the document with another ticket key. ``readable``: microseconds in which a ticket can be
        renewed."""
        keys = self.kept.ticket_keys
        # A key is needed until the last ticket that it made, when its successor came, can't be renewed.
        needed = [key for newer, key in pairwise(keys) if now < newer.made_at + readable]
        return codec.replace(self.kept, ticket_keys=[_new_ticket_key(self.vault, now), keys[0], *needed])

    def rewrapped(self, by: Vault) -> KeyringRecord:
        """Return the same keys under another master key."""
        signing = by.keep(self.vault.take(self.kept.signing_key, _SIGNING), _SIGNING)
        tickets = [
            TicketKey(by.keep(self.vault.take(key.kept, _TICKETS), _TICKETS), key.made_at)
            for key in self.kept.ticket_keys
        ]
        return codec.replace(self.kept, signing_key=signing, ticket_keys=tickets)

    # -- keys of customers -------------------------------------------------------------------------

    def new_authority(self, customer: str, now: int) -> AuthorityRecord:
        """Make the certificate authority of a new customer."""
        certificate, secret = authority.new(customer, now)
        return AuthorityRecord(certificate, self.vault.keep(secret, _AUTHORITY, customer))

    def authority_key(self, customer: CustomerRecord) -> bytes:
        """Return the private key of a customer's certificate authority, as PKCS#8."""
        return self.vault.take(customer.authority.sealed_key, _AUTHORITY, customer.id)

    def new_token_key(self, customer: str, now: int, signs_from: int) -> TokenKeyRecord:
        """Make a key that signs the tokens of a customer's services."""
        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw()
        sealed = self.vault.keep(key.private_bytes_raw(), _TOKENS, customer, public)
        return TokenKeyRecord(public=public, sealed_key=sealed, made_at=now, signs_from=signs_from)

    def token_key(self, customer: CustomerRecord, now: int) -> Ed25519PrivateKey:
        """Return the key that signs tokens now: the newest that has begun."""
        record = next(key for key in customer.token_keys if key.signs_from <= now)
        secret = self.vault.take(record.sealed_key, _TOKENS, customer.id, record.public)
        return Ed25519PrivateKey.from_private_bytes(secret)

    def rewrapped_customer(self, customer: CustomerRecord, by: Vault) -> CustomerRecord:
        """Return a customer whose keys are under another master key."""
        kept = by.keep(self.authority_key(customer), _AUTHORITY, customer.id)
        tokens = [
            codec.replace(
                key,
                sealed_key=by.keep(
                    self.vault.take(key.sealed_key, _TOKENS, customer.id, key.public),
                    _TOKENS,
                    customer.id,
                    key.public,
                ),
            )
            for key in customer.token_keys
        ]
        return codec.replace(
            customer,
            sealing_key=self.vault.rewrapped(customer.id, customer.sealing_key, by),
            authority=codec.replace(customer.authority, sealed_key=kept),
            token_keys=tokens,
        )
