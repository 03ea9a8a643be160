"""Schedules of a real process that is killed while it fires, with a clock that goes forward and back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import landbridge
from tests.ports import free_port
from tests.system.test_promise import end, line_of, start

#: Schedules that fire every second.
SCHEDULES = 6
#: By how many seconds the clock is ahead in each life of the process: forward, and back by minutes.
AHEAD = (0.0, 20.0, 10.0, 70.0, 0.0, 150.0)


async def test_each_firing_is_published_once_whatever_is_killed_when(tmp_path: Path) -> None:
    port = free_port()
    chance = random.Random(7)
    ids: list[str] = []
    for life, ahead in enumerate(AHEAD):
        process = await start("scheduler_process.py", tmp_path / "bus", port, ahead)
        try:
            token = await line_of(process)
            async with landbridge.connect(f"lb://127.0.0.1:{port}", token=token) as bus:
                if not life:
                    await bus.groups.create("ticks", "all")
                    for number in range(SCHEDULES):
                        await bus.schedules.create(
                            "ticks", f"s{number}", "@every 1s", overlap="allow", catch_up=1000
                        )
                before = (await bus.topics.show("ticks")).end
                forward = ahead > max(AHEAD[:life], default=-1)
                if forward:
                    # In the middle of firing: schedules with a minute to catch up.
                    await _until_end(bus, before + chance.randint(1, 60))
                process.kill()
        finally:
            await end(process)
    process = await start("scheduler_process.py", tmp_path / "bus", port, max(AHEAD))
    try:
        token = await line_of(process)
        async with landbridge.connect(f"lb://127.0.0.1:{port}", token=token) as bus:
            await _until_end(bus, SCHEDULES * int(max(AHEAD)))
            for each in await bus.schedules.list(topic="ticks"):
                await bus.schedules.pause("ticks", each.name)
            shown = [await bus.schedules.show("ticks", f"s{number}") for number in range(SCHEDULES)]
            wanted = sum(each.fired for each in shown)
            async with bus.subscribe("ticks", group="all") as subscription:
                async for batch in subscription.batches():
                    ids += [message.id for message in batch]
                    await batch.ack()
                    if len(ids) >= wanted:
                        break
            assert (await bus.topics.show("ticks")).end == wanted
    finally:
        await end(process)
    assert len(ids) == len(set(ids)) == wanted
    for number, details in enumerate(shown):
        assert (details.missed, details.skipped, details.refused) == (0, 0, 0)
        mine = [id for id in ids if id.startswith(f"s{number}@")]
        assert mine == sorted(mine)
        assert len(mine) == details.fired


async def _until_end(bus: Any, offset: int) -> None:
    await bus.topics.wait({"ticks": offset - 1}, within=60.0)
    assert (await bus.topics.show("ticks")).end >= offset
