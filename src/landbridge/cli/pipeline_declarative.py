"""``landbridge pipeline declarative``: Spark's own ``spark-pipelines``, with the Java, the Python and the
settings that our other sessions have."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import typer

from landbridge.cli import output, units
from landbridge.cli.options import ContextName, flag, option, pairs
from landbridge.cli.pipeline_options import QUIET, Conf
from landbridge.errors import BadRequest, SparkMissing

#: Spark looks for them by these names.
SPECS = ("spark-pipeline.yml", "spark-pipeline.yaml")


def declarative(
    spec: Path | None = option("The spec; else spark-pipeline.yml of this folder.", metavar="FILE"),
    dry_run: bool = flag("Check the graph, and move nothing.", "--dry-run"),
    remote: str = option(
        "Where Spark runs: local[4], or sc://host:15002, a Connect server.", metavar="URL", value="local[*]"
    ),
    conf: Conf = None,
    context: ContextName = None,
) -> None:
    """Run a Declarative Pipeline once: what is available now. What Spark says goes to standard error.

    Examples:
      landbridge pipeline declarative --spec declarative/spark-pipeline.yml
      landbridge pipeline declarative --dry-run
    """
    chosen = _found(spec)
    begun = time.monotonic()
    verb = "dry-run" if dry_run else "run"
    line = [*_command(remote, pairs(conf or [], "setting")), verb, "--spec", str(chosen)]
    if status := _run(line, _environment(remote, context)):
        raise typer.Exit(status)
    seconds = time.monotonic() - begun
    result = {"spec": str(chosen), "dry_run": dry_run, "seconds": seconds}
    output.tell(result, f"{chosen} {'is good' if dry_run else 'done'}: {units.span(seconds)}")


def _found(spec: Path | None) -> Path:
    candidates = [Path(name) for name in SPECS] if spec is None else [spec]
    for path in candidates:
        if path.is_file():
            return path.resolve()
    raise BadRequest(
        f"there is no file {' or '.join(map(str, candidates))}",
        hint="name it with --spec; 'landbridge pipeline init' makes one",
    )


def spark_home() -> Path:
    """Where PySpark is, found without importing it."""
    for name in ("pyspark", "grpc"):  # the second for Spark Connect, in which Spark runs these
        if importlib.util.find_spec(name) is None:
            raise SparkMissing(f"the module {name} is not installed")
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None  # noqa: PT018 - what was looked for above
    return Path(found.origin).parent


def _command(remote: str, conf: dict[str, str]) -> list[str]:
    from landbridge.pipeline.spark import settings

    chosen = QUIET | settings(remote, dict(conf))
    given = [part for name, value in chosen.items() for part in ("--conf", f"{name}={value}")]
    return [str(spark_home() / "bin" / "spark-pipelines"), "--remote", remote, *given]


def _environment(remote: str, context: str | None) -> dict[str, str]:
    from landbridge.pipeline.java import java_home

    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if remote.startswith("local"):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if context is not None:
        for name in ("LANDBRIDGE_URL", "LANDBRIDGE_TOKEN"):  # they would go before it
            environment.pop(name, None)
        environment["LANDBRIDGE_CONTEXT"] = context
    return environment


def _run(line: list[str], environment: dict[str, str]) -> int:
    """Its exit status. Spark is several processes: a signal is for all of them."""
    process = subprocess.Popen(line, env=environment, stdout=2, start_new_session=True)

    def told(number: int, _: Any) -> None:
        os.killpg(process.pid, number)

    before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        status = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status
