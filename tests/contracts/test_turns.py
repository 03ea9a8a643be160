"""Nothing that one token asks for holds the loop for long: the longest turn of the loop, in CPU time of its
thread, while a client in another thread asks for much."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from landbridge.broker.server import Terminal
from landbridge.core.log.batch import build, encode_headers
from landbridge.core.time import SECOND, uuid7
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.session import Role, Session

T = TypeVar("T")
#: Seconds of CPU time that a turn of the loop may take.
LONGEST = 0.05
ID = uuid7(1_700_000_000 * SECOND, bytes(10))


class Turns:
    """Measures the turns of an event loop."""

    def __init__(self) -> None:
        self.longest = 0.0


@contextmanager
def measured() -> Iterator[Turns]:
    """Measure each turn of the running loop: all callbacks that it runs between two looks at its sockets.
    Without the garbage collector: it looks through all that the process holds, the client's side included."""
    loop: Any = asyncio.get_running_loop()
    plain, turns = loop._run_once, Turns()

    def run_once() -> None:
        began = time.thread_time()
        plain()
        turns.longest = max(turns.longest, time.thread_time() - began)

    loop._run_once = run_once
    gc.disable()
    try:
        yield turns
    finally:
        gc.enable()
        del loop._run_once


async def longest_turn(work: Callable[..., T], *args: Any) -> tuple[float, T]:
    """Run this in another thread. Returns the longest turn of the loop meanwhile, and what it returned."""
    with measured() as turns:
        result = await asyncio.to_thread(work, *args)
        await asyncio.sleep(0)
    return turns.longest, result


class Asker:
    """A client that sends any frames that it likes. It blocks, so it runs in a thread of its own."""

    def __init__(self, terminal: Terminal) -> None:
        self._socket = socket.create_connection(("127.0.0.1", int(terminal.url.rsplit(":", 1)[1])), 20)
        self._session = Session(Role.CLIENT)
        self._came: list[tuple[Frame, memoryview]] = []
        self.send(frames.Hello(frames.VERSION, terminal.issue_token("asker", ["admin"], 3600)))

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, *sent: Frame, tail: bytes = b"") -> None:
        self._socket.sendall(b"".join(bytes(part) for frame in sent for part in Session.send(frame, tail)))

    def next(self, *kinds: type[Frame]) -> Any:
        """The next frame of these kinds; others are passed over."""
        while True:
            while self._came:
                frame, _ = self._came.pop(0)
                if isinstance(frame, kinds):
                    return frame
            self._came = self._session.receive_data(self._socket.recv(1 << 20))

    def answers(self, count: int) -> list[Any]:
        return [self.next(frames.Done, frames.Refused, frames.Stored, frames.Closing) for _ in range(count)]

    def call(self, op: str, **args: Any) -> Any:
        self.send(frames.Call(1, op, args))
        return self.answers(1)[0]

    def publish(self, topic: str, batches: list[bytes]) -> None:
        for number, batch in enumerate(batches, 1):
            self.send(frames.Publish(number, topic, b"asker-" + topic.encode(), number), tail=batch)
            if number % 256 == 0:
                self.answers(256)
        self.answers(len(batches) % 256)

    def take(self, topic: str, group: str, messages: int, prefetch: int = 1_000_000) -> list[Any]:
        """Subscribe, and take so many messages. Returns their frames."""
        self.send(frames.Subscribe(1, 1, topic, group, prefetch))
        came = []
        while messages > 0:
            came.append(self.next(frames.Deliver, frames.Refused, frames.Lost))
            messages -= sum(end - first for first, end in came[-1].runs)
        return came


@pytest.fixture
async def asker(terminal: Terminal) -> Any:
    with await asyncio.to_thread(Asker, terminal) as asker:
        yield asker


def batch_of(count: int, **columns: Any) -> bytes:
    return build([b"x"] * count, id=ID, time=0, **columns)


