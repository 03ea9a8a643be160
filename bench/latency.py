"""Latency of ``bus.publish`` at 500 messages of 100 B a second, the way a user would measure it: terminal,
publisher and consumer are a process each, a message carries the moment of its sending, and the consumer acks
each message.

``publish`` measures it in turns with the floor (``floor.py``) and with Redis Streams (``streams.py``).
``beside`` measures it while the same terminal does something large for somebody else."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import landbridge.sync
from bench import floor, roles, streams
from bench.floor import Sample
from bench.roles import SPAWN, Crew, RunningTerminal, scratch, terminal
from bench.scenarios import Row, alone, percentile, run
from landbridge.errors import BusError

SIZE, RATE = 100, 500.0
#: Messages at the start of each measurement that don't count: they make topics and connections.
WARM_UP = 100
#: Rounds per repetition. Many short ones, because the median of few has a noisy moment in it: see p99.
ROUNDS = 3
#: (received, acked)
Measured = tuple[list[Sample], list[Sample]]


def say(text: str) -> None:
    print(text, file=sys.stderr)


def ratio_row(name: str, ratios: list[float], target: float | None) -> Row:
    """The median of the ratios, one per round. The note has all of them: they tell how far to trust it."""
    note = " ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    return Row(name, statistics.median(ratios), "×", target, "less", note)


def milliseconds(samples: list[Sample], share: float) -> float:
    return 1e3 * percentile(sorted(seconds for _, seconds in samples), share)


# -- in turns with others ----------------------------------------------------------------------------------


def ours(folder: Path, count: int) -> Measured:
    with terminal(folder / "bus") as running:
        crew = Crew(running, 2)
        crew.add(roles.consume_stamped, "orders", "group")
        crew.add(roles.publish_stamped, "orders", count, SIZE, RATE)
        received, acked = crew.results()
        return received, acked


def publish(scale: float, times: int) -> list[Row]:
    """Latency of ``bus.publish``, beside the floor and Redis Streams."""
    count = WARM_UP + max(500, int(1000 * scale))
    contenders: dict[str, Callable[[Path], Measured]] = {
        "bus": lambda folder: ours(folder, count),
        "floor": lambda folder: floor.measure(folder / "floor", count, SIZE, RATE),
    }
    if program := streams.find_server():
        contenders["Redis"] = lambda folder: streams.measure(program, folder, count, SIZE, RATE)
    else:
        say("publish: no valkey-server or redis-server is here, so the rows of Redis Streams are left out")
    #: By contender and figure, one value per round.
    found: dict[tuple[str, str], list[float]] = {}
    names = list(contenders)
    for turn in range(ROUNDS * times):
        first = turn % len(names)  # so that nobody always comes after the same one
        for name in names[first:] + names[:first]:
            with scratch() as folder:
                received, acked = contenders[name](folder)
            for what, samples in (("received", received), ("acked", acked)):
                for label, share in (("p50", 0.5), ("p99", 0.99)):
                    value = milliseconds(samples[WARM_UP:], share)
                    found.setdefault((name, f"{what}, {label}"), []).append(value)
    rows = [
        Row(f"publish to {what}, {name}", statistics.median(values), "ms", None, "less", bare=name != "bus")
        for (name, what), values in found.items()
    ]
    goals = {
        ("floor", "received, p50"): 1.25,
        ("Redis", "received, p50"): 1.0,
        ("Redis", "received, p99"): 1.5,
    }
    for (name, what), values in found.items():
        if name != "bus":
            ratios = [mine / other for mine, other in zip(found["bus", what], values, strict=True)]
            rows.append(ratio_row(f"publish to {what}, × {name}", ratios, goals.get((name, what))))
    return rows


# -- beside something large --------------------------------------------------------------------------------

#: Seconds of a window in which only the paced messages go through the terminal, and the least of one in which
#: something else goes on. A store may tidy up in the background after it has answered.
WINDOW = 3.0
#: Seconds that a window goes on when the work beside it has ended.
AFTERWARDS = 2.0
#: Seconds to wait at most until the terminal has calmed down after a topic was filled.
CALM = 30.0
#: The work that is none: what the comparison gives where nothing differs is the noise of the other rows.
NOTHING = "nothing"
#: How far the ratio beside nothing may be from 1, either way, before the run tells nothing about the others.
NOISE = 1.15
#: Messages per batch in the topics that are deleted, trimmed and read.
PER_BATCH = 500


#: The least scale at which Spark is used.
LEAST_FOR_SPARK = 0.2
#: Gets ready for some work on a topic, and returns what does the work.
Prepare = Callable[[str], Callable[[], object]]


class Neighbours:
    """What others may ask of the terminal, beside the paced messages."""

    def __init__(self, running: RunningTerminal, bus: landbridge.sync.Bus, count: int) -> None:
        self._running, self._bus, self._count = running, bus, count

    def deleting(self, topic: str) -> Callable[[], object]:
        return lambda: self._bus.call("topic.delete", name=topic, force=True)

    def trimming(self, topic: str) -> Callable[[], object]:
        """Shrink the topic's retention and wait until its log is empty."""

        def trim() -> None:
            self._bus.call("topic.update", name=topic, retention={"max_bytes": 1, "discard": "any"})
            end = time.monotonic() + CALM
            while (facts := self._bus.call("topic.show", name=topic))["first"] < facts["end"]:
                if time.monotonic() > end:
                    raise RuntimeError(f"{topic} was not trimmed within {CALM:.0f} s")
                time.sleep(0.1)

        return trim

    def reading(self, topic: str) -> Callable[[], object]:
        """Read the whole topic in another process, which has started and waits."""
        crew = Crew(self._running, 2)
        crew.add(roles.consume_batches, topic, "reader", self._count)

        def read() -> None:
            crew.begin()
            crew.results()

        return read

    def archiving(self, spark: Any) -> Prepare:
        """Write the whole topic into a lake, as ``landbridge pipeline run archive`` does."""
        from bench.pipeline import Pipeline

        made = Pipeline(spark, self._running, self._bus)
        return lambda topic: lambda: made.archive(topic)


