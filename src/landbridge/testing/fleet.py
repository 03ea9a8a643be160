"""A fleet: a registry and several terminals of one customer in this process, linked over loopback.

async with Fleet() as fleet:
    paris, tokyo = await fleet.server("paris"), await fleet.client("tokyo")
    await fleet.topic("orders", billing=[tokyo])
    async with fleet.attach(paris) as bus: ...
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.registry import RegistryClient
from landbridge.core.log.store import Store
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.crossing.certificates import Certificates
from landbridge.crossing.ground import Settings
from landbridge.crossing.joining import join
from landbridge.crossing.network import Network
from landbridge.registry.http import app
from landbridge.registry.limits import RegistryLimits
from landbridge.registry.registry import Registry
from landbridge.stores.memory import MemoryStore
from landbridge.testing.terminal import attach

#: Probes that find a dead link within a second, for tests that cut some.
QUICK = Settings(probe_busy=0.2, probe_idle=0.5)


def now() -> int:
    return time.time_ns() // 1000


@dataclass
class FleetMember:
    """A terminal of the fleet."""

    name: str
    id: str
    key: SecureKey
    store: Store
    mode: str
    settings: Settings
    terminal: Terminal
    port: int = 0
    #: None: its links are in the clear.
    certificates: Certificates | None = None
    limits: Limits | None = None

    @property
    def network(self) -> Network:
        assert isinstance(self.terminal.broker.crossing, Network)
        return self.terminal.broker.crossing


class Fleet:
    """``tls``: a folder for certificates; None: links in the clear, over loopback."""

    def __init__(
        self,
        *,
        limits: RegistryLimits | None = None,
        settings: Settings = QUICK,
        tls: Path | None = None,
    ) -> None:
        self._tls = tls
        self._limits = limits or RegistryLimits()
        self._settings = settings
        self._stack = AsyncExitStack()
        self.members: dict[str, FleetMember] = {}
        self.registry: Registry
        self.admin: RegistryClient
        self._registry_store = MemoryStore()
        self._master_key = os.urandom(32)
        #: False: the registry can't be reached.
        self.registry_up = True

    async def __aenter__(self) -> Fleet:
        if not structlog.is_configured():
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        self.registry = Registry(self._registry_store, self._master_key, now, limits=self._limits)
        await self.registry.open()
        self._stack.push_async_callback(self.registry.close)
        self._app = app(self.registry)
        async with self._client(token=self.registry.operator_token) as operator:
            customer = await operator.create_message_bus_customer("acme")
        self.customer = customer.customer_id
        self.admin = await self._stack.enter_async_context(self._client(token=customer.token))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members.values():
            await member.terminal.close()
        await self._stack.aclose()

    def _client(self, **credentials: Any) -> RegistryClient:
        import httpx

        fleet = self
        asgi: Any = self._app
        inner = httpx.ASGITransport(app=asgi)

        class Transport(httpx.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                if not fleet.registry_up:
                    raise httpx.ConnectError("the registry is down")
                return await inner.handle_async_request(request)

        return RegistryClient("http://registry", transport=Transport(), **credentials)

    # -- terminals ---------------------------------------------------------------------------------

    async def server(self, name: str, **options: Any) -> FleetMember:
        return await self.add(name, "server", **options)

    async def client(self, name: str, **options: Any) -> FleetMember:
        return await self.add(name, "client", **options)

    async def add(
        self,
        name: str,
        mode: Any = "server",
        *,
        store: Store | None = None,
        settings: Settings | None = None,
        transit: bool = True,
        limits: Limits | None = None,
    ) -> FleetMember:
        store = store or MemoryStore()
        terminal = Terminal(store, name=name, limits=limits)
        await terminal.open()
        made = await self.admin.create_terminal(name, mode=mode, transit=transit)
        assert made.secure_key is not None
        key = SecureKey.parse(made.secure_key)
        member = FleetMember(name, made.terminal_id, key, store, mode, settings or self._settings, terminal)
        member.limits = limits
        self.members[name] = member
        await self._listen_and_join(member)
        return member

    async def _listen_and_join(self, member: FleetMember) -> None:
        client = self._client(identity=Identity(self.customer, member.id, member.key))
        self._stack.push_async_callback(client.close)
        certificates = None
        if self._tls is not None:
            folder = self._tls / member.name
            certificates = Certificates(folder, self.customer, member.id, client, now)
            await certificates.open()
            self._stack.push_async_callback(certificates.close)
        member.certificates = certificates
        tls = None if certificates is None else certificates.listener
        port = await member.terminal.listen("127.0.0.1", member.port, tls)
        if member.mode == "server" and port != member.port:
            address = f"lb{'' if tls is None else 's'}://127.0.0.1:{port}"
            await self.admin.update_terminal(member.id, address=address)
        member.port = port
        network = await join(
            member.terminal,
            self.customer,
            member.id,
            member.key,
            client,
            self.registry.public_key,
            member.settings,
        )
        if certificates is not None:
            certificates.use(network)

    async def stop(self, member: FleetMember) -> None:
        await member.terminal.close()

    async def start(self, member: FleetMember) -> None:
        """Start a stopped terminal again, on the same store and port."""
        member.terminal = Terminal(member.store, name=member.name, limits=member.limits)
        await member.terminal.open()
        await self._listen_and_join(member)

    def attach(self, member: FleetMember, **options: Any) -> Bus:
        return attach(member.terminal, **options)

    # -- what they share ---------------------------------------------------------------------------

    async def topic(self, name: str, /, **groups: list[FleetMember]) -> None:
        """A topic with these groups, each with its terminals."""
        for group, members in groups.items():
            await self.admin.create_terminal_group(group, [member.id for member in members])
        await self.admin.create_message_bus_topic(name, list(groups))

    async def linked(self) -> None:
        """Wait until every terminal knows a path to every other one."""

        def ready() -> bool:
            networks = [member.network for member in self.members.values()]
            return all(
                one is other or one.routes.hops(now(), other.me) is not None
                for one in networks
                for other in networks
            )

        await until(ready)


async def until(ready: Callable[[], bool], within: float = 60.0) -> None:
    """Wait for something that happens by itself. The limit is for a test that hangs, and measures nothing."""
    async with asyncio.timeout(within):
        while not ready():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
