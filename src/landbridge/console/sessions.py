"""One-time links and sessions. A link trades a token for a session, which has exactly the token's scopes.

The browser holds a random cookie, never the token. Links and sessions are documents (``kept``), so whichever
node of a terminal a request comes to knows them, also after a restart. A node that gets a request of a
session takes the session up: it connects to the terminal with the session's token. The terminal ends that
connection when the token expires or is revoked, and with it ends the session, at every node.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

import msgspec
import structlog

from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.console.kept import (
    LINKS,
    SESSIONS,
    ConsoleSecret,
    KeptDocuments,
    KeptLink,
    KeptSession,
    now_us,
)
from landbridge.core.time import SECOND
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import BusError, LimitReached, ShuttingDown, TerminalUnreachable, Unauthenticated
from landbridge.protocol.operations import TokenShown

log = structlog.get_logger("landbridge.console")

#: Seconds that a link waits for its use. Links that wait at a time: of one subject, and in all.
LINK_LIFE, MOST_LINKS_EACH, MOST_LINKS = 600.0, 8, 256
#: Seconds of a session: since the sign-in, and without a request or an open page.
SESSION_LIFE, IDLE = 12 * 3600.0, 3600.0
#: Sessions at a time: of one subject, and in all. The one that was unused for longest gives way.
MOST_EACH, MOST_SESSIONS = 16, 128
#: Seconds after which the use of a session is written down again.
WRITE_EVERY = 240.0
#: Sessions that a node takes up at the same time.
MOST_AT_ONCE = 32
#: Open pages that renew themselves, of one session.
MOST_STREAMS = 8
#: Notices that wait for the next page.
MOST_NOTICES = 8
#: Seconds between two looks for sessions that have ended, at this node or at another one.
LOOK_EVERY = 5.0
#: Seconds that the terminal may take to let a session in.
CONNECT_WITHIN = 10.0
#: Seconds in which what is refused for now is repeated.
PATIENCE = 2.0
#: The path of a link, before its code.
SIGN_IN = "/console/sign-in"
SIGN_IN_HINT = "'landbridge console' opens the console with a new link"


class ConsoleSession:
    """A session that this node has taken up. ``key``: of its document. ``csrf``: what each of its forms
    carries."""

    def __init__(self, bus: Bus, token: TokenShown, key: str, csrf: str, ends_at: int) -> None:
        self.bus = bus
        self.key, self.csrf = key, csrf
        self.subject = token.subject
        self.scopes = Scopes.parse(token.scopes)
        #: When it ends at the latest, in microseconds.
        self.ends_at = min(token.expires_at, ends_at)
        #: What the next page tells: (kind, text).
        self.notices: deque[tuple[str, str]] = deque(maxlen=MOST_NOTICES)
        #: Open pages, and those that wait to be told of a change which the session has made.
        self.streams = 0
        #: How often the session has changed something.
        self.changes = 0
        self._changed = asyncio.Event()
        #: When a request came to this node, in microseconds.
        self.used_at = now_us()
        #: Somebody has signed out, or its document has gone.
        self.is_signed_out = False

    @property
    def is_over(self) -> bool:
        """Can it not be used here any more?"""
        is_idle = not self.streams and now_us() > self.used_at + IDLE * SECOND
        return self.bus.closed is not None or is_idle or self.has_ended

    @property
    def has_ended(self) -> bool:
        """Has it ended for good? Otherwise it may be taken up again, here or at another node."""
        is_refused = isinstance(self.bus.closed, Unauthenticated)
        return self.is_signed_out or is_refused or now_us() >= self.ends_at

    def note_use(self) -> None:
        """A request was made."""
        self.used_at = now_us()

    def is_own_form(self, csrf: str) -> bool:
        """Was a form with this secret made for this session?"""
        return hmac.compare_digest(csrf.encode("utf-8", "surrogateescape"), self.csrf.encode())

    def tell_pages(self) -> None:
        """Something was changed: the open pages look at once."""
        self.changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, seen: int, within: float) -> int:
        """Wait until this session has changed something more often than was seen, but not longer than so many
        seconds. Returns how often it has."""
        if self.changes == seen:
            try:
                async with asyncio.timeout(within):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return self.changes


class SessionTable:
    """The links and the sessions. ``dial`` reaches the terminal, as for a Bus. ``make_bus``: makes the
    connection by which documents of all nodes are read and written."""

    def __init__(self, dial: Dial, make_bus: Callable[[], Bus]) -> None:
        self._dial = dial
        self._kept = KeptDocuments(make_bus)
        #: What this node has taken up, by the key of the document, least recently used first.
        self._sessions: OrderedDict[str, ConsoleSession] = OrderedDict()
        #: What it is taking up.
        self._coming: dict[str, asyncio.Task[ConsoleSession | None]] = {}
        #: Held while one is made, so that their number is right.
        self._making = asyncio.Lock()
        self._tidying: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._sessions)

    # -- links -------------------------------------------------------------------------------------

    async def link(self, token: str) -> str:
        """The path of a new link for a token. Raises Unauthenticated where the terminal doesn't know the
        token."""
        async with await self._connect(token) as bus:
            shown = await bus.tokens.show()
        secret = ConsoleSecret.new()
        link = KeptLink(shown.subject, now_us() + int(LINK_LIFE * SECOND), secret.seal(token))
        async with self._making:
            await self._drop_links(shown.subject)
            await self._kept.write(LINKS, secret.key, link)
        return f"{SIGN_IN}?code={secret.text}"

    async def _drop_links(self, subject: str) -> None:
        """Make room for one more link of this subject."""
        links = sorted(await self._kept.all(LINKS, KeptLink), key=lambda row: row[2].ends_at)
        own = [row for row in links if row[2].subject == subject]
        if len(own) >= MOST_LINKS_EACH:
            await self._kept.take(LINKS, own[0][0])
        elif len(links) >= MOST_LINKS:
            await self._kept.take(LINKS, links[0][0])

    async def waiting_for(self, code: str) -> str | None:
        """The subject of the link with this code; None if it was used or has expired."""
        found = await self._link(ConsoleSecret(code))
        return None if found is None else found[0].subject

    async def _link(self, secret: ConsoleSecret) -> tuple[KeptLink, str] | None:
        found = await self._kept.read(LINKS, secret.key, KeptLink) if secret.is_one else None
        return None if found is None or found[0].ends_at <= now_us() else found

    # -- sessions ----------------------------------------------------------------------------------

    async def sign_in(self, code: str) -> tuple[str, ConsoleSession]:
        """Trade a link for a session. Returns the value of its cookie."""
        if self._closed:
            raise ShuttingDown("the console is shutting down")
        by = ConsoleSecret(code)
        found = await self._link(by)
        token = None if found is None else by.open(found[0].sealed)
        # Of several who use the link, at whichever nodes, one deletes its document.
        if found is None or token is None or not await self._kept.take(LINKS, by.key, found[1]):
            raise Unauthenticated("this link was used already, or is too old", hint=SIGN_IN_HINT)
        bus, secret = await self._connect(token), ConsoleSecret.new()
        try:
            shown, now = await bus.tokens.show(), now_us()
            kept = KeptSession(
                shown.subject,
                min(shown.expires_at, now + int(SESSION_LIFE * SECOND)),
                now,
                secret.seal(token),
            )
            async with self._making:
                await self._make_room(shown.subject)
                await self._kept.write(SESSIONS, secret.key, kept)
        except BaseException:
            await bus.close()
            raise
        return secret.text, await self._add(bus, shown, secret, kept)

    async def _add(
        self, bus: Bus, shown: TokenShown, secret: ConsoleSecret, kept: KeptSession
    ) -> ConsoleSession:
        """Take a session up with a connection."""
        session = ConsoleSession(bus, shown, secret.key, secret.csrf, kept.ends_at)
        self._sessions[session.key] = session
        while len(self._sessions) > MOST_SESSIONS:
            await self._let_go(next(iter(self._sessions.values())))
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.ensure_future(self._tidy())
        return session

    async def find(self, cookies: Iterable[str]) -> ConsoleSession | None:
        """The session of one of these cookies."""
        if self._closed:
            raise ShuttingDown("the console is shutting down")
        for cookie in cookies:
            secret = ConsoleSecret(cookie)
            if not secret.is_one:
                continue
            key = secret.key
            session = self._sessions.get(key)
            if session is not None and session.is_over:
                await (self.sign_out(session) if session.has_ended else self._let_go(session))
                session = None
            session = session or await self._take_up(secret, key)
            if session is not None:
                if key in self._sessions:
                    self._sessions.move_to_end(key)
                session.note_use()
                return session
        return None

    async def _take_up(self, secret: ConsoleSecret, key: str) -> ConsoleSession | None:
        """A session that is in the documents. Several requests that want it take it up once."""
        task = self._coming.get(key)
        if task is None:
            if len(self._coming) >= MOST_AT_ONCE:
                raise LimitReached(
                    f"{MOST_AT_ONCE} sessions are being looked for", hint="try again in a while"
                )
            task = self._coming[key] = asyncio.ensure_future(self._taken_up(secret, key))
            task.add_done_callback(lambda _: self._coming.pop(key, None))
        return await asyncio.shield(task)

    async def _taken_up(self, secret: ConsoleSecret, key: str) -> ConsoleSession | None:
        found = await self._kept.read(SESSIONS, key, KeptSession)
        if found is None:
            return None
        kept, version = found
        token = None if _is_over(kept) else secret.open(kept.sealed)
        if token is None:
            await self._kept.take(SESSIONS, key, version)
            return None
        try:
            bus = await self._connect(token)
        except Unauthenticated:  # it has expired, or was revoked
            await self._kept.take(SESSIONS, key)
            return None
        try:
            return await self._add(bus, await bus.tokens.show(), secret, kept)
        except BaseException:
            await bus.close()
            raise

    async def sign_out(self, session: ConsoleSession) -> None:
        """End a session, at every node."""
        session.is_signed_out = True
        await self._let_go(session)
        await self._kept.take(SESSIONS, session.key)

    async def _let_go(self, session: ConsoleSession) -> None:
        """This node has nothing to do with the session any more."""
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
        await session.bus.close()
        session.tell_pages()

    async def _connect(self, token: str) -> Bus:
        bus = Bus(self._dial, token, name="console", patience=PATIENCE)
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                return await bus.open()
        except TimeoutError:
            await bus.close()
            raise TerminalUnreachable(
                f"no answer from the terminal within {CONNECT_WITHIN:.0f} s", hint="try again in a while"
            ) from None

    async def _make_room(self, subject: str) -> None:
        rows = sorted(
            await self._kept.all(SESSIONS, KeptSession), key=lambda row: self._used_at(row[0], row[2])
        )
        own = [row for row in rows if row[2].subject == subject]
        if len(own) >= MOST_EACH:
            await self._end(own[0][0])
        elif len(rows) >= MOST_SESSIONS:
            # Whoever has a page open uses it: that is written down within the time of two looks.
            key, _, kept = rows[0]
            if self._used_at(key, kept) > now_us() - 2 * WRITE_EVERY * SECOND:
                raise LimitReached(f"{MOST_SESSIONS} consoles are open", hint="try again in a while")
            await self._end(key)

    def _used_at(self, key: str, kept: KeptSession) -> int:
        session = self._sessions.get(key)
        if session is None:
            return kept.used_at
        return now_us() if session.streams else max(kept.used_at, session.used_at)

    async def _end(self, key: str) -> None:
        session = self._sessions.get(key)
        if session is not None:
            await self.sign_out(session)
        else:
            await self._kept.take(SESSIONS, key)

    async def _tidy(self) -> None:
        """End what is over, and write down what is used, while this node has sessions."""
        while self._sessions:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self.look()
            except BusError as error:
                log.warning("sessions not looked at", cause=error.code)

    async def look(self) -> None:
        """Compare the sessions here with the documents, once."""
        sessions = list(self._sessions.values())
        rows = {key: (version, kept) for key, version, kept in await self._kept.all(SESSIONS, KeptSession)}
        for session in sessions:
            version, kept = rows.get(session.key, ("", None))
            if kept is None:  # somebody has signed out at another node
                session.is_signed_out = True
                await self._let_go(session)
            elif session.has_ended:
                await self.sign_out(session)
            elif session.is_over:
                await self._let_go(session)
            else:
                used_at = self._used_at(session.key, kept)
                if used_at > kept.used_at + WRITE_EVERY * SECOND:
                    await self._kept.rewrite(
                        session.key, msgspec.structs.replace(kept, used_at=used_at), version
                    )

    async def close(self) -> None:
        """Let all sessions go. They can be taken up by other nodes, and here after a restart."""
        self._closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        for task in list(self._coming.values()):
            task.cancel()
        for session in list(self._sessions.values()):
            await self._let_go(session)
        await self._kept.close()


def _is_over(kept: KeptSession) -> bool:
    now = now_us()
    return kept.ends_at <= now or kept.used_at + IDLE * SECOND <= now
