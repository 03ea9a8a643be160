"""Operations on errors: those of the bus, and those that services report of themselves."""

from __future__ import annotations

import msgspec

from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.core import faults
from landbridge.core.log.batch import Batch, HeaderValue, build, encode_headers
from landbridge.core.names import check_name
from landbridge.errors import BadRequest, BusError, catalogue
from landbridge.protocol import operations as table

#: Characters of a report's text, and of each of its other fields.
LONGEST_TEXT, LONGEST_FIELD = 4096, 200


class ErrorOperations:
    """The handlers of error.*"""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._allowance = faults.Allowance()

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.ERROR_LIST, self.list_all)
        dispatcher.register(table.ERROR_REPORT, self.report)

    async def list_all(self, caller: TokenBearer, request: table.Nothing) -> table.ErrorCatalogue:
        return table.ErrorCatalogue(errors=[describe(kind) for kind in catalogue()])

    async def report(self, caller: TokenBearer, request: table.ErrorReport) -> table.ErrorReported:
        """The service is the subject of the caller's token: no service reports in another one's name."""
        report = _checked(caller.subject, request)
        broker = self._broker
        now = broker.clock()
        dropped = self._allowance.take(caller.subject, now)
        if dropped is None:
            broker.totals.reports_dropped += 1
            return table.ErrorReported(stored=False)
        report = msgspec.structs.replace(report, time=now, dropped=report.dropped + dropped)
        headers: dict[str, HeaderValue] = {
            "service": report.service,
            "code": report.code,
            "status": report.status,
        }
        batch = Batch.decode(
            build(
                [msgspec.json.encode(report)],
                id=broker.new_id(),
                time=now,
                keys=[report.service.encode()],
                headers=[encode_headers(headers)],
            )
        )
        topic = broker.table.topic_for(faults.TOPIC)
        await topic.writer.put(lambda commit: broker.committing.append(commit, topic, batch))
        broker.totals.reports += 1
        return table.ErrorReported(stored=True)


def _checked(subject: str, request: table.ErrorReport) -> faults.Report:
    fields = (request.code, request.version, request.endpoint, request.trace_id, request.topic, request.id)
    if max(map(len, fields)) > LONGEST_FIELD:
        raise BadRequest(f"a report with a field above {LONGEST_FIELD} characters")
    if not 400 <= request.status <= 599:
        raise BadRequest(f"a status of {request.status}", hint="400 to 599, as in HTTP")
    if request.dropped < 0 or not -1 <= (request.offset or 0) < 1 << 62:
        raise BadRequest("a report with an odd number", hint="offset and dropped are not negative")
    if request.topic:
        check_name(request.topic, "topic")
    return faults.Report(
        service=subject,
        code=check_name(request.code, "error"),
        status=request.status,
        text=request.text[:LONGEST_TEXT],
        version=request.version,
        endpoint=request.endpoint,
        trace_id=request.trace_id,
        topic=request.topic,
        offset=None if request.offset is None or request.offset < 0 else request.offset,
        id=request.id,
        dropped=min(request.dropped, 1 << 40),
    )


def describe(kind: type[BusError]) -> table.ErrorRow:
    """The row of an error in the catalogue."""
    return table.ErrorRow(
        code=kind.code,
        http_status=kind.http_status,
        exit_status=kind.exit_status,
        retriable=kind.retriable,
        description=" ".join((kind.__doc__ or "").split()),
        hint=kind.default_hint,
    )
