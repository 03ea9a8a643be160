"""Operations on the audit log."""

from __future__ import annotations

import msgspec

from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.operations.dispatcher import PAGE, Dispatcher
from landbridge.broker.turns import Turns
from landbridge.core import audit
from landbridge.core.audit import AuditEntry
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

#: Entries that one page looks at. One that a filter leaves without rows says where to go on.
MOST_LOOKED_AT = 20_000
#: Entries that count as one turn of the loop.
ENTRY_COUNTS = 8


class AuditOperations:
    """The handlers of audit.*"""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.AUDIT_LIST, self.list_page)

    async def list_page(self, caller: TokenBearer, request: table.AuditList) -> table.AuditRows:
        broker = self._broker
        topic = broker.topics.get(audit.TOPIC)
        if topic is None:
            return table.AuditRows(entries=[], next="")
        if request.after and not (request.after.isdecimal() and len(request.after) < 20):
            raise BadRequest(f"audit.list after {request.after[:60]!r}", hint="give the 'next' of a page")
        at = topic.log.first
        if request.after:
            at = max(at, int(request.after))
        elif request.since is not None:
            at = await broker.table.position(topic, request.since)
        most, rows, turns = max(1, min(request.limit, PAGE)), list[table.AuditRow](), Turns()
        end = min(topic.log.end, at + MOST_LOOKED_AT)
        while at < end:
            found = await topic.log.read(at)
            if found is None:
                break
            first, batch = found
            for offset in range(max(at, first), first + len(batch)):
                await turns.looked_at(ENTRY_COUNTS)
                entry = audit.decode(batch.payload(offset - first))
                at = offset + 1
                if _is_asked_for(entry, request):
                    rows.append(_row(offset, entry))
                    if len(rows) >= most:
                        return table.AuditRows(entries=rows, next=_next(at, topic.log.end))
        return table.AuditRows(entries=rows, next=_next(at, topic.log.end))


def _next(at: int, end: int) -> str:
    return str(at) if at < end else ""


def _is_asked_for(entry: AuditEntry, request: table.AuditList) -> bool:
    return (
        request.what in (None, entry.what)
        and request.name in (None, entry.name)
        and request.who in (None, entry.who)
        and request.operation in (None, entry.operation)
        and (request.since is None or entry.time >= request.since)
        # No reason to stop at: if somebody has set the clock back, earlier moments follow.
        and (request.until is None or entry.time <= request.until)
    )


def _row(offset: int, entry: AuditEntry) -> table.AuditRow:
    fields = msgspec.structs.asdict(entry)
    return table.AuditRow(offset=offset, **{**fields, "cut": list(entry.cut)})
