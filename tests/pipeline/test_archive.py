"""Topics into a lake, which is read in two ways: by its commit records, and as anybody does who finds the
files."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from landbridge.core.lake import STATE_EVERY, LakeRecord, Listing
from landbridge.core.log.planning import LogPosition
from landbridge.errors import AlreadyArchived, BadOption, OtherLog, StoreBusy, UnknownTopic
from landbridge.pipeline.jobs.archive import Archive
from landbridge.pipeline.jobs.running import Outcome, Place, Trigger, run
from landbridge.pipeline.lake.files import Files, HadoopFiles, LocalFiles
from landbridge.pipeline.lake.lake import COMMITS, STAGING, Lake, micros
from landbridge.pipeline.sql.views import Views
from tests.pipeline.lakes import Died, Dying, committed, found, messages, stages, take
from tests.pipeline.site import Site, site_at


def archive(spark: Any, site: Site, checkpoint: str = "checkpoint", **options: Any) -> Outcome:
    job = Archive(lake_of(site), **{"topics": (site.topic(),), **options})
    return run(job, Place(spark, str(site.folder / checkpoint), Trigger(once=True), site.access))


def lake_of(site: Site) -> str:
    return str(site.folder / "lake")


def test_messages_are_in_the_lake_with_all_that_they_have(spark: Any, site: Site) -> None:
    site.bus.publish(site.topic(), b'{"amount": 5}', key="eu", headers={"h": "x"}, priority=3)
    site.bus.publish(site.topic(), b"\xff\x00")
    archive(spark, site)
    lake = Lake(spark, lake_of(site))
    first, second = lake.read().selectExpr("*", "json:amount::int amount").orderBy("offset").collect()
    assert (first.topic, first.offset, first.key, bytes(first.value)) == (
        site.topic(),
        0,
        b"eu",
        b'{"amount": 5}',
    )
    assert (first.priority, first.origin, first.amount) == (3, None, 5)
    assert [(each.key, bytes(each.value)) for each in first.headers] == [("h", b"x")]
    assert first.date == first.timestamp.date()
    assert first.id
    assert (bytes(second.value), second.key, second.json) == (b"\xff\x00", None, None)
    snapshot = lake.snapshot()
    assert (snapshot.ends, snapshot.rows) == ({site.topic(): 2}, 2)
    assert found(lake_of(site)) == [0, 1]
    assert stages(lake_of(site)) == []


def test_a_job_goes_on_and_settles_its_group(spark: Any, site: Site) -> None:
    site.publish(30)
    assert archive(spark, site, rows=10).batches == 3
    site.publish(5, first=30)
    archive(spark, site)
    assert committed(Lake(spark, lake_of(site))) == found(lake_of(site)) == list(range(35))
    groups = site.bus.call("topic.show", name=site.topic())["groups"]
    assert [group["name"] for group in groups] == ["archive"]


def test_topics_of_a_pattern_go_by_their_folders(spark: Any, site: Site) -> None:
    site.publish(3, "a")
    site.publish(4, "b")
    archive(spark, site, topics=(), pattern=f"{site.name}.*")
    assert Lake(spark, lake_of(site)).snapshot().ends == {site.topic("a"): 3, site.topic("b"): 4}
    assert (Path(lake_of(site)) / "messages" / f"topic={site.topic('a')}").is_dir()


VALUES = """case id when 0 then cast('{"n": 1}' as binary) when 1 then X'' when 2 then X'FF'
  when 3 then cast('{' as binary) else cast('null' as binary) end"""


def test_what_is_not_json_is_rejected_where_json_is_asked_for(spark: Any, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path))
    take(lake, messages(spark, range(5), value=VALUES), payload="json")
    assert committed(lake) == found(tmp_path) == [0, 4]
    assert found(tmp_path, "rejects") == [1, 2, 3]
    assert {row.offset: (bytes(row.value), row.reason) for row in lake.rejects().collect()} == {
        1: (b"", "the payload is empty"),
        2: (b"\xff", "the payload is not UTF-8"),
        3: (b"{", "the payload is not JSON"),
    }
    assert lake.snapshot().ends == {"orders": 5}


def test_nothing_is_decoded_where_payloads_are_binary(spark: Any, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path))
    take(lake, messages(spark, range(5), value=VALUES), payload="binary")
    assert committed(lake) == [0, 1, 2, 3, 4]
    assert lake.read().where("json is not null").count() == lake.rejects().count() == 0


@pytest.mark.slow
def test_a_new_checkpoint_goes_on_where_the_lake_ends(spark: Any, site: Site) -> None:
    site.publish(10)
    archive(spark, site)
    site.publish(5, first=10)
    archive(spark, site, "another")
    assert committed(Lake(spark, lake_of(site))) == found(lake_of(site)) == list(range(15))


def test_another_log_of_a_topic_is_not_put_into_its_lake(spark: Any, site: Site, tmp_path: Path) -> None:
    site.publish(10)
    archive(spark, site)
    lake = Lake(spark, lake_of(site))
    there = site.bus.topics.wait({site.topic(): 10})[site.topic()]
    assert lake.state().position(site.topic()) == LogPosition(10, there.log, there.before)
    with site_at(tmp_path / "second.db", site.folder, site.name) as second:
        second.publish(20, first=100)
        with pytest.raises(OtherLog, match="offset 10 is of the log"):
            archive(spark, second, "another")
    site.make_anew(20, first=100)
    with pytest.raises(OtherLog, match=r"offset 10 is of the log .* made anew"):
        archive(spark, site)
    # Whoever gives up what is lost gets the new log, and not into this lake.
    with pytest.raises(OtherLog, match=r"the lake's topic .* made anew") as caught:
        archive(spark, site, fail_on_data_loss=False)
    assert "another lake" in caught.value.hint
    assert committed(lake) == found(lake_of(site)) == list(range(10))
    assert stages(lake_of(site)) == []


def test_a_lake_of_0_1_is_read_and_not_continued(spark: Any, site: Site) -> None:
    site.publish(10)
    lake = Lake(spark, lake_of(site))
    take(lake, messages(spark, range(5), site.topic()))  # its record has no log
    with pytest.raises(OtherLog, match=r"archived by Landbridge 0\.1") as caught:
        archive(spark, site)
    assert "another lake" in caught.value.hint
    assert committed(lake) == list(range(5))
    tables = Views(spark, where=site.access, lake=lake_of(site))
    assert tables.sql(f"SELECT * FROM archive.{site.topic()}").count() == 5
    with pytest.raises(OtherLog, match=r"as Landbridge 0\.1 did"):
        tables.sql(f"SELECT * FROM topic.{site.topic()}")


def both(spark: Any) -> Any:
    return messages(spark, range(5), "a").union(messages(spark, range(5), "b")).coalesce(1)


STEPS = ["before intent", "before files", "amid files", "after files", "after record"]


@pytest.mark.parametrize("step", STEPS)
def test_a_commit_that_dies_loses_and_doubles_nothing(spark: Any, tmp_path: Path, step: str) -> None:
    path = str(tmp_path)
    with pytest.raises(Died):
        take(Dying(spark, path, step), both(spark))
    every = sorted([*range(5), *range(5)])
    assert len(stages(path)) == 1
    assert found(path) == {"amid files": list(range(5))}.get(step, every if "after" in step else [])
    lake = Lake(spark, path)
    assert committed(lake) == (every if step == "after record" else [])
    take(lake, both(spark))
    assert committed(lake) == found(path) == every
    assert stages(path) == []


@pytest.mark.parametrize("step", ["has staged its files", "has moved its files"])
def test_a_slow_writer_that_was_given_up_commits_nothing(spark: Any, tmp_path: Path, step: str) -> None:
    """Somebody takes it for dead in the middle, and clears what it has left."""
    path = str(tmp_path)
    slow = Lake(spark, path)
    disk: Any = slow.disk
    below, move = disk.below, disk.move

    def given_up() -> int:
        return Lake(spark, path).recover(lambda _: True)

    if step == "has staged its files":
        disk.below = lambda *args: below(*args) if given_up() else None
    else:
        disk.move = lambda *args: [move(*args), given_up()]
    with pytest.raises(StoreBusy, match="given up"):
        take(slow, messages(spark, range(5)))
    assert committed(Lake(spark, path)) == found(path) == []
    take(Lake(spark, path), messages(spark, range(5)))
    assert committed(Lake(spark, path)) == found(path) == list(range(5))


def test_a_twin_of_the_same_micro_batch_adds_nothing(spark: Any, tmp_path: Path) -> None:
    """Two drivers with one checkpoint: the second one commits while the first is about to."""
    path = str(tmp_path)

    class Overtaken(Lake):
        def commit(self, record: LakeRecord) -> Any:
            self.disk.delete([f"{STAGING}/{record.attempt}"])  # so that the twin can't give it up
            take(Lake(spark, path), messages(spark, range(5)))
            return super().commit(record)

    take(Overtaken(spark, path), messages(spark, range(5)))
    assert committed(Lake(spark, path)) == found(path) == list(range(5))


def test_offsets_that_another_query_has_archived_are_refused(spark: Any, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path))
    take(lake, messages(spark, range(5)))
    with pytest.raises(AlreadyArchived, match="up to offset 4, and this query would add from 4 on") as caught:
        take(lake, messages(spark, range(4, 8)), query="another")
    assert "another lake" in caught.value.hint
    assert committed(lake) == found(tmp_path) == list(range(5))
    assert stages(tmp_path) == []


def test_writers_take_turns(spark: Any, site: Site) -> None:
    """Eight at a time, with far more commits than are kept."""
    each = 40

    def write(query: str) -> None:
        lake = Lake(spark, lake_of(site))
        for batch in range(each):
            lake.commit(
                LakeRecord(attempt=f"{query}-{batch}", query=query, batch=batch, ends={query: batch + 1})
            )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, "abcdefgh"))
    state = Lake(spark, lake_of(site)).state()
    assert state.number == 8 * each - 1
    assert state.batches == dict.fromkeys("abcdefgh", each - 1)
    kept = Listing.of(Lake(spark, lake_of(site)).disk.names(COMMITS))
    assert len(kept.states) == 2
    assert len(kept.records) < 3 * STATE_EVERY


def test_a_writer_that_slept_through_the_commits_of_others_comes_in_behind_them(
    spark: Any, site: Site
) -> None:
    def commit(lake: Lake, batch: int, query: str = "busy") -> None:
        lake.commit(LakeRecord(attempt=f"{query}-{batch}", query=query, batch=batch))

    sleepy, busy = Lake(spark, lake_of(site)), Lake(spark, lake_of(site))
    commit(busy, 0)
    disk: Any = sleepy.disk
    create = disk.create
    slept: list[str] = []

    def sleeping(path: str, data: bytes) -> bool:
        if not slept:
            slept.append(path)
            for batch in range(1, 4 * STATE_EVERY):
                commit(busy, batch)
        return bool(create(path, data))

    disk.create = sleeping
    commit(sleepy, 0, "sleepy")
    assert slept == [f"{COMMITS}/000000000001.json"]  # long gone when it is created
    state = Lake(spark, lake_of(site)).state()
    assert state.number == 4 * STATE_EVERY
    assert state.batches == {"busy": 4 * STATE_EVERY - 1, "sleepy": 0}


@pytest.mark.slow
def test_two_jobs_share_a_lake(spark: Any, site: Site) -> None:
    def work(which: str) -> int:
        topics = (site.topic(which),)
        return archive(spark, site, which, topics=topics, rows=20, group=which).batches

    for which in "ab":
        site.publish(100, which)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, "ab")) == [5, 5]
    assert committed(Lake(spark, lake_of(site))) == found(lake_of(site)) == sorted([*range(100), *range(100)])


@pytest.mark.parametrize("kind", [LocalFiles, HadoopFiles])
def test_files_are_never_replaced(spark: Any, tmp_path: Path, kind: Any) -> None:
    root = str(tmp_path / "a lake")
    disk: Files = LocalFiles(root) if kind is LocalFiles else HadoopFiles(spark, root)
    assert disk.names("x") == []
    assert disk.below("x", "") == []
    assert disk.create("x/one.json", b"1")
    assert not disk.create("x/one.json", b"2")
    assert disk.read("x/one.json") == b"1"
    with pytest.raises(FileNotFoundError):
        disk.read("x/two.json")
    disk.move([("x/one.json", "y/z/uno.json")])
    (entry,) = disk.below("y", ".json")
    assert (entry.path, entry.bytes) == ("y/z/uno.json", 1)
    assert abs(entry.changed_at - micros()) < 600_000_000
    assert disk.changed_at("y/z") > 0
    with pytest.raises(FileNotFoundError):
        disk.changed_at("never")
    assert disk.exists("y/z/uno.json")
    assert "uno.json" in disk.names("y/z")
    disk.delete(["y", "never"])
    assert not disk.exists("y/z/uno.json")
    assert spark.read.text(disk.url).count() == 0


def test_a_topic_that_is_not_there_is_told(spark: Any, site: Site) -> None:
    with pytest.raises(UnknownTopic, match=site.topic("none")):
        archive(spark, site, topics=(site.topic("none"),))


@pytest.mark.parametrize(
    "options",
    [
        {"topics": ()},
        {"pattern": "a.*"},
        {"payload": "xml"},
        {"rows": 0},
        {"topics": ("a b",)},
        {"start_at": "now"},
        {"lake": ""},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        Archive(**{"lake": "lake", "topics": ("orders",), **options})


@pytest.mark.slow
def test_delta_tables_have_each_row_once(spark: Any, site: Site) -> None:
    deltalake = pytest.importorskip("deltalake")
    for value in (b'{"n": 1}', b"nope"):
        site.bus.publish(site.topic(), value)
    archive(spark, site, delta=True, payload="json", rows=1)
    commits = Path(site.checkpoint) / "commits"
    for commit in commits.glob("*1"):
        commit.unlink()  # as if Spark had not been told of the last micro-batch
    for crc in commits.glob(".*"):
        crc.unlink()
    archive(spark, site, delta=True, payload="json")
    messages = deltalake.DeltaTable(f"{lake_of(site)}/messages").to_pyarrow_table()
    assert messages["json"].to_pylist() == ['{"n": 1}']
    rejects = deltalake.DeltaTable(f"{lake_of(site)}/rejects").to_pyarrow_table()
    assert rejects["reason"].to_pylist() == ["the payload is not JSON"]


DOCUMENT = (Path(__file__).parents[2] / "docs" / "pipeline-archive.md").read_text()


@pytest.mark.slow
def test_the_examples_of_the_document_run(spark: Any, bus: Any, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    for block in re.findall(r"^```py\n(.*?)^```", DOCUMENT, re.S | re.M):
        exec(block.replace('"lake"', f'"{tmp_path}/lake"'), scope)
    assert scope["outcome"].rows == 100
    assert scope["lake"].snapshot().ends == {"archived": 100}
    assert found(tmp_path / "lake") == list(range(100))


@pytest.mark.parametrize(
    "option",
    [
        *("--payload", "--group", "--from", "--rows", "--skip-lost", "--checkpoint", "--delta"),
        *("--topic", "--before", "--target-size"),
    ],
)
def test_option_is_documented(option: str) -> None:
    assert re.search(rf"^\| `{option}` \|", DOCUMENT, re.M)
