"""The journal against its oracle while the power goes at any moment, again and again."""

from __future__ import annotations

import copy
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from landbridge.core.log.store import (
    Append,
    Copy,
    DeleteDocument,
    DropLog,
    PutDocument,
    PutLedger,
    Trim,
    Write,
)
from landbridge.errors import StoreFailed
from tests.contracts.test_store import ALL, MEMORY_DISK
from tests.store_model import Model
from tests.stores.power import ForgetfulDisk, FragileJournal, PowerCut

LIVES = 6
STEPS = 30
SIZES = (0, 5, 100, 700, 3000, 9000)


class World:
    """One seed: a journal, the oracle of what was acked, and the commit whose outcome nobody knows."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.acked = Model()
        self.unknown: list[Write] | None = None
        self.number = 3  #: of the next log: none is used twice
        self.logs = [1, 2]
        self.clock = 0
        self.snapshots: list[Path] = []
        self.crashes = 0

    def writes(self) -> list[Write]:
        """A commit that keeps the rules."""
        chance, ahead = self.chance, copy.deepcopy(self.acked)
        writes: list[Write] = []

        def add(write: Write) -> None:
            writes.append(write)
            ahead.apply(write)

        for _ in range(chance.choice((1, 1, 2, 4))):
            self.clock += 1
            log = chance.choice(self.logs)
            end = ahead.ends.get(log, 0)
            match chance.choice("aaaaacttdeelx"):
                case "a":
                    count = chance.choice((1, 1, 10))
                    add(Append(log, end, end + count, self.clock, chance.randbytes(chance.choice(SIZES))))
                    add(PutLedger(log, b"p%d" % chance.randint(0, 3), b"%d" % end, end, self.clock))
                case "c":
                    sources = [(of, each) for of, held in ahead.batches.items() for each in held]
                    if sources:
                        of, each = chance.choice(sources)
                        whole = each.choice is not None or chance.random() < 0.5
                        count = each.end - each.first if whole else 1
                        choice = None if whole else chance.randbytes(3)
                        add(Copy(log, end, end + count, self.clock, of, each.first, choice))
                case "t":
                    add(Trim(log, chance.randint(0, end)))
                case "d":
                    if chance.random() < 0.3:
                        add(DropLog(log))
                        self.logs.remove(log)
                        self.logs.append(self.number)
                        self.number += 1
                case "e":
                    add(
                        PutDocument(
                            chance.choice("kl"),
                            chance.choice("abc"),
                            chance.randbytes(chance.choice(SIZES[:4])),
                        )
                    )
                case "l":
                    add(PutLedger(log, b"p%d" % chance.randint(0, 3), None))
                case "x":
                    add(DeleteDocument(chance.choice("kl"), chance.choice("abc")))
        return writes

    def live(self, files: ForgetfulDisk) -> None:
        journal = FragileJournal(self.folder, files)
        try:
            # The power may go while the store is being opened, too.
            files.cut_in = self.chance.choice((None, self.chance.randint(0, 6)))
            journal.open()
            files.cut_in = None
            self.compare(journal)
            files.cut_in = self.chance.randint(0, 5 * STEPS)
            for _ in range(STEPS):
                self.step(journal)
            files.cut_in = None
            if self.chance.random() < 0.3:
                journal.close()
                return
        except PowerCut:
            pass
        if self.chance.random() < 0.15 and journal.index.place.segment:
            self.snapshots.append(self.folder.with_name(f"snapshot-{len(self.snapshots)}"))
            shutil.copytree(self.folder, self.snapshots[-1])
        journal.die()
        files.lose_power()
        self.crashes += 1
        self.lose_index()

    def step(self, journal: FragileJournal) -> None:
        if self.chance.random() < 0.25:
            journal.tend()
            return
        writes = self.writes()
        self.unknown = writes
        try:
            journal.commit(writes)
        except StoreFailed as error:
            raise AssertionError(f"{error}") from error
        for write in writes:
            self.acked.apply(write)
        self.unknown = None

    def lose_index(self) -> None:
        """SQLite syncs when it likes: the index may be gone, be old, or have lost its WAL."""
        fate = self.chance.random()
        if fate < 0.2:
            for path in self.folder.glob("index.db*"):
                path.unlink()
        elif fate < 0.4:
            (self.folder / "index.db-wal").unlink(missing_ok=True)
        elif fate < 0.5 and self.snapshots:
            for path in self.folder.glob("index.db*"):
                path.unlink()
            for path in self.chance.choice(self.snapshots).glob("index.db*"):
                if not path.name.endswith("-shm"):
                    shutil.copy2(path, self.folder / path.name)

    def compare(self, journal: FragileJournal) -> None:
        if self.unknown is not None:
            after = copy.deepcopy(self.acked)
            for write in self.unknown:
                after.apply(write)
            if self.differences(journal, self.acked):
                self.acked = after  # all of it, or nothing
            self.unknown = None
        assert self.differences(journal, self.acked) == []
        assert [each for each in journal.findings if "index" not in each] == []
        assert journal.check() == []

    def differences(self, journal: FragileJournal, model: Model) -> list[str]:
        found = []
        if journal.logs() != model.logs():
            found.append(f"bounds {journal.logs()} != {model.logs()}")
        for log in model.batches:
            if not found and journal.read(log, 0, ALL) != model.read(log, 0, ALL):
                found.append(f"batches of log {log}")
        for kind in "kl":
            stored = {(kind, key): value for key, value in journal.documents(kind)}
            if stored != {key: value for key, value in model.documents.items() if key[0] == kind}:
                found.append(f"documents of kind {kind}")
        for log in range(1, self.number):
            for producer in (b"p0", b"p1", b"p2", b"p3"):
                put = model.ledger.get((log, producer))
                if journal.ledger(log, producer) != (None if put is None else put.entry):
                    found.append(f"ledger of log {log}, {producer!r}")
        return found


def run(seed: int) -> int:
    """Returns the number of crashes."""
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as name:
        world = World(Path(name) / "bus", seed)
        files = ForgetfulDisk(world.chance)
        for _ in range(LIVES):
            world.live(files)
        journal = FragileJournal(world.folder, files)
        journal.open()
        world.compare(journal)
        journal.close()
        return world.crashes


def crash(times: int, seed: int) -> None:
    """Go through seeds from one on, until there were so many crashes."""
    while times > 0:
        times -= run(seed)
        seed += 1


@pytest.mark.parametrize("seed", range(0, 2500, 100))
def test_no_acked_commit_is_lost_or_doubled_by_power_cuts(seed: int) -> None:
    crash(10, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10_000, 110_000, 1000))
def test_no_acked_commit_is_lost_or_doubled_by_many_power_cuts(seed: int) -> None:
    crash(30, seed)
