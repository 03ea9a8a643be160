"""Every door to every door: what is sent through one comes out of each other, as far as that one can show it.
Spark's are in tests/pipeline."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.doors import PARCELS, WAYS_IN, WAYS_OUT, Parcel, WayIn, house
from tests.waiting import LIMIT


@pytest.mark.parametrize("way_in", WAYS_IN, ids=lambda way: way.name)
async def test_what_comes_in_goes_out_everywhere(way_in: WayIn, crashes: list[Any]) -> None:
    async with house() as found:
        parcels = {name: parcel for name, parcel in PARCELS.items() if way_in.takes(parcel)}
        assert parcels
        for name, parcel in parcels.items():
            topic = f"parcels.{name}"
            async with AsyncExitStack() as open_doors:
                send = await open_doors.enter_async_context(way_in.open(found, topic))
                ways = [way for way in WAYS_OUT if way.takes(parcel)]
                doors = [await open_doors.enter_async_context(way.open(found, topic)) for way in ways]
                sent = await send(parcel)
                async with asyncio.timeout(LIMIT):
                    seen: list[Parcel] = await asyncio.gather(*(receive() for receive in doors))
                names = [way.name for way in ways]
                assert dict(zip(names, seen, strict=True)) == {way.name: way.expected(sent) for way in ways}
