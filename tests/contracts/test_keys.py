"""Groups that take one key alone: they get what they would get by looking at everything, and aren't bothered
by the rest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest

from landbridge.broker import group as groups
from landbridge.broker import topic as topics
from landbridge.broker.group import Group
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.publisher import Rows
from landbridge.stores.memory import MemoryStore
from landbridge.testing import attach, run_terminal
from tests.waiting import LIMIT, Reader, eventually

TOPIC = "letters"


async def group(bus: Bus, name: str, key: str) -> None:
    await bus.call("group.create", topic=TOPIC, name=name, match={"key": key})


async def post(bus: Bus, *batches: Iterable[tuple[bytes, bytes]]) -> None:
    """(key, payload) of each message; each batch stays one."""
    async with bus.transaction() as transaction:
        for messages in batches:
            rows = Rows()
            rows.keys = [key for key, _ in messages]
            rows.payloads = [payload for _, payload in messages]
            await transaction.publish_rows(TOPIC, rows)


def found(terminal: Terminal, name: str) -> Group:
    return terminal.broker.table.group(TOPIC, name)


async def test_batches_of_a_transaction_stay_apart_and_in_order(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        rows = Rows()
        rows.payloads = [b"2", b"3"]
        async with bus.transaction() as transaction:
            await transaction.publish(TOPIC, b"0")
            await transaction.publish(TOPIC, b"1")
            await transaction.publish_rows(TOPIC, rows)
            await transaction.publish(TOPIC, b"4")
        log = terminal.broker.table.topic(TOPIC).log
        assert [(first, log.batches[first].payloads()) for first in log.firsts] == [
            (0, [b"0", b"1"]),
            (2, [b"2", b"3"]),
            (4, [b"4"]),
        ]


async def test_group_of_another_key_is_left_alone_until_somebody_asks(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await group(bus, "mine", "a")
        async with Reader(bus.subscribe(TOPIC, group="mine")) as reader:
            await post(bus, *([(b"b", b"%d" % n)] for n in range(50)))
            assert found(terminal, "mine").delivery.end == 0
            shown = await bus.call("group.show", topic=TOPIC, name="mine")
            assert (shown["lag"], shown["floor"]) == (0, 50)
            await post(bus, [(b"b", b"no")], [(b"a", b"yes")], [(b"b", b"no")])
            assert await reader.payloads(1) == [b"yes"]
            shown = await bus.call("group.show", topic=TOPIC, name="mine")
            assert (shown["lag"], shown["floor"]) == (0, 53)


async def test_waiting_for_a_message_of_another_key_ends(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await group(bus, "mine", "a")
        await post(bus, [(b"b", b"no")])
        async with asyncio.timeout(LIMIT):
            await terminal.broker.consuming.until_settled(found(terminal, "mine"), 0)


async def test_batch_with_several_keys_is_looked_through(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await group(bus, "mine", "a")
        async with Reader(bus.subscribe(TOPIC, group="mine")) as reader:
            await post(bus, [(b"b", b"no"), (b"a", b"1"), (b"", b"no"), (b"a", b"2")])
            assert await reader.payloads(2) == [b"1", b"2"]


async def test_changed_key_counts_from_then_on(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await group(bus, "mine", "a")
        async with Reader(bus.subscribe(TOPIC, group="mine")) as reader:
            await post(bus, [(b"a", b"1")], [(b"b", b"no")])
            assert await reader.payloads(1) == [b"1"]
            for pattern, key in (("b", b"b"), ("[bc]", b"c"), ("a", b"a")):
                await bus.call("group.update", topic=TOPIC, name="mine", match={"key": pattern})
                await post(bus, [(b"x", b"no")], [(key, key)])
                assert await reader.payloads(1) == [key]


async def test_what_came_of_other_keys_holds_nothing_back_from_retention(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.call("topic.create", name=TOPIC, retention={"settled": True})
        await group(bus, "absent", "a")
        await group(bus, "other", "b")
        async with Reader(bus.subscribe(TOPIC, group="other")) as reader:
            await post(bus, *([(b"b", b"%d" % n)] for n in range(20)))
            await reader.payloads(20)
        assert terminal.broker.table.topic(TOPIC).settled_to() == 20


async def test_group_that_is_away_keeps_a_bounded_memory_of_what_it_passed_over(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await group(bus, "away", "a")
        for n in range(2000):
            await post(bus, [(b"a", b"%d" % n)], [(b"b", b"no")])
            if n % 100 == 0:
                found(terminal, "away").catch_up()
        assert len(found(terminal, "away").delivery.cursor.above) <= groups.PASSED_OVER + 100
        async with Reader(bus.subscribe(TOPIC, group="away")) as reader:
            assert await reader.payloads(2000) == [b"%d" % n for n in range(2000)]
        await eventually(lambda: found(terminal, "away").delivery.cursor.floor == 4000)


async def test_restarted_terminal_goes_on_with_every_key() -> None:
    store = MemoryStore()
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await group(bus, "mine", "a")
        await post(bus, [(b"a", b"1")], [(b"b", b"no")], [(b"a", b"2")], [(b"b", b"no")])
        await bus.call("group.show", topic=TOPIC, name="mine")
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await post(bus, [(b"b", b"no")], [(b"a", b"3")])
        async with Reader(bus.subscribe(TOPIC, group="mine")) as reader:
            assert await reader.payloads(3) == [b"1", b"2", b"3"]
        await eventually(lambda: found(terminal, "mine").catch_up().cursor.floor == 6)


@pytest.mark.parametrize("seed", range(3))
async def test_every_group_gets_its_keys_once_and_in_order(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whoever is there when, and however seldom the groups catch up."""
    monkeypatch.setattr(topics, "MOST_RUNS", 5)
    monkeypatch.setattr(groups, "PASSED_OVER", seed)
    dice = random.Random(seed)
    patterns = {"a": "a", "b": "b", "other-a": "a", "both": "[ab]", "none": "z", "all": "*"}
    got: dict[str, list[bytes]] = {name: [] for name in patterns}
    sent: list[tuple[bytes, bytes]] = []
    async with attach(terminal) as bus:
        for name, pattern in patterns.items():
            await group(bus, name, pattern)

        def wanted(name: str) -> list[bytes]:
            keys = {"both": b"ab", "all": b"abc", "none": b""}.get(name, name[-1:].encode())
            return [payload for key, payload in sent if key in keys]

        for _ in range(30):
            here = dice.sample(sorted(patterns), dice.randint(0, 4))
            readers = [await Reader(bus.subscribe(TOPIC, group=name)).__aenter__() for name in here]
            for _ in range(dice.randint(1, 4)):
                batches = []
                for _ in range(dice.randint(1, 4)):
                    keys = [dice.choice([b"a", b"b", b"c"])] * dice.randint(1, 3)
                    if dice.random() < 0.2:
                        keys += [dice.choice([b"a", b"b", b"c"])]
                    batches.append([(key, b"%d" % (len(sent) + n)) for n, key in enumerate(keys)])
                    sent += batches[-1]
                await post(bus, *batches)
            for name, reader in zip(here, readers, strict=True):
                got[name] += await reader.payloads(len(wanted(name)) - len(got[name]))
                await reader.__aexit__()
        for name in patterns:
            async with Reader(bus.subscribe(TOPIC, group=name)) as reader:
                got[name] += await reader.payloads(len(wanted(name)) - len(got[name]))
            assert got[name] == wanted(name)
            shown = await bus.call("group.show", topic=TOPIC, name=name)
            assert (shown["lag"], shown["floor"]) == (0, len(sent))
