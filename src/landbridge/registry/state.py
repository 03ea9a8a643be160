"""What all parts of the registry share: who exists, the keys, the limits, and the two ways in which an
operation runs.

    change   one at a time; its writes and its audit event are one commit, and then memory follows
    serve    side by side; changes nothing, but its audit event is stored before it is answered

A refusal is an audit event too. An operation that has begun is finished, even if its caller goes away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from landbridge.core.trust.tickets import Vault
from landbridge.errors import BusError
from landbridge.registry import audit, keyring
from landbridge.registry.account import Index
from landbridge.registry.audit import OPERATOR_LOG
from landbridge.registry.caller import Caller, refused
from landbridge.registry.change import Change
from landbridge.registry.journal import Journal
from landbridge.registry.keyring import Keyring, KeyringRecord
from landbridge.registry.limits import RegistryLimits

T = TypeVar("T")


class RegistryState:
    """The shared state. ``clock``: microseconds since 1970."""

    #: Both are there once the registry is open.
    keyring: Keyring
    journal: Journal

    def __init__(self, vault: Vault, clock: Callable[[], int], limits: RegistryLimits) -> None:
        self.vault = vault
        self.clock = clock
        self.limits = limits
        self.index = Index()
        #: Operations under way; the callers of some may have gone.
        self.running: set[asyncio.Task[Any]] = set()
        self._changing = asyncio.Lock()

    def use_keys(self, vault: Vault, kept: KeyringRecord) -> None:
        """Use these keys, under this master key."""
        self.vault = vault
        self.keyring = Keyring(vault, kept, ticket_life=self.limits.ticket_life)

    def put_keyring(self, change: Change, kept: KeyringRecord) -> None:
        """Store the registry's own document as a part of a change."""
        change.write([keyring.document(kept)], lambda: self.keyring.put(kept))

    async def change(self, caller: Caller, op: str, subject: str, work: Callable[[Change], T]) -> T:
        """Run an operation that changes something. ``work`` puts what it changes into the change and returns
        the answer; it raises a BusError to refuse."""

        async def in_turn() -> T:
            async with self._changing:
                return await self._run(caller, op, subject, work)

        return await self._finish(in_turn())

    async def serve(self, caller: Caller, op: str, subject: str, work: Callable[[Change], T]) -> T:
        """Run an operation that changes nothing and is audited."""
        return await self._finish(self._run(caller, op, subject, work))

    async def refuse(
        self, caller: Caller, op: str, subject: str, error: BusError, detail: str | None = None
    ) -> None:
        """Note a refusal that was made outside ``change`` and ``serve``. ``detail``: instead of the error's
        text."""
        told = str(error) if detail is None else detail
        event = audit.record(self.clock(), caller.who, op, subject, error.code, told)
        await self.journal.write(log_of(caller), event)

    async def _run(self, caller: Caller, op: str, subject: str, work: Callable[[Change], T]) -> T:
        account = caller.account
        if account is not None and self.index.accounts.get(account.id) is not account:
            raise refused()  # the customer was removed after the caller was let in
        log = log_of(caller)
        change = Change(self.clock(), self.index, caller, subject)
        try:
            answer = work(change)
            writes = change.seal()
        except BusError as error:
            detail = f"{change.detail} {error}".strip()
            event = audit.record(change.now, caller.who, op, change.subject, error.code, detail)
            await self.journal.write(log, event)
            raise
        event = audit.record(change.now, caller.who, op, change.subject, detail=change.detail)
        await self.journal.write(log, event, writes, change.apply)
        return answer

    async def _finish(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation to its end, also when the caller that waits for it is cancelled."""
        task = asyncio.create_task(operation)
        self.running.add(task)
        task.add_done_callback(self._on_finished)
        return await asyncio.shield(task)

    def _on_finished(self, task: asyncio.Task[Any]) -> None:
        self.running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here, because the caller may be gone


def log_of(caller: Caller) -> int:
    """Return the number of the audit log for a caller's operations."""
    return caller.account.customer.audit_log if caller.account is not None else OPERATOR_LOG
