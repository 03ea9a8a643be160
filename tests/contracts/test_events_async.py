"""Events with an outcome: kept for a day, called back, through restarts and past odd receivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from landbridge import EventResult, Service, ServiceFailed
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.events import MOST_WAITS
from landbridge.core.replies import CALLBACKS, KEEP
from landbridge.errors import BadRequest, Forbidden, LimitReached, NameTaken, TimedOut, TooLarge, UnknownEvent
from landbridge.gateways import callbacks
from landbridge.gateways.callbacks import posting
from landbridge.gateways.outgoing import OutgoingHttp, OutgoingLimits
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, attach, run_terminal
from tests.contracts.test_outgoing import LOOPBACK, receiver
from tests.contracts.test_requests import cut
from tests.waiting import LIMIT, Reader, eventually

REPORTS = "reports.build"


@asynccontextmanager
async def building(terminal: Terminal) -> AsyncIterator[None]:
    service = Service("reports")

    @service.on(REPORTS, reply=True)
    async def build(value: Any) -> Any:
        if value == "fail":
            raise ServiceFailed("no data", service_code="no_data", status=422)
        return {"built": value}

    async with attach(terminal, subject="reports") as bus, service.running(bus):
        await eventually(lambda: REPORTS in terminal.broker.topics)
        yield


async def test_an_outcome_is_kept_and_can_be_asked_for(terminal: Terminal, bus: Any) -> None:
    id = await bus.trigger(REPORTS, {"month": 5})
    assert (await bus.outcome(id)).state == "pending"
    async with building(terminal):
        result = await bus.outcome(id, wait=LIMIT)
        assert (result.state, result.source, result.topic) == ("done", "reports", REPORTS)
        assert result.json() == {"built": {"month": 5}}
        assert (await bus.outcome(id)).payload == result.payload
        failed = await bus.outcome(await bus.trigger(REPORTS, '"fail"'), wait=LIMIT)
        assert failed.state == "failed"
        assert (failed.error.service_code, failed.error.status, str(failed.error)) == (
            "no_data",
            422,
            "no data",
        )
        with pytest.raises(ServiceFailed):
            failed.json()


async def test_the_same_id_is_the_same_event(terminal: Terminal, bus: Any) -> None:
    for _ in range(3):
        assert await bus.trigger(REPORTS, 1, id="may") == "may"
    assert terminal.broker.topics[REPORTS].log.end == 1
    async with attach(terminal, subject="other", scopes=["publish:#"]) as other:
        with pytest.raises(NameTaken):
            await other.trigger(REPORTS, 1, id="may")
        with pytest.raises(UnknownEvent):
            await other.outcome("may")
    with pytest.raises(UnknownEvent):
        await bus.outcome("none")


async def test_an_event_that_is_triggered_twice_at_once_is_stored_once(terminal: Terminal, bus: Any) -> None:
    async with attach(terminal) as other:
        await asyncio.gather(*(each.trigger(REPORTS, 1, id="may") for each in (bus, other) for _ in range(5)))
    assert terminal.broker.topics[REPORTS].log.end == 1


async def test_events_of_a_topic_with_unique_ids_are_all_stored(terminal: Terminal, bus: Any) -> None:
    await bus.topics.create(REPORTS, ids="unique")
    async with building(terminal):
        ids = [await bus.trigger(REPORTS, n) for n in range(5)]
        assert terminal.broker.topics[REPORTS].log.end == 5
        for id in ids:
            assert (await bus.outcome(id, wait=LIMIT)).state == "done"


async def test_any_number_of_functions_is_called(crashes: list[Any]) -> None:
    """Also where more wait than a connection may have waiting."""
    seen: list[Any] = []
    async with run_terminal(limits=Limits(max_waits=MOST_WAITS)) as terminal, attach(terminal) as bus:
        for number in range(MOST_WAITS + 200):
            await bus.trigger(REPORTS, number, callback=lambda result: seen.append(result.json()))
        async with building(terminal):
            await eventually(lambda: len(seen) == MOST_WAITS + 200)


async def test_outcomes_come_also_after_their_group_was_deleted(terminal: Terminal, bus: Any) -> None:
    async with building(terminal):
        assert (await bus.outcome(await bus.trigger(REPORTS, 1), wait=LIMIT)).state == "done"
        [group] = terminal.broker.topics["$replies"].groups
        await bus.groups.delete("$replies", group, force=True)
        assert (await bus.outcome(await bus.trigger(REPORTS, 1), wait=LIMIT)).state == "done"


async def test_an_event_that_was_buried_and_redriven_is_still_answered(terminal: Terminal, bus: Any) -> None:
    id = await bus.trigger(REPORTS, 1, headers={"tenant": "a"})
    async for message in bus.subscribe(REPORTS, group="reports"):
        before = message.headers
        await message.bury("no")
        break
    await bus.groups.redrive(REPORTS, "reports")
    async for message in bus.subscribe(REPORTS, group="reports"):
        assert message.headers == before
        await message.reply("late, but not too late")
        break
    assert (await bus.outcome(id, wait=LIMIT)).state == "done"


async def test_a_function_is_called_with_the_outcome(terminal: Terminal, crashes: list[Any]) -> None:
    seen: list[EventResult] = []

    async def later(result: EventResult) -> None:
        await asyncio.sleep(0)
        seen.append(result)

    def broken(result: EventResult) -> None:
        raise ValueError("in a callback")

    async with attach(terminal) as bus:
        first = await bus.trigger(REPORTS, 1, callback=seen.append)
        second = await bus.trigger(REPORTS, 2, callback=later)
        await bus.trigger(REPORTS, 3, callback=broken)
        cut(bus)  # the functions are called over the next connection
        async with building(terminal):
            await eventually(lambda: len(seen) == 2 and crashes)
        assert {result.id: result.json() for result in seen} == {first: {"built": 1}, second: {"built": 2}}
        await bus.trigger(REPORTS, 4, callback=seen.append)  # closing the bus ends the wait for it
    assert len(crashes) == 1
    crashes.clear()


async def test_an_outcome_goes_to_a_topic(terminal: Terminal, bus: Any) -> None:
    async with building(terminal):
        id = await bus.trigger(REPORTS, 1, callback="topic:results")
        async with Reader(bus.subscribe("results", group="g", start="earliest")) as reader:
            message = await reader.next()
            assert message.json() == {"built": 1}
            assert (message.key, message.headers["lb-event"], message.headers["lb-state"]) == (id, id, "done")
            assert message.headers["lb-source"] == "reports"
            await message.ack()
            await bus.trigger(REPORTS, '"fail"', callback="topic:results")
            message = await reader.next()
            assert (message.text(), message.headers["lb-code"]) == ("no data", "no_data")
            await message.ack()


async def test_an_event_times_out_and_is_forgotten(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed, life=10 * KEEP) as bus:
        id = await bus.trigger(REPORTS, 1, within=60, callback="topic:results")
        clock.advance(61)
        result = await bus.outcome(id, wait=LIMIT)
        assert result.state == "timed_out"
        assert isinstance(result.error, TimedOut)
        async with Reader(bus.subscribe("results", group="g", start="earliest")) as reader:
            assert (await reader.next()).headers["lb-state"] == "timed_out"
        late = timed.broker.totals.late_replies
        clock.advance(KEEP + 1)
        await eventually(lambda: not timed.outcomes.events)
        with pytest.raises(UnknownEvent):
            await bus.outcome(id)
        assert timed.broker.totals.late_replies == late
        assert not await timed.store.documents(0, "event")


async def test_events_survive_a_restart() -> None:
    store, clock = MemoryStore(units=4), FakeClock()
    async with run_terminal(store, clock=clock) as terminal, attach(terminal) as bus:
        waiting = await bus.trigger(REPORTS, 1)
        async with building(terminal):
            done = await bus.trigger(REPORTS, 2)
            await bus.outcome(done, wait=LIMIT)
            await eventually(lambda: terminal.outcomes.events[waiting].state == "done")
        left = await bus.trigger(REPORTS, 3)
    async with run_terminal(store, clock=clock) as terminal, attach(terminal) as bus:
        assert (await bus.outcome(done)).json() == {"built": 2}
        assert (await bus.outcome(left)).state == "pending"
        async with building(terminal):
            assert (await bus.outcome(left, wait=LIMIT)).json() == {"built": 3}


async def test_bad_events_are_refused() -> None:
    limits = Limits(max_events=2, service_share=1.0)
    async with run_terminal(limits=limits) as terminal, attach(terminal, scopes=["publish:reports.#"]) as bus:
        for callback in ("ftp://x/", "topic:a b", "nonsense", "https:", "http://" + "a" * 3000):
            with pytest.raises(Exception, match=r"callback|can't be the name|scope"):
                await bus.trigger(REPORTS, 1, callback=callback)
        with pytest.raises(Forbidden):
            await bus.trigger(REPORTS, 1, callback="topic:not.mine")
        with pytest.raises(Forbidden):
            await bus.trigger("orders", 1)
        for options in ({"within": 0}, {"within": 1e9}, {"id": "x" * 65}, {"id": "a/b"}):
            with pytest.raises(BadRequest):
                await bus.trigger(REPORTS, 1, **options)
        with pytest.raises(TooLarge):
            await bus.trigger(REPORTS, bytes(600 << 10))
        assert not terminal.outcomes.events
        assert not terminal.broker.topics.get(REPORTS)
        for _ in range(2):
            await bus.trigger(REPORTS, 1)
        with pytest.raises(LimitReached):
            await bus.trigger(REPORTS, 1)


# -- URLs ------------------------------------------------------------------------------------------------


class Hooks:
    """A receiver of callbacks: answers the statuses given, then 204, and keeps what it got."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[tuple[dict[str, str], Any]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            body = await reader.readexactly(int(headers["content-length"]))
            self.got.append((headers, msgspec.json.decode(body)))
            status = self.statuses.pop(0) if self.statuses else 204
            writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\nlocation: /elsewhere\r\n\r\n".encode())
            await writer.drain()


