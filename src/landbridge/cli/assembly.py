"""The all-in-one of ``landbridge up``: store, terminal, HTTP side and a context to reach it by, put together.

Takes long to import; only ``up`` does.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvicorn

from landbridge.cli import logs
from landbridge.cli.context import save
from landbridge.client import context as contexts
from landbridge.client.context import Context
from landbridge.client.link import Dial
from landbridge.client.memory import join
from landbridge.core.store import Store
from landbridge.errors import BadContext, BadRequest, TerminalUnreachable, Unauthenticated
from landbridge.gateways.metrics import Metrics
from landbridge.stores.memory import MemoryStore
from landbridge.stores.sqlite import SqliteStore
from landbridge.terminal.limits import parse_limits
from landbridge.terminal.server import Terminal

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


class Ready(msgspec.Struct, frozen=True):
    """What runs. Printed as JSON."""

    url: str
    data: str | None
    context: str
    #: Is that context the current one?
    current: bool
    http: str | None
    name: str
    pid: int


async def serve(plan: Plan, ready: Callable[[Ready], None]) -> None:
    """Start what the plan says, call ``ready``, and serve until SIGINT or SIGTERM."""
    limits = parse_limits(plan.limits)
    tls = _tls(plan)
    _allow_files(limits.max_connections + OTHER_FILES)
    store: Store = MemoryStore() if plan.data is None else SqliteStore(plan.data / "bus.db")
    terminal = Terminal(store, name=plan.name, limits=limits, auto_create=plan.auto_create)
    logs.take_over(asyncio.get_running_loop())
    with _signals() as stop:
        await terminal.open()
        try:
            port = await terminal.listen(plan.host, plan.port, tls)
            http = _Http(plan, terminal) if plan.http_port is not None else None
            try:
                ready(_make_ready(plan, terminal, port, http))
                # All that is here now stays: the collector need not look at it again.
                gc.collect()
                gc.freeze()
                await stop.wait()
            finally:
                if http is not None:
                    await http.close()
        finally:
            await terminal.close()


def _make_ready(plan: Plan, terminal: Terminal, port: int, http: _Http | None) -> Ready:
    context = Context(_address(plan, "lb", port), "", _ca(plan))
    keep_context(terminal, plan.context, context)
    return Ready(
        url=context.url,
        data=None if plan.data is None else str(plan.data),
        context=plan.context,
        current=contexts.current() == plan.context,
        http=None if http is None else http.url,
        name=plan.name,
        pid=os.getpid(),
    )


@contextmanager
def _signals() -> Iterator[asyncio.Event]:
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


# -- the address ---------------------------------------------------------------------------------------


def _tls(plan: Plan) -> ssl.SSLContext | None:
    if (plan.tls_cert is None) != (plan.tls_key is None):
        raise BadRequest("--tls-cert and --tls-key belong together")
    if plan.tls_cert is None:
        if not contexts.is_loopback(plan.host):
            raise BadRequest(
                f"on {plan.host} tokens and messages would travel in the clear",
                hint="give --tls-cert and --tls-key, or listen on 127.0.0.1",
            )
        return None
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        tls.load_cert_chain(plan.tls_cert, plan.tls_key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise BadRequest(f"can't use {plan.tls_cert} with {plan.tls_key}: {reason}") from None
    return tls


def _address(plan: Plan, scheme: str, port: int) -> str:
    """By which this machine reaches a port of ours."""
    host = plan.host if plan.tls_cert is None else _name_of(plan.tls_cert, plan.host)
    return f"{scheme}{'' if plan.tls_cert is None else 's'}://{f'[{host}]' if ':' in host else host}:{port}"


def _name_of(certificate: Path, host: str) -> str:
    """The name that a client has to use, so that the certificate is good for it."""
    from cryptography import x509

    try:
        names = x509.load_pem_x509_certificate(certificate.read_bytes()).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return host
    known = names.value.get_values_for_type(x509.DNSName)
    known += [str(address) for address in names.value.get_values_for_type(x509.IPAddress)]
    if host in known:
        return host
    # Listening on all addresses, or on one that the certificate doesn't name.
    nearest = [name for name in ("localhost", "127.0.0.1", "::1") if name in known]
    return next(iter(nearest + [name for name in known if "*" not in name]), host)


def _ca(plan: Plan) -> str | None:
    """A certificate that has signed itself is its own authority."""
    if plan.tls_cert is None:
        return None
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(plan.tls_cert.read_bytes())
    return str(plan.tls_cert.resolve()) if certificate.issuer == certificate.subject else None


# -- the context ---------------------------------------------------------------------------------------


def keep_context(terminal: Terminal, name: str, wanted: Context) -> None:
    """Make the context that leads here, or renew it where it no longer does. Make it the current one if there
    is none."""
    try:
        found: Context | None = contexts.load(name)
    except BadContext:
        found = None
    if found is None or not _leads_here(terminal, found, wanted):
        life = min(ADMIN_LIFE, terminal.broker.limits.max_token_life)
        token = terminal.issue_token(ADMIN, ["admin"], life)
        save(name, msgspec.structs.replace(wanted, token=token))
        log.info("context", name=name, url=wanted.url, made=found is None)
        if found is not None and found.url != wanted.url:
            log.warning("context moved", name=name, was=found.url, now=wanted.url)
    if contexts.current() is None:
        contexts.use(name)


def _leads_here(terminal: Terminal, found: Context, wanted: Context) -> bool:
    if (found.url, found.ca) != (wanted.url, wanted.ca):
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


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are ours


class _Http:
    """Metrics and health on a port of their own, in this loop."""

    def __init__(self, plan: Plan, terminal: Terminal) -> None:
        assert plan.http_port is not None
        host = plan.host
        try:
            # Bound here: a port that is taken is an error of ours, and from now on connections can wait.
            self._socket = socket.create_server(
                (host, plan.http_port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise TerminalUnreachable(
                f"can't listen on {host}:{plan.http_port}: {error.strerror}",
                hint="give --http-port another number, or 0 for no HTTP",
            ) from None
        port = self._socket.getsockname()[1]
        self.url = _address(plan, "http", port)
        config = uvicorn.Config(
            Metrics(dial_to(terminal)),
            http="h11",
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=64,
            timeout_graceful_shutdown=2,
            ssl_certfile=plan.tls_cert,
            ssl_keyfile=plan.tls_key,
        )
        self._server = _Server(config)
        self._task = asyncio.ensure_future(self._server.serve([self._socket]))
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("http failed", exc_info=task.exception())

    async def close(self) -> None:
        self._server.should_exit = True
        await asyncio.wait([self._task])
        self._socket.close()
