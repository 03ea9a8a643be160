"""One process of a terminal: store, terminal, HTTP port and the context by which programs find the terminal.

The import takes long: commands import this module only when they start a process that stays.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import structlog
from msgspec.structs import replace

from landbridge.broker.authority import TokenIdentity
from landbridge.broker.limits import Limits, parse_limits
from landbridge.broker.server import Terminal
from landbridge.broker.tokens import IssuedToken
from landbridge.client import context as contexts
from landbridge.client.bus import Bus
from landbridge.client.context import Context
from landbridge.client.wire import Dial, dial_of
from landbridge.core.sizes import parse_size
from landbridge.core.time import SECOND, parse_span
from landbridge.errors import BadRequest, BusError, ContextTaken, Unauthenticated, Unavailable
from landbridge.gateways.metrics import Condition
from landbridge.node import logs, stores
from landbridge.node.callbacks import callbacks_of
from landbridge.node.console import ConsolePart
from landbridge.node.events import beside
from landbridge.node.http_port import MOST_STRANGERS, HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.membership import Membership, find_context
from landbridge.node.plan import NodePlan, NodeReady
from landbridge.node.schedules import scheduling
from landbridge.node.site import App, Site
from landbridge.node.sms import sms_of
from landbridge.node.socketio import watching as watching_socketio
from landbridge.node.webhooks import webhooks_of
from landbridge.node.websub import hub_of
from landbridge.transport.memory import join
from landbridge.transport.strangers import site_of

log = structlog.get_logger("landbridge.up")

#: Shows the progress of some work, while the context lasts: called with (work done, work in all).
Watching: TypeAlias = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]

#: The subject of the credential in the context that ``up`` makes.
ADMIN = "admin"
#: Seconds that this credential is valid.
ADMIN_LIFE = 365 * 86400.0
#: A credential is renewed when less than this part of its life is left.
RENEW_AT = 1 / 12
#: Seconds that another node has to make a credential.
TOKEN_WITHIN = 30.0
#: Files that a terminal opens beside its connections.
OTHER_FILES = 256
#: The store's folder in the data folder.
DATABASE = stores.BUS
#: HTTP requests at a time, without and with a registry in the process.
MOST_REQUESTS, MOST_WITH_REGISTRY = 1024, 4096
#: And connections by Socket.IO, each of which is a request for as long as it lives.
MOST_SOCKETS = 2000
#: Seconds that the terminal of a context has to answer, before the context counts as free.
ANSWER_WITHIN = 2.0


async def serve(
    plan: NodePlan,
    ready: Callable[[NodeReady], None],
    membership: Membership | None = None,
    watching: Watching | None = None,
) -> None:
    """Start what the plan says, call ``ready``, and serve until SIGINT or SIGTERM. ``watching``: shows the
    progress of an opening that takes long; None: the log tells of it."""
    membership = membership or Membership()
    limits = limits_of(plan)
    endpoint = Endpoint(plan.host, plan.tls_cert, plan.tls_key)
    tls = membership.tls(endpoint)
    logs.take_over(asyncio.get_running_loop())
    with signals() as stop:
        with (watching or logs.progress)("opening the store") as tell:
            store = await stores.bus_store(plan.data, plan.store, tell)
            terminal = Terminal(store, name=plan.name, limits=limits, auto_create=plan.auto_create)
            terminal.log_level = logs.log_level
            await terminal.open()
        async with running(plan, terminal, membership, endpoint, tls) as started:
            ready(started)
            await settle(terminal)
            await stop.wait()


def limits_of(plan: NodePlan) -> Limits:
    """The limits that a plan gives, once this process may open as many files as they need."""
    limits = parse_limits([_in_units(setting) for setting in plan.limits])
    # Strangers are counted by each port: that of HTTP and that of MQTT.
    strangers = MOST_STRANGERS * (1 if plan.mqtt_port is None else 2)
    allow_files(limits.max_connections + MOST_WITH_REGISTRY + MOST_SOCKETS + strangers + OTHER_FILES)
    return limits


async def settle(terminal: Terminal) -> None:
    """What exists now stays until the end: the garbage collector need not look at it again."""
    await terminal.routing.until_idle()
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def running(
    plan: NodePlan,
    terminal: Terminal,
    membership: Membership,
    endpoint: Endpoint,
    tls: ssl.SSLContext | None,
) -> AsyncIterator[NodeReady]:
    """Serve with a terminal that is open, and close it at the end."""
    try:
        await membership.open(terminal)
        endpoint = membership.endpoint(endpoint)
        port = await terminal.listen(plan.host, plan.port, tls)
        condition = partial(_condition, terminal)
        console = ConsolePart(terminal, dial_to(terminal), dial_to(terminal, is_part=True, is_whole=True))
        http = http_port(plan, terminal, membership.app(), endpoint, tls, condition, console)
        try:
            url = endpoint.url("lb", port)
            await membership.join(terminal, url, None if http is None else http.url)
            data = None if plan.data is None else str(plan.data)
            context = Context(url, "", endpoint.ca(), data)
            started = await _make_ready(plan, terminal, membership, context, http, console)
            async with gateways(plan, terminal, endpoint, tls, console, http) as ports:
                yield replace(started, **ports._asdict())
        finally:
            stores.leave(terminal.store)
            membership.stop()
            if http is not None:
                await http.close()
    finally:
        await terminal.close()
        await membership.close()


class GatewayPorts(NamedTuple):
    """Where gateways listen; None where one wasn't asked for."""

    #: Of the event gateway: for the source and for clients.
    events: tuple[int, int] | None = None
    mqtt: str | None = None
    smtp: str | None = None


