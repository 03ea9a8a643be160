"""The last retained message of each topic: a document that lives with its topic.

The message itself is in the topic's log like any other. The document is a copy: the log forgets by age, a
retained message stays until another one takes its place, or one without a payload clears it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec
import structlog

from landbridge.client.bus import Bus
from landbridge.core.log.batch import HeaderValue
from landbridge.core.mqtt.session import RETAINED
from landbridge.core.names import matches
from landbridge.errors import (
    BusError,
    DocumentChanged,
    DocumentExists,
    LimitReached,
    TooLarge,
    UnknownDocument,
    UnknownTopic,
)
from landbridge.gateways.mqtt.bounds import LARGEST_RETAINED, LOOK_EVERY, AskBounds

log = structlog.get_logger("landbridge.mqtt")

#: The key of the document: a topic has one.
_KEY = "message"
#: Documents that are written at the same time.
_AT_ONCE = 64
#: Seconds until the documents are followed again after an error.
_AGAIN_AFTER = 1.0


class RetainedMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A retained message as its document has it."""

    payload: bytes
    headers: dict[str, str | int | float | bool] = {}
    #: Headers whose value is bytes.
    binary: dict[str, bytes] = {}
    key: str | None = None
    #: Microseconds; 0: never.
    expires_at: int = 0

    @classmethod
    def of(
        cls, payload: bytes, headers: dict[str, HeaderValue], key: str | None, expires_at: int
    ) -> RetainedMessage:
        """A message to be kept."""
        plain = {name: value for name, value in headers.items() if not isinstance(value, bytes)}
        binary = {name: value for name, value in headers.items() if isinstance(value, bytes)}
        return cls(payload=payload, headers=plain, binary=binary, key=key, expires_at=expires_at)

    @property
    def all_headers(self) -> dict[str, HeaderValue]:
        """As the message had them."""
        return {**self.headers, **self.binary}


class _Wanted(NamedTuple):
    """What is to be written for a topic, and who waits for that."""

    message: RetainedMessage | None
    waiting: list[asyncio.Future[None]]


