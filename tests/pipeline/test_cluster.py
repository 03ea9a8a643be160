"""The jobs on a cluster, unchanged: a master and two workers that know nothing of the terminal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place
from tests.pipeline.cluster import Cluster, running

#: Seconds for a run of a job: it starts a driver and two executors.
RUN = 400
ROWS = 2_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * RUN)]

STEPS = """
from pyspark.sql.functions import udf

from landbridge.pipeline import step


def doubled(number):
    return 2 * number


@step(source="numbers", sink="doubles", schema="n bigint", minPartitions=4)
def doubles(rows):
    # A function of this module, which no worker can import.
    return rows.select(udf(doubled, "bigint")("n").alias("n"))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("place"))
    with place.up("--http-port", "0"):
        payloads = b"".join(b'{"n": %d}\n' % n for n in range(ROWS))
        done = place.run("publish", "numbers", input=payloads)
        assert done.status == 0, done.err
        yield place


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def run(place: Place, cluster: Cluster, folder: Path, *arguments: str) -> Any:
    small = ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=512m"]
    line = ["pipeline", "run", *arguments, "--master", cluster.url, "--once", "--json", *small]
    process = place.start(*line, cwd=folder)
    try:
        out, err = process.communicate(timeout=RUN)
    except subprocess.TimeoutExpired:
        process.terminate()
        raise
    assert process.returncode == 0, err.decode()
    return [json.loads(text) for text in out.splitlines()]


def test_a_step_with_a_function_of_its_own(place: Place, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    before = cluster.executors()
    where = ["--checkpoint", str(tmp_path / "checkpoint")]
    end = run(place, cluster, tmp_path, "steps:doubles", *where)[-1]
    assert (end["event"], end["rows"], end["lag"]) == ("end", ROWS, {"numbers": 0})
    after = cluster.executors()
    assert {name: after[name] - before.get(name, 0) for name in after} == {"worker-1": 1, "worker-2": 1}
    assert run(place, cluster, tmp_path, "steps:doubles", *where)[-1]["rows"] == 0
    lines = place.call("subscribe", "doubles", "--from", "earliest", "--count", str(ROWS)).out.splitlines()
    assert sorted(json.loads(line)["n"] for line in lines) == [2 * n for n in range(ROWS)]
    assert place.call("topic", "show", "doubles", "--json").json["messages"] == ROWS


def test_the_archive(place: Place, cluster: Cluster, tmp_path: Path) -> None:
    import pyarrow.dataset

    lake = tmp_path / "lake"
    [*_, end] = run(place, cluster, tmp_path, "archive", "numbers", "--lake", str(lake))
    assert end["rows"] == ROWS
    files = [str(path) for path in (lake / "messages").rglob("*.parquet")]
    rows = pyarrow.dataset.dataset(files).to_table(columns=["offset", "value"]).sort_by("offset")
    assert rows["offset"].to_pylist() == list(range(ROWS))
    assert rows["value"].to_pylist() == [b'{"n": %d}' % n for n in range(ROWS)]
