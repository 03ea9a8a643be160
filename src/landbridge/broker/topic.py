"""A topic in a terminal: its options, its log, its groups, and who of its producers has stored what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.group import Enter, Group
from landbridge.broker.keys import TopicKeys
from landbridge.broker.log import Log, LogReader
from landbridge.broker.middleware import Chain, TopicViews
from landbridge.core.log.batch import Batch
from landbridge.core.log.keyruns import KeyRuns
from landbridge.core.log.store import PutDocument
from landbridge.core.pauses import PauseNote
from landbridge.core.topic import TopicSpec
from landbridge.errors import BacklogFull, QueueTaken, TopicPaused, UnknownTopic
from landbridge.stores.writer import Commit, Writer

KIND = "topic"
#: Key runs held before the groups are made to catch up with them.
MOST_RUNS = 8192


class TopicDocument(msgspec.Struct, frozen=True):
    log: int
    spec: TopicSpec
    created_at: int
    #: The number that others know the log by, where it has another one now; 0: its own.
    known_as: int = 0


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(TopicDocument).decode


class Claimant(Protocol):
    """The connection of a queue's producer."""

    closed: bool

    @property
    def subject(self) -> str: ...

    @property
    def who(self) -> str: ...


class Topic:
    def __init__(
        self,
        spec: TopicSpec,
        log: Log,
        writer: Writer[BrokerCommit],
        *,
        terminal: str,
        created_at: int,
        known_as: int = 0,
        stored: bool,
        keys: TopicKeys,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.log = log
        #: The writer of the unit that the topic, its groups and its ledger live in.
        self.writer = writer
        self.created_at = created_at
        #: The number of its log for everybody outside. It stays when the store is divided into other units.
        self.number = known_as or log.number
        #: What an offset of this topic has to be kept with: no other log of any terminal has the same one.
        self.log_id = f"{terminal}/{self.number}/{created_at}"
        #: The idempotency keys and unique ids that it knows.
        self.keys = keys
        self.groups: dict[str, Group] = {}
        #: Those with consumers: the only ones that new messages have to be shown to at once. Apart, by key,
        #: those that take one key alone.
        self.listening: dict[Group, None] = {}
        self._listening_to: dict[bytes, dict[Group, None]] = {}
        #: Groups that take one key alone, with consumers or not, and where the keys stand that they may not
        #: have caught up with; kept only while there are such groups.
        self._keyed: dict[Group, None] = {}
        self.key_runs = KeyRuns(log.end)
        #: Its document is on disk; False until the first commit that carries it is through.
        self.stored = stored
        self.deleted = False
        #: Since when it takes no messages, and why; None while it takes them.
        self.pause: PauseNote | None = None
        #: Writes the entry of the audit log that tells of its making; None where no operator has made it.
        self.enter_in_audit: Enter | None = None
        self._entered_in: Commit | None = None
        #: Called once when it is on disk for the first time.
        self.on_made: Callable[[], None] | None = None
        #: Called when it has grown; None: nobody routes its messages.
        self.on_grown: Callable[[], None] | None = None
        #: Topics of its rules that held as much as they may when they were last looked at.
        self.full_rules: set[Topic] = set()
        #: What is done with its batches before they are stored; None: nothing.
        self.chain: Chain | None = None
        #: What is done with its messages before they are delivered; None: nothing.
        self.views: TopicViews | None = None
        #: A queue's producer while it is connected.
        self.claim: tuple[Claimant, bytes] | None = None
        #: Next look at what is too old, microseconds; None = none planned.
        self.trim_at: int | None = None

    @property
    def unit(self) -> int:
        return self.writer.unit

    @property
    def pause_key(self) -> str:
        """The key of the document of its pause."""
        return f"topic/{self.log.number}"

    @property
    def document(self) -> TopicDocument:
        known_as = 0 if self.number == self.log.number else self.number
        return TopicDocument(self.log.number, self.spec, self.created_at, known_as)

    def save(self, commit: Commit) -> None:
        """Make sure that the topic's document is on disk no later than what the commit says of it."""
        if self.deleted:
            raise UnknownTopic(f"the topic {self.name} was deleted")
        if not self.stored:
            commit.writes.append(PutDocument(KIND, self.name, encode(self.document)))
            commit.on_stored.append(self._saved)
            if self.enter_in_audit is not None and self._entered_in is not commit:
                self._entered_in = commit
                self.enter_in_audit(commit)

    def _saved(self) -> None:
        self.stored = True
        self.enter_in_audit = self._entered_in = None
        if self.on_made is not None:
            self.on_made()
            self.on_made = None

    def reader_for(self, group: str | None) -> LogReader:
        """Where a group gets messages. None: whoever reads in no group's name."""
        return self.log if self.views is None else self.views.of(group)

    # -- groups ------------------------------------------------------------------------------------

    def enter(self, group: Group) -> None:
        """A group is there, or has a key now."""
        if group.sole_key is not None:
            if not self._keyed:
                self.key_runs = KeyRuns(self.log.end)
            self._keyed[group] = None
        if group.consumers:
            self.listen(group)

    def quit(self, group: Group) -> None:
        """It is gone, or about to change its key."""
        self._keyed.pop(group, None)
        self.ignore(group)

    def listen(self, group: Group) -> None:
        if group.sole_key is None:
            self.listening[group] = None
        else:
            self._listening_to.setdefault(group.sole_key, {})[group] = None

    def ignore(self, group: Group) -> None:
        self.listening.pop(group, None)
        if group.sole_key is not None and (listening := self._listening_to.get(group.sole_key)):
            listening.pop(group, None)
            if not listening:
                del self._listening_to[group.sole_key]

    def grown(self, batches: list[tuple[int, Batch]]) -> list[Group]:
        """These were added to the log. Whom do they have to be shown to?"""
        if self.on_grown is not None:
            self.on_grown()
        if not self._keyed:
            return list(self.listening)
        concerned = dict(self.listening)
        mixed = False
        for first, batch in batches:
            key = batch.sole_key()
            self.key_runs.add(first + len(batch), key)
            if key is None:
                mixed = True
            else:
                concerned.update(self._listening_to.get(key, {}))
        if mixed:
            for groups in self._listening_to.values():
                concerned.update(groups)
        if self.key_runs.size > MOST_RUNS:
            self.catch_up()
        return list(concerned)

    def catch_up(self) -> None:
        """Let the groups that take one key settle what came of other keys."""
        for group in list(self._keyed):
            group.catch_up()
        self.key_runs.forget()

    # -- producers ---------------------------------------------------------------------------------

    def check_producer(self, subject: str) -> None:
        if self.spec.producer is not None and subject != self.spec.producer:
            raise QueueTaken(f"the queue {self.name} takes messages from {self.spec.producer} alone")

    def claim_for(self, connection: Claimant, producer: bytes) -> None:
        """A queue has one producer. It may come back over a new connection, or with a new number."""
        if self.spec.kind != "queue":
            return
        if self.claim is not None:
            holder, known_as = self.claim
            if holder is not connection and known_as != producer and not holder.closed:
                raise QueueTaken(f"the queue {self.name} has a producer already: {holder.who}")
        self.claim = (connection, producer)

    def store(self, commit: BrokerCommit, batch: Batch) -> tuple[Batch | None, int]:
        """Append what of a producer's batch is to be stored: where ids are unique, not what is there already.
        Returns that, None where it is nothing, and the offset of the first message. Call ``keys.check_ids``
        before anything is changed."""
        if self.spec.ids == "any":
            return batch, commit.append(self.log, batch)
        rest, known = self.keys.split(commit, batch)
        if rest is None:
            return None, known
        first = commit.append(self.log, rest)
        self.keys.remember_ids(commit, rest, first)
        return rest, first

    # -- bounds ------------------------------------------------------------------------------------

    def settled_to(self) -> int | None:
        """Below this every durable group has settled; None where there is no such group."""
        self.catch_up()
        return min((g.delivery.cursor.floor for g in self.groups.values() if g.durable), default=None)

    def check_pause(self) -> None:
        """TopicPaused where an operator has paused it."""
        if self.pause is not None:
            raise TopicPaused(f"the topic {self.name} is paused {self.pause.told}")

    def check_backlog(self) -> None:
        """TopicPaused or BacklogFull where it takes no messages now."""
        self.check_pause()
        self.check_held()
        for topic in [*self.full_rules]:
            if not topic.deleted:
                topic.check_held()  # nobody publishes there: its source answers for what it holds
            self.full_rules.discard(topic)

    def check_held(self) -> None:
        """BacklogFull where its slowest group is as far behind as it may be."""
        if self.log.bytes < self.spec.max_backlog:
            return
        settled_to = self.settled_to()
        held = self.log.end - self.log.first
        behind = 0 if settled_to is None else max(0, self.log.end - max(settled_to, self.log.first))
        if held and self.log.bytes * behind // held >= self.spec.max_backlog:
            raise BacklogFull(
                f"the topic {self.name} holds {behind} unsettled messages, more than "
                f"{self.spec.max_backlog} bytes"
            )
