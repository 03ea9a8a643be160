"""Looks through the log of a topic for the messages that a page shows, within limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from landbridge.client.bus import Bus
from landbridge.client.fetch import Stretch
from landbridge.console import forms
from landbridge.core.log.batch import Batch, HeaderValue
from landbridge.core.rules.budget import Budget, OverBudget, Spending
from landbridge.core.rules.content import content_of
from landbridge.core.rules.query import read_query
from landbridge.core.rules.ruleset import CompiledQuery
from landbridge.core.time import SECOND, parse_moment
from landbridge.errors import BadRequest, UnknownMessage

#: Messages on a page.
ROWS = 50
#: What one search looks at: messages, bytes, and seconds of this process. The page offers to go on.
MOST_SCANNED, MOST_BYTES, MOST_SECONDS = 50_000, 32 << 20, 1.0
#: A search backwards reads the log in windows: messages of the first one, and of the largest one.
WINDOW, WIDEST = 64, 4096
#: Bytes that are read at a time; messages that are looked at in one turn of the loop, and its seconds: a rule
#: may take some tens of milliseconds for one message.
AT_ONCE, A_TURN, TURN_WITHIN = 1 << 20, 64, 0.005
#: Does the message with this index in a batch belong on the page?
Test: TypeAlias = Callable[[Batch, int], bool]


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message of a log."""

    offset: int
    id: str
    time: int
    key: str
    payload: bytes
    headers: dict[str, HeaderValue]
    origin: str
    priority: int = 0
    deliver_at: int = 0
    expires_at: int = 0


@dataclass
class Found:
    """What a search has found."""

    #: The oldest offset of the log, and the next one that a message will get.
    first: int = 0
    end: int = 0
    messages: list[FoundMessage] = field(default_factory=list)
    #: Where the search began, and where the next one goes on: from this offset, or backwards from before it.
    begin: int = 0
    next: int = 0
    #: Messages that were looked at.
    scanned: int = 0
    #: The messages are in the order newest first.
    is_backwards: bool = False

    @property
    def is_end(self) -> bool:
        """Has the log been looked through to its end, or backwards to its oldest message?"""
        return self.next <= self.first if self.is_backwards else self.next >= self.end


def read_test(key: str, text: str, rule: str) -> Test | None:
    """What the filters of the page choose; None: all messages. ``rule`` is a query as JSON."""
    tests: list[Test] = []
    if key:
        wanted = key.encode()
        tests.append(lambda batch, index: batch.key(index) == wanted)
    if text:
        part = text.encode()
        tests.append(lambda batch, index: part in batch.payload(index))
    if rule.strip():
        tests.append(_rule(rule))
    if not tests:
        return None
    return lambda batch, index: all(test(batch, index) for test in tests)


def _rule(rule: str) -> Test:
    raw = forms.json_of(rule, "the rule", '{"state": ["paid"]}')
    query, spending = CompiledQuery(read_query(raw)), Spending(Budget())

    def test(batch: Batch, index: int) -> bool:
        headers = batch.raw_headers()
        content = content_of(batch.payload(index), batch.key(index), headers[index] if headers else b"")
        spending.begin()
        try:
            return query.matches(content, spending)
        except OverBudget:
            return False

    return test


async def begin_at(bus: Bus, topic: str, start: str) -> int:
    """The offset of a beginning: an offset, "earliest", "latest" or a moment."""
    start = start.strip()
    if start.replace(",", "").isdecimal() and len(start) < 20:
        return int(start.replace(",", ""))
    bounds = (await bus.topics.wait({topic: 0}))[topic]
    if start in ("", "earliest"):
        return bounds.first
    if start == "latest":
        return max(bounds.first, bounds.end - ROWS)
    try:
        moment = int(parse_moment(start, time.time()) * SECOND)
    except (ValueError, OverflowError) as error:
        raise BadRequest(
            f"not a place in the log: {error}", hint="an offset, earliest, latest or -2h"
        ) from None
    return int((await bus.topics.seek_time({topic: moment}))[topic])


