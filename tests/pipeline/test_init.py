"""``landbridge pipeline init``: what it writes, and that it runs as it is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from landbridge.errors import BadRequest
from landbridge.pipeline.jobs import project
from tests.cli.conftest import Place

TEMPLATES = Path(project.__file__).parent / "templates"
#: Seconds for a run of Spark on a machine that has other things to do.
SPARK = 300


def lines_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def run(place: Place, folder: Path, *command: str) -> str:
    """What a command said that had to succeed."""
    environment = {
        **place.environment,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SPARK, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_writes_every_template(tmp_path: Path) -> None:
    place = Place(tmp_path)
    result = place.call("pipeline", "init", str(tmp_path / "shop"), "--json").json
    assert result["folder"] == str(tmp_path / "shop")
    assert sorted(result["files"]) == sorted(project.FILES)
    there = {str(path.relative_to(TEMPLATES)) for path in TEMPLATES.rglob("*") if path.suffix != ".pyc"}
    assert {name for name in there if (TEMPLATES / name).is_file()} == set(project.FILES.values())
    assert (tmp_path / "shop" / "README.md").read_text().startswith("# shop\n")
    assert result["next"][0] == f"cd {tmp_path / 'shop'}"


def test_names_and_folders_are_written_as_yaml(tmp_path: Path) -> None:
    import yaml

    folder = tmp_path / 'my "shop": #1'
    project.write("a: b", folder)
    spec = yaml.safe_load((folder / "declarative" / "spark-pipeline.yml").read_text())
    assert spec["name"] == "a: b"
    assert spec["storage"] == f"file://{folder}/declarative/storage"


def test_files_that_are_there_stay(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("mine = 1\n")
    (tmp_path / "notes.txt").write_text("mine\n")
    with pytest.raises(BadRequest, match=r"has steps\.py already") as caught:
        project.write("shop", tmp_path)
    assert "--force" in caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "steps.py"]
    assert (tmp_path / "steps.py").read_text() == "mine = 1\n"
    project.write("shop", tmp_path, force=True)
    assert "def invoices" in (tmp_path / "steps.py").read_text()
    assert (tmp_path / "notes.txt").read_text() == "mine\n"


def test_people_are_told_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = Place(tmp_path).call("pipeline", "init").out
    assert "\n  landbridge pipeline run steps:invoices --once\n" in said
    assert "  cd " not in said


@pytest.mark.slow
@pytest.mark.timeout(4 * SPARK)
def test_the_project_runs_as_it_is_written(tmp_path: Path) -> None:
    place, shop = Place(tmp_path), tmp_path / "shop"
    with place.up("--http-port", "0"):
        steps = place.call("pipeline", "init", str(shop), "--json").json["next"]
        assert "1 passed" in run(place, shop, sys.executable, "-m", "pytest", "-q")
        for order in ('{"id": 2, "customer": "bert", "amount": 99}', "no JSON"):
            assert place.call("publish", "orders", order).status == 0
        # What people are told to do next, word by word; the tests have run.
        for line in steps[2:-1]:
            run(place, shop, "sh", "-c", line)
        [invoice] = lines_of(run(place, shop, "sh", "-c", steps[-1]))
        assert invoice == {"id": 1, "customer": "anna", "total": 297.5}
        rejected = place.call("subscribe", "invoices.rejects", "--from", "earliest", "--count", "1")
        assert rejected.out == "no JSON\n"
