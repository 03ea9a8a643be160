"""``landbridge shell``: a prompt with a connected bus, and with ``--spark`` with topics as tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landbridge.cli import output
from landbridge.cli.console_shell import run_as_json
from landbridge.cli.options import ContextName, Json
from landbridge.cli.pipeline_options import Conf, Master, spark_session, where
from landbridge.cli.sql import AllowGaps, Lake
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUS = """\
bus         a connected bus:          bus.publish("orders", {"id": 1}); bus.call("topic.list")
"""
SPARK = """\
spark       the Spark session:        spark.read.format("landbridge").option("subscribe", "orders").load()
sql(…)      a query:                  sql("SELECT json:amount::int a FROM topic.orders").show()
topic(…)    a topic as a data frame:  topic("orders").where("offset >= 100").count()
            log(…) and archive(…) are the two parts of it by themselves
"""


def shell(
    spark: Annotated[
        bool, typer.Option("--spark", help="With a Spark session, and with topics as tables.")
    ] = False,
    lake: Lake = None,
    allow_gaps: AllowGaps = False,
    command: Annotated[
        str | None,
        typer.Option("--command", "-c", metavar="CODE", help="Run this and leave.", show_default=False),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Open a prompt (IPython) with a connected bus; with --spark, also SQL over topics and their archive.

    \b
    Examples:
      landbridge shell
      landbridge shell --spark --lake /data/lake
      landbridge shell --spark -c 'sql("SELECT count(*) FROM topic.orders").show()'
    """
    try:
        from IPython.terminal.interactiveshell import TerminalInteractiveShell
    except ImportError:
        raise BadRequest(
            "shell needs IPython, which is not installed", hint="pip install 'landbridge[shell]'"
        ) from None
    if lake is not None and not spark:
        raise BadRequest("--lake says nothing without --spark")
    with ExitStack() as stack:
        import landbridge.sync

        bus = stack.enter_context(landbridge.sync.connect(context=context, name="landbridge shell"))
        names: dict[str, Any] = {"landbridge": landbridge, "bus": bus}
        if spark:
            session = stack.enter_context(spark_session(master, conf))
            names |= _tables(session, context, lake, allow_gaps)
        with _prompt(TerminalInteractiveShell, names, BUS + (SPARK if spark else ""), command) as opened:
            if command is None:
                opened.mainloop()
            else:
                done = run_as_json(opened, command) if json else opened.run_cell(command)
                if not done.success:
                    raise typer.Exit(1)


def _tables(spark: SparkSession, context: str | None, lake: str | None, allow_gaps: bool) -> dict[str, Any]:
    from landbridge.pipeline.sql.views import Views

    views = Views(spark, where=where(context), lake=lake, allow_gaps=allow_gaps, tell=output.notice)
    return {
        "spark": spark,
        "sql": views.sql,
        "topic": views.topic,
        "log": views.log,
        "archive": views.archive,
    }


@contextmanager
def _prompt(kind: Any, names: dict[str, Any], banner: str, command: str | None) -> Iterator[Any]:
    from traitlets.config import Config

    from landbridge.errors import BusError

    config = Config()
    # What is run by a program is nobody's history.
    config.HistoryManager.enabled = command is None and sys.stdin.isatty()
    config.TerminalInteractiveShell.banner1 = banner
    config.TerminalInteractiveShell.confirm_exit = False
    opened = kind.instance(user_ns=names, config=config)

    def told(self: Any, kind: Any, error: Any, trace: Any, tb_offset: Any = None) -> None:
        output.report(error)

    # Errors of ours say what to do; where in Spark they came up helps nobody.
    opened.set_custom_exc((BusError,), told)
    try:
        yield opened
    finally:
        kind.clear_instance()
