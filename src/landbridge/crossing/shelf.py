"""A shelf: parcels that this terminal must not lose and can't hand on yet. It is an internal topic with a
cursor, so storing, trimming and recovery are those of any topic.

    $transit   parcels for another terminal, until the next hop keeps them
    $sealed    parcels for this terminal that can't be opened yet: their key or an earlier shipment is missing
"""

from __future__ import annotations

import asyncio

from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.damage import decoded
from landbridge.broker.group import Group
from landbridge.broker.topic import Topic
from landbridge.core.log.batch import Batch, Buffer, build
from landbridge.core.log.retention import Retention
from landbridge.core.shipping.parcel import Parcel, decode_parcel, encode_parcel
from landbridge.core.topic import GroupSpec, TopicSpec
from landbridge.errors import BadFrame, BusError, StoreCorrupt

GROUP = "keeper"


class Shelf:
    def __init__(self, broker: Broker, name: str, most_bytes: int) -> None:
        self._broker = broker
        self._name = name
        self._most_bytes = most_bytes
        self._topic: Topic | None = None
        self._group: Group
        #: Parcels on the shelf.
        self.count = 0

    def _open(self) -> Topic:
        """Make the topic when the first parcel comes: most terminals never need one."""
        if self._topic is None:
            found = self._broker.topics.get(self._name)
            if found is None:
                retention = Retention(settled=True)
                spec = TopicSpec(name=self._name, retention=retention, max_backlog=self._most_bytes)
                found = self._broker.table.create_topic(spec)
            group = found.groups.get(GROUP)
            if group is None:
                group = self._broker.table.create_group(
                    found, GroupSpec(topic=self._name, name=GROUP), found.log.first
                )
            self._topic, self._group = found, group
        return self._topic

    async def load(self) -> list[tuple[int, Parcel]]:
        """The parcels that an earlier start has left on the shelf, oldest first, each with its place."""
        if self._name not in self._broker.topics:
            return []
        topic = self._open()
        found: list[tuple[int, Parcel]] = []
        for first, end in list(self._group.delivery.cursor.unsettled(topic.log.end)):
            for place in range(first, end):
                try:
                    parcel, _ = await self.read(place)
                except BusError as error:
                    self.set_aside(place, error)
                else:
                    found.append((place, parcel))
        self.count = len(found)
        return found

    def put(self, parcel: Parcel, data: Buffer) -> asyncio.Future[int]:
        """Put a parcel on the shelf. The future has its place once it is on disk; BacklogFull where the shelf
        is full."""
        outside = encode_parcel(parcel)
        record = b"".join((len(outside).to_bytes(4, "little"), outside, data))
        batch = Batch.decode(build([record], id=parcel.id, time=self._broker.clock()))

        topic = self._open()

        def work(forming: BrokerCommit) -> int:
            topic.check_backlog()
            topic.save(forming)
            return forming.append(topic.log, batch)

        stored = topic.writer.put(work)
        stored.add_done_callback(self._on_stored)
        return stored

    def _on_stored(self, stored: asyncio.Future[int]) -> None:
        if stored.exception() is None:
            self.count += 1

    async def read(self, place: int) -> tuple[Parcel, memoryview]:
        topic = self._open()
        found = await topic.log.read(place)
        if found is None or found[0] != place:
            raise StoreCorrupt(f"{self._name}: no parcel at {place}")
        return decoded(f"the parcel at {place} of {self._name}", _parcel_of, found[1])

    def set_aside(self, place: int, error: BusError) -> None:
        """A parcel can't be read. Whoever has sent it still has it, and sends it again because nobody
        confirms it; so it is taken from the shelf, and everything else goes on."""
        self._broker.damage.note(
            f"{self._name}: {error}; the parcel comes again from its source", topic=self._name
        )
        self._settle(place)

    def remove(self, place: int) -> None:
        """Take a parcel from the shelf: another terminal has it, or its topic's log. The removal is written
        with the next commit. If the terminal dies before, the parcel is sent or judged again, and stored
        once."""
        self.count -= 1
        self._settle(place)

    def _settle(self, place: int) -> None:
        self._group.delivery.cursor.settle([(place, place + 1)])
        self._group.changed()
        self._broker.trimmer.plan(self._open(), soon=True)


def _parcel_of(batch: Batch) -> tuple[Parcel, memoryview]:
    view = memoryview(batch.payload(0))
    size = int.from_bytes(view[:4], "little")
    if size + 4 > len(view):
        raise BadFrame("it is cut off")
    return decode_parcel(view[4 : 4 + size]), view[4 + size :]
