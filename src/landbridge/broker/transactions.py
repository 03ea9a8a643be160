"""What a transaction is while it is under way: its outputs, its key, and what its acks are."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.topic import Topic
from landbridge.core.log.batch import Batch
from landbridge.core.log.keys import KeyEntry
from landbridge.core.log.ranges import Range
from landbridge.stores.writer import Answered


class KnownKeys(Protocol):
    """What knows the keys of requests."""

    def known_key(
        self, commit: BrokerCommit, topic: Topic, key: str, name: bytes, body: bytes
    ) -> KeyEntry | None: ...


class TransactionOutputs(NamedTuple):
    """What a transaction has stored: the offsets of its outputs, those in other units later."""

    firsts: list[int | asyncio.Future[int]]
    repeated: bool = False


class TransactionOutcome(NamedTuple):
    """What became of a transaction."""

    firsts: list[int]  #: offset of each output's first message; -1 where it is no longer known
    repeated: bool  #: it had happened before, as another request with the same key


class TransactionKey(NamedTuple):
    """The idempotency key of a transaction."""

    key: str
    name: bytes
    body: bytes
    topic: Topic  #: the one that remembers the key, and the transaction's batch for it
    batch: Batch
    place: int  #: which of the outputs that is

    def known(self, broker: KnownKeys, commit: BrokerCommit) -> TransactionOutputs | None:
        """What the first transaction with the key has stored; None where there was none."""
        entry = broker.known_key(commit, self.topic, self.key, self.name, self.body)
        if entry is None:
            return None
        firsts: list[int | asyncio.Future[int]] = list(entry.outputs or (entry.first,))
        outputs = TransactionOutputs(firsts, entry.batch != self.batch.id)
        if self.name not in commit.keys.get(self.topic.keys.number, {}):
            raise Answered(outputs)
        return outputs

    def remember(self, commit: BrokerCommit, firsts: list[int | asyncio.Future[int]]) -> None:
        outputs = tuple(first if isinstance(first, int) else -1 for first in firsts)
        entry = KeyEntry(outputs[self.place], self.body, self.batch.id, outputs)
        self.topic.keys.remember(
            commit, {self.name: entry}, max(entry.first, commit.end_of(self.topic.log) - 1)
        )


async def all_of(outputs: asyncio.Future[TransactionOutputs]) -> TransactionOutcome:
    """What became of a transaction, once the outputs in other units have their offsets."""
    found = await outputs
    firsts = [first if isinstance(first, int) else await first for first in found.firsts]
    return TransactionOutcome(firsts, found.repeated)


def by_lease(acks: list[tuple[int, int, list[Range]]]) -> list[tuple[int, int, list[Range]]]:
    """The acks of a transaction, each lease once."""
    runs: dict[tuple[int, int], list[Range]] = {}
    for subscription, lease, each in acks:
        runs.setdefault((subscription, lease), []).extend(each)
    return [(*of, each) for of, each in runs.items()]
