"""What is paused at this terminal: topics, groups, and services. A pause is a document of its own, in the
unit of what it is about, so it outlives restarts.

A topic that is paused refuses messages; what comes from other terminals waits there. A group that is paused
hands nothing out, and neither does any group of a topic whose pause includes delivery; leases stay, and
consumers stay connected, settle what they hold, and are told. A service that is paused gets nothing, by
whichever group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.damage import Damage
from landbridge.broker.group import PAUSE as KIND
from landbridge.broker.group import Consumer, Group
from landbridge.broker.topic import Topic
from landbridge.broker.units import Units
from landbridge.core.log.store import DeleteDocument, PutDocument, Store
from landbridge.core.names import is_reserved
from landbridge.core.pauses import PauseNote
from landbridge.errors import BadRequest, UnknownGroup, UnknownTopic
from landbridge.protocol import frames

T = TypeVar("T", Topic, Group)
#: A pause that can't be read goes on: nobody has resumed what is paused.
_DAMAGED = PauseNote(paused_at=0, paused_by="somebody", note="what is stored of the pause is damaged")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PauseNote).decode


class PauseChange(NamedTuple):
    """What has become of a pause; None where there is none."""

    before: PauseNote | None
    after: PauseNote | None


#: What is to become of a pause, of what it is now.
PauseEdit = Callable[[PauseNote | None], PauseNote | None]
#: Called in the commit that changes a pause.
Noting = Callable[[BrokerCommit, PauseChange], None]


class WithheldRequests(Protocol):
    """The requests that are not written to disk."""

    def withhold(self, consumer: Consumer) -> None:
        """The consumer gets no more of them."""

    def readmit(self, consumer: Consumer) -> None: ...


class PausingBroker(Protocol):
    """What the pauses ask of the broker."""

    store: Store
    damage: Damage
    topics: dict[str, Topic]
    units: Units

    @property
    def requests(self) -> WithheldRequests: ...


class Pauses:
    def __init__(self, broker: PausingBroker) -> None:
        self._broker = broker
        #: By name. The pauses of topics and groups are theirs.
        self.services: dict[str, PauseNote] = {}
        #: Those that are paused; some of them may have been deleted since.
        self._topics: dict[Topic, None] = {}
        self._groups: dict[Group, None] = {}
        #: Subject → its consumers.
        self._consumers: dict[str, dict[Consumer, None]] = {}

    async def open(self, unit: int) -> None:
        """Load what is paused of a unit."""
        broker = self._broker
        stored = await broker.store.documents(unit, KIND)
        if unit == 0:
            self.use_services(stored)
        by_log = {topic.log.number: topic for topic in broker.topics.values()} if stored else {}
        for key, raw in stored:
            what, _, rest = key.partition("/")
            number, _, name = rest.partition("/")
            if what == "service" or not number.isdecimal() or (topic := by_log.get(int(number))) is None:
                continue
            found = self._read(key, raw)
            if what == "topic":
                self._put_topic(topic, found)
            elif name in topic.groups:
                self._put_group(topic.groups[name], found)

    def _read(self, key: str, raw: bytes) -> PauseNote:
        return self._broker.damage.decode(f"the pause of {key}", _decode, raw, _DAMAGED, "it stays paused")

    def use_services(self, stored: Iterable[tuple[str, bytes]]) -> None:
        """Go by what is stored of the services' pauses."""
        found = {
            key.removeprefix("service/"): self._read(key, raw)
            for key, raw in stored
            if key.startswith("service/")
        }
        changed = [name for name in {*found, *self.services} if found.get(name) != self.services.get(name)]
        self.services = found
        for name in changed:
            self._look_at_service(name)

    def forget(self, unit: int) -> None:
        """The unit is another node's from now on."""
        for topic in [topic for topic in self._topics if topic.writer.unit == unit]:
            del self._topics[topic]
        for group in [group for group in self._groups if group.topic.writer.unit == unit]:
            del self._groups[group]

    # -- changing ----------------------------------------------------------------------------------

    async def change_topic(self, topic: Topic, edit: PauseEdit, noting: Noting) -> PauseChange:
        if is_reserved(topic.name):
            raise BadRequest(f"{topic.name} belongs to the terminal")

        def work(commit: BrokerCommit) -> PauseChange:
            if topic.deleted:
                raise UnknownTopic(f"the topic {topic.name} was deleted")
            topic.save(commit)
            put = partial(self._put_topic, topic)
            return self._write(commit, topic.pause_key, topic.pause, edit, put, look, noting)

        def look() -> None:
            for group in topic.groups.values():
                self._look(group.consumers.values())
                group.pump()

        return await topic.writer.put(work)

    async def change_group(self, group: Group, edit: PauseEdit, noting: Noting) -> PauseChange:
        if is_reserved(group.topic.name):
            raise BadRequest(f"{group.topic.name} belongs to the terminal, with its groups")
        if not group.durable:
            raise BadRequest(
                f"the group {group.name} lives with its subscriber", hint="subscribe with a group's name"
            )

        def work(commit: BrokerCommit) -> PauseChange:
            if group.deleted or group.topic.deleted:
                raise UnknownGroup(f"the group {group.name} was deleted")
            group.save(commit)
            put = partial(self._put_group, group)
            return self._write(commit, group.pause_key, group.pause, edit, put, look, noting)

        def look() -> None:
            self._look(group.consumers.values())
            group.pump()

        return await group.topic.writer.put(work)

    def _put_topic(self, topic: Topic, pause: PauseNote | None) -> None:
        topic.pause = pause
        _enter(self._topics, topic, is_paused=pause is not None)

    def _put_group(self, group: Group, pause: PauseNote | None) -> None:
        group.pause = pause
        _enter(self._groups, group, is_paused=pause is not None)

    async def change_service(self, name: str, edit: PauseEdit, noting: Noting) -> PauseChange:
        def put(after: PauseNote | None) -> None:
            if after is None:
                self.services.pop(name, None)
            else:
                self.services[name] = after

        def work(commit: BrokerCommit) -> PauseChange:
            found = self.services.get(name)
            return self._write(commit, f"service/{name}", found, edit, put, look, noting)

        def look() -> None:
            self._look_at_service(name)

        return await self._broker.units.writers[0].put(work)

    def _look_at_service(self, name: str) -> None:
        own = list(self._consumers.get(name, ()))
        self._look(own)
        for group in dict.fromkeys(consumer.group for consumer in own):
            group.pump()

    def _write(
        self,
        commit: BrokerCommit,
        key: str,
        before: PauseNote | None,
        edit: PauseEdit,
        put: Callable[[PauseNote | None], None],
        look: Callable[[], None],
        noting: Noting,
    ) -> PauseChange:
        change = PauseChange(before, edit(before))
        if change.after == before:
            return change
        after = change.after
        commit.writes.append(
            DeleteDocument(KIND, key) if after is None else PutDocument(KIND, key, _encode(after))
        )
        put(after)
        commit.on_failed.append(look)  # called after the pause is as it was
        commit.on_failed.append(lambda: put(before))
        commit.on_stored.append(look)
        noting(commit, change)
        return change

    # -- consumers ---------------------------------------------------------------------------------

    def admit(self, consumer: Consumer) -> None:
        """A consumer has begun: what it belongs to may be paused."""
        self._consumers.setdefault(consumer.connection.subject, {})[consumer] = None
        self._look((consumer,))

    def leave(self, consumer: Consumer) -> None:
        """A consumer has ended."""
        of_subject = self._consumers.get(consumer.connection.subject, {})
        of_subject.pop(consumer, None)
        if not of_subject:
            self._consumers.pop(consumer.connection.subject, None)

    def of_consumer(self, consumer: Consumer) -> PauseNote | None:
        """Why a consumer gets nothing; None while nothing is paused."""
        return consumer.group.pause_note or self.services.get(consumer.connection.subject)

    def _look(self, consumers: Iterable[Consumer]) -> None:
        """Tell consumers what has changed for them."""
        for consumer in list(consumers):
            before, pause = consumer.pause, self.of_consumer(consumer)
            if consumer.patient or pause == before:
                continue
            consumer.pause = pause
            if pause is None:
                self._broker.requests.readmit(consumer)
            else:
                self._broker.requests.withhold(consumer)
            if consumer.hears_pauses:
                consumer.connection.send(_told(consumer, pause))
                consumer.connection.flush()

    # -- showing -----------------------------------------------------------------------------------

    def told(self) -> Iterator[str]:
        """All that is paused, a line each."""
        for topic in sorted(self._topics, key=lambda topic: topic.name):
            if topic.pause is not None and not topic.deleted:
                more = " with its groups" if topic.pause.delivery else ""
                yield f"the topic {topic.name}{more}, {topic.pause.told}"
        for group in sorted(self._groups, key=lambda group: (group.topic.name, group.name)):
            if group.pause is not None and not group.deleted:
                yield f"the group {group.name} of {group.topic.name}, {group.pause.told}"
        for name, pause in sorted(self.services.items()):
            yield f"the service {name}, {pause.told}"

    @property
    def counts(self) -> dict[str, int]:
        """How much is paused, by what it is."""
        return {
            "topic": sum(not topic.deleted for topic in self._topics),
            "group": sum(not group.deleted for group in self._groups),
            "service": len(self.services),
        }


def _enter(paused: dict[T, None], one: T, *, is_paused: bool) -> None:
    """Keep a set of what is paused, without what was deleted."""
    for other in [other for other in paused if other.deleted]:
        del paused[other]
    paused.pop(one, None)
    if is_paused:
        paused[one] = None


def _told(consumer: Consumer, pause: PauseNote | None) -> frames.Paused:
    if pause is None:
        return frames.Paused(consumer.subscription, False)
    return frames.Paused(consumer.subscription, True, pause.paused_by, pause.note, pause.paused_at)
