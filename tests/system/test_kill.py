"""The promise: SIGKILL at any moment, twenty times in a row, under load, and nothing acked is lost, nothing
is doubled, order is kept, every group sees all, and what moves in transactions moves exactly once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import landbridge
from landbridge.errors import LeaseLost, Unavailable
from tests.system import history
from tests.system.history import Value

KILLS = 20
SCRIPT = Path(__file__).with_name("terminal_process.py")


class Victim:
    """A terminal process that is killed and started again on the same file and port."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "bus.db"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._process: asyncio.subprocess.Process | None = None
        self.token = ""

    @property
    def url(self) -> str:
        return f"lb://127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(self._path), str(self._port), stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.token = (await self._process.stdout.readline()).decode().strip()
        assert self.token, "the terminal did not come up"

    async def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[landbridge.Bus]:
        """Connected as soon as it is up: the first connection is the only one that a client doesn't retry."""
        while True:
            try:
                bus = await landbridge.connect(self.url, token=self.token, patience=60.0)
                break
            except Unavailable:
                await asyncio.sleep(0.02)
        async with bus:
            yield bus


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Victim]:
    victim = Victim(folder)
    await victim.start()
    try:
        yield victim
    finally:
        await victim.kill()


class Run:
    """One run: who sent what, what was acked, who was given what."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim
        self.over = asyncio.Event()
        self.sent: set[Value] = set()
        self.acked: set[Value] = set()
        #: group → value → "delivered" and "confirmed", in order.
        self.groups: dict[str, dict[Value, list[str]]] = {}

    # -- producers ---------------------------------------------------------------------------------

    async def pipelined(self, name: str) -> None:
        async with self.victim.bus() as bus, bus.publisher("orders") as out:
            number = 0
            while not self.over.is_set():
                burst = [(name, number + n) for n in range(100)]
                number += len(burst)
                self.sent.update(burst)
                for value in burst:
                    await out.send(value)
                await out.flush()
                self.acked.update(burst)
                await asyncio.sleep(0.01)

    async def one_by_one(self, name: str) -> None:
        async with self.victim.bus() as bus:
            number = 0
            while not self.over.is_set():
                value = (name, number)
                number += 1
                self.sent.add(value)
                await bus.publish("orders", value)
                self.acked.add(value)
                await bus.publish("payments", value)

    async def careless(self, name: str) -> None:
        """Sends without waiting and is gone: what was not acked may be stored or not, but not twice."""
        round = 0
        while not self.over.is_set():
            async with self.victim.bus() as bus:
                out = bus.publisher("orders")
                values = [(f"{name}-{round}", n) for n in range(50)]
                round += 1
                self.sent.update(values)
                for value in values:
                    await out.send(value)
                await asyncio.sleep(0)
                self.acked.update(values[: out.stored])
            await asyncio.sleep(0.02)

    # -- consumers ---------------------------------------------------------------------------------

    async def consume(self, group: str, *, batches: bool) -> None:
        events = self.groups[group] = defaultdict(list)
        async with self.victim.bus() as bus:
            subscription = bus.subscribe("orders", group=group, prefetch=500)
            async for batch in subscription.batches():
                values = [tuple(message.json()) for message in batch]
                for value in values:
                    events[value].append("delivered")
                acks = [batch.ack(wait=True)] if batches else [m.ack(wait=True) for m in batch]
                answers = await asyncio.gather(*acks, return_exceptions=True)
                for value, answer in zip(values, answers * len(values) if batches else answers, strict=True):
                    if answer is None:
                        events[value].append("confirmed")
                    elif not isinstance(answer, LeaseLost):  # lost: settled, or it comes again
                        raise answer
                if self.over.is_set():
                    left = await bus.call("group.show", topic="orders", name=group)
                    if not left["lag"]:
                        return

    async def move(self) -> None:
        """From the queue to a topic, each in a transaction with its ack."""
        async with self.victim.bus() as bus:
            async for message in bus.subscribe("payments", prefetch=20):
                try:
                    async with bus.transaction() as transaction:
                        await transaction.publish("receipts", message.payload)
                        await transaction.ack(message)
                except LeaseLost:
                    continue
                if message.json() == ["end", 0]:
                    return

    async def read(self, topic: str) -> list[Value]:
        """The log itself."""
        found: list[Value] = []
        async with self.victim.bus() as bus:
            left = (await bus.call("topic.show", name=topic))["messages"]
            async for batch in bus.subscribe(topic, group="audit", prefetch=10_000).batches():
                found += [tuple(message.json()) for message in batch]
                await batch.ack()
                if len(found) >= left:
                    return found
        raise AssertionError


async def test_nothing_is_lost_or_doubled_by_twenty_kills(tmp_path: Path) -> None:
    seed = int(os.environ.get("LANDBRIDGE_SEED") or random.randrange(1 << 32))
    print(f"LANDBRIDGE_SEED={seed}")
    moments = random.Random(seed)
    async with running(tmp_path) as victim:
        run = Run(victim)
        async with victim.bus() as bus:
            await bus.call("topic.create", name="payments", kind="queue")
        producers = [
            asyncio.ensure_future(work)
            for work in (run.pipelined("a"), run.pipelined("b"), run.one_by_one("c"), run.careless("d"))
        ]
        consumers = [
            asyncio.ensure_future(run.consume("by-one", batches=False)),
            asyncio.ensure_future(run.consume("by-batch", batches=True)),
        ]
        mover = asyncio.ensure_future(run.move())
        for _ in range(KILLS):
            await asyncio.sleep(moments.uniform(0.02, 0.5))
            await victim.kill()
            await victim.start()
            assert not any(task.done() for task in (*producers, *consumers, mover)), "somebody gave up"
        run.over.set()
        await asyncio.gather(*producers)
        async with victim.bus() as bus:
            await bus.publish("orders", ("end", 0))  # wakes the consumers for their last look
            await bus.publish("payments", ("end", 0))
        run.sent.add(("end", 0))
        run.acked.add(("end", 0))
        await asyncio.gather(*consumers, mover)
        stored, receipts = await run.read("orders"), await run.read("receipts")

    assert len(run.acked) > 20 * KILLS, "hardly anything happened"
    assert not history.lost(run.acked, stored)
    assert not history.doubled(stored)
    assert not history.unexpected(run.sent, stored)
    assert not history.out_of_order(stored)
    for group, events in run.groups.items():
        assert not history.lost(stored, events), group
        assert not history.again_after_confirmed(events), group
    payments = {value for value in run.acked if value[0] in ("c", "end")}
    assert not history.doubled(receipts)
    assert not history.lost(payments, receipts)
    assert not history.out_of_order(receipts)


@pytest.mark.parametrize("seconds", [0.3])
async def test_a_stopped_consumer_is_fenced(tmp_path: Path, seconds: float) -> None:
    """SIGSTOP past ack_within: its messages go to another one, and its late ack is refused."""
    code = (
        "import asyncio, sys, landbridge\n"
        "from landbridge.errors import LeaseLost, Unavailable\n"
        "async def main():\n"
        "    async with landbridge.connect(sys.argv[1], token=sys.argv[2]) as bus:\n"
        "        async for message in bus.subscribe('orders', group='g', prefetch=1):\n"
        "            print('holding', flush=True)\n"
        "            sys.stdin.readline()\n"
        "            try:\n"
        "                await message.ack(wait=True)\n"
        "            except LeaseLost:\n"
        "                print('refused', flush=True)\n"
        "            else:\n"
        "                print('acked', flush=True)\n"
        "            return\n"
        "asyncio.run(main())\n"
    )
    async with running(tmp_path) as victim, victim.bus() as bus:
        await bus.call("group.create", topic="orders", name="g", ack_within=seconds)
        await bus.publish("orders", 1)
        slow = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, victim.url, victim.token,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert slow.stdout is not None
        assert slow.stdin is not None
        assert await slow.stdout.readline() == b"holding\n"
        slow.send_signal(signal.SIGSTOP)
        async for message in bus.subscribe("orders", group="g"):  # comes when the lease has ended
            assert message.attempt == 2
            await message.ack(wait=True)
            break
        slow.send_signal(signal.SIGCONT)
        slow.stdin.write(b"go on\n")
        assert await slow.stdout.readline() == b"refused\n"
        await slow.wait()
        assert (await bus.call("group.show", topic="orders", name="g"))["lag"] == 0
