"""``landbridge pipeline``: what it says and how it ends. What jobs do is in tests/pipeline."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import LANDBRIDGE, Place, Result, Screen, read_line, until

STEPS = """
from landbridge.pipeline import step

number = 7

@step(source="TOPIC", sink="TOPIC.copies", group="copier", maxOffsetsPerTrigger=50)
def copies(rows):
    return rows.select("value")

@step(source="TOPIC", sink="TOPIC.late", startingOffsets='{"TOPIC": {"0": 7000}}')
def late(rows):
    return rows.select("value")
"""
#: Seconds for a run of Spark, which starts in ten on a machine that has nothing else to do.
SPARK = 300
#: Taken by every Python that has its folder on the path, before anything else.
WITHOUT = "import sys\nsys.modules['pyspark'] = None\n"

needs_spark = pytest.mark.skipif(
    importlib.util.find_spec("pyspark") is None, reason="needs landbridge[pipeline]"
)


@pytest.fixture
def code(tmp_path: Path, topic: str) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "steps.py").write_text(STEPS.replace("TOPIC", topic))
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "early.py").write_text("from pyspark.sql import DataFrame\n")
    return tmp_path


def end(process: subprocess.Popen[bytes]) -> Result:
    try:
        out, err = process.communicate(timeout=SPARK)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return Result(process.returncode, out.decode(), err.decode())


def run(place: Place, code: Path, *arguments: str) -> Result:
    """With a checkpoint of its own, and no more of Spark than it takes."""
    where = ["--checkpoint", str(code / "checkpoint"), "--master", "local[1]"]
    return end(place.start("pipeline", "run", *arguments, *where, cwd=code))


def values(place: Place, topic: str) -> list[int]:
    """All that is in the topic."""
    shown = place.call("topic", "show", topic, "--json").json
    count = str(shown["messages"])
    out = place.call("subscribe", topic, "--from", "earliest", "--count", count).out
    return [int(line) for line in out.split()]


def publish(place: Place, topic: str, numbers: range) -> None:
    for number in numbers:
        assert place.call("publish", topic, str(number)).status == 0


def test_help_comes_without_spark() -> None:
    script = (
        "import sys; from landbridge.cli.main import main; main(['pipeline', *sys.argv[1:], '--help']); "
        "sys.exit(sorted({'pyspark', 'pandas', 'pyarrow', 'numpy', 'scipy'} & set(sys.modules)).__len__())"
    )
    for words in ([], ["run"], ["run", "shop.steps:copies"], ["init"], ["declarative"]):
        done = subprocess.run(
            [LANDBRIDGE[0], "-c", script, *words], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage: landbridge pipeline" in done.stdout


@needs_spark
@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("shop.steps:number", "no step but a value of type int", "shop.steps:copies, shop.steps:late"),
        ("shop.steps:copy", "there is nothing at shop.steps:copy", "shop.steps:copies, shop.steps:late"),
        ("empty:copies", "there is nothing at empty:copies", "as in 'landbridge pipeline run"),
        ("shop.stages:copies", "there is no module shop.stages", "as in 'landbridge pipeline run"),
        ("shop.steps:", "'shop.steps:' names no step", "as in 'landbridge pipeline run"),
        (":copies", "':copies' names no step", "as in 'landbridge pipeline run"),
    ],
)
def test_what_is_no_step_is_told_before_spark_starts(
    place: Place, code: Path, spec: str, message: str, hint: str
) -> None:
    error = run(place, code, spec, "--json").error
    assert error["code"] == "bad_request"
    assert message in error["message"]
    assert hint in error["hint"]


def test_a_job_that_is_mistyped(place: Place) -> None:
    done = place.call("pipeline", "run", "archiv")
    assert done.status == 2
    assert "Did you mean 'archive'?" in done.err


@pytest.mark.parametrize("spec", ["shop.steps:copies", "early:copies"])
def test_without_pyspark_it_says_what_to_install(place: Place, code: Path, spec: str) -> None:
    (code / "without").mkdir()
    (code / "without" / "sitecustomize.py").write_text(WITHOUT)
    place.settings["PYTHONPATH"] = str(code / "without")
    for line in (["run", spec, "--once"], ["declarative", "--spec", "early.py"]):
        error = end(place.start("pipeline", *line, "--json", cwd=code)).error
        assert (error["code"], error["hint"]) == ("spark_missing", "pip install 'landbridge[pipeline]'")


def test_a_declarative_pipeline_needs_a_spec(place: Place, tmp_path: Path) -> None:
    error = end(place.start("pipeline", "declarative", "--json", cwd=tmp_path)).error
    assert "spark-pipeline.yml" in error["message"]
    assert "landbridge pipeline init" in error["hint"]


@needs_spark
@pytest.mark.slow
@pytest.mark.timeout(4 * SPARK)
def test_once_takes_what_is_there(shared: Place, topic: str, code: Path) -> None:
    publish(shared, topic, range(120))
    lines = run(shared, code, "shop.steps:copies", "--once", "--json").lines
    assert [line["event"] for line in lines] == ["batch", "batch", "batch", "end"]
    assert [line["rows"] for line in lines] == [50, 50, 20, 120]
    assert lines[-1]["batches"] == 3
    assert lines[-1]["lag"] == {topic: 0}
    assert not lines[-1]["stopped"]
    assert values(shared, f"{topic}.copies") == list(range(120))
    # Again there is nothing to do. For people, it is one line.
    done = run(shared, code, "shop.steps:copies", "--once")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("copies done: 0 rows in 0 micro-batches, ")


@needs_spark
@pytest.mark.slow
@pytest.mark.timeout(4 * SPARK)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_its_micro_batch(shared: Place, topic: str, code: Path, number: int) -> None:
    publish(shared, topic, range(60))
    where = ["--checkpoint", str(code / "checkpoint"), "--master", "local[1]"]
    process = shared.start(
        "pipeline", "run", "shop.steps:copies", "--json", *where, cwd=code, start_new_session=True
    )
    try:
        first = json.loads(read_line(process.stdout))
        assert (first["event"], first["rows"]) == ("batch", 50)
        publish(shared, topic, range(60, 180))
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does it: Spark's own processes get it too
        else:
            process.send_signal(number)
        done = end(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    lines = done.lines
    assert done.err == ""
    assert lines[-1]["event"] == "end"
    assert lines[-1]["stopped"]
    # Whole micro-batches, and the next run does the rest: each once.
    so_far = values(shared, f"{topic}.copies")
    assert so_far == list(range(len(so_far)))
    assert len(so_far) == lines[-1]["rows"]
    rest = run(shared, code, "shop.steps:copies", "--once", "--json").lines[-1]["rows"]
    assert rest == 180 - len(so_far)
    assert values(shared, f"{topic}.copies") == list(range(180))


@needs_spark
@pytest.mark.slow
@pytest.mark.timeout(2 * SPARK)
def test_a_failure_is_told_as_our_own_error(shared: Place, topic: str, code: Path) -> None:
    publish(shared, topic, range(1))
    error = run(shared, code, "shop.steps:late", "--once", "--json").error
    assert error["code"] == "offset_gone"
    assert "7000" in error["message"]
    assert "notes" not in error  # what Spark has written down of it adds nothing, and is removed


@needs_spark
@pytest.mark.slow
@pytest.mark.timeout(2 * SPARK)
def test_somebody_who_watches_sees_it_get_on(
    shared: Place, topic: str, code: Path, screens: Callable[..., Screen], monkeypatch: Any
) -> None:
    publish(shared, topic, range(60))
    monkeypatch.chdir(code)
    where = ["--checkpoint", str(code / "checkpoint"), "--master", "local[1]"]
    screen = screens(shared, "pipeline", "run", "shop.steps:copies", *where)
    screen.wait_for("starting Spark …")
    screen.wait_for("copies: waiting for rows …")
    screen.wait_for("copies: 60 rows, micro-batch 1: 10 rows, ")
    screen.type(b"\x03")
    status, text = screen.finish()
    assert status == 0
    assert "✓ copies stopped: 60 rows in 2 micro-batches, " in text
    assert "WARN" not in text
    assert until(lambda: values(shared, f"{topic}.copies") == list(range(60)))
