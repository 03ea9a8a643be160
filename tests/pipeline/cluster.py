"""A standalone cluster of Spark on this machine: a master and two workers, each a process."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from landbridge.cli.pipeline_declarative import spark_home
from landbridge.pipeline.java import java_home

#: Seconds for a process to say what it is waited for.
LIMIT = 180.0


class Cluster:
    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder

    def executors(self) -> dict[str, int]:
        """By worker: how many executors it has started."""
        return {
            worker.name: len(list(worker.glob("app-*/*")))
            for worker in self._folder.glob("worker-*")
            if worker.is_dir()
        }


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        names = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        said = stack.enter_context(_process(folder / "master", "master.Master", *names))
        url = _wait(said, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        for number in (1, 2):
            work = folder / f"worker-{number}"
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(work)]
            said = stack.enter_context(
                _process(folder / f"log-{number}", "worker.Worker", *names, *size, url)
            )
            _wait(said, f"Successfully registered with master ({url})")
        yield Cluster(url, folder)


@contextmanager
def _process(log: Path, name: str, *arguments: str) -> Iterator[Path]:
    """What it says goes to the file. It knows nothing of terminals: no context, no variable of ours."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LANDBRIDGE_")}
    home = spark_home()
    environment |= {
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HOME": str(log.parent),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    line = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(line, env=environment, cwd=log.parent, stdout=file, stderr=file)
        try:
            yield log
        finally:
            process.terminate()
            process.wait(LIMIT)


def _wait(log: Path, pattern: str) -> str:
    end = time.monotonic() + LIMIT
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        assert time.monotonic() < end, f"never said {pattern!r}: {log.read_text(errors='replace')}"
        time.sleep(0.1)
    return found[1]
