"""Callers: who makes a request. The customer of every operation comes from here and from nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, field

from landbridge.core.trust.directory import PublicKeys
from landbridge.core.trust.identity import Proof, Proofs
from landbridge.errors import Unauthenticated
from landbridge.registry import credential
from landbridge.registry.account import Account, Index


@dataclass(frozen=True, slots=True)
class Caller:
    #: As the audit names it.
    who: str
    #: None for the operator.
    account: Account | None = field(default=None, repr=False)
    #: Id, where a terminal asks.
    terminal: str = ""
    #: The keys that a terminal's proof was made with.
    keys: PublicKeys | None = field(default=None, repr=False)
    #: What an admin's credential is known by.
    digest: bytes = field(default=b"", repr=False)


class Callers:
    def __init__(self, index: Index) -> None:
        self._index = index
        self._proofs = Proofs()
        #: Of the operator's credential.
        self.operator_digest = b""

    def by_token(self, token: str) -> Caller:
        """The operator or a customer's admin. One and the same answer for a token that is missing, mistyped,
        wrong or revoked; found by its digest, so that the time tells nothing of the token."""
        digest = credential.digest(credential.ADMIN, token)
        if digest is None:
            raise refused()
        if digest == self.operator_digest:
            return Caller("operator", digest=digest)
        account = self._index.credentials.get(digest)
        if account is None:
            raise refused()
        name = next(known.id for known in account.customer.credentials if known.digest == digest)
        return Caller(f"admin:{name}", account, digest=digest)

    def by_proof(self, now: int, terminal: str, op: str, body: bytes, proof: Proof) -> Caller:
        """A terminal. An unknown or revoked one has no keys, and that takes as long as a wrong signature."""
        account = self._index.terminals.get(terminal)
        known = account.terminals[terminal] if account is not None else None
        keys = known.keys if known is not None and not known.revoked_at else []
        used = self._proofs.check(now, terminal, keys, op, body, proof)
        return Caller(f"terminal:{terminal}", account, terminal, used)


def refused() -> Unauthenticated:
    return Unauthenticated(
        "the credential is missing, wrong or revoked",
        hint="Authorization: Bearer lbac1_…, the token that createMessageBusCustomer returned",
    )