class _Pace:
    """Gives the loop to others between the messages of a search, and ends a search that takes too long."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._until = self._time() + MOST_SECONDS
        self._turn_until = self._time() + TURN_WITHIN

    async def is_over(self, found: Found) -> bool:
        """After each message that was looked at."""
        now = self._time()
        if not found.scanned % A_TURN or now > self._turn_until:
            await asyncio.sleep(0)
            self._turn_until = self._time() + TURN_WITHIN
        return found.scanned >= MOST_SCANNED or now > self._until


async def search(
    bus: Bus, topic: str, begin: int, test: Test | None, rows: int = ROWS, at_once: int = AT_ONCE
) -> Found:
    """The messages from an offset on that pass a test, so many at most. ``at_once``: bytes of one read."""
    pace = _Pace()
    found = Found(begin=begin, next=begin)
    size = 0
    while len(found.messages) < rows:
        stretch = await bus.fetch(topic, found.next, at_once)
        found.first, found.end = stretch.first, stretch.end
        if found.next < stretch.first:
            found.begin = found.next = stretch.first
        if not stretch.batches:
            break
        for fetched in stretch.batches:
            size += len(fetched.batch.encode())
            for offset in range(max(found.next, fetched.first), fetched.end):
                found.scanned += 1
                found.next = offset + 1
                if test is None or test(fetched.batch, offset - fetched.first):
                    found.messages.append(
                        _message(offset, fetched.batch, offset - fetched.first, fetched.origin)
                    )
                    if len(found.messages) >= rows:
                        return found
                if await pace.is_over(found):
                    return found
        if size >= MOST_BYTES:
            break
    return found


async def end_at(bus: Bus, topic: str, start: str) -> int:
    """The offset before which a search backwards looks: an offset is the newest one that may be found."""
    start = start.strip()
    if start in ("", "latest"):
        return int((await bus.topics.wait({topic: 0}))[topic].end)
    offset = await begin_at(bus, topic, start)
    is_moment = not start[0].isdecimal() or not start.replace(",", "").isdecimal()
    return offset if is_moment and start != "earliest" else offset + 1


async def search_back(bus: Bus, topic: str, end: int, test: Test | None, rows: int = ROWS) -> Found:
    """The messages before an offset that pass a test, newest first, so many at most."""
    pace = _Pace()
    bounds = (await bus.topics.wait({topic: 0}))[topic]
    end = min(end, bounds.end)
    found = Found(bounds.first, bounds.end, begin=end, next=end, is_backwards=True)
    wide, size = WINDOW, 0
    while len(found.messages) < rows and not found.is_end and size < MOST_BYTES:
        stretch, begin = await _window(bus, topic, max(found.first, found.next - wide), found.next)
        found.first = stretch.first
        size += sum(len(fetched.batch.encode()) for fetched in stretch.batches)
        # A window that was as wide as asked for was cheap: the next one may be wider.
        wide = min(WIDEST, 4 * wide) if found.next - begin >= wide else max(1, found.next - begin)
        if await _look_back(found, stretch, begin, test, rows, pace):
            break
    return found


async def _window(bus: Bus, topic: str, begin: int, end: int) -> tuple[Stretch, int]:
    """The messages up to an offset that one read has, at least one of them, and where they begin."""
    while True:
        stretch = await bus.fetch(topic, begin, AT_ONCE)
        reached = stretch.batches[-1].end if stretch.batches else end
        if reached >= end or end - begin <= 1:
            return stretch, begin
        begin = end - max(1, (end - begin) // 4)


async def _look_back(
    found: Found, stretch: Stretch, begin: int, test: Test | None, rows: int, pace: _Pace
) -> bool:
    """Take what passes the test of a window, the newest first, into what was found. Is the search over?"""
    top, found.next = found.next, begin
    for fetched in reversed(stretch.batches):
        for offset in range(min(top, fetched.end) - 1, max(begin, fetched.first) - 1, -1):
            found.scanned += 1
            if test is None or test(fetched.batch, offset - fetched.first):
                found.messages.append(_message(offset, fetched.batch, offset - fetched.first, fetched.origin))
            if len(found.messages) >= rows or await pace.is_over(found):
                found.next = offset
                return True
    return False


async def last(bus: Bus, topic: str) -> Found:
    """The newest messages of a log, newest first."""
    return await search_back(bus, topic, await end_at(bus, topic, ""), None)


async def one(bus: Bus, topic: str, offset: int) -> FoundMessage:
    """The message with an offset. Raises UnknownMessage."""
    found = await search(bus, topic, offset, None, rows=1, at_once=1)
    if not found.messages or found.messages[0].offset != offset:
        raise UnknownMessage(
            f"{topic} has no message with the offset {offset}",
            hint=f"its offsets go from {found.first} to {found.end - 1}",
        )
    return found.messages[0]


def _message(offset: int, batch: Batch, index: int, origin: str) -> FoundMessage:
    priorities, deliver_at, expires_at = batch.priorities(), batch.deliver_at(), batch.expires_at()
    key: Any = batch.key(index)
    return FoundMessage(
        offset=offset,
        id=batch.id_of(index),
        time=batch.time_of(index),
        key=key.decode(errors="replace") if key else "",
        payload=batch.payload(index),
        headers=batch.headers(index),
        origin=origin,
        priority=0 if priorities is None else priorities[index],
        deliver_at=0 if deliver_at is None else deliver_at[index],
        expires_at=0 if expires_at is None else expires_at[index],
    )
