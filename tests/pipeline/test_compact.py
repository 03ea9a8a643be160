"""Small files into large ones, with crashes at every step and with others at work meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from landbridge.core.lake import LakeRecord
from landbridge.errors import BadOption, LakeDamaged
from landbridge.pipeline.lake.compact import compact
from landbridge.pipeline.lake.lake import STAGING, Lake
from tests.pipeline.lakes import Died, Dying, committed, found, messages, stages, take


@pytest.fixture(scope="module")
def archived(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with three small files."""
    folder = tmp_path_factory.mktemp("archived") / "lake"
    lake = Lake(spark, str(folder))
    for batch in range(3):
        take(lake, messages(spark, range(10 * batch, 10 * batch + 10)), batch)
    return folder


@pytest.fixture
def path(archived: Path, tmp_path: Path) -> str:
    """A copy of it: records name files by where they are in the lake."""
    return str(shutil.copytree(archived, tmp_path / "lake"))


EVERY = list(range(30))


def test_small_files_become_one_in_the_order_of_offsets(spark: Any, path: str) -> None:
    lake = Lake(spark, path)
    (planned,) = compact(lake, dry_run=True)
    assert (planned.topic, planned.date, planned.rows, planned.files, planned.files_after) == (
        "orders", "2026-01-31", 30, 3, 1,
    )  # fmt: skip
    assert len(lake.snapshot().files) == 3
    (done,) = compact(lake)
    assert (done.files, done.files_after, done.rows) == (3, 1, 30)
    (name,) = lake.snapshot().files
    rows = spark.read.parquet(name).selectExpr("offset", "json:n::int n", "id").collect()
    assert [(row.offset, row.n, row.id) for row in rows] == [(n, n, f"m{n}") for n in EVERY]
    assert committed(lake) == found(path) == EVERY
    assert lake.snapshot().ends == {"orders": 30}
    assert lake.state().leaving == set()
    assert stages(path) == []
    assert compact(lake) == []
    take(lake, messages(spark, range(30, 40)), 3)
    assert committed(Lake(spark, path)) == list(range(40))


def test_large_ones_are_cut_at_the_target_size(spark: Any, path: str) -> None:
    lake = Lake(spark, path)
    size = max(file.bytes for file in lake.state().files.values())
    (done,) = compact(lake, target=2 * size)
    assert done.files_after == 2
    assert committed(lake) == found(path) == EVERY
    first, second = sorted((file.first, file.end) for file in lake.state().files.values())
    assert first[1] == second[0]


STEPS = ["before intent", "before files", "amid files", "before record", "after record", "amid removal"]


@pytest.mark.parametrize("step", STEPS)
def test_a_compaction_that_dies_loses_and_doubles_nothing(spark: Any, path: str, step: str) -> None:
    with pytest.raises(Died):
        compact(Dying(spark, path, step))
    lake = Lake(spark, path)
    assert committed(lake) == EVERY
    for file in Path(path, STAGING).rglob("*"):
        os.utime(file, (0, 0))  # the next one comes much later
    compact(lake)
    assert committed(lake) == found(path) == EVERY
    assert len(lake.snapshot().files) == 1
    assert stages(path) == []
    assert lake.state().leaving == set()


def test_only_what_has_not_changed_for_long_is_taken_for_dead(spark: Any, path: str) -> None:
    for name in ("young", "old"):
        Path(path, STAGING, name, "messages").mkdir(parents=True)  # died before it had a file
    for file in [*Path(path, STAGING, "old").rglob("*"), Path(path, STAGING, "old")]:
        os.utime(file, (0, 0))
    lake = Lake(spark, path)
    compact(lake, topic="another")
    assert stages(path) == ["young"]
    assert lake.state().fenced == {"old"}
    assert committed(lake) == found(path) == EVERY


def test_of_two_compactions_one_does_it(spark: Any, path: str) -> None:
    class Overtaken(Lake):
        def commit(self, record: LakeRecord) -> Any:
            if record.removed:
                assert len(compact(Lake(spark, path))) == 1
            return super().commit(record)

    assert compact(Overtaken(spark, path)) == []
    assert committed(Lake(spark, path)) == found(path) == EVERY


def test_an_archive_goes_on_beside_a_compaction(spark: Any, path: str) -> None:
    class Meanwhile(Lake):
        def commit(self, record: LakeRecord) -> Any:
            if record.removed:
                take(Lake(spark, path), messages(spark, range(30, 35)), 3)
            return super().commit(record)

    assert len(compact(Meanwhile(spark, path))) == 1
    lake = Lake(spark, path)
    assert committed(lake) == found(path) == list(range(35))
    assert len(lake.snapshot().files) == 2


def test_rows_that_went_missing_are_told_and_nothing_is_changed(spark: Any, path: str) -> None:
    lake = Lake(spark, path)
    lost, other = sorted(lake.state().files)[:2]
    Path(path, lost).unlink()
    spark.read.parquet(f"{path}/{other}").limit(3).coalesce(1).write.parquet(f"{path}/_few")
    (few,) = Path(path, "_few").glob("*.parquet")
    few.rename(Path(path, lost))
    with pytest.raises(LakeDamaged, match="should have 30 rows in 3 files, and 23 were read"):
        compact(lake)
    assert len(lake.snapshot().files) == 3
    assert stages(path) == []


def test_a_folder_that_is_no_lake_is_told(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="no lake"):
        compact(Lake(spark, str(tmp_path / "none")))
