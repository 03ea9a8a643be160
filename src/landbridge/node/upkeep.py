"""The stores of a data folder, looked through or repaired while no process uses them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from landbridge.broker import topic as topics
from landbridge.errors import BadRequest, StoreBusy
from landbridge.registry.entities import CustomerRecord
from landbridge.stores.journal.store import JournalFolder

#: The folders of the stores, beside each other in a data folder.
BUS, REGISTRY = "bus", "registry"
#: What is added to the name of an index while another one is made.
ASIDE = ".aside"
#: Called with (work done, work in all).
TellWork = Callable[[int, int], None]


class StoreCondition(msgspec.Struct, frozen=True):
    """One store of a data folder."""

    store: str
    path: str
    bytes: int  #: of its segments
    findings: list[str]  #: what is damaged or lost, a sentence each
    repaired: list[str] = []  #: what was damaged and is in order now


def check_stores(folder: Path, tell: TellWork | None = None) -> list[StoreCondition]:
    """Read every store of a data folder entirely. StoreBusy where a process uses one."""
    return [_check(path, tell) for path in _stores(folder)]


def repair_stores(folder: Path, tell: TellWork | None = None) -> list[StoreCondition]:
    """Make the index of each store anew from its segments, then check it. What the segments have lost stays
    lost and is told; everything else can be read again. StoreBusy where a process uses one."""
    return [_repair(path, tell) for path in _stores(folder)]


def _stores(folder: Path) -> list[Path]:
    found = [folder / name for name in (BUS, REGISTRY) if _is_store(folder / name)]
    if not found:
        old = [name for name in (f"{BUS}.db", f"{REGISTRY}.db") if (folder / name).exists()]
        hint = (
            "start the terminal once: it takes the data of version 0.1 over" if old else "name it with --data"
        )
        raise BadRequest(f"{folder} has no store", hint=hint)
    return found


def _is_store(path: Path) -> bool:
    # The folder ``registry`` may also be the data folder of a registry of its own.
    return path.is_dir() and (any(path.glob("*.segment")) or (path / "index.db").exists())


def _check(path: Path, tell: TellWork | None) -> StoreCondition:
    with _opened(path, tell) as store:
        findings = _named(store, [*store.findings, *store.check()])
        # An index that was made anew by opening the store is in order now.
        repaired = [each for each in findings if each.startswith("the index was made anew")]
        left = [each for each in findings if each not in repaired]
        return StoreCondition(path.name, str(path), store.segments.bytes(), left, repaired)


def _repair(path: Path, tell: TellWork | None) -> StoreCondition:
    index = path / "index.db"
    with _busy_told(), JournalFolder(path).held():
        moved = [(file, file.with_name(file.name + ASIDE)) for file in _files_of(index)]
        for file, aside in moved:
            file.replace(aside)
    try:
        with _opened(path, tell) as store:
            findings = _named(store, [*store.findings, *store.check()])
            size = store.segments.bytes()
    except BaseException:
        # Nothing is better than before: put the index back.
        for file in _files_of(index):
            file.unlink()
        for file, aside in moved:
            aside.replace(file)
        raise
    for _, aside in moved:
        with suppress(FileNotFoundError):
            aside.unlink()
    return StoreCondition(path.name, str(path), size, findings, ["the index was made anew from the segments"])


def _files_of(index: Path) -> list[Path]:
    """The files of an index: what SQLite puts beside it belongs to it."""
    return [file for file in index.parent.glob(f"{index.name}*") if not file.name.endswith(ASIDE)]


@contextmanager
def _opened(path: Path, tell: TellWork | None) -> Iterator[JournalFolder]:
    store = JournalFolder(path, tell=tell)
    with _busy_told():
        store.open()
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _busy_told() -> Iterator[None]:
    try:
        yield
    except StoreBusy as error:
        error.hint = "stop the terminal or the registry first: its store can't be in use meanwhile"
        raise


def _named(store: JournalFolder, findings: list[str]) -> list[str]:
    """The findings, each once, with the names of the topics whose logs they speak of."""
    names: dict[str, str] = {}
    for name, raw in store.documents(topics.KIND):
        with suppress(msgspec.MsgspecError, ValueError):
            names[str(topics.decode(raw).log)] = f"topic {name}"
    for key, raw in store.documents(CustomerRecord.kind):
        with suppress(msgspec.MsgspecError, ValueError):
            found = msgspec.msgpack.decode(raw, type=CustomerRecord)
            names[str(found.audit_log)] = f"audit of customer {key}"

    def told(match: re.Match[str]) -> str:
        return f"{names[match[1]]} ({match[0]})" if match[1] in names else match[0]

    return [re.sub(r"\blog (\d+)\b", told, finding) for finding in dict.fromkeys(findings)]
