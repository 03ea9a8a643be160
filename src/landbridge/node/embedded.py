"""A registry in the same process as the terminal: what ``landbridge up`` adds, so that a bus of one terminal
is a bus to which others can be added."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog

from landbridge.broker.clock import Clock
from landbridge.broker.server import Terminal
from landbridge.client import registry_documents as api
from landbridge.client.context import Context, is_loopback
from landbridge.core.routing.linkstate import SignedLinkState
from landbridge.core.trust.identity import SecureKey
from landbridge.core.trust.tickets import Issue, Release, Renewal
from landbridge.crossing.network import Settings, join
from landbridge.errors import Unauthenticated
from landbridge.node import master_key, terminal_file
from landbridge.node.listening import Endpoint
from landbridge.node.membership import Membership
from landbridge.node.site import App, Later
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller, refused
from landbridge.registry.registry import Registry
from landbridge.stores.memory import MemoryStore
from landbridge.stores.sqlite import SqliteStore

log = structlog.get_logger("landbridge.registry")

#: The registry's store, beside the terminal's.
DATABASE = "registry.db"
#: The terminal's identity.
FILE = "terminal.yml"
#: What the first customer is called.
LOCAL = "local"
#: As the audit names what ``up`` does by itself.
WHO = "up"


class NearRegistry:
    """The registry as its own process's terminal asks it: without HTTP, and so without a proof; nothing else
    is different."""

    def __init__(self, registry: Registry, terminal: str, key: SecureKey) -> None:
        self._registry = registry
        self._terminal = terminal
        self._keys = key.public

    def _caller(self) -> Caller:
        account = self._registry.index.terminals.get(self._terminal)
        if account is None or account.terminals[self._terminal].revoked_at:
            raise refused()
        if self._keys not in account.terminals[self._terminal].keys:
            raise refused()
        return Caller(f"terminal:{self._terminal}", account, self._terminal, self._keys)

    async def issue(self, topic: str) -> Issue:
        return await self._registry.tickets.issue(self._caller(), api.IssueTicket(topic=topic))

    async def redeem(self, topic: str, ticket: bytes, box: bytes) -> Release:
        request = api.RedeemTicket(topic=topic, ticket=ticket, box=box)
        return await self._registry.tickets.redeem(self._caller(), request)

    async def renew(self, ticket: bytes) -> Renewal:
        return await self._registry.tickets.renew(self._caller(), api.RenewTicket(ticket=ticket))

    async def directory(self, version: int, wait: float, topics: Sequence[str]) -> api.DirectoryUpdate | None:
        request = api.ReadDirectory(version=version, wait=wait, topics=list(topics))
        return await self._registry.directories.newer(self._caller(), request)

    async def post_link_state(self, signed: SignedLinkState, held: Mapping[str, int]) -> None:
        request = api.PostLinkState(body=signed.body, signature=signed.signature, held=dict(held))
        await self._registry.topologies.report(self._caller(), request)


class Embedded(Membership):
    """``data``: None for a registry that is forgotten with its terminal. ``name``: what the terminal calls
    itself, and is called in the registry unless that has another one of the name."""

    def __init__(self, data: Path | None, name: str) -> None:
        self._data = data
        self._name = name
        self._registry: Registry | None = None
        #: The operator's and the customer's credential, where they were made by this start.
        self._operator_token: str | None = None
        self._admin_token: str | None = None
        #: Of the certificate that was given; empty without one.
        self._digest = b""

    def app(self) -> App:
        return Later("landbridge.registry.http", lambda http: http.app(self.registry))

    async def open(self, terminal: Terminal) -> None:
        if self._data is None:
            self._registry = Registry(MemoryStore(), os.urandom(master_key.SIZE), Clock())
        else:
            file = self._data / DATABASE
            key = master_key.load(self._data, None, is_new=not file.exists())
            self._registry = Registry(SqliteStore(file), key, Clock())
        await self._registry.open()
        self._operator_token = self._registry.operator_token

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
        account = await self._account()
        self.customer = account.id
        found = await self._identity(account, address)
        if found is None:
            return
        self.terminal, key = found
        near = NearRegistry(self.registry, self.terminal, key)
        settings = Settings(own_certificates=bool(self._digest))
        network = await join(
            terminal, account.id, self.terminal, key, near, self.registry.public_key, settings
        )
        network.certificate_digest = self._digest

    async def _account(self) -> Account:
        """The customer of this terminal; made by the first start."""
        accounts = self.registry.index.accounts
        for account in accounts.values():
            if account.customer.name == LOCAL:
                return account
        made = await self.registry.customers.create(Caller("operator"), api.CreateCustomer(name=LOCAL))
        self._admin_token = made.token
        return accounts[made.customer_id]

    async def _identity(self, account: Account, address: str) -> tuple[str, SecureKey] | None:
        """(id, key) of this terminal. Made by the first start, and again where the admin has removed it; None
        where it was revoked."""
        said = self._kept()
        caller = Caller(WHO, account)
        known = account.terminals.get(said.get("terminal_id", ""))
        if known is not None and known.revoked_at:
            log.warning("this terminal was revoked: it stands alone", terminal=known.id)
            return None
        if known is not None:
            await self._follow(caller, known.id, known.address, address)
            return known.id, SecureKey.parse(said["secure_key"])
        taken = {terminal.name for terminal in account.terminals.values()}
        name = next(
            name
            for number in range(1, len(taken) + 3)
            if (name := _numbered(self._name, number)) not in taken
        )
        made = await self.registry.terminals.create(caller, api.CreateTerminal(name=name, address=address))
        assert made.secure_key is not None
        self._keep(
            {
                "customer_id": account.id,
                "terminal_id": made.terminal_id,
                "secure_key": made.secure_key,
                "name": name,
            }
        )
        return made.terminal_id, SecureKey.parse(made.secure_key)

    async def _follow(self, caller: Caller, terminal: str, known: str, address: str) -> None:
        """It listens elsewhere than before. An address off this machine is the admin's word: what others have
        to dial may be known to nobody here."""
        if known == address:
            return
        if known and not is_loopback(urlsplit(known).hostname or ""):
            log.warning("others dial another address", registry=known, here=address)
            return
        await self.registry.terminals.update(caller, terminal, api.UpdateTerminal(address=address))

    def _kept(self) -> dict[str, Any]:
        if self._data is None or not (self._data / FILE).exists():
            return {}
        return terminal_file.read(self._data / FILE, {}, {})

    def _keep(self, settings: dict[str, Any]) -> None:
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
            self._admin_token = (await self.registry.customers.rotate_credential(caller)).token
        return msgspec.structs.replace(
            wanted,
            registry=self.registry_url,
            registry_token=self._admin_token or (known and known.registry_token),
            operator_token=self._operator_token or (known and known.operator_token),
        )

    def stop(self) -> None:
        self.registry.directories.close()

    async def close(self) -> None:
        if self._registry is not None:
            await self._registry.close()


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"