def _condition(terminal: Terminal) -> tuple[bool, list[str]]:
    return stores.condition(terminal.store, terminal.troubles)


@asynccontextmanager
async def gateways(
    plan: NodePlan,
    terminal: Terminal,
    endpoint: Endpoint,
    tls: ssl.SSLContext | None,
    console: ConsolePart,
    http: SitePort | None,
) -> AsyncIterator[GatewayPorts]:
    """The gateways that are in the process of a terminal."""
    dial = dial_to(terminal, is_part=True)
    # For parts whose clients may come to any of several nodes.
    whole = dial_to(terminal, is_part=True, is_whole=True)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(scheduling(terminal, dial))
        # Of several nodes, each posts some of them, whichever has the topic that they wait in.
        callbacks = callbacks_of(terminal, dial_to(terminal), plan.allow_outgoing)
        await stack.enter_async_context(callbacks)
        webhooks = webhooks_of(terminal, dial, plan.allow_outgoing)
        await stack.enter_async_context(webhooks)
        await stack.enter_async_context(sms_of(terminal, dial, plan.allow_outgoing, whole=whole))
        hub = hub_of(terminal, dial, plan.allow_outgoing)
        await stack.enter_async_context(hub)
        if http is not None:
            await stack.enter_async_context(console.sampling(dial))
        ports = GatewayPorts(smtp=await _enter_mail(stack, plan, terminal, dial, endpoint, tls))
        if plan.events is not None:
            gateway = await stack.enter_async_context(beside(terminal, plan.events, dial_to(terminal)))
            ports = ports._replace(events=(gateway.event_port, gateway.client_port))
        if http is not None and plan.socketio:
            await stack.enter_async_context(watching_socketio(terminal, dial, http.site))
        if plan.mqtt_port is not None:
            from landbridge.node.mqtt import mqtt_of  # few need it, and a start should be quick

            mqtt = mqtt_of(terminal, whole, dial_to(terminal), plan.host, plan.mqtt_port, tls)
            mqtt_gateway, mqtt_port = await stack.enter_async_context(mqtt)
            if http is not None:
                stack.enter_context(_mqtt_over_http(http.site, mqtt_gateway))
            ports = ports._replace(mqtt=endpoint.url("mqtt", mqtt_port))
        yield ports


@contextmanager
def _mqtt_over_http(site: Site, gateway: Any) -> Iterator[None]:
    """Serve MQTT at the HTTP port, too, while the block lasts."""
    from landbridge.gateways.http.cross_origin import CrossOrigin
    from landbridge.gateways.mqtt.websocket import serve_websocket

    site.mqtt = partial(serve_websocket, gateway, CrossOrigin(site.origins))
    try:
        yield
    finally:
        site.mqtt = None


async def _enter_mail(
    stack: AsyncExitStack,
    plan: NodePlan,
    terminal: Terminal,
    dial: Dial,
    endpoint: Endpoint,
    tls: ssl.SSLContext | None,
) -> str | None:
    """Send mails, and take them where the plan says so. Returns where, in words."""
    if plan.smtp is None and find_spec("aiosmtplib") is None:
        hint = "pip install 'landbridge[mail]'"
        terminal.operations.mail.lack("mails are not sent, because aiosmtplib is not installed", hint)
        log.info("mail outlets are not sent", hint=hint)
        return None
    from landbridge.node.mail import mails_of, taking_mail

    domain = "" if plan.smtp is None else plan.smtp.domain
    senders = await stack.enter_async_context(mails_of(terminal, dial, plan.allow_outgoing, domain))
    if plan.smtp is None:
        return None
    taking = taking_mail(terminal, dial_to(terminal), plan.smtp, endpoint, tls, senders)
    return await stack.enter_async_context(taking)


