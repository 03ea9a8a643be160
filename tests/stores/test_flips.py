"""Bits that flip on the disk: what is read is right or refused, and what is missing is named."""

from __future__ import annotations

import copy
import random
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from landbridge.core.log.store import PutDocument
from landbridge.stores.journal import records, segments
from landbridge.stores.journal.index import PAGE
from landbridge.stores.journal.records import Record
from landbridge.stores.journal.segments import START, Segment, open_to_read, segment_files
from tests.store_model import Model
from tests.stores.faults import Comparison, Handled, clone, copy_files, flip, memory_folder, opened, varied


class Original(NamedTuple):
    """A store to be damaged, and what is in it."""

    folder: Path
    model: Model
    before_last: Model  #: without the last commit


@pytest.fixture(scope="module")
def workshop() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def originals(workshop: Path) -> dict[str, Original]:
    """``closed``; ``killed``: with a WAL, and records that the index does not have; ``bare``: without its
    index, as in a backup."""
    killed, closed, bare = (workshop / name for name in ("killed", "closed", "bare"))
    with opened(Handled(workshop / "live")) as store:
        model = varied(store)
        before_last = copy.deepcopy(model)
        last = PutDocument("cursor", "group 1", b"the last")
        store.commit([last])
        model.apply(last)
        copy_files(store.folder, killed)
    clone(store.folder, closed)
    clone(store.folder, bare)
    for path in bare.glob("index.db*"):
        path.unlink()
    assert (killed / "index.db-wal").stat().st_size > 100_000
    return {path.name: Original(path, model, before_last) for path in (closed, killed, bare)}


class Damaged:
    """A copy of an original with one flipped bit, opened."""

    def __init__(self, original: Original, at: Path, name: str, position: int, mask: int = 0x10) -> None:
        self.original = original
        self.folder = clone(original.folder, at / "damaged")
        flip(self.folder / name, position, mask)
        self.what = f"{name} at {position} with {mask}"
        with opened(Handled(self.folder)) as store:
            self.found = Comparison(store, original.model)
            is_cut_off = bool(self.found.different) and not Comparison(store, original.before_last).different
            self.named = store.findings + store.check()
        self.is_silent = bool(self.found.different | self.found.unreadable) and not self.named
        # The last record alone can't be told from one that a crash has cut off.
        self.is_last = self.is_silent and is_cut_off and original.folder.name != "closed"

    def assert_confined(self, touched: set[object]) -> None:
        """Only these logs and kinds of documents may have suffered, and not in silence."""
        assert not self.is_silent or self.is_last, self.what
        assert self.found.different | self.found.unreadable <= touched, (self.what, self.named)

    def assert_healed(self) -> None:
        """Nothing was read that is wrong, and all is well when the store is opened again."""
        assert not self.is_silent, self.what
        assert not self.found.different, (self.what, self.named)
        with opened(Handled(self.folder)) as store:
            again = Comparison(store, self.original.model)
            assert not again.different | again.unreadable, (self.what, self.named, store.findings)
            assert store.check() == [], self.what


# -- segments


class Spot(NamedTuple):
    name: str
    position: int
    touched: set[object]  #: logs and kinds of documents that the damaged bytes are about


def records_of(folder: Path) -> Iterator[tuple[Segment, Record]]:
    with ExitStack() as stack:
        for segment in open_to_read(segment_files(folder), stack, lambda: b""):
            scan, position, after = segment.scan(), START, -1
            while (record := scan.next_record(position, after)) is not None:
                yield segment, record
                position, after = record.end, record.number


def touched_by(record: Record) -> set[object]:
    found: set[object] = set()
    if any(isinstance(entry, records.Appended) and entry.log == 2 for entry in record.entries):
        found.add(3)  # which has copies
    for entry in record.entries:
        if isinstance(entry, records.Moved):
            found |= {owner.log for owner in entry.owners}
        elif isinstance(entry, records.Documented):
            found.add(entry.kind)
        elif isinstance(entry, records.Restated):
            found |= {1, 2, 3, 4, 5, "topic", "cursor"}
        else:
            found.add(entry.log)
    return found


def spots_in_segments(folder: Path, count: int, chance: random.Random) -> list[Spot]:
    """In headers of segments, and in headers, lists and padding of records."""
    found = [
        Spot(path.name, position, set())
        for path in segment_files(folder)
        for position in (0, 4, 8, 20, 24, 31, 32, 36, 40, segments.HEADER.size, START - 1)
    ]
    some = list(records_of(folder))
    for segment, record in chance.sample(some, min(len(some), count)):
        batches = [at + entry.length for entry, at in record.batches()]
        listed = batches[-1] if batches else record.data_at
        for position in (
            record.position + chance.randrange(records.HEADER.size),
            listed + chance.randrange(max(1, record.end - listed - 8)),
            record.end - 1,
        ):
            found.append(Spot(segment.path.name, position, touched_by(record)))
    return found


@pytest.mark.parametrize("state", ["closed", "killed", "bare"])
def test_a_flipped_bit_in_a_segment_harms_only_what_its_record_is_about(
    originals: dict[str, Original], workshop: Path, state: str
) -> None:
    chance = random.Random(f"segments {state}")
    original = originals[state]
    spots = spots_in_segments(original.folder, 40, chance)
    for spot in chance.sample(spots, 40):
        damaged = Damaged(original, workshop, spot.name, spot.position, 1 << chance.randrange(8))
        damaged.assert_confined(spot.touched)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["closed", "killed", "bare"])
