"""Order per key in a group: with several handlers, consumers, retries, lost connections and restarts."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from landbridge import DeliveredBatch, Message, Retry, Service
from landbridge.broker.server import Terminal
from landbridge.errors import BadRequest
from landbridge.stores.journal.store import JournalStore
from landbridge.testing import attach, run_terminal
from tests.waiting import LIMIT, Reader, eventually, turns


async def poll(subscription: Any) -> Message:
    message = await subscription.poll(LIMIT)
    assert message is not None
    return message


async def poll_batch(subscription: Any) -> DeliveredBatch:
    batch = await subscription.poll_batch(LIMIT)
    assert batch is not None
    return batch


class Witness:
    """Notes what is handled, and that no key is with two handlers at once."""

    def __init__(self) -> None:
        self.handled: dict[str, list[int]] = defaultdict(list)
        self.at_work: set[str] = set()
        self.most = 0

    async def see(self, key: str, number: int, pause: int = 30) -> None:
        assert key not in self.at_work, f"{key} is handled twice at once"
        self.at_work.add(key)
        self.most = max(self.most, len(self.at_work))
        await turns(pause)
        self.handled[key].append(number)
        self.at_work.remove(key)

    def check(self, counts: dict[str, int], *, repeats: bool = False) -> None:
        for key, count in counts.items():
            numbers = self.handled[key]
            if repeats:  # what was handled and not acked comes again, and all that follows after it
                numbers = sorted(set(numbers), key=numbers.index)
            assert numbers == list(range(count)), key


async def publish(bus: Any, topic: str, counts: dict[str, int]) -> None:
    async with bus.publisher(topic) as publisher:
        for number in range(max(counts.values())):
            for key, count in counts.items():
                if number < count:
                    await publisher.send({"n": number}, key=key)


COUNTS = {"a": 40, "b": 40, "c": 10, "d": 3}


async def test_one_service_with_concurrency(terminal: Terminal) -> None:
    service, witness = Service("billing"), Witness()

    @service.on("orders", concurrency=8, ordered="key")
    async def handle(order: dict[str, int], message: Message) -> None:
        await witness.see(message.key or "", order["n"])

    async with attach(terminal) as bus:
        await publish(bus, "orders", COUNTS)
        async with service.running(bus):
            await eventually(lambda: sum(map(len, witness.handled.values())) == sum(COUNTS.values()))
            group = terminal.broker.table.group("orders", "billing")
            await eventually(lambda: group.delivery.cursor.floor == sum(COUNTS.values()))
        assert group.spec.order == "key"
    witness.check(COUNTS)
    assert witness.most > 1


async def test_several_consumers_of_a_group(terminal: Terminal) -> None:
    witness = Witness()
    services = [Service("billing", concurrency=4) for _ in range(3)]
    for service in services:

        @service.on("orders", ordered="key", prefetch=8)
        async def handle(order: dict[str, int], message: Message) -> None:
            await witness.see(message.key or "", order["n"])

    async with attach(terminal) as first, attach(terminal) as second, attach(terminal) as third:
        await publish(first, "orders", COUNTS)
        async with services[0].running(first), services[1].running(second), services[2].running(third):
            await eventually(lambda: sum(map(len, witness.handled.values())) == sum(COUNTS.values()))
    witness.check(COUNTS)


async def test_a_failed_message_holds_up_its_key_and_no_other(terminal: Terminal, crashes: list[Any]) -> None:
    service, witness = Service("billing", retry=Retry(first=0.05)), Witness()
    failed: list[int] = []

    @service.on("orders", concurrency=4, ordered="key", max_attempts=3)
    async def handle(order: dict[str, int], message: Message) -> None:
        if message.key == "a" and order["n"] == 1 and message.attempt < 3:
            failed.append(message.attempt)
            raise ValueError("not now")
        if message.key == "b" and order["n"] == 0:
            raise ValueError("never")  # is buried in the end, and the next one goes
        await witness.see(message.key or "", order["n"])

    counts = {"a": 4, "b": 3, "c": 20}
    async with attach(terminal) as bus:
        await publish(bus, "orders", counts)
        async with service.running(bus):
            await eventually(lambda: sum(map(len, witness.handled.values())) == 26)
    assert failed == [1, 2]
    assert witness.handled == {"a": [0, 1, 2, 3], "b": [1, 2], "c": list(range(20))}
    crashes.clear()


async def test_lost_connections_repeat_and_never_overtake(terminal: Terminal) -> None:
    service, witness = Service("billing"), Witness()

    @service.on("orders", concurrency=4, ordered="key")
    async def handle(order: dict[str, int], message: Message) -> None:
        witness.handled[message.key or ""].append(order["n"])
        await turns(2)

    counts = {"a": 60, "b": 60}
    async with attach(terminal) as bus, attach(terminal, subject="publisher") as other:
        await publish(other, "orders", counts)
        async with service.running(bus):
            for seen in (10, 30, 50):
                await eventually(lambda seen=seen: len(witness.handled["a"]) >= seen)
                for connection in list(terminal.connections):
                    connection._transport.abort()
            group = terminal.broker.table.group("orders", "billing")
            await eventually(lambda: group.delivery.cursor.floor == 120)
    witness.check(counts, repeats=True)


async def test_a_restart_in_the_middle(tmp_path: Path) -> None:
    """What waits for its next attempt holds up its key after a restart, too."""
    async with run_terminal(JournalStore(tmp_path / "bus")) as terminal, attach(terminal) as bus:
        await bus.topics.create("orders")
        await bus.groups.create("orders", "g", order="key")
        await publish(bus, "orders", {"a": 3, "b": 2})
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            first, other = await reader.take(2)
            assert (first.key, other.key) == ("a", "b")
            await first.requeue(3600.0)
    async with run_terminal(JournalStore(tmp_path / "bus")) as terminal, attach(terminal) as bus:
        assert (await bus.groups.show("orders", "g")).options.order == "key"
        async with bus.subscribe("orders", group="g") as subscription:
            for number in range(2):
                message = await poll(subscription)
                assert (message.key, message.json()["n"]) == ("b", number)
                await message.ack(wait=True)
            assert await subscription.poll(0.05) is None


async def test_changing_the_option_of_a_group(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await publish(bus, "orders", {"a": 5})
        async with bus.subscribe("orders", group="g") as subscription:
            batch = await poll_batch(subscription)
            assert len(batch) == 5
            await bus.groups.update("orders", "g", order="key")
            for number in range(5):
                batch = await poll_batch(subscription)
                assert [message.json()["n"] for message in batch] == [number]
                await batch.ack()
        with pytest.raises(BadRequest, match="order per key"):
            await bus.groups.update("orders", "g", discipline="priority")


async def test_a_transaction_lets_the_next_one_go_when_it_is_stored(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.groups.create("orders", "g", order="key")
        await publish(bus, "orders", {"a": 3})
        async with bus.subscribe("orders", group="g") as subscription:
            for number in range(3):
                message = await poll(subscription)
                assert message.json()["n"] == number
                async with bus.transaction() as transaction:  # into a topic of another unit, mostly
                    await transaction.publish(f"done.{number}", b"x")
                    await transaction.ack(message)
            assert await subscription.poll(0) is None


async def test_a_queue_that_delivers_at_most_once(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.topics.create("q", kind="queue", delivery="at-most-once")
        await bus.groups.create("q", "g", order="key")
        await publish(bus, "q", {"a": 5, "b": 5})
        seen: dict[str, list[int]] = defaultdict(list)
        async with bus.subscribe("q", group="g") as subscription:
            for _ in range(10):
                message = await poll(subscription)
                seen[message.key or ""].append(message.json()["n"])
        assert seen == {"a": list(range(5)), "b": list(range(5))}


async def test_many_keys_are_handed_out_together(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.groups.create("orders", "g", order="key")
        async with bus.publisher("orders") as publisher:
            for number in range(1000):
                await publisher.send(b"%d" % number, key=f"k{number % 500}")
        async with bus.subscribe("orders", group="g", prefetch=10_000) as subscription:
            batch = await poll_batch(subscription)
            assert len(batch) == 500
            await batch.ack()
            seen = 500
            while seen < 1000:
                batch = await poll_batch(subscription)
                seen += len(batch)
                await batch.ack()
