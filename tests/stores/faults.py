"""What the tests of faults share: stores with known content, what is read compared with it, and processes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import landbridge
from landbridge.core.log.store import (
    Append,
    Copy,
    DeleteDocument,
    DropLog,
    PutDocument,
    PutLedger,
    StoredBatch,
    Trim,
    Write,
)
from landbridge.errors import StoreCorrupt
from landbridge.stores.journal.store import JournalFolder
from landbridge.stores.journal.tending import Tender
from tests.contracts.test_store import ALL, MEMORY_DISK
from tests.store_model import Model
from tests.stores.power import ByHand
from tests.waiting import eventually

SOURCE = Path(landbridge.__path__[0]).parent


@lru_cache(maxsize=100)
def contents(number: int, size: int) -> bytes:
    """Data that differs from batch to batch."""
    return random.Random(number).randbytes(size)


def batch(number: int, size: int = 1000, *, log: int = 1) -> Append:
    """The batch with that number: ten messages, and data that can be told from any other's."""
    return Append(log, number * 10, number * 10 + 10, number, contents(number, size))


def copied(number: int, *, log: int, of: int = 1) -> Copy:
    """A copy of the batch with that number, in the same place of another log."""
    return Copy(log, number * 10, number * 10 + 10, number, of, number * 10)


class ByHandOnly(ByHand):
    """Closing the store does not fail, whatever the index is like."""

    stop = Tender.stop