class Stuck:
    """A receiver that answers nothing before it is told to."""

    def __init__(self) -> None:
        self.open = 0
        self.answer = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.open += 1
        await self.answer.wait()


def settled(terminal: Terminal, count: int) -> bool:
    topic = terminal.broker.topics.get(CALLBACKS)
    group = None if topic is None else topic.groups.get("callbacks")
    return group is not None and group.delivery.cursor.floor >= count


async def test_an_outcome_is_posted_and_tried_again(terminal: Terminal) -> None:
    hooks = Hooks(500, 302)
    async with (
        receiver(hooks) as port,
        attach(terminal) as bus,
        building(terminal),
        OutgoingHttp(LOOPBACK) as http,
        posting(bus, http, backoff=0.01),
    ):
        id = await bus.trigger(REPORTS, 1, callback=f"http://127.0.0.1:{port}/hook")
        await eventually(lambda: settled(terminal, 1))
        await bus.trigger(REPORTS, '"fail"', callback=f"http://127.0.0.1:{port}/hook")
        await eventually(lambda: settled(terminal, 2))
    headers, posts = [each for each, _ in hooks.got], [each for _, each in hooks.got]
    assert (
        posts[:3]
        == [{"event": id, "topic": REPORTS, "state": "done", "service": "reports", "value": {"built": 1}}] * 3
    )
    assert [each["landbridge-attempt"] for each in headers] == ["1", "2", "3", "1"]
    assert headers[0]["landbridge-event"] == id
    assert (posts[3]["state"], posts[3]["code"], posts[3]["status"]) == ("failed", "no_data", 422)


