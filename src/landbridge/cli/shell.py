"""``landbridge shell``: a prompt with a connected bus, and with ``--spark`` with topics as tables."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from landbridge.cli import output
from landbridge.cli.options import ContextName, flag
from landbridge.cli.pipeline_options import Conf, Master, spark_session, where
from landbridge.cli.prompt import Command, check_installed, prompt
from landbridge.cli.sql import AllowGaps, Lake
from landbridge.errors import BadRequest

BUS = """\
bus         a connected bus:          bus.publish("orders", {"id": 1}); bus.topics.list()
"""
SPARK = """\
spark       the Spark session:        spark.read.format("landbridge").option("subscribe", "orders").load()
sql(…)      a query:                  sql("SELECT json:amount::int a FROM topic.orders").show()
topic(…)    a topic as a data frame:  topic("orders").where("offset >= 100").count()
            log(…) and archive(…) are the two parts of it by themselves
"""


def shell(
    spark: bool = flag("With a Spark session, and with topics as tables.", "--spark"),
    lake: Lake = None,
    allow_gaps: AllowGaps = False,
    command: Command = None,
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
) -> None:
    """Open a prompt (IPython) with a connected bus; with --spark, also SQL over topics and their archive.

    Examples:
      landbridge shell
      landbridge shell --spark --lake /data/lake
      landbridge shell --spark -c 'sql("SELECT count(*) FROM topic.orders").show()'
    """
    check_installed("shell")
    if lake is not None and not spark:
        raise BadRequest("--lake says nothing without --spark")
    with ExitStack() as stack:
        import landbridge.sync

        bus = stack.enter_context(landbridge.sync.connect(context=context, name="landbridge shell"))
        names: dict[str, Any] = {"landbridge": landbridge, "bus": bus}
        if spark:
            from landbridge.pipeline.sql.views import Views

            session = stack.enter_context(spark_session(master, conf, is_prompt=True))
            views = Views(session, where=where(context), lake=lake, allow_gaps=allow_gaps, tell=output.notice)
            tables = {"sql": views.sql, "topic": views.topic, "log": views.log, "archive": views.archive}
            names |= {"spark": session, **tables}
        prompt(names, BUS + (SPARK if spark else ""), command)
