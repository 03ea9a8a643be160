"""A shelf: parcels that this terminal must not lose and can't be rid of yet. An internal topic and a cursor,
like everything else here, so storing, trimming and recovery are those of any topic.

    $transit   parcels for somebody else, until the next hop keeps them
    $sealed    parcels for this terminal that can't be opened yet: no key, or one before them is still missing
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from landbridge.core.log.batch import Batch, Buffer, build
from landbridge.core.log.retention import Retention
from landbridge.core.log.topic import GroupSpec, TopicSpec
from landbridge.core.shipping.parcel import Parcel, decode_parcel, encode_parcel
from landbridge.errors import BadFrame, BusError, StoreCorrupt

if TYPE_CHECKING:
    from landbridge.broker.broker import Broker
    from landbridge.broker.commit import Commit
    from landbridge.broker.group import Group
    from landbridge.broker.topic import Topic

GROUP = "keeper"


class Shelf:
    def __init__(self, broker: Broker, name: str, most_bytes: int) -> None:
        self._broker = broker
        self._name = name
        self._most_bytes = most_bytes
        self._topic: Topic | None = None
        self._group: Group
        #: Parcels on it.
        self.count = 0

    def _open(self) -> Topic:
        """Made when the first parcel comes: most terminals never need one."""
        if self._topic is None:
            found = self._broker.topics.get(self._name)
            if found is None:
                retention = Retention(settled=True)
                spec = TopicSpec(name=self._name, retention=retention, max_backlog=self._most_bytes)
                found = self._broker.create_topic(spec)
            group = found.groups.get(GROUP)
            if group is None:
                group = self._broker.create_group(found, GroupSpec(topic=self._name, name=GROUP), "earliest")
            self._topic, self._group = found, group
        return self._topic

    async def load(self) -> list[tuple[int, Parcel]]:
        """What an earlier start has left on it, oldest first, each with its place."""
        if self._name not in self._broker.topics:
            return []
        topic = self._open()
        found: list[tuple[int, Parcel]] = []
        for first, end in list(self._group.delivery.cursor.unsettled(topic.log.end)):
            for place in range(first, end):
                parcel, _ = await self.read(place)
                found.append((place, parcel))
        self.count = len(found)
        return found

    def put(
        self,
        parcel: Parcel,
        data: Buffer,
        stored: Callable[[int], None],
        refuse: Callable[[BusError], None],
    ) -> None:
        """Put a parcel on it; ``stored`` hears its place when it is on disk."""
        topic = self._open()
        now = self._broker.clock()
        record = build([b"".join((_length(parcel), data))], id=parcel.id, time=now)
        batch = Batch.decode(record)

        def work(commit: Commit) -> None:
            topic.check_backlog()
            topic.save(commit)
            place = commit.append(topic, batch)

            def done() -> None:
                self.count += 1
                stored(place)

            commit.after.append(done)

        self._broker.committer.put(work, refuse)

    async def read(self, place: int) -> tuple[Parcel, memoryview]:
        topic = self._open()
        found = await topic.log.read(place)
        if found is None or found[0] != place:
            raise StoreCorrupt(f"{self._name}: no parcel at {place}")
        view = memoryview(found[1].payload(0))
        size = int.from_bytes(view[:4], "little")
        if size + 4 > len(view):
            raise BadFrame(f"{self._name}: a parcel that is cut off at {place}")
        return decode_parcel(view[4 : 4 + size]), view[4 + size :]

    def remove(self, place: int) -> None:
        """It is somebody else's now. Written with the next commit: if we die before, it is sent twice, and
        the destination stores it once."""
        self.count -= 1
        self._group.delivery.cursor.settle([(place, place + 1)])
        self._group.changed()
        self._broker.trimmer.plan(self._open(), soon=True)

    def remove_in(self, commit: Commit, place: int) -> None:
        """The same, in a commit that also stores what it has become."""
        self.count -= 1
        self._group.delivery.cursor.settle([(place, place + 1)])
        self._group.save(commit)
        commit.undo.append(lambda _: self._back(place))
        self._broker.trimmer.plan(self._open(), soon=True)

    def _back(self, place: int) -> None:
        self.count += 1
        self._group.delivery.unsettle([(place, place + 1)])


def _length(parcel: Parcel) -> bytes:
    outside = encode_parcel(parcel)
    return len(outside).to_bytes(4, "little") + outside