async def _make_ready(
    plan: NodePlan,
    terminal: Terminal,
    membership: Membership,
    context: Context,
    http: SitePort | None,
    console: ConsolePart,
) -> NodeReady:
    context = await membership.context(find_context(plan.context), context)
    await keep_context(terminal, plan.context, context)
    link = await sign_in(plan, http, console)
    return node_ready(plan, context, http, membership, url=context.url, link=link)


async def sign_in(plan: NodePlan, http: SitePort | None, console: ConsolePart) -> str | None:
    """A link to the console, where the plan wants one."""
    kept = find_context(plan.context)
    if not plan.sign_in or http is None or kept is None:
        return None
    return http.url + await console.sessions.link(kept.token)


def node_ready(
    plan: NodePlan,
    context: Context,
    http: SitePort | None,
    membership: Membership | None,
    *,
    url: str,
    link: str | None,
) -> NodeReady:
    """What a process tells once it can be used. ``membership``: None of a node that has no registry at the
    moment. ``link``: to the console."""
    return NodeReady(
        url=url,
        data=context.data,
        store=None if plan.store is None else str(plan.store),
        context=plan.context,
        current=contexts.current() == plan.context,
        http=None if http is None else http.url,
        sign_in=link,
        name=plan.name,
        pid=os.getpid(),
        registry=context.registry if membership is None else membership.registry_url or None,
        terminal=None if membership is None else membership.terminal or None,
        node=plan.node,
    )


@contextmanager
def signals() -> Iterator[asyncio.Event]:
    """Yields an event that the first SIGINT or SIGTERM sets. The second signal ends the process at once: what
    was acked is on disk, so no message is lost."""
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
    """Convert a limit from how people write it (8MiB, 5s) to what the terminal wants: bytes or seconds."""
    name, _, value = setting.partition("=")
    default = getattr(Limits(), name, None) if name in Limits.__struct_fields__ else None
    try:
        if isinstance(default, float):
            return f"{name}={parse_span(value)}"
        if isinstance(default, int):
            return f"{name}={parse_size(value)}"
    except ValueError as error:
        if not value.startswith("-"):  # a number that is not allowed: reported with the other limits
            raise BadRequest(f"limit {name}: {error}") from None
    return setting


def allow_files(wanted: int) -> None:
    """Raise the limit of open files: each connection is one, and many systems allow only 1024 by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        log.warning(
            "few files",
            allowed=most,
            wanted=wanted,
            hint="raise 'ulimit -Hn', or lower a terminal's max_connections",
        )


# -- the context ---------------------------------------------------------------------------------------


async def keep_context(terminal: Terminal, name: str, wanted: Context) -> None:
    """Save the context that leads to this terminal, unless the saved one still does. The context becomes the
    current one if there is none. Raises ContextTaken if the context is another terminal's."""
    found = find_context(name)
    if found is not None and wanted.registry is None:
        # This terminal has no registry, but the context may lead to one: that part stays.
        tokens = {"registry_token": found.registry_token, "operator_token": found.operator_token}
        wanted = replace(wanted, registry=found.registry, **tokens)
    if found is None or not _leads_here(terminal, found, wanted):
        if found is not None:
            await _check_free(terminal, name, found, wanted)
        contexts.save(name, replace(wanted, token=await _new_token(terminal)))
        log.info("context", name=name, url=wanted.url, made=found is None)
        # Another node of the same terminal adds its address to those that are there.
        if found is not None and found.url and not {*found.url.split(",")} & {*wanted.url.split(",")}:
            log.warning("context moved", name=name, was=found.url, now=wanted.url)
    if contexts.current() is None:
        contexts.use(name)


async def _new_token(terminal: Terminal) -> str:
    if 0 not in terminal.broker.units.owned:
        return await _token_from_elsewhere(terminal)
    await terminal.services.include(ADMIN, ["admin"], revive=True)
    now = terminal.broker.clock()
    life = min(ADMIN_LIFE, terminal.broker.limits.max_token_life)
    token, token_id = terminal.authority.issue(now, ADMIN, ["admin"], life)
    await terminal.operations.issued.remember(
        IssuedToken(token_id, ADMIN, ["admin"], now, now + int(life * SECOND))
    )
    return token


