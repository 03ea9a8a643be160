"""A terminal with a hub and an HTTP port, to be killed while it works:
python websub_process.py DATABASE PORT HTTP_PORT.

Prints its token when it is ready. It doesn't wait long before it tries again."""

from __future__ import annotations

import asyncio
import sys

import structlog
import uvloop

from landbridge.broker.server import Terminal
from landbridge.core.outlet import outlet
from landbridge.core.websub import feed, subscription
from landbridge.gateways import outlets as sending
from landbridge.gateways import websub as gateway
from landbridge.node.assembly import dial_to
from landbridge.node.http_port import HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.site import Site
from landbridge.node.websub import hub_of
from landbridge.stores.journal.store import JournalStore


async def main(path: str, port: int, http_port: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    outlet.RETRIES = (0.02,) * len(outlet.RETRIES)  # type: ignore[assignment]
    subscription.VERIFY_RETRIES = (0.02,) * 100  # type: ignore[assignment]
    feed.FETCH_EVERY, feed.FETCH_RETRIES = 0.02, (0.02,) * 3
    outlet.OPEN_FOR = sending.LOOK_EVERY = gateway.LOOK_EVERY = 0.02
    terminal = Terminal(JournalStore(path))
    await terminal.open()
    await terminal.listen("127.0.0.1", port)
    site = Site(dial_to(terminal), answer_stranger=terminal.answer_stranger)
    HttpPort(site, Endpoint("127.0.0.1"), http_port, None, most=64, hint="", web_sockets=True)
    async with hub_of(terminal, dial_to(terminal), ["127.0.0.0/8"]):
        print(terminal.issue_token("test", ["admin"], 1e6), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