@contextmanager
def spark_session(scale: float) -> Iterator[Any]:
    """A session of Spark. None where PySpark or Java is missing, and where Spark would take longer to start
    than everything else together."""
    if scale < LEAST_FOR_SPARK:
        say(f"beside: a process reads a topic, which Spark archives from {LEAST_FOR_SPARK:g} of the size on")
        yield None
        return
    try:
        from landbridge.pipeline import session

        spark = session("local[2]", **{"spark.driver.memory": "2g", "spark.log.level": "ERROR"})
    except (ImportError, BusError) as error:
        say(f"beside: a topic is read by a process and not archived, because Spark doesn't start: {error}")
        yield None
        return
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def paced(running: RunningTerminal) -> Iterator[Callable[[], list[Sample]]]:
    """Messages at the usual rate while the block runs. Yields a function that ends them and returns the
    samples of the consumer."""
    stop = SPAWN.Event()
    crew = Crew(running, 2)
    crew.add(roles.consume_stamped, "paced", "group")
    crew.add(roles.publish_stamped, "paced", sys.maxsize, SIZE, RATE, stop)

    def end() -> list[Sample]:
        stop.set()
        received: list[Sample] = crew.results()[0]
        return received

    try:
        yield end
    finally:
        stop.set()


def cpu_share(running: RunningTerminal, seconds: float) -> float:
    before = running.cpu()
    time.sleep(seconds)
    return (running.cpu() - before) / seconds


def calm_down(running: RunningTerminal, usual: float) -> None:
    """Wait until the terminal takes no more of a core than usual."""
    end = time.monotonic() + CALM
    while cpu_share(running, 1.0) > 1.5 * usual and time.monotonic() < end:
        pass


def window(work: Callable[[], object]) -> tuple[int, int]:
    """Do some work. Returns begin and end of the window around it, nanoseconds of the monotonic clock."""
    begin = time.monotonic_ns()
    work()
    now = time.monotonic_ns()
    end = max(begin + int(WINDOW * 1e9), now + int(AFTERWARDS * 1e9))
    time.sleep((end - now) / 1e9)
    return begin, end


def warn_if_noisy(label: str, ratios: list[float]) -> None:
    ratio = statistics.median(ratios)
    if not 1 / NOISE <= ratio <= NOISE:
        say(
            f"beside: {label} changed by {ratio:.2f} beside nothing: the machine is too busy to judge {label}"
        )


def beside(scale: float, times: int) -> list[Row]:
    """Latency while a topic is deleted, trimmed or read, in turns with the quiet terminal."""
    count = int(2_000_000 * scale)
    #: By name of the work: windows without and with it, a pair per round.
    windows: dict[str, list[tuple[tuple[int, int], tuple[int, int]]]] = {}
    with scratch() as folder, terminal(folder / "bus") as running, spark_session(scale) as spark:
        run(running, lambda bus: bus.call("topic.create", name="paced"))
        with landbridge.sync.connect(running.url, token=running.token) as bus, paced(running) as end:
            others = Neighbours(running, bus, count)
            works: dict[str, Prepare] = {
                NOTHING: lambda topic: lambda: None,
                f"a delete of {count:,}": others.deleting,
                f"a trim of {count:,}": others.trimming,
            }
            if spark is None:
                works[f"a reader of {count:,}"] = others.reading
            else:
                archiving = works[f"an archive by Spark of {count:,}"] = others.archiving(spark)
                alone(running, roles.publish_many, "warm-up", count // 10, SIZE, PER_BATCH)
                archiving("warm-up")()
            bus.call("topic.wait", offsets={"paced": WARM_UP}, within=60.0)
            usual = cpu_share(running, WINDOW)
            for turn in range(times):
                for number, (name, prepare) in enumerate(works.items()):
                    topic = f"large.{turn}.{number}"
                    alone(running, roles.publish_many, topic, count, SIZE, PER_BATCH)
                    work = prepare(topic)
                    calm_down(running, usual)
                    pair = window(lambda: None), window(work)
                    windows.setdefault(name, []).append(pair)
            samples = end()
    rows = []
    for name, pairs in windows.items():
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            spans = [
                [
                    milliseconds([one for one in samples if begin <= one[0] < end], share)
                    for begin, end in pair
                ]
                for pair in pairs
            ]
            if name == NOTHING:
                warn_if_noisy(label, [there / here for here, there in spans])
            quiet, busy = (statistics.median(column) for column in zip(*spans, strict=True))
            ratios = [there / here for here, there in spans]
            rows += [
                Row(f"latency before {name}, {label}", quiet, "ms", None, "less"),
                Row(f"latency beside {name}, {label}", busy, "ms", None, "less"),
                ratio_row(
                    f"latency beside {name}, {label}, × before", ratios, None if name == NOTHING else 1.3
                ),
            ]
    return rows
