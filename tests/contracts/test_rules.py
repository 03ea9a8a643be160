"""Rules in a terminal: what is published to a source goes into the topics of the rules that choose it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.broker import routing
from landbridge.broker.limits import Limits
from landbridge.broker.routing import TURN_SECONDS, Routed, RuleThread, SourceStretch
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.core.log.batch import Batch, build
from landbridge.core.names import CONTENT_DEAD, CONTENT_TOPIC, RULES_GROUP
from landbridge.core.rules.choice import decode_choice
from landbridge.core.rules.content import MessageContent
from landbridge.core.rules.query import document_of, read_query, topic_of
from landbridge.core.rules.ruleset import Matched, RuleSet
from landbridge.core.topic import RuleSpec
from landbridge.errors import (
    BadRequest,
    Forbidden,
    LimitReached,
    StoreFull,
    UnknownMessage,
    UnknownTopic,
)
from landbridge.protocol.operations import RetentionOptions
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, attach, run_terminal
from landbridge.testing.faults import FaultyStore
from tests.waiting import LIMIT, Reader, eventually

PAID = {"state": ["paid"]}
LARGE = {"amount": [{"numeric": [">", 100]}]}
#: Takes a step for each pair of numbers in the message, more than a rule may for forty thousand.
COSTLY = {"kind": "jsonpath", "path": "$.n[?count($.n[?@ > 0]) > 100000]"}


def rule_of(match: dict[str, Any], source: str = CONTENT_TOPIC) -> str:
    return topic_of(read_query(match), source)


def routed(terminal: Terminal, source: str = CONTENT_TOPIC) -> bool:
    """Have the rules looked at all that the source has?"""
    topic = terminal.broker.topics[source]
    return topic.groups[RULES_GROUP].delivery.cursor.floor == topic.log.end


async def until_routed(terminal: Terminal, source: str = CONTENT_TOPIC) -> None:
    await eventually(lambda: routed(terminal, source))
    await terminal.broker.drain()  # the cursor moves while its commit is formed


async def batches(terminal: Terminal, topic: str) -> list[Batch]:
    """All that a topic's log has, as the disk has it."""
    log = terminal.broker.topics[topic].log
    found, at = [], log.first
    while at < log.end:
        read = await log._read(at, 1 << 20)
        found += [batch for _, batch in read]
        at = read[-1][0] + len(read[-1][1])
    return found


async def payloads(terminal: Terminal, topic: str) -> list[Any]:
    found = await batches(terminal, topic)
    return [msgspec.json.decode(payload) for batch in found for payload in batch.payloads()]


async def test_a_message_without_a_topic_goes_to_whoever_asks_for_what_it_says(bus: Any) -> None:
    async with (
        Reader(bus.subscribe(match=PAID, group="billing")) as paid,
        Reader(bus.subscribe(match=LARGE, group="audit")) as large,
    ):
        first = await bus.publish(None, {"state": "open", "amount": 5})
        second = await bus.publish(None, {"state": "paid", "amount": 6}, key="eu", headers={"a": "b"})
        await bus.publish(None, {"state": "paid", "amount": 700})
        assert (first.offset, second.offset) == (0, 1)
        got = await paid.take(2)
        assert [message.json()["amount"] for message in got] == [6, 700]
        assert (got[0].key, got[0].headers, got[0].id) == ("eu", {"a": "b"}, second.id)
        assert got[0].topic == rule_of(PAID)
        assert [message.json()["amount"] for message in await large.take(1)] == [700]


async def test_a_query_of_several_sources_is_one_stream(bus: Any) -> None:
    async with Reader(bus.subscribe(["orders", "bills"], match=PAID, group="g")) as reader:
        await bus.publish("orders", {"state": "paid", "n": 1})
        await bus.publish("bills", {"state": "paid", "n": 2})
        await bus.publish("bills", {"state": "open", "n": 3})
        assert sorted(message.json()["n"] for message in await reader.take(2)) == [1, 2]


