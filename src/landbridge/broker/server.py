"""The terminal as a server: a store, a broker, listeners and connections; start and stop."""

from __future__ import annotations

import asyncio
import platform
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import structlog

from landbridge.broker.authority import Authority
from landbridge.broker.broker import Broker
from landbridge.broker.clock import Clock
from landbridge.broker.cluster import Cluster
from landbridge.broker.commit import SETTINGS
from landbridge.broker.connection import Connection
from landbridge.broker.damage import decoded
from landbridge.broker.heartbeats import Heartbeats
from landbridge.broker.limits import Limits
from landbridge.broker.mirror import Followed, Mirror
from landbridge.broker.operations.limits import LogLevelPort
from landbridge.broker.operations.operations import Operations
from landbridge.broker.outcomes import Outcomes
from landbridge.broker.routing import Routing
from landbridge.broker.services import Services
from landbridge.broker.stages import Stages
from landbridge.broker.surroundings import Elsewhere, NodesPort
from landbridge.broker.tokens import REVOKED
from landbridge.core.log.store import PutDocument, Store
from landbridge.core.trust.directory import read_kept
from landbridge.core.trust.rate import AddressRate
from landbridge.core.trust.registered_tokens import RegisteredTokens
from landbridge.core.wording import counted
from landbridge.errors import LimitReached, ShuttingDown, StoreCorrupt, TerminalUnreachable
from landbridge.protocol import frames
from landbridge.transport.listener import Listener, bind
from landbridge.transport.strangers import Stranger, Strangers

T = TypeVar("T")
log = structlog.get_logger("landbridge.terminal")
#: Findings of damage that ``info`` shows.
MOST_FINDINGS = 100
NEW_TOKENS = "the terminal has made another key: give programs new tokens with 'landbridge token create'"


