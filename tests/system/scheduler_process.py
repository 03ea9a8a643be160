"""A terminal with its scheduler, to be killed while it fires:
python scheduler_process.py DATABASE PORT CLOCK_AHEAD.

Prints its token when it is ready. The clock is CLOCK_AHEAD seconds ahead of this machine's."""

from __future__ import annotations

import asyncio
import sys

import structlog
import uvloop

from landbridge.broker.clock import Clock
from landbridge.broker.server import Terminal
from landbridge.core.time import SECOND
from landbridge.node.assembly import dial_to
from landbridge.node.schedules import scheduling
from landbridge.stores.journal.store import JournalStore


class WrongClock(Clock):
    """Somebody has set the clock of this machine."""

    def __init__(self, ahead: float) -> None:
        super().__init__()
        self._ahead = int(ahead * SECOND)

    def __call__(self) -> int:
        return super().__call__() + self._ahead

    def resync(self) -> int:
        return 0


async def main(path: str, port: int, ahead: float) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    terminal = Terminal(JournalStore(path), clock=WrongClock(ahead))
    await terminal.open()
    await terminal.listen("127.0.0.1", port)
    token = terminal.issue_token("test", ["admin"], 1e6)  # now the owner of the schedules is known
    async with scheduling(terminal, dial_to(terminal)):
        print(token, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