async def test_a_topic_can_be_a_source_and_is_read_as_before(bus: Any, terminal: Terminal) -> None:
    made = await bus.rules.create(PAID, "orders")
    assert (made.rule, made.is_new) == (rule_of(PAID, "orders"), True)
    async with bus.publisher("orders") as out:
        for n in range(500):
            await out.send({"state": "paid" if n % 7 == 0 else "open", "n": n})
    await until_routed(terminal, "orders")
    assert [each["n"] for each in await payloads(terminal, made.rule)] == list(range(0, 500, 7))
    assert len(await payloads(terminal, "orders")) == 500
    again = await bus.rules.create({"kind": "partial", "match": PAID}, "orders")
    assert (again.rule, again.is_new, again.messages) == (made.rule, False, 72)
    assert [rule.rule for rule in await bus.rules.list(source="orders")] == [made.rule]
    assert await bus.rules.list(source="bills") == []


async def test_a_publisher_and_a_transaction_need_no_topic(bus: Any, terminal: Terminal) -> None:
    await bus.rules.create(PAID)
    async with bus.publisher(None) as out:
        await out.send({"state": "paid", "n": 1})
    async with bus.transaction() as transaction:
        await transaction.publish(None, {"state": "paid", "n": 2})
    await until_routed(terminal)
    assert [each["n"] for each in await payloads(terminal, rule_of(PAID))] == [1, 2]


async def test_the_groups_of_a_rules_topic_are_as_any(bus: Any, terminal: Terminal) -> None:
    """Replay, lag and what a consumer gives back work on what a rule has chosen."""
    async with Reader(bus.subscribe(match=PAID, group="g")) as reader:
        for n in range(3):
            await bus.publish(None, {"state": "paid", "n": n})
        got = await reader.take(3)
        await got[0].ack()
        await got[1].requeue(0)
        await got[2].bury("bad")
        again = await reader.next()
        assert (again.json()["n"], again.attempt) == (1, 2)
        await again.ack(wait=True)
    rule = rule_of(PAID)
    await eventually(lambda: terminal.broker.topics[rule].groups["g"].delivery.cursor.floor == 3)
    assert (await payloads(terminal, f"{rule}.dead"))[0]["n"] == 2
    await bus.groups.seek(rule, "g", to=0)
    async with Reader(bus.subscribe(rule, group="g")) as reader:
        assert [message.json()["n"] for message in await reader.take(3)] == [0, 1, 2]


# -- what is stored -------------------------------------------------------------------------------------


