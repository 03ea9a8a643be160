from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from landbridge.core.log.store import Store
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from tests.registry.site import Site, Tenant

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "journal": lambda folder: JournalStore(folder / "registry"),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return STORES[request.param](tmp_path)


@pytest.fixture
async def site(crashes: list[Any], store: Store) -> AsyncIterator[Site]:
    """A registry on both stores."""
    async with Site.running(store) as site:
        yield site


@pytest.fixture
async def quick(crashes: list[Any]) -> AsyncIterator[Site]:
    """A registry in memory, for what the store has no part in."""
    async with Site.running(MemoryStore()) as site:
        yield site


@pytest.fixture
async def acme(quick: Site) -> Tenant:
    """A customer in ``quick`` with a topic that paris sends and rome receives."""
    return await quick.tenant("acme")
