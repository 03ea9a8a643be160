"""One terminal in three acts: groups with different disciplines; a SIGKILL under load that loses and doubles
nothing; a small measurement.

python examples/one_terminal.py --messages 20000
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

import landbridge
from landbridge.errors import LeaseLost
from stage import DemoStage, LandbridgeProcess, arguments, perform, start_up

GROUPS: dict[str, Literal["fifo", "lifo", "priority"]] = {
    "billing": "fifo",
    "dashboard": "lifo",
    "alerts": "priority",
}


async def one_terminal(stage: DemoStage, folder: Path, messages: int = 100_000) -> None:
    up = start_up(folder)
    try:
        await up.start()
        url = up.ready["url"]
        stage.say(f"[bold]A terminal[/] is up at {url}: embedded store, fsync before every ack.\n")
        async with landbridge.connect(url, token=up.context("local")["token"], name="demo") as bus:
            await show_disciplines(stage, bus)
            await Outage(stage, bus, up, messages).run()
            await measure_throughput(stage, bus, 5 * messages)
            await measure_latency(stage, bus)
    finally:
        await up.end()


# -- act one: three disciplines --------------------------------------------------------------------------


async def show_disciplines(stage: DemoStage, bus: landbridge.Bus) -> None:
    stage.say("[bold]One topic, three groups, three disciplines.[/] Ten messages with priorities 0 to 9:")
    for name, discipline in GROUPS.items():
        await bus.groups.create("parcels", name, discipline=discipline)
    priorities = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    for n, priority in enumerate(priorities):
        await bus.publish("parcels", {"n": n}, priority=priority)
    by_priority = sorted(range(10), key=lambda n: (-priorities[n], n))
    expected = {"fifo": list(range(10)), "lifo": list(range(9, -1, -1)), "priority": by_priority}
    title = f"takes them in this order (priorities: {' '.join(map(str, priorities))})"
    table = Table("group", "discipline", title, box=None, padding=(0, 2))
    for name, discipline in GROUPS.items():
        order = []
        async for message in bus.subscribe("parcels", group=name, prefetch=1):
            order.append(message.json()["n"])
            await message.ack(wait=True)
            if len(order) == len(priorities):
                break
        table.add_row(name, discipline, " ".join(map(str, order)))
        wanted = expected[discipline]
        stage.check(order == wanted, f"{discipline} gives {wanted}, not {order}")
    stage.say(table, "")


# -- act two: a kill under load --------------------------------------------------------------------------


class Outage:
    """Orders for three groups and payments in a queue, while the terminal is killed and started again."""

    def __init__(self, stage: DemoStage, bus: landbridge.Bus, up: LandbridgeProcess, messages: int) -> None:
        self._stage = stage
        self._bus = bus
        self._up = up
        self._messages, self._payments = messages, messages // 100
        columns = (TextColumn("{task.description:>22}"), BarColumn(), MofNCompleteColumn())
        self._bars = Progress(*columns, console=stage.console, transient=True)
        #: Set when enough is under way for the kill to hurt.
        self._halfway = asyncio.Event()

    async def run(self) -> None:
        stage, bus, total = self._stage, self._bus, self._messages
        stage.say(f"[bold]{total:,} orders, three groups, a queue with exactly-once transactions …[/]")
        for name, discipline in GROUPS.items():
            await bus.groups.create("orders", name, discipline=discipline)
        await bus.topics.create("payments", kind="queue")
        with self._bars:
            reading = asyncio.gather(*map(self._read, GROUPS))
            acked, _, _ = await asyncio.gather(self._publish(), self._kill(), self._pay())
            groups = await reading
        stored = [n async for n in audit(bus, "orders")]
        receipts = [n async for n in audit(bus, "receipts")]
        lost, doubled = len(set(range(acked)) - set(stored)), len(stored) - len(set(stored))
        stage.check(lost == 0, "every acked message is in the log")
        stage.check(doubled == 0, "no message is in the log twice")
        stage.check(stored == sorted(stored), "the producer's order is kept")
        for name, (handled, twice) in zip(GROUPS, groups, strict=True):
            stage.check(handled == total and twice == 0, f"{name} settles every message once")
        stage.check(sorted(receipts) == list(range(self._payments)), "every payment has one receipt")
        stage.note("sent", acked, "orders sent and acked")
        stage.note("stored", len(stored), "in the log after the kill")
        stage.note("lost", lost, "lost")
        stage.note("doubled", doubled, "doubled")
        stage.note("settled twice", sum(twice for _, twice in groups), "settled twice by a group")
        stage.note("payments", len(receipts), "payments, each with one receipt")

    async def _kill(self) -> None:
        await self._halfway.wait()
        begin = time.perf_counter()
        await self._up.end(signal.SIGKILL)
        self._stage.say("  [red]kill -9[/] of the terminal, in the middle of it")
        await self._up.start()
        took = time.perf_counter() - begin
        self._stage.note("down for", took, "terminal was down for", "{:.2f} s")
        self._stage.say(f"  the terminal is back after {took:.1f} s; its clients go on by themselves")

    async def _publish(self) -> int:
        """Returns the number of orders that were acked."""
        task = self._bars.add_task("published", total=self._messages)
        async with self._bus.publisher("orders") as orders, self._bus.publisher("payments") as payments:
            for n in range(self._messages):
                await orders.send({"n": n}, priority=n % 10)
                if n % 100 == 0:
                    await payments.send({"n": n // 100})
                if n % 1000 == 999:
                    await orders.flush()
                    self._bars.update(task, completed=orders.stored)
                if n == self._messages * 2 // 5:
                    self._halfway.set()
        self._bars.update(task, completed=orders.stored)
        return orders.stored

    async def _read(self, group: str) -> tuple[int, int]:
        """Returns how many messages the group has settled, and how many of them twice: a message whose ack
        was confirmed must never come again."""
        task = self._bars.add_task(group, total=self._messages)
        settled: set[int] = set()
        #: The answer to the ack was lost: the message is settled, or it comes again.
        unknown: set[int] = set()
        twice = 0
        async for batch in self._bus.subscribe("orders", group=group, prefetch=4000).batches():
            numbers = [message.json()["n"] for message in batch]
            twice += sum(n in settled for n in numbers)
            try:
                await batch.ack(wait=True)
                settled.update(numbers)
            except LeaseLost:
                unknown.update(numbers)
            handled = len(settled | unknown)
            self._bars.update(task, completed=handled)
            if handled >= self._messages and not (await self._bus.groups.show("orders", group)).lag:
                break
        return handled, twice

    async def _pay(self) -> None:
        """From a queue into a topic, each payment and its receipt in one commit."""
        task: TaskID = self._bars.add_task("payments", total=self._payments)
        async for message in self._bus.subscribe("payments"):
            try:
                async with self._bus.transaction() as transaction:
                    await transaction.publish("receipts", message.payload)
                    await transaction.ack(message)
            except LeaseLost:
                continue  # the terminal died before the commit: the payment comes again
            self._bars.advance(task)
            if await count(self._bus, "receipts") >= self._payments:
                break


async def count(bus: landbridge.Bus, topic: str) -> int:
    return (await bus.topics.show(topic)).messages


async def audit(bus: landbridge.Bus, topic: str) -> AsyncIterator[int]:
    """The numbers in the log itself, read from its beginning by a group of its own."""
    left = await count(bus, topic)
    async for batch in bus.subscribe(topic, group="audit", prefetch=10_000).batches():
        for message in batch:
            yield message.json()["n"]
        await batch.ack()
        left -= len(batch)
        if not left:
            break


# -- act three: how fast ---------------------------------------------------------------------------------


async def measure_throughput(stage: DemoStage, bus: landbridge.Bus, messages: int) -> None:
    stage.say("[bold]How fast is it here?[/] One process publishes and consumes, the terminal is another.")
    rows = [os.urandom(100)] * min(10_000, messages)
    messages -= messages % len(rows)

    async def consume() -> None:
        left = messages
        async for batch in bus.subscribe("speed", group="reader", prefetch=32_000).batches():
            left -= len(batch)
            await batch.ack()
            if not left:
                break

    begin = time.perf_counter()
    reading = asyncio.ensure_future(consume())
    async with bus.publisher("speed") as out:
        for _ in range(messages // len(rows)):
            await out.send_many(rows)
    await reading
    rate = messages / (time.perf_counter() - begin)
    stage.note("throughput", rate, "throughput, 100 B, both ways at once", "{:,.0f} msg/s")


async def measure_latency(
    stage: DemoStage, bus: landbridge.Bus, messages: int = 600, rate: float = 500
) -> None:
    took: list[float] = []
    subscription = await bus.subscribe("ticks", group="reader").open()

    async def consume() -> None:
        async for message in subscription:
            took.append(1e3 * (time.perf_counter() - float(message.payload)))
            await message.ack()
            if len(took) == messages:
                break

    reading = asyncio.ensure_future(consume())
    begin = time.perf_counter()
    async with bus.publisher("ticks") as out:
        for n in range(messages):
            await asyncio.sleep(max(0.0, begin + n / rate - time.perf_counter()))
            await out.send(str(time.perf_counter()))
    await reading
    took.sort()
    stage.note("p50", took[messages // 2], f"latency at {rate:.0f} msg/s, p50", "{:.2f} ms")
    stage.note("p99", took[messages * 99 // 100], f"latency at {rate:.0f} msg/s, p99", "{:.2f} ms")


if __name__ == "__main__":
    given = arguments(__doc__)
    raise SystemExit(perform(partial(one_terminal, messages=given.messages), as_json=given.json))
