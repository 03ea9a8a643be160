"""The port of MQTT: all connections, who of them has which client id, and the wills of those that are gone.

A client id is one within a service: two services may use the same, and nobody takes over the session of
another service's client.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import structlog

from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.errors import BusError, LimitReached, TerminalUnreachable
from landbridge.gateways.events import Notes
from landbridge.gateways.mqtt.bounds import (
    CONNECT_WITHIN,
    LONGEST_WILL_DELAY,
    MOST_STRANGERS,
    AskBounds,
    Processes,
    only_process,
)
from landbridge.gateways.mqtt.connection import MqttConnection
from landbridge.gateways.mqtt.intake import Intake
from landbridge.gateways.mqtt.retained import RetainedMessages
from landbridge.gateways.mqtt.sessions import Sessions
from landbridge.protocol.mqtt.packets import Will
from landbridge.protocol.mqtt.reasons import BrokenPacket, Reason
from landbridge.transport.listener import Listener, bind
from landbridge.transport.strangers import Strangers

log = structlog.get_logger("landbridge.mqtt")

#: Seconds in which a publish that is refused for now (backlog full) is repeated.
PATIENCE = 5.0
#: Seconds between two notes of the same kind in the status log.
_NOTE_EVERY = 1.0

#: (service, client id)
ClientKey = tuple[str, str]


class MqttTotals:
    """Counts since the start, without those of the connections that are there."""

    def __init__(self) -> None:
        self.connections = self.refused = self.received = self.delivered = self.dropped = self.wills = 0


class _LaterWill(NamedTuple):
    """A will that waits for its delay."""

    task: asyncio.Task[None]
    #: Set: publish it now.
    now: asyncio.Event


class MqttPort:
    """The gateway. ``bus``: its own, for documents, groups and the status log. ``dial`` reaches the terminal,
    for the connections of clients. ``who``: the service whose token, or credential, the terminal has let in.
    ``clock``: the terminal's. ``processes``: who else serves its clients; None: nobody."""

    def __init__(
        self,
        bus: Bus,
        dial: Dial,
        who: Callable[[str], str],
        bounds: AskBounds,
        clock: Callable[[], int],
        processes: Processes | None = None,
    ) -> None:
        self._dial = dial
        self._who = who
        self.bounds = bounds
        self.clock = clock
        self.strangers = Strangers(bounds().strangers, MOST_STRANGERS)
        self.sessions = Sessions(bus, bounds, clock, processes or only_process())
        self.retained = RetainedMessages(bus, bounds)
        self.totals = MqttTotals()
        self.closing = False
        #: All there are, also those that have not shown who they are.
        self.connections: set[MqttConnection] = set()
        #: Those that were let in.
        self.clients: dict[ClientKey, MqttConnection] = {}
        self._of_service: Counter[str] = Counter()
        self._wills: dict[ClientKey, _LaterWill] = {}
        self._notes = Notes(bus, _NOTE_EVERY)
        self._listeners: list[Listener] = []
        self._ending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> MqttPort:
        await self.retained.open()
        await self.sessions.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Take connections. Returns the port, which is the system's choice where 0 was given."""
        try:
            sockets = await bind(host, port)
        except OSError as error:
            raise TerminalUnreachable(
                f"can't listen on {host}:{port}: {error.strerror or error}",
                hint="give --mqtt another number, or 0 for a free one",
            ) from None
        for each in sockets:
            listener = Listener(
                each,
                lambda stranger: MqttConnection(self, stranger),
                self.strangers,
                tls=tls,
                within=CONNECT_WITHIN,
            )
            self._listeners.append(listener)
        bound: int = sockets[0].getsockname()[1]
        log.info("mqtt", host=host, port=bound, tls=tls is not None)
        return bound

    async def close(self) -> None:
        """Take no more connections, and end those there are. Their wills are not published: the clients come
        back to the next start."""
        self.closing = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.end(Reason.SHUTTING_DOWN, "the terminal is shutting down", with_will=False)
        await asyncio.gather(*(connection.gone.wait() for connection in list(self.connections)))
        for will in list(self._wills.values()):
            will.now.set()
        if self._wills:
            await asyncio.wait([will.task for will in self._wills.values()])
        await self.sessions.close()
        await self.retained.close()
        await self._notes.close()

    # -- what connections ask for ------------------------------------------------------------------

    def find_room(self) -> bool:
        """Is there room for one more connection? Strangers give way."""
        most = self.bounds().all_connections + MOST_STRANGERS
        return len(self.connections) <= most or self.strangers.make_room()

    def on_made(self, connection: MqttConnection) -> None:
        """A connection has come."""
        self.connections.add(connection)
        self.strangers.each = self.bounds().strangers  # it may have been set meanwhile

    async def open_bus(self, token: str, name: str) -> tuple[Bus, str]:
        """A connection of the bus, and the service whose token that is."""
        bus = Bus(self._dial, token, name=name, patience=PATIENCE)
        try:
            await bus.open()
            return bus, self._who(token)
        except BaseException:
            await bus.close()
            raise

    async def take_place(self, connection: MqttConnection, *, clean_start: bool) -> None:
        """Let a client in: an older connection of the same client id ends first."""
        key = (connection.service, connection.client_id)
        while (older := self.clients.get(key)) is not None:
            # MQTT 5, 3.1.4: a will that waits is of no use if the client goes on.
            goes_on = not clean_start and older.will_delay > 0
            older.end(Reason.TAKEN_OVER, "another connection has this client id", with_will=not goes_on)
            await older.gone.wait()
        if (will := self._wills.get(key)) is not None:
            if clean_start:
                will.now.set()
            else:
                will.task.cancel()
            await asyncio.wait([will.task])
        most = self.bounds().connections
        if self._of_service[connection.service] >= most:
            raise LimitReached(
                f"{connection.service} has {most} connections of MQTT",
                hint="give each site its own service, or raise the limit max_mqtt_connections",
            )
        if key in self.clients:  # another one was faster
            raise BrokenPacket(Reason.BUSY, "another connection with this client id was faster")
        self.clients[key] = connection
        self._of_service[connection.service] += 1
        self.totals.connections += 1

    def on_gone(self, connection: MqttConnection) -> None:
        """A connection has ended, with all that it had begun."""
        self.connections.discard(connection)
        totals = self.totals
        totals.received += connection.received
        totals.delivered += connection.delivered
        totals.dropped += connection.dropped
        key = (connection.service, connection.client_id)
        if self.clients.get(key) is connection:
            del self.clients[key]
            self._of_service[connection.service] -= 1
            if not self._of_service[connection.service]:
                del self._of_service[connection.service]

    def new_client_id(self) -> str:
        """An id for a client that has none."""
        return f"lb-{secrets.token_hex(10)}"

    def note(self, cause: str, detail: str, count: int = 1) -> None:
        """Tell the status log of what went wrong."""
        if cause.endswith("refused"):
            self.totals.refused += count
        self._notes.add(cause, count, detail)

    # -- wills -------------------------------------------------------------------------------------

    def leave_will(
        self, connection: MqttConnection, will: Will, bus: Bus, intake: Intake
    ) -> asyncio.Task[None]:
        """Publish a will, at once or after its delay, and then close the bus. A session that ends earlier has
        its will published then."""
        key = (connection.service, connection.client_id)
        delay = min(connection.will_delay, connection.expiry, LONGEST_WILL_DELAY)
        now = asyncio.Event()
        task = asyncio.ensure_future(self._publish_will(connection.client_id, will, bus, intake, delay, now))
        if delay:
            self._wills[key] = _LaterWill(task, now)
        self._ending.add(task)

        def on_done(_: asyncio.Task[None]) -> None:
            self._ending.discard(task)
            if key in self._wills and self._wills[key].task is task:
                del self._wills[key]

        task.add_done_callback(on_done)
        return task

    async def _publish_will(
        self, client_id: str, will: Will, bus: Bus, intake: Intake, delay: float, now: asyncio.Event
    ) -> None:
        try:
            if delay:
                try:
                    await asyncio.wait_for(now.wait(), delay)
                except TimeoutError:
                    pass  # it is time
            await intake.publish_will(will)
            self.totals.wills += 1
        except (BusError, BrokenPacket) as error:
            self.note("mqtt_will_refused", f"client {client_id!r}, {will.topic!r}: {error}")
        finally:
            await bus.close()
