"""Access: which caller a credential or a proof belongs to, and how many wrong ones are answered."""

from __future__ import annotations

from collections import OrderedDict

from landbridge.core.trust import credential
from landbridge.core.trust.identity import Proof, Proofs
from landbridge.registry.caller import Caller, refused
from landbridge.registry.state import RegistryState

MINUTE = 60_000_000


class Callers:
    """Finds the caller of a request."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._proofs = Proofs()

    def by_token(self, token: str) -> Caller:
        """Return the operator or a customer's admin.

        The refusal is the same for a token that is missing, mistyped, wrong or revoked. Tokens are found by
        their digest, so the time that it takes tells nothing about the token."""
        digest = credential.digest(credential.ADMIN, token)
        if digest is None:
            raise refused()
        if digest == self._state.keyring.kept.operator_digest:
            return Caller("operator", digest=digest)
        account = self._state.index.credentials.get(digest)
        if account is None:
            raise refused()
        name = next(known.id for known in account.customer.credentials if known.digest == digest)
        return Caller(f"admin:{name}", account, digest=digest)

    def by_proof(self, now: int, terminal: str, op: str, digest: bytes, proof: Proof) -> Caller:
        """Return a terminal. An unknown or revoked one has no keys, and is refused after the same time as a
        wrong signature. ``digest``: of the request's body, which need not have come yet."""
        account = self._state.index.terminals.get(terminal)
        keys = account.keys_of(terminal) if account is not None else []
        used = self._proofs.check(now, terminal, keys, op, digest, proof)
        return Caller(f"terminal:{terminal}", account, terminal, used)


class Attempts:
    """Wrong credentials, counted by the address that they come from.

    A right credential is never held up by wrong ones from the same address: 256 random bits can't be guessed,
    however many attempts are allowed. The count bounds how many wrong ones reach the audit."""

    def __init__(self, per_minute: int, max_sources: int = 10_000) -> None:
        self._per_minute = per_minute
        self._max_sources = max_sources
        #: Address → (when its minute began, attempts since). The one that began first stands first.
        self._sources: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def count(self, now: int, source: str) -> bool:
        """Count one more. False: the address has had too many in this minute."""
        began, count = self._sources.get(source, (now, 0))
        if not 0 <= now - began < MINUTE:
            began, count = now, 0
        if count == 0:
            self._sources.pop(source, None)
        self._sources[source] = (began, count + 1)
        while len(self._sources) > self._max_sources:
            self._sources.popitem(last=False)
        return count < self._per_minute

    def __len__(self) -> int:
        return len(self._sources)
