"""What the terminal's store costs: bytes written per byte published, the time of a restart with much waiting,
and memory for many small batches. ``python -m bench.storage [--quick] [--large]`` runs ``restart`` alone, on
request with ten million single-message batches."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import landbridge
from bench import report, roles
from bench.roles import Crew, RunningTerminal, scratch, terminal
from bench.scenarios import Row, alone, run

MIB = 1 << 20
#: Messages per batch.
PER_BATCH = 500
#: Seconds without a write after which the store's work in the background has ended, and the most to wait.
STILL, LONGEST = 2.0, 60.0


def disk(scale: float, times: int) -> list[Row]:
    """Bytes that the terminal writes per byte published, consumed and trimmed as they go."""
    if sys.platform != "linux":
        print(
            "disk: only Linux counts the bytes that a process writes, so the row is left out", file=sys.stderr
        )
        return []
    size, batches = 1024, int(600 * scale)
    count = PER_BATCH * batches
    with scratch() as folder, terminal(folder / "bus") as running:
        run(running, lambda bus: bus.call("topic.create", name="orders", retention={"settled": True}))
        run(running, lambda bus: bus.call("group.create", topic="orders", name="group"))
        before = running.written()
        crew = Crew(running, 2)
        crew.add(roles.consume_batches, "orders", "group", count)
        crew.add(roles.publish_many, "orders", count, size, PER_BATCH)
        crew.results()
        run(running, _until_trimmed)
        written = _written_at_last(running) - before
    ratio = written / (count * size)
    return [Row("written to disk per byte published, 500 × 1 KiB a batch", ratio, "×", 1.3, "less")]


async def _until_trimmed(bus: landbridge.Bus) -> None:
    end = time.monotonic() + LONGEST
    while (facts := await bus.call("topic.show", name="orders"))["first"] < facts["end"]:
        if time.monotonic() > end:
            raise RuntimeError(f"{facts['messages']} settled messages are not trimmed after {LONGEST:.0f} s")
        await asyncio.sleep(0.2)


def _written_at_last(running: RunningTerminal) -> int:
    """Bytes written when the store has come to rest."""
    end = time.monotonic() + LONGEST
    written, since = running.written(), time.monotonic()
    while time.monotonic() < min(end, since + STILL):
        time.sleep(0.2)
        if (now := running.written()) != written:
            written, since = now, time.monotonic()
    return written


def _check_waiting(running: RunningTerminal, count: int) -> None:
    """A store that starts fast because it has lost something must not look good."""
    lag = run(running, lambda bus: bus.call("group.show", topic="orders", name="group"))["lag"]
    if lag != count:
        raise RuntimeError(f"{lag:,} messages wait after the restart, {count:,} were stored before it")


def restart(scale: float, times: int, *, large: bool = False) -> list[Row]:
    """Start with ten million messages waiting, and memory for single-message batches that wait."""
    count = int(10_000_000 * scale)
    singles = int((10_000_000 if large else 1_000_000) * scale)
    with scratch() as folder:
        with terminal(folder / "bus") as running:
            run(running, lambda bus: bus.call("group.create", topic="orders", name="group"))
            alone(running, roles.publish_many, "orders", count, 100, PER_BATCH)
        # Once, because only the first start after the kill finds what the store has to recover.
        with terminal(folder / "bus") as running:
            start, loaded = running.start_seconds, running.rss()
            _check_waiting(running, count)
    with scratch() as folder:
        with terminal(folder / "bus") as running:
            idle = running.rss()
            run(running, lambda bus: bus.call("group.create", topic="orders", name="group"))
            alone(running, roles.publish_many, "orders", singles, 100, 1)
            grown = running.rss() - idle
        with terminal(folder / "bus") as running:
            singles_start, again = running.start_seconds, running.rss()
            _check_waiting(running, singles)
    millions = singles / 1e6
    return [
        Row(f"start, {count:,} waiting in batches of 500", start, "s", 1.0, "less"),
        Row(f"RSS, restarted with {count:,} waiting", loaded / MIB, "MiB", None, "less"),
        Row(f"start, {singles:,} single-message batches waiting", singles_start, "s", None, "less"),
        Row(
            f"memory per million of {singles:,} single-message batches",
            grown / millions / MIB,
            "MiB",
            None,
            "less",
        ),
        Row(f"RSS, restarted with {singles:,} single-message batches", again / MIB, "MiB", None, "less"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.storage")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages, once")
    parser.add_argument("--large", action="store_true", help="ten million single-message batches, not one")
    options = parser.parse_args()
    report.table(restart(*((0.1, 1) if options.quick else (1.0, 3)), large=options.large))


if __name__ == "__main__":
    main()
