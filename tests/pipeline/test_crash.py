"""kill -9 in the middle of a stream: driver, JVM and workers at once, or workers only. What counts is what is
in the topic and in the lake."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from landbridge.pipeline.lake.compact import compact
from landbridge.pipeline.lake.lake import COMMITS, STAGING, Lake
from tests.pipeline.lakes import committed, found, stages
from tests.pipeline.site import Site

#: Of everything, for each of the two.
TOPIC_KILLS, LAKE_KILLS = 8, 14
#: Rows of a micro-batch, until the last run takes the rest.
AT_ONCE = 50
PROGRAM = Path(__file__).with_name("stream_process.py")


def start(site: Site, kind: str, sink: str, rows: int = AT_ONCE) -> subprocess.Popen[bytes]:
    arguments = [kind, site.url, site.token, site.topic(), sink, site.checkpoint, str(rows)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], start_new_session=True, stdout=quiet, stderr=quiet
    )


def lives_for(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def kill(process: subprocess.Popen[bytes]) -> None:
    assert process.poll() is None, "it ended before it was killed: more rows, or fewer kills"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_a_worker(process: subprocess.Popen[bytes], dice: random.Random) -> bool:
    """One of the Python processes below the JVM: a reader, a writer, or the one that plans."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
        workers = [each for each in below if "python" in each.name()]
        dice.choice(workers).kill()
    except (psutil.NoSuchProcess, IndexError):
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stream_is_exactly_once_through_kills(site: Site) -> None:
    rows = 5000
    site.publish(rows)
    copy = site.topic("copy")
    site.bus.call("topic.create", name=copy)
    dice = random.Random(15)
    for _ in range(TOPIC_KILLS):
        at = len(site.rows("copy"))
        process = start(site, "topic", copy)
        # Somewhere between two commits: a few batches on, and then some more of its time.
        wanted = min(rows - 100, at + dice.randint(1, 400))
        site.bus.call("topic.wait", offsets={copy: wanted}, within=60.0)
        lives_for(process, dice.uniform(0.0, 0.3))
        kill(process)
        assert at < len(site.rows("copy")) < rows
    assert start(site, "topic", copy, rows).wait(240) == 0
    assert sorted(map(int, site.rows("copy"))) == list(range(rows))


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_an_archive_is_exactly_once_through_kills(spark: Any, site: Site) -> None:
    """With compactions beside it, and with payloads that are rejected."""
    rows = 10_000
    bad = 7  # every seventh is no JSON
    with site.bus.publisher(site.topic()) as out:
        for n in range(rows):
            out.send(b"{" if n % bad == 0 else b"%d" % n)
    path = site.folder / "lake"
    dice = random.Random(4)
    workers = 0
    for life in range(LAKE_KILLS):
        process = start(site, "lake", str(path))
        until(process, commits(path) + dice.randint(1, 5), path)
        if life % 2:
            workers += kill_a_worker(process, dice)
            lives_for(process, dice.uniform(0.0, 1.0))
        lives_for(process, dice.uniform(0.0, 0.8))
        if life % 2 == 0 or process.poll() is None:  # it may have died of its worker
            kill(process)
    assert workers > LAKE_KILLS // 4
    assert start(site, "lake", str(path), rows).wait(400) == 0
    wanted, rejected = [n for n in range(rows) if n % bad], list(range(0, rows, bad))
    lake = Lake(spark, str(path))
    assert committed(lake) == wanted
    assert sorted(row.offset for row in lake.rejects().select("offset").collect()) == rejected
    assert (
        sorted(int(row.text) for row in lake.read().selectExpr("cast(value as string) text").collect())
        == wanted
    )
    assert lake.snapshot().ends == {site.topic(): rows}
    # At rest, and after a compaction that finds the leavings of the dead ones, so it is for everybody.
    for file in (path / STAGING).rglob("*"):
        os.utime(file, (0, 0))
    compact(lake)
    assert stages(path) == []
    assert (found(path), found(path, "rejects")) == (wanted, rejected)


def commits(path: Path) -> int:
    """The number of the last commit."""
    folder = path / COMMITS
    numbers = [int(name[:12]) for name in os.listdir(folder) if name[:1] == "0"] if folder.exists() else []
    return max(numbers, default=-1)


def until(process: subprocess.Popen[bytes], number: int, path: Path) -> None:
    while commits(path) < number:
        assert lives_for(process, 0.02), "it ended before it was killed: more rows, or fewer kills"
