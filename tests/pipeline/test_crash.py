"""kill -9 in the middle of a stream: driver, JVM and workers at once. What counts is what is in the topic."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.site import Site

ROWS = 3000
KILLS = 4
PROGRAM = Path(__file__).with_name("stream_process.py")


def start(site: Site) -> subprocess.Popen[bytes]:
    topics = [site.topic(), site.topic("copy")]
    arguments = [sys.executable, str(PROGRAM), site.url, site.token, *topics, site.checkpoint]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(arguments, start_new_session=True, stdout=quiet, stderr=quiet)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stream_is_exactly_once_through_kills(site: Site) -> None:
    site.publish(ROWS)
    site.bus.call("topic.create", name=site.topic("copy"))
    dice = random.Random(15)
    for _ in range(KILLS):
        at = len(site.rows("copy"))
        process = start(site)
        # Somewhere between two commits: a few batches on, and then some more of its time.
        wanted = min(ROWS - 100, at + dice.randint(1, 500))
        site.bus.call("topic.wait", offsets={site.topic("copy"): wanted}, within=60.0)
        try:
            process.wait(dice.uniform(0.0, 0.3))
        except subprocess.TimeoutExpired:
            pass
        assert process.poll() is None, "it ended before it was killed: more rows, or fewer kills"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert at < len(site.rows("copy")) < ROWS
    assert start(site).wait(240) == 0
    assert sorted(map(int, site.rows("copy"))) == list(range(ROWS))
