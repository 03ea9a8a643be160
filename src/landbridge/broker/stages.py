"""Stages: rows that wait to be published all together, once, however often somebody tries (ADR 12).

A stage is a hidden topic, ``$stage.NAME``. Batches are put there by many writers, in any order, repeats and
leftovers of failed writers among them. ``stage.commit`` names a number and the runs of the stage's log that
count. The first commit of a number decides what that number is: the decision is stored in the same commit of
the store as the first rows it publishes, and every later commit of the number finds it. What is too large for
one commit of the store is published piece by piece, each in one commit with what is left to do; so a decided
commit can be interrupted anywhere, and goes on by itself after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.damage import decoded
from landbridge.broker.distant import DistantTopic
from landbridge.broker.middleware import RunsBatches, accepted
from landbridge.broker.rule_topics import unit_of
from landbridge.broker.stage_rows import append_rows, forget_producer
from landbridge.broker.surroundings import Client
from landbridge.broker.topic import Topic
from landbridge.core.log.batch import Batch
from landbridge.core.log.ranges import Range
from landbridge.core.log.retention import Retention
from landbridge.core.log.store import DeleteDocument, PutDocument
from landbridge.core.names import check_name
from landbridge.core.topic import TopicSpec
from landbridge.errors import BadRequest, BusError, Forbidden, OffsetGone, StoreCorrupt
from landbridge.protocol import frames
from landbridge.protocol.operations import OfStage, StageCommit, StageDecided, StageDrop, StageShown
from landbridge.stores.writer import Writer

KIND = "stage"
PREFIX = "$stage."
#: What nobody has committed for so long is removed.
RETENTION = Retention(max_age=7 * 86400.0, discard="any")


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a stage for ever: the last number that was committed, and what of it is still to be
    published."""

    number: int
    log: int  #: the number by which the stage's log is known that the runs are in
    left: list[tuple[str, list[Range]]]  #: topic and runs, in order; empty = all of it is published
    subject: str  #: in whose name


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Decision).decode


class Staged(msgspec.Struct, frozen=True):
    """Rows to be published."""

    topic: str
    batch: Batch
    first: int | None  #: where it begins in the stage's log, if it is a whole batch of it


