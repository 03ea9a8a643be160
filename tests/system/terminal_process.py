"""A terminal as a process of its own, for tests that kill it: python terminal_process.py STORE PORT. STORE is
a folder or the URL of a server.

Prints its token when it is ready. No clean-up of any kind: it is there to be killed."""

from __future__ import annotations

import asyncio
import sys

import structlog
import uvloop

from landbridge.broker.server import Terminal
from landbridge.core.store_address import is_address, parse_address
from landbridge.node.stores import store_at
from landbridge.stores.journal.store import JournalStore


async def main(path: str, port: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    if is_address(path):
        remote = store_at(parse_address(path))
        await remote.find()
        terminal = Terminal(remote)
    else:
        terminal = Terminal(JournalStore(path))
    await terminal.open()
    await terminal.listen("127.0.0.1", port)
    print(terminal.issue_token("test", ["admin"], 3600.0), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
