"""What users install: the built wheel in clean environments, the client alone and with each extra."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from landbridge.testing import run_terminal

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
#: Makes an environment with the wheel and an extra ("" for none), and returns its folder of commands.
Install: TypeAlias = Callable[[str], Path]

#: Run in an environment with the client alone.
CLIENT = """
import asyncio, importlib, pkgutil, sys
import landbridge, landbridge.client, landbridge.sync

for module in pkgutil.iter_modules(landbridge.client.__path__, "landbridge.client."):
    # Those of the registry come with [terminal], and telemetry with [otel].
    if not module.name.startswith(("landbridge.client.registry", "landbridge.client.telemetry")):
        importlib.import_module(module.name)

async def main(url, token):
    async with await landbridge.connect(url, token=token) as bus:
        await bus.publish("orders", {"id": 1})
        async for message in bus.subscribe("orders", group="billing"):
            await message.ack(wait=True)
            return message.json()

url, token = sys.argv[1:]
assert asyncio.run(main(url, token)) == {"id": 1}
with landbridge.sync.connect(url, token=token) as bus:
    bus.publish("orders", {"id": 2})
print("done")
"""


def run(
    *line: str | Path, status: int = 0, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LANDBRIDGE"))
    }
    done = subprocess.run(
        [str(part) for part in line],
        env=clean | (environment or {}),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == status, (line, done.stdout, done.stderr)
    return done


def pip(python: str | Path, *line: str | Path) -> None:
    run(python, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", *line)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture
def install(wheel: Path, tmp_path: Path) -> Install:
    def into_clean_environment(extra: str) -> Path:
        # Half of the work would be to install another pip, and to compile what nobody imports.
        run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
        commands = tmp_path / "env" / "bin"
        wanted = f"{wheel}[{extra}]" if extra else wheel
        into: list[str | Path] = ["--python", commands / "python", "install", "--no-compile"]
        pip(sys.executable, *into, "--constraint", ROOT / "constraints.txt", wanted)
        return commands

    return into_clean_environment


def test_the_wheel_has_the_pages_of_the_console(wheel: Path) -> None:
    folder = ROOT / "src"
    wanted = {
        str(path.relative_to(folder))
        for part in ("templates", "static")
        for path in (folder / "landbridge" / "console" / part).iterdir()
    }
    assert len(wanted) > 20
    with zipfile.ZipFile(wheel) as archive:
        assert wanted <= set(archive.namelist())


async def test_the_client_alone(install: Install, tmp_path: Path) -> None:
    commands = install("")
    async with run_terminal(port=0) as terminal:
        token = terminal.issue_token("test", ["admin"], 600)
        done = await asyncio.to_thread(
            run, commands / "python", "-c", CLIENT, terminal.url, token, environment={"HOME": str(tmp_path)}
        )
    assert done.stdout == "done\n"
    for line in ([commands / "landbridge"], [commands / "python", "-m", "landbridge", "up"]):
        refused = run(*line, status=2)
        assert "pip install 'landbridge[terminal]'" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_with_a_terminal(install: Install, tmp_path: Path) -> None:
    commands = install("terminal")
    home = {"HOME": str(tmp_path), "LANDBRIDGE_HOME": str(tmp_path / "home")}
    terminal = subprocess.Popen(
        [commands / "landbridge", "up", "--port", "0", "--http-port", "0", "--json"],
        env={"PATH": os.environ["PATH"], **home}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert terminal.stdout is not None
        assert json.loads(terminal.stdout.readline())["context"] == "local"
        run(commands / "landbridge", "publish", "orders", "hello", environment=home)
        got = run(
            commands / "landbridge", "subscribe", "orders", "--group", "g", "--count", "1", environment=home
        )
        assert got.stdout == "hello\n"
        # What needs another extra says which one.
        for line, status in ((["sql", "select 1"], 36), (["console-shell"], 10)):
            refused = run(commands / "landbridge", *line, status=status, environment=home)
            assert "pip install" in refused.stderr
            assert "Traceback" not in refused.stderr
    finally:
        terminal.terminate()
        terminal.communicate(timeout=60)
    assert terminal.returncode == 0
    run(commands / "python", commands.parent / _packages(commands) / "landbridge/examples/dead_letters.py")


def _packages(commands: Path) -> str:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return run(commands / "python", "-c", code).stdout.strip()


#: By extra: code that uses it.
USES: dict[str, str] = {
    "terminal": "import landbridge.testing",
    "shell": "import landbridge, IPython",
    "pipeline": """
import landbridge.pipeline
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
assert spark.range(3).count() == 3
""",
    "mail": "import landbridge.testing, landbridge.node.mail",
    "socketio": "import landbridge.testing, socketio, landbridge.gateways.socketio",
    "otel": "import landbridge.client.telemetry",
    "middleware": "import jsonschema_rs, landbridge.core.middleware.schema",
    "postgres": "import landbridge.testing, landbridge.stores.postgres.store",
    "redis": "import landbridge.testing, landbridge.stores.redis.store",
    "delta": "import landbridge.pipeline, deltalake",
    "all": "import landbridge.testing, landbridge.pipeline, deltalake, IPython",
}


def test_every_extra_is_tried() -> None:
    assert set(USES) | {"dev"} == set(EXTRAS)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("extra", USES)
def test_each_extra(install: Install, extra: str) -> None:
    run(install(extra) / "python", "-c", USES[extra])
