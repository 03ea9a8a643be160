"""Nothing that one token asks for holds the loop for long: the longest turn of the loop, in CPU time of its
thread, while a client in another thread asks for much."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any, TypeVar

import pytest

from landbridge.broker.server import Terminal
from landbridge.core.log.batch import build, encode_headers
from landbridge.core.time import SECOND, uuid7
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.session import Role, Session
from landbridge.testing import run_terminal

#: They take a minute together, and measure CPU time, which a busy machine stretches.
pytestmark = pytest.mark.slow

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


class LongTurn(AssertionError):
    """A turn of the loop took too long."""


async def promptly(work: Callable[..., T], *args: Any) -> T:
    """Run this in another thread, while no turn of the loop may be long. Returns what it returned."""
    with measured() as turns:
        result = await asyncio.to_thread(work, *args)
        await asyncio.sleep(0)
    if turns.longest >= LONGEST:
        raise LongTurn(f"a turn of the loop took {turns.longest:.3f} s instead of {LONGEST} s")
    return result


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


def tried_thrice(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Give the test a terminal and a client, up to three times: a busy machine makes one turn long, a broken
    promise one of every attempt."""

    async def run(crashes: list[Any], **given: Any) -> None:
        for attempt in range(3):
            async with run_terminal(port=0) as terminal:
                with await asyncio.to_thread(Asker, terminal) as asker:
                    try:
                        await test(terminal, asker, **given)
                        return
                    except LongTurn:
                        if attempt == 2:
                            raise

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    plain, (crashes, _) = signature(test), signature(run).parameters.values()
    run.__signature__ = plain.replace(parameters=[crashes, *list(plain.parameters.values())[2:]])  # type: ignore[attr-defined]
    return run


def batch_of(count: int, **columns: Any) -> bytes:
    return build([b"x"] * count, id=ID, time=0, **columns)


# -- settling -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ack", "requeue", "bury"])
@pytest.mark.parametrize("shape", ["settlements", "runs", "frames"])
@tried_thrice
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

    answers = await promptly(settle)
    assert all(isinstance(answer, frames.Done) for answer in answers)
    delivery = terminal.broker.table.group("orders", "g").delivery
    assert [lease.size for lease in delivery.leases.values()] == [10_000]


@pytest.mark.parametrize(("verb", "count"), [("requeue", 300_000), ("bury", 50_000)])
@tried_thrice
async def test_giving_back_one_long_run(terminal: Terminal, asker: Asker, verb: str, count: int) -> None:
    await asyncio.to_thread(asker.publish, "orders", [batch_of(count)])
    await asyncio.to_thread(lambda: asker.call("group.create", topic="orders", name="g", dead_letter=""))
    (deliver,) = await asyncio.to_thread(asker.take, "orders", "g", count)

    def settle() -> list[Any]:
        asker.send(frames.Settle(1, 1, [frames.Settlement(deliver.lease, deliver.runs, verb, 60.0)]))
        return asker.answers(1)

    await promptly(settle)


@tried_thrice
async def test_a_transaction_of_many_acks(terminal: Terminal, asker: Asker) -> None:
    await asyncio.to_thread(asker.publish, "orders", [batch_of(20_000)])
    (deliver,) = await asyncio.to_thread(asker.take, "orders", "g", 20_000)
    acks = [(1, deliver.lease, [(offset, offset + 1)]) for offset in range(0, 20_000, 2)]

    def transact(acks: list[Any], number: int) -> Any:
        asker.send(frames.Transact(1, b"asker", number, number, [], acks))
        return asker.answers(1)[0]

    answer = await promptly(transact, acks, 1)
    assert (answer.code, bool(answer.hint)) == ("limit_reached", True)
    answer = await promptly(transact, acks[:1200], 2)
    assert isinstance(answer, frames.Done)