class Handled(JournalFolder):
    """A journal with small segments that is tended when the test says so."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **{"tending": ByHandOnly, "smallest": 8192, "largest": 16384, **options})

    def tend(self, rounds: int = 1) -> None:
        assert isinstance(self._tender, ByHand)
        for _ in range(rounds):
            self._tender.tend()


Journal = TypeVar("Journal", bound=JournalFolder)


@contextmanager
def opened(store: Journal) -> Iterator[Journal]:
    store.open()
    try:
        yield store
    finally:
        store.close()


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder where nothing waits for a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as name:
        yield Path(name)


def wait_until(holds: Callable[[], Any]) -> None:
    asyncio.run(eventually(holds))


def read_all(store: JournalFolder, log: int = 1) -> list[StoredBatch]:
    bounds = store.logs().get(log)
    found: list[StoredBatch] = []
    while bounds is not None and (at := found[-1].end if found else bounds.first) < bounds.end:
        found += store.read(log, at, 1_000_000)
    return found


def assert_intact(store: JournalFolder, size: int = 1000, *, log: int = 1) -> int:
    """Every batch is what `batch` made, with no gap. Returns how many there are."""
    found = read_all(store, log)
    numbers = [each.first // 10 for each in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    assert found == [
        StoredBatch(number * 10, number * 10 + 10, number, contents(number, size)) for number in numbers
    ]
    assert store.check() == []
    return len(found)


class Witness:
    """A store together with the oracle of what was committed."""

    def __init__(self, store: JournalFolder) -> None:
        self.store = store
        self.model = Model()

    def commit(self, *writes: Write) -> None:
        self.store.commit(writes)
        for write in writes:
            self.model.apply(write)


class Comparison:
    """What a store says, beside what it should say."""

    def __init__(self, store: JournalFolder, model: Model) -> None:
        self.different: set[object] = (
            set()
        )  #: logs and kinds of documents of which something is not as it was
        self.unreadable: set[object] = set()  #: those of which something is refused as damaged
        self._store, self._model = store, model
        bounds = store.logs()
        for log, expected in model.logs().items():
            self._see(log, bounds.get(log) == expected)
            self._read(log)
            for time in (0, expected.time // 2, expected.time):
                self._ask(log, store.seek_time, (log, time), model.seek_time(log, time))
        self.different |= bounds.keys() - model.logs().keys()
        for log, producer in model.ledger:
            entry = model.ledger[log, producer].entry
            self._ask(log, store.ledger, (log, producer), entry)
        for kind in {kind for kind, _ in model.documents}:
            expected_documents = sorted(
                (key, model.documents[k, key]) for k, key in model.documents if k == kind
            )
            self._ask(kind, store.documents, (kind,), expected_documents)

    def _see(self, what: object, is_right: bool) -> None:
        if not is_right:
            self.different.add(what)

    def _ask(
        self, what: object, ask: Callable[..., object], arguments: Sequence[object], right: object
    ) -> None:
        try:
            self._see(what, ask(*arguments) == right)
        except StoreCorrupt:
            self.unreadable.add(what)

    def _read(self, log: int) -> None:
        """All at once, and each batch alone where that fails."""
        batches = self._model.batches[log]
        found: list[StoredBatch] = []
        try:
            while len(found) < len(batches):
                some = self._store.read(log, found[-1].end if found else 0, ALL)
                if not some:
                    break
                found += some
        except StoreCorrupt:
            self.unreadable.add(log)
            for each in batches:
                try:
                    self._see(log, self._store.read(log, each.first, 0)[:1] == [each])
                except StoreCorrupt:
                    pass
        else:
            self._see(log, found == batches)


def varied(store: Handled, seed: int = 1) -> Model:
    """Fill an open store with some of everything: logs that were trimmed, dropped and copied from, documents
    and ledgers on several pages of the index, segments that were cleaned and removed, state that was stated
    anew. What the last commits have changed is not in the index."""
    witness, chance = Witness(store), random.Random(seed)
    ends = dict.fromkeys(range(1, 6), 0)
    clock = 0

    def grow(log: int, size: int) -> None:
        nonlocal clock
        clock += 1
        first, ends[log] = ends[log], ends[log] + chance.choice((1, 10))
        producer = b"producer %03d" % chance.randrange(400)
        witness.commit(
            Append(log, first, ends[log], clock, chance.randbytes(size)),
            PutLedger(log, producer, b"%d" % clock, first if clock % 3 else None, clock),
        )

    for number in range(150):
        witness.commit(PutDocument("topic", f"topic {number:03d}", chance.randbytes(100)))
        witness.commit(PutDocument("cursor", f"group {number % 40}", b"%d" % number))
    witness.commit(*(PutLedger(2, b"early %03d" % n, b"", n, n) for n in range(400)))
    for number in range(700):
        grow(1 + number % 5, chance.choice((0, 20, 150, 600)))
        if number % 50 == 40:
            source = chance.choice(witness.model.batches[2])
            clock += 1
            first, ends[3] = ends[3], ends[3] + source.end - source.first
            witness.commit(Copy(3, first, ends[3], clock, 2, source.first))
        if number % 60 == 59:
            witness.commit(Trim(4, ends[4] - 100), Trim(1, ends[1] // 2))
            store.tend(2)
        if number == 500:
            witness.commit(DropLog(5), *(DeleteDocument("topic", f"topic {n:03d}") for n in range(0, 150, 3)))
            ends[5] = 0
            store.tend(6)
    witness.commit(*(Append(9, at, at + 1, clock, b"") for at in range(500)))
    store.tend(2)
    witness.commit(DropLog(9))
    store.tend(2)
    for number in range(20):
        grow(1 + number % 4, 100)
        witness.commit(PutDocument("cursor", f"group {number}", b"late %d" % number))
    return witness.model


def copy_files(source: Path, target: Path) -> None:
    """The files as kill -9 would leave them now. ``cp`` copies them, because closing SQLite's files in this
    process would drop the locks that SQLite holds on them."""
    target.mkdir()
    names = [str(path) for path in source.iterdir() if path.name != "lock" and not path.name.endswith("-shm")]
    subprocess.run(["cp", *names, str(target)], check=True)


def clone(source: Path, target: Path) -> Path:
    """A closed store once more."""
    if target.exists():
        shutil.rmtree(target)
    return Path(shutil.copytree(source, target))


def flip(path: Path, at: int, mask: int = 0x10) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (old,) = file.read(1)
        file.seek(at)
        file.write(bytes((old ^ mask,)))


SETUP = """
import json, os, sys
from landbridge.core.log.store import *
from landbridge.errors import *
from landbridge.stores.journal.store import JournalFolder
arguments = json.loads(sys.argv[1])
def say(text): print(text, flush=True)
def attempt(store, *writes):
    try:
        store.commit(writes)
    except BusError as error:
        return error.code
    return "stored"
"""


def child(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """A Python process with a few helpers at hand and its arguments in `arguments`."""
    return subprocess.Popen(
        [sys.executable, "-c", SETUP + code, json.dumps([str(each) for each in arguments])],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
    )


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate()
    assert process.returncode == 0
    return output.split()
