"""What is kept of clients that are away: a document for each session, and a durable group for each of its
filters of QoS 1.

The groups of a session are made before its document says so, and deleted before the document is. So a kill
leaves a group that no document names, which the next start deletes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import structlog

from landbridge.client.bus import Bus
from landbridge.core.mqtt import session as core
from landbridge.core.mqtt.session import SESSIONS, StoredSession, session_key
from landbridge.core.mqtt.window import Place
from landbridge.errors import (
    BusError,
    DocumentChanged,
    DocumentExists,
    LimitReached,
    UnknownDocument,
    UnknownGroup,
    UnknownTopic,
)
from landbridge.gateways.mqtt.bounds import LOOK_EVERY, AskBounds

log = structlog.get_logger("landbridge.mqtt")


class _Known(NamedTuple):
    """What is in memory of a session."""

    version: str
    service: str
    #: Microseconds; 0 while its client is connected.
    expires_at: int


class Sessions:
    """The sessions of a terminal that outlive their connections. ``bus``: of the gateway itself. ``clock``:
    the terminal's."""

    def __init__(self, bus: Bus, bounds: AskBounds, clock: Callable[[], int]) -> None:
        self._bus = bus
        self._bounds = bounds
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._of_service: Counter[str] = Counter()
        #: Messages that were sent to a client and not acked when it went, by session: they go again with the
        #: same packet identifiers. A restart forgets them, and the bus gives the messages all the same.
        self.unanswered: dict[str, dict[Place, int]] = {}
        #: One at a time changes a session.
        self._turns: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._known)

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read which there are. The clients of those that were connected when the terminal was killed are
        gone from now on."""
        groups: set[str] = set()
        for row in await self._bus.documents.list(SESSIONS, limit=100):
            try:
                session = msgspec.convert(row.value, StoredSession)
            except msgspec.ValidationError as error:
                log.warning("a session can't be read", key=row.key, why=str(error))
                continue
            groups.update(core.groups_of(session))
            if not session.expires_at:
                session = core.left(session, self._clock())
            self._note(row.key, row.version, session)
        await self._delete_groups(lambda name: core.is_of_session(name) and name not in groups)
        self._sweeping = asyncio.ensure_future(self._sweep())

    async def close(self) -> None:
        """Stop."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """While the block lasts nobody else takes or ends this session."""
        lock = self._turns.setdefault(key, asyncio.Lock())
        self._users[key] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._turns[key]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self.end_those_over()
            except BusError as error:
                if self._bus.closed is not None:
                    return
                log.warning("sessions that are over are not ended yet", why=str(error))

    async def end_those_over(self) -> None:
        """End the sessions whose time is over."""
        now = self._clock()
        over = [key for key, known in self._known.items() if known.expires_at and known.expires_at <= now]
        for key in over:
            async with self.turn(key):
                known = self._known.get(key)
                if known is not None and 0 < known.expires_at <= now:
                    session = await self._read(key)
                    await self._end(key, session)
                    log.info("session over", client=session.client_id if session else key)

    # -- one session -------------------------------------------------------------------------------

    async def find(self, service: str, client_id: str) -> StoredSession | None:
        """The session of a client; None: there is none, or its time is over."""
        key = session_key(service, client_id)
        known = self._known.get(key)
        if known is None:
            return None
        session = await self._read(key)
        if session is not None and not 0 < known.expires_at <= self._clock():
            return session
        await self._end(key, session)
        return None

    def check_room(self, service: str, client_id: str) -> None:
        """LimitReached where a service has too many sessions for one more."""
        most = self._bounds().sessions
        if session_key(service, client_id) not in self._known and self._of_service[service] >= most:
            raise LimitReached(
                f"{service} has {most} sessions that outlive their connection",
                hint="connect with a clean session, or raise the limit max_mqtt_sessions",
            )

    async def save(self, session: StoredSession) -> None:
        """Write a session. Returns when it is on disk."""
        key, value = session_key(session.service, session.client_id), msgspec.to_builtins(session)
        documents = self._bus.documents
        while True:
            known = self._known.get(key)
            try:
                if known is None:
                    made = await documents.create(SESSIONS, key, value)
                else:
                    made = await documents.update(SESSIONS, key, value, version=known.version)
            except UnknownDocument:
                self._forget(key)
            except (DocumentChanged, DocumentExists):
                self._note(key, (await documents.read(SESSIONS, key)).version, session)
            else:
                self._note(key, made.version, session)
                return

    async def end(self, session: StoredSession) -> None:
        """End a session: its groups and its document go."""
        await self._end(session_key(session.service, session.client_id), session)

    async def _end(self, key: str, session: StoredSession | None) -> None:
        self.unanswered.pop(key, None)
        if session is not None and (groups := set(core.groups_of(session))):
            await self._delete_groups(groups.__contains__)
        try:
            await self._bus.documents.delete(SESSIONS, key)
        except UnknownDocument:
            pass  # ended by somebody else
        self._forget(key)

    async def _read(self, key: str) -> StoredSession | None:
        try:
            found = await self._bus.documents.read(SESSIONS, key)
            session = msgspec.convert(found.value, StoredSession)
        except UnknownDocument:
            self._forget(key)
            return None
        except msgspec.ValidationError as error:
            log.warning("a session can't be read, it begins anew", key=key, why=str(error))
            return None
        self._note(key, found.version, session, keep_moment=True)
        return session

    def _note(self, key: str, version: str, session: StoredSession, *, keep_moment: bool = False) -> None:
        before = self._known.get(key)
        if before is None:
            self._of_service[session.service] += 1
        moment = before.expires_at if keep_moment and before is not None else session.expires_at
        self._known[key] = _Known(version, session.service, moment)

    def _forget(self, key: str) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._of_service[known.service] -= 1
            if not self._of_service[known.service]:
                del self._of_service[known.service]

    # -- groups ------------------------------------------------------------------------------------

    async def delete_group(self, name: str, topics: Iterable[str]) -> None:
        """Delete a group of some topics."""
        for topic in topics:
            try:
                await self._bus.groups.delete(topic, name, force=True)
            except (UnknownGroup, UnknownTopic):
                pass  # as it should be

    async def _delete_groups(self, is_meant: Callable[[str], bool]) -> None:
        for row in await self._bus.groups.list():
            if is_meant(row.name):
                await self.delete_group(row.name, [row.topic])
