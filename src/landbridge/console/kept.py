"""What the terminal keeps of links and sessions: two collections of documents, which every node of it reads.

The key of a document is made of the secret in the link or in the cookie, and so is the key that the token in
it is sealed with. Whoever reads the store, a backup or these documents therefore gets neither a link nor a
session nor a token: the secret is in the browser alone.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from landbridge.client.bus import Bus
from landbridge.core.trust.primitives import decrypt, derive, encrypt, fields
from landbridge.errors import DocumentChanged, UnknownDocument

SESSIONS, LINKS = "$console-sessions", "$console-links"
#: What the credential of whoever keeps them may do.
SCOPES = [f"documents:{SESSIONS}", f"documents:{LINKS}"]
#: Characters of a secret.
_LENGTH = 43

K = TypeVar("K", "KeptLink", "KeptSession")


def now_us() -> int:
    """Microseconds since 1970: what nodes compare has to be in a time that all of them have."""
    return time.time_ns() // 1000


class ConsoleSecret(NamedTuple):
    """What is in a link or in a cookie, and what is made of it."""

    text: str

    @classmethod
    def new(cls) -> ConsoleSecret:
        return cls(secrets.token_urlsafe(32))

    @property
    def is_one(self) -> bool:
        """Has it the form of a secret?"""
        return len(self.text) == _LENGTH and self.text.isascii()

    def made(self, what: str) -> bytes:
        """32 bytes that only whoever has the secret can make."""
        return derive(self.text.encode(), fields("console", what))

    @property
    def key(self) -> str:
        """The key of its document."""
        return self.made("document").hex()

    @property
    def csrf(self) -> str:
        """What every form of its session carries."""
        return self.made("form").hex()

    def seal(self, token: str) -> str:
        sealed = encrypt(AESGCM(self.made("token")), token.encode(), self.key.encode())
        return base64.b64encode(sealed).decode()

    def open(self, sealed: str) -> str | None:
        """The token; None where somebody has changed it."""
        try:
            raw = base64.b64decode(sealed, validate=True)
        except (binascii.Error, ValueError):
            return None
        found = decrypt(AESGCM(self.made("token")), raw, self.key.encode())
        return None if found is None else found.decode()


class KeptLink(msgspec.Struct, frozen=True):
    """A link that waits for its use. Moments are in microseconds."""

    subject: str
    ends_at: int
    sealed: str


class KeptSession(msgspec.Struct, frozen=True):
    """A browser that has signed in, at whichever node."""

    subject: str
    #: When it ends at the latest.
    ends_at: int
    #: Until when it was used, to some minutes: a node writes it down now and then.
    used_at: int
    sealed: str


class KeptDocuments:
    """The documents. ``make_bus``: makes the connection by which they are read and written, when the first of
    them is wanted."""

    def __init__(self, make_bus: Callable[[], Bus]) -> None:
        self._make_bus = make_bus
        self._bus: Bus | None = None
        self._opening = asyncio.Lock()

    async def _opened(self) -> Bus:
        async with self._opening:
            if self._bus is None or self._bus.closed is not None:
                bus = self._make_bus()
                try:
                    self._bus = await bus.open()
                except BaseException:
                    await bus.close()
                    raise
            return self._bus

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()

    async def write(self, collection: str, key: str, value: KeptLink | KeptSession) -> None:
        """Add a document."""
        await (await self._opened()).documents.create(collection, key, msgspec.to_builtins(value))

    async def read(self, collection: str, key: str, kind: type[K]) -> tuple[K, str] | None:
        """A document and its version; None where there is none, or one that can't be read."""
        try:
            found = await (await self._opened()).documents.read(collection, key)
            return msgspec.convert(found.value, kind), found.version
        except (UnknownDocument, msgspec.ValidationError):
            return None

    async def rewrite(self, key: str, value: KeptSession, version: str) -> None:
        """Another value for a session that nobody has changed meanwhile."""
        bus = await self._opened()
        try:
            await bus.documents.update(SESSIONS, key, msgspec.to_builtins(value), version=version)
        except (DocumentChanged, UnknownDocument):
            pass  # another node has written down its use, or it has ended

    async def take(self, collection: str, key: str, version: str | None = None) -> bool:
        """Delete a document. False where somebody else has: of several who try, at whichever nodes, one does
        it."""
        try:
            await (await self._opened()).documents.delete(collection, key, version=version)
        except (UnknownDocument, DocumentChanged):
            return False
        return True

    async def all(self, collection: str, kind: type[K]) -> list[tuple[str, str, K]]:
        """(key, version, value) of all that have not ended. What has ended is deleted."""
        found, now = [], now_us()
        for row in await (await self._opened()).documents.list(collection):
            try:
                value = msgspec.convert(row.value, kind)
            except msgspec.ValidationError:
                value = None
            if value is None or value.ends_at <= now:
                await self.take(collection, row.key, row.version)
            else:
                found.append((row.key, row.version, value))
        return found
