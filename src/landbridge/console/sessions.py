"""One-time links and sessions. A link trades a token for a session, which has exactly the token's scopes.

The browser holds a random cookie, never the token. A session has a connection to the terminal with its
token. The terminal ends that connection when the token expires or is revoked, and with it ends the session.
Links and sessions are in memory alone: a terminal that starts again knows none.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Iterable

import structlog

from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
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
#: Open pages that renew themselves, of one session.
MOST_STREAMS = 8
#: Notices that wait for the next page.
MOST_NOTICES = 8
#: Seconds between two looks for sessions that have ended.
LOOK_EVERY = 5.0
#: Seconds that the terminal may take to let a session in.
CONNECT_WITHIN = 10.0
#: Seconds in which what is refused for now is repeated.
PATIENCE = 2.0
#: The path of a link, before its code.
SIGN_IN = "/console/sign-in"
SIGN_IN_HINT = "'landbridge console' opens the console with a new link"


class ConsoleSession:
    """A browser that has signed in."""

    def __init__(self, bus: Bus, token: TokenShown) -> None:
        self.bus = bus
        self.subject = token.subject
        self.scopes = Scopes.parse(token.scopes)
        #: When it ends at the latest, in microseconds.
        self.ends_at = min(token.expires_at, time.time_ns() // 1000 + int(SESSION_LIFE * SECOND))
        #: What every form of the session carries.
        self.csrf = secrets.token_urlsafe(32)
        #: What the next page tells: (kind, text).
        self.notices: deque[tuple[str, str]] = deque(maxlen=MOST_NOTICES)
        #: Open pages, and those that wait to be told of a change which the session has made.
        self.streams = 0
        #: How often the session has changed something.
        self.changes = 0
        self._changed = asyncio.Event()
        self.used_at = asyncio.get_running_loop().time()

    @property
    def is_over(self) -> bool:
        """Has it ended, or has the terminal ended it?"""
        is_idle = not self.streams and asyncio.get_running_loop().time() > self.used_at + IDLE
        return self.bus.closed is not None or is_idle or time.time_ns() // 1000 >= self.ends_at

    def note_use(self) -> None:
        """A request was made."""
        self.used_at = asyncio.get_running_loop().time()

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


class SignInLink:
    """A link that waits for its use."""

    def __init__(self, token: str, subject: str, expires_at: float) -> None:
        self.token = token
        self.subject = subject
        #: In the loop's time.
        self.expires_at = expires_at


class SessionTable:
    """All links and sessions. ``dial`` reaches the terminal, as for a Bus."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        #: By the digest of the code, oldest first.
        self._links: OrderedDict[bytes, SignInLink] = OrderedDict()
        #: By the digest of the cookie, least recently used first.
        self._sessions: OrderedDict[bytes, ConsoleSession] = OrderedDict()
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
        now = asyncio.get_running_loop().time()
        self._drop_links(now, shown.subject)
        code = secrets.token_urlsafe(32)
        self._links[_digest(code)] = SignInLink(token, shown.subject, now + LINK_LIFE)
        return f"{SIGN_IN}?code={code}"

    def _drop_links(self, now: float, subject: str) -> None:
        """Make room for one more link of this subject."""
        for key in [key for key, link in self._links.items() if link.expires_at <= now]:
            del self._links[key]
        own = [key for key, link in self._links.items() if link.subject == subject]
        if len(own) >= MOST_LINKS_EACH:
            del self._links[own[0]]
        elif len(self._links) >= MOST_LINKS:
            self._links.popitem(last=False)

    def waiting_for(self, code: str) -> str | None:
        """The subject of the link with this code; None if it was used or has expired."""
        link = self._links.get(_digest(code))
        now = asyncio.get_running_loop().time()
        return link.subject if link is not None and link.expires_at > now else None

    # -- sessions ----------------------------------------------------------------------------------

    async def sign_in(self, code: str) -> tuple[str, ConsoleSession]:
        """Trade a link for a session. Returns the value of its cookie."""
        if self._closed:
            raise ShuttingDown("the console is shutting down")
        link = self._links.pop(_digest(code), None)
        if link is None or link.expires_at <= asyncio.get_running_loop().time():
            raise Unauthenticated("this link was used already, or is too old", hint=SIGN_IN_HINT)
        bus = await self._connect(link.token)
        try:
            session = ConsoleSession(bus, await bus.tokens.show())
            await self._make_room(session.subject)
        except BaseException:
            await bus.close()
            raise
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = session
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.ensure_future(self._tidy())
        return cookie, session

    def find(self, cookies: Iterable[str]) -> ConsoleSession | None:
        """The session of one of these cookies."""
        for cookie in cookies:
            key = _digest(cookie)
            session = self._sessions.get(key)
            if session is not None and not session.is_over:
                self._sessions.move_to_end(key)
                session.note_use()
                return session
        return None

    async def sign_out(self, session: ConsoleSession) -> None:
        """End a session."""
        for key in [key for key, each in self._sessions.items() if each is session]:
            del self._sessions[key]
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
        own = [session for session in self._sessions.values() if session.subject == subject]
        if len(own) >= MOST_EACH:
            await self.sign_out(own[0])
        elif len(self._sessions) >= MOST_SESSIONS:
            unused = next((each for each in self._sessions.values() if not each.streams), None)
            if unused is None:
                raise LimitReached(f"{MOST_SESSIONS} consoles are open", hint="try again in a while")
            await self.sign_out(unused)

    async def _tidy(self) -> None:
        """End what is over, while there are sessions."""
        while self._sessions:
            await asyncio.sleep(LOOK_EVERY)
            for session in list(self._sessions.values()):
                if session.is_over:
                    try:
                        await self.sign_out(session)
                    except BusError as error:
                        log.warning("session not closed", subject=session.subject, cause=error.code)

    async def close(self) -> None:
        """End all sessions."""
        self._closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        for session in list(self._sessions.values()):
            await self.sign_out(session)


def _digest(secret: str) -> bytes:
    # A dump of the memory should not list what signs in.
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