async def test_what_rules_choose_is_stored_once_and_says_where_it_is_from(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.rules.create(PAID, "orders")
        await bus.rules.create(LARGE, "orders")
        await bus.publish("orders", {"state": "open"})
        async with bus.publisher("orders") as out:
            for n in range(100):
                await out.send({"state": "paid" if n % 3 else "open", "amount": n + 51, "pad": "x" * 1000})
        await until_routed(terminal, "orders")
        stored: list[Any] = []
        for match in (PAID, LARGE):
            log = terminal.broker.topics[rule_of(match, "orders")].log
            found = await terminal.store.read(log.number, 0, 1 << 30)
            stored += found
            assert log.bytes == sum(len(each.data) for each in found)
        source = await terminal.store.read(terminal.broker.topics["orders"].log.number, 1, 1)
        assert {each.data for each in stored} == {source[0].data}
        assert all(len(decode_choice(each.choice)) == each.end - each.first for each in stored)
        places = [await bus.rules.trace(rule_of(PAID, "orders"), offset) for offset in range(66)]
        assert [(place.source, place.offset) for place in places] == [
            ("orders", 1 + n) for n in range(100) if n % 3
        ]
        with pytest.raises(UnknownMessage):
            await bus.rules.trace(rule_of(PAID, "orders"), 66)


@pytest.mark.parametrize("units", [1, 4])
async def test_rules_survive_a_restart_in_every_unit(units: int, crashes: list[Any]) -> None:
    store = MemoryStore(units=units)
    sources = ["a", "b", "c", "d", "e", CONTENT_TOPIC]
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        for source in sources:
            await bus.rules.create(PAID, source)
            await bus.publish(source, {"state": "paid", "n": 1})
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        for source in sources:
            await bus.publish(source, {"state": "open", "n": 2})
            await bus.publish(source, {"state": "paid", "n": 3})
        for source in sources:
            await until_routed(terminal, source)
            rule = rule_of(PAID, source)
            assert [each["n"] for each in await payloads(terminal, rule)] == [1, 3]
            topics = terminal.broker.topics
            assert topics[rule].writer.unit == topics[source].writer.unit
            assert terminal.broker.units.unit_of(rule) == topics[rule].writer.unit
            await bus.documents.create("notes", "k", 1, topic=rule)
            await bus.rules.delete(rule)
            assert RULES_GROUP not in topics[source].groups


async def test_a_group_of_rules_whose_last_rule_is_gone_goes_at_the_start(crashes: list[Any]) -> None:
    store = MemoryStore()
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        made = await bus.rules.create(PAID, "orders")
        await terminal.broker.table.delete_topic(terminal.broker.topics[made.rule])  # and then it was killed
        assert RULES_GROUP in terminal.broker.topics["orders"].groups
    async with run_terminal(store) as terminal:
        assert RULES_GROUP not in terminal.broker.topics["orders"].groups


async def test_a_rule_chooses_from_what_is_published_after_it_was_made(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.rules.create(LARGE, "orders")
        await bus.publish("orders", {"state": "paid", "n": 1})
        made = await bus.rules.create(PAID, "orders")
        await bus.publish("orders", {"state": "paid", "n": 2})
        await until_routed(terminal, "orders")
        assert [each["n"] for each in await payloads(terminal, made.rule)] == [2]
        assert (await bus.rules.show(made.rule)).begin == 1
        await bus.rules.delete(made.rule)
        await bus.publish("orders", {"state": "paid", "n": 3})
        again = await bus.rules.create(PAID, "orders")
        await bus.publish("orders", {"state": "paid", "n": 4})
        await until_routed(terminal, "orders")
        assert [each["n"] for each in await payloads(terminal, again.rule)] == [4]


async def test_rules_come_and_go_while_messages_pass(terminal: Terminal) -> None:
    """Each rule has what was published between its making and its end, without gaps and in order."""
    async with attach(terminal) as bus:
        done = asyncio.Event()

        async def publish() -> int:
            n = 0
            while not done.is_set():
                async with bus.publisher("orders") as out:
                    for _ in range(50):
                        await out.send({"state": "paid", "n": n})
                        n += 1
            return n

        publishing = asyncio.create_task(publish())
        made = []
        for at in range(20):
            made.append(await bus.rules.create({"n": [{"numeric": [">=", at]}]}, "orders"))
            if at % 5 == 4:
                await bus.rules.delete(made.pop(0).rule, force=True)
        done.set()
        count = await publishing
        await until_routed(terminal, "orders")
        for rule in made:
            begin = (await bus.rules.show(rule.rule)).begin
            found = [each["n"] for each in await payloads(terminal, rule.rule)]
            expected = [n for n in range(begin, count) if n >= int(rule.match["match"]["n"][0]["numeric"][1])]
            assert found == expected


async def test_retention_waits_for_the_rules(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await bus.topics.create("orders", retention=RetentionOptions(settled=True))
        await bus.rules.create(PAID, "orders")
        route = timed.routing.routes["orders"]
        route.group.damaged = BadRequest("stopped by the test")
        await bus.publish("orders", {"state": "paid"})
        clock.advance(10.0)
        timed.time_passed()
        await timed.broker.drain()
        assert timed.broker.topics["orders"].log.first == 0
        route.group.damaged = None
        route.wake()
        await until_routed(timed, "orders")

        def is_trimmed() -> bool:
            clock.advance(10.0)
            timed.time_passed()
            return timed.broker.topics["orders"].log.first == 1

        await eventually(is_trimmed)
        # The rule's topic still has it.
        assert len(await payloads(timed, rule_of(PAID, "orders"))) == 1


@pytest.mark.parametrize("by_surprise", [False, True])
async def test_a_full_disk_makes_rules_wait(by_surprise: bool, crashes: list[Any]) -> None:
    store = FaultyStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        rule = (await bus.rules.create(PAID, "orders")).rule
        route = terminal.routing.routes["orders"]
        await eventually(lambda: not route._changes)
        route.group.damaged = BadRequest("stopped by the test")
        for n in range(5):
            await bus.publish("orders", {"state": "paid", "n": n})
        store.full, store.full_by_surprise = True, by_surprise
        route.group.damaged = None
        route.wake()
        await eventually(lambda: route._again is not None)
        assert await payloads(terminal, rule) == []
        assert route.group.delivery.cursor.floor == 0
        store.full = False
        await until_routed(terminal, "orders")
        assert [each["n"] for each in await payloads(terminal, rule)] == [0, 1, 2, 3, 4]


async def test_a_rule_whose_commit_failed_can_be_made_again(crashes: list[Any]) -> None:
    memory = MemoryStore()
    store = FaultyStore(memory, error=StoreFull("no room (as told)"))
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.publish("orders", b"{}")
        store.failing = True
        with pytest.raises(StoreFull):
            await bus.rules.create(PAID, "orders")
        assert await bus.rules.list() == []
        assert not terminal.broker.topics["orders"].groups
        store.failing = False
        await bus.publish("orders", {"state": "paid", "n": 1})
        rule = (await bus.rules.create(PAID, "orders")).rule
        await bus.publish("orders", {"state": "paid", "n": 2})
        await until_routed(terminal, "orders")
        assert [each["n"] for each in await payloads(terminal, rule)] == [2]
    async with run_terminal(memory) as terminal:
        assert [each["n"] for each in await payloads(terminal, rule)] == [2]
        assert [topic.name for topic in terminal.routing.rules] == [rule]


async def test_what_is_redacted_before_delivery_is_seen_by_no_rule_and_in_no_rule_topic(
    bus: Any, terminal: Terminal
) -> None:
    secret = {"pin": ["1234"]}
    open_to_all, guessed = await bus.rules.create(PAID, "orders"), await bus.rules.create(secret, "orders")
    stage = {"stage": "redact", "fields": ["/pin"], "at": "deliver", "except_groups": ["fraud"]}
    await bus.topics.update("orders", middleware=[{"stage": "compress"}, stage])
    message = {"state": "paid", "pin": "1234", "text": "x" * 500}
    await bus.publish("orders", message)
    await until_routed(terminal, "orders")
    hidden = {**message, "pin": "[redacted]"}
    async with Reader(bus.subscribe(open_to_all.rule, group="fraud")) as reader:
        assert [each.json() for each in await reader.take(1)] == [hidden]
    fetched = await bus.fetch(open_to_all.rule, 0)
    assert [msgspec.json.decode(raw) for each in fetched.batches for raw in each.batch.payloads()] == [hidden]
    assert (await bus.rules.show(guessed.rule)).end == 0
    # The log counts the batch compressed, as it is stored; the store counts what is written of it besides.
    log = terminal.broker.topics[open_to_all.rule].log
    unit = terminal.broker.units.unit_of(open_to_all.rule)
    assert 0 <= (await terminal.broker.store.logs(unit))[log.number].bytes - log.bytes < 100
    await bus.topics.update("orders", middleware=[])
    await bus.groups.seek(open_to_all.rule, "fraud", to="earliest")
    async with Reader(bus.subscribe(open_to_all.rule, group="fraud")) as reader:
        assert [each.json() for each in await reader.take(1)] == [message]


# -- undecided ------------------------------------------------------------------------------------------


async def test_a_message_over_a_rules_budget_is_a_dead_letter_and_other_rules_have_it(
    terminal: Terminal,
) -> None:
    numbers = list(range(1, 400))
    async with attach(terminal) as bus:
        for source, dead in ((None, CONTENT_DEAD), ("orders", "orders.dead")):
            costly = await bus.rules.create(COSTLY, source or CONTENT_TOPIC)
            paid = await bus.rules.create(PAID, source or CONTENT_TOPIC)
            receipt = await bus.publish(source, {"state": "paid", "n": numbers}, key="k")
            await bus.publish(source, {"state": "paid", "n": [1]})
            await until_routed(terminal, source or CONTENT_TOPIC)
            assert await payloads(terminal, costly.rule) == []
            assert len(await payloads(terminal, paid.rule)) == 2
            (letter,) = await batches(terminal, dead)
            headers = letter.headers(0)
            assert letter.is_letter
            assert (letter.key(0), letter.id_of(0)) == (b"k", receipt.id)
            assert (headers["lb-topic"], headers["lb-group"]) == (source or CONTENT_TOPIC, RULES_GROUP)
            assert str(headers["lb-cause"]).startswith(f"rule {costly.rule}: it takes more than 50,000 steps")
        assert "landbridge_undecided_total 2.0" in await bus.terminal.metrics()


async def test_many_costly_rules_make_one_dead_letter_of_a_message(terminal: Terminal) -> None:
    """And none of what passes beside them waits for ever."""
    async with attach(terminal) as bus:
        for more in range(8):
            path = f"$.n[?count($.n[?@ > {more}]) > 100000]"
            await bus.rules.create({"kind": "jsonpath", "path": path})
        paid = (await bus.rules.create(PAID)).rule
        for _ in range(3):
            await bus.publish(None, {"state": "paid", "n": list(range(1, 400))})
            await bus.publish("elsewhere", b"1")
        await until_routed(terminal)
        letters = await batches(terminal, CONTENT_DEAD)
        assert len(letters) == len(await payloads(terminal, paid)) == 3
        assert all("(and 7 more rules)" in str(letter.headers(0)["lb-cause"]) for letter in letters)


async def test_a_redrive_is_for_its_group_and_not_for_rules(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        rule = (await bus.rules.create(PAID, "orders")).rule
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await bus.publish("orders", {"state": "paid"})
            await (await reader.next()).bury("bad")
            await eventually(lambda: "orders.dead" in terminal.broker.topics)
            assert (await bus.groups.redrive("orders", "g")).redriven == 1
            await (await reader.next()).ack(wait=True)
        await until_routed(terminal, "orders")
        assert len(await payloads(terminal, "orders")) == 2
        assert len(await payloads(terminal, rule)) == 1


@pytest.mark.parametrize("discard", ["settled", "any"])
async def test_what_the_source_has_let_go_of_meanwhile_is_stored_anew(
    timed: Terminal, clock: FakeClock, discard: Literal["settled", "any"]
) -> None:
    """Between the choice and its commit, retention may remove the source's batch."""
    async with attach(timed) as bus:
        options = RetentionOptions(max_age=5.0, discard=discard)
        await bus.topics.create("orders", retention=options)
        rule = (await bus.rules.create(PAID, "orders")).rule
        route = timed.routing.routes["orders"]
        await eventually(lambda: not route._changes)
        await timed.routing.until_idle()
        route.group.damaged = BadRequest("stopped by the test")
        await bus.publish("orders", {"state": "paid"})
        route.group.damaged = None
        _, found = route._evaluate([], await route._read())
        assert found is not None
        clock.advance(60.0)
        await timed.broker.trimmer.trim(timed.broker.topics["orders"])
        assert timed.broker.topics["orders"].log.first == (1 if discard == "any" else 0)
        await route.source.writer.put(partial(route._store, found))
        assert len(await payloads(timed, rule)) == 1
        traced = await bus.rules.trace(rule, 0)
        assert traced.offset == (None if discard == "any" else 0)


# -- what is refused ------------------------------------------------------------------------------------


async def test_nobody_else_writes_to_the_topic_of_a_rule(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        rule = (await bus.rules.create(PAID)).rule
        for name in (rule, rule_of(LARGE)):
            with pytest.raises(Forbidden, match="filled by a rule"):
                await bus.publish(name, b"{}")
            with pytest.raises(BadRequest, match="is a name for the topic of a rule"):
                await bus.topics.create(f"match.{'0' * 32}")
        with pytest.raises(Forbidden):
            await bus.groups.create("orders", "g", dead_letter=rule)
        with pytest.raises(UnknownTopic):
            await bus.subscribe(rule_of(LARGE)).open()
        with pytest.raises(BadRequest, match="is the topic of a rule"):
            await bus.topics.delete(rule)
        with pytest.raises(Forbidden):
            await bus.status.set(topic=rule)


async def test_sources_and_queries_that_cannot_be(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.topics.create("line", kind="queue")
        rule = (await bus.rules.create(PAID)).rule
        for source, match in (
            ("line", PAID),
            (rule, PAID),
            (CONTENT_TOPIC, {"kind": "regexp", "pattern": "("}),
            (CONTENT_TOPIC, {"kind": "jsonpath", "path": "items"}),
            (CONTENT_TOPIC, {"a": []}),
            (CONTENT_TOPIC, {"kind": "other"}),
        ):
            with pytest.raises(BadRequest):
                await bus.rules.create(match, source)
        assert len(await bus.rules.list()) == 1
        with pytest.raises(BadRequest, match="pattern"):
            bus.subscribe("orders.*", match=PAID)
        with pytest.raises(BadRequest, match="topic or a query"):
            bus.subscribe()
        for unknown in ("orders", rule_of(LARGE), "x" * 300):
            with pytest.raises(UnknownTopic):
                await bus.rules.show(unknown)


async def test_the_cursor_of_the_rules_is_theirs(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.rules.create(PAID, "orders")
        for ask in (
            bus.groups.delete("orders", RULES_GROUP, force=True),
            bus.groups.update("orders", RULES_GROUP, max_attempts=3),
            bus.groups.redrive("orders", RULES_GROUP),
            bus.groups.advance("orders", RULES_GROUP, to=1),
        ):
            with pytest.raises(BadRequest):
                await ask
        assert [group.name for group in await bus.groups.list(topic="orders")] == [RULES_GROUP]


async def test_an_operator_lets_rules_choose_again(terminal: Terminal) -> None:
    """From a place on, as a group; what came before a rule was made is not the rule's."""
    async with attach(terminal) as bus:
        first = (await bus.rules.create(PAID, "orders")).rule
        for n in range(4):
            await bus.publish("orders", {"state": "paid", "amount": 500, "n": n})
        await until_routed(terminal, "orders")
        second = (await bus.rules.create(LARGE, "orders")).rule
        await bus.groups.seek("orders", RULES_GROUP, to=2)
        await until_routed(terminal, "orders")
        assert [each["n"] for each in await payloads(terminal, first)] == [0, 1, 2, 3, 2, 3]
        assert await payloads(terminal, second) == []


async def test_a_cursor_that_was_moved_back_during_a_turn_stays_where_it_was_moved(
    terminal: Terminal,
) -> None:
    async with attach(terminal) as bus:
        await bus.rules.create(PAID, "orders")
        await bus.publish("orders", {"state": "paid"})
        await until_routed(terminal, "orders")
        route = terminal.routing.routes["orders"]
        late = Routed(1, 2, [], [])
        route.group.seek(0)
        await route.source.writer.put(partial(route._store, late))
        assert route.group.delivery.cursor.floor == 0


@given(st.lists(st.sampled_from([0.0, 0.01, 0.6]), min_size=1, max_size=60))
def test_a_turn_ends_with_the_message_that_it_is_too_long_for(costs: list[float]) -> None:
    """However quick those before it were."""
    now = 0.0
    thread = RuleThread(threading.Event(), lambda: now)
    rule = topic_of(read_query(PAID), "orders")
    spec = RuleSpec(source="orders", query=document_of(read_query(PAID)), owner="me")
    assert thread.change([(rule, spec)]) == []
    batch = Batch.decode(build([b'{"state": "paid"}'] * len(costs), id=b"i" * 16, time=5))
    looked_at: list[int] = []

    def take_time(content: MessageContent, row: int, matched: Matched) -> None:
        nonlocal now
        now += costs[thread_at + row]
        looked_at.append(thread_at + row)
        match(content, row, matched)

    match, thread._rules._match = thread._rules._match, take_time  # type: ignore[method-assign]
    chosen, thread_at = 0, 0
    while thread_at < len(costs):
        routed = thread.route([SourceStretch(0, batch, thread_at, len(costs), batch)])
        spent = costs[routed.begin : routed.end]
        # The turn was not over before its last message, but for the rounding of sums.
        assert sum(spent[:-1]) < TURN_SECONDS + 1e-9
        assert sum(spent) > TURN_SECONDS - 1e-9 or routed.end == len(costs)
        chosen += sum(len(each.messages) for each in routed.chosen)
        thread_at = routed.end
    assert looked_at == list(range(len(costs)))
    assert chosen == len(costs)


async def test_many_rules_are_compiled_in_turns(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no message is looked at before all of them are."""
    monkeypatch.setattr(routing, "TURN_CHANGES", 3)
    turns: list[int] = []
    change = RuleThread.change

    def count(self: RuleThread, changes: Any) -> Any:
        turns.append(len(changes))
        return change(self, changes)

    monkeypatch.setattr(RuleThread, "change", count)
    async with attach(terminal) as bus:
        await bus.topics.create("orders")
        route = terminal.routing.routes
        rules = [(await bus.rules.create({"n": [n, "all"]}, "orders")).rule for n in range(7)]
        await terminal.routing.until_idle()
        turns.clear()
        for rule in rules:  # as after a start
            route["orders"]._changes.append((rule, terminal.broker.topics[rule].spec.rule))
        await bus.publish("orders", {"n": "all"})
        await until_routed(terminal, "orders")
        await terminal.routing.until_idle()
        assert [n for n in turns if n] == [3, 3, 1]
        assert [len(await payloads(terminal, rule)) for rule in rules] == [1] * 7


async def test_a_message_that_breaks_the_rules_holds_no_other(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    match_until = RuleSet.match_until

    def broken(self: RuleSet, is_over: Callable[[], bool], batch: Batch) -> tuple[Matched, int]:
        if b"break" in batch.payloads():
            raise ZeroDivisionError
        return match_until(self, is_over, batch)

    monkeypatch.setattr(RuleSet, "match_until", broken)
    async with attach(terminal) as bus:
        rule = (await bus.rules.create(PAID, "orders")).rule
        async with bus.publisher("orders") as out:
            for payload in (b'{"state": "paid", "n": 1}', b"break", b'{"state": "paid", "n": 2}'):
                await out.send(payload)
        await until_routed(terminal, "orders")
        assert [each["n"] for each in await payloads(terminal, rule)] == [1, 2]
        (letter,) = await batches(terminal, "orders.dead")
        assert letter.payloads() == [b"break"]
        assert "ZeroDivisionError" in str(letter.headers(0)["lb-cause"])


async def test_there_are_no_more_rules_than_the_limit_allows(crashes: list[Any]) -> None:
    async with run_terminal(limits=Limits(max_rules=2)) as terminal, attach(terminal) as bus:
        for n in range(2):
            await bus.rules.create({"n": [n]})
        with pytest.raises(LimitReached, match="max_rules"):
            await bus.rules.create({"n": [2]})
        assert not (await bus.rules.create({"n": [1]})).is_new
        await bus.rules.delete(rule_of({"n": [0]}))
        await bus.rules.create({"n": [2]})


async def test_a_rule_is_deleted_by_its_owner_and_not_what_somebody_waits_for(
    terminal: Terminal,
) -> None:
    async with (
        attach(terminal, subject="ann", scopes=["subscribe:orders", "publish:orders"]) as ann,
        attach(terminal, subject="bob", scopes=["subscribe:orders"]) as bob,
        attach(terminal, subject="op", scopes=["operate"]) as operator,
    ):
        rule = (await ann.rules.create(PAID, "orders")).rule
        async with Reader(bob.subscribe("orders", match=PAID, group="g")):
            pass
        await ann.publish("orders", {"state": "paid"})
        await until_routed(terminal, "orders")
        with pytest.raises(Forbidden):
            await bob.rules.delete(rule, force=True)
        for bus in (ann, operator):
            with pytest.raises(BadRequest, match="1 message"):
                await bus.rules.delete(rule)
        assert (await operator.rules.delete(rule, force=True)).deleted == rule
        assert await ann.rules.list() == []


async def test_a_deleted_source_takes_its_rules_along(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        rule = (await bus.rules.create(PAID, "orders")).rule
        await bus.groups.create(rule, "g")
        await bus.publish("orders", {"state": "paid"})
        await until_routed(terminal, "orders")
        with pytest.raises(BadRequest, match="1 message"):
            await bus.topics.delete("orders")
        await bus.topics.delete("orders", force=True)
        assert await bus.rules.list() == []
        assert rule not in terminal.broker.topics
        await bus.rules.create(PAID, "orders")
        await bus.publish("orders", {"state": "paid"})
        await until_routed(terminal, "orders")
        assert len(await payloads(terminal, rule)) == 1


# -- who may --------------------------------------------------------------------------------------------


async def test_publishing_without_a_topic_has_a_scope_of_its_own(terminal: Terminal) -> None:
    async with attach(terminal, subject="ann", scopes=["publish:#", "subscribe:#"]) as bus:
        with pytest.raises(Forbidden, match=r"publish:\$content"):
            await bus.publish(None, b"{}")
        with pytest.raises(Forbidden, match=r"subscribe:\$content"):
            await bus.subscribe(match=PAID, group="g").open()
    async with attach(terminal, subject="bob", scopes=["publish:$content"]) as bus:
        await bus.publish(None, b"{}")


async def test_who_reads_a_rules_topic_may_read_its_source(terminal: Terminal) -> None:
    async with attach(terminal) as admin:
        rule = (await admin.rules.create(PAID)).rule
        await admin.publish(None, {"state": "paid"})
        await until_routed(terminal)
        async with Reader(admin.subscribe(rule, group="g")) as reader:
            await (await reader.next()).bury("bad")
        await eventually(lambda: f"{rule}.dead" in terminal.broker.topics)
    dead = f"{rule}.dead"
    for scopes, allowed in (
        (["subscribe:#"], False),
        (["subscribe:match.#"], False),
        (["subscribe:orders"], False),
        (["subscribe:$content"], True),
        ([f"subscribe:{rule}", f"subscribe:{dead}"], True),
    ):
        async with attach(terminal, subject="ann", scopes=scopes) as bus:
            for name in (rule, dead):
                tries = (
                    lambda bus=bus, name=name: bus.subscribe(name, start="earliest").open(),
                    lambda bus=bus, name=name: bus.fetch(name, 0),
                    lambda bus=bus, name=name: bus.topics.wait({name: 0}, 0.0),
                )
                for ask in tries:
                    if allowed:
                        await ask()
                    else:
                        with pytest.raises(Forbidden):
                            await ask()
            assert [each.rule for each in await bus.rules.list()] == ([rule] if allowed else [])


async def test_a_wildcard_does_not_read_messages_twice(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        rule = (await bus.rules.create(PAID, "orders")).rule
        async with (
            Reader(bus.subscribe("#", group="all")) as everything,
            Reader(bus.subscribe("match.*", group="chosen")) as chosen,
        ):
            await bus.publish("orders", {"state": "paid"})
            assert (await chosen.next()).topic == rule
            assert (await everything.next()).topic == "orders"
            await eventually(lambda: "chosen" in terminal.broker.topics[rule].groups)
            assert "all" not in terminal.broker.topics[rule].groups


# -- tests ----------------------------------------------------------------------------------------------


async def test_a_test_tells_which_rules_match_and_why_not(bus: Any, terminal: Terminal) -> None:
    paid, large = [(await bus.rules.create(match)).rule for match in (PAID, LARGE)]
    verdicts = await bus.rules.test(payload={"state": "paid", "amount": 5})
    assert {each.rule: each.matches for each in verdicts} == {paid: True, large: False}
    (refusal,) = [each for each in verdicts if not each.matches]
    assert (refusal.place, refusal.why) == ("match.amount", 'found 5, wanted {"numeric":[">",100]}')
    (one,) = await bus.rules.test(payload='{"amount": 500}', rule=large)
    assert (one.rule, one.matches) == (large, True)
    query = {"kind": "regexp", "pattern": "^eu", "place": "key"}
    (asked,) = await bus.rules.test(payload="any text", key="eu-1", match=query)
    assert (asked.rule, asked.matches) == ("", True)
    (over,) = await bus.rules.test(payload={"n": list(range(1, 400))}, match=COSTLY)
    assert (over.matches, over.exceeded) == (False, True)
    assert await bus.rules.test(payload={}, source="orders") == []
    assert CONTENT_TOPIC not in {t.name for t in await bus.topics.list()} or routed(terminal)
    with pytest.raises(BadRequest):
        await bus.rules.test(payload={}, match={"a": []})
    with pytest.raises(UnknownTopic):
        await bus.rules.test(payload={}, rule="match.none")


async def test_a_test_of_many_rules_has_pages(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await asyncio.gather(*(bus.rules.create({"n": [n]}) for n in range(130)))
        verdicts = await bus.rules.test(payload={"n": 77})
        assert len(verdicts) == 130
        assert [each.rule for each in verdicts if each.matches] == [rule_of({"n": [77]})]
        assert [each.rule for each in verdicts] == sorted(each.rule for each in verdicts)


async def test_observers_hear_of_rules(terminal: Terminal) -> None:
    async with attach(terminal) as bus, Reader(bus.subscribe("$bus")) as reader:
        rule = (await bus.rules.create(PAID, "orders")).rule
        await bus.rules.delete(rule)
        heard: list[tuple[str, str]] = []
        while len(heard) < 2:
            event = (await reader.next()).json()
            if event["what"] == "rule":
                heard.append((event["name"], event["change"]))
        assert heard == [(rule, "created"), (rule, "deleted")]


async def test_wakes_of_a_closed_terminal_do_nothing(terminal: Terminal) -> None:
    bus: Bus
    async with attach(terminal) as bus:
        await bus.rules.create(PAID)
        route = terminal.routing.routes[CONTENT_TOPIC]
        terminal.routing.close()
        await bus.publish(None, {"state": "paid"}, timeout=LIMIT)
        route.wake()
        assert not routed(terminal)


async def test_a_payload_of_bytes_is_tested_as_it_is(bus: Bus) -> None:
    rule = (await bus.rules.create({"kind": "regexp", "pattern": "^\\C\\x01"}, "orders")).rule
    for payload, matches in ((b"\xff\x01", True), (b"\xff\x02", False), ("\xff\x01", False)):
        (verdict,) = await bus.rules.test(payload=payload, source="orders")
        assert (verdict.rule, verdict.matches) == (rule, matches), payload
