"""Publishing many messages: they gather into batches while earlier batches are on their way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from landbridge.client.line import TerminalLine
from landbridge.client.outbox import Outbox
from landbridge.client.payload import encode
from landbridge.core.log.batch import HIGHEST_PRIORITY, NO_MOMENT, Headers, build, encode_headers
from landbridge.core.wording import counted
from landbridge.errors import BadRequest, BusError
from landbridge.protocol import frames

Until: TypeAlias = Literal["stored", "arrived", "acked"]
#: A datetime with a zone, a timedelta from now, seconds since 1970, or None.
Moment: TypeAlias = datetime | timedelta | float | None


class MessageOptions(TypedDict, total=False):
    """What a message may have besides its payload."""

    #: For the filters of groups, and for compaction.
    key: str | bytes | None
    #: 0 to 9, where 9 goes first; for groups of the discipline "priority".
    priority: int
    headers: Headers | None
    #: The message's id; by default the bus makes one.
    id: str | None
    #: No consumer gets the message before this moment, or after that one.
    deliver_at: Moment
    expires_at: Moment


#: A batch is cut at so many messages or bytes. Larger ones cost less per message and more latency.
CUT_MESSAGES = 4096
CUT_BYTES = 512 << 10
#: Seconds: a day of the year 2001, long before any message. A smaller number, other than 0, means a span.
FIRST_MOMENT = 1_000_000_000


def microseconds(moment: Moment) -> int:
    """A moment as the wire has it, in microseconds since 1970; 0 for None."""
    if moment is None:
        return 0
    if isinstance(moment, int | float):
        seconds = moment
    elif isinstance(moment, timedelta):
        seconds = time.time() + moment.total_seconds()
    elif isinstance(moment, datetime) and moment.tzinfo is not None:
        seconds = moment.timestamp()
    elif isinstance(moment, datetime):
        raise BadRequest(f"{moment!r} is in no time zone", hint="datetime.now(UTC) + …")
    else:
        raise BadRequest(
            f"{moment!r} is not a moment", hint="datetime.now(UTC) + …, a timedelta, or seconds since 1970"
        )
    small = isinstance(moment, int | float) and 0 < moment < FIRST_MOMENT
    if small or not 0 <= seconds * 1_000_000 < NO_MOMENT:
        raise BadRequest(
            f"{moment!r} is not a moment of our time, in seconds since 1970",
            hint="timedelta(seconds=…) is a span from now; time.time() + … is a moment",
        )
    return int(seconds * 1_000_000)


_NO_COLUMNS = (None,) * 6


class Rows:
    """The columns of a batch in the making. Only the payloads are kept until another column is used."""

    __slots__ = ("deliver_at", "expires_at", "headers", "ids", "keys", "payloads", "priorities", "size")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.keys: list[bytes] | None = None
        self.headers: list[bytes] | None = None
        self.ids: list[bytes] | None = None
        self.priorities: list[int] | None = None
        self.deliver_at: list[int] | None = None
        self.expires_at: list[int] | None = None
        self.size = 0

    def add(
        self,
        payload: bytes,
        key: str | bytes | None = None,
        priority: int = 0,
        headers: Headers | None = None,
        id: str | None = None,
        deliver_at: Moment = None,
        expires_at: Moment = None,
    ) -> None:
        """Add a message. See MessageOptions."""
        # Everything that can fail comes before anything is changed.
        if not isinstance(priority, int) or not 0 <= priority <= HIGHEST_PRIORITY:
            raise BadRequest(f"a priority of {priority}, allowed are 0 to {HIGHEST_PRIORITY}")
        if isinstance(id, bytes):
            raise BadRequest(f"the id {id!r} is not text")
        raw_key, raw_id, raw_headers = _raw(key, "key"), _raw(id, "id"), _raw_headers(headers)
        deliver, expire = microseconds(deliver_at), microseconds(expires_at)
        count = len(self.payloads)
        self.payloads.append(payload)
        self.size += len(payload) + len(raw_headers) + len(raw_key) + len(raw_id)
        self.keys = _put(self.keys, count, raw_key, b"")
        self.headers = _put(self.headers, count, raw_headers, b"")
        self.ids = _put(self.ids, count, raw_id, b"")
        self.priorities = _put(self.priorities, count, priority, 0)
        self.deliver_at = _put(self.deliver_at, count, deliver, 0)
        self.expires_at = _put(self.expires_at, count, expire, 0)

    @property
    def plain(self) -> bool:
        """Have the messages so far nothing but payloads?"""
        columns = (self.keys, self.headers, self.ids, self.priorities, self.deliver_at, self.expires_at)
        return columns == _NO_COLUMNS

    def build(self, id: bytes) -> bytes:
        """The encoded batch."""
        return build(
            self.payloads,
            id=id,
            time=time.time_ns() // 1000,
            keys=self.keys,
            headers=self.headers,
            ids=self.ids,
            priorities=self.priorities,
            deliver_at=self.deliver_at,
            expires_at=self.expires_at,
        )


def _raw(value: str | bytes | None, what: str) -> bytes:
    if value is None or isinstance(value, bytes):
        return value or b""
    try:
        return value.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise BadRequest(f"the {what} {value!r} is not text: {error}") from None


def _raw_headers(headers: Headers | None) -> bytes:
    for name, value in headers.items() if headers else ():
        if not isinstance(name, str) or not isinstance(value, str | bytes | int | float):
            raise BadRequest(
                f"the header {name!r}: {value!r}", hint="text for text, bytes, a number or a boolean"
            )
    try:
        return encode_headers(headers)
    except (ValueError, OverflowError) as error:  # half a surrogate pair, a number beyond 64 bits
        raise BadRequest(f"headers that can't be sent: {error}") from None


def _put(column: list[Any] | None, count: int, value: Any, default: Any) -> list[Any] | None:
    if column is None:
        if value == default:
            return None
        column = [default] * count
    column.append(value)
    return column


def _parts(payloads: list[bytes], most: int) -> Iterable[list[bytes]]:
    """The payloads in order, in parts of at most ``most`` bytes or of one message."""
    size = begin = 0
    for at, payload in enumerate(payloads):
        size += len(payload)
        if size > most and at > begin:
            yield payloads[begin:at]
            begin, size = at, len(payload)
    yield payloads[begin:]


class Publisher:
    """Publishes many messages in order, made by ``bus.publisher(topic)``. ``flush`` and leaving the block
    wait until all is stored, and raise what was refused."""

    def __init__(self, bus: TerminalLine, outbox: Outbox) -> None:
        self._bus = bus
        self._outbox = outbox
        self._rows = Rows()
        self._payloads = self._rows.payloads
        self._plain = True
        #: A batch is cut at so many messages or bytes, so that it fits into a frame: a message has at most 41
        #: bytes of ends, moments and priority besides its own. A larger message is a batch by itself.
        self._cut_messages = max(1, min(CUT_MESSAGES, bus.max_batch // 128))
        self._cut_bytes = min(CUT_BYTES, bus.max_batch // 4)
        self._large = min(self._cut_bytes, bus.max_payload)
        self._scheduled = False
        #: Messages sent so far, and those of them that are stored.
        self.sent = self.stored = 0
        #: Messages without an answer.
        self._unanswered = 0
        #: The first refusal that was not raised yet, and how many messages it and later ones concern.
        self._error: BusError | None = None
        self._refused = 0
        self._flushed: asyncio.Future[None] | None = None
        loop = asyncio.get_running_loop()
        self._loop = loop
        #: A future that is done, which ``send`` returns: awaiting it costs next to nothing.
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ready.set_result(None)

    def send(self, payload: Any, **options: Unpack[MessageOptions]) -> Awaitable[None]:
        """Add a message. Await the result, which waits only when there is no room."""
        if type(payload) is not bytes:
            payload = encode(payload)
        size = len(payload)
        if size > self._large:
            self._bus.checked(payload)
            self._cut()
        rows = self._rows
        if not options and self._plain:
            self._payloads.append(payload)
            rows.size += size
        else:
            rows.add(payload, **options)
            self._plain = rows.plain
        if len(self._payloads) >= self._cut_messages or rows.size >= self._cut_bytes:
            self._cut()
            return self._room()
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._cut_soon)
        return self._ready

    async def send_many(self, payloads: Iterable[Any]) -> int:
        """Send an iterable of payloads. Returns the number of messages sent. Small calls share batches, as
        the messages of ``send`` do."""
        total = 0
        rest = iter(payloads)
        step = self._cut_messages
        while chunk := list(islice(rest, min(step, self._cut_messages - len(self._payloads)))):
            if set(map(type, chunk)) != {bytes}:
                chunk = [encode(payload) for payload in chunk]
            size = sum(map(len, chunk))
            if size > self._large:
                self._bus.checked(max(chunk, key=len))
            if size <= self._cut_bytes:
                await self._add(chunk, size)
            else:
                # Large messages: cut this chunk by size, and take smaller ones from now on.
                step = max(1, self._cut_bytes * len(chunk) // size)
                for part in _parts(chunk, self._cut_bytes):
                    await self._add(part, sum(map(len, part)))
            total += len(chunk)
        return total

    def fits(self, rows: Rows, payload: bytes) -> bool:
        """May this payload go into the same batch? TooLarge if it may go into none."""
        if len(payload) > self._large:
            self._bus.checked(payload)
            return not rows.payloads
        return len(rows.payloads) < self._cut_messages and rows.size < self._cut_bytes

    async def send_rows(self, rows: Rows) -> None:
        """Send a batch that the caller has gathered, with ``fits`` before each message."""
        self._cut()
        self._rows, self._payloads = rows, rows.payloads
        self._cut()
        await self._room()

    async def _add(self, payloads: list[bytes], size: int) -> None:
        """Add messages that have nothing but payloads, of together ``size`` bytes, which fit into a batch."""
        was_cut = False
        if self._payloads and (
            not self._plain
            or len(self._payloads) + len(payloads) > self._cut_messages
            or self._rows.size + size > self._cut_bytes
        ):
            self._cut()
            was_cut = True
        self._payloads.extend(payloads)
        self._rows.size += size
        if (
            len(self._payloads) >= self._cut_messages
            or self._rows.size >= self._cut_bytes
            or self._error is not None  # then these are not sent either
        ):
            self._cut()
            was_cut = True
        if was_cut:
            await self._room()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._cut_soon)

    def _cut_soon(self) -> None:
        if self._outbox.full and self._error is None:
            # Go on gathering; whoever fills this batch too waits in ``send``.
            self._bus.wait_for_room().add_done_callback(lambda _: self._cut_soon())
            return
        self._scheduled = False
        self._cut()

    def _cut(self) -> None:
        """Send what has gathered as a batch."""
        rows = self._rows
        count = len(rows.payloads)
        if not count:
            return
        self._rows = Rows()
        self._payloads = self._rows.payloads
        self._plain = True
        self.sent += count
        if self._error is not None:
            self._refused += count
            return  # the refusal is raised by the next wait or flush; nothing is sent after it
        self._unanswered += count
        data = rows.build(self._bus.new_id())

        def then(result: frames.Stored | BusError) -> None:
            self._unanswered -= count
            if isinstance(result, BusError):
                self._error = self._error or result
                self._refused += count
            else:
                self.stored += count
            if self._flushed is not None and not self._flushed.done() and not self._unanswered:
                self._flushed.set_result(None)

        self._outbox.put(data, then)

    async def _room(self) -> None:
        # Let the loop write what was cut and read what was answered.
        await asyncio.sleep(0)
        while self._outbox.full and self._error is None:
            await self._bus.wait_for_room()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            refused, self._refused = self._refused, 0
            error.add_note(f"{counted(refused, 'message')} not stored")
            raise error

    async def flush(self) -> None:
        """Wait until everything sent so far is answered. Raises the first refusal."""
        self._cut()
        while self._unanswered:
            if self._flushed is None or self._flushed.done():
                self._flushed = self._loop.create_future()
            await asyncio.shield(self._flushed)
        self._raise()

    async def __aenter__(self) -> Publisher:
        await self._bus.come_near(self._outbox.topic)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, Exception):
            try:
                await self.flush()
            except BusError:
                if error is None:
                    raise
