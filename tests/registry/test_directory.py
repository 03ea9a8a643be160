from __future__ import annotations

import asyncio

import pytest

from landbridge.core.trust import directory
from landbridge.errors import BadRequest, LimitReached, ShuttingDown, Unauthenticated
from landbridge.registry.limits import RegistryLimits
from landbridge.stores.memory import MemoryStore
from tests.registry.site import Member, Site, Tenant
from tests.waiting import eventually


async def version(site: Site, tenant: Tenant) -> int:
    return (await tenant.admin.show_message_bus_customer()).directory_version


async def test_version_grows_with_each_change_and_not_without(quick: Site, acme: Tenant) -> None:
    at = await version(quick, acme)
    await acme.admin.update_terminal(acme.paris.id, region="eu")
    await acme.admin.create_terminal_group("auditors")
    await acme.admin.add_group_to_topic("orders", "auditors")
    assert await version(quick, acme) == at + 3
    await acme.admin.rotate_message_bus_topic_key("orders")
    await acme.admin.create_terminal_enrolment(acme.oslo.id)
    await acme.paris.registry.issue("orders")
    with pytest.raises(BadRequest):
        await acme.admin.update_terminal(acme.paris.id, address="nowhere")
    assert await version(quick, acme) == at + 3
    assert await acme.paris.registry.directory(at + 3) is None
    signed = await acme.paris.registry.directory(at + 2)
    assert signed is not None
    assert directory.verify(signed.directory, quick.registry.public_key).version == at + 3


async def test_another_key_has_not_signed_it(quick: Site, acme: Tenant) -> None:
    signed = await acme.paris.registry.directory()
    assert signed is not None
    with pytest.raises(Unauthenticated):
        directory.verify(signed.directory, acme.paris.key.public.sign)


async def test_who_waits_hears_of_a_change_at_once(quick: Site, acme: Tenant) -> None:
    at = await version(quick, acme)
    waiting = asyncio.create_task(acme.rome.registry.directory(at, wait=30.0))
    await eventually(lambda: quick.registry.directories.waiting == 1)
    await acme.admin.revoke_terminal(acme.paris.id)
    signed = await waiting
    assert signed is not None
    assert directory.verify(signed.directory, quick.registry.public_key).revoked == [acme.paris.id]
    assert quick.registry.directories.waiting == 0


@pytest.mark.parametrize("how", ["revoke", "remove", "remove customer"])
async def test_who_is_cut_off_while_it_waits_learns_nothing(quick: Site, acme: Tenant, how: str) -> None:
    waiting = asyncio.create_task(acme.rome.registry.directory(await version(quick, acme), wait=30.0))
    await eventually(lambda: quick.registry.directories.waiting == 1)
    match how:
        case "revoke":
            await acme.admin.revoke_terminal(acme.rome.id)
        case "remove":
            await acme.admin.remove_terminal(acme.rome.id)
        case _:
            await quick.operator.remove_message_bus_customer(acme.id)
    with pytest.raises(Unauthenticated):
        await waiting


async def test_waiting_is_bounded() -> None:
    async with Site.running(MemoryStore(), limits=RegistryLimits(max_waiting_each=1, max_wait=5.0)) as site:
        acme = await site.tenant("acme")
        at = await version(site, acme)
        first = asyncio.create_task(acme.rome.registry.directory(at, wait=5.0))
        await eventually(lambda: site.registry.directories.waiting == 1)
        second = asyncio.create_task(acme.rome.registry.directory(at, wait=5.0))
        assert await first is None  # a terminal that asks again has given its first question up
        assert site.registry.directories.waiting == 1
        with pytest.raises(BadRequest):
            await acme.paris.registry.directory(at, wait=6.0)
        assert await acme.rome.registry.directory(at) is None
        second.cancel()
        await eventually(lambda: site.registry.directories.waiting == 0)


async def test_waiting_is_bounded_for_all_together() -> None:
    async with Site.running(MemoryStore(), limits=RegistryLimits(max_waiting=1, max_wait=5.0)) as site:
        acme = await site.tenant("acme")
        at = await version(site, acme)
        first = asyncio.create_task(acme.rome.registry.directory(at, wait=5.0))
        await eventually(lambda: site.registry.directories.waiting == 1)
        with pytest.raises(LimitReached):
            await acme.paris.registry.directory(at, wait=5.0)
        first.cancel()
        await eventually(lambda: site.registry.directories.waiting == 0)


async def test_nobody_waits_for_a_registry_that_closes() -> None:
    async with Site.running(MemoryStore()) as site:
        acme = await site.tenant("acme")
        waiting = asyncio.create_task(acme.rome.registry.directory(await version(site, acme), wait=30.0))
        await eventually(lambda: site.registry.directories.waiting == 1)
        site.registry.directories.close()
        with pytest.raises(ShuttingDown):
            await waiting


async def test_a_terminal_learns_of_the_topics_that_it_has_to_do_with_and_no_others(
    quick: Site, acme: Tenant
) -> None:
    await acme.admin.create_message_bus_topic("secrets")

    async def topics(of: Member, *used: str) -> list[str]:
        update = await of.registry.directory(topics=used)
        assert update is not None
        assert directory.verify(update.directory, quick.registry.public_key).topics == []
        return [topic.name for topic in directory.verify(update.topics, quick.registry.public_key).topics]

    assert await topics(acme.rome) == ["orders"]  # a terminal of its group
    assert await topics(acme.paris) == []
    assert await topics(acme.paris, "orders", "nothing") == ["orders"]


async def test_a_registry_that_went_back_is_heard_again(quick: Site, acme: Tenant) -> None:
    """Its terminals know later versions than it has: its next one is later still, so that they take it."""
    at = await version(quick, acme)
    signed = await acme.paris.registry.directory(at + 17)
    assert signed is not None
    assert directory.verify(signed.directory, quick.registry.public_key).version == at + 18
    assert await acme.paris.registry.directory(at + 18) is None, "once"
    await acme.admin.update_terminal(acme.paris.id, region="eu")
    assert await version(quick, acme) == at + 19
    with pytest.raises(BadRequest, match="the newest is"):
        await acme.paris.registry.directory(1 << 40)
