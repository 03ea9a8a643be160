"""The audit log: who has changed what, in the very commit of the change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from landbridge.broker.audit import AuditedCall
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.server import Terminal
from landbridge.core import audit
from landbridge.core.audit import AuditEntry
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest, BusError, Forbidden, StoreFailed
from landbridge.protocol.operations import OPERATIONS, RetentionOptions
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, FaultyStore, attach, run_terminal
from tests.waiting import eventually


async def entries(terminal: Terminal) -> list[AuditEntry]:
    """All entries, once what units owe to each other is done."""
    await terminal.broker.drain()
    topic = terminal.broker.topics.get(audit.TOPIC)
    if topic is None:
        return []
    found: list[AuditEntry] = []
    at = topic.log.first
    while at < topic.log.end:
        batch = await topic.log.read(at)
        assert batch is not None
        found += [audit.decode(payload) for payload in batch[1].payloads()]
        at = batch[0] + len(batch[1])
    return found


async def settled(terminal: Terminal, count: int) -> list[AuditEntry]:
    """So many entries; those of other units come a moment later."""
    found: list[AuditEntry] = []
    for _ in range(2_000):
        found = await entries(terminal)
        if len(found) >= count:
            break
    assert len(found) == count, found
    return sorted(found, key=lambda entry: entry.time)


def briefly(entry: AuditEntry) -> tuple[str, str, str]:
    return entry.operation, entry.what, entry.name


async def test_a_change_is_told_with_who_from_where_and_from_what_to_what(
    terminal: Terminal, bus: Any
) -> None:
    await bus.topics.create("orders")
    await bus.topics.update("orders", max_backlog=5_000_000, retention={"max_age": 60.0})
    await bus.topics.delete("orders")
    made, changed, deleted = await settled(terminal, 3)
    assert briefly(made) == ("topic.create", "topic", "orders")
    assert (made.before, made.after["kind"]) == (None, "stream")
    assert changed.before["max_backlog"] == terminal.broker.limits.max_backlog
    assert changed.after == {
        "max_backlog": 5_000_000,
        "retention": {"settled": False, "max_age": 60.0, "max_bytes": None, "discard": "settled"},
    }
    assert (deleted.before["max_backlog"], deleted.after) == (5_000_000, None)
    for entry in (made, changed, deleted):
        assert entry.who == "test"
        assert entry.token
        assert entry.program == "test" or entry.peer != "memory"
        assert abs(entry.time - terminal.broker.clock()) < 3600 * SECOND
    assert made.key == b"topic/orders"


#: What an operator does, in order, and the entries that follow from it.
DOINGS: list[tuple[Callable[[Any], Awaitable[Any]], list[tuple[str, str, str]]]] = [
    (
        lambda bus: bus.groups.create("t", "g"),
        [("group.create", "topic", "t"), ("group.create", "group", "t/g")],
    ),
    (lambda bus: bus.groups.create("t", "g"), []),
    (lambda bus: bus.groups.update("t", "g", max_attempts=3), [("group.update", "group", "t/g")]),
    (lambda bus: bus.groups.update("t", "g", max_attempts=3), []),
    (lambda bus: bus.groups.seek("t", "g", to="earliest"), [("group.seek", "group", "t/g")]),
    (lambda bus: bus.groups.pause("t", "g", note="why"), [("group.pause", "group", "t/g")]),
    (lambda bus: bus.groups.pause("t", "g", note="why"), []),
    (lambda bus: bus.groups.resume("t", "g"), [("group.resume", "group", "t/g")]),
    (lambda bus: bus.topics.pause("t"), [("topic.pause", "topic", "t")]),
    (lambda bus: bus.topics.resume("t"), [("topic.resume", "topic", "t")]),
    (lambda bus: bus.topics.create("t"), []),
    (lambda bus: bus.topics.update("t", max_backlog=1 << 20), [("topic.update", "topic", "t")]),
    (lambda bus: bus.groups.redrive("t", "g"), []),
    (lambda bus: bus.services.register("shop", credential=False), [("service.register", "service", "shop")]),
    (lambda bus: bus.services.register("shop", credential=False), []),
    (lambda bus: bus.services.update("shop", owner="ana"), [("service.update", "service", "shop")]),
    (lambda bus: bus.services.suspend("shop"), [("service.suspend", "service", "shop")]),
    (lambda bus: bus.services.resume("shop"), [("service.resume", "service", "shop")]),
    (lambda bus: bus.services.rotate("shop"), [("service.rotate", "service", "shop")]),
    (lambda bus: bus.services.pause("shop"), [("service.pause", "service", "shop")]),
    (lambda bus: bus.services.unpause("shop"), [("service.unpause", "service", "shop")]),
    (lambda bus: bus.services.remove("shop"), [("service.remove", "service", "shop")]),
    (
        lambda bus: bus.schedules.create("t", "daily", when="@daily", payload={}),
        [("schedule.create", "schedule", "t/daily")],
    ),
    (lambda bus: bus.schedules.create("t", "daily", when="@daily", payload={}), []),
    (lambda bus: bus.schedules.pause("t", "daily"), [("schedule.pause", "schedule", "t/daily")]),
    (lambda bus: bus.schedules.resume("t", "daily"), [("schedule.resume", "schedule", "t/daily")]),
    (lambda bus: bus.schedules.trigger("t", "daily"), [("schedule.trigger", "schedule", "t/daily")]),
    (lambda bus: bus.schedules.remove("t", "daily"), [("schedule.remove", "schedule", "t/daily")]),
    (
        lambda bus: bus.webhooks.create("t", "hook", url="https://example.com/"),
        [("webhook.create", "group", "t/webhook.hook"), ("webhook.create", "webhook", "t/hook")],
    ),
    (lambda bus: bus.webhooks.pause("t", "hook"), [("webhook.pause", "webhook", "t/hook")]),
    (lambda bus: bus.webhooks.rotate("t", "hook"), [("webhook.rotate", "webhook", "t/hook")]),
    (
        lambda bus: bus.webhooks.delete("t", "hook"),
        [("webhook.delete", "group", "t/webhook.hook"), ("webhook.delete", "webhook", "t/hook")],
    ),
    (lambda bus: bus.websub.open("t"), [("websub.open", "feed", "t")]),
    (lambda bus: bus.websub.close("t"), [("websub.close", "feed", "t")]),
    (lambda bus: bus.status.set(default="messages"), [("status.levels", "status", "levels")]),
    (lambda bus: bus.status.set(default="messages"), []),
    (lambda bus: bus.groups.delete("t", "g", force=True), [("group.delete", "group", "t/g")]),
    (lambda bus: bus.topics.delete("t"), [("topic.delete", "topic", "t")]),
]


async def test_every_kind_of_change_has_its_entries(terminal: Terminal, bus: Any) -> None:
    known = 0
    for do, expected in DOINGS:
        await do(bus)
        found = await settled(terminal, known + len(expected))
        assert sorted(map(briefly, found[known:])) == sorted(expected)
        known = len(found)


async def test_tokens_and_secrets_are_not_told(terminal: Terminal, bus: Any) -> None:
    made = await bus.tokens.create("shop", ["publish:orders"], life=60.0)
    registered = await bus.services.register("bill", scopes=["publish:bills"])
    hook = await bus.webhooks.create("t", "hook", url="https://example.com/")
    rotated = await bus.webhooks.rotate("t", "hook")
    await bus.tokens.revoke(id=made.id)
    found = await settled(terminal, 8)
    raw = b"\n".join(map(audit.encode, found))
    for secret in (made.token, registered.credential, hook.secret, rotated.secret):
        assert secret.encode() not in raw
    told = {entry.operation: entry for entry in found}
    assert told["token.create"].name == made.id
    assert told["token.create"].after["scopes"] == ["publish:orders"]
    assert told["token.revoke"].name == made.id


async def test_what_programs_do_is_not_audited(terminal: Terminal, bus: Any) -> None:
    await bus.publish("orders", b"1")
    await bus.documents.create("state", "k", {"n": 1})
    await bus.groups.advance("orders", "reader", to=1)
    await bus.status.note("odd")
    with pytest.raises(BadRequest):
        await bus.topics.create("$mine")
    assert await entries(terminal) == []


async def test_the_log_is_read_by_whoever_has_its_scope(terminal: Terminal, bus: Any) -> None:
    await bus.topics.create("orders")
    await settled(terminal, 1)
    async with attach(terminal, subject="ops", scopes=["operate", "subscribe:#"]) as operator:
        with pytest.raises(Forbidden):
            await operator.subscribe(audit.TOPIC, start="earliest").open()
        with pytest.raises(Forbidden, match="how long the audit log is kept"):
            await operator.topics.update(audit.TOPIC, retention=RetentionOptions(max_age=1.0))
        with pytest.raises(BusError):
            await operator.topics.delete(audit.TOPIC)
    async with attach(terminal, subject="auditor", scopes=[f"subscribe:{audit.TOPIC}"]) as auditor:
        async with auditor.subscribe(audit.TOPIC, start="earliest") as reading:
            message = await reading.poll(60.0)
            assert message is not None
            assert audit.decode(message.payload).name == "orders"
            assert message.key == "topic/orders"
        with pytest.raises(Forbidden):
            await auditor.publish(audit.TOPIC, b"forged")
    await bus.topics.update(audit.TOPIC, retention=RetentionOptions(max_age=86400.0))
    assert (await settled(terminal, 2))[1].name == audit.TOPIC


# -- the same commit -----------------------------------------------------------------------------------


async def test_a_change_whose_commit_fails_has_no_entry(crashes: list[Any]) -> None:
    """The commits fail one after the other: what is there afterwards has its entry, and nothing else has."""
    for fail_on in range(1, 14):
        store = FaultyStore(MemoryStore(), error=StoreFailed("broken (as told)"))
        async with run_terminal(store) as terminal, attach(terminal, patience=0.0) as bus:
            await bus.topics.create("t")
            store.fail_on = {store.commits + fail_on}
            for act in (
                bus.topics.create("orders"),
                bus.topics.update("t", max_backlog=1 << 20),
                bus.groups.create("t", "g"),
                bus.groups.pause("t", "g"),
                bus.topics.pause("t"),
                bus.services.register("shop", credential=False),
            ):
                try:
                    await act
                except StoreFailed:
                    pass
            told = {(entry.what, entry.name, entry.operation) for entry in await entries(terminal)}
            broker = terminal.broker
            there = {
                ("topic", "orders", "topic.create"): "orders" in broker.topics
                and broker.topics["orders"].stored,
                ("topic", "t", "topic.update"): broker.topics["t"].spec.max_backlog == 1 << 20,
                ("group", "t/g", "group.create"): "g" in broker.topics["t"].groups
                and broker.table.group("t", "g").stored,
                ("group", "t/g", "group.pause"): "g" in broker.topics["t"].groups
                and broker.table.group("t", "g").pause is not None,
                ("topic", "t", "topic.pause"): broker.topics["t"].pause is not None,
                ("service", "shop", "service.register"): "shop" in terminal.services.names(),
            }
            for what, is_there in there.items():
                assert (what in told) == is_there, (fail_on, what)


async def test_the_entry_is_in_the_commit_of_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a store of one unit: what is written with the change has the entry's batch."""
    commits: list[BrokerCommit] = []
    enter = AuditedCall.enter

    def entered(self: AuditedCall, commit: Any, *args: Any, **options: Any) -> None:
        commits.append(commit)
        enter(self, commit, *args, **options)

    monkeypatch.setattr(AuditedCall, "enter", entered)
    async with run_terminal(JournalStore(tmp_path / "bus")) as terminal, attach(terminal) as bus:
        for do, _ in DOINGS:
            await do(bus)
        log = terminal.broker.topics[audit.TOPIC].log
        for commit in commits:
            assert log in commit.appended
            others = [write for write in commit.writes if getattr(write, "log", None) != log.number]
            assert others, "the commit of an entry has a change as well"
        assert log.end == len(commits)


