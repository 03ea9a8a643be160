"""The registry: its parts, and the two ways in which an operation runs.

    change   one at a time; what it puts is stored in one commit with its audit event, then moves in memory
    serve    side by side; changes nothing, but its audit event is stored before it is answered

A refusal is an event too. Whoever asked may go away meanwhile: what was begun is finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from landbridge.client import registry_documents as api
from landbridge.core.log.store import PutDocument, Store, Write
from landbridge.core.trust.tickets import Vault
from landbridge.errors import BusError, StoreCorrupt
from landbridge.registry import audit, authority, codec, credential, keyring
from landbridge.registry.account import KINDS, Account, Change, Index
from landbridge.registry.attempts import Attempts
from landbridge.registry.audit import OPERATOR_LOG
from landbridge.registry.caller import Caller, Callers, refused
from landbridge.registry.customers import Customers
from landbridge.registry.directories import Directories
from landbridge.registry.entities import CertificateAuthority, Customer
from landbridge.registry.groups import Groups
from landbridge.registry.journal import Journal
from landbridge.registry.keyring import Kept, Keyring
from landbridge.registry.limits import Limits
from landbridge.registry.page import page_size
from landbridge.registry.plans import Plans
from landbridge.registry.terminals import Terminals
from landbridge.registry.tickets import Tickets
from landbridge.registry.topics import Topics
from landbridge.registry.topology import Topologies

T = TypeVar("T")
#: Bytes of audit batches that are read at a time.
_AUDIT_READ = 1 << 20
#: Puts what it changes into the change, and returns the answer; BusError to refuse.
Work = Callable[[Change], T]


class Registry:
    """``store`` is the registry's own: it opens and closes it, and nobody else writes there. ``master_key``:
    32 bytes, kept apart from the store. ``clock``: microseconds since 1970."""

    def __init__(
        self, store: Store, master_key: bytes, clock: Callable[[], int], *, limits: Limits | None = None
    ) -> None:
        self.clock = clock
        self.limits = limits or Limits()
        #: The operator's credential, after the first start only. Kept nowhere: whoever starts us saves it.
        self.operator_token: str | None = None
        self.index = Index()
        self.callers = Callers(self.index)
        self.attempts = Attempts(self.limits.wrong_per_minute)
        self.customers = Customers(self)
        self.terminals = Terminals(self)
        self.groups = Groups(self)
        self.topics = Topics(self)
        self.tickets = Tickets(self)
        self.directories = Directories(self)
        self.topologies = Topologies(self)
        self.plans = Plans(self)
        self._store = store
        self._vault = Vault(master_key)
        self._keyring: Keyring | None = None
        self._journal: Journal | None = None
        self._changing = asyncio.Lock()
        #: Operations whose callers may have gone.
        self._running: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<Registry of {len(self.index.accounts)} customers>"

    # -- open, close -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Load everything, or begin anew. StoreCorrupt where the master key is not the one it was begun
        with."""
        await asyncio.to_thread(self._store.open)
        try:
            kept = await asyncio.to_thread(self._load)
            self._keyring = Keyring(self._vault, kept, ticket_life=self.limits.ticket_life)
            self.callers.operator_digest = kept.operator_digest
            self._journal = Journal(self._store, keep=self.limits.audit_events)
            await self._journal.open()
        except BaseException:
            await asyncio.to_thread(self._store.close)
            raise

    async def close(self) -> None:
        self.directories.close()
        if self._running:
            await asyncio.wait(self._running)
        if self._journal is not None:
            await self._journal.close()
            self._journal = None
            await asyncio.to_thread(self._store.close)

    def _load(self) -> Kept:
        for key, data in self._store.documents(Customer.kind):
            customer = codec.decode(Customer, key, data)
            self.index.put_customer(Account(customer), customer)
        for kind in KINDS:
            for key, data in self._store.documents(kind.kind):
                account = self.index.accounts.get(key.partition("/")[0])
                if account is None:
                    raise StoreCorrupt(f"the registry's {kind.kind} {key} belongs to no customer")
                self.index.put(account, codec.decode(kind, key, data))
        for key, data in self._store.documents(keyring.KIND):
            return codec.decode(Kept, key, data)
        return self._begin()

    def _begin(self) -> Kept:
        token = credential.new(credential.ADMIN)
        digest = credential.digest(credential.ADMIN, token)
        assert digest is not None
        kept = keyring.new(self._vault, digest, self.clock())
        self._store.commit([put_keyring(kept)])
        self.operator_token = token
        return kept

    # -- keys --------------------------------------------------------------------------------------

    @property
    def keyring(self) -> Keyring:
        assert self._keyring is not None, "open() comes first"
        return self._keyring

    @property
    def public_key(self) -> bytes:
        """Ed25519, 32 bytes: what signs directories."""
        return self.keyring.public_key

    def put_keyring(self, change: Change, kept: Kept) -> None:
        def apply() -> None:
            self.keyring.put(kept)
            self.callers.operator_digest = kept.operator_digest

        change.write([put_keyring(kept)], apply)

    def new_authority(self, customer: str, now: int) -> CertificateAuthority:
        certificate, secret = authority.new(customer, now)
        return CertificateAuthority(certificate, self._vault.keep(secret, *_authority_context(customer)))

    def authority_key(self, customer: Customer) -> bytes:
        return self._vault.take(customer.authority.sealed_key, *_authority_context(customer.id))

    async def rotate_master_key(self, master_key: bytes) -> None:
        """Seal everything anew, in one commit. The old master key is worth nothing after it."""
        vault = Vault(master_key)

        def work(change: Change) -> None:
            kept = self.keyring.rewrapped(vault)
            moved = [
                (account, self._rewrapped(account.customer, vault))
                for account in self.index.accounts.values()
            ]
            writes: list[Write] = [put_keyring(kept)]
            writes += [PutDocument(Customer.kind, new.id, codec.encode(new)) for _, new in moved]

            def apply() -> None:
                self._vault = vault
                self._keyring = Keyring(vault, kept, ticket_life=self.limits.ticket_life)
                for account, customer in moved:
                    self.index.put_customer(account, customer)

            change.write(writes, apply)

        await self.change(Caller("operator"), "rotateMasterKey", "", work)

    def _rewrapped(self, customer: Customer, by: Vault) -> Customer:
        context = _authority_context(customer.id)
        kept = by.keep(self._vault.take(customer.authority.sealed_key, *context), *context)
        return codec.replace(
            customer,
            sealing_key=self._vault.rewrapped(customer.id, customer.sealing_key, by),
            authority=codec.replace(customer.authority, sealed_key=kept),
        )

    # -- operations --------------------------------------------------------------------------------

    async def change(self, caller: Caller, op: str, subject: str, work: Work[T]) -> T:
        return await self._finish(self._change(caller, op, subject, work))

    async def serve(self, caller: Caller, op: str, subject: str, work: Work[T]) -> T:
        return await self._finish(self._run(caller, op, subject, work))

    async def refuse(self, caller: Caller, op: str, subject: str, error: BusError) -> None:
        """Note a refusal that neither of the two has made."""
        event = audit.event(self.clock(), caller.who, op, subject, error.code, str(error))
        await self.journal.write(_log_of(caller), event)

    async def note(self, who: str, op: str, subject: str, outcome: str, detail: str = "") -> None:
        """An event that belongs to no customer."""
        await self.journal.write(OPERATOR_LOG, audit.event(self.clock(), who, op, subject, outcome, detail))

    @property
    def journal(self) -> Journal:
        assert self._journal is not None, "open() comes first"
        return self._journal

    async def _change(self, caller: Caller, op: str, subject: str, work: Work[T]) -> T:
        async with self._changing:
            return await self._run(caller, op, subject, work)

    async def _run(self, caller: Caller, op: str, subject: str, work: Work[T]) -> T:
        account = caller.account
        if account is not None and self.index.accounts.get(account.id) is not account:
            raise refused()  # removed since it was let in
        log = _log_of(caller)
        change = Change(self.clock(), self.index, account, subject)
        try:
            answer = work(change)
            writes = change.seal()
        except BusError as refusal:
            detail = f"{change.detail} {refusal}".strip()
            await self.journal.write(
                log, audit.event(change.now, caller.who, op, change.subject, refusal.code, detail)
            )
            raise
        event = audit.event(change.now, caller.who, op, change.subject, detail=change.detail)
        await self.journal.write(log, event, writes, change.apply)
        return answer

    async def _finish(self, operation: Coroutine[Any, Any, T]) -> T:
        """To its end, also when the one who waits for it is cancelled."""
        task = asyncio.create_task(operation)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # its caller has it, or is gone

    # -- audit -------------------------------------------------------------------------------------

    async def read_audit(self, caller: Caller, since: int, limit: int) -> api.AuditPage:
        log = _log_of(caller)
        limit = page_size(limit, self.limits.max_page)
        page = api.AuditPage(items=[], next=max(0, since))
        while len(page.items) < limit:
            batches = await self.journal.read(log, page.next, _AUDIT_READ)
            if not batches:
                break
            more = audit.read(batches, page.next, limit - len(page.items))
            page = api.AuditPage(items=page.items + more.items, next=more.next)
        return page


def _log_of(caller: Caller) -> int:
    return caller.account.customer.audit_log if caller.account is not None else OPERATOR_LOG


def put_keyring(kept: Kept) -> PutDocument:
    return PutDocument(keyring.KIND, keyring.KEY, codec.encode(kept))


def _authority_context(customer: str) -> tuple[str, str]:
    return ("certificate authority", customer)
