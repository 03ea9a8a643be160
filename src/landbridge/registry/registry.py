"""The registry: its parts, which of them handles which operation, and how it opens and closes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import structlog

import landbridge
from landbridge.client import registry_documents as api
from landbridge.client import registry_operations as op
from landbridge.client.registry_operations import RegistryOperation
from landbridge.core.log.store import PutDocument, Store, Write
from landbridge.core.trust import credential
from landbridge.core.trust.tickets import Vault
from landbridge.errors import StoreCorrupt
from landbridge.registry import audit, codec, keyring
from landbridge.registry.access import Attempts, Callers
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller
from landbridge.registry.change import Change
from landbridge.registry.customers import Customers
from landbridge.registry.directories import Directories
from landbridge.registry.entities import KINDS, CustomerRecord
from landbridge.registry.groups import TerminalGroups
from landbridge.registry.journal import Journal
from landbridge.registry.keyring import KeyringRecord
from landbridge.registry.limits import RegistryLimits
from landbridge.registry.page import page_size
from landbridge.registry.plans import Plans
from landbridge.registry.services import CustomerServices
from landbridge.registry.state import RegistryState, log_of
from landbridge.registry.terminals import Terminals
from landbridge.registry.tickets import TicketOffice
from landbridge.registry.topics import CrossingTopics
from landbridge.registry.topology import Topologies

Q = TypeVar("Q", bound=api.Request)
A = TypeVar("A")
#: Does an operation for a caller.
Handler: TypeAlias = Callable[[Caller, Any], Awaitable[Any]]
log = structlog.get_logger("landbridge.registry")

#: Bytes of audit batches that are read at a time.
_AUDIT_READ = 1 << 20


class Registry:
    """``store`` belongs to the registry alone, which opens and closes it. ``master_key``: 32 bytes, kept
    apart from the store. ``clock``: microseconds since 1970."""

    def __init__(
        self,
        store: Store,
        master_key: bytes,
        clock: Callable[[], int],
        *,
        limits: RegistryLimits | None = None,
    ) -> None:
        #: The operator's credential, after the first start only. It is stored nowhere: save it.
        self.operator_token: str | None = None
        self.state = RegistryState(Vault(master_key), clock, limits or RegistryLimits())
        self.index, self.limits, self.clock = self.state.index, self.state.limits, clock
        self.callers = Callers(self.state)
        self.attempts = Attempts(self.limits.wrong_per_minute)
        self.directories = Directories(self.state)
        self._store = store
        self._is_open = False
        #: What was found damaged when it was opened. Each concerns one customer, everything else works.
        self.damage: list[str] = []
        self._handlers: dict[RegistryOperation[..., Any, Any], Handler] = {}
        self._bind()

    def __repr__(self) -> str:
        return f"<Registry of {len(self.index.accounts)} customers>"

    # -- operations --------------------------------------------------------------------------------

    async def perform(self, caller: Caller, operation: RegistryOperation[..., Q, A], request: Q) -> A:
        """Do an operation for a caller that has been let in. Every way into the registry ends here."""
        answer: A = await self._handlers[operation](caller, request)
        return answer

    def _bind(self) -> None:
        self._customers, terminals = Customers(self.state), Terminals(self.state)
        customers = self._customers
        groups, topics = TerminalGroups(self.state), CrossingTopics(self.state)
        tickets, plans = TicketOffice(self.state, topics), Plans(self.state, customers)
        topologies, services = Topologies(self.state), CustomerServices(self.state)

        self._read(op.SHOW_REGISTRY, self._show)
        self._change(op.ROTATE_OPERATOR_CREDENTIAL, customers.rotate_operator)
        self._change(op.CREATE_CUSTOMER, customers.create)
        self._read(op.LIST_CUSTOMERS, customers.list_page)
        self._change(op.REMOVE_CUSTOMER, customers.remove)
        self._change(op.RESET_CUSTOMER_CREDENTIAL, customers.reset_credential)
        self._read(op.SHOW_CUSTOMER, customers.show)
        self._change(op.UPDATE_CUSTOMER, customers.update)
        self._change(op.ROTATE_CUSTOMER_CREDENTIAL, customers.rotate_credential)
        self._change(op.REVOKE_CUSTOMER_CREDENTIALS, customers.revoke_credentials)

        self._change(op.CREATE_TERMINAL, terminals.create)
        self._read(op.LIST_TERMINALS, terminals.list_page)
        self._read(op.SHOW_TERMINAL, terminals.show)
        self._change(op.UPDATE_TERMINAL, terminals.update)
        self._change(op.REMOVE_TERMINAL, terminals.remove)
        self._change(op.REVOKE_TERMINAL, terminals.revoke)
        self._change(op.ROTATE_TERMINAL_KEY, terminals.rotate_key)
        self._change(op.CREATE_TERMINAL_ENROLMENT, terminals.create_enrolment)
        self._call(op.ENROL_TERMINAL, terminals.enrol)

        self._change(op.CREATE_TERMINAL_GROUP, groups.create)
        self._read(op.LIST_TERMINAL_GROUPS, groups.list_page)
        self._read(op.SHOW_TERMINAL_GROUP, groups.show)
        self._change(op.UPDATE_TERMINAL_GROUP, groups.update)
        self._change(op.REMOVE_TERMINAL_GROUP, groups.remove)
        self._change(op.ADD_TERMINAL_TO_GROUP, groups.add_terminals)
        self._change(op.REMOVE_TERMINAL_FROM_GROUP, groups.remove_terminal)

        self._change(op.CREATE_TOPIC, topics.create)
        self._read(op.LIST_TOPICS, topics.list_page)
        self._read(op.SHOW_TOPIC, topics.show)
        self._change(op.UPDATE_TOPIC, topics.update)
        self._change(op.REMOVE_TOPIC, topics.remove)
        self._change(op.ADD_GROUP_TO_TOPIC, topics.add_groups)
        self._change(op.REMOVE_GROUP_FROM_TOPIC, topics.remove_group)
        self._change(op.ROTATE_TOPIC_KEY, topics.rotate_key)

        self._change(op.REGISTER_SERVICE, services.register)
        self._read(op.LIST_SERVICES, services.list_page)
        self._read(op.SHOW_SERVICE, services.show)
        self._change(op.UPDATE_SERVICE, services.update)
        self._change(op.REMOVE_SERVICE, services.remove)
        self._change(op.SUSPEND_SERVICE, services.suspend)
        self._change(op.RESUME_SERVICE, services.resume)
        self._change(op.ROTATE_SERVICE_CREDENTIAL, services.rotate_credential)
        self._change(op.ROTATE_TOKEN_KEY, services.rotate_token_key)
        self._call(op.CREATE_SERVICE_TOKEN, services.create_token)

        self._call(op.ISSUE_TICKET, tickets.issue)
        self._serve(op.REDEEM_TICKET, tickets.redeem)
        self._serve(op.RENEW_TICKET, tickets.renew)
        self._call(op.READ_DIRECTORY, self.directories.read)
        self._call(op.POST_LINK_STATE, topologies.report)
        self._serve(op.REQUEST_CERTIFICATE, terminals.certificate)
        self._change(op.ROTATE_OWN_KEY, terminals.rotate_own_key)

        self._read(op.READ_TOPOLOGY, topologies.show)
        self._change(op.PUT_PLAN, plans.put)
        self._change(op.PUT_CUSTOMER_PLAN, plans.put_for_customer)
        self._read(op.READ_PLAN, plans.show)
        self._call(op.PLANNED_PATHS, plans.paths)
        self._call(op.READ_AUDIT, self._read_audit)

    def _change(self, operation: RegistryOperation[..., Q, A], work: Callable[[Change, Q], A]) -> None:
        """Bind an operation that changes something: it runs alone, and is stored with its audit event."""

        async def handle(caller: Caller, request: Q) -> A:
            subject = _subject(operation, caller, request)
            return await self.state.change(caller, operation.name, subject, lambda c: work(c, request))

        self._handlers[operation] = handle

    def _serve(self, operation: RegistryOperation[..., Q, A], work: Callable[[Change, Q], A]) -> None:
        """Bind an operation that changes nothing and is audited: many run side by side."""

        async def handle(caller: Caller, request: Q) -> A:
            subject = _subject(operation, caller, request)
            return await self.state.serve(caller, operation.name, subject, lambda c: work(c, request))

        self._handlers[operation] = handle

    def _read(self, operation: RegistryOperation[..., Q, A], read: Callable[[Caller, Q], A]) -> None:
        """Bind an operation that only looks."""

        async def handle(caller: Caller, request: Q) -> A:
            return read(caller, request)

        self._handlers[operation] = handle

    def _call(
        self, operation: RegistryOperation[..., Q, A], handle: Callable[[Caller, Q], Awaitable[A]]
    ) -> None:
        """Bind an operation that runs in a way of its own."""
        self._handlers[operation] = handle

    def _show(self, _: Caller, __: api.Request) -> api.RegistryInfo:
        return api.RegistryInfo(registry_key=self.public_key, version=landbridge.__version__)

    async def _read_audit(self, caller: Caller, request: api.ReadAudit) -> api.AuditPage:
        limit = page_size(request.limit, self.limits.max_page)
        page = api.AuditPage(items=[], next=max(0, request.since))
        while len(page.items) < limit:
            batches = await self.state.journal.read(log_of(caller), page.next, _AUDIT_READ)
            if not batches:
                break
            more = audit.read(batches, page.next, limit - len(page.items))
            page = api.AuditPage(items=page.items + more.items, next=more.next)
        return page

    async def host_account(self, name: str, known: str) -> tuple[Account, str | None]:
        """The account of the host: of the terminal in whose process this registry is. The first call creates
        the customer, and returns its credential too. ``known``: the id that the terminal has kept, which
        counts for a registry of an earlier build, where the id is kept nowhere else."""
        kept = self.state.keyring.kept
        account = self.index.accounts.get(kept.host or known)
        caller = Caller("up")
        if account is None:
            made = await self.state.change(
                caller,
                op.CREATE_CUSTOMER.name,
                name,
                lambda change: self._customers.create_host(change, name),
            )
            return self.index.accounts[made.customer_id], made.token
        if not kept.host:
            await self.state.change(
                caller, "adoptCustomer", account.id,
                lambda change: self.state.put_keyring(change, codec.replace(kept, host=account.id)),
            )  # fmt: skip
        return account, None

    # -- open, close -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Load everything, or begin anew. StoreCorrupt if the master key is not the one it began with."""
        await self._store.open()
        try:
            self.state.journal = Journal(self._store, keep=self.limits.audit_events)
            await self.state.journal.open()
            self.state.use_keys(self.state.vault, await self._load())
            self._is_open = True
        except BaseException:
            await self._store.close()
            raise

    async def close(self) -> None:
        """Finish the operations that have begun, and close the store."""
        self.directories.close()
        if self.state.running:
            await asyncio.wait(self.state.running)
        if self._is_open:
            self._is_open = False
            await self.state.journal.close()
            await self._store.close()

    async def _load(self) -> KeyringRecord:
        for finding in self._store.findings:
            self._note_damage(finding)
        for key, data in await self._store.documents(0, CustomerRecord.kind):
            try:
                customer = codec.decode(CustomerRecord, key, data)
                self.index.put_customer(Account(customer), customer)
            except StoreCorrupt as error:
                self._note_damage(str(error), error.hint)
        for kind in KINDS:
            for key, data in await self._store.documents(0, kind.kind):
                account = self.index.accounts.get(key.partition("/")[0])
                try:
                    if account is None:
                        raise StoreCorrupt(
                            f"the registry's {kind.kind} {key} belongs to no customer",
                            hint="it is left where it is; restore the customer from a backup",
                        )
                    self.index.put(account, codec.decode(kind, key, data))
                except StoreCorrupt as error:
                    self._note_damage(str(error), error.hint)
        for key, data in await self._store.documents(0, keyring.KIND):
            try:
                return codec.decode(KeyringRecord, key, data)
            except StoreCorrupt as error:
                error.hint += "; 'landbridge up --no-registry' starts the terminal alone"
                raise
        self.operator_token, digest = credential.new(credential.ADMIN)
        kept = keyring.new(self.state.vault, digest, self.clock())
        await self.state.journal.put([keyring.document(kept)])
        return kept

    def _note_damage(self, what: str, hint: str = "") -> None:
        self.damage.append(what)
        log.error("damage", detail=what, hint=hint)

    # -- keys --------------------------------------------------------------------------------------

    @property
    def public_key(self) -> bytes:
        """Ed25519, 32 bytes: the key that directories are signed with."""
        return self.state.keyring.public_key

    async def rotate_master_key(self, master_key: bytes) -> None:
        """Seal everything anew, in one commit. The old master key opens nothing after it."""
        vault = Vault(master_key)

        def work(change: Change) -> None:
            keys, accounts = self.state.keyring, self.index.accounts.values()
            kept = keys.rewrapped(vault)
            moved = [(account, keys.rewrapped_customer(account.customer, vault)) for account in accounts]
            writes: list[Write] = [keyring.document(kept)]
            writes += [PutDocument(new.kind, new.id, codec.encode(new)) for _, new in moved]

            def apply() -> None:
                self.state.use_keys(vault, kept)
                for account, customer in moved:
                    self.index.put_customer(account, customer)

            change.write(writes, apply)

        await self.state.change(Caller("operator"), "rotateMasterKey", "", work)


def _subject(operation: RegistryOperation[..., Any, Any], caller: Caller, request: api.Request) -> str:
    """Return the subject of an operation's audit event: what its path names, or else the name or the topic in
    its body, or else the terminal that asks."""
    for member in (*operation.in_path[:1], "name", "topic"):
        if member in request.__struct_fields__:
            return str(getattr(request, member))
    return caller.terminal