async def test_operations_that_change_something_say_whether_they_are_audited() -> None:
    """The list of those that are not is short, and each is the work of programs."""
    unaudited = {op.name for op in OPERATIONS.values() if not op.safe and not op.is_audited}
    assert unaudited <= {
        "group.advance",
        "sms.call",
        "service.token",
        "service.heartbeat",
        "stage.commit",
        "stage.drop",
        "document.create",
        "document.update",
        "document.delete",
        "request.send",
        "event.trigger",
        "error.report",
        "status.note",
        "websub.call",
    }


async def test_an_operation_that_says_nothing_has_an_entry_all_the_same(terminal: Terminal) -> None:
    from landbridge.protocol import operations as table

    async def handle(caller: Any, request: Any) -> Any:
        return table.Deleted(deleted="x")

    terminal.operations.register(table.GROUP_DELETE, handle)
    async with attach(terminal) as bus:
        await bus.groups.delete("t", "g", force=True)
    (entry,) = await settled(terminal, 1)
    assert (briefly(entry), entry.after) == (("group.delete", "group", "t/g"), {"force": True})


async def test_a_refused_operation_has_no_entry_and_is_counted(terminal: Terminal, bus: Any) -> None:
    async with attach(terminal, subject="shop", scopes=["publish:#"]) as shop:
        for _ in range(3):
            with pytest.raises(Forbidden):
                await shop.topics.create("orders")
        assert await entries(terminal) == []
        await eventually(lambda: terminal.broker.totals.forbidden == 3)
    assert "landbridge_forbidden_total 3.0" in await bus.terminal.metrics()


async def test_entries_behind_a_clock_that_was_set_back_are_listed_too(crashes: list[Any]) -> None:
    clock = FakeClock()
    begun = clock()
    async with run_terminal(clock=clock) as terminal, attach(terminal, life=1e8) as bus:
        clock.advance(7200)
        await bus.topics.create("ahead")
        clock.now = begun + SECOND
        await bus.topics.create("now")
        listed = await bus.audit.list(until=begun + 60 * SECOND)
        assert [entry.name for entry in listed] == ["now"]
