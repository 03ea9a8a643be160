"""The audit: who did what, and what was refused. Each customer has a log of its own, so that a busy customer
can't push another's events out. The operator's log has refused callers and what belongs to no customer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from landbridge.client import registry_documents as api
from landbridge.core.log import batch
from landbridge.core.log.batch import Batch
from landbridge.core.log.store import Append, LogBounds, StoredBatch, Trim, Write

#: Number of the operator's log. The numbers of the customers' logs follow.
OPERATOR_LOG = 1
OK = "ok"
_LONGEST = 200


class AuditRecord(msgspec.Struct, frozen=True):
    """An audit event as it is stored; its number is its offset in the log."""

    time: int
    who: str
    op: str
    subject: str
    outcome: str = OK
    detail: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditRecord).decode


def record(time: int, who: str, op: str, subject: str, outcome: str = OK, detail: str = "") -> AuditRecord:
    """Return an audit event. Texts that a stranger may have chosen are cut to a bounded length."""
    return AuditRecord(time, who[:_LONGEST], op, subject[:_LONGEST], outcome, detail[:_LONGEST])


class Tail:
    """The bounds of one log, for appending to it. ``keep``: how many events it keeps."""

    def __init__(self, number: int, keep: int, bounds: LogBounds | None = None) -> None:
        self.number = number
        self._keep = keep
        self._first, self.end, self._time = (bounds.first, bounds.end, bounds.time) if bounds else (0, 0, 0)

    def append(self, now: int, events: Sequence[AuditRecord]) -> list[Write]:
        """Return the writes that append events as one batch and trim the log. Call ``on_stored`` when they
        are stored."""
        time = max(now, self._time)
        data = batch.build([_encode(e) for e in events], id=os.urandom(16), time=time)
        end = self.end + len(events)
        writes: list[Write] = [Append(self.number, self.end, end, time, data)]
        # Let the log grow by a tenth above its bound, so that not every commit trims.
        if end - self._first > self._keep + self._keep // 10:
            writes.append(Trim(self.number, end - self._keep))
        return writes

    def on_stored(self, writes: Sequence[Write]) -> None:
        """Take note that the writes of ``append`` are stored."""
        for write in writes:
            match write:
                case Append():
                    self.end, self._time = write.end, write.time
                case Trim():
                    self._first = write.before


def read(batches: Sequence[StoredBatch], since: int, limit: int) -> api.AuditPage:
    """Return the events of stored batches, from number ``since`` on, at most ``limit``."""
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