async def test_a_pending_callback_survives_a_restart() -> None:
    store, hooks = MemoryStore(units=4), Hooks()
    async with receiver(hooks) as port:
        async with run_terminal(store) as terminal, attach(terminal) as bus, building(terminal):
            id = await bus.trigger(REPORTS, 1, callback=f"http://127.0.0.1:{port}/hook")
            await bus.outcome(id, wait=LIMIT)
        assert not hooks.got
        async with (
            run_terminal(store) as terminal,
            attach(terminal) as bus,
            OutgoingHttp(LOOPBACK) as http,
            posting(bus, http),
        ):
            await eventually(lambda: settled(terminal, 1))
    assert [post["event"] for _, post in hooks.got] == [id]


async def test_what_can_never_be_posted_is_given_up(terminal: Terminal) -> None:
    hooks = Hooks(410)
    async with receiver(hooks) as port, attach(terminal) as bus, building(terminal):
        async with OutgoingHttp() as http, posting(bus, http, backoff=0.01):
            await bus.trigger(REPORTS, 1, callback=f"http://127.0.0.1:{port}/not-public")
            await eventually(lambda: settled(terminal, 1))
        assert not hooks.got
        async with OutgoingHttp(LOOPBACK) as http, posting(bus, http, backoff=0.01):
            await bus.trigger(REPORTS, 1, callback=f"http://127.0.0.1:{port}/gone")
            await eventually(lambda: settled(terminal, 2))
    assert len(hooks.got) == 1
    assert terminal.broker.totals.buried == 2


async def test_a_receiver_that_hangs_keeps_nobody_else_waiting(terminal: Terminal) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    hooks, limits = Hooks(), OutgoingLimits(within=0.2)
    async with (
        receiver(hang) as slow,
        receiver(hooks) as port,
        attach(terminal) as bus,
        building(terminal),
        OutgoingHttp(LOOPBACK, limits=limits) as http,
        posting(bus, http, backoff=0.01),
    ):
        for _ in range(5):
            await bus.trigger(REPORTS, 0, callback=f"http://127.0.0.1:{slow}/")
        id = await bus.trigger(REPORTS, 1, callback=f"http://127.0.0.1:{port}/")
        await eventually(lambda: [post["event"] for _, post in hooks.got] == [id])


async def test_a_slow_receiver_leaves_room_for_others(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outcomes for a receiver that never answers fill its share, and those for another one go on."""
    monkeypatch.setattr(callbacks, "PLACE_WITHIN", 0.05)
    stuck, quick = Stuck(), Hooks()
    async with (
        receiver(stuck) as slow_port,
        receiver(quick) as port,
        attach(terminal) as bus,
        building(terminal),
        OutgoingHttp(LOOPBACK) as http,
        posting(bus, http),
    ):
        for number in range(callbacks.PLACES + 10):
            await bus.trigger(REPORTS, number, callback=f"http://127.0.0.1:{slow_port}/hook")
        await eventually(lambda: stuck.open >= callbacks.SHARE)
        for number in range(3):
            await bus.trigger(REPORTS, number, callback=f"http://127.0.0.1:{port}/hook")
        await eventually(lambda: len(quick.got) == 3)
        assert stuck.open == callbacks.SHARE
        stuck.answer.set()