# -- settling -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ack", "requeue", "bury"])
@pytest.mark.parametrize("shape", ["settlements", "runs", "frames"])
async def test_ten_thousand_single_ranges(terminal: Terminal, asker: Asker, shape: str, verb: str) -> None:
    await asyncio.to_thread(asker.publish, "orders", [batch_of(20_000)])
    (deliver,) = await asyncio.to_thread(asker.take, "orders", "g", 20_000)
    runs = [(offset, offset + 1) for offset in range(0, 20_000, 2)]

    def settle() -> list[Any]:
        if shape == "runs":
            asker.send(frames.Settle(1, 1, [frames.Settlement(deliver.lease, runs, verb, 60.0)]))
            return asker.answers(1)
        each = [frames.Settlement(deliver.lease, [run], verb, 60.0) for run in runs]
        if shape == "settlements":
            asker.send(frames.Settle(1, 1, each))
            return asker.answers(1)
        asker.send(*(frames.Settle(1, 1, [settlement]) for settlement in each))
        return asker.answers(10_000)

    longest, answers = await longest_turn(settle)
    assert all(isinstance(answer, frames.Done) for answer in answers)
    delivery = terminal.broker.group("orders", "g").delivery
    assert [lease.size for lease in delivery.leases.values()] == [10_000]
    assert longest < LONGEST


@pytest.mark.parametrize(("verb", "count"), [("requeue", 300_000), ("bury", 50_000)])
async def test_giving_back_one_long_run(terminal: Terminal, asker: Asker, verb: str, count: int) -> None:
    await asyncio.to_thread(asker.publish, "orders", [batch_of(count)])
    await asyncio.to_thread(lambda: asker.call("group.create", topic="orders", name="g", dead_letter=""))
    (deliver,) = await asyncio.to_thread(asker.take, "orders", "g", count)

    def settle() -> list[Any]:
        asker.send(frames.Settle(1, 1, [frames.Settlement(deliver.lease, deliver.runs, verb, 60.0)]))
        return asker.answers(1)

    longest, _ = await longest_turn(settle)
    assert longest < LONGEST


async def test_a_transaction_of_many_acks(terminal: Terminal, asker: Asker) -> None:
    await asyncio.to_thread(asker.publish, "orders", [batch_of(20_000)])
    (deliver,) = await asyncio.to_thread(asker.take, "orders", "g", 20_000)
    acks = [(1, deliver.lease, [(offset, offset + 1)]) for offset in range(0, 20_000, 2)]

    def transact(acks: list[Any], number: int) -> Any:
        asker.send(frames.Transact(1, b"asker", number, number, [], acks))
        return asker.answers(1)[0]

    longest, answer = await longest_turn(transact, acks, 1)
    assert longest < LONGEST
    assert (answer.code, bool(answer.hint)) == ("limit_reached", True)
    longest, answer = await longest_turn(transact, acks[:1200], 2)
    assert longest < LONGEST
    assert isinstance(answer, frames.Done)


async def test_many_transactions_of_many_outputs(terminal: Terminal, asker: Asker) -> None:
    batch = batch_of(1)

    def transact() -> list[Any]:
        for number in range(1, 21):
            outputs = [("orders", len(batch))] * 1200
            asker.send(frames.Transact(number, b"asker", number, 1, outputs, []), tail=batch * 1200)
        return asker.answers(20)

    longest, answers = await longest_turn(transact)
    assert longest < LONGEST
    assert all(isinstance(answer, frames.Done) for answer in answers)


# -- handing out --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100_000], ids=["single", "large"])
@pytest.mark.parametrize("discipline", ["fifo", "lifo", "priority"])
async def test_a_prefetch_of_a_million(terminal: Terminal, asker: Asker, discipline: str, size: int) -> None:
    count = 20_000 if size == 1 else 300_000
    levels = [n % 10 for n in range(count)]
    batches = [batch_of(size, priorities=levels[n : n + size]) for n in range(0, count, size)]
    await asyncio.to_thread(asker.publish, "orders", batches)
    await asyncio.to_thread(
        lambda: asker.call("group.create", topic="orders", name="g", discipline=discipline)
    )
    longest, came = await longest_turn(asker.take, "orders", "g", count)
    assert longest < LONGEST
    offsets = [offset for frame in came for run in frame.runs for offset in range(*run)]
    assert len(set(offsets)) == len(offsets) == count
    if discipline == "priority":
        assert [levels[offset] for offset in offsets] == sorted(levels, reverse=True)


