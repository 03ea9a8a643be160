"""A terminal that sends webhooks, to be killed while it sends: python webhook_process.py DATABASE PORT.

Prints its token when it is ready. It doesn't wait long before it tries again."""

from __future__ import annotations

import asyncio
import sys

import structlog
import uvloop

from landbridge.broker.server import Terminal
from landbridge.core.outlet import outlet
from landbridge.gateways import outlets as gateway
from landbridge.node.assembly import dial_to
from landbridge.node.webhooks import webhooks_of
from landbridge.stores.journal.store import JournalStore


async def main(path: str, port: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    outlet.RETRIES = (0.02,) * len(outlet.RETRIES)  # type: ignore[assignment]
    outlet.OPEN_FOR = gateway.LOOK_EVERY = 0.02
    terminal = Terminal(JournalStore(path))
    await terminal.open()
    await terminal.listen("127.0.0.1", port)
    async with webhooks_of(terminal, dial_to(terminal), ["127.0.0.0/8"]):
        print(terminal.issue_token("test", ["admin"], 1e6), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
