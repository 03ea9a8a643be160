"""What is on a terminal's disk, read without the terminal: who could still be given which message if
everything stopped at this moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from landbridge.broker import group as groups
from landbridge.broker import topic as topics
from landbridge.core.log import record
from landbridge.core.log.cursor import Cursor
from landbridge.core.log.store import Append
from landbridge.stores.memory import MemoryStore
from landbridge.testing.plain import at_once

_ALL = 1 << 60


@contextmanager
def reading(store: MemoryStore) -> Iterator[MemoryStore]:
    """Open, whether or not its terminal runs."""
    was_open = store._is_open
    store._is_open = True
    try:
        yield store
    finally:
        store._is_open = was_open


class Disk:
    def __init__(self, store: MemoryStore) -> None:
        #: Topic → (payload, the groups that it is for or None for all, those here that have not settled it).
        self.held: dict[str, list[tuple[bytes, frozenset[str] | None, set[str]]]] = {}
        #: Topic → the number of its log.
        self.logs: dict[str, int] = {}
        #: Topic → groups that have a cursor here.
        self.groups: dict[str, set[str]] = {}
        with reading(store):
            cursors: dict[str, list[tuple[int, bytes]]] = {}
            for key, value in at_once(store.documents(0, groups.CURSOR)):
                owner, _, slot = key.rpartition("/")
                cursors.setdefault(owner, []).append((int(slot), value))
            specs = [
                (key, groups.decode(raw).name, int(key.partition("/")[0]))
                for key, raw in at_once(store.documents(0, groups.KIND))
            ]
            for name, raw in at_once(store.documents(0, topics.KIND)):
                log = topics.decode(raw).log
                unsettled: dict[str, Cursor | None] = {
                    group: Cursor.restore(cursors[key]) if key in cursors else None
                    for key, group, number in specs
                    if number == log
                }
                self.logs[name] = log
                self.groups[name] = set(unsettled)
                self.held[name] = list(self._unsettled(store, log, unsettled))

    def _unsettled(
        self, store: MemoryStore, log: int, cursors: dict[str, Cursor | None]
    ) -> Iterator[tuple[bytes, frozenset[str] | None, set[str]]]:
        for stored in at_once(store.read(log, 0, _ALL)):
            batch = record.unwrap(stored.data)
            for index in range(len(batch)):
                offset = stored.first + index
                waiting = {
                    group
                    for group, cursor in cursors.items()
                    if (batch.audience is None or group in batch.audience)
                    and (
                        cursor is None
                        or any(first <= offset < end for first, end in cursor.unsettled(offset + 1))
                    )
                }
                yield bytes(batch.payload(index)), batch.audience, waiting

    def append(self, write: Append) -> None:
        """Add what a commit is about to store."""
        batch = record.unwrap(write.data)
        for topic in (name for name, log in self.logs.items() if log == write.log):
            waiting = {group for group in self.groups[topic] if not batch.audience or group in batch.audience}
            self.held[topic] += [
                (bytes(batch.payload(index)), batch.audience, waiting) for index in range(len(batch))
            ]

    def holds(self, topic: str, payload: bytes, group: str) -> bool:
        """May the group still be given it from here? One without a cursor starts at the beginning."""
        new = topic in self.groups and group not in self.groups[topic]
        return any(
            found == payload and (group in waiting or (new and (audience is None or group in audience)))
            for found, audience, waiting in self.held.get(topic, ())
        )

    def published(self, topic: str) -> list[str]:
        """The values that were published here, in the order of the log. What has come from elsewhere has an
        audience."""
        return [payload.decode() for payload, audience, _ in self.held.get(topic, ()) if audience is None]

    def arrived(self, topic: str) -> dict[str, frozenset[str]]:
        """The values that have come from elsewhere, and the groups that they are for."""
        return {
            payload.decode(): audience
            for payload, audience, _ in self.held.get(topic, ())
            if audience is not None
        }

    def on_shelves(self) -> dict[str, int]:
        """Shelf → parcels on it."""
        return {
            name: count
            for name in ("$transit", "$sealed")
            if (count := sum(bool(waiting) for _, _, waiting in self.held.get(name, ())))
        }
