from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core import lake
from landbridge.core.lake import DataFile, LakeRecord, LakeState, Listing, Overtaken, Part
from landbridge.core.log.planning import LogPosition
from landbridge.errors import AlreadyArchived, LakeDamaged, OtherLog, StoreTooNew

FOLDER = "messages/topic=orders/date=2026-01-31"


def file(
    name: str = "a", *, first: int = 0, rows: int = 10, size: int = 100, folder: str = FOLDER
) -> DataFile:
    return DataFile(f"{folder}/{name}.parquet", rows, size, first, first + rows)


def archived(batch: int, *files: DataFile, query: str = "q", attempt: str = "") -> LakeRecord:
    ends = lake.ends_of(files)
    return LakeRecord(attempt=attempt or f"{query}-{batch}", query=query, batch=batch, added=files, ends=ends)


def state_of(*records: LakeRecord) -> LakeState:
    state = LakeState()
    for record in records:
        state.check(record)
        state.apply(record)
    return state


def test_a_file_knows_its_part_by_its_path() -> None:
    assert file().part == Part("messages", "orders", "2026-01-31")
    assert file().part.folder == FOLDER


def test_a_state_is_what_its_records_add_up_to() -> None:
    state = state_of(archived(0, file("a")), archived(1, file("b", first=10)))
    assert (state.number, state.ends, state.batches) == (1, {"orders": 20}, {"q": 1})
    assert [path[-9:] for path in state.files] == ["a.parquet", "b.parquet"]
    assert state.has("q", 1)
    assert not state.has("q", 2)
    assert not state.has("other", 0)


def test_a_micro_batch_is_committed_once() -> None:
    state = state_of(archived(3, file("a")))
    with pytest.raises(Overtaken, match="micro-batch 3"):
        state.check(archived(3, file("b", first=10), attempt="again"))


def test_offsets_of_another_query_are_refused() -> None:
    state = state_of(archived(0, file("a")))
    with pytest.raises(AlreadyArchived, match="up to offset 9, and this query would add from 9 on"):
        state.check(archived(0, file("b", first=9), query="other"))
    state.check(archived(0, file("b", first=10), query="other"))
    state.check(archived(0, file("b", folder="messages/topic=bills/date=2026-01-31"), query="other"))


def test_a_lake_has_one_log_of_a_topic() -> None:
    def of(log: str, batch: int, stamp: int) -> LakeRecord:
        found = archived(batch, file(f"f{batch}", first=10 * batch))
        return msgspec.structs.replace(found, logs={"orders": log}, stamps={"orders": stamp})

    state = state_of(of("berlin/1/5", 0, 70))
    assert state.position("orders") == LogPosition(10, "berlin/1/5", 70)
    assert state.position("bills") is None
    with pytest.raises(OtherLog, match="made anew") as caught:
        state.check(of("berlin/2/6", 1, 80))
    assert "another lake" in caught.value.hint
    with pytest.raises(OtherLog, match="of the terminal berlin, and this is lyon"):
        state.check(of("lyon/1/5", 1, 80))
    state.apply(of("berlin/1/5", 1, 80))
    assert state.position("orders") == LogPosition(20, "berlin/1/5", 80)
    with pytest.raises(OtherLog, match=r"Landbridge 0\.1"):
        state_of(archived(0, file("a"))).check(of("berlin/1/5", 1, 80))


def test_a_barred_attempt_never_commits() -> None:
    state = state_of(LakeRecord(attempt="x", fenced=("q-0",)))
    with pytest.raises(Overtaken, match="q-0 was given up"):
        state.check(archived(0, file()))
    state.check(archived(0, file(), attempt="q-0-again"))


def test_compaction_replaces_files_that_are_still_there() -> None:
    a, b, both = file("a"), file("b", first=10), file("ab", rows=20)
    state = state_of(archived(0, a), archived(1, b))
    replace = LakeRecord(attempt="compact", added=(both,), removed=(a.path, b.path))
    assert not state.includes(replace)
    state.check(replace)
    state.apply(replace)
    assert state.includes(replace)
    assert list(state.files) == [both.path]
    assert state.leaving == {a.path, b.path}
    assert state.ends == {"orders": 20}
    with pytest.raises(Overtaken, match="removed by another process"):
        state.check(LakeRecord(attempt="another", removed=(a.path,)))
    state.apply(LakeRecord(attempt="forget", gone=(a.path, b.path)))
    assert state.leaving == set()