async def _token_from_elsewhere(terminal: Terminal) -> str:
    """The same, made by the node that has the terminal's first unit."""
    token = terminal.issue_token(ADMIN, ["admin"], TOKEN_WITHIN)
    async with asyncio.timeout(TOKEN_WITHIN), Bus(dial_to(terminal), token, name="landbridge up") as bus:
        life = min(ADMIN_LIFE, terminal.broker.limits.max_token_life)
        return (await bus.tokens.create(ADMIN, ["admin"], life)).token


async def _check_free(terminal: Terminal, name: str, found: Context, wanted: Context) -> None:
    """Raise ContextTaken if the context is in use for another terminal: programs find their terminal by the
    context, and must not reach another one by surprise."""
    ours = found.data is not None and found.data == wanted.data
    if ours or _is_issued_here(terminal, found.token):
        return  # this terminal has restarted, perhaps on another port
    data = None if found.data is None else Path(found.data)
    if data is not None and ((data / DATABASE).exists() or stores.noted(data)):
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
    return _own_identity(terminal, token) is not None


def _own_identity(terminal: Terminal, token: str) -> TokenIdentity | None:
    """The identity of a token that this terminal has made; None for any other token."""
    try:
        identity = terminal.authority.verify(terminal.broker.clock(), token)
    except (Unauthenticated, Unavailable):
        return None
    return identity if identity.grant is None else None


async def _is_in_use(context: Context) -> bool:
    """Whether a terminal accepts the context's token at its address. A terminal on another machine may be
    away for a while, so its context always counts as in use."""
    try:
        if not contexts.is_loopback(contexts.parse_urls(context.url)[0].host):
            return True
        async with asyncio.timeout(ANSWER_WITHIN):
            bus = await Bus(dial_of(context), context.token, name="landbridge up").open()
            await bus.close()
    except (BusError, TimeoutError):
        return False
    return True


def _leads_here(terminal: Terminal, found: Context, wanted: Context) -> bool:
    if replace(found, token=wanted.token) != wanted:
        return False
    now = terminal.broker.clock()
    identity = _own_identity(terminal, found.token)
    if identity is None:
        return False
    life = min(ADMIN_LIFE, terminal.broker.limits.max_token_life)
    return identity.scopes.admin and identity.expires_at - now > life * RENEW_AT * SECOND


# -- HTTP ----------------------------------------------------------------------------------------------


def dial_to(terminal: Terminal, *, is_part: bool = False, is_whole: bool = False) -> Dial:
    """Returns how gateways of this process reach the terminal: like any client, but in memory. ``is_part``:
    of those that connect for the terminal itself, whose connections don't count to max_connections. Of
    several nodes, these see what their own has, with ``is_whole`` what all of them have."""

    async def dial(factory: Callable[[], asyncio.Protocol]) -> Any:
        protocol = factory()
        return join(protocol, terminal.attach(is_part=is_part, is_whole=is_whole)), protocol

    return dial


class SitePort:
    """The HTTP port with what it serves."""

    def __init__(self, site: Site, port: HttpPort) -> None:
        self.site = site
        self._port = port
        self.url = port.url

    async def close(self) -> None:
        """End streams first, then the requests that are being answered, then the sessions that they use."""
        self.site.stop()
        await self._port.close()
        await self.site.close()


def http_port(
    plan: NodePlan,
    terminal: Terminal,
    registry: App | None,
    endpoint: Endpoint,
    tls: ssl.SSLContext | None,
    condition: Condition,
    console: ConsolePart,
) -> SitePort | None:
    """The HTTP port of a terminal; None where the plan has none. ``registry``: the one that it has, too."""
    if plan.http_port is None:
        return None
    # Every terminal has a request that waits for a newer directory.
    most = MOST_REQUESTS if registry is None else MOST_WITH_REGISTRY
    most += MOST_SOCKETS if plan.socketio or plan.mqtt_port is not None else 0
    hint = "give --http-port another number, or 0 for no HTTP"
    site = Site(
        dial_to(terminal),
        registry,
        condition,
        console.app,
        origins=plan.origins,
        answer_stranger=lambda address, *asked: terminal.answer_stranger(site_of((address,)), *asked),
        socketio=plan.socketio,
    )
    port = HttpPort(site, endpoint, plan.http_port, tls, most=most, hint=hint, web_sockets=True)
    terminal.http_url = port.url
    return SitePort(site, port)
