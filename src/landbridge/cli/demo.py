"""``landbridge demo``: the main promises, shown on a real terminal process in a folder that is thrown away.

One terminal in three acts: groups with different disciplines; a SIGKILL under load that loses and doubles
nothing; a small measurement. Then five terminals (demo_crossing.py). It checks what it shows and exits with 1
if a promise was broken.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import landbridge
from landbridge.cli.demo_crossing import Crossing
from landbridge.client.message import DeliveredBatch
from landbridge.errors import BusError, LeaseLost

GROUPS = {"billing": "fifo", "dashboard": "lifo", "alerts": "priority"}


class Up:
    """A ``landbridge up`` process that can be killed and started again on the same data and port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "LANDBRIDGE_HOME": str(folder / "home"),
            "LANDBRIDGE_DATA": str(folder / "data"),
        }
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._process: asyncio.subprocess.Process | None = None
        self.url = self.token = ""

    async def start(self) -> None:
        arguments = ["up", "--json", "--port", str(self._port), "--http-port", "0", "--log-level", "error"]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "landbridge",
            *arguments,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the terminal didn't start: see its message above")
        self.url = json.loads(line)["url"]
        context = self._folder / "home" / "contexts" / "local.json"
        self.token = json.loads(context.read_bytes())["token"]

    async def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()


