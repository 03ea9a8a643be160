"""One subscription to several topics: names, patterns, topics that come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge import Message
from landbridge.broker.server import Terminal
from landbridge.broker.topic_changes import MOST_CHANGES, TopicChanges, covers
from landbridge.client import many_topics
from landbridge.errors import BadName, BadRequest, Disconnected, Forbidden, UnknownGroup, UnknownTopic
from landbridge.testing import attach, run_terminal
from tests.contracts.ways import Way
from tests.waiting import LIMIT, Reader, eventually


def cut(terminal: Terminal) -> None:
    for connection in list(terminal.connections):
        connection._transport.abort()


async def publish(bus: Any, *topics: str) -> None:
    for topic in topics:
        await bus.publish(topic, topic)


async def poll(subscription: Any) -> Message:
    message = await subscription.poll(LIMIT)
    assert message is not None
    return message


def settled(terminal: Terminal, topic: str, group: str) -> int:
    found = terminal.broker.topics.get(topic)
    return found.groups[group].delivery.cursor.floor if found and group in found.groups else -1


async def test_names_and_patterns_are_one_stream(bus: Any, terminal: Terminal) -> None:
    await publish(bus, "orders.eu", "orders.us", "orders.us.east", "returns", "other")
    subscription = bus.subscribe(["orders.*", "returns"], group="billing")
    async with Reader(subscription) as reader:
        messages = await reader.take(3)
        assert {message.topic for message in messages} == {"orders.eu", "orders.us", "returns"}
        for message in messages:
            assert message.text() == message.topic
            await message.ack()
        for topic in ("orders.eu", "orders.us", "returns"):
            await eventually(lambda topic=topic: settled(terminal, topic, "billing") == 1)
    assert not terminal.broker.topics["other"].groups
    assert not terminal.broker.topics["orders.us.east"].groups


async def test_each_message_is_settled_where_it_belongs(bus: Any, terminal: Terminal) -> None:
    await publish(bus, "a.1", "a.2")
    async with Reader(bus.subscribe("a.*", group="g")) as reader:
        by_topic = {message.topic: message for message in await reader.take(2)}
        await by_topic["a.1"].requeue(0)
        await by_topic["a.2"].bury("bad")
        again = await reader.next()
        assert (again.topic, again.attempt) == ("a.1", 2)
        await again.ack(wait=True)
    await eventually(lambda: "a.2.dead" in terminal.broker.topics)
    assert settled(terminal, "a.1", "g") == settled(terminal, "a.2", "g") == 1


async def test_batches_and_a_transaction(bus: Any, terminal: Terminal) -> None:
    await publish(bus, "a.1", "a.2")
    async with Reader(bus.subscribe("a.#", group="g"), batches=True) as reader:
        batches = await reader.take(2)
        assert {batch.topic for batch in batches} == {"a.1", "a.2"}
        async with bus.transaction() as transaction:
            for batch in batches:
                await transaction.ack(batch)
    assert settled(terminal, "a.1", "g") == settled(terminal, "a.2", "g") == 1


async def test_topics_join_from_their_beginning_and_leave(bus: Any, terminal: Terminal) -> None:
    await publish(bus, "orders.old")
    async with Reader(bus.subscribe("orders.*", group="g", start="latest")) as reader:
        await publish(bus, "orders.new")
        first = await reader.next()
        assert first.topic == "orders.new"
        await first.ack()
        await bus.topics.delete("orders.new", force=True)
        await publish(bus, "orders.old")
        assert (await reader.next()).topic == "orders.old"
        assert "orders.new" not in terminal.broker.topics
        await publish(bus, "orders.new")  # made anew
        again = await reader.next()
        assert (again.topic, again.offset) == ("orders.new", 0)


async def test_without_a_group(bus: Any) -> None:
    await publish(bus, "news.a")
    async with Reader(bus.subscribe(["news.*"])) as reader:
        await publish(bus, "news.a", "news.b")
        assert {message.topic for message in await reader.take(2)} == {"news.a", "news.b"}


async def test_a_pattern_leaves_out_what_the_token_may_not_read(terminal: Terminal, way: Way) -> None:
    async with attach(terminal) as admin:
        await publish(admin, "orders.eu", "orders.us", "orders.secret")
        scopes = ["subscribe:orders.eu", "subscribe:orders.us"]
        async with way.connect(terminal, subject="billing", scopes=scopes) as bus:
            async with Reader(bus.subscribe("orders.*", group="g")) as reader:
                assert {message.topic for message in await reader.take(2)} == {"orders.eu", "orders.us"}
                await publish(admin, "orders.other", "orders.us")
                assert (await reader.next()).topic == "orders.us"
            with pytest.raises(Forbidden):
                await bus.subscribe(["orders.eu", "orders.secret"], group="g").open()
    assert not terminal.broker.topics["orders.secret"].groups
    assert not terminal.broker.topics["orders.other"].groups


async def test_a_named_topic_must_be_there() -> None:
    async with run_terminal(auto_create=False) as terminal, attach(terminal) as bus:
        await bus.topics.create("a")
        with pytest.raises(UnknownTopic):
            await bus.subscribe(["a", "b"], group="g").open()
        await eventually(lambda: not terminal.broker.topics["a"].groups["g"].consumers)
        async with bus.subscribe(["a", "c.*"], group="g") as subscription:
            await bus.topics.delete("a", force=True)
            with pytest.raises(UnknownTopic):
                await subscription.poll(LIMIT)


async def test_a_group_that_is_deleted_ends_the_subscription(bus: Any) -> None:
    await publish(bus, "a.1")
    async with bus.subscribe("a.*", group="g") as subscription:
        assert (await subscription.poll(LIMIT)).topic == "a.1"
        await bus.groups.delete("a.1", "g", force=True)
        with pytest.raises(UnknownGroup):
            await subscription.poll(LIMIT)


@pytest.mark.parametrize(
    ("topics", "error"),
    [([], BadRequest), (["a"] * 101, BadRequest), (["a b"], BadName), (["a.*b"], BadName), ("é.*", BadName)],
)
async def test_bad_names_are_told_at_once(topics: Any, error: type[Exception]) -> None:
    async with run_terminal() as terminal, attach(terminal) as bus:
        with pytest.raises(error):
            bus.subscribe(topics, group="g")


async def test_the_number_of_topics_is_bounded(
    monkeypatch: pytest.MonkeyPatch, terminal: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(many_topics, "MOST_TOPICS", 2)
    async with attach(terminal) as bus:
        await publish(bus, "a.1", "a.2")
        async with Reader(bus.subscribe("a.*", group="g")) as reader:
            await reader.take(2)
            await publish(bus, "a.3")  # by somebody else: it must not end what runs
            await eventually(lambda: "a.* covers 3 topics, 2 are read" in caplog.text)
            await publish(bus, "a.1")
            assert (await reader.next()).topic == "a.1"
            await bus.topics.delete("a.2", force=True)
            assert (await reader.next()).topic == "a.3"
        await publish(bus, "a.4")
        with pytest.raises(BadRequest, match="covers 3 topics"):
            await bus.subscribe("a.*", group="g").open()


async def test_a_queue_that_has_its_consumer_is_left_out_until_it_is_free(
    terminal: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    async with attach(terminal) as bus, attach(terminal) as other:
        await bus.topics.create("a.queue", kind="queue")
        holder = await other.subscribe("a.queue", group="g").open()
        await publish(bus, "a.1")
        async with Reader(bus.subscribe("a.*", group="g")) as reader:
            assert (await reader.next()).topic == "a.1"
            assert "leaves out the topic a.queue" in caplog.text
            await holder.close()
            await publish(bus, "a.queue", "a.2")
            assert {message.topic for message in await reader.take(2)} == {"a.2", "a.queue"}


async def test_the_topics_take_turns(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        async with bus.publisher("a.busy") as publisher:
            for _ in range(5000):
                await publisher.send(b"x")
        await publish(bus, "a.quiet")
        seen: list[str] = []
        async with bus.subscribe("a.*", group="g", prefetch=100) as subscription:
            while "a.quiet" not in seen:
                batch = await subscription.poll_batch(LIMIT)
                assert batch is not None
                assert len(batch) <= 50
                seen.append(batch.topic)
                await batch.ack()
            assert isinstance(subscription, many_topics.ManyTopics)
            members = subscription._members
            assert {member.prefetch for member in members.values()} == {50}
        assert len(seen) < 10


async def test_a_lost_connection_loses_nothing(terminal: Terminal) -> None:
    async with attach(terminal) as bus, attach(terminal, subject="other") as other:
        await publish(other, "a.1", "a.2", "a.gone")
        seen: list[tuple[str, int]] = []
        async with bus.subscribe("a.*", group="g") as subscription:
            for _ in range(3):
                message = await poll(subscription)
                await message.ack(wait=True)
            (connection,) = [c for c in terminal.connections if c.subject == "test"]
            connection._transport.abort()
            # While nobody is there: a topic goes, and must not come back; another one comes.
            await other.topics.delete("a.gone", force=True)
            await publish(other, "a.1", "a.3")
            while len(seen) < 2:
                message = await poll(subscription)
                seen.append((message.topic, message.offset))
                await message.ack(wait=True)
            assert sorted(seen) == [("a.1", 1), ("a.3", 0)]
            cut(terminal)
            await publish(other, "a.2", "a.3")
            while len(seen) < 4:
                message = await poll(subscription)
                seen.append((message.topic, message.offset))
                await message.ack(wait=True)
        assert sorted(seen) == [("a.1", 1), ("a.2", 1), ("a.3", 0), ("a.3", 1)]
        assert "a.gone" not in terminal.broker.topics


async def test_it_ends_with_the_bus(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await publish(bus, "a.1")
        reading = await bus.subscribe("a.*", group="g").open()
        waiting = asyncio.ensure_future(anext(aiter(reading)))
        await waiting
        ending = asyncio.ensure_future(reading.next_batch())
    assert await asyncio.wait_for(ending, LIMIT) is None
    with pytest.raises(Disconnected):
        await reading.poll(0)


# -- polling -------------------------------------------------------------------------------------------


async def test_poll(bus: Any) -> None:
    async with bus.subscribe("orders", group="g") as subscription:
        assert await subscription.poll(0) is None
        assert await subscription.poll(timeout=0.001) is None
        await bus.publish("orders", b"1")
        await bus.publish("orders", b"2")
        first, second = await subscription.poll(LIMIT), await subscription.poll()
        assert (first.payload, second.payload) == (b"1", b"2")
        await first.ack()
        await second.ack()
        await bus.publish("orders", b"3")
        batch = await subscription.poll_batch(LIMIT)
        assert batch.payloads == [b"3"]
        assert await subscription.poll_batch(0) is None
    with pytest.raises(Disconnected):
        await subscription.poll(0)


# -- the operation --------------------------------------------------------------------------------------


async def test_news_of_topics(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await publish(bus, "a.1", "b.1")
        news = await bus.topics.watch(["a.*"])
        assert (news.topics, news.gone, news.whole) == (["a.1"], [], True)
        waiting = asyncio.ensure_future(bus.topics.watch(["a.*"], since=news.since, within=30.0))
        await publish(bus, "b.2", "a.2")
        news = await asyncio.wait_for(waiting, LIMIT)
        assert (news.topics, news.gone, news.whole) == (["a.2"], [], False)
        await bus.topics.delete("a.1", force=True)
        news = await bus.topics.watch(["a.*"], since=news.since, within=30.0)
        assert (news.topics, news.gone) == ([], ["a.1"])
        assert (await bus.topics.watch(["a.*"], since=news.since)).topics == []
        for since in ("nonsense", "0/0/1", "x/1/-5", news.since + "9" * 5000, news.since + "0"):
            again = await bus.topics.watch(["a.*"], since=since)
            assert again.whole
            assert again.topics == ["a.2"]
        for patterns in ([], ["a"] * 101, ["a b"]):
            with pytest.raises((BadRequest, BadName)):
                await bus.topics.watch(patterns)


async def test_a_watch_on_nothing_waits_for_its_own_topics(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        news = await bus.topics.watch(["a.*"])
        waiting = asyncio.ensure_future(bus.topics.watch(["a.*"], since=news.since, within=30.0))
        await eventually(lambda: terminal.broker.topic_changes._waiting)
        for number in range(5):
            await publish(bus, f"b.{number}")
        assert not waiting.done()
        await publish(bus, "a.1")
        assert (await asyncio.wait_for(waiting, LIMIT)).topics == ["a.1"]
        assert not terminal.broker.topic_changes._waiting


def test_changes_that_are_too_old_are_forgotten() -> None:
    changes = TopicChanges()
    for number in range(MOST_CHANGES + 10):
        changes.note(f"t{number % 7}")
    assert changes.since(changes.version) == []
    assert changes.since(changes.version - 2) == sorted(
        {f"t{n % 7}" for n in (MOST_CHANGES + 8, MOST_CHANGES + 9)}
    )
    assert changes.since(9) is None
    assert changes.since(changes.version + 1) is None


def test_dead_letters_are_covered_where_they_are_named() -> None:
    assert covers(["orders.*"], "orders.eu")
    assert not covers(["orders.*"], "orders.dead")
    assert not covers(["#"], "orders.dead")
    assert covers(["#", "*.dead"], "orders.dead")
    assert covers(["orders.dead"], "orders.dead")
    assert not covers(["#"], "$status")
