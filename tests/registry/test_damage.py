"""What can't be read of one customer: the others go on."""

from __future__ import annotations

import pytest

from landbridge.core.log.store import PutDocument
from landbridge.errors import BusError, StoreCorrupt, Unauthenticated
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock
from tests.registry.site import Site


async def spoil(store: MemoryStore, kind: str, beginning: str = "") -> None:
    await store.open()
    key = next(key for key, _ in await store.documents(0, kind) if key.startswith(beginning))
    await store.commit(0, await store.claim(0), [PutDocument(kind, key, b"\xff garbage")])
    await store.close()


@pytest.mark.parametrize(
    "kind", ["registry/customer", "registry/terminal", "registry/group", "registry/topic"]
)
async def test_a_damaged_document_concerns_its_customer_alone(kind: str) -> None:
    store, clock = MemoryStore(), FakeClock()
    async with Site.running(store, clock=clock) as site:
        acme, other = await site.tenant("acme"), await site.tenant("other")
        operator = site.operator_token
    await spoil(store, kind, acme.id)
    async with Site.running(store, clock=clock, operator_token=operator) as site:
        assert any(kind.removeprefix("registry/") in each.lower() for each in site.registry.damage)
        shown = await site.client(token=other.token).list_terminals()
        assert {each.name for each in shown.items} == {"paris", "rome", "oslo"}
        if kind == "registry/customer":
            with pytest.raises(Unauthenticated):
                await site.client(token=acme.token).list_terminals()
        else:
            await site.client(token=acme.token).create_terminal("lima", make_key=False)
        await site.tenant("third")


async def test_a_damaged_keyring_is_refused_with_a_way_out() -> None:
    """Nothing of the registry can be opened without its keys."""
    store = MemoryStore()
    async with Site.running(store):
        pass
    await spoil(store, "registry/keyring")
    with pytest.raises(BusError) as caught:
        async with Site.running(store):
            pass
    assert isinstance(caught.value, StoreCorrupt)
    assert "--no-registry" in caught.value.hint