class RetainedMessages:
    """The retained messages of a terminal. ``bus``: of the gateway itself."""

    def __init__(self, bus: Bus, bounds: AskBounds) -> None:
        self._bus = bus
        self._bounds = bounds
        #: Topic → the version of its document.
        self._versions: dict[str, str] = {}
        self._wanted: dict[str, _Wanted] = {}
        #: Topics that are to have one when their message is stored, and how often.
        self._coming: Counter[str] = Counter()
        self._writing: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._versions)

    async def open(self) -> None:
        """Learn which there are, and go on learning."""
        for row in await self._bus.documents.list(RETAINED, topic="*", limit=100):
            self._versions[row.topic] = row.version
        self._following = asyncio.ensure_future(self._follow())
        self._looking = asyncio.ensure_future(self._look())

    async def close(self) -> None:
        """Write what is to be written, and stop."""
        for task in (self._following, self._looking):
            if task is not None:
                task.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _follow(self) -> None:
        """Others may change them: another process of the terminal."""
        while True:
            try:
                async for seen in self._bus.documents.watch(RETAINED, topic="*"):
                    if seen.document is None:
                        self._versions.pop(seen.topic, None)
                    else:
                        self._versions[seen.topic] = seen.document.version
            except BusError as error:
                if self._bus.closed is not None:
                    return
                log.warning("retained messages are listed again", why=str(error))
                await asyncio.sleep(_AGAIN_AFTER)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self.drop_gone()
            except BusError as error:
                if self._bus.closed is not None:
                    return
                log.warning("retained messages of deleted topics are not dropped yet", why=str(error))

    async def drop_gone(self) -> None:
        """Drop the retained messages of topics that were deleted."""
        if self._versions:
            kept = self._versions.keys()
            there = {row.name for row in await self._bus.topics.list()}
            for topic in [topic for topic in kept if topic not in there]:
                if await self._is_gone(topic):
                    await self.keep(topic, None)

    async def _is_gone(self, topic: str) -> bool:
        """Ask the topic's owner: lists lack what is on its way from one node to another."""
        try:
            await self._bus.topics.show(topic)
        except UnknownTopic:
            return True
        return False

    # -- writing -----------------------------------------------------------------------------------

    def check(self, topic: str, payload: bytes) -> None:
        """LimitReached or TooLarge where a message can't be kept."""
        if len(payload) > LARGEST_RETAINED:
            raise TooLarge(
                f"a retained message of {len(payload)} bytes, allowed are {LARGEST_RETAINED}",
                hint="publish it without the flag RETAIN",
            )
        most = self._bounds().retained
        if not payload or topic in self._versions or len(self._versions) + len(self._coming) < most:
            return
        coming = sum(each != topic and each not in self._versions for each in self._coming)
        if len(self._versions) + coming >= most:
            raise LimitReached(
                f"{most} retained messages are kept already",
                hint="clear some by an empty retained message, or raise the limit max_retained",
            )

    def reserve(self, topic: str, until: asyncio.Future[None]) -> None:
        """Count the message that a topic is to have, until it has it, so that many at a time are bounded."""
        self._coming[topic] += 1

        def release(_: object) -> None:
            self._coming[topic] -= 1
            if not self._coming[topic]:
                del self._coming[topic]

        until.add_done_callback(release)

    async def keep(self, topic: str, message: RetainedMessage | None) -> None:
        """Keep a message, None: none. Returns when that, or a later one of the topic, is on disk."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before = self._wanted.get(topic)
        self._wanted[topic] = _Wanted(message, [*(before.waiting if before else ()), done])
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())
        await done

    async def _write(self) -> None:
        while self._wanted:
            taken = [(topic, self._wanted.pop(topic)) for topic in list(self._wanted)[:_AT_ONCE]]
            await asyncio.gather(*(self._write_one(topic, wanted) for topic, wanted in taken))

    async def _write_one(self, topic: str, wanted: _Wanted) -> None:
        error: BaseException | None = None
        try:
            await self._store(topic, wanted.message)
        except (BusError, asyncio.CancelledError) as found:
            error = found
        for done in wanted.waiting:
            if done.done():
                continue
            if isinstance(error, BusError):
                done.set_exception(error)
            elif error is not None:
                done.cancel()
            else:
                done.set_result(None)
        if isinstance(error, asyncio.CancelledError):
            raise error

    async def _store(self, topic: str, message: RetainedMessage | None) -> None:
        documents = self._bus.documents
        while True:
            try:
                if message is None:
                    await documents.delete(RETAINED, _KEY, topic)
                    self._versions.pop(topic, None)
                    return
                value = msgspec.to_builtins(message)
                version = self._versions.get(topic)
                if version is None:
                    made = await documents.create(RETAINED, _KEY, value, topic)
                else:
                    made = await documents.update(RETAINED, _KEY, value, topic, version=version)
                self._versions[topic] = made.version
                return
            except UnknownDocument:
                self._versions.pop(topic, None)
                if message is None:
                    return  # there was none
            except (DocumentChanged, DocumentExists):
                await self._look_again(topic)

    async def _look_again(self, topic: str) -> None:
        try:
            self._versions[topic] = (await self._bus.documents.read(RETAINED, _KEY, topic)).version
        except UnknownDocument:
            self._versions.pop(topic, None)

    # -- reading -----------------------------------------------------------------------------------

    async def matching(
        self, pattern: str, topics: set[str], now: int
    ) -> AsyncIterator[tuple[str, RetainedMessage]]:
        """Those of these topics that a pattern covers, by name."""
        for topic in sorted(topics & self._versions.keys()):
            if not matches(pattern, topic):
                continue
            try:
                found = await self._bus.documents.read(RETAINED, _KEY, topic)
            except (UnknownDocument, UnknownTopic):
                self._versions.pop(topic, None)
                continue
            message = msgspec.convert(found.value, RetainedMessage)
            if message.expires_at and message.expires_at <= now:
                await self.keep(topic, None)
            else:
                yield topic, message
