"""The last act of ``landbridge demo``: the messages that have crossed are archived, queried and reported on,
on a Spark of this process."""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from landbridge.pipeline.access import close_buses

T = TypeVar("T")

QUERY = """  SELECT json:country::string AS country, count(*) AS orders,
         count(DISTINCT json:n::int) AS numbers, sum(json:amount::int) AS amount
    FROM topic.orders GROUP BY 1 ORDER BY 1"""


class Tables:
    def __init__(self, console: Console, folder: Path, where: dict[str, str], sent: int) -> None:
        self._console = console
        self._folder = folder
        #: The terminal whose topics are tables here.
        self._where = where
        self._sent = sent
        self.facts: dict[str, Any] = {}
        self.broken: list[str] = []

    async def run(self) -> None:
        say = self._console.print
        if importlib.util.find_spec("pyspark") is None:
            say("\nEvery topic is a Spark table, too. For this act: pip install 'landbridge\\[pipeline]'")
            return
        say("\n[bold]Every topic is a table.[/] What has just crossed, on Spark:")
        with self._console.status("starting Spark …", spinner="dots"):
            spark = await in_thread(self._session)
        try:
            with self._console.status("archiving …", spinner="dots"):
                await in_thread(lambda: self._archive(spark))
            say(f"  archived: {self.facts['archived']:,} messages as Parquet, each once")
            with self._console.status("asking …", spinner="dots"):
                rows = await in_thread(lambda: self._ask(spark))
            say(QUERY, style="cyan", markup=False)
            table = Table(*rows[0].asDict(), box=None, padding=(0, 2))
            for row in rows:
                table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
            self._console.print(table)
            with self._console.status("reporting …", spinner="dots"):
                page = await in_thread(lambda: self._report(spark))
            say(f"  report: {page}", soft_wrap=True)
        finally:
            await in_thread(spark.stop)
            close_buses()

    def _check(self, holds: bool, promise: str) -> None:
        if not holds:
            self.broken.append(promise)
            self._console.print(f"  [red]broken:[/] {promise}")

    def _session(self) -> Any:
        from landbridge.cli.pipeline_options import said_to
        from landbridge.pipeline import session

        with said_to(self._folder / "spark.log"):
            return session("local[2]", **{"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 2})

    @property
    def _lake(self) -> str:
        return str(self._folder / "lake")

    def _archive(self, spark: Any) -> None:
        from landbridge.pipeline.lake.archive import Archive
        from landbridge.pipeline.running import Place, Trigger, run

        job = Archive(self._lake, topics=("orders",))
        done = run(job, Place(spark, job.checkpoint, Trigger(once=True), self._where))
        self.facts["archived"] = done.rows
        self._check(done.rows == self._sent, "every message that was sent is in the archive, once")

    def _ask(self, spark: Any) -> list[Any]:
        from landbridge.pipeline.sql.views import Views

        rows: list[Any] = Views(spark, where=self._where, lake=self._lake).sql(QUERY).collect()
        numbers = sum(row.numbers for row in rows)
        self._check(numbers == self._sent, "SQL over archive and log finds every message, once")
        return rows

    def _report(self, spark: Any) -> Path:
        from landbridge.core.status import TOPIC
        from landbridge.pipeline.activity.activity import transform
        from landbridge.pipeline.activity.page import page
        from landbridge.pipeline.activity.report import compile_report
        from landbridge.pipeline.running import Place

        now = time.time_ns() // 1000
        minutes = transform(Place(spark, "", where=self._where).table(subscribe=TOPIC))
        found = compile_report(minutes, now=now)
        # It stays when the rest of the demo is thrown away.
        file = Path(tempfile.gettempdir()) / "landbridge-demo-report.html"
        file.write_text(page(found, source="the demo", made_at=now), encoding="utf-8")
        self.facts["report"] = str(file)
        return file

    def rows(self) -> list[tuple[str, str]]:
        return [("archived on Spark, and found by SQL", f"{self.facts['archived']:,}")] if self.facts else []


async def in_thread(work: Callable[[], T]) -> T:
    """In a thread that nobody waits for: who interrupts the demo is not kept by Spark."""
    done: Future[T] = Future()

    def main() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    done.set_running_or_notify_cancel()  # from now on it can't be cancelled, only left alone
    threading.Thread(target=main, daemon=True).start()
    return await asyncio.wrap_future(done)
