"""Options that the commands of the pipeline share, and how a job is shown while it runs."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landbridge.cli import output, units
from landbridge.cli.loop import noticed
from landbridge.cli.options import data_folder, pairs
from landbridge.core.wording import counted
from landbridge.errors import BadRequest, BusError, JobFailed, SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from landbridge.pipeline.running import Job, MicroBatch, Outcome

Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Where Spark runs: local[4], spark://host:7077. Else SPARK_MASTER, or here."
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Where the job keeps how far it is. A new one begins anew."),
]
Once = Annotated[bool, typer.Option("--once", help="Take what is available now, then end.")]
Every = Annotated[
    float,
    typer.Option(
        metavar="SPAN",
        parser=units.parse_span,
        help="Begin a micro-batch so often: 10s, 5m.",
        show_default=False,
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark. May be repeated."),
]

#: Settings of a session whose user looks at us, and not at Spark.
QUIET = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
#: Seconds between two lines of progress where nobody watches a screen.
TELL_EVERY = 10.0


def where(context: str | None) -> dict[str, str]:
    """The options of ``format("landbridge")`` that say which terminal."""
    return {} if context is None else {"context": context}


def checkpoint_of(job: str) -> str:
    """Where a job keeps its checkpoint unless it is told otherwise."""
    return str(data_folder() / "checkpoints" / job.replace(":", "."))


@contextmanager
def spark_session(master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    """A session whose talk goes to a file of its own. The file stays where an unknown thing fails."""
    settings = QUIET | pairs(conf or [], "setting")
    try:
        from landbridge.pipeline import session
        from landbridge.pipeline.java import cache_folder
    except ImportError as error:
        raise _missing(error) from None
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"spark-{os.getpid()}.log"
    # PySpark shows the whole stack of what it raises, also to those who catch it.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    with progress("starting Spark"), said_to(log):
        try:
            spark = session(master, **settings)
        except ImportError as error:
            raise _missing(error) from None
    try:
        yield spark
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | typer.Exit | BusError) and not isinstance(error, JobFailed):
            log.unlink(missing_ok=True)
            raise
        error.add_note(f"what Spark said is in {log}")
        raise
    else:
        log.unlink(missing_ok=True)
    finally:
        spark.stop()


def _missing(error: ImportError) -> SparkMissing:
    return SparkMissing(f"the module {error.name} is not installed")


@contextmanager
def said_to(log: Path) -> Iterator[None]:
    """What is started meanwhile has this file as its standard error, and keeps it."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def progress(text: str) -> Iterator[None]:
    """A spinner where somebody looks, on a screen of its own: standard error is about to be another."""
    if output.choice.json or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with (
        os.fdopen(os.dup(2), "w") as screen,
        Console(file=screen, highlight=False).status(f"{text} …", spinner="dots"),
    ):
        yield


def run_stream(
    job: Job | None,
    *,
    context: str | None,
    master: str | None,
    checkpoint: str | None,
    once: bool,
    every: float,
    conf: list[str] | None,
    make: Callable[[], Job] | None = None,
) -> Outcome:
    """Run a job to its end, or until SIGTERM or Ctrl-C, and show how it gets on. ``make``: for a job that
    can't be made without a session."""
    from landbridge.pipeline.running import Place, Trigger, run

    if once and every:
        raise BadRequest("either --once or --every, not both")
    with watched(context), spark_session(master, conf) as spark, until_told() as stop:
        if make is not None:
            job = make()
        assert job is not None
        trigger = Trigger(once=once, every=every)
        place = Place(spark, checkpoint or checkpoint_of(job.name), trigger, where(context))
        with _shown(job.name) as tell:
            outcome = run(job, place, stop=stop, tell=tell)
    output.emit({"event": "end", **outcome._asdict()}, lambda _: output.done(_summary(job.name, outcome)))
    return outcome


@contextmanager
def watched(context: str | None) -> Iterator[None]:
    """With a connection of our own: whoever waits is told when the terminal is lost, and before Spark is
    started, if it isn't there. Spark's own processes say so in their log."""
    from landbridge.client.sync import connect

    with noticed(), connect(context=context, name="landbridge pipeline"):
        yield


def _summary(name: str, outcome: Outcome) -> str:
    how = "stopped" if outcome.stopped else "done"
    rows, batches = counted(outcome.rows, "row"), f"{outcome.batches:,} micro-batch"
    batches += "" if outcome.batches == 1 else "es"
    seconds, behind = units.span(outcome.seconds), sum(outcome.lag.values())
    return f"{name} {how}: {rows} in {batches}, {seconds}, lag {behind:,}"


@contextmanager
def until_told() -> Iterator[threading.Event]:
    """Set by the first SIGTERM or Ctrl-C; the second one ends the process."""
    stop = threading.Event()
    before = {}

    def told(number: int, _: Any) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, told)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(name: str) -> Iterator[Callable[[MicroBatch], None]]:
    """Micro-batches as JSON lines, as one line that changes, or as a line now and then."""
    if output.choice.json:

        def write(step: MicroBatch) -> None:
            if step.rows:
                output.write_json({"event": "batch", **step._asdict()})

        yield write
        return
    total = 0
    if sys.stderr.isatty():
        with output.console(stderr=True).status(f"{name}: waiting for rows …", spinner="dots") as status:

            def update(step: MicroBatch) -> None:
                nonlocal total
                total += step.rows
                status.update(f"{name}: {_line(step, total)}")

            yield update
        return
    told_at = 0.0

    def now_and_then(step: MicroBatch) -> None:
        nonlocal total, told_at
        total += step.rows
        if step.rows and time.monotonic() - told_at >= TELL_EVERY:
            told_at = time.monotonic()
            output.notice(f"{name}: {_line(step, total)}")

    yield now_and_then


def _line(step: MicroBatch, total: int) -> str:
    return (
        f"{total:,} rows, micro-batch {step.batch}: {step.rows:,} rows, {step.rows_per_second:,.0f} rows/s, "
        f"{units.span(step.seconds)}, lag {sum(step.lag.values()):,}"
    )
