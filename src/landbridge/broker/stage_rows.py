"""Rows of a stage on their way into a topic of another unit than the stage's, each once.

The topic's ledger knows how many of a decision's rows for this topic were left after the last of them: so
whatever was stored before a crash is passed over, however the rows are cut into pieces this time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.publishing import Publishing
from landbridge.broker.topic import Topic
from landbridge.broker.topic_table import TopicTable
from landbridge.core.log.batch import Batch
from landbridge.core.log.ledger import Entry
from landbridge.core.log.store import PutLedger
from landbridge.stores.writer import adding

#: More rows than any decision has. The ledger counts what is left of a decision downwards from here.
ALL = 1 << 62


class RowTopics(Protocol):
    """What is asked of the broker."""

    topics: dict[str, Topic]
    table: TopicTable
    publishing: Publishing


async def append_rows(
    broker: RowTopics, name: str, producer: bytes, left: int, subject: str, batches: Sequence[Batch]
) -> None:
    """``left``: rows for this topic that were left before these."""
    topic = broker.table.topic_for(name, create=True)

    def work(commit: BrokerCommit) -> None:
        stored = commit.entry(topic.log, producer).last
        known = max(0, left - (ALL - stored)) if stored else 0
        if topic.spec.ids == "unique":
            topic.keys.check_ids(commit, *batches)
        topic.save(commit)
        rest = left
        for batch in batches:
            rest -= len(batch)
            if known >= len(batch):
                known -= len(batch)
                continue
            part = batch.slice(known, len(batch)) if known else batch
            known = 0
            new, first = topic.store(commit, part)
            commit.remember(topic.log, producer, Entry(ALL - rest, (first,)))
            if new is not None:
                commit.on_stored.append(partial(broker.publishing.published, subject, topic, new, first))

    await topic.writer.put(work)


def forget_producer(broker: RowTopics, name: str, producer: bytes) -> None:
    """All rows of a decision are there."""
    if (topic := broker.topics.get(name)) is not None:
        topic.log.forget_producer(producer)
        topic.writer.tell(adding([PutLedger(topic.log.number, producer, None)]))
