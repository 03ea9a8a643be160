"""The guide 'from one machine to many': its commands, one after the other, with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.servers import name_of, shared_postgres, shared_valkey
from tests.waiting import LIMIT

GUIDE = Path(__file__).parents[2] / "docs" / "growing.md"
SERVERS: dict[str, Callable[[], Any]] = {"valkey": shared_valkey, "postgres": shared_postgres}
#: Where the guide has nodes listen, and its server.
PORTS = ("7420", "7480", "7430", "7490", "7440", "7500")
SERVER, URL = "valkey-server", "redis://127.0.0.1:6379"


class Shells:
    """What the reader of the guide has open: a shell per node, and one more."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        self.ports = {port: str(free_port()) for port in PORTS}
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LANDBRIDGE_")},
            "LANDBRIDGE_HOME": str(folder / "home"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def run(self, line: str) -> str:
        done = subprocess.run(
            line.replace(URL, self.store), shell=True, check=False, capture_output=True, text=True,
            timeout=3 * LIMIT, env=self.environment, cwd=self.folder,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def up(self, line: str) -> None:
        """Start a node, until it serves."""
        words = line.split()
        name = words[words.index("--data") + 1]
        words += [] if "--port" in words else ["--port", "7420", "--http-port", "7480"]
        words = [self.ports.get(word, word) for word in words]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.nodes[name] = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=log, env=self.environment, cwd=self.folder
            )
        out = self.nodes[name].stdout
        assert out is not None
        assert out.readline().startswith(b"bus "), self.logs()

    def end(self, name: str, number: signal.Signals) -> None:
        process = self.nodes.pop(name)
        process.send_signal(number)
        process.communicate(timeout=LIMIT)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-1500:] for path in self.folder.glob("*.log"))

    def states(self) -> dict[str, tuple[str, int]]:
        """Each node with its state and its number of units."""
        rows = [line.split() for line in self.run("landbridge node list").splitlines()[1:]]
        return {row[0]: (row[1], int(row[2])) for row in rows}

    def until(self, holds: Callable[[dict[str, tuple[str, int]]], bool]) -> None:
        end = time.monotonic() + LIMIT
        while not holds(self.states()):
            assert time.monotonic() < end, f"{self.states()}\n{self.logs()}"


@pytest.fixture(params=SERVERS)
def shells(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shells]:
    shells = Shells(tmp_path, SERVERS[request.param]().url(name_of(tmp_path), units=None))
    try:
        yield shells
    finally:
        for name in list(shells.nodes):
            shells.end(name, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_reader_grows_from_one_process_to_three_nodes_and_back(shells: Shells) -> None:
    text = GUIDE.read_text().split("\n## On several machines")[0]
    lines = [
        line for block in re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M) for line in block.splitlines()
    ]
    assert len(lines) > 15
    assert lines[-1] == "landbridge up --data back"
    shown: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("landbridge up"):
            shells.up(line)
        elif line.startswith("kill -9"):
            shells.end("two", signal.SIGKILL)
        elif not line.startswith(SERVER):
            if line.startswith("landbridge store copy"):
                for name in list(shells.nodes):
                    shells.end(name, signal.SIGINT)
            if line.startswith("landbridge node drain"):
                shells.until(lambda found: sorted(units for _, units in found.values()) == [21, 21, 22])
            shown.setdefault(line, []).append(shells.run(line))
            if line.startswith("landbridge node drain"):
                shells.until(lambda found: found["two"] == ("draining", 0))
    readers = shown["landbridge subscribe numbers --group readers --count 3"]
    assert [each.split() for each in readers] == [["1", "2", "3"], ["4", "5", "6"]]
    (orders,) = shown["landbridge subscribe orders --group billing --count 2"]
    assert orders.splitlines() == ['{"id": 1}', '{"id": 2}']
    assert len(shown["landbridge node list"][0].splitlines()) == 4

    # The last of the guide's commands has started it in its folder again.
    assert shells.run("landbridge subscribe numbers --group readers --count 1").split() == ["7"]
    assert (
        shells.run("landbridge subscribe orders --from earliest --count 2").splitlines()
        == orders.splitlines()
    )
