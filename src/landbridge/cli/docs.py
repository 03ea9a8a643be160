"""``landbridge docs``: descriptions of what is at the terminal, for people and for tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from landbridge import __version__
from landbridge.cli import output
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, option
from landbridge.core.names import is_reserved
from landbridge.core.wording import counted

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.core.trust.service import ServiceSpec

app = Commands(no_args_is_help=True, help="Descriptions of topics, groups and services.")

#: Questions that are asked at once.
AT_ONCE = 100


@app.command("asyncapi")
def asyncapi_document(
    out: Annotated[Path | None, option("Write it to this file.", metavar="FILE")] = None,
    context: ContextName = None,
) -> None:
    """Describe the topics, their groups and the registered services as an AsyncAPI 3 document, in JSON.

    Examples:
      landbridge docs asyncapi --out asyncapi.json
    """
    from landbridge.client.context import resolve

    url = resolve(context=context).url
    document = ask(context, lambda bus: _describe(bus, url))
    if out is None:
        output.write_json(document)
        return
    import msgspec

    out.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    channels, operations = len(document["channels"]), len(document["operations"])
    output.tell(
        {"file": str(out), "channels": channels, "operations": operations},
        f"{out}: {counted(channels, 'channel')}, {counted(operations, 'operation')}",
    )


async def _describe(bus: Bus, url: str) -> dict[str, Any]:
    from landbridge.protocol.asyncapi import asyncapi

    names = [row.name for row in await bus.topics.list() if not is_reserved(row.name)]
    rows = [row for row in await bus.groups.list() if row.durable and not is_reserved(row.topic)]
    topics, groups = [], []
    for at in range(0, len(names), AT_ONCE):
        shown = await asyncio.gather(*(bus.topics.show(name) for name in names[at : at + AT_ONCE]))
        topics += [found.options for found in shown]
    for at in range(0, len(rows), AT_ONCE):
        shown_groups = await asyncio.gather(
            *(bus.groups.show(row.topic, row.name) for row in rows[at : at + AT_ONCE])
        )
        groups += [found.options for found in shown_groups]
    scheme, _, host = url.partition("://")
    return asyncapi(
        bus.terminal_name or "a terminal",
        topics,
        groups,
        await _services(bus),
        host=host,
        secure=scheme == "lbs",
        version=__version__,
    )


async def _services(bus: Bus) -> list[ServiceSpec]:
    """What the registered services say of themselves; none where the terminal registers no services."""
    import msgspec

    from landbridge.core.trust.service import ServiceSpec
    from landbridge.protocol.operations import OPERATIONS

    if "service.list" not in OPERATIONS:
        return []
    found: list[ServiceSpec] = []
    after = ""
    while True:
        page = await bus.call("service.list", after=after)
        for row in page["services"]:
            details = await bus.call("service.show", name=row["name"])
            found.append(msgspec.convert(details["options"], ServiceSpec))
        after = page["next"]
        if not after:
            return found
