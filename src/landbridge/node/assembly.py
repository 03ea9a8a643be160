"""The all-in-one of ``landbridge up``: store, terminal, HTTP side and a context to reach it by, put together.

Takes long to import; only ``up`` does.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import structlog

from landbridge.broker.limits import Limits, parse_limits
from landbridge.broker.server import Terminal
from landbridge.broker.tokens import IssuedToken
from landbridge.cli import units
from landbridge.cli.context import save
from landbridge.cli.events import EventsPlan, beside
from landbridge.client import context as contexts
from landbridge.client.bus import Bus
from landbridge.client.context import Context
from landbridge.client.link import Dial, dial_of
from landbridge.core.log.store import Store
from landbridge.errors import (
    BadContext,
    BadRequest,
    BusError,
    ContextTaken,
    Unauthenticated,
)
from landbridge.node import logs
from landbridge.node.http_port import HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.membership import Membership
from landbridge.node.site import Site
from landbridge.stores.memory import MemoryStore
from landbridge.stores.sqlite import SqliteStore
from landbridge.transport.memory import join

log = structlog.get_logger("landbridge.up")

#: Whom the terminal's own credential is for.
ADMIN = "admin"
#: Seconds.
ADMIN_LIFE = 365 * 86400.0
#: A credential is renewed when less than this part of its life is left.
RENEW_AT = 1 / 12
#: Files that a terminal opens beside its connections.
OTHER_FILES = 256
MICROSECONDS = 1_000_000
#: The store's file in the data folder.
DATABASE = "bus.db"
#: Requests by HTTP at a time, without and with a registry there.
MOST_REQUESTS, MOST_WITH_REGISTRY = 64, 4096
#: Seconds for a terminal that has the context we want to show that it is alive.
ANSWER_WITHIN = 2.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What ``up`` was asked for."""

    #: None: in memory.
    data: Path | None
    host: str
    port: int
    #: None: no HTTP.
    http_port: int | None
    name: str
    context: str
    limits: list[str]
    tls_cert: Path | None
    tls_key: Path | None
    auto_create: bool
    #: None: no event gateway.
    events: EventsPlan | None = None


class Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    """What runs. Printed as JSON."""

    url: str
    data: str | None
    context: str
    #: Is that context the current one?
    current: bool
    http: str | None
    name: str
    pid: int
    #: Where the registry of its customer is; None where it stands alone.
    registry: str | None = None
    #: Its own id there.
    terminal: str | None = None
    #: The event gateway's ports for the source and for clients; None where there is none.
    events: tuple[int, int] | None = None


async def serve(plan: Plan, ready: Callable[[Ready], None], membership: Membership | None = None) -> None:
    """Start what the plan says, call ``ready``, and serve until SIGINT or SIGTERM."""
    membership = membership or Membership()
    limits = parse_limits([_in_units(setting) for setting in plan.limits])
    endpoint = Endpoint(plan.host, plan.tls_cert, plan.tls_key)
    tls = membership.tls(endpoint)
    _allow_files(limits.max_connections + OTHER_FILES)
    store: Store = MemoryStore() if plan.data is None else SqliteStore(plan.data / DATABASE)
    terminal = Terminal(store, name=plan.name, limits=limits, auto_create=plan.auto_create)
    logs.take_over(asyncio.get_running_loop())
    with signals() as stop:
        await terminal.open()
        try:
            await membership.open(terminal)
            endpoint = membership.endpoint(endpoint)
            port = await terminal.listen(plan.host, plan.port, tls)
            http = _http(plan, terminal, membership, endpoint, tls)
            try:
                url = endpoint.url("lb", port)
                await membership.join(terminal, url, None if http is None else http.url)
                context = Context(url, "", endpoint.ca(), None if plan.data is None else str(plan.data))
                started = await _make_ready(plan, terminal, membership, context, http)
                async with _events(plan, terminal) as ports:
                    ready(msgspec.structs.replace(started, events=ports))
                    # All that is here now stays: the collector need not look at it again.
                    gc.collect()
                    gc.freeze()
                    await stop.wait()
            finally:
                membership.stop()
                if http is not None:
                    await http.close()
        finally:
            await terminal.close()
            await membership.close()


@asynccontextmanager
async def _events(plan: Plan, terminal: Terminal) -> AsyncIterator[tuple[int, int] | None]:
    """The event gateway, where one is wanted: its two ports."""
    if plan.events is None:
        yield None
    else:
        async with beside(terminal, plan.events) as gateway:
            yield gateway.event_port, gateway.client_port


async def _make_ready(
    plan: Plan, terminal: Terminal, membership: Membership, context: Context, http: HttpPort | None
) -> Ready:
    context = await membership.context(_found(plan.context), context)
    await keep_context(terminal, plan.context, context)
    return Ready(
        url=context.url,
        data=context.data,
        context=plan.context,
        current=contexts.current() == plan.context,
        http=None if http is None else http.url,
        name=plan.name,
        pid=os.getpid(),
        registry=membership.registry_url or None,
        terminal=membership.terminal or None,
    )


def _found(name: str) -> Context | None:
    try:
        return contexts.load(name)
    except BadContext:
        return None


