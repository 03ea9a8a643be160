"""A real terminal that is killed while an operator changes it: each change is there with its entry of the
audit log, or neither is; and what is paused stays so, and loses and repeats nothing."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import landbridge
from landbridge.core.topic import MAX_BACKLOG
from landbridge.errors import BusError, TopicPaused
from tests.ports import free_port
from tests.system.test_promise import end, line_of, start
from tests.waiting import LIMIT, eventually

KILLS = 6
#: Changes of one life at most; it is killed before they are through.
CHANGES = 400


async def change_on(bus: Any, chance: random.Random) -> None:
    """Change this and that, until the terminal is gone."""
    for number in range(CHANGES):
        topic = f"t{chance.randrange(12)}"
        try:
            match chance.randrange(6):
                case 0:
                    await bus.topics.create(topic)
                case 1:
                    await bus.topics.update(topic, max_backlog=1_000 + number)
                case 2:
                    await bus.topics.pause(topic, note=str(number))
                case 3:
                    await bus.groups.create(topic, "g")
                case 4:
                    await bus.groups.pause(topic, "g", note=str(number))
                case 5:
                    await bus.topics.delete(topic, force=True)
        except landbridge.errors.Misuse:
            pass  # there is no such topic or group at the moment
        except BusError:
            return


def replayed(entries: list[Any]) -> dict[str, Any]:
    """What the entries say there is: topic or TOPIC/GROUP → what it was set to."""
    there: dict[str, Any] = {}
    for entry in entries:
        verb = entry.operation.partition(".")[2]
        if verb == "delete":
            for name in [name for name in there if name == entry.name or name.startswith(f"{entry.name}/")]:
                del there[name]
        elif verb == "create":
            # What the update before has set is of an earlier topic of the same name.
            assert entry.name not in there, "made twice"
            backlog = None if entry.what == "group" else entry.after.get("max_backlog", MAX_BACKLOG)
            there[entry.name] = {"max_backlog": backlog, "note": None}
        elif verb == "update":
            there[entry.name]["max_backlog"] = entry.after["max_backlog"]
        elif verb == "pause":
            there[entry.name]["note"] = entry.after["pause"]["note"]
    return there


async def found_in(bus: Any) -> dict[str, Any]:
    """What there is."""
    there: dict[str, Any] = {}
    for row in await bus.topics.list():
        if row.name.startswith("$"):
            continue
        shown = await bus.topics.show(row.name)
        note = None if shown.pause is None else shown.pause.note
        there[row.name] = {"max_backlog": shown.options.max_backlog, "note": note}
        for group in shown.groups:
            note = None if group.pause is None else group.pause.note
            there[f"{row.name}/{group.name}"] = {"max_backlog": None, "note": note}
    return there


async def test_each_change_is_there_with_its_entry_or_not_at_all(tmp_path: Path) -> None:
    port, chance = free_port(), random.Random(38)
    seen = 0
    for life in range(KILLS + 1):
        process = await start("terminal_process.py", tmp_path / "bus", port)
        try:
            token = await line_of(process)
            url = f"lb://127.0.0.1:{port}"
            async with landbridge.connect(url, token=token, patience=0.0) as bus:
                entries = await bus.audit.list()
                assert len(entries) > seen or not life
                seen = len(entries)
                assert replayed(entries) == await found_in(bus)
                if life == KILLS:
                    return
                changing = [
                    asyncio.ensure_future(change_on(bus, random.Random(chance.random()))) for _ in range(3)
                ]
                wanted = seen + chance.randint(5, 60)
                async with asyncio.timeout(LIMIT):
                    while len(await bus.audit.list()) < wanted:
                        pass
                process.kill()
                for task in changing:
                    task.cancel()
                await asyncio.gather(*changing, return_exceptions=True)
        finally:
            await end(process)


async def test_a_pause_under_load_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    """Publishers and a consumer go on while topic and group are paused, resumed, and the terminal is killed.
    Unlike a kill, a pause repeats nothing: in lives without one, each message comes once."""
    port, total = free_port(), 600
    stored: list[int] = []
    got: list[int] = []

    async def publish(bus: Any, first: int, end: int) -> None:
        for number in range(first, end):
            while True:
                try:
                    await bus.publish("orders", {"n": number}, key=f"k{number}")
                    break
                except TopicPaused:
                    await asyncio.sleep(0)
            stored.append(number)

    async def consume(bus: Any) -> None:
        async with bus.subscribe("orders", group="billing", prefetch=16) as subscription:
            async for message in subscription:
                got.append(message.json()["n"])
                await message.ack(wait=True)

    process = await start("terminal_process.py", tmp_path / "bus", port)
    try:
        token = await line_of(process)
        url = f"lb://127.0.0.1:{port}"
        async with (
            landbridge.connect(url, token=token, patience=0.0) as publisher,
            landbridge.connect(url, token=token) as consumer,
            landbridge.connect(url, token=token) as operator,
        ):
            await operator.groups.create("orders", "billing")
            consuming = asyncio.ensure_future(consume(consumer))
            publishing = asyncio.ensure_future(publish(publisher, 0, total))
            chance = random.Random(5)
            for number in range(12):
                wanted = min(total, len(stored) + chance.randint(1, 40))
                await eventually(lambda wanted=wanted: len(stored) >= wanted)
                await operator.groups.pause("orders", "billing", note=str(number))
                await operator.topics.pause("orders", note=str(number))
                held, taken = len(got), (await operator.topics.show("orders")).end
                await asyncio.sleep(0)
                assert (await operator.topics.show("orders")).end == taken
                assert len(got) - held <= 16
                await operator.topics.resume("orders")
                await operator.groups.resume("orders", "billing")
            async with asyncio.timeout(LIMIT):
                await publishing
            await eventually(lambda: len(got) >= total)
            assert sorted(got) == list(range(total))
            await operator.topics.pause("orders", note="over the kill", delivery=True)
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
            process.kill()
    finally:
        await end(process)
    process = await start("terminal_process.py", tmp_path / "bus", port)
    try:
        token = await line_of(process)
        async with landbridge.connect(f"lb://127.0.0.1:{port}", token=token) as bus:
            assert (await bus.terminal.info()).paused == [
                "the topic orders with its groups, by test: over the kill"
            ]
            assert (await bus.topics.show("orders")).end == total
    finally:
        await end(process)
