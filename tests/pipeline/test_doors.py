"""Every door to Spark, and Spark to every door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.doors import PARCELS, WAYS_IN, WAYS_OUT, House, Parcel, Send, WayIn, house
from tests.waiting import LIMIT

pytestmark = pytest.mark.timeout(300)
SCHEMA = "value binary, key binary, headers array<struct<key: string, value: binary>>"


def _access(found: House, topic: str) -> dict[str, str]:
    return {"url": found.web.terminal.url, "token": found.token, "topic": topic}


class SparkIn(WayIn):
    """A table whose one row is a message. Headers are bytes that are text."""

    name = "Spark"
    keeps = frozenset({"headers", "key"})

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Send]:
        await house.bus.topics.create(topic)

        async def send(parcel: Parcel) -> Parcel:
            await asyncio.to_thread(self._write, _access(house, topic), parcel)
            return self.arriving(parcel)

        yield send

    def _write(self, options: dict[str, str], parcel: Parcel) -> None:
        key = None if parcel.key is None else parcel.key.encode()
        headers = [(name, value.encode()) for name, value in parcel.headers.items()]
        frame = self._spark.createDataFrame([(parcel.payload, key, headers)], SCHEMA)
        frame.write.format("landbridge").options(**options).mode("append").save()


def rows_of(spark: Any, found: House, topics: list[str]) -> dict[str, Parcel]:
    """What a table of these topics has."""
    options = {name: value for name, value in _access(found, "").items() if name != "topic"}
    more = {"subscribe": ",".join(topics), "includeHeaders": "true", "includeMetadata": "true"}
    frame = spark.read.format("landbridge").options(**options, **more).load()
    return {
        row.topic: Parcel(
            bytes(row.value),
            {header.key: bytes(header.value).decode() for header in row.headers or []},
            None if row.key is None else bytes(row.key).decode(),
            row.priority,
        )
        for row in frame.collect()
    }


async def test_what_spark_writes_goes_out_everywhere(spark: Any, crashes: list[Any]) -> None:
    async with house(port=0) as found:
        way_in = SparkIn(spark)
        for name in ("json", "text", "bytes"):
            topic = f"parcels.{name}"
            async with AsyncExitStack() as open_doors:
                send = await open_doors.enter_async_context(way_in.open(found, topic))
                ways = [way for way in WAYS_OUT if way.takes(PARCELS[name])]
                doors = [await open_doors.enter_async_context(way.open(found, topic)) for way in ways]
                sent = await send(PARCELS[name])
                async with asyncio.timeout(LIMIT):
                    seen = await asyncio.gather(*(receive() for receive in doors))
                names = [way.name for way in ways]
                expected = {way.name: way.expected(sent) for way in ways}
                assert dict(zip(names, seen, strict=True)) == expected


async def test_what_comes_in_everywhere_is_in_the_table(spark: Any, crashes: list[Any]) -> None:
    async with house(port=0) as found:
        expected: dict[str, Parcel] = {}
        for number, way_in in enumerate(WAYS_IN):
            for name, parcel in PARCELS.items():
                if way_in.takes(parcel):
                    topic = f"parcels.{number}.{name}"
                    async with way_in.open(found, topic) as send:
                        expected[topic] = await send(parcel)
                        async with asyncio.timeout(LIMIT):
                            while not found.web.terminal.broker.table.topic(topic).log.end:
                                await asyncio.sleep(0.005)
        assert await asyncio.to_thread(rows_of, spark, found, list(expected)) == expected
