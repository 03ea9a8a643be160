"""What goes into a commit besides what somebody has asked for, and what follows when it is on disk: the logs
grow, and the groups are shown what is new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from landbridge.broker.commit import BrokerCommit, note_change
from landbridge.broker.distant import DistantTopic
from landbridge.broker.group import Group
from landbridge.broker.handover import TellsPublished
from landbridge.broker.log import Log
from landbridge.broker.surroundings import Crossing
from landbridge.broker.topic import Topic
from landbridge.broker.transaction_ledger import TransactionLedger
from landbridge.broker.trimmer import Trimmer
from landbridge.broker.units import Units
from landbridge.core.log.batch import Batch

#: Seconds that a moved cursor may wait for a commit to go along with.
CHANGED_WITHIN = 0.005


class FindsTopics(Protocol):
    """Where topics are made on the spot."""

    def topic_for(self, name: str, *, create: bool = False) -> Topic: ...


class CommittingHost(Protocol):
    """What is asked of the broker."""

    clock: Callable[[], int]
    units: Units
    trimmer: Trimmer
    ledger: TransactionLedger
    crossing: Crossing | None

    @property
    def table(self) -> FindsTopics: ...

    @property
    def publishing(self) -> TellsPublished: ...


class Committing:
    def __init__(self, broker: CommittingHost) -> None:
        self._broker, self._units = broker, broker.units
        self._ledger, self._trimmer, self._clock = broker.ledger, broker.trimmer, broker.clock
        #: The number of this run of the terminal, which other terminals know; 0: it is linked to none.
        self.run = 0
        self._by_log: dict[Log, Topic] = {}
        #: Per unit: groups whose cursor goes into the next commit.
        self._changed: list[dict[Group, None]] = [{} for _ in range(self._units.number)]
        self._changed_timers: list[asyncio.TimerHandle | None] = [None] * self._units.number
        #: Topics with groups that have not looked at what came of other keys than theirs.
        self._sorted: dict[Topic, None] = {}

    def add(self, topic: Topic) -> None:
        """Commits may have batches for the topic from now on."""
        self._by_log[topic.log] = topic

    def remove(self, topic: Topic) -> None:
        """The topic is gone."""
        self._by_log.pop(topic.log, None)
        self._sorted.pop(topic, None)

    def leave_out(self, group: Group) -> None:
        """The group is gone: its cursor isn't written any more."""
        self._changed[group.topic.writer.unit].pop(group, None)

    def drop(self, unit: int) -> None:
        """The unit isn't here any more."""
        timer, self._changed_timers[unit] = self._changed_timers[unit], None
        if timer is not None:
            timer.cancel()
        self._changed[unit].clear()

    def begin(self, unit: int) -> BrokerCommit:
        """A new commit of a unit."""
        return BrokerCommit(self._clock(), unit, self.run)

    def catch_up(self) -> None:
        """Let groups settle what came of other keys than theirs."""
        sorted_by_key, self._sorted = self._sorted, {}
        for topic in sorted_by_key:
            topic.catch_up()

    def append(
        self, commit: BrokerCommit, topic: str | Topic | DistantTopic, batch: Batch, subject: str = ""
    ) -> int | asyncio.Future[int]:
        """Append a batch to any topic, made where there is none, within a commit that may be of another unit.
        Returns its offset, or a future of it where it goes into another unit once the commit is on disk.
        ``subject``: in whose name it is published; empty for the terminal itself. StoreFull where there is no
        room."""
        commit.need_room()
        if isinstance(topic, DistantTopic) or (isinstance(topic, str) and not self._units.has(topic)):
            name = topic if isinstance(topic, str) else topic.name
            return self._units.handovers[commit.unit].add(commit, name, batch, subject)
        found = self._broker.table.topic_for(topic, create=True) if isinstance(topic, str) else topic
        if found.writer.unit != commit.unit:
            return self._units.handovers[commit.unit].add(commit, found.name, batch, subject)
        if not subject:
            found.save(commit)
            return commit.append(found.log, batch)
        if found.spec.ids == "unique":
            found.keys.check_ids(commit, batch)
        found.save(commit)
        rest, first = found.store(commit, batch)
        if rest is not None:
            commit.on_stored.append(partial(self._broker.publishing.published, subject, found, rest, first))
        return first

    def tell(self, name: str, batch: Batch) -> None:
        """Append a batch to a topic of the terminal's own. Nobody waits for it."""
        if self._units.elsewhere is not None and not self._units.has(name):
            self._units.elsewhere.tell(name, batch)
            return
        topic = self._broker.table.topic_for(name)
        topic.writer.tell(lambda commit: self.append(commit, topic, batch))

    def moved(self, group: Group) -> None:
        """The group's cursor moved; it goes into the next commit of its unit. Nobody waits for it, so it
        doesn't cause a commit at once: at a low rate, acks then share the fsync of the next publish."""
        if self._broker.crossing is not None:
            self._broker.crossing.settled(group)
        if group.deleted or not group.durable:
            return
        unit = group.topic.writer.unit
        self._changed[unit][group] = None
        if self._changed_timers[unit] is None:
            loop = asyncio.get_running_loop()
            self._changed_timers[unit] = loop.call_later(CHANGED_WITHIN, group.topic.writer.poke)

    def finish(self, commit: BrokerCommit) -> None:
        """A commit is about to leave: the cursors that have changed go with it."""
        changed, self._changed[commit.unit] = self._changed[commit.unit], {}
        timer, self._changed_timers[commit.unit] = self._changed_timers[commit.unit], None
        if timer is not None:
            timer.cancel()
        for group in changed:
            group.save(commit)
        if self._units.elsewhere is not None and note_change(commit):
            commit.on_stored.append(self._units.elsewhere.announce)

    def apply(self, commit: BrokerCommit) -> None:
        """A commit is on disk: make it visible."""
        for (log, producer), entry in commit.entries.items():
            log.learn(producer, entry)
        for producer, transactions in commit.transactions.items():
            self._ledger.learn(commit.unit, producer, transactions)
        for log, batches in commit.appended.items():
            topic = self._by_log.get(log)
            if topic is None:
                continue  # deleted meanwhile
            for first, batch in batches:
                log.extend(first, batch, commit.now)
            for group in topic.grown(batches):
                group.pump()
            self._trimmer.plan(topic)
            if topic.key_runs.size:
                self._sorted[topic] = None

    async def begin_run(self, run: int) -> None:
        """This is the number of the terminal's run, as other terminals know it. Logs that were added to since
        the start say so on disk."""
        self.run = run
        for writer in self._units.writers:

            def work(commit: BrokerCommit) -> None:
                for topic in self._by_log.values():
                    if topic.writer.unit == commit.unit and topic.log.end > topic.log.began:
                        commit.note_run(topic.log)

            await writer.put(work)