class Terminal:
    def __init__(
        self,
        store: Store,
        *,
        name: str = "terminal",
        limits: Limits | None = None,
        auto_create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self.name = name
        self.broker = Broker(store, limits or Limits(), name=name, clock=clock, auto_create=auto_create)
        #: Rows that Spark's writers put aside until all of them are there.
        self.stages = Stages(self.broker, self.spawn)
        #: Who may use the bus, and what is known of them while they do.
        self.services = Services(self.broker, self._service_changed)
        self.heartbeats = Heartbeats(self.broker.clock)
        #: Events that were triggered here, and their outcomes.
        self.outcomes = Outcomes(self.broker, self.spawn)
        self.routing = Routing(self.broker, self.spawn)
        self.operations = Operations(self, self.broker, self.stages, self.outcomes, self.routing)
        self._requests_of_strangers = AddressRate(self.broker.limits.max_requests_of_strangers, 60.0)
        self.connections: set[Connection] = set()
        #: Those among them that have not said hello, and those that are not among them yet: their TLS
        #: handshake is under way, or they have asked to become a link and have proved nothing.
        self.strangers = Strangers(self.broker.limits.max_strangers, self.broker.limits.max_connections)
        self.broker.set_limits.on_change.append(self._follow_limits)
        #: From which level on this process logs; None where that is not the terminal's to say.
        self.log_level: LogLevelPort | None = None
        #: Operations under way.
        self.tasks: set[asyncio.Task[Any]] = set()
        self.closing = False
        self.authority: Authority
        self._listeners: list[Listener] = []
        self._started_at = 0
        #: Where it listens; empty where it doesn't.
        self.url = ""
        #: Of a node: its place in the table of nodes.
        self.nodes: NodesPort | None = None
        #: Where the terminal's nodes are, for clients; empty where it has none.
        self.addresses: Callable[[], list[str]] = list
        #: Held while a unit is taken or given up.
        self._moving = asyncio.Lock()
        #: Of a node: the terminal's trust and settings while another node owns them.
        self.mirror: Mirror | None = None
        #: The stored directory that tokens of the registry are judged by; empty: none was looked for.
        self._directory: bytes | None = b""
        #: Of a node: the other ones.
        self.cluster: Cluster | None = None
        #: The key that signs the terminal's tokens is known: of a node, once the first one has made it.
        self.is_ready = asyncio.Event()
        #: Where its process answers HTTP, with the console at ``/``; empty where it doesn't.
        self.http_url = ""

    async def open(self) -> None:
        """Open the store and load it. The first start makes the key that signs this terminal's tokens."""
        await self.store.open()
        await self.broker.open()
        await self._open_home()
        for unit in range(self.store.units):
            await self.stages.open(unit)
            await self.routing.open(unit)
        await self.outcomes.open()
        self._started_at = self.broker.clock()
        log.info("open", terminal=self.name, topics=len(self.broker.topics), start=self.broker.life.start)

    async def open_shared(self, elsewhere: Elsewhere) -> None:
        """Open as one of several nodes that share the store. It owns nothing yet: see ``take``."""
        await self.store.open()
        # Nobody has this key. The terminal's own is in the store, once the first node has made it.
        self.authority = Authority.from_raw(Authority.new_key(), (), self.services)
        await self.broker.open_shared(elsewhere)
        self.broker.life.on_fenced = self._was_fenced
        self.mirror = Mirror(self.broker, self._follow)
        await self.mirror.refresh()
        self.mirror.begin()
        self._started_at = self.broker.clock()
        log.info("open", terminal=self.name, shared=True)

    async def take(self, *units: int) -> None:
        """Own units from now on, and do for them what a terminal does. Each is served as soon as it is
        loaded; those that can't be loaded keep no other from being served."""
        async with self._moving:
            await self.broker.life.take(units, self._took)

    async def _took(self, unit: int) -> None:
        try:
            if unit == 0:
                await self._open_home()
                await self.outcomes.open()
            await self.stages.open(unit)
            await self.routing.open(unit)
        except BaseException:
            # Nothing was promised yet that isn't stored, and the server may be away.
            await self._give_up(unit, fenced=True)
            raise
        self._owners_changed()
        log.debug("took", terminal=self.name, unit=unit)

    async def give_up(self, unit: int, *, fenced: bool = False) -> None:
        """Own a unit no longer. ``fenced``: another node has claimed it already."""
        async with self._moving:
            await self._give_up(unit, fenced=fenced)

    async def _give_up(self, unit: int, *, fenced: bool) -> None:
        if unit not in self.broker.units.owned:
            return
        if unit == 0:
            self.outcomes.forget(self.broker.units.not_owner(unit))
            self.operations.issued.forget()
            self._directory = b""
        self.stages.forget(unit)
        await self.broker.life.give_up(unit, fenced=fenced)
        self.routing.forget()
        if self.mirror is not None:
            self.mirror.look_anew()
        self._owners_changed()
        log.debug("gave up", terminal=self.name, unit=unit, fenced=fenced)

    def _owners_changed(self) -> None:
        if self.cluster is not None:
            self.cluster.owners_changed()

    def _was_fenced(self, unit: int) -> None:
        giving_up = self.spawn(self.give_up(unit, fenced=True))
        giving_up.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.log_crash("giving up a unit", error)

    def _follow(self, found: Followed) -> None:
        """Go by what another node has written of the terminal's trust and settings."""
        broker, key = self.broker, found.settings.get("signing-key")
        broker.life.follow(found.settings)
        if key is not None:
            try:
                decoded("the key that signs tokens", self.authority.use, key, NEW_TOKENS)
                self.is_ready.set()
            except StoreCorrupt as error:
                broker.damage.note(str(error), NEW_TOKENS)
        self.services.follow(found.settings, found.services)
        broker.pauses.use_services(found.pauses)
        revoked = set(found.revoked)
        if self._follow_registry(found.directory) or revoked != self.authority.revoked:
            self.authority.revoked = revoked
            self.check_tokens()

    def _follow_registry(self, stored: bytes | None) -> bool:
        """Take the tokens of the customer's registry that the directory allows which the node has stored that
        talks with the registry. Returns whether it is another directory than before."""
        if stored == self._directory:
            return False
        self._directory = stored
        if stored is None:
            self.authority.registered = None
            return True
        registered = RegisteredTokens()
        try:
            registered.follow(read_kept(stored))
        except ValueError as error:  # tokens of the registry wait until the next one comes
            log.warning("the stored directory can't be used", terminal=self.name, detail=str(error))
        self.authority.registered = registered
        return True

    async def _open_home(self) -> None:
        """Load who may use the terminal. The first start makes the key that signs its tokens."""
        await self.services.open()
        settings = dict(await self.store.documents(0, SETTINGS))
        key = settings.get("signing-key")
        revoked = [entry for entry, _ in await self.store.documents(0, REVOKED)]
        if key is not None:
            try:
                self._use_key(decoded("the key that signs tokens", _checked_key, key, NEW_TOKENS), revoked)
            except StoreCorrupt as error:
                self.broker.damage.note(str(error), NEW_TOKENS)
                key = None
        if key is None:
            key = Authority.new_key()
            await self.broker.write([PutDocument(SETTINGS, "signing-key", key)])
            self._use_key(key, revoked)
        await self.services.adopt(self.operations.issued, self.authority.revoked)
        self.is_ready.set()

    def _use_key(self, key: bytes, revoked: list[str]) -> None:
        if self.broker.units.elsewhere is None:
            self.authority = Authority.from_raw(key, revoked, self.services)
        else:  # what it knows of the registry stays
            self.authority.use(key)
            self.authority.revoked = set(revoked)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Take connections. Returns the port, which is the system's choice where 0 was given."""
        try:
            sockets = await bind(host, port)
        except OSError as error:
            raise TerminalUnreachable(
                f"can't listen on {host}:{port}: {error.strerror or error}",
                hint="is another terminal there? take another port: --port of 'up', --listen of 'terminal'",
            ) from None
        within = self.broker.limits.hello_within
        for each in sockets:
            self._listeners.append(Listener(each, self.attach, self.strangers, tls=tls, within=within))
        bound: int = sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'lbs' if tls else 'lb'}://{shown}:{bound}"
        log.info("listening", terminal=self.name, host=host, port=bound, tls=tls is not None)
        return bound

    def attach(
        self, stranger: Stranger | None = None, *, is_part: bool = False, is_whole: bool = False
    ) -> Connection:
        """A new connection; the caller gives it a transport. Without a stranger it is inside this process.
        ``is_part``: of a part of the terminal that has bounds of its own; it takes no room of others. Such
        a part sees the units of this node, with ``is_whole`` those of all nodes."""
        return Connection(self, stranger, is_part=is_part, is_whole=is_whole or not is_part)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something until it ends or the terminal closes."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def issue_token(self, subject: str, scopes: list[str], life: float) -> str:
        """Make a token for a part of this process. Its subject counts as a registered service."""
        token, _ = self.authority.issue(self.broker.clock(), subject, scopes, life, own=True)
        self.services.count_here(subject, scopes)
        return token

    def lend_token(self, subject: str, scopes: list[str], more: list[str], life: float) -> str:
        """Make a token for a part of this process that does something for a service, in its name. It is good
        while the service is let in and may do ``scopes``; ``more`` is what that part needs beside."""
        now = self.broker.clock()
        return self.authority.issue(now, subject, [*scopes, *more], life, behalf=scopes)[0]

    def _follow_limits(self) -> None:
        limits = self.broker.limits
        self._requests_of_strangers = AddressRate(limits.max_requests_of_strangers, 60.0)
        self.strangers.each = limits.max_strangers

    def revoke(self, entry: str) -> None:
        self.authority.revoked.add(entry)
        for connection in list(self.connections):
            connection.look_again()

    def _service_changed(self, name: str) -> None:
        if name not in self.services.names():
            self.heartbeats.forget(name)
        for connection in list(self.connections):
            if connection.subject == name:
                connection.look_again()

    def heard_from(self, subjects: Iterable[str]) -> dict[str, int]:
        """For those of these subjects that have connections now: how many. When something has come over them
        is in the heartbeats."""
        counts = dict.fromkeys(subjects, 0)
        for connection in self.connections:
            if connection.subject in counts and not connection.is_leg:
                counts[connection.subject] += 1
                self.heartbeats.heard(connection.subject, connection.heard_at)
        return counts

    async def answer_stranger(self, address: str, operation: str, arguments: dict[str, Any]) -> Any:
        """Answer an operation that needs no token, for somebody at an HTTP port who shows none.

        ``address``: where the request comes from, as ``landbridge.transport.strangers.site_of`` has it.
        Unauthenticated for any other operation, LimitReached where the address asks too often."""
        if not self._requests_of_strangers.take(self.broker.clock(), address):
            self.broker.totals.refused += 1
            raise LimitReached(
                f"more than {self.broker.limits.max_requests_of_strangers} requests a minute without a token "
                f"from {address[:60]}",
                hint="a token is good for ten minutes: keep it; or raise the limit max_requests_of_strangers",
            )
        if self.cluster is not None:
            return await self.cluster.answer_stranger(operation, arguments)
        return await self.operations.answer_stranger(operation, arguments)

    def check_tokens(self) -> None:
        """The registry's directory has changed: end the connections whose tokens are taken no longer."""
        for connection in list(self.connections):
            connection.look_again()

    def time_passed(self) -> None:
        """For a clock that is moved by hand: whatever waits for a moment looks at the clock again."""
        self.broker.time_passed()
        self.outcomes.time_passed()
        for connection in list(self.connections):
            connection.time_passed()

    def info(self) -> dict[str, Any]:
        from landbridge import __version__

        return {
            "name": self.name,
            "version": __version__,
            "protocol": frames.VERSION,
            "python": platform.python_version(),
            "platform": sys.platform,
            "time": self.broker.clock(),
            "started_at": self._started_at,
            "start": self.broker.life.start,
            "topics": len(self.broker.topics),
            "connections": len(self.connections),
            "store": type(self.store).__name__,
            "node": "" if self.nodes is None else self.nodes.record.name,
            "incarnation": self.broker.life.incarnation,
            "free": self.broker.room.free,
            "low": self.broker.room.is_low,
            "damage": self.broker.damage.found[:MOST_FINDINGS],
            "http": self.http_url,
        }

    @property
    def troubles(self) -> list[str]:
        """What an operator should look at, a line each; empty while all is well."""
        found = []
        if self.broker.room.is_low:
            found.append("no room on the disk: messages are refused, what frees room goes through")
        elif self.broker.room.state == "little":
            found.append("little room on the disk")
        if self.broker.damage.found:
            found.append(f"damage: {counted(len(self.broker.damage.found), 'finding')} since the start")
        return found

    def log_crash(self, what: str, error: BaseException) -> None:
        log.error("crash", what=what, exc_info=error)

    async def close(self) -> None:
        """Stop taking connections, end those there are, write what is left, close the store."""
        self.closing = True
        self.outcomes.close()
        self.routing.close()
        for listener in self._listeners:
            listener.close()
        for task in list(self.tasks):
            task.cancel()
        for connection in list(self.connections):
            connection.close(ShuttingDown("the terminal is shutting down"))
        if self.broker.crossing is not None:
            await self.broker.crossing.close()
        if self.mirror is not None:
            await self.mirror.close()
        await self.broker.close()
        if self.cluster is not None:
            await self.cluster.close()
        await self.store.close()
        log.info("closed", terminal=self.name)


def _checked_key(raw: bytes) -> bytes:
    """The key that signs tokens; fails where it is none."""
    Authority.from_raw(raw)
    return raw
