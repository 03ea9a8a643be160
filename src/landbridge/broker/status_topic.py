"""The topic ``$status``, and the topic of the user's choice that has a copy: what is in the status log is
written there once a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from landbridge.broker.commit import SETTINGS, BrokerCommit
from landbridge.broker.committing import Committing
from landbridge.broker.group import Enter
from landbridge.broker.topic import Topic
from landbridge.broker.topic_table import OWN, TopicTable
from landbridge.broker.units import Units
from landbridge.core import status
from landbridge.core.log.batch import Batch, build
from landbridge.core.log.store import PutDocument, Store
from landbridge.core.status import StatusLog
from landbridge.core.time import SECOND
from landbridge.core.topic import TopicSpec
from landbridge.errors import BadRequest, BusError

#: Microseconds between two looks at how far behind the groups are.
LAGS_EVERY = 60 * SECOND


class StatusHost(Protocol):
    """What is asked of the broker."""

    store: Store
    clock: Callable[[], int]
    status: StatusLog
    topics: dict[str, Topic]
    units: Units
    table: TopicTable
    committing: Committing

    def new_id(self) -> bytes: ...
    def report(self, topic: str, error: BusError) -> None: ...
    def observe(
        self, what: str, name: str, change: str, who: str = "", before: object = None, after: object = None
    ) -> None: ...


class StatusTopic:
    def __init__(self, broker: StatusHost) -> None:
        self._broker, self._units, self._status = broker, broker.units, broker.status
        #: When the lags were last looked at.
        self._lags_at = broker.clock()

    def tick(self) -> None:
        """Once a second."""
        if self._broker.clock() - self._lags_at >= LAGS_EVERY:
            self.note_lags()
        self.write()

    def note_lags(self) -> None:
        """Tell the status log how far behind the groups are, those where that has changed since."""
        now = self._lags_at = self._broker.clock()
        for topic in self._broker.topics.values():
            for group in topic.groups.values():
                lag = group.delivery.cursor.lag(topic.log.end)
                if group.durable and lag != group.lag_told:
                    group.lag_told = lag
                    self._status.note(now, "lag", topic=topic.name, group=group.name, messages=lag)

    def write(self) -> None:
        """Put what has gathered into the topic ``$status``. Where there is no room, it goes on gathering."""
        if not self._status or self._broker.store.is_low:
            return
        now = self._broker.clock()
        events = self._status.take(now)
        self._broker.committing.tell(status.TOPIC, self._batch(events))
        if target := self._status.levels.topic:
            # Not what concerns the target itself: reading the copy must not make more of it.
            others = [event for event in events if event.topic != target]
            if others:
                self._copy(target, self._batch(others))

    def _batch(self, events: list[status.Event]) -> Batch:
        payloads = [status.encode(event) for event in events]
        return Batch.decode(build(payloads, id=self._broker.new_id(), time=self._broker.clock()))

    def _copy(self, target: str, batch: Batch) -> None:
        """Write the status log to the topic of the user's choice too. Where its backlog is full, or it can't
        be made, that is told in ``$status``, and this part is missing in the copy."""

        def work(commit: BrokerCommit) -> None:
            topic.check_backlog()
            self._broker.committing.append(commit, topic, batch)

        def then(result: BusError | None) -> None:
            if isinstance(result, BusError):
                self._broker.report(target, result)

        try:
            if self._units.elsewhere is not None and not self._units.has(target):
                self._units.elsewhere.tell(target, batch)
                return
            topic = self.copy_topic(target)
        except BusError as error:
            self._broker.report(target, error)
        else:
            topic.writer.hand_in(work, then)

    def copy_topic(self, target: str) -> Topic:
        """The topic that the status log goes to as well, made with the retention of ``$status`` where there
        is none. BadRequest for a queue, which has one producer."""
        topic = self._broker.topics.get(target)
        if topic is None:
            topic = self._broker.table.create_topic(TopicSpec(name=target, retention=OWN[status.TOPIC]))
        if topic.spec.kind == "queue":
            raise BadRequest(f"{target} is a queue, which has one producer", hint="use a stream")
        return topic

    async def set_levels(self, levels: status.Levels, who: str, enter: Enter) -> None:
        before = self._status.levels

        def work(commit: BrokerCommit) -> None:
            commit.writes.append(PutDocument(SETTINGS, "status", msgspec.json.encode(levels)))
            enter(commit)

        await self._units.writers[0].put(work)
        self._status.levels = levels
        self._broker.observe("status", "levels", "updated", who, before, levels)
