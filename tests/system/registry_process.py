"""A registry as a process of its own, for tests that kill it: python registry_process.py FOLDER PORT LIMITS.

LIMITS: JSON of registry.limits.RegistryLimits. Prints one line of JSON when it answers: the operator's token
(after the first start only) and the registry's public key."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import msgspec
import structlog
import uvicorn
import uvloop

from landbridge.registry.http import app
from landbridge.registry.limits import RegistryLimits
from landbridge.registry.registry import Registry
from landbridge.stores.journal.store import JournalStore


def master_key(path: Path) -> bytes:
    if not path.exists():
        path.write_bytes(os.urandom(32))
    return path.read_bytes()


async def main(folder: Path, port: int, limits: RegistryLimits) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    registry = Registry(
        JournalStore(folder / "registry"),
        master_key(folder / "master.key"),
        lambda: time.time_ns() // 1000,
        limits=limits,
    )
    await registry.open()
    config = uvicorn.Config(app(registry), host="127.0.0.1", port=port, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        if serving.done():
            return await serving
        await asyncio.sleep(0.01)
    hello = {"token": registry.operator_token, "public_key": registry.public_key.hex()}
    print(json.dumps(hello), flush=True)
    return await serving


if __name__ == "__main__":
    uvloop.run(
        main(
            Path(sys.argv[1]),
            int(sys.argv[2]),
            msgspec.json.decode(sys.argv[3], type=RegistryLimits, strict=False),
        )
    )