@pytest.mark.timeout(900)
def test_many_flipped_bits_in_segments_harm_only_what_their_records_are_about(
    originals: dict[str, Original], workshop: Path, state: str
) -> None:
    chance = random.Random(f"many segments {state}")
    original = originals[state]
    for spot in spots_in_segments(original.folder, 250, chance):
        damaged = Damaged(original, workshop, spot.name, spot.position, 1 << chance.randrange(8))
        damaged.assert_confined(spot.touched)


@pytest.mark.parametrize("state", ["closed", "killed", "bare"])
def test_a_flipped_bit_in_a_batch_harms_that_batch(
    originals: dict[str, Original], workshop: Path, state: str
) -> None:
    chance = random.Random(f"batches {state}")
    original = originals[state]
    places = [
        (segment.path.name, at + chance.randrange(entry.length), touched_by(record))
        for segment, record in records_of(original.folder)
        for entry, at in record.batches()
        if entry.length
    ]
    for name, position, touched in chance.sample(places, 15):
        damaged = Damaged(original, workshop, name, position)
        damaged.assert_confined(touched)
        assert not damaged.found.different or damaged.is_last


# -- the index


def pages_of(path: Path) -> dict[str, list[int]]:
    """The pages of each table and index by name and kind, the free ones among them."""
    found: dict[str, list[int]] = {}
    data = path.read_bytes()
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(data[:18] + b"\1\1" + data[20:])  # as if it had no WAL
        roots = db.execute("SELECT name, rootpage FROM sqlite_master").fetchall()

    def walk(name: str, number: int) -> None:
        page = data[(number - 1) * PAGE : number * PAGE]
        head = 100 if number == 1 else 0
        kind = page[head]
        found.setdefault(f"{name}, {'inner' if kind in (2, 5) else 'leaf'}", []).append(number)
        if kind in (2, 5):
            walk(name, int.from_bytes(page[head + 8 : head + 12], "big"))
            for at in range(head + 12, head + 12 + 2 * int.from_bytes(page[head + 3 : head + 5], "big"), 2):
                cell = int.from_bytes(page[at : at + 2], "big")
                walk(name, int.from_bytes(page[cell : cell + 4], "big"))

    for name, root in [("schema", 1), *roots]:
        walk(name, root)
    used = {number for numbers in found.values() for number in numbers}
    found["free"] = [number for number in range(1, len(data) // PAGE + 1) if number not in used]
    return {name: numbers for name, numbers in found.items() if numbers}


def spots_in_pages(path: Path, per_kind: int, chance: random.Random) -> list[int]:
    data, found = path.read_bytes(), []
    for name, numbers in pages_of(path).items():
        for _ in range(per_kind):
            number = chance.choice(numbers)
            start = (number - 1) * PAGE
            head = start + (100 if number == 1 else 0)
            cells = int.from_bytes(data[head + 3 : head + 5], "big")
            first = int.from_bytes(data[head + 5 : head + 7], "big")
            found += [
                head + chance.randrange(12),
                head + 12 + chance.randrange(2 * cells + 2) if name != "free" else start + 4,
                start + chance.randrange(first, PAGE) if first < PAGE else start + PAGE - 1,
            ]
    return [*found, *range(0, 100, 9)]


def test_the_index_that_is_damaged_has_pages_of_every_kind(originals: dict[str, Original]) -> None:
    kinds = pages_of(originals["closed"].folder / "index.db")
    assert {
        *("schema, leaf", "log, inner", "log, leaf", "copy_home, leaf", "copy_data, leaf", "bounds, leaf"),
        *("documents, inner", "documents, leaf", "ledger, inner", "ledger, leaf", "ledger_last, inner"),
        *("ledger_last, leaf", "segments, leaf", "litter, leaf", "journal, leaf", "free"),
    } <= kinds.keys()


@pytest.mark.parametrize("state", ["closed", "killed"])
def test_an_index_with_a_flipped_bit_is_made_anew_and_nothing_is_lost(
    originals: dict[str, Original], workshop: Path, state: str
) -> None:
    chance = random.Random(f"index {state}")
    original = originals[state]
    spots = spots_in_pages(original.folder / "index.db", 1, chance)
    for position in spots:
        Damaged(original, workshop, "index.db", position, 1 << chance.randrange(8)).assert_healed()


def test_a_wal_with_a_flipped_bit_loses_nothing(originals: dict[str, Original], workshop: Path) -> None:
    chance = random.Random("wal")
    original = originals["killed"]
    frame = PAGE + 24
    frames = (original.folder / "index.db-wal").stat().st_size // frame
    spots = [*range(0, 32, 5), *(32 + frame * chance.randrange(frames) + at for at in range(0, 24, 3))]
    spots += [32 + frame * chance.randrange(frames) + 24 + chance.randrange(PAGE) for _ in range(25)]
    for position in spots:
        Damaged(original, workshop, "index.db-wal", position, 1 << chance.randrange(8)).assert_healed()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("name", ["index.db", "index.db-wal"])
def test_an_index_with_a_flipped_bit_anywhere_is_made_anew(
    originals: dict[str, Original], workshop: Path, state: str, name: str
) -> None:
    chance = random.Random(f"anywhere {state} {name}")
    original = originals[state]
    if not (original.folder / name).exists():
        pytest.skip("a closed store has no WAL")
    size = (original.folder / name).stat().st_size
    spots = [chance.randrange(size) for _ in range(300)]
    if name == "index.db":
        spots += spots_in_pages(original.folder / name, 10, chance)
    for position in spots:
        Damaged(original, workshop, name, position, 1 << chance.randrange(8)).assert_healed()
