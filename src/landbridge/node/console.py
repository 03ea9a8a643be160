"""The console of a terminal's process: what it measures, and who has signed in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.wire import Dial
from landbridge.console.kept import SCOPES
from landbridge.console.samples import Samples
from landbridge.console.sessions import PATIENCE, SessionTable
from landbridge.node.site import Later

#: The subject of the credential by which the console takes its samples.
SUBJECT = "console"
#: Seconds; a fresh credential is made at every connection.
TOKEN_LIFE = 3600.0


class ConsolePart:
    """The console of a terminal. ``dial`` reaches the terminal in memory, for sessions; ``whole``: for what
    all nodes of it keep, where there are several."""

    def __init__(self, terminal: Terminal, dial: Dial, whole: Dial | None = None) -> None:
        self._terminal = terminal
        self._whole = dial if whole is None else whole
        self.sessions = SessionTable(dial, self._keeper)
        self.samples = Samples()
        self.app = Later(
            "landbridge.console.app",
            lambda app: app.Console(self.sessions, self.samples, terminal.name),
        )

    def _keeper(self) -> Bus:
        """The connection by which links and sessions are kept."""

        def token() -> str:
            return self._terminal.issue_token(SUBJECT, ["observe", *SCOPES], TOKEN_LIFE)

        return Bus(self._whole, token, name=SUBJECT, patience=PATIENCE)

    @asynccontextmanager
    async def sampling(self, dial: Dial) -> AsyncIterator[None]:
        """Take samples of the terminal in the block. ``dial`` is for parts of the process."""

        def token() -> str:
            return self._terminal.issue_token(SUBJECT, ["observe"], TOKEN_LIFE)

        async with Bus(dial, token, name=SUBJECT) as bus, self.samples.taken(bus):
            yield
