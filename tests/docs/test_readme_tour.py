"""The tour of the README: a reader types its commands, in this order, at a terminal of one's own.

Its Python is run by test_examples.py, its SQL by the tests of the pipeline."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.waiting import LIMIT

README = Path(__file__).parents[2] / "README.md"
USUAL = "http://127.0.0.1:7480"


@pytest.mark.timeout(180)
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_a_reader_takes_the_tour(tmp_path: Path) -> None:
    tour = README.read_text().partition("## A 60-second tour")[2].partition("## What you get")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", tour, re.S | re.M)
    (commands,) = [text for language, text in blocks if language == "console"]
    (by_http,) = [text for language, text in blocks if USUAL in text]
    (service,) = [text for language, text in blocks if text.startswith("# billing.py")]
    assert ("sh", "landbridge run billing:service\n") in blocks
    (tmp_path / "billing.py").write_text(service)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LANDBRIDGE_")},
        "LANDBRIDGE_HOME": str(tmp_path / "home"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    http = f"http://127.0.0.1:{free_port()}"

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["landbridge", *arguments], env=environment, cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def run(shell: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", shell], check=False, capture_output=True, text=True,
            timeout=LIMIT, env=environment, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, f"{shell}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    with start("up", "--data", "data", "--port", "0", f"--http-port={http.rpartition(':')[2]}") as up:
        try:
            assert up.stdout is not None
            assert any(line.startswith("try ") for line in up.stdout), "it didn't start"
            said = [run(line.removeprefix("$ ")) for line in commands.splitlines()]
            assert said[2] == "1\n2\n3\n"
            assert '"offset":1' in run(by_http.replace(USUAL, http))
            with start("run", "billing:service") as running:
                try:
                    bills = run("landbridge subscribe bills --group reader --count 2")
                finally:
                    running.terminate()
                    running.wait(LIMIT)
            assert sorted(bills.split()) == ['{"order":1}', '{"order":2}']
        finally:
            up.terminate()
            up.wait(LIMIT)
