"""The guide of Socket.IO: a reader saves its files, and types its commands into one shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import npm
from tests.ports import free_port
from tests.waiting import LIMIT

GUIDE = Path(__file__).parents[2] / "docs" / "socketio.md"
CLIENT = "4.8.4"
SUFFIXES = {"js": "//", "python": "#"}


@pytest.mark.timeout(400)
def test_a_reader_follows_the_guide(tmp_path: Path) -> None:
    installed = npm.package("socket.io-client", CLIENT)
    (tmp_path / "node_modules").symlink_to(installed / "node_modules")
    environment = {
        **{name: value for name, value in npm.environment().items() if not name.startswith("LANDBRIDGE_")},
        "HOME": str(tmp_path),
        "LANDBRIDGE_HOME": str(tmp_path / "home"),
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    http = free_port()
    commands = []
    for language, text in re.findall(r"^```(js|sh|python)\n(.*?)^```", GUIDE.read_text(), re.S | re.M):
        if language in SUFFIXES:
            name, _, rest = text.removeprefix(SUFFIXES[language]).strip().partition("\n")
            (tmp_path / name).write_text(rest)
        else:
            commands.append(text.replace("http://127.0.0.1:7480", f"http://127.0.0.1:{http}"))
    options = [
        "--data",
        "data",
        "--no-registry",
        "--socketio",
        f"--port={free_port()}",
        f"--http-port={http}",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "landbridge", "up", *options],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as up:
        try:
            assert up.stdout is not None
            assert any(line.startswith("try ") for line in up.stdout), "it didn't start"
            done = subprocess.run(
                ["bash", "-euxo", "pipefail", "-c", "\n".join(commands)],
                cwd=tmp_path,
                env=environment,
                check=False,
                capture_output=True,
                text=True,
                timeout=4 * LIMIT,
            )
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
            for said in (
                "order 3 of customer-7 at 2",
                "bill for order 3 attempt 1",
                "ship the third order: 3",
            ):
                assert said in done.stdout, f"{said!r} is missing:\n{done.stdout}\n{done.stderr}"
        finally:
            up.terminate()
            up.wait(LIMIT)