@contextmanager
def signals() -> Iterator[asyncio.Event]:
    """An event that the first SIGINT or SIGTERM sets. The second ends the process at once: what was acked is
    on disk, so nothing is lost but the goodbye."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def received(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        log.info("stopping", signal=signal.Signals(number).name)
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, received, number)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _in_units(setting: str) -> str:
    """A limit as people write it (8MiB, 5s) as the terminal wants it: in bytes or seconds."""
    name, _, value = setting.partition("=")
    default = getattr(Limits(), name, None) if name in Limits.__struct_fields__ else None
    try:
        if isinstance(default, float):
            return f"{name}={units.parse_span(value)}"
        if isinstance(default, int):
            return f"{name}={units.parse_size(value)}"
    except ValueError as error:
        if not value.startswith("-"):  # a number, but none that is allowed: told with the others
            raise BadRequest(f"limit {name}: {error}") from None
    return setting


def _allow_files(wanted: int) -> None:
    """A connection is an open file, and many systems allow 1024 unless one asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        log.warning(
            "few files", allowed=most, wanted=wanted, hint="raise 'ulimit -Hn', or lower max_connections"
        )


# -- the context ---------------------------------------------------------------------------------------


async def keep_context(terminal: Terminal, name: str, wanted: Context) -> None:
    """Make the context that leads here, or renew it where it no longer does. Make it the current one if there
    is none. ContextTaken if it is another terminal's."""
    found = _found(name)
    if found is not None and wanted.registry is None:
        # What leads to a registry is not this terminal's to forget.
        wanted = msgspec.structs.replace(
            wanted,
            registry=found.registry,
            registry_token=found.registry_token,
            operator_token=found.operator_token,
        )
    if found is None or not _leads_here(terminal, found, wanted):
        if found is not None:
            await _check_free(terminal, name, found, wanted)
        save(name, msgspec.structs.replace(wanted, token=await _new_token(terminal)))
        log.info("context", name=name, url=wanted.url, made=found is None)
        if found is not None and found.url and found.url != wanted.url:
            log.warning("context moved", name=name, was=found.url, now=wanted.url)
    if contexts.current() is None:
        contexts.use(name)


async def _new_token(terminal: Terminal) -> str:
    now = terminal.broker.clock()
    life = min(ADMIN_LIFE, terminal.broker.limits.max_token_life)
    token, token_id = terminal.authority.issue(now, ADMIN, ["admin"], life)
    await terminal.operations.issued.remember(
        IssuedToken(token_id, ADMIN, ["admin"], now, now + int(life * MICROSECONDS))
    )
    return token


async def _check_free(terminal: Terminal, name: str, found: Context, wanted: Context) -> None:
    """Programs find their terminal by this context: they must not end up at another one unawares."""
    ours = found.data is not None and found.data == wanted.data
    if ours or _is_issued_here(terminal, found.token):
        return  # a restart, perhaps on another port
    if found.data is not None and (Path(found.data) / DATABASE).exists():
        why = f"it is of the terminal that keeps its data in {found.data}"
    elif found.url != wanted.url and await _is_in_use(found):
        why = f"it leads to {found.url}"
    else:
        return
    raise ContextTaken(
        f"the context {name} is taken: {why}",
        hint=f"give this one --context NAME, or 'landbridge context remove {name}' first",
    )


def _is_issued_here(terminal: Terminal, token: str) -> bool:
    try:
        terminal.authority.verify(terminal.broker.clock(), token)
    except Unauthenticated:
        return False
    return True


async def _is_in_use(context: Context) -> bool:
    """Does a terminal take this context's token at its address? One on another machine, which ``up`` did not
    make it for, may only be away."""
    try:
        if not contexts.is_loopback(contexts.parse_url(context.url).host):
            return True
        async with asyncio.timeout(ANSWER_WITHIN):
            bus = await Bus(dial_of(context), context.token, name="landbridge up").open()
            await bus.close()
    except (BusError, TimeoutError):
        return False
    return True


def _leads_here(terminal: Terminal, found: Context, wanted: Context) -> bool:
    if msgspec.structs.replace(found, token=wanted.token) != wanted:
        return False
    now = terminal.broker.clock()
    try:
        identity = terminal.authority.verify(now, found.token)
    except Unauthenticated:
        return False
    life = min(ADMIN_LIFE, terminal.broker.limits.max_token_life)
    return identity.scopes.admin and identity.expires_at - now > life * RENEW_AT * MICROSECONDS


# -- HTTP ----------------------------------------------------------------------------------------------


def dial_to(terminal: Terminal) -> Dial:
    """How gateways of this process reach the terminal: in memory, with nothing skipped but the socket."""

    async def dial(factory: Callable[[], asyncio.Protocol]) -> Any:
        protocol = factory()
        return join(protocol, terminal.attach()), protocol

    return dial


def _http(
    plan: Plan,
    terminal: Terminal,
    membership: Membership,
    endpoint: Endpoint,
    tls: ssl.SSLContext | None,
) -> HttpPort | None:
    if plan.http_port is None:
        return None
    registry = membership.app()
    return HttpPort(
        Site(dial_to(terminal), registry),
        endpoint,
        plan.http_port,
        tls,
        # Every terminal has a request that waits for a newer directory.
        most=MOST_REQUESTS if registry is None else MOST_WITH_REGISTRY,
        hint="give --http-port another number, or 0 for no HTTP",
    )
