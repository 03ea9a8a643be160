"""What goes on beside the commits, in a thread: the index is written, void rows are swept up, segments are
made ahead, and those that hold little or nothing are removed."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Condition, Event, Thread
from typing import Final

from landbridge.core.log.store import Buffer
from landbridge.errors import BusError, StoreCorrupt, StoreFull
from landbridge.stores.journal.journal import CommitJournal
from landbridge.stores.journal.recent import BatchRow, Recent, owner_of
from landbridge.stores.journal.records import (
    Appended,
    Bounded,
    Copied,
    Documented,
    Entered,
    Entry,
    Moved,
    Restated,
)
from landbridge.stores.journal.segments import START, Segment

#: Seconds until a change is in the index, at the most while all is well.
FLUSH_AFTER: Final = 1.0
#: Changes with which it does not wait so long.
FLUSH_SIZE: Final = 10_000
#: Seconds between two tries after something failed, and between two pieces of work that can wait.
RETRY_AFTER: Final = 0.5
PAUSE: Final = 0.002
#: Bytes of a record that carries batches or small state along: commits wait for one to be written.
CARRIED: Final = 512 << 10
#: Documents or entries that are read for one such record.
STATED: Final = 500
#: Segments are cleaned when more than this share of their bytes, and as many as so many segments have, is
#: dead.
DEAD_SHARE: Final = 0.5
DEAD_SEGMENTS: Final = 4
#: Small state is stated anew when it frees so many times its own size.
RESTATE_GAIN: Final = 4


class Tender:
    """Tends one journal."""

    def __init__(self, journal: CommitJournal) -> None:
        self._journal = journal
        self._thread: Thread | None = None
        self._changed, self._hurry = Event(), Event()
        self._flushed = Condition()
        self._stopping = False
        self.trouble = ""  #: why the index could not be written; empty while all is well

    def start(self) -> None:
        self._stopping, self.trouble = False, ""
        self._thread = Thread(target=self._run, name="landbridge-tender", daemon=True)
        self._thread.start()
        self.hurry()

    def stop(self) -> None:
        """End the thread, and bring what is left into the index if that can be done."""
        self._stopping = True
        self.hurry()
        if self._thread is not None:
            self._thread.join()
        try:
            while self._flush():
                pass
        except BusError as error:  # the journal has all of it
            self.trouble = str(error)

    def tell(self, recent: Recent) -> None:
        """A record was written."""
        if not self._changed.is_set():
            self._changed.set()
        if recent.size >= FLUSH_SIZE and not self._hurry.is_set():
            self._hurry.set()

    def hurry(self) -> None:
        self._changed.set()
        self._hurry.set()

    def catch_up(self) -> bool:
        """Wait for the index to be written. False if it fails."""
        with self._flushed:
            if not self.trouble:
                self.hurry()
                self._flushed.wait(10.0)
        return not self.trouble

    def _run(self) -> None:
        while not self._stopping:
            self._changed.wait()
            self._hurry.wait(FLUSH_AFTER)
            self._changed.clear()
            self._hurry.clear()
            try:
                self._tend()
                self.trouble = ""
            except StoreFull as error:
                self.trouble = str(error)
                self._again()
            except StoreCorrupt as error:
                self.trouble = str(error)
                self._journal.fail(f"{error}; the index is made anew at the next start")
            except BusError as error:
                self.trouble = str(error)
                self._again()
            except Exception as crash:  # a bug must not end the thread in silence
                self.trouble = f"the store broke: {crash!r}"
                self._journal.fail(self.trouble)
            with self._flushed:
                self._flushed.notify_all()

    def _again(self) -> None:
        if not self._stopping:
            self._hurry.clear()
            self._pause(RETRY_AFTER)
            self._changed.set()

    def _pause(self, seconds: float) -> None:
        self._hurry.wait(seconds)

    def _tend(self) -> None:
        journal = self._journal
        try:
            self._tend_index()
        except StoreFull:
            if not journal.segments.give_room():
                raise
            self._tend_index()  # at once, before others take the room
        if not self._stopping and (journal.is_low or journal.needs_ahead()):
            with journal.quiet():
                journal.make_ahead()
        if not journal.is_low:
            journal.keep_room()

    def _tend_index(self) -> None:
        """What needs room for SQLite. StoreFull."""
        journal = self._journal
        self._flush()
        while journal.index.sweep() and not self._stopping:
            self._pause(PAUSE)
        if not self._stopping:
            self._free()

    def _flush(self) -> bool:
        """Bring what is recent into the index. True if there was something."""
        journal = self._journal
        state = journal.state
        with journal.changing:
            changes = state.flushing
            if changes is None:
                if not state.recent.size:
                    return False
                changes = state.flushing = state.recent
                changes.states = {
                    log: known.copy() if (known := state.logs.get(log)) else None for log in changes.logs
                }
                state.recent = Recent(changes.place)
        journal.index.write(changes, changes.states)
        with journal.changing:
            state.flushing = None
        return True

    # ------------------------------------------------------------------------------- removing segments

    def _free(self) -> None:
        """Remove segments that hold nothing, and see to it that there are some."""
        journal, index = self._journal, self._journal.index
        dead = [segment for segment in self._closed() if not index.live.get(segment.number)]
        behind = [segment for segment in dead if segment.number >= index.restated.segment]
        waiting = sum(segment.size for segment in behind)
        segment_size = journal.segments.held[journal.place.segment].size
        if waiting and (journal.is_low or waiting >= max(RESTATE_GAIN * index.small_bytes, segment_size)):
            self._restate()
            behind = []
        going = [segment for segment in dead if segment not in behind]
        if going:
            self._remove(going)
        victim = self._victim()
        if victim is not None:
            self._clean(victim)

    def _closed(self) -> list[Segment]:
        """Segments that get no more records, and whose records are all in the index."""
        journal = self._journal
        last = min(journal.place.segment, journal.index.place.segment)
        return [segment for number, segment in sorted(journal.segments.held.items()) if number < last]

    def _remove(self, segments: list[Segment]) -> None:
        journal = self._journal
        for segment in segments:
            homeless = [row for row in journal.index.copies(segment.number) if row.home == segment.number]
            if homeless:
                journal.write([_copied(row) for row in homeless], [], 0)
                self._flush()
        journal.index.sync()
        for segment in segments:
            journal.index.forget_segment(segment.number)
            with journal.keeping():
                journal.segments.remove(segment, keep=not journal.is_low)

    def _restate(self) -> None:
        """Write all small state again, so that what earlier segments say of it no longer counts."""
        journal, state = self._journal, self._journal.state
        with journal.quiet():
            with journal.changing:
                entries: list[Entry] = [
                    Bounded(log, s.first, s.end, s.bytes, s.time, s.forgotten, s.total, s.made, -1)
                    for log, s in state.logs.items()
                ]
            journal.write_quietly(entries, [], 0)
            start = journal.place
        self._flush()
        self._flush()  # once more, for what came while a first try that had failed was repeated
        for stated in self._documents(), self._entries():
            for _ in stated:
                self._pause(PAUSE)
        journal.write([Restated(start.segment, start.number - 1)], [], 0)
        self._flush()

    def _documents(self) -> Iterator[None]:
        """Each step states some."""
        journal = self._journal
        kind, key = "", ""
        while True:
            with journal.quiet():
                some = journal.index.documents_after(kind, key, STATED)
                if not some:
                    return
                changed = [layer.documents for layer in journal.state.layers()]
                entries: list[Entry] = [
                    Documented(*row) for row in some if not any(row[1] in d.get(row[0], ()) for d in changed)
                ]
                journal.write_quietly(entries, [], 0)
            kind, key, _ = some[-1]
            yield

    def _entries(self) -> Iterator[None]:
        journal = self._journal
        log, producer = -(1 << 63), b""
        while True:
            with journal.quiet():
                some = journal.index.entries_after(log, producer, STATED)
                if not some:
                    return
                entries: list[Entry] = [
                    Entered(*row) for row in some if journal.is_entry_in_index(row[0], row[1], row[3])
                ]
                journal.write_quietly(entries, [], 0)
            log, producer = some[-1][:2]
            yield

    # -------------------------------------------------------------------------------- moving what lives

    def _victim(self) -> Segment | None:
        """The segment that is to be emptied next, if there is enough to gain."""
        journal, index = self._journal, self._journal.index
        closed = [segment for segment in self._closed() if index.live.get(segment.number)]
        if not closed:
            return None
        size = sum(segment.size for segment in closed)
        dead = size - sum(min(index.live[segment.number], segment.size) for segment in closed)
        most = max(segment.size for segment in closed)
        victim = min(closed, key=lambda segment: index.live[segment.number] / segment.size)
        enough = dead > DEAD_SHARE * size and dead > DEAD_SEGMENTS * most
        if journal.is_low:
            enough = dead > most and index.live[victim.number] + journal.reserve() // 2 < journal.room()
        return victim if enough else None

    def _clean(self, segment: Segment) -> None:
        """Move what lives in a segment."""
        journal = self._journal
        with journal.quiet():
            journal.going = segment.number
        try:
            while self._flush():
                pass
            rows = self._living(segment)
            if sum(row.length + 1 for row in rows) != journal.index.live.get(segment.number):
                rows = journal.index.rows_in(segment.number)  # a damaged record hides some
            entries: list[Entry] = []
            data: list[Buffer] = []
            size = 0
            # By place and length: an empty batch lies where the next one begins.
            batches: dict[tuple[int, int], list[BatchRow]] = {}
            for row in rows:
                batches.setdefault((row.position, row.length), []).append(row)
            for owners in batches.values():
                row = owners[0]
                # Damaged data is moved as it is, with the checksum that it fails.
                data.append(journal.data_of(row).ljust(row.length, b"\0"))
                entries.append(Moved([owner_of(each) for each in owners], row.length, row.crc))
                size += row.length
                if size >= CARRIED:
                    journal.write(entries, data, size)
                    entries, data, size = [], [], 0
                    self._flush()
                    self._pause(PAUSE)
            if entries:
                journal.write(entries, data, size)
            while self._flush():
                pass
        finally:
            with journal.quiet():
                journal.going = None
        self.hurry()  # there may be more: segments are filled faster than one in FLUSH_AFTER

    def _living(self, segment: Segment) -> list[BatchRow]:
        """The rows whose data is in a segment, by its records."""
        index = self._journal.index
        found = {row[:2]: row for row in index.copies(segment.number) if row.segment == segment.number}
        scan, position, after = segment.scan(), START, -1
        while (record := scan.next_record(position, after)) is not None:
            for entry, at in record.batches():
                places = [(entry.log, entry.first)] if isinstance(entry, Appended) else None
                for log, first in places or [(o.log, o.first) for o in entry.owners]:  # type: ignore[union-attr]
                    row = index.holder(log, first)
                    if row is not None and (row.first, row.segment, row.position) == (
                        first,
                        segment.number,
                        at,
                    ):
                        found[log, first] = row
            position, after = record.end, record.number
        return list(found.values())


def _copied(row: BatchRow) -> Copied:
    place = (row.log, row.first, row.end, row.time, row.total)
    return Copied(*place, row.length, row.crc, row.segment, row.position, row.choice)
