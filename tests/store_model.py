"""What a store is, said with lists and dicts: the oracle of the tests of stores."""

from __future__ import annotations

from landbridge.core.log.store import (
    Append,
    Copy,
    DeleteDocument,
    DropLog,
    LogBounds,
    PutDocument,
    PutLedger,
    StoredBatch,
    Trim,
    Write,
)


class Model:
    """What a store is, said with lists and dicts."""

    def __init__(self) -> None:
        self.batches: dict[int, list[StoredBatch]] = {}
        self.ends: dict[int, int] = {}
        self.times: dict[int, int] = {}
        self.ledger: dict[tuple[int, bytes], PutLedger] = {}
        self.forgotten: dict[int, int] = {}
        self.documents: dict[tuple[str, str], bytes] = {}

    def apply(self, write: Write) -> None:
        match write:
            case Append(log, first, end, time, data):
                self._append(log, StoredBatch(first, end, time, bytes(data)))
            case Copy(log, first, end, time, from_log, from_first, choice):
                (of,) = (each for each in self.batches[from_log] if each.first == from_first)
                self._append(log, StoredBatch(first, end, time, of.data, choice or of.choice))
            case Trim(log, before):
                if any(each.end <= before for each in self.batches.get(log, ())):
                    self.batches[log] = held = [each for each in self.batches[log] if each.end > before]
                    first = held[0].first if held else self.ends[log]
                    for key, put in list(self.ledger.items()):
                        if key[0] == log and put.last is not None and put.last < first:
                            del self.ledger[key]
                            self.forgotten[log] = max(self.forgotten.get(log, 0), put.born)
            case DropLog(log):
                for known in (self.batches, self.ends, self.times, self.forgotten):
                    known.pop(log, None)
                self.ledger = {key: entry for key, entry in self.ledger.items() if key[0] != log}
            case PutDocument(kind, key, value):
                self.documents[kind, key] = value
            case DeleteDocument(kind, key):
                self.documents.pop((kind, key), None)
            case PutLedger(log, producer, entry):
                self.ledger.pop((log, producer), None)
                if entry is not None:
                    self.ledger[log, producer] = write

    def _append(self, log: int, batch: StoredBatch) -> None:
        self.batches.setdefault(log, []).append(batch)
        self.ends[log], self.times[log] = batch.end, batch.time

    def logs(self) -> dict[int, LogBounds]:
        return {
            log: LogBounds(
                held[0].first if held else self.ends[log],
                self.ends[log],
                sum(len(each.data) for each in held),
                self.times[log],
                self.forgotten.get(log, 0),
            )
            for log, held in self.batches.items()
        }

    def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        for each in self.batches.get(log, []):
            if each.end > offset:
                if found and sum(len(one.data) for one in [*found, each]) > max_bytes:
                    break
                found.append(each)
        return found

    def seek_time(self, log: int, time: int) -> int:
        for each in self.batches.get(log, []):
            if each.time >= time:
                return each.first
        return self.ends.get(log, 0)
