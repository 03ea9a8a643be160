"""A registry in the process of a terminal. ``landbridge up`` has one, so that other terminals can be added to
the bus later."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from landbridge.broker.clock import Clock
from landbridge.broker.commit import SETTINGS
from landbridge.broker.server import Terminal
from landbridge.client import registry_documents as api
from landbridge.client import registry_operations as op
from landbridge.client.context import Context, is_loopback
from landbridge.core.log.store import PutDocument
from landbridge.core.routing.linkstate import SignedLinkState
from landbridge.core.store_address import StoreAddress
from landbridge.core.trust.identity import SecureKey
from landbridge.core.trust.primitives import decrypt, derive, encrypt
from landbridge.core.trust.registered_tokens import RegisteredTokens
from landbridge.core.trust.tickets import Issue, Release, Renewal
from landbridge.crossing.ground import Settings
from landbridge.crossing.joining import join
from landbridge.errors import BadRequest, StoreFull, Unauthenticated
from landbridge.node import master_key, stores, terminal_file
from landbridge.node.listening import Endpoint
from landbridge.node.membership import Membership
from landbridge.node.site import App, Later
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller, refused
from landbridge.registry.registry import Registry
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore

log = structlog.get_logger("landbridge.registry")

#: The registry's store, beside the terminal's.
DATABASE = stores.REGISTRY
#: The terminal's identity.
FILE = "terminal.yml"
#: The same in the store of a terminal with several nodes, among its settings; and what it is sealed for.
IDENTITY = "identity"
SEALED = b"landbridge the identity of a terminal with nodes"
#: The name that the first customer is created with. It decides nothing afterwards.
LOCAL = "local"
#: Who did it, in the audit, where ``up`` did it by itself.
WHO = "up"


async def open_registry(
    data: Path | None,
    key_file: Path | None = None,
    address: StoreAddress | None = None,
    *,
    is_shared: bool = False,
) -> Registry:
    """The registry of a data folder, or one in memory. ``key_file``: where its master key is; None: in the
    data folder. ``address``: where its store is, if on a server. ``is_shared``: by the nodes of a terminal,
    of which one opens it at a time."""
    if data is None:
        registry = Registry(MemoryStore(), os.urandom(master_key.SIZE), Clock())
    elif address is not None:
        store = await stores.remote_store(data, DATABASE, address, is_shared=is_shared)
        key = await asyncio.to_thread(master_key.load, data, key_file, is_new=not store.exists)
        registry = Registry(store, key, Clock())
    else:
        file = data / DATABASE
        # The file is the store of version 0.1.
        is_new = not (await asyncio.to_thread(file.exists) or (data / f"{DATABASE}.db").exists())
        key = await asyncio.to_thread(master_key.load, data, key_file, is_new=is_new)
        registry = Registry(JournalStore(file), key, Clock())
    await registry.open()
    return registry


class NearRegistry:
    """The registry for the terminal of the same process. Calls go without HTTP, and so without a proof of
    identity; everything else is as for other terminals."""

    def __init__(self, registry: Registry, terminal: str, key: SecureKey) -> None:
        self._registry = registry
        self._terminal = terminal
        self._keys = key.public

    def _caller(self) -> Caller:
        account = self._registry.index.terminals.get(self._terminal)
        known = None if account is None else account.terminals[self._terminal]
        if known is None or known.revoked_at or self._keys not in known.keys:
            raise refused()
        return Caller(f"terminal:{self._terminal}", account, self._terminal, self._keys)

    async def issue(self, topic: str) -> Issue:
        return await self._registry.perform(self._caller(), op.ISSUE_TICKET, api.IssueTicket(topic))

    async def redeem(self, topic: str, ticket: bytes, box: bytes) -> Release:
        request = api.RedeemTicket(topic, ticket, box)
        return await self._registry.perform(self._caller(), op.REDEEM_TICKET, request)

    async def renew(self, ticket: bytes) -> Renewal:
        return await self._registry.perform(self._caller(), op.RENEW_TICKET, api.RenewTicket(ticket))

    async def directory(self, version: int, wait: float, topics: Sequence[str]) -> api.NewDirectory | None:
        request = api.ReadDirectory(version=version, wait=wait, topics=list(topics))
        return await self._registry.perform(self._caller(), op.READ_DIRECTORY, request)

    async def post_link_state(self, signed: SignedLinkState, held: Mapping[str, int]) -> None:
        request = api.PostLinkState(body=signed.body, signature=signed.signature, held=dict(held))
        await self._registry.perform(self._caller(), op.POST_LINK_STATE, request)


class Embedded(Membership):
    """``data``: None for a registry in memory. ``name``: the terminal's name, also in the registry, where a
    number is added if another terminal has that name. ``reset_operator``: make a new credential for the
    operator; whoever has the data folder may. ``store``: where the terminal's store is, if on a server: the
    registry's is beside it. ``key_file``: where the master key is, if not in the data folder. ``nodes``: of
    one of several nodes, the addresses of all of them; the terminal's identity is then in its store, sealed
    under the master key."""

    def __init__(
        self,
        data: Path | None,
        name: str,
        *,
        reset_operator: bool = False,
        store: StoreAddress | None = None,
        key_file: Path | None = None,
        nodes: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self._key_file = key_file
        self._nodes = nodes
        #: What the terminal's store has of its identity.
        self._stored: dict[str, Any] = {}
        self._terminal: Terminal | None = None
        self._data = data
        self._store = None if store is None else stores.registry_address(store)
        self._name = name
        self._reset_operator = reset_operator
        self._registry: Registry | None = None
        #: The operator's and the customer's credential, if this start has made them.
        self._operator_token: str | None = None
        self._admin_token: str | None = None
        #: SHA-256 of the certificate that was given; empty without one.
        self._digest = b""

    def app(self) -> App:
        return Later("landbridge.registry.http", lambda http: http.app(self.registry))

    async def open(self, terminal: Terminal) -> None:
        # Programs that come before the directory does are asked to come again.
        terminal.authority.registered = terminal.authority.registered or RegisteredTokens()
        shared = self._nodes is not None
        self._registry = await open_registry(self._data, self._key_file, self._store, is_shared=shared)
        if shared:
            await self._read_identity(terminal)
        self._operator_token = self._registry.operator_token
        if self._operator_token is None and self._reset_operator:
            operation, request = op.ROTATE_OPERATOR_CREDENTIAL, api.Request()
            made = await self._registry.perform(Caller("operator"), operation, request)
            self._operator_token = made.token

    async def check(self) -> None:
        assert self._data is not None
        assert self._store is not None
        store = await stores.remote_store(self._data, DATABASE, self._store, is_shared=True)
        await asyncio.to_thread(master_key.load, self._data, self._key_file, is_new=not store.exists)

    async def _read_identity(self, terminal: Terminal) -> None:
        """What another node has written, under the key that they have in common."""
        assert self._data is not None
        self._terminal = terminal
        key = await asyncio.to_thread(master_key.load, self._data, self._key_file, is_new=False)
        self._cipher = AESGCM(derive(key, SEALED))
        raw = dict(await terminal.store.documents(0, SETTINGS)).get(IDENTITY)
        if raw is None:
            return
        opened = decrypt(self._cipher, raw, SEALED)
        if opened is None:
            raise BadRequest(
                "the terminal's identity was sealed by another node under another key",
                hint=f"give all nodes the same key: copy {master_key.FILE} of the first one, and name it by "
                "--secret-file",
            )
        self._stored = msgspec.json.decode(opened, type=dict[str, Any])

    async def _write_identity(self, settings: dict[str, Any]) -> None:
        assert self._terminal is not None
        sealed = encrypt(self._cipher, msgspec.json.encode(settings), SEALED)
        await self._terminal.broker.write([PutDocument(SETTINGS, IDENTITY, sealed)])
        self._stored = settings

    @property
    def registry(self) -> Registry:
        assert self._registry is not None, "open() comes first"
        return self._registry

    def endpoint(self, given: Endpoint) -> Endpoint:
        self._digest = given.digest()
        return given

    async def join(self, terminal: Terminal, address: str, http: str | None) -> None:
        assert http is not None, "a registry is embedded where there is HTTP"
        self.registry_url = http
        account, self._admin_token = await self.registry.host_account(
            LOCAL, self._kept().get("customer_id", "")
        )
        self.customer = account.id
        found = await self._identity(account, address)
        if found is None:
            terminal.authority.registered = None
            return
        self.terminal, key = found
        near = NearRegistry(self.registry, self.terminal, key)
        settings = Settings(own_certificates=bool(self._digest))
        network = await join(
            terminal, account.id, self.terminal, key, near, self.registry.public_key, settings
        )
        network.certificate_digest = self._digest

    async def _identity(self, account: Account, address: str) -> tuple[str, SecureKey] | None:
        """(id, key) of this terminal. The first start creates the terminal in the registry, and so does a
        start after the admin has removed it. None if the terminal was revoked."""
        said = self._kept()
        caller = Caller(WHO, account)
        known = account.terminals.get(said.get("terminal_id", ""))
        if known is not None and known.revoked_at:
            log.warning("this terminal was revoked: it stands alone", terminal=known.id)
            return None
        if known is not None:
            if self._nodes is not None and not self._stored:
                await self._write_identity(said)  # the terminal had one process before
            await self._follow(caller, known.id, known.address, address)
            return known.id, SecureKey.parse(said["secure_key"])
        taken = {terminal.name for terminal in account.terminals.values()}
        numbered = (f"{self._name}-{number}" for number in range(2, len(taken) + 3))
        name = next(name for name in (self._name, *numbered) if name not in taken)
        request = api.CreateTerminal(name, address=address)
        made = await self.registry.perform(caller, op.CREATE_TERMINAL, request)
        assert made.secure_key is not None
        ids = {"customer_id": account.id, "terminal_id": made.terminal_id}
        await self._keep({**ids, "secure_key": made.secure_key, "name": name})
        return made.terminal_id, SecureKey.parse(made.secure_key)

    async def _follow(self, caller: Caller, terminal: str, known: str, address: str) -> None:
        """Tell the registry where this terminal listens now. An address off this machine was set by the admin
        and stays: this process may not know what others have to dial."""
        if known == address:
            return
        of_a_node = self._nodes is not None and known in self._nodes()
        if known and not of_a_node and not is_loopback(urlsplit(known).hostname or ""):
            log.warning("others dial another address", registry=known, here=address)
            return
        request = api.UpdateTerminal(terminal, address=address)
        try:
            await self.registry.perform(caller, op.UPDATE_TERMINAL, request)
        except StoreFull as error:  # the next start tries again; this terminal works without
            log.warning("others dial another address", registry=known, here=address, detail=str(error))

    def _kept(self) -> dict[str, Any]:
        if self._stored:
            return self._stored
        if self._data is None or not (self._data / FILE).exists():
            return {}
        return terminal_file.read(self._data / FILE, {}, {})

    async def _keep(self, settings: dict[str, Any]) -> None:
        if self._nodes is not None:
            await self._write_identity(settings)
            return
        if self._data is None:
            return
        file = self._data / FILE
        file.unlink(missing_ok=True)
        terminal_file.create(file)
        terminal_file.write(file, settings)

    # -- the context -------------------------------------------------------------------------------

    def _is_admin(self, found: Context | None) -> bool:
        try:
            caller = self.registry.callers.by_token((found and found.registry_token) or "")
        except Unauthenticated:
            return False
        return caller.account is not None and caller.account.id == self.customer

    async def context(self, found: Context | None, wanted: Context) -> Context:
        known = found if self._is_admin(found) else None
        if known is None and self._admin_token is None:
            # Neither the context nor this start has a credential of the customer's: make another.
            account = self.registry.index.accounts[self.customer]
            newest = account.customer.credentials[:1]
            caller = Caller(WHO, account, digest=newest[0].digest if newest else b"")
            made = await self.registry.perform(caller, op.ROTATE_CUSTOMER_CREDENTIAL, api.Request())
            self._admin_token = made.token
        return msgspec.structs.replace(
            wanted,
            registry=self.registry_url,
            registry_token=self._admin_token or (known and known.registry_token),
            operator_token=self._operator_token or (known and known.operator_token),
        )

    def stop(self) -> None:
        if self._registry is not None:
            self._registry.directories.close()

    async def close(self) -> None:
        if self._registry is not None:
            await self._registry.close()
