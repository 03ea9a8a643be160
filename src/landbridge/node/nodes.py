"""A node: a process that is one of several which are one terminal, on one store on a server.

It beats in the table of nodes (``heart.py``), takes and gives up units as the table says, and serves clients,
whichever node has what they ask for (``broker/cluster.py``). What only one node may have at a time, the
registry and the links to other terminals, goes with unit 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import structlog
from msgspec.structs import replace

from landbridge import __version__
from landbridge.broker.cluster import Cluster
from landbridge.broker.figures import GatewayFigure
from landbridge.broker.server import Terminal
from landbridge.client.context import Context
from landbridge.client.wire import Dial, dial_of
from landbridge.core.cluster.table import NodeRecord
from landbridge.errors import BadRequest, BusError, Disconnected
from landbridge.node import logs, stores
from landbridge.node.assembly import (
    SitePort,
    Watching,
    dial_to,
    gateways,
    http_port,
    keep_context,
    limits_of,
    node_ready,
    settle,
    sign_in,
    signals,
)
from landbridge.node.console import ConsolePart
from landbridge.node.heart import Heart, new_id
from landbridge.node.listening import Endpoint
from landbridge.node.membership import Membership, find_context
from landbridge.node.plan import NodePlan, NodeReady
from landbridge.node.registry_door import RegistryDoor
from landbridge.node.site import App
from landbridge.stores.remote import RemoteStore

log = structlog.get_logger("landbridge.node")
#: Seconds for the first key that signs tokens to be known, and for all units to go to other nodes at the end.
READY_WITHIN, GO_WITHIN = 30.0, 10.0
#: Units that are taken together. What has to be read for all of them is read once.
TAKEN_AT_ONCE = 16
#: Seconds between two looks whether the units have gone.
LOOK_EVERY = 0.05


async def serve_node(
    plan: NodePlan,
    ready: Callable[[NodeReady], None],
    membership: Callable[[Callable[[], Sequence[str]]], Membership],
    watching: Watching | None = None,
) -> None:
    """Start the node that the plan says, call ``ready``, and serve until SIGINT or SIGTERM. ``membership``
    makes another one each time this node becomes the one that has the registry and the links."""
    if plan.store is None or plan.data is None:
        raise BadRequest("nodes share a store on a server", hint="give --store redis://… or postgresql://…")
    limits = limits_of(plan)
    probe = membership(list)
    try:
        await probe.check()
    finally:
        await probe.close()
    logs.take_over(asyncio.get_running_loop())
    with signals() as stop:
        with (watching or logs.progress)("opening the store"):
            store = await stores.shared_store(plan.data, plan.store)
            terminal = Terminal(store, name=plan.name, limits=limits, auto_create=plan.auto_create)
        terminal.log_level = logs.log_level
        node = Node(plan, terminal, store, membership, has_registry=probe.app() is not None)
        async with node.running() as started:
            ready(started)
            await settle(terminal)
            await stop.wait()
            await node.go()


class Node:
    """One node, from its first beat to its last."""

    def __init__(
        self,
        plan: NodePlan,
        terminal: Terminal,
        store: RemoteStore,
        membership: Callable[[Callable[[], Sequence[str]]], Membership],
        *,
        has_registry: bool,
    ) -> None:
        """``has_registry``: the node that is the home has the registry in its process."""
        assert plan.store is not None
        assert plan.node is not None
        self._plan = plan
        self._has_registry = has_registry
        self.terminal = terminal
        self._store = store
        self._new_membership = partial(membership, self._known_addresses)
        self._endpoint = Endpoint(plan.host, plan.tls_cert, plan.tls_key)
        self._tls = self._endpoint.tls()
        self._ca = str(plan.tls_ca) if plan.tls_ca is not None else self._endpoint.ca()
        record = NodeRecord(
            name=plan.node,
            id=new_id(),
            terminal=plan.name,
            version=__version__,
            together=plan.together,
        )
        self.heart = Heart(stores.roster_at(plan.store, store.units), record, plan.node_life)
        self.cluster = Cluster(
            terminal,
            record.id,
            self._dial,
            lambda: not self._is_over(),
        )
        terminal.addresses = self._addresses
        terminal.nodes = self.heart
        self.heart.topics = lambda: len(terminal.broker.topics)
        terminal.broker.figures.append(self._figures)
        #: What this node has with unit 0; None while another node has it.
        self._home: Membership | None = None
        self._home_failed: BusError | None = None
        self._moves = asyncio.Event()
        #: Units that are taken together.
        self._at_once = TAKEN_AT_ONCE
        #: The lapses of the lease after which this node has given up what it had.
        self._lapses = 0
        self._mover: asyncio.Task[None] | None = None
        self._watchdog: asyncio.Task[None] | None = None

    def _figures(self) -> Iterator[GatewayFigure]:
        """For the metrics of this node."""
        heart, owned = self.heart, len(self.terminal.broker.units.owned)
        live = heart.table.live
        left = heart.tenure.left(asyncio.get_running_loop().time())
        found = {
            "landbridge_node_units": ("units that this node owns", owned),
            "landbridge_node_lease_seconds": ("seconds that this node's lease still lasts", left),
            "landbridge_node_table_reached": ("0 while it can't reach the table of nodes", not heart.trouble),
            "landbridge_nodes_live": ("nodes that are alive", len(live)),
            "landbridge_nodes_draining": ("nodes that drain", sum(node.draining for node in live)),
            "landbridge_units_free": ("units that no live node has", len(heart.table.free)),
            "landbridge_store_answers": ("0 while the store is away", not self._store.trouble),
        }
        labels = {"node": heart.record.name}
        for name, (help, value) in found.items():
            yield GatewayFigure(name, help, labels, float(value), counts=False)
        late = "late commits that the store has refused: another node had the unit"
        yield GatewayFigure("landbridge_node_fenced", late, labels, float(self._store.fenced))

    def _dial(self, other: NodeRecord) -> Dial:
        if not other.url:
            raise Disconnected(f"the node {other.name} is just being started")
        return dial_of(Context(other.url, "", self._ca))

    def _known_addresses(self) -> list[str]:
        """Of all nodes in the table, also of those that are gone."""
        return [node.url for node in self.heart.table.nodes]

    def _addresses(self) -> list[str]:
        """Of all nodes, this one first."""
        return list(dict.fromkeys(url for url in (self.heart.record.url, *self.heart.addresses()) if url))

    # -- life --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NodeReady]:
        plan, terminal = self._plan, self.terminal
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.heart.end)
            await self.heart.begin()
            stack.push_async_callback(self._close)
            await terminal.open_shared(self.cluster)
            self.heart.on_beat = self._beaten
            self._mover = asyncio.create_task(self._move())
            self._watchdog = asyncio.create_task(self._watch())
            self.heart.hurry()
            await self._until_ready()
            port = await terminal.listen(plan.host, plan.port, self._tls)
            door = RegistryDoor(self._registry, self._registry_at, self._ca)
            stack.push_async_callback(door.close)
            console = ConsolePart(terminal, dial_to(terminal), dial_to(terminal, is_part=True, is_whole=True))
            http = self._http(door, console)
            if http is not None:
                stack.push_async_callback(http.close)
            url = plan.address or self._endpoint.url("lb", port)
            record = replace(self.heart.record, url=url, http="" if http is None else http.url)
            self.heart.say(record)
            # From here on others reach this node, so it may have the registry and the links.
            await self._until_home()
            parts = gateways(plan, terminal, self._endpoint, self._tls, console, http)
            ports = await stack.enter_async_context(parts)
            started = await self._make_ready(http, console)
            yield replace(started, **ports._asdict())
            stores.leave(self._store)

    async def _until_ready(self) -> None:
        """Until it is known who may use the terminal."""
        try:
            async with asyncio.timeout(READY_WITHIN):
                await self.terminal.is_ready.wait()
        except TimeoutError:
            raise BusError("no node has the terminal's first unit, which says who may use it") from None

    async def _until_home(self) -> None:
        self._moves.set()
        until = asyncio.get_running_loop().time() + READY_WITHIN
        while self._home is None and (0 in self.heart.owned or self.heart.table.owner(0) is None):
            if asyncio.get_running_loop().time() > until:
                raise self._home_failed or BusError("the registry can't be opened")
            await asyncio.sleep(LOOK_EVERY)

    async def go(self) -> None:
        """Let other nodes take what this one has, while it still serves. Alone, it keeps everything to the
        end."""
        self.heart.drained(True)
        loop = asyncio.get_running_loop()
        until = loop.time() + GO_WITHIN
        while self.terminal.broker.units.owned and self.heart.table.candidates and loop.time() < until:
            await asyncio.sleep(LOOK_EVERY)
            if not self.heart.table.node(self.heart.record.id):
                return

    async def _close(self) -> None:
        for task in (self._watchdog, self._mover):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        stores.leave(self._store)
        await self._leave_home()
        await self.terminal.close()

    # -- units -------------------------------------------------------------------------------------

    def _beaten(self) -> None:
        self.cluster.follow(self.heart.table)
        self._moves.set()

    async def _watch(self) -> None:
        """Serve nothing any more when the lease is over by this process's own clock."""
        loop = asyncio.get_running_loop()
        while True:
            left = self.heart.tenure.left(loop.time())
            if not left and self.terminal.broker.units.owned:
                log.warning("the lease is over", node=self._plan.node, why=self.heart.trouble or "a pause")
                self._moves.set()
            await asyncio.sleep(left or self.heart.tenure.pause)

    async def _move(self) -> None:
        while True:
            await self._moves.wait()
            self._moves.clear()
            try:
                await self._follow_table()
            except (BusError, TimeoutError) as error:
                why = str(error) or "it takes longer than the lease"
                log.warning("units can't be moved", node=self._plan.node, why=why)
            except Exception as crash:  # the next table may be followed all the same
                log.error("crash", what="moving units", exc_info=crash)
            else:
                continue
            await asyncio.sleep(self.heart.tenure.pause)
            self._moves.set()

    def _is_over(self) -> bool:
        """Is this node's lease over, or was it, and the units that it had aren't given up yet?"""
        now = asyncio.get_running_loop().time()
        return self.heart.lapses != self._lapses or self.heart.tenure.is_over(now)

    def _lease(self) -> asyncio.Timeout:
        """For what must not take longer than this node's lease lasts as it is known now."""
        return asyncio.timeout(self.heart.tenure.life)

    async def _follow_table(self) -> None:
        """Own what the table says, as far as this node's lease lasts."""
        terminal, heart = self.terminal, self.heart
        is_over = self._is_over()
        lapses = heart.lapses
        leaving = frozenset(() if is_over else heart.plan.release)
        wanted = heart.owned - leaving
        # What the table gave this node and it has not taken yet, or could not, others may take at once.
        heart.release((leaving & heart.owned) - terminal.broker.units.owned)
        # After a lapse, what this process knows of a unit may be older than what is stored.
        lost = sorted(terminal.broker.units.owned - (frozenset() if is_over else wanted), reverse=True)
        if 0 in lost:
            await self._leave_home()
        for unit in lost:
            has_lost = is_over or unit not in heart.owned
            try:
                async with self._lease():
                    await terminal.give_up(unit, fenced=has_lost)
            except TimeoutError:  # the server is away: what waits for it is not waited for
                await terminal.give_up(unit, fenced=True)
            if not has_lost:
                heart.release(frozenset({unit}))
        self._lapses = lapses
        taken = await self._take(sorted(wanted - terminal.broker.units.owned))
        await self._come_home()
        if taken or lost:
            log.info("units", node=self._plan.node, taken=taken, given_up=len(lost), of=self._store.units)
        self._look_at_links()

    async def _take(self, units: Sequence[int]) -> int:
        """Take units, as long as the table says that they are this node's. Returns how many."""
        taken = 0
        while taken < len(units):
            some = units[taken : taken + self._at_once]
            if not self.heart.owned.issuperset(some):
                break  # the table has changed meanwhile
            try:
                async with self._lease():
                    await self.terminal.take(*some)
            except TimeoutError:
                self._at_once = 1  # together they may have too much in them
                raise
            taken += len(some)
            if 0 in some:
                await self._come_home()
        self._at_once = TAKEN_AT_ONCE
        return taken

    # -- what goes with unit 0 ---------------------------------------------------------------------

    async def _come_home(self) -> None:
        """Have the registry and the links, if unit 0 is here and others can reach this node."""
        if 0 not in self.terminal.broker.units.owned or self._home is not None or not self.heart.record.url:
            return
        home = self._new_membership()
        try:
            home.tls(self._endpoint)
            await home.open(self.terminal)
            home.endpoint(self._endpoint)
            record = self.heart.record
            await home.join(self.terminal, record.url, record.http or None)
        except BusError as error:
            log.error("no registry and no links", node=self._plan.node, why=str(error), hint=error.hint)
            self._home_failed = error
            await home.close()
            raise
        self._home = home
        log.info("has the registry and the links", node=self._plan.node)

    async def _leave_home(self) -> None:
        home, self._home = self._home, None
        if home is None:
            return
        home.stop()
        crossing = self.terminal.broker.crossing
        if crossing is not None:
            await crossing.close()
        await home.close()
        log.info("has the registry and the links no more", node=self._plan.node)

    def _look_at_links(self) -> None:
        """A terminal that is linked to others has all its units at one node."""
        crossing = self.terminal.broker.crossing
        is_linked = crossing is not None and crossing.has_others
        together = self._plan.together or is_linked
        if self._home is not None and together != self.heart.record.together:
            self.heart.say(replace(self.heart.record, together=together))

    # -- HTTP and the context ----------------------------------------------------------------------

    def _registry(self) -> App | None:
        return None if self._home is None else self._home.app()

    def _registry_at(self) -> str:
        owner = self.heart.table.owner(0)
        return "" if owner is None or owner.id == self.heart.record.id else owner.http

    def _http(self, door: RegistryDoor, console: ConsolePart) -> SitePort | None:
        return http_port(
            self._plan,
            self.terminal,
            door if self._has_registry else None,
            self._endpoint,
            self._tls,
            self.condition,
            console,
        )

    def condition(self) -> tuple[bool, list[str]]:
        """Whether this node can serve, and what an operator should look at."""
        takes, troubles = stores.condition(self._store, self.terminal.troubles)
        if self.heart.trouble:
            troubles = [f"the table of nodes can't be reached: {self.heart.trouble}", *troubles]
        if self.heart.tenure.is_over(asyncio.get_running_loop().time()):
            return False, ["this node's lease is over: it serves nothing of its own", *troubles]
        free = len(self.heart.table.free)
        if free:
            troubles = [f"{free} of {self._store.units} units are at no node", *troubles]
        return takes and free < self._store.units, troubles

    async def _make_ready(self, http: SitePort | None, console: ConsolePart) -> NodeReady:
        plan = self._plan
        url = ",".join(self._addresses())
        context = Context(url, "", self._ca, None if plan.data is None else str(plan.data))
        if self._home is not None:
            context = await self._home.context(find_context(plan.context), context)
        await keep_context(self.terminal, plan.context, context)
        link = await sign_in(plan, http, console)
        return node_ready(plan, context, http, self._home, url=self.heart.record.url, link=link)
