"""What the status log has for reports: latencies as histograms, and lags."""

from __future__ import annotations

from landbridge.broker.server import Terminal
from landbridge.testing import FakeClock, attach
from tests.contracts.test_status import Status, of
from tests.waiting import Reader


async def test_deliveries_and_acks_say_how_long_ago_their_messages_were_published(
    timed: Terminal, clock: FakeClock
) -> None:
    async with Status(timed, clock) as status, attach(timed, subject="svc") as bus:
        for number in range(5):
            await bus.publish("orders", b"%d" % number)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            messages = await reader.take(5)
            for message in messages[:3]:
                await message.ack(wait=True)
            events = await status.events("svc")
            async with bus.transaction() as transaction:  # acks by another way
                await transaction.ack(messages[3])
            after = await status.events("svc")
    assert sum(sum(each["latency"].values()) for each in of(events, "deliver")) == 5
    assert sum(sum(each["latency"].values()) for each in of(events, "ack")) == 3
    assert sum(sum(each["latency"].values()) for each in of(after, "ack")) == 1
    assert not any("latency" in each for each in of(events, "publish"))


async def test_lags_are_told_where_they_have_changed(timed: Terminal, clock: FakeClock) -> None:
    async with Status(timed, clock) as status, attach(timed, subject="svc") as bus:
        await bus.call("group.create", topic="orders", name="behind")
        await bus.call("group.create", topic="orders", name="done", start="latest")
        for number in range(5):
            await bus.publish("orders", b"%d" % number)
        async with Reader(bus.subscribe("orders", group="done")) as reader:
            for message in await reader.take(5):
                await message.ack(wait=True)
        await status.events()
        timed.broker.status_topic.note_lags()
        (lag,) = of(await status.events(), "lag")
        assert (lag["topic"], lag["group"], lag["messages"]) == ("orders", "behind", 5)
        timed.broker.status_topic.note_lags()
        assert of(await status.events(), "lag") == []
        await bus.call("group.seek", topic="orders", name="behind", to="latest")
        timed.broker.status_topic.note_lags()
        (lag,) = of(await status.events(), "lag")
        assert lag["group"] == "behind"
        assert "messages" not in lag  # none
