"""What is measured. Each scenario returns rows; a row that has a target says whether it was met."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import uvloop

import landbridge
from bench import ceiling, roles
from bench.roles import Crew, RunningTerminal, scratch, terminal

SIZES = (100, 1024, 16384)
#: Messages per batch that the client cuts for each size: the ceiling gets the same.
PER_BATCH = {100: 4096, 1024: 512, 16384: 32}
#: Least share of the bare ceiling for each size.
SHARES = {100: 0.6, 1024: 0.4, 16384: 0.6}


@dataclass(frozen=True)
class Row:
    name: str
    value: float
    unit: str
    target: float | None = None
    #: "at least" or "at most" the target.
    better: str = "more"
    note: str = ""
    #: Whether the row measures the machine alone, without Landbridge. `--against` doesn't judge such a row.
    bare: bool = False

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "more" else self.value <= self.target

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def scaled(count: int, size: int) -> int:
    """As many messages as make about the same bytes, at least some."""
    return max(2_000, count * 100 // size)


# -- one measurement each --------------------------------------------------------------------------


def both(
    publish: Callable[..., Any], consume: Callable[..., Any], count: int, size: int, **options: Any
) -> float:
    """Messages per second from the first send to the last ack on disk, publisher and consumer at once."""
    with scratch() as folder, terminal(folder / "bus", **options) as running:
        crew = Crew(running, 2)
        crew.add(consume, "orders", "group", count)
        crew.add(publish, "orders", count, size)
        (_, consumed), (begin, published) = crew.results()
        return float(count / (max(consumed, published) - begin))


def one_after_the_other(publish: Any, consume: Any, count: int, size: int) -> tuple[float, float]:
    """(published, consumed) messages per second, each alone with the terminal."""
    with scratch() as folder, terminal(folder / "bus") as running:
        begin, end = alone(running, publish, "orders", count, size)
        published = count / (end - begin)
        begin, end = alone(running, consume, "orders", "group", count)
        return published, count / (end - begin)


def publish_alone(publish: Any, count: int) -> float:
    """Messages of 100 B per second, until the last is stored."""
    with scratch() as folder, terminal(folder / "bus") as running:
        begin, end = alone(running, publish, "orders", count, 100)
        return float(count / (end - begin))


def alone(running: RunningTerminal, role: Any, *args: Any) -> Any:
    crew = Crew(running, 1)
    crew.add(role, *args)
    return crew.results()[0]


def fan_out(count: int, groups: int) -> float:
    with scratch() as folder, terminal(folder / "bus") as running:
        crew = Crew(running, 2)
        crew.add(roles.consume_groups, "orders", [f"group-{n}" for n in range(groups)], count)
        crew.add(roles.publish_many, "orders", count, 100)
        (_, consumed), (begin, _) = crew.results()
        return float(groups * count / (consumed - begin))


def latency(count: int) -> list[float]:
    with scratch() as folder, terminal(folder / "bus") as running:
        crew = Crew(running, 2)
        crew.add(roles.consume_latency, "orders", "group", count)
        crew.add(roles.publish_paced, "orders", count, 100, 500.0)
        return sorted(crew.results()[0])


def requests(count: int) -> list[float]:
    with scratch() as folder, terminal(folder / "bus") as running:
        return sorted(alone(running, roles.publish_requests, "orders", count, 100))


def median(measure: Callable[[], float], times: int) -> float:
    return statistics.median(measure() for _ in range(times))


def percentile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


# -- scenarios -------------------------------------------------------------------------------------


def speed(scale: float, times: int) -> list[Row]:
    rows: list[Row] = []
    each, many = (roles.publish_each, roles.consume_each), (roles.publish_many, roles.consume_batches)
    for size in SIZES:
        count = scaled(int(2_000_000 * scale), size)
        bare, ours, single = [], [], []
        for _ in range(times):  # interleaved, so that a noisy moment hits all three
            with scratch() as folder:
                bare.append(ceiling.both_at_once(folder, count, size, PER_BATCH[size]))
            ours.append(both(*many, count, size))
            single.append(both(*each, count, size))
        small = size == 100
        rows += [
            Row(f"bare ceiling, {size} B", statistics.median(bare), "msg/s", bare=True),
            Row(f"both at once, batches, {size} B", statistics.median(ours), "msg/s", 1e6 if small else None),
            Row(
                f"both at once, each message acked, {size} B",
                statistics.median(single),
                "msg/s",
                6e5 if small else None,
            ),
            Row(
                f"both at once, batches, share of the ceiling, {size} B",
                statistics.median(ours) / statistics.median(bare),
                "×",
                SHARES[size],
            ),
        ]
        for label, pair in (("each", each), ("batches", many)):
            published, consumed = one_after_the_other(*pair, count, size)
            rows.append(Row(f"publish alone, {label}, {size} B", published, "msg/s"))
            rows.append(Row(f"consume alone, {label}, {size} B", consumed, "msg/s"))
    return rows


def calls(scale: float, times: int) -> list[Row]:
    """What small calls of ``send_many`` cost: 500 messages a call beside 100,000."""
    count = int(1_000_000 * scale)
    both_shares, alone_shares = [], []
    for _ in range(max(3, times)):
        rates = []
        for per_call in (100_000, 500):
            publish = partial(roles.publish_many, per_call=per_call)
            rates.append((both(publish, roles.consume_batches, count, 100), publish_alone(publish, count)))
        (both_large, alone_large), (both_small, alone_small) = rates
        both_shares.append(both_small / both_large)
        alone_shares.append(alone_small / alone_large)
    name = "send_many with 500 a call, share of 100,000 a call"
    return [
        Row(f"{name}, both at once", statistics.median(both_shares), "×", 0.75),
        Row(f"{name}, publish alone", statistics.median(alone_shares), "×", 0.75),
    ]


def fan(scale: float, times: int) -> list[Row]:
    count = int(500_000 * scale)
    return [Row("fan-out to 10 groups", median(lambda: fan_out(count, 10), times), "deliveries/s", 2e6)]


def waiting(scale: float, times: int) -> list[Row]:
    """Latency, one at a time."""
    runs = [latency(int(2500 * scale)) for _ in range(times)]
    middle = [percentile(run, 0.5) * 1e3 for run in runs]
    worst = [percentile(run, 0.99) * 1e3 for run in runs]
    single = requests(int(2000 * scale))
    return [
        Row("latency at 500 msg/s, p50", statistics.median(middle), "ms", 0.7, "less"),
        Row("latency at 500 msg/s, p99", statistics.median(worst), "ms", None, "less"),
        Row("publish request by request", len(single) / sum(single), "msg/s"),
        Row("publish request by request, p50", percentile(single, 0.5) * 1e3, "ms", None, "less"),
        Row("publish request by request, p99", percentile(single, 0.99) * 1e3, "ms", None, "less"),
    ]


def memory(scale: float, times: int) -> list[Row]:
    """Resident memory and start time, idle and with a million messages waiting."""
    count = int(1_000_000 * scale)
    with scratch() as folder:
        path = folder / "bus"
        with terminal(path) as running:
            idle, cold = running.rss(), running.start_seconds
            run(running, lambda bus: bus.call("group.create", topic="orders", name="group"))
            alone(running, roles.publish_many, "orders", count, 100)
            loaded = running.rss()
        with terminal(path) as running:
            warm = running.start_seconds
            restarted = running.rss()
            begin = time.perf_counter()
            alone(running, roles.consume_batches, "orders", "group", count)
            drained = time.perf_counter() - begin
    return [
        Row("RSS, idle", idle / 2**20, "MiB", None, "less"),
        Row(f"RSS, after {count:,} published and waiting", loaded / 2**20, "MiB", None, "less"),
        Row(f"RSS, restarted with {count:,} waiting", restarted / 2**20, "MiB", None, "less"),
        Row("start, empty", cold * 1e3, "ms", None, "less"),
        Row(f"start, {count:,} waiting", warm * 1e3, "ms", None, "less"),
        Row(f"drain {count:,} after the restart, process start included", drained, "s", None, "less"),
    ]


def topics(scale: float, times: int) -> list[Row]:
    """What 10,000 topics cost, each with a group and a message."""
    count = int(10_000 * scale)

    async def make(bus: landbridge.Bus) -> float:
        begin = time.perf_counter()
        for at in range(0, count, 500):
            names = [f"t{n}" for n in range(at, min(count, at + 500))]
            await asyncio.gather(*(bus.call("group.create", topic=name, name="g") for name in names))
            await asyncio.gather(*(bus.publish(name, b"x") for name in names))
        return time.perf_counter() - begin

    with scratch() as folder:
        path = folder / "bus"
        with terminal(path) as running:
            idle = running.rss()
            seconds = run(running, make)
            grown = running.rss()
        with terminal(path) as running:
            restart = running.start_seconds
            rate = _both_on(running, int(500_000 * scale))
    with scratch() as folder, terminal(folder / "bus") as running:
        alone = _both_on(running, int(500_000 * scale))
    return [
        Row(f"make {count:,} topics with a group and a message each", count / seconds, "topics/s"),
        Row("memory per topic and group", (grown - idle) / count / 1024, "KiB", None, "less"),
        Row(f"start with {count:,} topics", restart * 1e3, "ms", None, "less"),
        Row(f"both at once beside {count:,} topics, share of that beside none", rate / alone, "×", 0.8),
    ]


def _both_on(running: RunningTerminal, count: int) -> float:
    crew = Crew(running, 2)
    crew.add(roles.consume_batches, "orders", "group", count)
    crew.add(roles.publish_many, "orders", count, 100)
    (_, consumed), (begin, _) = crew.results()
    return float(count / (consumed - begin))


def growth(scale: float, times: int) -> list[Row]:
    """Throughput with 10 M messages stored, beside that with 100 k."""
    part, many = int(1_000_000 * scale), int(10_000_000 * scale)
    with scratch() as folder, terminal(folder / "bus") as running:
        alone(running, roles.publish_many, "orders", int(100_000 * scale), 100)
        few = _publish_and_read(running, part, int(100_000 * scale))
        stored = int(100_000 * scale) + part
        alone(running, roles.publish_many, "orders", many - stored, 100)
        after = _publish_and_read(running, part, many)
    return [
        Row("both at once with 100 k stored", few, "msg/s"),
        Row("both at once with 10 M stored", after, "msg/s"),
        Row("10 M stored, share of 100 k stored", after / few, "×", 0.8),
    ]


def _publish_and_read(running: RunningTerminal, count: int, at: int) -> float:
    group = f"group-{at}"
    run(running, lambda bus: bus.call("group.create", topic="orders", name=group, start="latest"))
    crew = Crew(running, 2)
    crew.add(roles.consume_batches, "orders", group, count)
    crew.add(roles.publish_many, "orders", count, 100)
    (_, consumed), (begin, _) = crew.results()
    return float(count / (consumed - begin))


def status(scale: float, times: int) -> list[Row]:
    """What the status log costs at its default level."""
    count = int(1_000_000 * scale)
    pair = (roles.publish_each, roles.consume_each)
    shares = []
    for _ in range(max(7, times)):  # the difference is smaller than what a noisy moment makes of one pair
        off = both(*pair, count, 100, levels="off")
        shares.append(both(*pair, count, 100, levels="batches") / off)
    return [Row("status log at 'batches', share of 'off'", statistics.median(shares), "×", 0.95)]


def keys(scale: float, times: int) -> list[Row]:
    """What order per key costs a consumer: the same messages to a plain group, and in order per key."""
    count = int(500_000 * scale)
    plain, ordered = [], []
    for _ in range(times):
        plain.append(_keyed(count, 10_000, "any"))
        ordered.append(_keyed(count, 10_000, "key"))
    return [
        Row("consume 10,000 keys, plain group", statistics.median(plain), "msg/s"),
        Row("consume 10,000 keys, in order per key", statistics.median(ordered), "msg/s"),
        Row(
            "order per key, share of a plain group",
            statistics.median(ordered) / statistics.median(plain),
            "×",
        ),
        Row("consume 100 keys, in order per key", _keyed(count // 5, 100, "key"), "msg/s"),
        Row("consume one key, in order per key", _keyed(count // 50, 1, "key"), "msg/s"),
    ]


def _keyed(count: int, keys: int, order: Literal["any", "key"]) -> float:
    with scratch() as folder, terminal(folder / "bus") as running:
        run(running, lambda bus: bus.groups.create("orders", "group", order=order))
        alone(running, roles.publish_keyed, "orders", count, 100, keys)
        begin, end = alone(running, roles.consume_batches, "orders", "group", count)
        return float(count / (end - begin))


def run(running: RunningTerminal, ask: Callable[[landbridge.Bus], Any]) -> Any:
    async def main() -> Any:
        async with landbridge.connect(running.url, token=running.token) as bus:
            return await ask(bus)

    return uvloop.run(main())


SCENARIOS: dict[str, Callable[[float, int], list[Row]]] = {
    "speed": speed,
    "calls": calls,
    "fan": fan,
    "latency": waiting,
    "memory": memory,
    "topics": topics,
    "growth": growth,
    "status": status,
    "keys": keys,
}
