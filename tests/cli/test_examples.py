"""The examples run: from a checkout, and from where the wheel puts them."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import landbridge.testing
from landbridge.cli.demo import examples

ROOT = Path(__file__).parents[2]


def run(*line: str, timeout: float = 100, **environment: str) -> str:
    command = [sys.executable, *line]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_checkout_has_them_at_its_root() -> None:
    assert examples() == ROOT / "examples"


def test_the_wheel_has_them_in_the_package(tmp_path: Path) -> None:
    """The files are laid out as pyproject.toml says, and the command looks for them there."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for included in wheel["only-include"]:
        prefix = next(prefix for prefix in wheel["sources"] if included.startswith(prefix))
        place = Path(wheel["sources"][prefix]) / Path(included).relative_to(prefix)
        shutil.copytree(ROOT / included, tmp_path / place, dirs_exist_ok=True)
    code = "from landbridge.cli.demo import examples; print(examples())"
    assert run("-P", "-c", code, PYTHONPATH=str(tmp_path)).strip() == str(
        tmp_path / "landbridge" / "examples"
    )
    assert "jobs.dead" in run(
        str(tmp_path / "landbridge" / "examples" / "dead_letters.py"), PYTHONPATH=str(tmp_path)
    )


def test_every_example_is_listed() -> None:
    listed = (ROOT / "examples" / "README.md").read_text()
    for file in (ROOT / "examples").glob("*.py"):
        assert file.name in listed
        compile(file.read_text(), file.name, "exec")


def test_dead_letters() -> None:
    lines = run(str(ROOT / "examples" / "dead_letters.py")).splitlines()
    assert lines[:2] == ["job 0: buried, division by zero", "job 1: again in a moment"]
    assert lines[-1].startswith("in jobs.dead: {'n': 0}")


async def test_billing() -> None:
    service = runpy.run_path(str(ROOT / "examples" / "billing.py"))["service"]
    async with landbridge.testing.bus() as bus, service.running(bus), asyncio.timeout(20):
        await bus.publish("orders", {"id": 1, "amount": 12.5})
        async for message in bus.subscribe("bills", group="test"):
            assert message.json() == {"order": 1, "amount": 12.5}
            break


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_one_terminal() -> None:
    facts = json.loads(
        run(str(ROOT / "examples" / "one_terminal.py"), "--messages", "2000", "--json", timeout=200)
    )
    assert facts["broken"] == []
    assert (facts["sent"], facts["lost"], facts["doubled"]) == (2000, 0, 0)
