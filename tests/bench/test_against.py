"""`./dev bench --against REV` on small repositories whose scenarios return fixed figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.against import Comparison, checked_out, compare, quartiles, requirements
from tests.waiting import LIMIT

_PROJECT = '[project]\nname = "landbridge"\nrequires-python = ">=3.11"\ndependencies = ["msgspec"]\n'
_BENCH = """
import time
class Row:
    def __init__(self, **facts): self.facts = facts
    def as_dict(self): return self.facts
def row(name, value, better="more", **more):
    return Row(name=name, value=value, unit="x", better=better, **more)
def hang(scale, times):
    open({hanging!r}, "w").close()
    time.sleep(3600)
def broken(scale, times):
    raise ValueError("this scenario is broken")
SCENARIOS = {{{scenarios}}}
"""


def git(folder: Path, *args: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *who, *args], check=True, capture_output=True, text=True)
    return done.stdout


def write(folder: Path, scenarios: str) -> None:
    for path, text in (
        ("pyproject.toml", _PROJECT),
        ("constraints.txt", ""),
        ("src/landbridge/__init__.py", ""),
        ("bench/__init__.py", ""),
        (
            "bench/__main__.py",
            _BENCH.format(scenarios=scenarios, hanging=str(folder.parent / "hanging")),
        ),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit; its scenarios are the old side."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    write(
        folder,
        '"fast": lambda scale, times: [row("rate", 100.0), row("wait", 2.0, "less"), row("bare", 10.0),'
        ' row("gone", 1.0)],'
        '"hang": hang, "broken": broken, "dropped": broken',
    )
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "old")
    return folder


def compared(repository: Path, capsys: Any, *scenarios: str, least: float = 0.95) -> tuple[int, Any]:
    status = compare("HEAD", list(scenarios), pairs=2, least=least, as_json=True, root=repository)
    return status, json.loads(capsys.readouterr().out)


def test_ratio_says_how_many_times_as_good_the_new_side_is(repository, capsys):
    write(
        repository,
        '"fast": lambda scale, times: [row("rate", 90.0), row("wait", 1.0, "less"),'
        ' row("bare", 1.0, bare=True), row("added", 1.0)]',
    )
    status, answer = compared(repository, capsys, "fast", "dropped")
    rows = {row["name"]: row for row in answer["rows"]}
    assert {name: (row["old"], row["new"], row["ratio"]) for name, row in rows.items()} == {
        "rate": (100.0, 90.0, pytest.approx(0.9)),
        "wait": (2.0, 1.0, pytest.approx(2.0)),
        "bare": (10.0, 1.0, pytest.approx(0.1)),
    }
    # The machine alone is shown, but not judged.
    assert [name for name, row in rows.items() if row["is_below"]] == ["rate"]
    assert status == 1
    assert sorted((one["scenario"], one["row"], one["only"]) for one in answer["missing"] if one["row"]) == [
        ("fast", "added", "new"),
        ("fast", "gone", "old"),
    ]
    assert {"scenario": "dropped", "row": None, "only": "old"} in answer["missing"]


def test_rows_that_are_good_enough_give_status_0(repository, capsys):
    write(repository, '"fast": lambda scale, times: [row("rate", 90.0)]')
    status, _ = compared(repository, capsys, "fast", least=0.9)
    assert status == 0


def test_failed_run_is_told_with_its_last_lines_and_status_2(repository, capsys):
    status = compare("HEAD", ["fast", "broken"], pairs=1, root=repository)
    assert status == 2
    told = capsys.readouterr().err
    assert "broken failed on the old side" in told
    assert "this scenario is broken" in told


def test_unknown_revision_or_scenario_is_told(repository, capsys):
    assert compare("nowhere", ["fast"], root=repository) == 2
    assert compare("HEAD", ["unheard-of"], root=repository) == 2
    assert "no scenario unheard-of" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_comparison_leaves_nothing_behind(repository, tmp_path, number):
    # Whoever runs the tests in the background may have had SIGINT ignored, which children inherit.
    script = f"from pathlib import Path; from bench.against import compare; import signal, sys; \
signal.signal(signal.SIGINT, signal.default_int_handler); \
sys.exit(compare('HEAD', ['hang'], root=Path({str(repository)!r})))"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {
        **os.environ,
        "TMPDIR": str(scratch),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + LIMIT
        while not (tmp_path / "hanging").exists() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(LIMIT) == 128 + number
    finally:
        process.kill()
        process.wait()
    assert list(scratch.iterdir()) == []
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_environment_is_shared_by_revisions_with_the_same_requirements(repository):
    with checked_out(repository, "HEAD") as (_, tree):
        assert requirements(tree) == requirements(repository)
        (repository / "pyproject.toml").write_text(_PROJECT + 'description = "another"\n')
        assert requirements(tree) == requirements(repository)
        (repository / "constraints.txt").write_text("msgspec==0.19\n")
        assert requirements(tree) != requirements(repository)


def test_pair_without_positive_values_has_no_ratio():
    row = Comparison("topics", "memory", "KiB", "less", old=[0.0, 2.0], new=[1.0, 1.0])
    assert row.ratios == [2.0]
    assert not Comparison("topics", "memory", "KiB", "less", old=[0.0], new=[1.0]).is_below(0.95)


def test_quartiles():
    assert quartiles([1.0]) == (1.0, 1.0, 1.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)
