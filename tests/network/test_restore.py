"""A terminal that was restored from a backup, and has forgotten what came after it: what is still in a log is
sent again, and nothing that a source publishes is taken for what had its offset before."""

from __future__ import annotations

import asyncio
from copy import deepcopy

import pytest
from msgspec.structs import replace

from landbridge.core.log.store import Store
from landbridge.testing.fleet import Fleet, FleetMember, until
from tests.waiting import LIMIT


async def backup_of(member: FleetMember) -> Store:
    backup = deepcopy(member.store)
    await backup.close()
    return backup


async def restore(fleet: Fleet, member: FleetMember, backup: Store) -> None:
    await fleet.stop(member)
    member.store = backup
    await fleet.start(member)


async def logged(member: FleetMember) -> list[int]:
    """What stands in the log of the orders, in order."""
    log = member.terminal.broker.topics["orders"].log
    found = []
    at = log.first
    while at < log.end:
        here = await log.read(at)
        assert here is not None
        first, batch = here
        found += [int(bytes(payload)) for payload in batch.payloads()]
        at = first + len(batch)
    return found


async def publish(bus, numbers, until="arrived"):
    for number in numbers:
        await bus.publish("orders", number, until=until)


async def test_a_source_that_went_back_sends_new_messages_under_old_offsets():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await publish(here, range(2))
            backup, older = await backup_of(paris), await backup_of(paris)
            await publish(here, range(2, 7))
        await restore(fleet, paris, backup)
        async with fleet.attach(paris) as here:
            await publish(here, range(100, 107))
        assert await logged(tokyo) == [*range(7), *range(100, 107)]
        # Once more, and with the destination restarted between: nothing of it is forgotten or comes twice.
        await restore(fleet, paris, older)
        await fleet.stop(tokyo)
        await fleet.start(tokyo)
        async with fleet.attach(paris) as here:
            await publish(here, range(200, 203))
        assert await logged(tokyo) == [*range(7), *range(100, 107), *range(200, 203)]


async def test_a_producer_hears_of_its_own_message_and_not_of_the_lost_one_with_its_offset():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await publish(here, [0])
            backup = await backup_of(paris)
            await publish(here, [1])
            async with there.subscribe("orders", group="billing") as messages:
                for _ in range(2):
                    await (await anext(aiter(messages))).ack()
        await restore(fleet, paris, backup)
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            acked = asyncio.ensure_future(here.publish("orders", 100, until="acked"))
            message = await anext(aiter(there.subscribe("orders", group="billing")))
            assert message.json() == 100
            assert not acked.done()
            await message.ack()
            await acked


@pytest.mark.parametrize("is_source_restarted", [False, True])
async def test_a_destination_that_went_back_gets_again_what_it_has_lost(is_source_restarted: bool):
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await publish(here, range(2))
            backup = await backup_of(tokyo)
            await publish(here, range(2, 7))
        if is_source_restarted:
            await fleet.stop(paris)
        await restore(fleet, tokyo, backup)
        if is_source_restarted:
            await fleet.start(paris)
        await until(lambda: tokyo.terminal.broker.topics["orders"].log.end == 7)  # by itself
        assert await logged(tokyo) == [*range(7)]
        async with fleet.attach(paris) as here:
            await publish(here, [7])
        assert await logged(tokyo) == [*range(8)]


async def test_a_destination_that_went_back_gets_new_messages_beside_the_lost_ones():
    """The source sends on before it knows that the destination has lost some."""
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo], audit=[tokyo])
        async with fleet.attach(paris) as here:
            await publish(here, range(2))
            backup = await backup_of(tokyo)
            await publish(here, range(2, 7))
            await fleet.stop(tokyo)
            await publish(here, range(7, 10), until="stored")
            tokyo.store = backup
            await fleet.start(tokyo)
            await until(lambda: tokyo.terminal.broker.topics["orders"].log.end >= 10)
            await publish(here, [10])
        assert sorted(set(await logged(tokyo))) == [*range(11)]


async def test_a_destination_that_only_restarts_gets_nothing_twice():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            for number in range(2):
                await publish(here, [number])
                await fleet.stop(tokyo)
                await fleet.start(tokyo)
            await until(lambda: not paris.network.forwarder._comparing)
            await publish(here, [2])
        assert await logged(tokyo) == [*range(3)]


async def test_a_topic_that_was_deleted_on_purpose_stays_empty_after_a_restart():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await publish(here, range(3))
            await tokyo.terminal.broker.table.delete_topic(tokyo.terminal.broker.topics["orders"])
            await fleet.stop(tokyo)
            await fleet.start(tokyo)
            await publish(here, [3])
            confirmed = paris.terminal.broker.topics["orders"].groups["billing"].confirmed
            await until(lambda: not confirmed.is_due(tokyo.id, tokyo.network.current_run))
            await publish(here, [4])
        assert await logged(tokyo) == [3, 4]


async def test_a_registry_that_went_back_is_followed_again():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here:
            await publish(here, [0])
        account = fleet.registry.index.accounts[fleet.customer]
        await until(lambda: paris.network.topics_version == account.customer.version)
        for member in (paris, tokyo):
            await fleet.stop(member)
        account.customer = replace(account.customer, version=2)
        for member in (paris, tokyo):
            await fleet.start(member)
        await fleet.topic("invoices", accounting=[tokyo])
        async with fleet.attach(paris) as here:
            await here.publish("invoices", 1, until="arrived")
        assert paris.network.directory.version == account.customer.version
