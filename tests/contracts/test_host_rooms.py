"""Room for requests to hosts: those that are quick don't wait for those that are slow."""

from __future__ import annotations

import asyncio
import random

import pytest

from landbridge.gateways.host_rooms import MOST_REMEMBERED, HostRooms
from tests.waiting import turns


class Hosts:
    """Requests that end when the test says so."""

    def __init__(self, most: int = 8, most_of_one: int = 4) -> None:
        self.now = 0.0
        self.rooms = HostRooms(most, most_of_one, lambda: self.now)
        self.under_way: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, host: str, times: int = 1) -> list[asyncio.Task[None]]:
        tasks = [asyncio.ensure_future(self._ask(host)) for _ in range(times)]
        self.tasks += tasks
        return tasks

    async def _ask(self, host: str) -> None:
        done = asyncio.Event()
        async with self.rooms.taken(f"https://{host}/in"):
            self.under_way.append((host, done))
            try:
                await done.wait()
            finally:
                self.under_way.remove((host, done))

    @property
    def hosts(self) -> list[str]:
        return [host for host, _ in self.under_way]

    async def answer(self, host: str, after: float = 0.0) -> None:
        """The oldest request to a host is answered, so much later."""
        await turns()
        self.now += after
        next(done for other, done in self.under_way if other == host).set()
        await turns()

    async def end(self) -> None:
        for _ in self.tasks:
            await turns()
            for _, done in list(self.under_way):
                done.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert not self.under_way


async def test_a_quick_host_has_room_however_many_are_slow() -> None:
    hosts = Hosts()
    hosts.ask("quick")
    await hosts.answer("quick")
    for number in range(20):
        hosts.ask(f"slow{number}", 4)
    await turns()
    assert len(hosts.hosts) == 4  # half of the room
    hosts.ask("quick", 5)
    await turns()
    assert hosts.hosts.count("quick") == 4  # as many as one host may have
    for _ in range(5):
        await hosts.answer("quick")
    assert "quick" not in hosts.hosts
    await hosts.answer(hosts.hosts[0], after=10.0)
    assert len(hosts.hosts) == 4
    hosts.ask("quick")
    await turns()
    assert hosts.hosts.count("quick") == 1
    await hosts.end()


async def test_a_host_that_is_not_known_yet_waits_for_one_request_of_the_others() -> None:
    hosts = Hosts(most=2, most_of_one=1)
    hosts.ask("a", 10)
    hosts.ask("b", 10)
    await turns()
    assert hosts.hosts == ["a"]
    await hosts.answer("a", after=10.0)
    assert hosts.hosts == ["b"]
    hosts.ask("new")
    await hosts.answer("b", after=10.0)
    assert hosts.hosts == ["new"]
    await hosts.end()


async def test_a_quick_host_that_becomes_slow_gives_its_place_back() -> None:
    hosts = Hosts(most=4, most_of_one=4)
    hosts.ask("host")
    await hosts.answer("host")
    hosts.ask("host", 8)
    await turns()
    assert len(hosts.hosts) == 4
    for _ in range(4):
        await hosts.answer("host", after=5.0)
    assert len(hosts.hosts) == 2
    await hosts.end()


@pytest.mark.parametrize("seed", range(5))
async def test_no_place_is_lost_whoever_gives_up_when(seed: int) -> None:
    chance, hosts = random.Random(seed), Hosts(most=4, most_of_one=2)
    for _ in range(300):
        kind = chance.random()
        if kind < 0.5:
            hosts.ask(f"h{chance.randrange(6)}")
        elif kind < 0.75 and hosts.under_way:
            hosts.now += chance.choice((0.1, 5.0))
            chance.choice(hosts.under_way)[1].set()
        elif hosts.tasks:
            chance.choice(hosts.tasks).cancel()
        if chance.random() < 0.5:
            await turns(chance.randrange(3))
        assert len(hosts.hosts) <= 4
        assert all(hosts.hosts.count(host) <= 2 for host in hosts.hosts)
    await hosts.end()
    for number in range(4):
        hosts.ask(f"h{number}")
        await hosts.answer(f"h{number}")
    for number in range(4):
        hosts.ask(f"h{number}")
    await turns()
    assert len(hosts.hosts) == 4
    await hosts.end()


async def test_not_every_host_is_remembered() -> None:
    rooms = HostRooms(2, 1)
    for number in range(MOST_REMEMBERED + 10):
        async with rooms.taken(f"https://h{number}/"):
            pass
    assert len(rooms._quick) == MOST_REMEMBERED
