"""Topics as tables: the messages of a topic are archived, queried and reported on, by Spark in this process.

python examples/tables.py --messages 5000
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table

import landbridge
from stage import DemoStage, arguments, perform, start_up

T = TypeVar("T")

QUERY = """  SELECT json:country::string AS country, count(*) AS orders,
         count(DISTINCT json:n::int) AS numbers, sum(json:amount::int) AS amount
    FROM topic.orders GROUP BY 1 ORDER BY 1"""


class Tables:
    """The topic ``orders`` of one terminal as a table. ``where``: the terminal's URL and a token. ``sent``:
    how many messages the topic has."""

    def __init__(self, stage: DemoStage, folder: Path, where: dict[str, str], sent: int) -> None:
        self._stage = stage
        self._folder = folder
        self._lake = str(folder / "lake")
        self._where = where
        self._sent = sent

    async def run(self) -> None:
        say = self._stage.say
        if importlib.util.find_spec("pyspark") is None:
            say("\nEvery topic is a Spark table, too. For this act: pip install 'landbridge\\[pipeline]'")
            return
        from landbridge.pipeline.connector.access import close_buses

        say("\n[bold]Every topic is a table.[/] What has just crossed, on Spark:")
        spark = await self._in_thread("starting Spark", self._session)
        try:
            archived = await self._in_thread("archiving", lambda: self._archive(spark))
            say(f"  archived: {archived:,} messages as Parquet, each once")
            rows = await self._in_thread("asking", lambda: self._ask(spark))
            say(QUERY, style="cyan", markup=False)
            table = Table(*rows[0].asDict(), box=None, padding=(0, 2))
            for row in rows:
                table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
            say(table)
            page = await self._in_thread("reporting", lambda: self._report(spark))
            say(f"  report: {page}", soft_wrap=True)
            self._stage.note("report", str(page))
        finally:
            await in_thread(spark.stop)
            close_buses()

    async def _in_thread(self, text: str, work: Callable[[], T]) -> T:
        with self._stage.console.status(f"{text} …", spinner="dots"):
            return await in_thread(work)

    def _session(self) -> Any:
        from landbridge.pipeline import session

        with stderr_to(self._folder / "spark.log"):
            return session("local[2]", **{"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 2})

    def _archive(self, spark: Any) -> int:
        from landbridge.pipeline import Place, Trigger, run
        from landbridge.pipeline.jobs.archive import Archive

        job = Archive(self._lake, topics=("orders",))
        done = run(job, Place(spark, job.checkpoint, Trigger(once=True), self._where))
        self._stage.note("archived", done.rows, "archived on Spark, and found by SQL")
        self._stage.check(done.rows == self._sent, "every message that was sent is in the archive, once")
        return done.rows

    def _ask(self, spark: Any) -> list[Any]:
        from landbridge.pipeline.sql.views import Views

        rows: list[Any] = Views(spark, where=self._where, lake=self._lake).sql(QUERY).collect()
        numbers = sum(row.numbers for row in rows)
        self._stage.check(numbers == self._sent, "SQL over archive and log finds every message, once")
        return rows

    def _report(self, spark: Any) -> Path:
        from landbridge.core.status import TOPIC
        from landbridge.pipeline import Place
        from landbridge.pipeline.jobs.activity.activity import transform
        from landbridge.pipeline.jobs.activity.page import page
        from landbridge.pipeline.jobs.activity.report import compile_report

        now = time.time_ns() // 1000
        minutes = transform(Place(spark, "", where=self._where).table(subscribe=TOPIC))
        found = compile_report(minutes, now=now)
        # The report stays when the rest of the demo is thrown away.
        file = Path(tempfile.gettempdir()) / "landbridge-demo-report.html"
        file.write_text(page(found, source="the demo", made_at=now), encoding="utf-8")
        return file


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Processes that are started meanwhile, such as Spark's Java, have this file as their standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


async def in_thread(work: Callable[[], T]) -> T:
    """In a thread that nobody waits for: Spark does not hold up whoever interrupts the demo."""
    done: Future[T] = Future()

    def main() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    done.set_running_or_notify_cancel()  # from now on the work can't be cancelled, only left alone
    threading.Thread(target=main, daemon=True).start()
    return await asyncio.wrap_future(done)


async def act(stage: DemoStage, folder: Path, messages: int) -> None:
    """A terminal with orders, and its topic as a table."""
    up = start_up(folder)
    try:
        await up.start()
        where = {"url": up.ready["url"], "token": up.context("local")["token"]}
        async with landbridge.connect(**where) as bus, bus.publisher("orders") as out:
            for n in range(messages):
                await out.send({"n": n, "country": ("de", "fr", "sg")[n % 3], "amount": n % 100})
        await Tables(stage, folder, where, messages).run()
    finally:
        await up.end()


if __name__ == "__main__":
    given = arguments(__doc__)
    raise SystemExit(perform(partial(act, messages=given.messages), as_json=given.json))
