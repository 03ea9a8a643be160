"""A caller: who makes a request. The customer of every operation comes from here and from nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, field

from landbridge.core.trust.directory import PublicKeys
from landbridge.errors import Unauthenticated
from landbridge.registry.account import Account


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request, after the credential or the proof was checked."""

    #: As the audit names it.
    who: str
    #: None for the operator.
    account: Account | None = field(default=None, repr=False)
    #: Id of the terminal that asks; "" where an admin or the operator does.
    terminal: str = ""
    #: The keys that a terminal's proof was made with.
    keys: PublicKeys | None = field(default=None, repr=False)
    #: Digest of an admin's credential.
    digest: bytes = field(default=b"", repr=False)

    @property
    def own_account(self) -> Account:
        """The account of an admin or a terminal."""
        assert self.account is not None, "only the operator has no account, and is not let in here"
        return self.account


#: A caller that has shown nothing.
STRANGER = Caller("?")


def refused() -> Unauthenticated:
    """Return the refusal of a credential: the same one whatever was wrong with it."""
    return Unauthenticated(
        "the credential is missing, wrong or revoked",
        hint="Authorization: Bearer lbac1_…, the token that createMessageBusCustomer returned",
    )
