"""What is kept of clients that are away: a document for each session, and a durable group for each of its
filters of QoS 1.

The groups of a session are made before its document says so, and deleted before the document is. So a kill
leaves a group that no document names, which the next start deletes.

Several processes may serve the sessions of one terminal. A document says which of them has the client; where
another one has taken it, the connection here ends, and what it leaves is not written any more. One of them
ends the sessions whose time is over, also of clients whose process is gone.
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
from landbridge.core.time import SECOND
from landbridge.errors import (
    BusError,
    DocumentChanged,
    DocumentExists,
    LimitReached,
    StoreFull,
    UnknownDocument,
    UnknownGroup,
    UnknownTopic,
)
from landbridge.gateways.mqtt.bounds import LOOK_EVERY, AskBounds, Processes
from landbridge.protocol.operations import Document

log = structlog.get_logger("landbridge.mqtt")

#: Seconds until the documents are followed again after an error.
_AGAIN_AFTER = 1.0


class _Known(NamedTuple):
    """What is in memory of a session."""

    version: str
    service: str
    #: Microseconds; 0 while its client is connected.
    expires_at: int
    #: Seconds that it outlives its connection, and the process that has its client.
    expiry: float
    holder: str


class Sessions:
    """The sessions of a terminal that outlive their connections. ``bus``: of the gateway itself. ``clock``:
    the terminal's."""

    def __init__(self, bus: Bus, bounds: AskBounds, clock: Callable[[], int], processes: Processes) -> None:
        self._bus = bus
        self._processes = processes
        #: The sessions whose clients are connected here, and what ends such a connection.
        self._held: dict[str, Callable[[], None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._bounds = bounds
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._of_service: Counter[str] = Counter()
        #: Messages that were sent to a client and not acked when it went, by session: they go again with the
        #: same packet identifiers. A restart forgets them, and the bus gives the messages all the same.
        self.unanswered: dict[str, dict[Place, int]] = {}
        #: What the documents of sessions are to say when there is room for that; until then this counts.
        self._unwritten: dict[str, StoredSession] = {}
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
            self._note(row.key, row.version, session)
        self._leave_those_of_the_dead()
        if not self._processes.has_others():  # they may be about to name a group that they have made
            await self._delete_groups(lambda name: core.is_of_session(name) and name not in groups)
        self._sweeping = asyncio.ensure_future(self._sweep())
        if self._processes.has_others():
            self._following = asyncio.ensure_future(self._follow())

    async def close(self) -> None:
        """Stop."""
        running = [task for task in (self._sweeping, self._following) if task is not None]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # -- other processes ---------------------------------------------------------------------------

    def hold(self, session: StoredSession, on_taken: Callable[[], None]) -> None:
        """The client of a session is connected here. ``on_taken`` is called when it is elsewhere."""
        self._held[session_key(session.service, session.client_id)] = on_taken

    def _leave_those_of_the_dead(self) -> None:
        """The clients of a process that was killed are gone from now on."""
        now = self._clock()
        for key, known in self._known.items():
            if not known.expires_at and not self._processes.is_live(known.holder):
                self._known[key] = known._replace(expires_at=now + int(known.expiry * SECOND))

    async def _follow(self) -> None:
        while True:
            try:
                async for seen in self._bus.documents.watch(SESSIONS):
                    await self._changed(seen.key, seen.document)
            except BusError as error:
                if self._bus.closed is not None:
                    return
                log.warning("sessions are listed again", why=str(error))
                await asyncio.sleep(_AGAIN_AFTER)

    async def _changed(self, key: str, document: Document | None) -> None:
        """Somebody has written a session, or ended it: perhaps this process itself, a while ago."""
        if key in self._held:
            async with self.turn(key):
                session = await self._read(key)
                if (session is None or session.holder != self._processes.me) and key in self._held:
                    self._held.pop(key)()
        elif document is None:
            if key in self._known and key not in self._turns:
                self._forget(key)
        elif key not in self._turns:
            try:
                session = msgspec.convert(document.value, StoredSession)
            except msgspec.ValidationError:
                return  # told where it is used
            self._note(key, document.version, session)

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
                await self.write_again()
            except BusError as error:
                if self._bus.closed is not None:
                    return
                log.warning("sessions that are over are not ended yet", why=str(error))

    async def end_those_over(self) -> None:
        """End the sessions whose time is over."""
        self._leave_those_of_the_dead()
        now = self._clock()
        if not self._processes.is_first():
            return
        over = [key for key, known in self._known.items() if known.expires_at and known.expires_at <= now]
        for key in over:
            async with self.turn(key):
                known = self._known.get(key)
                if known is not None and 0 < known.expires_at <= now:
                    session = self._unwritten.get(key) or await self._read(key)
                    if session is not None and not self._is_over(key, session):
                        continue
                    await self._end(key, session)
                    log.info("session over", client=session.client_id if session else key)

    async def write_again(self) -> None:
        """Write the sessions that a full disk had no room for."""
        for key in list(self._unwritten):
            async with self.turn(key):
                if (session := self._unwritten.get(key)) is not None:
                    await self.save(session)

    # -- one session -------------------------------------------------------------------------------

    async def find(self, service: str, client_id: str) -> StoredSession | None:
        """The session of a client; None: there is none, or its time is over."""
        key = session_key(service, client_id)
        if key not in self._known and not self._processes.has_others():
            return None
        session = self._unwritten.get(key) or await self._read(key)
        if session is not None and not self._is_over(key, session):
            return session
        if key in self._known or session is not None:
            await self._end(key, session)
        return None

    def _is_over(self, key: str, session: StoredSession) -> bool:
        """Is its time over? That of a client whose process was killed began when that was seen."""
        if not session.expires_at and self._processes.is_live(session.holder):
            return False
        known = self._known.get(key)
        until = session.expires_at or (0 if known is None else known.expires_at)
        return 0 < until <= self._clock()

    def check_room(self, service: str, client_id: str) -> None:
        """LimitReached where a service has too many sessions for one more."""
        most = self._bounds().sessions
        if session_key(service, client_id) not in self._known and self._of_service[service] >= most:
            raise LimitReached(
                f"{service} has {most} sessions that outlive their connection",
                hint="connect with a clean session, or raise the limit max_mqtt_sessions",
            )

    async def save(self, session: StoredSession) -> None:
        """Write a session whose client is connected here. Returns when it is on disk."""
        session.holder = self._processes.me
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
                self._unwritten.pop(key, None)
                self._note(key, made.version, session)
                return

    async def save_soon(self, session: StoredSession) -> None:
        """Write a session that has a document; later, where the disk is full: its client takes what waits for
        it, which makes room. StoreFull where there is no document, or others go by it."""
        try:
            await self.save(session)
        except StoreFull:
            key = session_key(session.service, session.client_id)
            known = self._known.get(key)
            if known is None or self._processes.has_others():
                raise
            self._unwritten[key] = session
            self._known[key] = known._replace(
                expires_at=session.expires_at, expiry=session.expiry, holder=session.holder
            )

    async def leave(self, session: StoredSession) -> None:
        """Write a session whose client is gone from here; unless it is connected elsewhere by now."""
        key = session_key(session.service, session.client_id)
        self._held.pop(key, None)
        async with self.turn(key):
            if self._processes.has_others() and not await self._is_mine(key):
                self.unanswered.pop(key, None)
                return
            await self.save_soon(session)

    async def end_own(self, session: StoredSession) -> None:
        """End a session with its connection; unless its client is connected elsewhere by now."""
        key = session_key(session.service, session.client_id)
        self._held.pop(key, None)
        async with self.turn(key):
            if not self._processes.has_others() or await self._is_mine(key):
                await self._end(key, session)

    async def _is_mine(self, key: str) -> bool:
        found = await self._read(key)
        return found is not None and found.holder == self._processes.me

    async def end(self, session: StoredSession) -> None:
        """End a session: its groups and its document go."""
        await self._end(session_key(session.service, session.client_id), session)

    async def _end(self, key: str, session: StoredSession | None) -> None:
        self.unanswered.pop(key, None)
        self._unwritten.pop(key, None)
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
        moment = session.expires_at
        if not moment and before is not None and before.holder == session.holder:
            is_kept = keep_moment or not self._processes.is_live(session.holder)
            moment = before.expires_at if is_kept else 0
        self._known[key] = _Known(version, session.service, moment, session.expiry, session.holder)

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
