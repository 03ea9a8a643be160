"""Dead letters by cause: counted, listed, given again and given up, all of them or some."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge.broker.operations import letters
from landbridge.broker.server import Terminal
from landbridge.errors import BadRequest, Forbidden
from landbridge.testing import FakeClock, attach, run_terminal
from tests.contracts.ways import Way
from tests.waiting import Reader, eventually


async def bury(bus: Any, causes: list[str], group: str = "g") -> None:
    """Publish a message for each cause, and have the group bury it for that."""
    for number, cause in enumerate(causes):
        await bus.publish("orders", f"{number} {cause}".encode(), key="k")
    async with Reader(bus.subscribe("orders", group=group)) as reader:
        for message in await reader.take(len(causes)):
            await message.bury(message.payload.decode().split()[1])


async def waiting(bus: Any) -> dict[tuple[str, str], int]:
    found = await bus.letters.summary()
    assert found.whole
    return {(row.group, row.cause): row.letters for row in found.causes}


async def all_buried(terminal: Terminal, count: int) -> None:
    topics = terminal.broker.topics
    await eventually(lambda: "orders.dead" in topics and topics["orders.dead"].log.end == count)


async def test_letters_are_counted_by_group_and_cause(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        assert await waiting(bus) == {}
        await bus.groups.create("orders", "h")
        await bury(bus, ["late", "bad", "late"])
        await bury(bus, ["late", "bad", "late"][:0])
        await all_buried(terminal, 3)
        assert await waiting(bus) == {("g", "late"): 2, ("g", "bad"): 1}
        [bad, late] = (await bus.letters.summary(topic="orders", group="g")).causes
        assert (bad.topic, bad.dead_topic, bad.attempts) == ("orders", "orders.dead", 1)
        assert late.first_at <= late.last_at
        assert (await bus.letters.summary(topic="orders", group="h")).causes == []
        with pytest.raises(BadRequest, match="a group is one of a topic"):
            await bus.letters.summary(group="g")


async def test_a_page_of_letters_has_what_they_are_and_no_payload(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bury(bus, ["late", "bad", "late"])
        await all_buried(terminal, 3)
        page = await bus.letters.list(topic="orders", group="g", limit=2)
        assert [(row.offset, row.was_at, row.cause, row.attempts) for row in page.letters] == [
            (0, 0, "late", 1), (1, 1, "bad", 1),
        ]  # fmt: skip
        rest = await bus.letters.list(topic="orders", group="g", limit=2, after=page.next)
        assert [row.offset for row in rest.letters] == [2]
        assert rest.next == ""
        late = await bus.letters.list(topic="orders", group="g", cause="late")
        assert [row.offset for row in late.letters] == [0, 2]
        with pytest.raises(BadRequest, match="after"):
            await bus.letters.list(topic="orders", group="g", after="x")


async def test_letters_of_a_cause_are_given_again_once_after_a_dry_run(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        await bury(bus, ["late", "bad", "late", "late"])
        await all_buried(terminal, 4)
        end = terminal.broker.topics["orders"].log.end
        tried = await bus.letters.redrive(topic="orders", group="g", cause="late", dry_run=True)
        assert (tried.letters, tried.dry_run) == (3, True)
        assert terminal.broker.topics["orders"].log.end == end
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            asked = [bus.letters.redrive(topic="orders", group="g", cause="late") for _ in range(3)]
            assert sum(done.letters for done in await asyncio.gather(*asked)) == 3
            again = await reader.take(3)
            assert [m.payload for m in again] == [b"0 late", b"2 late", b"3 late"]
            assert [(m.key, m.headers, m.attempt) for m in again] == [("k", {}, 1)] * 3
            for message in again:
                await message.ack()
        assert await waiting(bus) == {("g", "bad"): 1}
        assert (await bus.groups.redrive("orders", "g")).redriven == 1
        assert await waiting(bus) == {}


async def test_some_letters_are_given_up_and_the_topic_can_be_trimmed(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bury(bus, ["late", "bad", "late"])
        await all_buried(terminal, 3)
        await bus.publish("orders.dead", b"no letter at all")
        assert (await bus.letters.delete(topic="orders", group="g", offsets=[1, 3, 99])).letters == 1
        assert (await bus.letters.redrive(topic="orders", group="g", offsets=[1])).letters == 0
        assert await waiting(bus) == {("g", "late"): 2}
        assert (await bus.letters.delete(topic="orders", group="g")).letters == 2
        [reader] = terminal.broker.topics["orders.dead"].groups.values()
        assert reader.delivery.cursor.floor == 4  # nothing of the topic is kept for the letters any more
        assert (await bus.groups.redrive("orders", "g")).redriven == 0


async def test_a_forged_letter_is_none(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bury(bus, ["late"])
        await all_buried(terminal, 1)
        headers: dict[str, str | int] = {
            "lb-topic": "orders",
            "lb-group": "g",
            "lb-offset": 0,
            "lb-cause": "late",
        }
        await bus.publish("orders.dead", b"forged", headers=headers)
        assert await waiting(bus) == {("g", "late"): 1}
        assert (await bus.letters.redrive(topic="orders", group="g", offsets=[1])).letters == 0


async def test_a_redrive_and_a_deletion_are_in_the_audit_log(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bury(bus, ["late", "bad"])
        await all_buried(terminal, 2)
        await bus.letters.redrive(topic="orders", group="g", cause="late", dry_run=True)
        await bus.letters.redrive(topic="orders", group="g", cause="late")
        await bus.letters.delete(topic="orders", group="g", cause="bad")
        entries = [entry for entry in await bus.audit.list() if entry.operation.startswith("letter.")]
        told = [(each.operation, each.name, each.after) for each in entries]
        assert sorted(told) == [
            ("letter.delete", "orders/g", {"letters": 1, "cause": "bad"}),
            ("letter.redrive", "orders/g", {"letters": 1, "cause": "late"}),
        ]


async def test_who_may_not_see_a_topic_sees_none_of_its_letters(terminal: Terminal, way: Way) -> None:
    async with attach(terminal) as bus:
        await bury(bus, ["late"])
        await all_buried(terminal, 1)
    async with way.connect(terminal, scopes=["subscribe:bills"]) as bus:
        assert (await bus.letters.summary()).causes == []
        with pytest.raises(Forbidden):
            await bus.letters.list(topic="orders", group="g")
        with pytest.raises(Forbidden):
            await bus.letters.redrive(topic="orders", group="g")


async def test_a_count_says_of_how_many_letters_it_has_looked_at(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attach(terminal) as bus:
        await bury(bus, ["late", "bad", "late"])
        await all_buried(terminal, 3)
        whole = await bus.letters.summary()
        assert (whole.whole, whole.looked_at, whole.stored) == (True, 3, 3)
        await bus.letters.delete(topic="orders", group="g", offsets=[0])
        monkeypatch.setattr(letters, "MOST_COUNTED", 2)
        cut = await bus.letters.summary()
        # Of the two oldest ones, one was given up; it is stored until the retention removes it.
        assert (cut.whole, cut.looked_at, cut.stored) == (False, 2, 3)
        assert [(row.cause, row.letters) for row in cut.causes] == [("bad", 1)]


async def test_letters_buried_since_a_moment_are_counted_alone() -> None:
    clock = FakeClock()
    async with run_terminal(clock=clock) as terminal, attach(terminal) as bus:
        await bury(bus, ["early", "early"])
        await all_buried(terminal, 2)
        clock.advance(60.0)
        since = terminal.broker.clock()
        await bury(bus, ["late"])
        await all_buried(terminal, 3)
        found = await bus.letters.summary(topic="orders", since=since)
        assert [(row.cause, row.letters) for row in found.causes] == [("late", 1)]
        assert (found.whole, found.looked_at, found.stored) == (True, 1, 1)
        everything = await bus.letters.summary(since=0)
        assert sum(row.letters for row in everything.causes) == 3
        clock.advance(60.0)
        assert (await bus.letters.summary(since=terminal.broker.clock())).stored == 0