async def test_a_consumer_with_many_leases_goes(terminal: Terminal, asker: Asker) -> None:
    await asyncio.to_thread(asker.publish, "orders", [batch_of(1)] * 20_000)
    await asyncio.to_thread(asker.take, "orders", "g", 4000)

    def go() -> Any:
        asker.send(frames.Unsubscribe(7, 1))
        return asker.next(frames.Done)

    longest, _ = await longest_turn(go)
    assert longest < LONGEST


async def test_a_filter_that_lets_nothing_through(terminal: Terminal, asker: Asker) -> None:
    headers = [encode_headers({"kind": f"k{n}", "size": n}) for n in range(50_000)]
    await asyncio.to_thread(asker.publish, "orders", [batch_of(50_000, headers=headers)] * 2 + [batch_of(1)])
    match = {"headers": {"kind": "*x*", "size": "*"}}
    await asyncio.to_thread(lambda: asker.call("group.create", topic="orders", name="g", match=match))
    await asyncio.to_thread(asker.publish, "last", [batch_of(1)])

    def subscribe() -> None:
        asker.send(frames.Subscribe(1, 1, "orders", "g", 1_000_000))
        while asker.call("group.show", topic="orders", name="g").result["lag"]:
            pass

    longest, _ = await longest_turn(subscribe)
    assert longest < LONGEST


# -- operations ---------------------------------------------------------------------------------------


async def test_twenty_thousand_waits(terminal: Terminal, asker: Asker) -> None:
    await asyncio.to_thread(asker.publish, "orders", [batch_of(1)])

    def wait() -> list[Any]:
        asker.send(*(_wait(n, "orders") for n in range(20_000)))
        return asker.answers(20_000)

    def wake() -> list[Any]:
        asker.send(*(_wait(n, "orders") for n in range(900)))
        asker.send(frames.Publish(1, "orders", b"another", 1), tail=batch_of(1))
        return asker.answers(901)

    longest, answers = await longest_turn(wait)
    assert longest < LONGEST
    assert {answer.code for answer in answers if isinstance(answer, frames.Refused)} == {"limit_reached"}
    longest, answers = await longest_turn(wake)
    assert longest < LONGEST
    assert not any(isinstance(answer, frames.Refused) for answer in answers)


def _wait(request: int, topic: str) -> Frame:
    return frames.Call(request + 1, "topic.wait", {"offsets": {topic: 1}, "within": 1.0})


@pytest.mark.parametrize("size", [300, 300_000])
async def test_where_is_a_message_among_many(terminal: Terminal, asker: Asker, size: int) -> None:
    ids = [b"order-%d" % n for n in range(300_000)]
    batches = [batch_of(size, ids=ids[n : n + size]) for n in range(0, 300_000, size)]
    await asyncio.to_thread(asker.publish, "orders", batches)

    def where(id: str) -> Any:
        return asker.call("message.where", id=id, topic="orders")

    longest, answer = await longest_turn(where, "order-299999")
    assert longest < LONGEST
    assert answer.result["places"][0]["offset"] == 299_999
    longest, answer = await longest_turn(where, "elsewhere")
    assert longest < LONGEST
    assert answer.code == "unknown_message"
    await asyncio.to_thread(asker.publish, "plain", [batch_of(300_000)])
    longest, answer = await longest_turn(where, f"{ID.hex()}-299999")
    assert longest < LONGEST


async def test_a_filter_pattern_of_900_kilobytes(terminal: Terminal, asker: Asker) -> None:
    await asyncio.to_thread(asker.publish, "orders", [batch_of(10, keys=[b"k%d" % n for n in range(10)])])

    def create(match: dict[str, Any]) -> Any:
        answer = asker.call("group.create", topic="orders", name="g", match=match)
        if isinstance(answer, frames.Done):
            asker.send(frames.Subscribe(2, 1, "orders", "g"))
            asker.next(frames.Subscribed)
            asker.call("group.show", topic="orders", name="g")
        return answer

    for match in (
        {"key": "[ab]*" * 180_000},
        {"headers": {"kind": "[ab]*" * 180_000}},
        {"headers": {f"h{n}": f"*{n}*" for n in range(50_000)}},
    ):
        longest, answer = await longest_turn(create, match)
        assert longest < LONGEST
        assert (answer.code, bool(answer.hint)) == ("bad_request", True)
