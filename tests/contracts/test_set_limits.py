"""Limits that are set while a terminal runs, its log level, and what one service may have of a limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.broker.limits import CEILINGS, Limits, check_limit, parse_limits
from landbridge.broker.server import Terminal
from landbridge.broker.set_limits import KEY
from landbridge.core.log.store import PutDocument
from landbridge.errors import BadRequest, Forbidden, LimitReached, TooLarge
from landbridge.stores.journal.store import JournalStore
from landbridge.testing import attach, run_terminal


async def row(bus: Any, name: str) -> Any:
    (found,) = [each for each in (await bus.limits.show()).limits if each.name == name]
    return found


async def test_a_limit_is_set_and_reset_while_the_terminal_runs(terminal: Terminal, bus: Any) -> None:
    await bus.publish("orders", b"x" * 2_000)
    await bus.limits.set({"max_payload": 1_024, "max_topics": 2})
    async with attach(terminal) as other:
        with pytest.raises(TooLarge, match="the terminal takes 1024"):  # the welcome has said so
            await other.publish("orders", b"x" * 2_000)
    with pytest.raises(TooLarge, match="allowed are 1024"):
        await bus.publish("orders", b"x" * 2_000)
    with pytest.raises(LimitReached, match="max_topics"):
        for number in range(3):
            await bus.topics.create(f"t{number}")
    found = await row(bus, "max_payload")
    assert (found.value, found.source, found.set_by, found.at_start) == (1_024, "set", "test", 4 << 20)
    assert found.set_at is not None
    assert (found.least, found.most, found.help) == (1 << 10, 1 << 30, "Bytes of one message's payload.")
    await bus.limits.reset(["max_payload", "max_topics"])
    assert (await row(bus, "max_payload")).source == "default"
    await bus.publish("orders", b"x" * 2_000)


async def test_a_limit_outlives_restarts_until_it_is_reset(tmp_path: Path) -> None:
    store = tmp_path / "bus"
    given = Limits(max_topics=50)
    async with run_terminal(JournalStore(store), limits=given) as terminal, attach(terminal) as bus:
        found = await row(bus, "max_topics")
        assert (found.value, found.source) == (50, "start")
        await bus.limits.set({"max_topics": 70, "hello_within": 2.5})
        assert given.max_topics == 50
    for at_start in (50, 60):
        limits = Limits(max_topics=at_start)
        async with run_terminal(JournalStore(store), limits=limits) as terminal, attach(terminal) as bus:
            found = await row(bus, "max_topics")
            assert (found.value, found.source, found.at_start) == (70, "set", at_start)
            assert terminal.broker.limits.hello_within == 2.5
            if at_start == 60:
                await bus.limits.reset(["max_topics"])
                assert terminal.broker.limits.max_topics == 60


async def test_nothing_is_set_beyond_a_ceiling_or_without_a_right(terminal: Terminal, bus: Any) -> None:
    before = await bus.limits.show()
    for values, why in (
        ({"max_topics": 0}, "not between 1 and"),
        ({"max_topics": 1 << 60}, "not between 1 and"),
        ({"max_topics": 10, "max_payload": 1}, "limit max_payload"),
        ({"max_topics": 1.5}, "no whole number"),
        ({"service_share": 1.5}, "not between"),
        ({"max_frame": 1 << 20}, "can't be set while the terminal runs"),
        ({"nothing": 1}, "no limit 'nothing'"),
    ):
        with pytest.raises(BadRequest, match=why):
            await bus.limits.set(values)
    with pytest.raises(BadRequest, match="no limit"):
        await bus.limits.reset(["nothing"])
    with pytest.raises(BadRequest) as mistyped:
        await bus.limits.set({"max_paylod": 1})
    assert mistyped.value.hint == "did you mean max_payload?"
    assert await bus.limits.show() == before
    async with attach(terminal, subject="ops", scopes=["operate"]) as operator:
        assert await operator.limits.show() == before
        with pytest.raises(Forbidden):
            await operator.limits.set({"max_topics": 10})


async def test_what_is_stored_beyond_a_ceiling_is_brought_back(crashes: list[Any]) -> None:
    async with run_terminal() as terminal:
        raw = b'{"max_topics": {"value": 1e15, "by": "x", "at": 1}, "gone": {"value": 1, "by": "x", "at": 1}}'
        await terminal.broker.write([PutDocument("settings", KEY, raw)])
        terminal.broker.set_limits.load(dict(await terminal.store.documents(0, "settings")))
        assert terminal.broker.limits.max_topics == CEILINGS["max_topics"].most


@given(
    st.sampled_from([*CEILINGS, "max_frame", "nothing"]),
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats()),
)
def test_a_value_is_taken_or_refused_by_its_ceiling(name: str, value: Any) -> None:
    ceiling = CEILINGS.get(name)
    is_whole = isinstance(getattr(Limits(), name, 0), int)
    fits = ceiling is not None and (
        value is None
        or (
            not isinstance(value, bool)
            and math.isfinite(value)
            and ceiling.least <= value <= ceiling.most
            and (not is_whole or value == int(value))
        )
    )
    if not fits:
        with pytest.raises(BadRequest):
            check_limit(name, value)
        return
    found = check_limit(name, value)
    assert found == value
    assert value is None or type(found) is (int if is_whole else float)


def test_every_ceiling_is_of_a_limit_and_has_room_for_its_default() -> None:
    for name, ceiling in CEILINGS.items():
        assert ceiling.least <= getattr(Limits(), name) <= ceiling.most
    with pytest.raises(BadRequest, match="above 1"):
        parse_limits(["service_share=1.5"])


async def test_the_log_level_follows(terminal: Terminal, bus: Any) -> None:
    with pytest.raises(BadRequest, match="a log of its own"):
        await bus.logs.show()
    terminal.log_level = FakeLevel()
    assert (await bus.logs.show()).level == "info"
    shown = await bus.logs.level("debug")
    assert (shown.level, shown.at_start, terminal.log_level.level) == ("debug", "info", "debug")


class FakeLevel:
    level: Any = "info"
    at_start: Any = "info"


async def test_no_service_takes_all_stored_events(crashes: list[Any]) -> None:
    async with run_terminal(limits=Limits(max_events=8, service_share=0.5)) as terminal:
        async with attach(terminal, subject="greedy") as greedy, attach(terminal, subject="other") as other:
            for _ in range(4):
                await greedy.trigger("jobs", {})
            with pytest.raises(LimitReached, match="its share of max_events"):
                await greedy.trigger("jobs", {})
            for _ in range(4):
                await other.trigger("jobs", {})
            with pytest.raises(LimitReached, match="as many as max_events allows"):
                await attach_and_trigger(terminal)
        assert len(terminal.outcomes.events) == 8


async def attach_and_trigger(terminal: Terminal) -> None:
    async with attach(terminal, subject="third") as third:
        await third.trigger("jobs", {})


#: What services make a number of: its limit, and how one of a number is made and removed.
MADE: dict[str, tuple[str, Callable[[Any, int], Any], Callable[[Any, Any], Any]]] = {
    "rules": (
        "max_rules",
        lambda bus, n: bus.rules.create({"n": [n]}, "orders"),
        lambda bus, made: bus.rules.delete(made.rule),
    ),
    "schedules": (
        "max_schedules",
        lambda bus, n: bus.schedules.create("orders", f"s{n}", "@every 1h", payload=n),
        lambda bus, made: bus.schedules.remove(made.topic, made.name),
    ),
    "webhooks": (
        "max_webhooks",
        lambda bus, n: bus.webhooks.create("orders", f"w{n}", "https://example.com/"),
        lambda bus, made: bus.webhooks.delete(made.topic, made.name),
    ),
}


@pytest.mark.parametrize("what", MADE)
async def test_no_service_takes_the_place_of_all_others(what: str, crashes: list[Any]) -> None:
    limit, make, remove = MADE[what]
    limits = Limits(service_share=0.5, **{limit: 6})
    small = ["publish:#", "subscribe:#"]
    async with run_terminal(limits=limits) as terminal, attach(terminal) as admin:
        await admin.topics.create("orders")
        async with (
            attach(terminal, subject="greedy", scopes=small) as greedy,
            attach(terminal, subject="other", scopes=small) as other,
        ):
            mine = [await make(greedy, n) for n in range(3)]
            with pytest.raises(LimitReached, match=f"greedy has 3 .*its share of {limit}") as refused:
                await make(greedy, 3)
            assert "service_share" in refused.value.hint
            await make(greedy, 0)  # what is there already is no further one
            assert await make(other, 4)
            await remove(greedy, mine[0])
            assert await make(greedy, 3)
            with pytest.raises(LimitReached):
                await make(greedy, 0)
            await admin.limits.set({"service_share": 1.0})
            assert await make(greedy, 0)
            await admin.limits.set({"service_share": 0.01})  # one at least, and none for who may operate
            assert await make(admin, 5)
            with pytest.raises(LimitReached, match=f"as many as {limit} allows"):
                await make(admin, 6)
        figures = [(each.name, each.labels, each.value) for each in terminal.broker.shares.figures()]
        assert figures == [("landbridge_limit_refused", {"limit": limit}, 3)]