def test_records_and_states_survive_the_disk() -> None:
    records = [archived(0, file("a")), LakeRecord(attempt="c", removed=(file("a").path,), fenced=("z",))]
    assert [lake.decode_record(lake.encode(each), "r") for each in records] == records
    state = state_of(*records)
    assert lake.decode_state(lake.encode(state), "s") == state


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"attempt": 5}'])
def test_what_is_no_record_is_told(data: bytes) -> None:
    with pytest.raises(LakeDamaged, match=r"000\.json"):
        lake.decode_record(data, "000.json")
    with pytest.raises(LakeDamaged, match=r"000\.state"):
        lake.decode_state(data[:1], "000.state.json")


def test_records_of_a_newer_version_are_told() -> None:
    with pytest.raises(StoreTooNew, match="version 3"):
        LakeState().apply(LakeRecord(version=3, attempt="x"))
    with pytest.raises(StoreTooNew, match="version 3"):
        lake.decode_state(lake.encode(LakeState(version=3)), "s")


def test_a_record_that_removes_what_is_not_there_is_told() -> None:
    with pytest.raises(LakeDamaged, match="which is not there"):
        LakeState().apply(LakeRecord(attempt="x", removed=("a",)))


def test_a_gap_in_the_numbers_is_told() -> None:
    listing = Listing.of(["000000000000.json", "000000000002.json", ".000000000001.json.af", "x"])
    assert (listing.states, listing.records) == ([], [0, 2])
    assert listing.unread(1) == [2]
    assert listing.unread(2) == []
    with pytest.raises(LakeDamaged, match="missing after number 0"):
        listing.unread(0)


@given(commits=st.integers(1, 400), trims=st.sets(st.integers(0, 6)))
def test_trimming_keeps_what_a_reader_needs(commits: int, trims: set[int]) -> None:
    """States now and then, some of them followed by a trim: all but the last 64 to 128 records may go, and
    from what is left the last number is reached."""
    names: set[str] = set()
    for number in range(commits):
        names.add(lake.record_name(number))
        if number % lake.STATE_EVERY == lake.STATE_EVERY - 1:
            names.add(lake.state_name(number))
            if number // lake.STATE_EVERY in trims:
                names -= set(Listing.of(names).expendable())
    listing = Listing.of(names)
    known = listing.states[-1] if listing.states else -1
    assert [*range(known + 1), *listing.unread(known)] == list(range(commits))
    assert listing.records == list(range(listing.records[0], commits))


sizes = st.lists(st.integers(1, 400), max_size=12)


@given(sizes=sizes, target=st.integers(1, 500))
def test_small_files_are_put_together_by_topic_and_day(sizes: list[int], target: int) -> None:
    files = {}
    for index, size in enumerate(sizes):
        folder = f"messages/topic=t{index % 2}/date=2026-01-0{1 + index % 3}"
        each = file(str(index), first=100 - index, size=size, folder=folder)
        files[each.path] = each
    chosen = lake.to_compact(files, target)
    for part, several in chosen.items():
        assert len(several) > 1
        assert all(each.part == part and each.bytes < 0.75 * target for each in several)
        assert [each.first for each in several] == sorted(each.first for each in several)
        assert (lake.file_count(several, target) - 1) * target < sum(each.bytes for each in several)
    left = [
        each for each in files.values() if each not in [f for several in chosen.values() for f in several]
    ]
    small = [each.part for each in left if each.bytes < 0.75 * target]
    assert len(small) == len(set(small))


def test_compaction_can_be_of_one_topic_and_of_older_days() -> None:
    files = {}
    for topic in ("orders", "bills"):
        for day in ("2026-01-30", "2026-01-31"):
            for name in "ab":
                each = file(name, folder=f"messages/topic={topic}/date={day}")
                files[each.path] = each
    assert len(lake.to_compact(files, 1000)) == 4
    assert [part.topic for part in lake.to_compact(files, 1000, topic="bills")] == ["bills", "bills"]
    assert {part.date for part in lake.to_compact(files, 1000, before="2026-01-31")} == {"2026-01-30"}
