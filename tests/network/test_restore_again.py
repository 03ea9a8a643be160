"""Restores that come together with other troubles: runs unheard of, wrong clocks, deleted topics."""

from __future__ import annotations

import asyncio
import random

from msgspec.structs import replace

from landbridge.broker.clock import Clock
from landbridge.broker.server import Terminal
from landbridge.core.log.ranges import count, intersect
from landbridge.core.shipping.confirmed import Confirmed
from landbridge.core.time import SECOND
from landbridge.node.backup import VERSIONS_AHEAD
from landbridge.testing.fleet import Fleet, FleetMember, until
from tests.network.test_restore import backup_of, logged, publish, restore
from tests.waiting import LIMIT


async def test_a_destination_that_misses_a_whole_run_of_a_restored_source():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await publish(here, range(2))
            backup = await backup_of(paris)
            await publish(here, range(2, 7))
        await fleet.stop(tokyo)
        await restore(fleet, paris, backup)
        async with fleet.attach(paris) as here:
            await publish(here, range(100, 107), until="stored")
        await fleet.stop(paris)  # a normal restart
        await fleet.start(paris)
        await fleet.start(tokyo)
        async with fleet.attach(paris) as here:
            await publish(here, [200])
        assert await logged(tokyo) == [*range(7), *range(100, 107), 200]


async def test_a_topic_deleted_once_and_then_a_restore():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await publish(here, range(3))
            await tokyo.terminal.broker.table.delete_topic(tokyo.terminal.broker.topics["orders"])
            backup = await backup_of(tokyo)
            await publish(here, range(3, 7))
            assert await logged(tokyo) == [3, 4, 5, 6]
        await restore(fleet, tokyo, backup)
        async with fleet.attach(paris) as here:
            await publish(here, [7])
            confirmed = paris.terminal.broker.topics["orders"].groups["billing"].confirmed
            await until(lambda: not confirmed.is_due(tokyo.id, tokyo.network.current_run))
            await publish(here, [8])
        assert {3, 4, 5, 6, 7, 8} <= set(await logged(tokyo))


class WrongClock(Clock):
    def __init__(self, skew: float) -> None:
        super().__init__()
        self._skew = int(skew * SECOND)
        self._offset += self._skew

    def resync(self) -> int:
        return 0


async def start(fleet: Fleet, member: FleetMember, skew: float = 0.0) -> None:
    member.terminal = Terminal(member.store, name=member.name, limits=member.limits, clock=WrongClock(skew))
    await member.terminal.open()
    await fleet._listen_and_join(member)


async def test_a_destination_restored_with_its_clock_set_back_begins_another_run():
    """LinkStates._leap adopts the epoch of the run that is lost: nobody sees that this is another run."""
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await publish(here, range(2))
            backup = await backup_of(tokyo)
            await fleet.stop(tokyo)
            await start(fleet, tokyo, skew=10)
            confirmed = paris.terminal.broker.topics["orders"].groups["billing"].confirmed
            await until(
                lambda: (
                    paris.network.placing.run_of(tokyo.id) == tokyo.network.current_run
                    and not confirmed.is_due(tokyo.id, tokyo.network.current_run)
                )
            )
            await publish(here, range(2, 7))
            await fleet.stop(tokyo)
            tokyo.store = backup
            await start(fleet, tokyo)  # the clock is right again
            await publish(here, [7])
            await asyncio.sleep(8)
            print(confirmed._terminals, tokyo.network.current_run, paris.network.placing.run_of(tokyo.id))
        assert sorted(await logged(tokyo)) == [*range(8)]


async def test_a_destination_restored_twice_with_its_clock_at_the_backup():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await publish(here, range(2))
            one, two = await backup_of(tokyo), await backup_of(tokyo)
            confirmed = paris.terminal.broker.topics["orders"].groups["billing"].confirmed
            for backup, numbers in ((one, range(2, 7)), (two, [7])):
                await fleet.stop(tokyo)
                tokyo.store = backup
                await start(fleet, tokyo, skew=-10)
                await publish(here, numbers)
                await asyncio.sleep(6)
                print(confirmed._terminals, tokyo.network.current_run)
        assert sorted(await logged(tokyo)) == [*range(8)]


async def test_a_topic_deleted_long_ago_and_a_new_source():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await publish(here, range(3))
            await tokyo.terminal.broker.table.delete_topic(tokyo.terminal.broker.topics["orders"])
            await publish(here, range(3, 5))
        lyon = await fleet.server("lyon")
        backup = await backup_of(tokyo)
        async with fleet.attach(lyon) as here:
            await publish(here, range(10, 15))
        await restore(fleet, tokyo, backup)
        async with fleet.attach(lyon) as here:
            await publish(here, [15])
            confirmed = lyon.terminal.broker.topics["orders"].groups["billing"].confirmed
            await until(lambda: not confirmed.is_due(tokyo.id, tokyo.network.current_run))
            await publish(here, [16])
        assert set(range(10, 17)) <= set(await logged(tokyo))


