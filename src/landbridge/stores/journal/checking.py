"""A thorough look for damage: every record, every batch, every row of the index."""

from __future__ import annotations

from landbridge.errors import StoreCorrupt, StoreFailure
from landbridge.stores.journal.index import IndexDamaged, JournalIndex
from landbridge.stores.journal.journal import CommitJournal
from landbridge.stores.journal.recent import JournalPlace, JournalState
from landbridge.stores.journal.segments import START

#: Bytes of batches that are read at once.
PIECE = 4 << 20


def check(journal: CommitJournal) -> list[str]:
    """One line for each finding."""
    return [*_segments(journal), *_index(journal), *_logs(journal)]


def _segments(journal: CommitJournal) -> list[str]:
    findings = list(journal.segments.findings)
    last, _, written = journal.place  # later records are being written meanwhile
    before = -1  # number of the segment before
    after = -1  # number of the record before; -1: it was removed
    for number in sorted(journal.segments.held):
        with journal.keeping():
            segment = journal.segments.held.get(number)
            if segment is None or number != before + 1:
                after = -1
            before = number
            if segment is None:
                continue  # removed meanwhile
            scan, position = segment.scan(), START
            while (record := scan.next_record(position, after)) is not None and record.number < written:
                if after >= 0 and record.number != after + 1:
                    findings.append(
                        f"segment {number}, position {position}: "
                        f"{record.number - after - 1} records are damaged"
                    )
                position, after = record.end, record.number
    if after < written - 1 and last in journal.segments.held:
        findings.append(f"segment {last}: its last {written - 1 - after} records are damaged")
    return findings


def _index(journal: CommitJournal) -> list[str]:
    other = JournalIndex(journal.index.path)
    try:
        findings = journal.index.integrity()
        other.open(JournalState(JournalPlace(0, 0, 0)), journal.segments.incarnation)
    except IndexDamaged as damage:
        findings = [f"index: {damage}"]
        journal.index.condemn()
    except StoreFailure as error:
        findings = [str(error)]
    finally:
        other.close()
    return findings


def _logs(journal: CommitJournal) -> list[str]:
    findings: list[str] = []
    for log, bounds in sorted(journal.logs().items()):
        at = bounds.first
        while at < bounds.end:
            try:
                batches = journal.read(log, at, PIECE)
                if not batches:
                    break  # trimmed or dropped meanwhile
                at = batches[-1].end
            except StoreCorrupt as damage:
                findings.append(str(damage))
                try:
                    at = journal.row_at(log, at).end
                except StoreCorrupt:
                    break
    return findings
