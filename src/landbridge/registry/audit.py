"""The audit: who did what, and what was refused. Each customer has a log of its own, so that a busy one can't
push another's events out; the operator's has what belongs to no customer, and those who were not let in.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from landbridge.client import registry_documents as api
from landbridge.core.log import batch
from landbridge.core.log.batch import Batch
from landbridge.core.log.store import Append, LogBounds, StoredBatch, Trim, Write

#: Number of the operator's log. Customers' follow.
OPERATOR_LOG = 1
OK = "ok"
_LONGEST = 200


class Event(msgspec.Struct, frozen=True):
    time: int
    who: str
    op: str
    subject: str
    outcome: str = OK
    detail: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


def event(time: int, who: str, op: str, subject: str, outcome: str = OK, detail: str = "") -> Event:
    """Texts that a stranger chose are cut here."""
    return Event(time, who[:_LONGEST], op, subject[:_LONGEST], outcome, detail[:_LONGEST])


class Tail:
    """Where one log ends, and up to where it was forgotten."""

    def __init__(self, number: int, keep: int, bounds: LogBounds | None = None) -> None:
        self.number = number
        self._keep = keep
        self._first, self.end, self._time = (bounds.first, bounds.end, bounds.time) if bounds else (0, 0, 0)

    def append(self, now: int, events: Sequence[Event]) -> list[Write]:
        """As one batch; and forget what is too old. ``stored`` is to follow."""
        time = max(now, self._time)
        data = batch.build([_encode(e) for e in events], id=os.urandom(16), time=time)
        end = self.end + len(events)
        writes: list[Write] = [Append(self.number, self.end, end, time, data)]
        # A tenth more than is to be kept, so that not every commit trims.
        if end - self._first > self._keep + self._keep // 10:
            writes.append(Trim(self.number, end - self._keep))
        return writes

    def stored(self, writes: Sequence[Write]) -> None:
        for write in writes:
            match write:
                case Append():
                    self.end, self._time = write.end, write.time
                case Trim():
                    self._first = write.before


def read(batches: Sequence[StoredBatch], since: int, limit: int) -> api.AuditPage:
    items: list[api.AuditEvent] = []
    following = since
    for stored in batches:
        for index, payload in enumerate(Batch.decode(stored.data).payloads()):
            number = stored.first + index
            if number < since:
                continue
            if len(items) == limit:
                return api.AuditPage(items=items, next=following)
            items.append(api.AuditEvent(number=number, **msgspec.structs.asdict(_decode(payload))))
            following = number + 1
    return api.AuditPage(items=items, next=following)
