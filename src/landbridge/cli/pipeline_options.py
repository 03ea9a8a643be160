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
from landbridge.cli.options import ContextName, OptionGroup, flag, option, pairs, span
from landbridge.core.wording import counted
from landbridge.errors import BadRequest, BusError, JobFailed, SparkMissing
from landbridge.node.plan import data_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from landbridge.pipeline.jobs.running import Job, MicroBatch, Outcome

Master = Annotated[
    str | None,
    option("Where Spark runs: local[4], spark://host:7077. Else SPARK_MASTER, or here.", metavar="URL"),
]
Checkpoint = Annotated[
    str | None, option("Where the job keeps how far it is. A new one begins anew.", metavar="FOLDER")
]
Conf = Annotated[
    list[str] | None, option("A setting of Spark. May be repeated.", "--conf", metavar="NAME=VALUE")
]


class StreamOptions(OptionGroup):
    """How and where a job runs."""

    once: bool = flag("Take what is available now, then end.", "--once")
    every: float | None = span("Begin a micro-batch so often: 10s, 5m.", show_default=False)
    master: Master = None
    conf: Conf = None
    context: ContextName = None


#: Settings that keep Spark from writing to the user's terminal.
QUIET = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
#: Seconds between two lines of progress where the output is no terminal.
TELL_EVERY = 10.0


def where(context: str | None) -> dict[str, str]:
    """The options of ``format("landbridge")`` that say which terminal."""
    return {} if context is None else {"context": context}


def checkpoint_of(job: str) -> str:
    """Where a job keeps its checkpoint unless it is told otherwise."""
    return str(data_folder() / "checkpoints" / job.replace(":", "."))


@contextmanager
def spark_session(
    master: str | None, conf: list[str] | None, *, is_prompt: bool = False
) -> Iterator[SparkSession]:
    """A session whose log goes to a file. The file stays if the job fails for a reason that we don't know.
    ``is_prompt``: Ctrl-C cancels what runs, as PySpark does it, and the session goes on."""
    settings = QUIET | pairs(conf, "setting")
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
    with progress("starting Spark"), stderr_to(log), interrupts_later():
        try:
            spark = session(master, **settings)
        except ImportError as error:
            raise _missing(error) from None
    if not is_prompt and threading.current_thread() is threading.main_thread():
        # PySpark's own handler asks Spark to cancel the jobs, on a connection that waits for an answer, and
        # shows the stacks of what fails then. The end of the session cancels them as well.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        logging.getLogger().addFilter(_is_no_interrupt)
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


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """False for what py4j tells of Ctrl-C, with its stack."""
    return record.exc_info is None or record.exc_info[0] is not KeyboardInterrupt


def _missing(error: ImportError) -> SparkMissing:
    return SparkMissing(f"the module {error.name} is not installed")


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Ctrl-C counts when this is over; a second one at once. PySpark that is interrupted while it waits for
    its Java to start leaves that process behind, which never ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = False

    def on_signal(number: int, frame: Any) -> None:
        nonlocal taken
        taken = True
        signal.signal(number, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        # PySpark has a handler of its own by now, which is for whoever has the session.
        if taken or signal.getsignal(signal.SIGINT) is on_signal:
            signal.signal(signal.SIGINT, before)
    if taken:
        raise KeyboardInterrupt


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Processes that are started meanwhile have this file as their standard error, and keep it."""
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
    """A spinner on the user's terminal, through a descriptor of its own: standard error is about to be
    redirected."""
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
    job: Job | None, options: StreamOptions, checkpoint: str | None, make: Callable[[], Job] | None = None
) -> None:
    """Run a job to its end, or until SIGTERM or Ctrl-C, and show how it gets on. ``make``: for a job that
    can't be made without a session."""
    from landbridge.pipeline.jobs.running import Place, Trigger, run

    if options.once and options.every:
        raise BadRequest("either --once or --every, not both")
    with (
        watched(options.context),
        spark_session(options.master, options.conf) as spark,
        stop_signals() as stop,
    ):
        if make is not None:
            job = make()
        assert job is not None
        trigger = Trigger(once=options.once, every=options.every or 0.0)
        place = Place(spark, checkpoint or checkpoint_of(job.name), trigger, where(options.context))
        with _shown(job.name) as tell:
            outcome = run(job, place, stop=stop, tell=tell)
    output.tell({"event": "end", **outcome._asdict()}, _summary(job.name, outcome))


@contextmanager
def watched(context: str | None) -> Iterator[None]:
    """Hold a connection of our own, which tells the user when the terminal is lost, and before Spark is
    started if it can't be reached. Spark's processes only write this to their log."""
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
def stop_signals() -> Iterator[threading.Event]:
    """Yields an event that the first SIGTERM or Ctrl-C sets; the second one ends the process."""
    stop = threading.Event()
    before = {}

    def on_signal(number: int, _: Any) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(name: str) -> Iterator[Callable[[MicroBatch], None]]:
    """Shows micro-batches as JSON lines, as one line that changes, or as a line now and then."""
    total, told_at = 0, 0.0
    status: Any = None

    def tell(step: MicroBatch) -> None:
        nonlocal total, told_at
        total += step.rows
        line = (
            f"{name}: {total:,} rows, micro-batch {step.batch}: {step.rows:,} rows, "
            f"{step.rows_per_second:,.0f} rows/s, {units.span(step.seconds)}, lag {sum(step.lag.values()):,}"
        )
        if status is not None:
            status.update(line)
        elif step.rows and output.choice.json:
            output.write_json({"event": "batch", **step._asdict()})
        elif step.rows and time.monotonic() - told_at >= TELL_EVERY:
            told_at = time.monotonic()
            output.notice(line)

    if output.choice.json or not sys.stderr.isatty():
        yield tell
    else:
        with output.console(stderr=True).status(f"{name}: waiting for rows …", spinner="dots") as status:
            yield tell