class Stages:
    def __init__(self, broker: Broker, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._broker = broker
        self._spawn = spawn  #: runs something in the background until the terminal closes
        #: By stage; what is here is on disk.
        self._decisions: dict[str, Decision] = {}
        #: Stages of which it can't be read what was decided.
        self._damaged: dict[str, StoreCorrupt] = {}
        #: Held while a stage's commit is under way. Those who wait find its decision.
        self._locks: dict[str, asyncio.Lock] = {}

    async def open(self, unit: int) -> None:
        """Load what is stored of a unit, and go on with what was decided. Stages that a writer came too late
        for are removed once their retention has emptied them."""
        for topic in list(self._broker.topics.values()):
            is_here = topic.writer.unit == unit and topic.name.startswith(PREFIX)
            if is_here and topic.log.first == topic.log.end:
                self._spawn(self._broker.table.delete_topic(topic))
        for stage, raw in await self._broker.store.documents(unit, KIND):
            hint = f"publish its rows anew under another name, or forget {stage!r} with 'stage.drop'"
            try:
                what = f"what was decided of the stage {stage}"
                self._decisions[stage] = decoded(what, decode, raw, hint)
            except StoreCorrupt as error:
                self._damaged[stage] = error
                self._broker.damage.note(str(error), hint, topic=PREFIX + stage)
                continue
            if self._decisions[stage].left:
                self._spawn(self._resume(stage))

    def forget(self, unit: int) -> None:
        """The unit is another node's from now on."""
        units = self._broker.store.units
        for stage in [stage for stage in self._decisions if unit_of(PREFIX + stage, units) == unit]:
            del self._decisions[stage]
        for stage in [stage for stage in self._damaged if unit_of(PREFIX + stage, units) == unit]:
            del self._damaged[stage]

    async def _resume(self, stage: str) -> None:
        try:
            async with self._lock(stage):
                await self._publish(stage)
        except BusError as error:  # the next commit of this stage tries again
            self._broker.report(PREFIX + stage, error)

    def _lock(self, stage: str) -> asyncio.Lock:
        return self._locks.setdefault(stage, asyncio.Lock())

    def _topic(self, connection: Client, stage: str) -> Topic | None:
        """The stage's topic, for the one whose stage it is: who put rows on it, or committed it before."""
        topic = self._broker.topics.get(check_name(PREFIX + stage, "stage"))
        known = self._decisions.get(stage)
        owners = {None if topic is None else topic.spec.producer, None if known is None else known.subject}
        if owners - {None, connection.subject} and not connection.scopes.admin:
            raise Forbidden(f"the stage {stage} is another subject's", hint="go on with a token of the same")
        return topic

    # -- putting -----------------------------------------------------------------------------------

    def put(self, connection: Client, frame: frames.Stage, tail: memoryview) -> asyncio.Future[list[int]]:
        """Put a batch on a stage. The future has the number of the stage's log and the offset there."""
        broker = self._broker
        target = self._check_publish(connection, frame.stage, frame.topic)
        batch = broker.publishing.read_batch(frame.topic, tail)
        topic = self._topic(connection, frame.stage)
        if topic is None:
            spec = TopicSpec(name=PREFIX + frame.stage, retention=RETENTION, producer=connection.subject)
            topic = broker.table.create_topic(spec)
        if target.chain is None:
            return topic.writer.put(partial(self._put, topic, batch))
        # What is published later is what stands on the stage.
        return asyncio.ensure_future(self._put_after(target.chain, connection, topic, batch))

    async def _put_after(
        self, chain: RunsBatches, connection: Client, topic: Topic, batch: Batch
    ) -> list[int]:
        outcome = await chain.run(batch, connection)
        return await topic.writer.put(partial(self._put, topic, accepted(outcome)))

    def _put(self, topic: Topic, batch: Batch, commit: BrokerCommit) -> list[int]:
        # No ledger: a repeat after a lost answer is a second copy, and only the answered one is committed.
        topic.save(commit)
        return [topic.number, commit.append(topic.log, batch)]

    def _check_publish(self, connection: Client, stage: str, name: str) -> Topic | DistantTopic:
        topic = self._broker.publishing.output(connection, name)
        if isinstance(topic, Topic):
            topic.claim_for(connection, f"stage:{stage}".encode()[:64])
        return topic

    # -- committing --------------------------------------------------------------------------------

    async def stage_commit(self, connection: Client, request: StageCommit) -> StageDecided:
        """Publish these runs of the stage's log, as commit ``number`` of the stage. A number that is decided
        is not decided again, nor is a lower one: whatever is given, it is only brought to its end. Returns
        whether this call was the one that decided."""
        stage, number, log, runs = request.stage, request.number, request.log, request.runs
        staged = self._topic(connection, stage)
        async with self._lock(stage):
            if stage in self._damaged:
                raise self._damaged[stage]
            await self._publish(stage)  # what an earlier one left
            known = self._decisions.get(stage)
            if known is not None and number <= known.number:
                return StageDecided(decided=False)
            if number < 0:
                raise BadRequest(f"a commit of the stage {stage} with the number {number}")
            for name, _ in runs:
                target = self._check_publish(connection, stage, name)
                if isinstance(target, Topic):  # the owner of another one has looked at it with each put
                    target.check_backlog()
            if runs and (staged is None or staged.deleted or staged.number != log):
                raise OffsetGone(f"what was put on the stage {stage} is gone", hint="put it there again")
            left = [(name, [(first, end) for first, end in each if first < end]) for name, each in runs]
            left = [(name, each) for name, each in left if each]
            for _, each in left:
                assert staged is not None
                if min(each)[0] < staged.log.first or max(end for _, end in each) > staged.log.end:
                    raise OffsetGone(f"the stage {stage} doesn't have all of these runs")
            decision = Decision(number, log or 0, left, connection.subject)
            if left:
                await self._publish(stage, decision)
            else:
                await self._home(stage).put(partial(self._write, stage, decision, None, []))
            return StageDecided(decided=True)

    def _home(self, stage: str) -> Writer[BrokerCommit]:
        """The writer of the unit that a stage and what is decided of it live in."""
        return self._broker.units.writers[unit_of(PREFIX + stage, self._broker.store.units)]

    async def _publish(self, stage: str, decision: Decision | None = None) -> None:
        """Bring a decision to its end. One that isn't stored yet is, with its first piece."""
        is_stored = decision is None
        decision = decision or self._decisions.get(stage)
        if decision is None or not decision.left:
            return
        broker = self._broker
        staged = broker.topics.get(PREFIX + stage)
        if staged is None or staged.number != decision.log:
            raise OffsetGone(f"what was decided of the stage {stage} is gone")
        home = self._home(stage)
        abroad = {name for name, _ in decision.left if self._is_abroad(name, home)}
        piece, left = await self._piece(staged, decision.left)
        if abroad and not is_stored:
            # Decide first: rows in another unit can't be published in the commit that decides.
            await home.put(partial(self._write, stage, decision, None, []))
        while piece:
            before, decision = decision, msgspec.structs.replace(decision, left=left)
            # The next piece is read while this one is written.
            reading = asyncio.ensure_future(self._piece(staged, left))
            try:
                for name in abroad:
                    await self._publish_abroad(
                        stage, before, name, [e.batch for e in piece if e.topic == name]
                    )
                near = [each for each in piece if each.topic not in abroad]
                await home.put(partial(self._write, stage, decision, staged, near))
                piece, left = await reading
            finally:
                reading.cancel()
        for name in abroad:
            if broker.units.elsewhere is None or broker.units.has(name):
                forget_producer(broker, name, _producer(stage, decision))
            else:
                await broker.units.elsewhere.forget_producer(name, _producer(stage, decision))
        await self._broker.table.delete_topic(staged)

    def _is_abroad(self, topic: str, home: Writer[BrokerCommit]) -> bool:
        return unit_of(topic, self._broker.store.units) != home.unit

    async def _publish_abroad(self, stage: str, decision: Decision, name: str, batches: list[Batch]) -> None:
        """Append rows to a topic of another unit, once."""
        if not batches:
            return
        broker = self._broker
        left = sum(end - first for topic, runs in decision.left if topic == name for first, end in runs)
        rows = name, _producer(stage, decision), left, decision.subject, batches
        if broker.units.elsewhere is None or broker.units.has(name):
            await append_rows(broker, *rows)
        else:
            await broker.units.elsewhere.append_rows(*rows)

    async def _piece(
        self, staged: Topic, runs_left: list[tuple[str, list[Range]]]
    ) -> tuple[list[Staged], list[tuple[str, list[Range]]]]:
        """The next rows to publish, as many as go into one commit of the store; and what is left after
        them. Whole batches cost the store next to nothing, but until they are in the topic's cache all of
        them are held here."""
        room = self._broker.limits.commit
        piece: list[Staged] = []
        left = [(name, list(runs)) for name, runs in runs_left]
        while left and room > 0:
            name, runs = left[0]
            at, end = runs[0]
            for first, batch in await staged.log.fetch(at, room):
                if first >= end or room <= 0:
                    break
                lo, hi = at - first, min(end - first, len(batch))
                if lo < 0:
                    raise OffsetGone(f"what was put on {staged.name} is gone from {at} to {first}")
                whole = hi - lo == len(batch)
                part = batch if whole else batch.slice(lo, hi)
                piece.append(Staged(name, part, first if whole else None))
                room -= batch.size
                at = first + hi
            if at < end:
                runs[0] = (at, end)
            elif len(runs) > 1:
                del runs[0]
            else:
                del left[0]
        return piece, left

    def _write(
        self,
        stage: str,
        decision: Decision,
        staged: Topic | None,
        piece: list[Staged],
        commit: BrokerCommit,
    ) -> None:
        broker = self._broker
        if piece:
            commit.need_room()
        kept = staged is not None and not staged.deleted and commit.keeps(staged.log)
        topics = {each.topic: broker.table.topic_for(each.topic, create=True) for each in piece}
        for name, topic in topics.items():  # before anything is changed
            if topic.spec.ids == "unique":
                topic.keys.check_ids(commit, *(each.batch for each in piece if each.topic == name))
        for each in piece:
            topic = topics[each.topic]
            topic.save(commit)
            if topic.spec.ids == "unique":
                stored, first = topic.store(commit, each.batch)
                if stored is not None:
                    publish = partial(broker.publishing.published, decision.subject, topic, stored, first)
                    commit.on_stored.append(publish)
                continue
            # What stands on the stage is what an append would store: nobody adds to it on either way.
            held = None
            if kept and staged is not None and each.first is not None and each.first >= staged.log.first:
                held = staged.log.number, each.first
            first = commit.append(topic.log, each.batch, held=held)
            commit.on_stored.append(
                partial(broker.publishing.published, decision.subject, topic, each.batch, first)
            )
        commit.writes.append(PutDocument(KIND, stage, _encode(decision)))
        commit.on_stored.append(partial(self._decisions.__setitem__, stage, decision))

    async def stage_show(self, connection: Client, request: OfStage) -> StageShown:
        """The last number that was committed; None where none was."""
        stage = request.stage
        self._topic(connection, stage)
        known = self._decisions.get(stage)
        return StageShown(number=None if known is None else known.number)

    async def stage_drop(self, connection: Client, request: StageDrop) -> None:
        """Remove what is on a stage and not published; ``forget``: also the number that it is at. What was
        decided is brought to its end before."""
        stage = request.stage
        staged = self._topic(connection, stage)
        async with self._lock(stage):
            await self._publish(stage)
            if staged is not None and not staged.deleted:
                await self._broker.table.delete_topic(staged)
            is_damaged = self._damaged.pop(stage, None) is not None
            if request.forget and (self._decisions.pop(stage, None) is not None or is_damaged):
                await self._broker.write([DeleteDocument(KIND, stage)], unit=self._home(stage).unit)


def _producer(stage: str, decision: Decision) -> bytes:
    """Under which name the ledger of a topic in another unit knows the rows of a decision."""
    return f"stage/{stage}/{decision.number}".encode()