class Demo:
    def __init__(self, console: Console, messages: int) -> None:
        self._console = console
        self._messages = messages
        self.facts: dict[str, Any] = {}
        self.broken: list[str] = []
        self.crossing: Crossing | None = None
        #: Set when enough is under way for the kill to hurt.
        self._halfway = asyncio.Event()

    def _say(self, text: str) -> None:
        self._console.print(text)

    def _check(self, holds: bool, promise: str) -> None:
        if not holds:
            self.broken.append(promise)
            self._say(f"  [red]broken:[/] {promise}")

    async def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="landbridge-demo-") as folder:
            up = Up(Path(folder))
            try:
                await up.start()
                self._say(f"[bold]A terminal[/] is up at {up.url}: embedded store, fsync before every ack.\n")
                async with landbridge.connect(up.url, token=up.token, name="demo") as bus:
                    await self._disciplines(bus)
                    await self._kill(bus, up)
                    await self._measure(bus)
            finally:
                await up.stop()
            self.crossing = Crossing(self._console, Path(folder) / "crossing")
            try:
                await self.crossing.run()
            finally:
                self.facts["crossing"] = self.crossing.facts
                self.broken += self.crossing.broken

    # -- act one -----------------------------------------------------------------------------------

    async def _disciplines(self, bus: landbridge.Bus) -> None:
        self._say("[bold]One topic, three groups, three disciplines.[/] Ten messages with priorities 0 to 9:")
        for name, discipline in GROUPS.items():
            await bus.call("group.create", topic="parcels", name=name, discipline=discipline)
        priorities = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
        for n, priority in enumerate(priorities):
            await bus.publish("parcels", {"n": n}, priority=priority)
        table = Table(
            "group",
            "discipline",
            "takes them in this order (priorities: 3 1 4 1 5 9 2 6 5 3)",
            box=None,
            padding=(0, 2),
        )
        by_priority = sorted(range(10), key=lambda n: (-priorities[n], n))
        expected = {"fifo": list(range(10)), "lifo": list(range(9, -1, -1)), "priority": by_priority}
        for name, discipline in GROUPS.items():
            order = []
            async for message in bus.subscribe("parcels", group=name, prefetch=1):
                order.append(message.json()["n"])
                await message.ack(wait=True)
                if len(order) == 10:
                    break
            table.add_row(name, discipline, " ".join(map(str, order)))
            self._check(
                order == expected[discipline], f"{discipline} gives {expected[discipline]}, not {order}"
            )
        self._console.print(table)
        self._say("")

    # -- act two -----------------------------------------------------------------------------------

    async def _kill(self, bus: landbridge.Bus, up: Up) -> None:
        total = self._messages
        self._say(f"[bold]{total:,} orders, three groups, a queue with exactly-once transactions …[/]")
        for name, discipline in GROUPS.items():
            await bus.call("group.create", topic="orders", name=name, discipline=discipline)
        await bus.call("topic.create", name="payments", kind="queue")
        columns = (TextColumn("{task.description:>22}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=self._console, transient=True) as bars:
            published = bars.add_task("published", total=total)
            readers = [asyncio.ensure_future(self._read(bus, name, total, bars)) for name in GROUPS]
            paying = asyncio.ensure_future(self._pay(bus, total // 100, bars))
            killing = asyncio.ensure_future(self._kill_in_the_middle(up))
            acked = await self._publish(bus, total, bars, published)
            await killing
            groups = await asyncio.gather(*readers)
            receipts = await paying
        stored = [n async for n in self._audit(bus, "orders")]
        lost, doubled = len(set(range(acked)) - set(stored)), len(stored) - len(set(stored))
        self._check(lost == 0, "every acked message is in the log")
        self._check(doubled == 0, "no message is in the log twice")
        self._check(stored == sorted(stored), "the producer's order is kept")
        for name, (handled, twice) in zip(GROUPS, groups, strict=True):
            self._check(handled == total and twice == 0, f"{name} settles every message once")
        self._check(sorted(receipts) == list(range(total // 100)), "every payment has one receipt")
        self.facts |= {"sent": acked, "stored": len(stored), "lost": lost, "doubled": doubled}
        self.facts["settled twice"] = sum(twice for _, twice in groups)
        self.facts["payments"] = len(receipts)

    async def _kill_in_the_middle(self, up: Up) -> None:
        await self._halfway.wait()
        begin = time.perf_counter()
        await up.kill()
        self._say("  [red]kill -9[/] of the terminal, in the middle of it")
        await up.start()
        self.facts["down for"] = time.perf_counter() - begin
        self._say(f"  it is back after {self.facts['down for']:.1f} s; everybody goes on by themselves")

    async def _publish(self, bus: landbridge.Bus, total: int, bars: Progress, task: Any) -> int:
        orders = bus.publisher("orders")
        async with orders, bus.publisher("payments") as payments:
            for n in range(total):
                await orders.send({"n": n}, priority=n % 10)
                if n % 100 == 0:
                    await payments.send({"n": n // 100})
                if n % 1000 == 999:
                    await orders.flush()
                    bars.update(task, completed=orders.stored)
                if n == total * 2 // 5:
                    self._halfway.set()
        bars.update(task, completed=orders.stored)
        return orders.stored

    async def _read(self, bus: landbridge.Bus, group: str, total: int, bars: Progress) -> tuple[int, int]:
        """(settled, settled twice). An ack that was confirmed must never be followed by the message."""
        task = bars.add_task(group, total=total)
        settled: set[int] = set()
        unknown: set[int] = set()  # the answer to the ack was lost: settled, or it comes again
        twice = 0
        subscription = bus.subscribe("orders", group=group, prefetch=4000)
        async for batch in subscription.batches():
            numbers = [message.json()["n"] for message in batch]
            twice += sum(n in settled for n in numbers)
            if await _acked(batch):
                settled.update(numbers)
            else:
                unknown.update(numbers)
            handled = len(settled | unknown)
            bars.update(task, completed=handled)
            if handled >= total:
                left = await bus.call("group.show", topic="orders", name=group)
                if not left["lag"]:
                    break
        return handled, twice

    async def _pay(self, bus: landbridge.Bus, total: int, bars: Progress) -> list[int]:
        """From a queue into a topic, each payment and its receipt in one commit."""
        task = bars.add_task("payments", total=total)
        done = 0
        async for message in bus.subscribe("payments"):
            try:
                async with bus.transaction() as transaction:
                    await transaction.publish("receipts", message.payload)
                    await transaction.ack(message)
            except LeaseLost:
                continue  # the terminal died before it was done: the payment comes again
            done += 1
            bars.update(task, completed=done)
            if await self._count(bus, "receipts") >= total:
                break
        return [n async for n in self._audit(bus, "receipts")]

    async def _count(self, bus: landbridge.Bus, topic: str) -> int:
        return int((await bus.call("topic.show", name=topic))["messages"])

    async def _audit(self, bus: landbridge.Bus, topic: str) -> AsyncIterator[int]:
        """The log itself, read from its beginning by a group of its own."""
        left = await self._count(bus, topic)
        async for batch in bus.subscribe(topic, group="audit", prefetch=10_000).batches():
            for message in batch:
                yield message.json()["n"]
            await batch.ack()
            left -= len(batch)
            if not left:
                break

    # -- act three ---------------------------------------------------------------------------------

    async def _measure(self, bus: landbridge.Bus) -> None:
        self._say(
            "[bold]How fast is it here?[/] One process publishes and consumes, the terminal is another."
        )
        count = 5 * self._messages
        rows = [os.urandom(100)] * 10_000

        async def consume() -> None:
            left = count
            async for batch in bus.subscribe("speed", group="reader", prefetch=32_000).batches():
                left -= len(batch)
                await batch.ack()
                if not left:
                    break

        begin = time.perf_counter()
        reading = asyncio.ensure_future(consume())
        async with bus.publisher("speed") as out:
            for _ in range(count // len(rows)):
                await out.send_many(rows)
        await reading
        self.facts["throughput"] = count / (time.perf_counter() - begin)
        self.facts["latency"] = await self._latency(bus)

    async def _latency(self, bus: landbridge.Bus) -> list[float]:
        count, seconds = 600, []
        subscription = await bus.subscribe("ticks", group="reader").open()

        async def consume() -> None:
            async for message in subscription:
                seconds.append(time.perf_counter() - float(message.payload))
                await message.ack()
                if len(seconds) == count:
                    break

        reading = asyncio.ensure_future(consume())
        begin = time.perf_counter()
        async with bus.publisher("ticks") as out:
            for n in range(count):
                await asyncio.sleep(max(0.0, begin + n / 500 - time.perf_counter()))
                await out.send(str(time.perf_counter()))
        await reading
        return sorted(seconds)

    # -- the end -----------------------------------------------------------------------------------

    def rows(self) -> list[tuple[str, str]]:
        facts, latency = self.facts, self.facts["latency"]
        rows = [
            ("orders sent and acked", f"{facts['sent']:,}"),
            ("in the log after the kill", f"{facts['stored']:,}"),
            ("lost", str(facts["lost"])),
            ("doubled", str(facts["doubled"])),
            ("settled twice by a group", str(facts["settled twice"])),
            ("payments, each with one receipt", f"{facts['payments']:,}"),
            ("terminal was down for", f"{facts['down for']:.2f} s"),
            ("throughput, 100 B, both ways at once", f"{facts['throughput']:,.0f} msg/s"),
            ("latency at 500 msg/s, p50", f"{latency[len(latency) // 2] * 1e3:.2f} ms"),
            ("latency at 500 msg/s, p99", f"{latency[len(latency) * 99 // 100] * 1e3:.2f} ms"),
        ]
        return rows + (self.crossing.rows() if self.crossing is not None else [])


async def _acked(batch: DeliveredBatch) -> bool:
    try:
        await batch.ack(wait=True)
    except LeaseLost:
        return False  # unknown, or given back: it may come again
    return True


def main(*, messages: int = 100_000, as_json: bool = False) -> int:
    """Returns the exit status."""
    console = Console(stderr=as_json, highlight=False)
    demo = Demo(console, messages)

    async def run() -> None:
        # SIGTERM as well ends the terminal that we have started.
        task = asyncio.ensure_future(demo.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await task

    begin = time.perf_counter()
    try:
        uvloop.run(run())
    except BusError as error:
        demo.broken.append(f"{type(error).__name__}: {error}")
        console.print(f"[red]error:[/] {error}")
    except asyncio.CancelledError:
        return 130
    if as_json:
        facts = {**demo.facts, "broken": demo.broken}
        facts.pop("latency", None)
        sys.stdout.write(json.dumps(facts) + "\n")
    elif not demo.broken:
        table = Table("what", "result", title="\nThe result", title_justify="left")
        for what, result in demo.rows():
            table.add_row(what, result)
        console.print(table)
        console.print(
            f"All promises kept, in {time.perf_counter() - begin:.0f} s. Next: [bold]landbridge up[/]"
        )
    return 1 if demo.broken else 0
