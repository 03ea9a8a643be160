"""A real terminal, attacked over raw sockets. Whatever comes ends in a coded error or a closed connection, no
task crashes, nothing leaks, and the terminal goes on serving those who behave."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import hmac
import json
import random
import struct
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import landbridge
from landbridge.broker.authority import AUDIENCE, ISSUER, Authority
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.core.log.batch import Batch, Column, build, encode_headers
from landbridge.errors import BY_CODE
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.session import Role, Session
from landbridge.testing import run_terminal
from tests.waiting import LIMIT, Reader, eventually


@pytest.fixture
async def terminal(crashes: list[Any]) -> AsyncIterator[Terminal]:
    async with run_terminal(port=0, limits=Limits(hello_within=60.0)) as running:
        yield running
        await serves(running)
        await eventually(lambda: not running.connections, "no connection is left over")


async def serves(terminal: Terminal) -> None:
    """The terminal serves a good client, end to end."""
    token = terminal.issue_token("good", ["admin"], 3600)
    async with landbridge.connect(terminal.url, token=token) as bus:
        receipt = await bus.publish("good", b"message")
        async with Reader(bus.subscribe("good", group=f"g{receipt.offset}")) as reader:
            while (await reader.next()).offset != receipt.offset:
                pass


def encoded(frame: Frame, *tail: bytes) -> bytes:
    return b"".join(map(bytes, Session.send(frame, *tail)))


def hello(terminal: Terminal, *, version: int = frames.VERSION, scopes: list[str] | None = None) -> bytes:
    return encoded(frames.Hello(version, terminal.issue_token("attacker", scopes or ["admin"], 3600), "fuzz"))


class Line:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._session = Session(Role.CLIENT, max_frame=1 << 26)
        self._frames: list[tuple[Frame, bytes]] = []

    @classmethod
    async def to(cls, terminal: Terminal) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", int(terminal.url.rsplit(":", 1)[1])))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def next(self) -> Frame | None:
        """The next frame that the terminal sends; None when it has closed the connection."""
        async with asyncio.timeout(LIMIT):
            while not self._frames:
                try:
                    data = await self._reader.read(1 << 16)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._frames += [(frame, bytes(tail)) for frame, tail in self._session.receive_data(data)]
        return self._frames.pop(0)[0]

    async def answer(self, request: int) -> Frame | None:
        """The answer to a request, or what came instead of it."""
        while (frame := await self.next()) is not None:
            if getattr(frame, "request", None) == request or isinstance(frame, frames.Closing):
                return frame
        return None

    async def rest(self) -> list[Frame]:
        """Say no more, and hear everything until the terminal closes the connection."""
        try:
            if self._writer.can_write_eof():
                self._writer.write_eof()
        except (OSError, RuntimeError):
            pass
        heard = []
        while (frame := await self.next()) is not None:
            heard.append(frame)
        await self.close()
        return heard

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except (ConnectionError, BrokenPipeError):
            pass


async def attack(terminal: Terminal, *chunks: bytes) -> list[Frame]:
    line = await Line.to(terminal)
    for chunk in chunks:
        line.write(chunk)
        await asyncio.sleep(0)
    return await line.rest()


def code_of(heard: list[Frame]) -> str:
    """The code with which the terminal closed the connection; "" if it said nothing."""
    last = heard[-1] if heard else None
    if not isinstance(last, frames.Closing):
        return ""
    assert last.code in BY_CODE
    assert last.code != "internal"
    assert last.message
    return last.code


async def attack_with_all(terminal: Terminal, attacks: list[bytes]) -> list[str]:
    """Many attacks, some at a time. The codes that they ended with."""
    gate = asyncio.Semaphore(20)

    async def one(data: bytes) -> str:
        async with gate:
            heard = await attack(terminal, data)
        for frame in heard:
            if isinstance(frame, frames.Refused):
                assert frame.code in BY_CODE
                assert frame.code != "internal", frame
        return code_of(heard)

    return await asyncio.gather(*map(one, attacks))


# -- before and around hello --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_random_bytes(terminal: Terminal, seed: int) -> None:
    source = random.Random(seed)
    attacks = [source.randbytes(source.choice((1, 7, 8, 9, 50, 1000, 20_000))) for _ in range(100)]
    codes = await attack_with_all(terminal, attacks)
    # Fewer than eight bytes say nothing yet; of the rest each is told what is wrong.
    for data, code in zip(attacks, codes, strict=True):
        assert code in (("",) if len(data) < 8 else ("too_large", "bad_frame"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "too_large"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), "too_large"),
        (b"\x00" * 100, "bad_frame"),
        (b"\xff" * 100, "too_large"),
        (struct.pack("<II", 0xFFFFFFFF, 10), "too_large"),
        (struct.pack("<II", 1 << 20, 10), "too_large"),
        (struct.pack("<II", 100, 0xFFFFFFFF), "bad_frame"),
        (encoded(frames.Ping(1)), "bad_frame"),
        (encoded(frames.Publish(1, "t", b"p", 1), b"x"), "bad_frame"),
        (encoded(frames.Done(1)), "bad_frame"),
        (encoded(frames.Hello(2, "token")), "wrong_version"),
        (encoded(frames.Hello(0, "")), "wrong_version"),
        (encoded(frames.Hello(1, "")), "unauthenticated"),
        (encoded(frames.Hello(1, "x" * 8192)), "unauthenticated"),
        (encoded(frames.Hello(1, "x"), b"tail"), "bad_frame"),
        (encoded(frames.Hello(1, "x")) * 2, "bad_frame"),
        # A hello that is refused, with more behind it in the same packet: none of it is looked at.
        (encoded(frames.Hello(1, "x")) + encoded(frames.Ping(1)), "unauthenticated"),
        (encoded(frames.Hello(1, "x")) + encoded(frames.Call(1, "terminal.info", {})), "unauthenticated"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value,
)
async def test_garbage_before_hello(terminal: Terminal, data: bytes, expected: str) -> None:
    heard = await attack(terminal, data)
    assert code_of(heard) == expected
    assert len(heard) == 1


async def test_a_hello_byte_by_byte_is_as_good_as_any(terminal: Terminal) -> None:
    line = await Line.to(terminal)
    for byte in hello(terminal) + encoded(frames.Ping(5)):
        line.write(bytes([byte]))
        await asyncio.sleep(0)
    assert isinstance(await line.next(), frames.Welcome)
    assert await line.next() == frames.Done(5)
    await line.rest()


async def test_every_truncation_of_a_conversation(terminal: Terminal) -> None:
    batch = build([b"1", b"2"], id=bytes(16), time=0)
    said = (
        hello(terminal)
        + encoded(frames.Subscribe(1, 1, "orders", "g"))
        + encoded(frames.Publish(2, "orders", b"p", 1), batch)
        + encoded(frames.Ping(3))
    )
    codes = await attack_with_all(terminal, [said[:cut] for cut in range(0, len(said), 5)])
    assert set(codes) == {""}, "half a frame is no offence; the connection just ends"


async def test_half_a_hello_held_open(crashes: list[Any]) -> None:
    async with run_terminal(port=0, limits=Limits(hello_within=0.05)) as terminal:
        said = hello(terminal)
        lines = [await Line.to(terminal) for _ in range(20)]
        for index, line in enumerate(lines):
            line.write(said[: index * len(said) // 20])
        for line in lines:
            closing = await line.next()
            assert isinstance(closing, frames.Closing)
            assert closing.code == "unauthenticated"
            assert await line.next() is None
            await line.close()
        assert not terminal.connections
        # Who said hello in time may be silent as long as he likes.
        line = await Line.to(terminal)
        line.write(said)
        while not isinstance(
            await line.next(), frames.Welcome
        ):  # on a busy machine even this can be too late
            await line.close()
            line = await Line.to(terminal)
            line.write(said)
        await asyncio.sleep(0.1)
        line.write(encoded(frames.Ping(1)))
        assert await line.next() == frames.Done(1)
        await line.rest()


async def test_double_hello(terminal: Terminal) -> None:
    said = hello(terminal)
    assert code_of(await attack(terminal, said, said)) == "bad_frame"
    line = await Line.to(terminal)
    line.write(said)
    assert isinstance(await line.next(), frames.Welcome)
    line.write(said)
    closing = await line.next()
    assert isinstance(closing, frames.Closing)
    assert closing.code == "bad_frame"
    await line.rest()


@pytest.mark.parametrize("seed", range(2))
async def test_hello_then_garbage(terminal: Terminal, seed: int) -> None:
    source = random.Random(seed)
    said = hello(terminal)
    attacks = [said + source.randbytes(source.choice((8, 9, 50, 1000))) for _ in range(60)]
    codes = await attack_with_all(terminal, attacks)
    assert set(codes) <= {"too_large", "bad_frame", ""}
    assert codes.count("") <= 3  # a random length may be one that is allowed and has not come yet


async def test_a_frame_above_the_limit(crashes: list[Any]) -> None:
    async with run_terminal(port=0, limits=Limits(max_frame=100_000)) as terminal:
        head = msgspec.msgpack.encode(frames.Publish(1, "t", b"p", 1))
        too_much = struct.pack("<II", 100_001, len(head)) + head
        assert code_of(await attack(terminal, hello(terminal), too_much)) == "too_large"
        await serves(terminal)


# -- frames in good order with nonsense in them -------------------------------------------------------


def good_batch(count: int = 3) -> bytes:
    """A batch with every column."""
    return build(
        [b"payload-%d" % n for n in range(count)],
        id=bytes(range(16)),
        time=1_700_000_000_000_000,
        base=7,
        keys=[b"key-%d" % n for n in range(count)],
        headers=[
            encode_headers({"a": n, "text": "x", "raw": b"\x00", "f": 1.5, "b": True}) for n in range(count)
        ],
        ids=[b"id-%d" % n for n in range(count)],
        times=[1_700_000_000_000_000 + n for n in range(count)],
        priorities=[n % 10 for n in range(count)],
        deliver_at=list(range(count)),
        expires_at=[0, 1 << 57, 0][:count],
    )


def bit_flips(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        for bit in range(8):
            yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


GROUPS: dict[str, dict[str, Any]] = {
    "fifo": {},
    "lifo": {"discipline": "lifo"},
    "priority": {"discipline": "priority"},
    "ordered": {"order": "key"},
    "filtered": {"match": {"key": "key-*", "headers": {"a": "*"}}},
    "buried": {"max_attempts": 1},
}


async def look_at(message: landbridge.Message) -> None:
    """Everything a consumer may ask of a message."""
    assert isinstance(message.payload, bytes)
    assert isinstance(message.key, str | None)
    assert isinstance(message.id, str)
    assert isinstance(message.headers, dict)
    assert isinstance(message.time, int)
    assert 0 <= message.priority <= 9
    assert message.attempt >= 1


async def consume(bus: landbridge.Bus, topic: str, group: str, seen: dict[str, int]) -> None:
    prefetch = {"fifo": 2, "lifo": 1, "priority": 7}.get(group, 100)
    async for message in bus.subscribe(topic, group=group, prefetch=prefetch):
        await look_at(message)
        seen[group] += 1
        await (message.requeue(after=0.0) if group == "buried" else message.ack())


async def test_every_bit_flip_of_a_batch(terminal: Terminal) -> None:
    """Each is stored or refused; and whatever is stored can be delivered by every discipline, filtered,
    buried, and read by a client."""
    token = terminal.issue_token("consumer", ["admin"], 3600)
    async with landbridge.connect(terminal.url, token=token) as bus:
        for name, options in GROUPS.items():
            await bus.call("group.create", topic="orders", name=name, **options)
        seen = dict.fromkeys(GROUPS, 0)
        consumers = [asyncio.ensure_future(consume(bus, "orders", group, seen)) for group in GROUPS]
        line = await Line.to(terminal)
        line.write(hello(terminal))
        codes = {"stored": 0, "bad_frame": 0}
        for request, batch in enumerate(bit_flips(good_batch(2)), 1):
            line.write(encoded(frames.Publish(request, "orders", b"p", codes["stored"] + 1), batch))
            answer = await line.answer(request)
            assert isinstance(answer, frames.Stored | frames.Refused)
            codes[answer.code if isinstance(answer, frames.Refused) else "stored"] += 1
        assert min(codes.values()) > 100, codes
        await line.rest()
        for consumer in consumers:
            assert not consumer.done(), consumer
        groups = terminal.broker.topics["orders"].groups
        for name in GROUPS:
            await eventually(
                lambda group=groups[name]: not group.delivery.pending and not group.delivery.leases, name
            )
        assert seen["fifo"] == seen["lifo"] == seen["priority"] > 100
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def ends(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


PLAIN = build([b"aaaa", b"bbbb", b"cccc"], id=bytes(16), time=0)  # ends at 40, 4 of them; bytes at 56
WITH_PRIORITY = build([b"a", b"b"], id=bytes(16), time=0, priorities=[1, 2])
WITH_HEADERS = build([b"a"], id=bytes(16), time=0, headers=[encode_headers({"a": 1})])
WITH_ID = build([b"a"], id=bytes(16), time=0, ids=[b"id"])


def with_header(raw: bytes) -> bytes:
    return build([b"a"], id=bytes(16), time=0, headers=[raw])


BAD_BATCHES = {
    "empty": b"",
    "short": PLAIN[:39],
    "version": patched(PLAIN, 0, b"\x02"),
    "envelope": b"\xff" + PLAIN[1:],
    "no messages": patched(PLAIN, 4, struct.pack("<I", 0)),
    "one too many": patched(PLAIN, 4, struct.pack("<I", 4)),
    "one too few": patched(PLAIN, 4, struct.pack("<I", 2)),
    "a million": patched(PLAIN, 4, struct.pack("<I", 1 << 20)),
    "four billion": patched(PLAIN, 4, struct.pack("<I", 0xFFFFFFFF)),
    "no payload column": patched(PLAIN, 2, struct.pack("<H", 0)),
    "unknown column": patched(PLAIN, 2, struct.pack("<H", 1 | 1 << 15)),
    "all columns": patched(PLAIN, 2, struct.pack("<H", 0xFF)),
    "base": patched(PLAIN, 24, struct.pack("<I", 0xFFFFFFFF)),
    "shrinking ends": patched(PLAIN, 40, ends(0, 8, 4, 12)),
    "negative ends": patched(PLAIN, 40, ends(0, -4, 8, 12)),
    "negative begin": patched(PLAIN, 40, ends(-4, 4, 8, 12)),
    "ends beyond": patched(PLAIN, 40, ends(0, 4, 8, 1 << 30)),
    "ends in the middle beyond": patched(PLAIN, 40, ends(0, 4, 1 << 30, 12)),
    "last end before the first": patched(PLAIN, 40, ends(8, 8, 8, 4)),
    "trailing": PLAIN + bytes(8),
    "cut": PLAIN[:-8],
    "priority": patched(WITH_PRIORITY, len(WITH_PRIORITY) - 8, b"\x0a"),
    "headers that are no map": with_header(b"\x93\x01\x02\x03"),
    "headers cut off": with_header(b"\x81\xa1"),
    "headers of headers": with_header(b"\x81\xa1a\x81\xa1b\x01"),
    "headers with a number as name": with_header(b"\x81\x01\x01"),
    "headers with nothing": with_header(b"\x81\xa1a\xc0"),
    "headers with a moment": with_header(b"\x81\xa1a\xd6\xff\x00\x00\x00\x01"),
    "headers not UTF-8": with_header(b"\x81\xa1a\xa1\xff"),
    "headers nested deeply": with_header(b"\x81\xa1a" + b"\x91" * 5000),
    "headers with a huge array": with_header(b"\x81\xa1a\xdd\xff\xff\xff\xff"),
    "id not UTF-8": WITH_ID.replace(b"id", b"\xff\xfe"),
}


@pytest.mark.parametrize("batch", BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
async def test_bad_batches_are_refused(terminal: Terminal, batch: bytes) -> None:
    line = await Line.to(terminal)
    line.write(hello(terminal))
    line.write(encoded(frames.Publish(1, "orders", b"p", 1), batch))
    answer = await line.answer(1)
    assert isinstance(answer, frames.Refused)
    assert answer.code == "bad_frame"
    # In a transaction too, and then nothing of it happens.
    tail = PLAIN + batch
    line.write(
        encoded(frames.Transact(2, b"p", 1, 1, [("orders", len(PLAIN)), ("orders", len(batch))], []), tail)
    )
    answer = await line.answer(2)
    assert isinstance(answer, frames.Refused)
    # The connection is as good as before.
    line.write(encoded(frames.Publish(3, "orders", b"p", 1), PLAIN))
    assert await line.answer(3) == frames.Stored(3, 0)
    await line.rest()


async def test_wild_moments(terminal: Terminal) -> None:
    """Moments at the ends of 64 bits: refused where no calendar has them, else stored, delivered or not; and
    no timer breaks."""
    line = await Line.to(terminal)
    line.write(hello(terminal))
    line.write(encoded(frames.Subscribe(1, 1, "orders", "g")))
    wild = [0, 1, -1, 1 << 62, (1 << 63) - 1, -(1 << 63)]
    for sequence, moment in enumerate(wild, 1):
        for offset, column in enumerate(("deliver_at", "expires_at", "times")):
            options = {column: [moment, 0]}
            batch = build([b"a", b"b"], id=bytes(16), time=moment, **options)  # type: ignore[arg-type]
            request = 10 + sequence * 3 + offset
            line.write(encoded(frames.Publish(request, "orders", b"p%d" % request, 1), batch))
            expected = frames.Stored if moment in (0, 1) else frames.Refused
            assert isinstance(await line.answer(request), expected)
    await line.rest()


WILD = [0, 1, 5, 1 << 40, (1 << 40) + 1, 1 << 61, 1 << 62]


def wild_settlement(source: random.Random) -> frames.Settlement:
    run = (source.choice(WILD), source.choice(WILD))
    return frames.Settlement(
        source.choice(WILD),
        [run] * source.choice((0, 1, 3)) + [(n, n + 1) for n in range(source.choice((0, 3, 1000)))],
        source.choice(("ack", "requeue", "bury", "extend", "", "explode", "x" * 1000)),
        source.choice((None, 0, 1.5, -1.0, 1e300, float("inf"), float("nan"))),
        source.choice(("", "x" * 1024)),
    )


@pytest.mark.parametrize("seed", range(2))
async def test_wild_settlements(terminal: Terminal, seed: int) -> None:
    source = random.Random(seed)
    line = await Line.to(terminal)
    line.write(hello(terminal))
    for number, (group, prefetch) in enumerate((("a", 1), ("b", 10), (None, 5)), 1):
        line.write(encoded(frames.Subscribe(number, number, "orders", group, prefetch)))
        assert isinstance(await line.answer(number), frames.Subscribed)
    line.write(encoded(frames.Publish(9, "orders", b"p", 1), good_batch(1)))
    for request in range(10, 300):
        subscription = source.choice((0, 1, 2, 3, 4, 1 << 62))
        settlements = [wild_settlement(source) for _ in range(source.choice((0, 1, 5)))]
        line.write(encoded(frames.Settle(request, subscription, settlements)))
        line.write(encoded(frames.Settle(0, subscription, settlements)))
        line.write(encoded(frames.Credit(subscription, source.choice(WILD), source.choice(WILD))))
        answer = await line.answer(request)
        assert isinstance(answer, frames.Done | frames.Refused)
        if isinstance(answer, frames.Refused):
            assert answer.code in ("lease_lost", "bad_request")
    totals = terminal.broker.totals
    assert max(totals.acked, totals.requeued, totals.buried) <= 3, "no more than there are messages"
    await line.rest()


async def test_a_refused_settlement_settles_nothing(terminal: Terminal) -> None:
    """A frame with a good ack and a bad verb behind it: all of it is refused."""
    line = await Line.to(terminal)
    line.write(hello(terminal))
    line.write(encoded(frames.Publish(1, "orders", b"p", 1), PLAIN))
    line.write(encoded(frames.Subscribe(2, 1, "orders", "g")))
    while not isinstance(deliver := await line.next(), frames.Deliver):
        pass
    good = frames.Settlement(deliver.lease, deliver.runs)
    line.write(encoded(frames.Settle(3, 1, [good, frames.Settlement(deliver.lease, [], "explode")])))
    answer = await line.answer(3)
    assert isinstance(answer, frames.Refused)
    assert answer.code == "bad_request"
    line.write(encoded(frames.Settle(4, 1, [good])))
    assert await line.answer(4) == frames.Done(4)
    await line.rest()


@pytest.mark.parametrize(
    ("publishes", "tail", "acks"),
    [
        ([("a", len(PLAIN) + 1)], PLAIN, []),
        ([("a", len(PLAIN) - 1)], PLAIN, []),
        ([("a", 1 << 62)], PLAIN, []),
        ([("a", 0)], b"", []),
        ([], PLAIN, []),
        ([("a", len(PLAIN))], b"", []),
        ([("a", len(PLAIN)), ("b", len(PLAIN))], PLAIN, []),
        ([("no name", len(PLAIN))], PLAIN, []),
        ([("$status", len(PLAIN))], PLAIN, []),
        ([("a", len(PLAIN))], PLAIN, [(1, 1, [(0, 1)])]),
        ([("a", len(PLAIN))], PLAIN, [(1 << 62, 1 << 62, [(0, 1 << 62)])]),
        ([("a", len(PLAIN))], PLAIN, [(9, 1 << 40, [(0, 1)])]),
        ([("a", 1)] * 10_000, PLAIN, []),
    ],
)
async def test_wrong_transactions_are_refused_and_nothing_happens(
    terminal: Terminal, publishes: list[Any], tail: bytes, acks: list[Any]
) -> None:
    line = await Line.to(terminal)
    line.write(hello(terminal))
    line.write(encoded(frames.Subscribe(1, 9, "orders", "g")))
    line.write(encoded(frames.Transact(2, b"p", 1, 1, publishes, acks), *([tail] if tail else [])))
    answer = await line.answer(2)
    assert isinstance(answer, frames.Refused)
    assert answer.code in BY_CODE
    assert all(not topic.log.end for name, topic in terminal.broker.topics.items() if name != "$status")
    line.write(encoded(frames.Transact(3, b"p", 2, 1, [("a", len(PLAIN))], []), PLAIN))
    assert await line.answer(3) == frames.Done(3, [0])
    await line.rest()


@pytest.mark.parametrize(("number", "floor"), [(1 << 62, 0), (1, 1 << 62), (1 << 62, 1 << 62), (5, 0)])
async def test_wild_numbers_of_transactions_hurt_their_producer_alone(
    terminal: Terminal, number: int, floor: int
) -> None:
    line = await Line.to(terminal)
    line.write(hello(terminal))
    for request, producer in ((1, b"p"), (2, b"p"), (3, b"q")):
        frame = frames.Transact(request, producer, number, floor, [("a", len(PLAIN))], [])
        line.write(encoded(frame, PLAIN))
        assert isinstance(await line.answer(request), frames.Done)
    assert terminal.broker.topics["a"].log.end == 6, "once for p, once for q"
    await line.rest()


async def test_wild_sequences(terminal: Terminal) -> None:
    line = await Line.to(terminal)
    line.write(hello(terminal))
    for request, (sequence, code) in enumerate(
        [(2, "sequence_gap"), (1 << 62, "sequence_gap"), (1, ""), (1, ""), (3, "sequence_gap"), (2, "")], 1
    ):
        line.write(encoded(frames.Publish(request, "orders", b"p", sequence), PLAIN))
        answer = await line.answer(request)
        assert (answer.code if isinstance(answer, frames.Refused) else "") == code
    assert terminal.broker.topics["orders"].log.end == 6
    await line.rest()


async def test_subscriptions_with_nonsense(terminal: Terminal) -> None:
    line = await Line.to(terminal)
    line.write(hello(terminal))
    line.write(encoded(frames.Subscribe(1, 5, "orders", "g")))
    assert isinstance(await line.answer(1), frames.Subscribed)
    for request, frame in enumerate(
        [
            frames.Subscribe(0, 5, "orders", "g"),
            frames.Subscribe(0, 6, "", "g"),
            frames.Subscribe(0, 6, "orders", ""),
            frames.Subscribe(0, 6, "orders", "\x00"),
            frames.Subscribe(0, 6, "x" * 1024, "g"),
            frames.Subscribe(0, 6, "$nothing", "g"),
            frames.Subscribe(0, 6, "orders", "h", 1, "sometimes"),
        ],
        2,
    ):
        line.write(encoded(msgspec.structs.replace(frame, request=request)))
        answer = await line.answer(request)
        assert isinstance(answer, frames.Refused)
        assert answer.code in ("bad_request", "bad_name", "unknown_topic")
    for request, start in ((20, 0), (21, 1 << 62), (22, 1)):
        line.write(encoded(frames.Subscribe(request, request, "orders", f"s{request}", 1_000_000, start)))
        assert isinstance(await line.answer(request), frames.Subscribed)
    line.write(encoded(frames.Unsubscribe(30, 1 << 62)))
    assert await line.answer(30) == frames.Done(30)
    await line.rest()


OPERATIONS = {
    "topic.create": ["name", "kind", "retention", "max_backlog", "producer", "delivery"],
    "topic.update": ["name", "kind", "retention", "max_backlog"],
    "topic.list": ["after", "limit"],
    "topic.show": ["name"],
    "topic.delete": ["name", "force"],
    "group.create": [
        "topic",
        "name",
        "start",
        "discipline",
        "ack_within",
        "max_attempts",
        "match",
        "backoff",
    ],
    "group.update": ["topic", "name", "ack_within", "max_attempts", "match", "discipline", "dead_letter"],
    "group.list": ["topic", "after"],
    "group.show": ["topic", "name"],
    "group.seek": ["topic", "name", "to", "time"],
    "group.redrive": ["topic", "name"],
    "group.delete": ["topic", "name", "force"],
    "token.create": ["subject", "scopes", "life"],
    "token.revoke": ["id", "subject"],
    "status.levels": ["default", "topics", "producers", "consumers"],
    "terminal.info": [],
    "terminal.metrics": [],
}
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    1 << 63,
    (1 << 64) - 1,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "orders",
    "g",
    "x" * 300,
    "\x00",
    "a/b",
    "lifo",
    "queue",
    "earliest",
    [],
    ["admin"],
    [[]],
    {},
    {"key": "*"},
    {"headers": {"a": "[" * 50}},
    {"settled": True},
    {"max_age": -1},
    {"orders": "off"},
    b"bytes",
]


@pytest.mark.parametrize("seed", range(3))
async def test_operations_with_nonsense(terminal: Terminal, seed: int) -> None:
    source = random.Random(seed)
    line = await Line.to(terminal)
    line.write(hello(terminal))
    line.write(encoded(frames.Call(1, "group.create", {"topic": "orders", "name": "g"})))
    for request in range(2, 700):
        op = source.choice(list(OPERATIONS))
        # Mostly sensible ones for the names, or hardly any call would get past them.
        args = {name: source.choice(VALUES) for name in OPERATIONS[op] if source.random() < 0.7}
        for name, value in (
            ("topic", "orders"),
            ("name", source.choice(("g", "orders", "new"))),
            ("subject", "s"),
        ):
            if name in OPERATIONS[op] and source.random() < 0.8:
                args[name] = value
        if source.random() < 0.05:
            args[source.choice(("self", "connection", "x", "options"))] = source.choice(VALUES)
        line.write(encoded(frames.Call(request, op, args)))
        answer = await line.answer(request)
        assert isinstance(answer, frames.Done | frames.Refused), (op, args, answer)
        if isinstance(answer, frames.Refused):
            assert answer.code in BY_CODE
            assert answer.code not in ("internal", "bad_frame"), (op, args, answer)
    await line.rest()


def conversation(terminal: Terminal) -> list[bytes]:
    batch = good_batch()
    return [
        hello(terminal),
        encoded(frames.Subscribe(1, 1, "orders", "g", 10)),
        encoded(frames.Subscribe(2, 2, "orders", None, 10)),
        encoded(frames.Publish(3, "orders", b"p", 1), batch),
        encoded(frames.Settle(4, 1, [frames.Settlement(1, [(0, 3)])])),
        encoded(frames.Transact(5, b"p", 1, 1, [("orders", len(batch))], []), batch),
        encoded(frames.Call(6, "topic.show", {"name": "orders"})),
        encoded(frames.Credit(2, 1, 100)),
        encoded(frames.Ping(7)),
        encoded(frames.Unsubscribe(8, 1)),
        encoded(frames.Bye(b"p")),
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_mutated_conversations(terminal: Terminal, seed: int) -> None:
    source = random.Random(seed)
    said = conversation(terminal)
    attacks = []
    for _ in range(100):
        parts = list(said)
        for _ in range(source.randint(1, 4)):
            index = source.randrange(1, len(parts))
            part = bytearray(parts[index])
            match source.randrange(5):
                case 0:
                    part[source.randrange(len(part))] ^= 1 << source.randrange(8)
                case 1:
                    part[source.randrange(len(part))] = source.randrange(256)
                case 2:
                    del part[source.randrange(len(part)) :][:5]
                case 3:
                    at = source.randrange(len(part))
                    part[at:at] = source.randbytes(source.randint(1, 10))
                case _:
                    other = source.randrange(1, len(parts))
                    parts[index], parts[other] = parts[other], parts[index]
                    continue
            parts[index] = bytes(part)
        attacks.append(b"".join(parts))
    codes = await attack_with_all(terminal, attacks)
    assert set(codes) <= {"", "bad_frame", "too_large"}


# -- tokens -------------------------------------------------------------------------------------------


def segment(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def bad_tokens(terminal: Terminal) -> dict[str, str]:
    authority = terminal.authority
    key, key_id = authority._key, authority._key_id
    now = terminal.broker.clock() // 1_000_000
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "svc",
        "jti": "id",
        "iat": now,
        "exp": now + 3600,
        "scope": "admin",
        "landbridge_own": True,  # or the service would have to be registered
    }
    header = {"alg": "EdDSA", "typ": "JWT", "kid": key_id}

    def signed(changes: dict[str, Any], headers: dict[str, Any] | None = None, key: Any = key) -> str:
        body = {name: value for name, value in {**claims, **changes}.items() if value is not ...}
        return jwt.encode(body, key, algorithm="EdDSA", headers={"kid": key_id, **(headers or {})})

    def forged(head: Any, body: Any = claims, signature: bytes = b"") -> str:
        return f"{segment(head)}.{segment(body)}.{segment(signature)}"

    def by_hand(head: Any, body: Any) -> str:
        message = f"{segment(head)}.{segment(body)}"
        return f"{message}.{segment(key.sign(message.encode()))}"

    public = authority._public
    raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def hs256(secret: bytes) -> str:
        message = f"{segment({**header, 'alg': 'HS256'})}.{segment(claims)}"
        return f"{message}.{segment(hmac.new(secret, message.encode(), hashlib.sha256).digest())}"

    revoked, revoked_id = authority.issue(terminal.broker.clock(), "gone", ["admin"], 3600)
    terminal.revoke(revoked_id)
    terminal.revoke("sub:banned")
    good = signed({})
    assert authority.verify(terminal.broker.clock(), good).subject == "svc"
    assert authority.verify(terminal.broker.clock(), by_hand(header, claims)).subject == "svc"
    head, body, signature = good.split(".")
    nested = b'{"a":' * 900 + b"1" + b"}" * 900
    return {
        "empty": "",
        "dots": "..",
        "one part": head,
        "not base64": "!!.??.##",
        "not UTF-8": f"{segment(b'xff')}.{body}.{signature}",
        "no signature": f"{head}.{body}.",
        "other signature": f"{head}.{body}.{segment(bytes(64))}",
        "short signature": f"{head}.{body}.{signature[:-4]}",
        "other body": f"{head}.{segment({**claims, 'sub': 'root'})}.{signature}",
        "alg none": forged({**header, "alg": "none"}),
        "alg None": forged({**header, "alg": "None"}, signature=bytes(64)),
        "alg missing": forged({"typ": "JWT", "kid": key_id}),
        "alg a list": forged({**header, "alg": ["EdDSA"]}),
        "HS256 with the public key": hs256(raw),
        "HS256 with the public key in PEM": hs256(pem),
        "another key": signed({}, key=Ed25519PrivateKey.generate()),
        "another terminal's": Authority.from_raw(Authority.new_key()).issue(
            now * 1_000_000, "x", ["admin"], 9
        )[0],
        "unknown kid": signed({}, {"kid": "0" * 16}),
        "no kid": by_hand({"alg": "EdDSA", "typ": "JWT"}, claims),
        "kid a path": signed({}, {"kid": "../../dev/null"}),
        "kid a number": by_hand({**header, "kid": 5}, claims),
        "crit": by_hand({**header, "crit": ["exp"]}, claims),
        "jku": signed({}, {"jku": "http://127.0.0.1:1/keys"}),
        "jwk": signed({}, {"jwk": {"kty": "OKP"}}),
        "x5u": signed({}, {"x5u": "http://127.0.0.1:1/cert"}),
        "b64": by_hand({**header, "b64": False}, claims),
        "header a list": forged([1, 2]),
        "header nested deeply": f"{segment(b'[' * 5000)}.{body}.{signature}",
        "header nested less deeply": f"{segment(nested)}.{body}.{signature}",
        **{f"without {name}": signed({name: ...}) for name in claims},
        "own in words": signed({"landbridge_own": "true"}),
        "own a number": signed({"landbridge_own": 1}),
        "expired": signed({"exp": now - 1}),
        "expires now": signed({"exp": now}),
        "expires never": by_hand(header, {**claims, "exp": None}),
        "expires in words": by_hand(header, {**claims, "exp": "tomorrow"}),
        "expires at infinity": by_hand(header, {**claims, "exp": float("inf")}),
        "expires at nan": by_hand(header, {**claims, "exp": float("nan")}),
        "other audience": signed({"aud": "another-bus"}),
        "other audiences": signed({"aud": ["another-bus"]}),
        "other issuer": signed({"iss": "somebody"}),
        "not yet": signed({"nbf": now + 1000}),
        "unknown scope": signed({"scope": "root"}),
        "scope a number": by_hand(header, {**claims, "scope": 5}),
        "body a list": by_hand(header, [1]),
        "body nested deeply": by_hand(header, b"[" * 4000),
        "revoked": revoked,
        "revoked subject": signed({"sub": "banned"}),
        "zero bytes": "\0" * 100,
        "long": good + "A" * (8192 - len(good)),
        "not ASCII": good[:-5] + "ÿÿÿÿÿ",
    }


async def test_bad_tokens(terminal: Terminal) -> None:
    """All of them get the same answer: nothing says what was wrong."""
    answers = {}
    for name, token in bad_tokens(terminal).items():
        assert len(token) <= 8192, name
        heard = await attack(terminal, encoded(frames.Hello(frames.VERSION, token)))
        answers[name] = heard
    messages = {
        name: [getattr(f, "message", type(f).__name__) for f in heard] for name, heard in answers.items()
    }
    assert {tuple(m) for m in messages.values()} == {("the token is missing, wrong, expired or revoked",)}, (
        messages
    )
    assert {code_of(heard) for heard in answers.values()} == {"unauthenticated"}


async def test_bad_tokens_do_not_renew(terminal: Terminal) -> None:
    line = await Line.to(terminal)
    line.write(hello(terminal))
    tokens = {**bad_tokens(terminal), "of somebody else": terminal.issue_token("other", ["admin"], 60)}
    for request, (name, token) in enumerate(tokens.items(), 1):
        line.write(encoded(frames.Renew(request, token)))
        answer = await line.answer(request)
        assert isinstance(answer, frames.Refused), name
        assert answer.code == "unauthenticated", name
    line.write(encoded(frames.Ping(1 << 20)))
    assert await line.answer(1 << 20) == frames.Done(1 << 20)
    await line.rest()


# -- leaks --------------------------------------------------------------------------------------------


async def test_two_thousand_bad_connections_leave_nothing(terminal: Terminal) -> None:
    source = random.Random(7)
    terminal.broker.status.levels.default = "off"  # it would hold what happened, for good reason
    said = conversation(terminal)
    kinds = [
        b"",
        b"\xff" * 100,
        encoded(frames.Hello(1, "wrong")),
        encoded(frames.Hello(2, "wrong")),
        said[0][:50],
        said[0],
        said[0] + source.randbytes(500),
        said[0] + said[1] + said[2] + said[3][:40],
        said[0] + encoded(frames.Publish(1, "orders", b"p", 1), PLAIN[:-1]),
        said[0] + said[1] + encoded(frames.Settle(1, 1, [frames.Settlement(5, [(0, 1 << 62)])])),
    ]

    async def rounds(count: int) -> int:
        for _ in range(count // 100):
            await attack_with_all(terminal, kinds * 10)
        await eventually(lambda: not terminal.connections)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = await rounds(200)
        after = await rounds(2000)
    finally:
        tracemalloc.stop()
    assert after - before < 100_000
    assert not terminal.connections
    assert not terminal.tasks
    topic = terminal.broker.topics["orders"]
    assert not topic.listening
    assert set(topic.groups) == {"g"}


async def test_batches_of_strangers_keep_their_columns(terminal: Terminal) -> None:
    """The good batch above is good: it comes out as it went in."""
    token = terminal.issue_token("consumer", ["admin"], 3600)
    line = await Line.to(terminal)
    line.write(hello(terminal))
    line.write(encoded(frames.Publish(1, "orders", b"p", 1), good_batch()))
    assert await line.answer(1) == frames.Stored(1, 0)
    await line.rest()
    async with (
        landbridge.connect(terminal.url, token=token) as bus,
        Reader(bus.subscribe("orders", group="g"), batches=True) as reader,
    ):
        batch = await reader.next()
        assert bytes(batch.columns.encode()) == good_batch()
        assert all(batch.columns.has(column) for column in Column)
        assert Batch.decode(good_batch()).id_of(0) == "id-0"
