"""``landbridge errors``: what services report of their failures, and the errors of the bus itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from landbridge.cli import output, units
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, option, start_of
from landbridge.cli.output import columns
from landbridge.cli.subscribe import Count, Reader, Wait
from landbridge.core.text import printable

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.client.message import DeliveredBatch

app = Commands(no_args_is_help=True, help="The errors of all services, in one place.")

LIST = columns("When=time:moment | Service@cyan | Code@red | Status | Endpoint | Message=about | Text=text")
CATALOGUE = columns("Code@cyan | HTTP=http_status | Exit=exit_status | Description=description")

Service = option("Only of this service.", "--service", metavar="NAME")
Code = option("Only with this code.", "--code", metavar="CODE")


def _is_wanted(report: dict[str, Any], service: str | None, code: str | None) -> bool:
    return (service is None or report["service"] == service) and (code is None or report["code"] == code)


@app.command("list")
def list_reports(
    service: str | None = Service,
    code: str | None = Code,
    count: int = option("The newest so many.", min=1, value=100),
    context: ContextName = None,
) -> None:
    """List what services have reported.

    Examples:
      landbridge errors list
      landbridge errors list --service billing --code no_such_customer --json
    """

    async def question(bus: Bus) -> list[dict[str, Any]]:
        found = [report async for report in _stored(bus) if _is_wanted(report, service, code)]
        return found[-count:]

    found = ask(context, question)
    output.emit(found, lambda rows: output.table(LIST, [_row(row) for row in rows], empty="no errors"))


async def _stored(bus: Bus) -> AsyncIterator[dict[str, Any]]:
    """The reports that the terminal has now, oldest first."""
    import msgspec

    from landbridge.core.faults import TOPIC
    from landbridge.errors import UnknownTopic

    at = 0
    while True:
        try:
            stretch = await bus.fetch(TOPIC, at)
        except UnknownTopic:
            return  # nobody has reported anything yet
        for fetched in stretch.batches:
            for payload in fetched.batch.payloads():
                yield msgspec.json.decode(payload)
            at = fetched.end
        if not stretch.batches or at >= stretch.end:
            return


def _row(report: dict[str, Any]) -> dict[str, Any]:
    place = f"{report.get('topic', '')} {report.get('offset', '')}".strip()
    return {
        "status": 500,
        "endpoint": "",
        **report,
        "about": place,
        "text": printable(report.get("text", "")),
    }


@app.command()
def tail(
    service: str | None = Service,
    code: str | None = Code,
    start: str | None = start_of("Where to begin: an ISO 8601 time, '10m ago', -10m.", "latest"),
    count: Count = None,
    wait: Wait = None,
    context: ContextName = None,
) -> None:
    """Watch the errors of services, until Ctrl-C. --count counts those that are filtered out, too.

    Examples:
      landbridge errors tail
      landbridge errors tail --service billing --from '10m ago'
    """
    from landbridge.core.faults import TOPIC

    def show(batch: DeliveredBatch, count: int) -> None:
        import msgspec

        for payload in batch.payloads[:count]:
            report = msgspec.json.decode(payload)
            if not _is_wanted(report, service, code):
                continue
            if output.choice.json:
                output.write_json(report)
            else:
                row = _row(report)
                parts = (units.iso(row["time"]), row["service"], row["code"], row["about"], row["text"])
                print(printable("  ".join(part for part in parts if part)), flush=True)

    Reader(TOPIC, None, start, count=count, wait=wait).run(context, show)


@app.command()
def catalogue(context: ContextName = None) -> None:
    """List the errors that the bus itself answers with.

    Examples:
      landbridge errors catalogue --json
    """
    found = ask(context, lambda bus: bus.errors.list())
    output.emit(
        found, lambda all: output.table(CATALOGUE, [output.fields(row) for row in all.errors], empty="")
    )