async def test_a_destination_whose_clock_was_ahead_once_is_restored_with_a_right_clock():
    """Its epochs are ahead of the clock since then: the run after a restore has the number of the run that
    had followed the backup."""
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.stop(tokyo)
        await start(fleet, tokyo, skew=25)
        await fleet.stop(tokyo)
        await start(fleet, tokyo)  # from here on the clock is right
        runs = []
        async with fleet.attach(paris) as here:
            await publish(here, range(2))
            confirmed = paris.terminal.broker.topics["orders"].groups["billing"].confirmed

            def compared() -> bool:
                run = tokyo.network.current_run
                return paris.network.placing.run_of(tokyo.id) == run and not confirmed.is_due(tokyo.id, run)

            await until(compared)
            backup = await backup_of(tokyo)
            await fleet.stop(tokyo)
            await fleet.start(tokyo)
            runs.append(tokyo.network.current_run)
            await until(compared)
            await publish(here, range(2, 7))
            await restore(fleet, tokyo, backup)
            runs.append(tokyo.network.current_run)
            await publish(here, [7])
            await asyncio.sleep(6)
        assert sorted(await logged(tokyo)) == [*range(8)]


async def test_a_source_whose_clock_was_ahead_once_is_restored_with_a_right_clock():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.stop(paris)
        await start(fleet, paris, skew=25)
        await fleet.stop(paris)
        await start(fleet, paris)  # from here on the clock is right
        async with fleet.attach(paris) as here:
            await publish(here, range(2))
        backup = await backup_of(paris)
        await fleet.stop(paris)
        await fleet.start(paris)
        async with fleet.attach(paris) as here:
            await publish(here, range(2, 7))
        await restore(fleet, paris, backup)
        async with fleet.attach(paris) as here:
            await publish(here, range(100, 103))
        assert await logged(tokyo) == [*range(7), *range(100, 103)]


async def test_a_terminal_of_which_nothing_is_left_to_compare_is_asked_no_more():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await publish(here, range(2))
        confirmed = paris.terminal.broker.topics["orders"].groups["billing"].confirmed
        confirmed.document(2)  # as when the log was trimmed, and the group saved
        await fleet.stop(tokyo)
        await fleet.start(tokyo)
        await until(lambda: paris.network.placing.run_of(tokyo.id) == tokyo.network.current_run)
        await until(lambda: not confirmed.is_due(tokyo.id, tokyo.network.current_run), within=12)


async def test_both_ends_go_back_and_the_source_restarts():
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await publish(here, range(2))
            of_paris = await backup_of(paris)
            await publish(here, range(2, 5))
            of_tokyo = await backup_of(tokyo)
        await restore(fleet, paris, of_paris)
        async with fleet.attach(paris) as here:
            await publish(here, range(100, 106))
        assert await logged(tokyo) == [*range(5), *range(100, 106)]
        await fleet.stop(paris)  # a normal restart
        await restore(fleet, tokyo, of_tokyo)
        await fleet.start(paris)
        async with fleet.attach(paris) as here:
            await publish(here, [200])
            confirmed = paris.terminal.broker.topics["orders"].groups["billing"].confirmed
            await until(lambda: not confirmed.is_due(tokyo.id, tokyo.network.current_run))
            await publish(here, [201])
        assert set(await logged(tokyo)) == {*range(5), *range(100, 106), 200, 201}


def test_whatever_a_terminal_claims_to_have_it_gets_no_more_than_it_had_confirmed():
    chance = random.Random(1)
    for _ in range(3000):
        confirmed = Confirmed()
        confirmed.add("x", 1, [(5, 10), (20, 30)])
        asked = confirmed.of("x")
        has = [(chance.randint(-40, 40), chance.randint(-40, 40)) for _ in range(chance.randint(0, 5))]
        lost = confirmed.compare("x", 2, asked, chance.randint(-40, 40), has)
        assert count(intersect(lost, asked)) == count(lost) or not lost, (has, lost)
        assert all(first < end for first, end in lost), (has, lost)


async def test_a_registry_restored_by_command_and_later_by_a_copy_of_its_disk():
    """The command skips many versions; the copy of the disk takes them back."""
    async with Fleet() as fleet, asyncio.timeout(LIMIT):
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        account = fleet.registry.index.accounts[fleet.customer]
        copy = account.customer.version
        for version in (copy + VERSIONS_AHEAD, copy):
            for member in (paris, tokyo):
                await fleet.stop(member)
            account.customer = replace(account.customer, version=version)
            for member in (paris, tokyo):
                await fleet.start(member)
            if version != copy:
                await fleet.topic("invoices", accounting=[tokyo])
                await until(lambda: paris.network.directory.version == account.customer.version)
                async with fleet.attach(paris) as here:
                    await here.publish("invoices", 1, until="arrived")
        await until(lambda: paris.network.registry_up or paris.network.refusal is not None)
        await asyncio.sleep(3)
        assert paris.network.refusal is None
