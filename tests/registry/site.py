"""A registry and those who use it, through HTTP and without a port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from landbridge.client.registry import RegistryClient
from landbridge.core.log.store import Store
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.core.trust.seal import Opener, Sealer, look
from landbridge.core.trust.tickets import Issue
from landbridge.registry.http import app
from landbridge.registry.limits import RegistryLimits
from landbridge.registry.registry import Registry
from landbridge.testing import FakeClock

MASTER = bytes(range(32))
#: Applications of registries that are closed, by the most bytes of a body.
_spare: dict[int, list[Any]] = {}


class Member:
    """A terminal: its identity, and its own way to the registry."""

    def __init__(self, identity: Identity, key: SecureKey, client: RegistryClient) -> None:
        self.identity = identity
        self.key = key
        self.registry = client

    @property
    def id(self) -> str:
        return self.identity.terminal

    def seal(self, issue: Issue, to: Member, plaintext: bytes, now: int) -> bytes:
        sealer = Sealer(self.identity, issue, now)
        keys = [to.identity.public]
        return sealer.seal(
            to.id, keys, now=now, epoch=1, sequence=1, meta=b"", plaintext=plaintext, messages=1
        )

    async def open(self, source: Member, data: bytes, now: int) -> bytes:
        header = look(self.identity, [source.identity.public], source.id, data, now)
        release = await self.registry.redeem(header.topic, header.ticket, header.box)
        opener = Opener(self.identity)
        opener.learn(header, release, now)
        return opener.open(header, data, now)


class Tenant:
    """A customer with its admin and its terminals by name."""

    def __init__(self, id: str, token: str, admin: RegistryClient) -> None:
        self.id = id
        self.token = token
        self.admin = admin
        self.members: dict[str, Member] = {}

    def __getattr__(self, name: str) -> Member:
        try:
            return self.members[name]
        except KeyError:
            raise AttributeError(name) from None


class Site:
    def __init__(
        self, registry: Registry, clock: FakeClock, operator_token: str, closing: AsyncExitStack
    ) -> None:
        self.registry = registry
        self.clock = clock
        self.operator_token = operator_token
        # Making an application takes longer than most tests: it knows its registry by its state alone.
        spare = _spare.setdefault(registry.limits.max_body, [])
        self.app: Any = spare.pop() if spare else app(registry)
        self.app.state.registry = registry
        closing.callback(spare.append, self.app)
        self._closing = closing
        self.http = self._later(httpx.AsyncClient(transport=self._transport(), base_url="http://registry"))
        self.operator = self.client(token=operator_token)

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        store: Store,
        *,
        clock: FakeClock | None = None,
        operator_token: str = "",
        master: bytes = MASTER,
        limits: RegistryLimits | None = None,
    ) -> AsyncIterator[Site]:
        clock = clock or FakeClock()
        registry = Registry(store, master, clock, limits=limits)
        await registry.open()
        try:
            async with AsyncExitStack() as closing:
                yield cls(registry, clock, registry.operator_token or operator_token, closing)
        finally:
            await registry.close()

    def _transport(self) -> httpx.ASGITransport:
        return httpx.ASGITransport(self.app)

    def _later(self, client: Any) -> Any:
        self._closing.push_async_callback(
            client.aclose if isinstance(client, httpx.AsyncClient) else client.close
        )
        return client

    def client(self, **options: Any) -> RegistryClient:
        client: RegistryClient = self._later(
            RegistryClient("http://registry", transport=self._transport(), clock=self.clock, **options)
        )
        return client

    def member(self, customer: str, terminal: str, key: SecureKey) -> Member:
        identity = Identity(customer, terminal, key)
        return Member(identity, key, self.client(identity=identity))

    async def tenant(self, name: str) -> Tenant:
        """With the terminals paris, rome and oslo, the group ``readers`` (rome) and the topic ``orders``."""
        created = await self.operator.create_message_bus_customer(name)
        tenant = Tenant(created.customer_id, created.token, self.client(token=created.token))
        for city in ("paris", "rome", "oslo"):
            await self.join(tenant, city)
        await tenant.admin.create_terminal_group("readers", [tenant.rome.id])
        await tenant.admin.create_message_bus_topic("orders", ["readers"])
        return tenant

    async def join(self, tenant: Tenant, name: str, **options: Any) -> Member:
        made = await tenant.admin.create_terminal(name, **options)
        assert made.secure_key is not None
        member = self.member(made.customer_id, made.terminal_id, SecureKey.parse(made.secure_key))
        tenant.members[name] = member
        return member
