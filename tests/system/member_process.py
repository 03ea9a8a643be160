"""A terminal among others as a process of its own, for tests that kill it: ``python member_process.py FILE``.

FILE: JSON of a Plan. Prints its token when it is ready; logs to stderr. No clean-up of any kind: it is there
to be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import structlog
import uvloop

from landbridge.broker.server import Terminal
from landbridge.client.registry import RegistryClient
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.crossing.ground import Settings
from landbridge.crossing.joining import join
from landbridge.stores.journal.store import JournalStore


class Plan(msgspec.Struct, kw_only=True):
    name: str
    customer: str
    terminal: str
    key: str
    database: str
    port: int
    registry: str
    #: Hex.
    registry_key: str
    settings: Settings = Settings()


async def main(plan: Plan) -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(20),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    terminal = Terminal(JournalStore(plan.database), name=plan.name)
    await terminal.open()
    key = SecureKey.parse(plan.key)
    identity = Identity(plan.customer, plan.terminal, key)
    async with RegistryClient(plan.registry, identity=identity) as registry:
        registry_key = bytes.fromhex(plan.registry_key)
        await join(terminal, plan.customer, plan.terminal, key, registry, registry_key, plan.settings)
        await terminal.listen("127.0.0.1", plan.port)
        print(terminal.issue_token("test", ["admin"], 3600.0), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)))
