"""The stores of a terminal on a server, looked through, or told that they were restored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from landbridge.broker.commit import SETTINGS
from landbridge.broker.unit_life import new_incarnation
from landbridge.core.store_address import StoreAddress, parse_address
from landbridge.errors import BadRequest
from landbridge.node import backup, stores
from landbridge.node.upkeep import StoreCondition
from landbridge.registry.entities import CustomerRecord
from landbridge.stores.remote import RemoteStore

#: Seconds that a server may be away that is only looked at.
REACH_WITHIN = 3.0


@asynccontextmanager
async def _opened(address: StoreAddress) -> AsyncIterator[RemoteStore | None]:
    """The store, if it is there; StoreBusy where a process uses it."""
    store = stores.store_at(address)
    await store.find()
    try:
        if store.exists:
            await store.open()
        yield store if store.exists else None
    finally:
        await store.close()


async def reach(data: Path) -> str:
    """Reach the server that a data folder names, with the settings that it has to have. Returns what was
    found. The password, where one is needed, is in the environment."""
    noted = stores.noted(data)
    address = stores.address_of(None) or parse_address(noted)
    store = stores.store_at(address)
    try:
        units = await store.find(within=REACH_WITHIN)
    finally:
        await store.close()
    if not store.exists:
        raise BadRequest(
            f"{address} has no store", hint="is it the right server, and is the name the right one?"
        )
    return f"{address}, {units} units, its settings are right"


async def check_remote(address: StoreAddress) -> list[StoreCondition]:
    """Read the terminal's store and the registry's entirely."""
    found: list[StoreCondition] = []
    for name, each in ((stores.BUS, address), (stores.REGISTRY, stores.registry_address(address))):
        async with _opened(each) as store:
            if store is not None:
                logs = [log for unit in range(store.units) for log in (await store.logs(unit)).values()]
                size = sum(log.bytes for log in logs)
                found.append(StoreCondition(name, str(each), size, await store.check()))
    if not found:
        raise BadRequest(f"there is no store at {address}")
    return found


async def begin_anew(address: StoreAddress) -> str:
    """The server was restored from a backup: a new life begins. Returns the terminal's new incarnation."""
    incarnation = new_incarnation()
    async with _opened(address) as store:
        if store is None:
            raise BadRequest(f"there is no store at {address}")
        writes = backup.new_life(incarnation, await store.documents(0, SETTINGS))
        await store.commit(0, await store.claim(0), writes)
    async with _opened(stores.registry_address(address)) as store:
        if store is not None:
            writes = backup.later_versions(await store.documents(0, CustomerRecord.kind))
            await store.commit(0, await store.claim(0), writes)
    return incarnation
