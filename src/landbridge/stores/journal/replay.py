"""Going through the journal when a store is opened: the records that the index does not have, or all of them
to make the index anew.

Only the last record can have been cut off by a crash, because the next one is written when it is on disk. A
record that can't be read with later ones behind it is damage: the others count, and what is missing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from isal.isal_zlib import crc32

from landbridge.stores.journal.index import IndexDamaged, JournalIndex
from landbridge.stores.journal.recent import JournalPlace, JournalState, Recent, row_of, rows_of
from landbridge.stores.journal.records import Appended, Bounded, Copied, Moved, Record, Restated
from landbridge.stores.journal.segments import START, Segment, Segments

#: Changes that are gathered before the index gets them.
FLUSH_SIZE: Final = 20_000
#: Called with (bytes done, bytes in all).
TellProgress = Callable[[int, int], None]


def records_from(
    segments: Segments,
    place: JournalPlace,
    findings: list[str],
    tell: TellProgress | None = None,
    removed: Callable[[], None] | None = None,
) -> Iterator[tuple[Segment, Record]]:
    """The records from a place on. ``removed`` is called where a segment is missing that may have been
    removed; without it, a missing one is damage."""
    expected = place.number
    numbers = [number for number in sorted(segments.held) if number >= place.segment]
    is_gone = False  #: a segment is missing since the last record; those between may have been left empty
    for count, number in enumerate(numbers):
        segment = segments.held[number]
        if number > place.segment or place.position == START:
            is_gone |= number - 1 not in segments.held
        if tell is not None:
            tell(count, len(numbers))
        scan = segment.scan()
        position = place.position if number == place.segment else START
        while (record := scan.next_record(position, expected - 1)) is not None:
            if record.number != expected and is_gone and removed is not None:
                removed()
            elif record.number != expected:
                findings.append(
                    f"segment {number}, position {position}: {record.number - expected} records before "
                    f"{record.number} are damaged"
                )
            yield segment, record
            position, expected, is_gone = record.end, record.number + 1, False


def is_whole(segment: Segment, record: Record) -> bool:
    """Is all of its data there?"""
    return all(
        crc32(segment.pread(entry.length, at)) == entry.crc for entry, at in record.batches() if entry.length
    )


def replay(segments: Segments, state: JournalState, place: JournalPlace, findings: list[str]) -> JournalPlace:
    """Apply the records from a place on. Returns the place behind the last one."""
    before: tuple[Segment, Record] | None = None
    for segment, record in records_from(segments, place, findings, removed=_is_too_old):
        if before is not None:
            place = _apply(state, *before)
        before = segment, record
    # Without its data the last one was cut off by a crash, and nobody was told that it is stored.
    if before is not None and is_whole(*before):
        place = _apply(state, *before)
    state.recent.place = place
    findings += state.lost
    state.lost = []
    return place


def _is_too_old() -> None:
    raise IndexDamaged("it is older than a segment that was removed")


def _apply(state: JournalState, segment: Segment, record: Record) -> JournalPlace:
    state.apply(record.entries, segment.number, record.data_at, record.number)
    return JournalPlace(segment.number, record.end, record.number + 1)


def rebuild(
    segments: Segments,
    state: JournalState,
    index: JournalIndex,
    findings: list[str],
    tell: TellProgress | None = None,
) -> JournalPlace:
    """Make the index anew. Returns the place behind the last record."""
    index.make(segments.incarnation)
    start, made = _restated(segments)
    first = JournalPlace(min(segments.held), START, 0)
    rows = Recent(first)
    # What comes before: only where batches lie. Bounds, documents and ledgers are stated again behind it.
    for segment, record in records_from(segments, first, [], tell, lambda: None):
        if record.number >= start.number:
            break
        at = {id(entry): position for entry, position in record.batches()}
        for entry in record.entries:
            if isinstance(entry, Appended):
                found = [row_of(entry, segment.number, at[id(entry)])]
            elif isinstance(entry, Copied):
                found = [row_of(entry, entry.segment, entry.position, segment.number)]
            elif isinstance(entry, Moved):
                found = rows_of(entry, segment.number, at[id(entry)])
            else:
                continue
            for row in found:
                if record.number >= made.get(row.log, 1 << 62):
                    rows.append(row)
        rows.size += len(record.entries)
        if rows.size > FLUSH_SIZE:
            index.write(rows, {})
            rows = Recent(first)
    index.write(rows, {})
    state.reset(first)
    place = JournalPlace(start.segment or first.segment, START, start.number)
    before: tuple[Segment, Record] | None = None
    for segment, record in records_from(segments, place, findings, tell):
        if before is not None:
            place = _apply(state, *before)
            if state.recent.size > FLUSH_SIZE:
                flush(state, index, place)
        before = segment, record
    if before is not None and is_whole(*before):
        place = _apply(state, *before)
    flush(state, index, place)
    findings += state.lost
    state.lost = []
    findings += index.finish_rebuilding(state.logs)
    return place


def flush(state: JournalState, index: JournalIndex, place: JournalPlace) -> None:
    """Bring what is recent into the index, where nothing else goes on."""
    recent, state.recent = state.recent, Recent(place)
    recent.place = place
    index.write(recent, {log: state.logs.get(log) for log in recent.logs})


def _restated(segments: Segments) -> tuple[Restated, dict[int, int]]:
    """The last statement of everything, and which record has made each log that it names."""
    found = Restated(0, 0)
    for number in sorted(segments.held, reverse=True):
        scan = segments.held[number].scan()
        position, after = START, -1
        while (record := scan.next_record(position, after)) is not None:
            for entry in record.entries:
                if isinstance(entry, Restated):
                    found = entry
            position, after = record.end, record.number
        if found.number:
            break
    made: dict[int, int] = {}
    if found.number:
        place = JournalPlace(found.segment, START, found.number)
        for _, record in records_from(segments, place, []):
            for entry in record.entries:
                if isinstance(entry, Bounded):
                    made[entry.log] = entry.made
    return found, made