@tried_thrice
async def test_many_transactions_of_many_outputs(terminal: Terminal, asker: Asker) -> None:
    batch = batch_of(1)

    def transact() -> list[Any]:
        for number in range(1, 21):
            outputs = [("orders", len(batch))] * 1200
            asker.send(frames.Transact(number, b"asker", number, 1, outputs, []), tail=batch * 1200)
        return asker.answers(20)

    answers = await promptly(transact)
    assert all(isinstance(answer, frames.Done) for answer in answers)


# -- handing out --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100_000], ids=["single", "large"])
@pytest.mark.parametrize("discipline", ["fifo", "lifo", "priority"])
@tried_thrice
async def test_a_prefetch_of_a_million(terminal: Terminal, asker: Asker, discipline: str, size: int) -> None:
    count = 20_000 if size == 1 else 300_000
    levels = [n % 10 for n in range(count)]
    batches = [batch_of(size, priorities=levels[n : n + size]) for n in range(0, count, size)]
    await asyncio.to_thread(asker.publish, "orders", batches)
    await asyncio.to_thread(
        lambda: asker.call("group.create", topic="orders", name="g", discipline=discipline)
    )
    came = await promptly(asker.take, "orders", "g", count)
    offsets = [offset for frame in came for run in frame.runs for offset in range(*run)]
    assert len(set(offsets)) == len(offsets) == count
    if discipline == "priority":
        assert [levels[offset] for offset in offsets] == sorted(levels, reverse=True)


@tried_thrice
async def test_a_consumer_with_many_leases_goes(terminal: Terminal, asker: Asker) -> None:
    await asyncio.to_thread(asker.publish, "orders", [batch_of(1)] * 20_000)
    await asyncio.to_thread(asker.take, "orders", "g", 4000)

    def go() -> Any:
        asker.send(frames.Unsubscribe(7, 1))
        return asker.next(frames.Done)

    await promptly(go)


@tried_thrice
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

    await promptly(subscribe)


# -- operations ---------------------------------------------------------------------------------------


@tried_thrice
async def test_twenty_thousand_waits(terminal: Terminal, asker: Asker) -> None:
    await asyncio.to_thread(asker.publish, "orders", [batch_of(1)])

    def wait() -> list[Any]:
        asker.send(*(_wait(n, "orders") for n in range(20_000)))
        return asker.answers(20_000)

    def wake() -> list[Any]:
        asker.send(*(_wait(n, "orders") for n in range(900)))
        asker.send(frames.Publish(1, "orders", b"another", 1), tail=batch_of(1))
        return asker.answers(901)

    answers = await promptly(wait)
    assert {answer.code for answer in answers if isinstance(answer, frames.Refused)} == {"limit_reached"}
    answers = await promptly(wake)
    assert not any(isinstance(answer, frames.Refused) for answer in answers)


def _wait(request: int, topic: str) -> Frame:
    return frames.Call(request + 1, "topic.wait", {"offsets": {topic: 1}, "within": 1.0})


@pytest.mark.parametrize("size", [300, 300_000])
@tried_thrice
async def test_where_is_a_message_among_many(terminal: Terminal, asker: Asker, size: int) -> None:
    ids = [b"order-%d" % n for n in range(300_000)]
    batches = [batch_of(size, ids=ids[n : n + size]) for n in range(0, 300_000, size)]
    await asyncio.to_thread(asker.publish, "orders", batches)

    def where(id: str) -> Any:
        return asker.call("message.where", id=id, topic="orders")

    answer = await promptly(where, "order-299999")
    assert answer.result["places"][0]["offset"] == 299_999
    answer = await promptly(where, "elsewhere")
    assert answer.code == "unknown_message"
    await asyncio.to_thread(asker.publish, "plain", [batch_of(300_000)])
    answer = await promptly(where, f"{ID.hex()}-299999")


@tried_thrice
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
        answer = await promptly(create, match)
        assert (answer.code, bool(answer.hint)) == ("bad_request", True)
