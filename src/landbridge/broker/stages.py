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
from typing import TYPE_CHECKING

import msgspec

from landbridge.broker.topic import Topic
from landbridge.core.log.batch import Batch
from landbridge.core.log.ranges import Range
from landbridge.core.log.retention import Retention
from landbridge.core.log.store import DeleteDocument, PutDocument
from landbridge.core.log.topic import TopicSpec
from landbridge.core.names import check_name
from landbridge.errors import BadFrame, BadRequest, BusError, Forbidden, LimitReached, Misuse, OffsetGone

if TYPE_CHECKING:
    from landbridge.broker.commit import Commit
    from landbridge.broker.connection import Connection
    from landbridge.broker.server import Terminal
    from landbridge.protocol import frames

KIND = "stage"
PREFIX = "$stage."
#: What nobody has committed for so long is removed.
RETENTION = Retention(max_age=7 * 86400.0, discard="any")


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a stage for ever: the last number that was committed, and what of it is still to be
    published."""

    number: int
    log: int  #: the stage's log that the runs are in
    left: list[tuple[str, list[Range]]]  #: topic and runs, in order; empty = all of it is published
    subject: str  #: in whose name


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Decision).decode


class Staged(msgspec.Struct, frozen=True):
    """Rows to be published."""

    topic: str
    batch: Batch
    first: int | None  #: where it begins in the stage's log, if it is a whole batch of it


class Stages:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._broker = terminal.broker
        #: By stage; what is here is on disk.
        self._decisions: dict[str, Decision] = {}
        #: Held while a stage's commit is under way. Those who wait find its decision.
        self._locks: dict[str, asyncio.Lock] = {}

    def open(self) -> None:
        """Load what is stored, and go on with what was decided. Stages that a writer came too late for are
        removed once their retention has emptied them."""
        for topic in list(self._broker.topics.values()):
            if topic.name.startswith(PREFIX) and topic.log.first == topic.log.end:
                self._spawn(self._broker.delete_topic(topic))
        for stage, raw in self._broker.store.documents(KIND):
            self._decisions[stage] = _decode(raw)
            if self._decisions[stage].left:
                self._spawn(self._resume(stage))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(work)
        self._terminal.tasks.add(task)
        task.add_done_callback(self._terminal.tasks.discard)

    async def _resume(self, stage: str) -> None:
        try:
            async with self._lock(stage):
                await self._publish(stage)
        except BusError as error:  # the next commit of this stage tries again
            self._broker.status.note(
                self._broker.clock(), "error", topic=PREFIX + stage, cause=error.code, detail=str(error)
            )

    def _lock(self, stage: str) -> asyncio.Lock:
        return self._locks.setdefault(stage, asyncio.Lock())

    def _topic(self, connection: Connection, stage: str) -> Topic | None:
        """The stage's topic, for the one whose it is."""
        topic = self._broker.topics.get(check_name(PREFIX + stage, "stage"))
        if topic is not None and topic.spec.producer != connection.subject and not connection.scopes.admin:
            raise Forbidden(f"the stage {stage} is another subject's", hint="go on with a token of the same")
        return topic

    # -- putting -----------------------------------------------------------------------------------

    def put(
        self,
        connection: Connection,
        frame: frames.Stage,
        tail: memoryview,
        stored: Callable[[list[int]], None],
        refuse: Callable[[BusError], None],
    ) -> None:
        broker = self._broker
        try:
            self._check_publish(connection, frame.stage, frame.topic)
            batch = broker.read_batch(tail)
            topic = self._topic(connection, frame.stage)
            if topic is None:
                spec = TopicSpec(name=PREFIX + frame.stage, retention=RETENTION, producer=connection.subject)
                topic = broker.create_topic(spec)
        except (Misuse, BadFrame, LimitReached) as error:
            refuse(error)
            return

        def work(commit: Commit) -> None:
            topic.save(commit)
            first = commit.append(topic, batch)
            commit.after.append(partial(stored, [topic.log.number, first]))

        # No ledger: a repeat after a lost answer is a second copy, and only the answered one is committed.
        broker.committer.put(work, refuse)

    def _check_publish(self, connection: Connection, stage: str, name: str) -> Topic:
        return self._broker.check_publish(connection, name, f"stage:{stage}".encode()[:64])

    # -- committing --------------------------------------------------------------------------------

    async def stage_commit(
        self,
        connection: Connection,
        stage: str,
        number: int,
        log: int | None,
        runs: list[tuple[str, list[tuple[int, int]]]],
    ) -> object:
        """Publish these runs of the stage's log, as commit ``number`` of the stage. A number that is decided
        is not decided again, nor is a lower one: whatever is given, it is only brought to its end. Returns
        whether this call was the one that decided."""
        staged = self._topic(connection, stage)
        async with self._lock(stage):
            await self._publish(stage)  # what an earlier one left
            known = self._decisions.get(stage)
            if known is not None and number <= known.number:
                return {"decided": False}
            if number < 0:
                raise BadRequest(f"a commit of the stage {stage} with the number {number}")
            for name, _ in runs:
                self._check_publish(connection, stage, name).check_backlog()
            if runs and (staged is None or staged.deleted or staged.log.number != log):
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
                await self._broker.perform(partial(self._write, stage, decision, None, []))
            return {"decided": True}

    async def _publish(self, stage: str, decision: Decision | None = None) -> None:
        """Bring a decision to its end. One that isn't stored yet is, with its first piece."""
        decision = decision or self._decisions.get(stage)
        if decision is None or not decision.left:
            return
        staged = self._broker.topics.get(PREFIX + stage)
        if staged is None or staged.log.number != decision.log:
            raise OffsetGone(f"what was decided of the stage {stage} is gone")
        piece, left = await self._piece(staged, decision.left)
        while piece:
            decision = msgspec.structs.replace(decision, left=left)
            # The next piece is read while this one is written.
            reading = asyncio.ensure_future(self._piece(staged, left))
            try:
                await self._broker.perform(partial(self._write, stage, decision, staged, piece))
                piece, left = await reading
            finally:
                reading.cancel()
        await self._broker.delete_topic(staged)

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
        self, stage: str, decision: Decision, staged: Topic | None, piece: list[Staged], commit: Commit
    ) -> None:
        broker = self._broker
        kept = staged is not None and commit.keeps(staged)
        for each in piece:
            topic = broker.topic_for(each.topic, create=True)
            topic.save(commit)
            # What stands on the stage is what an append would store: nobody adds to it on either way.
            held = None
            if kept and staged is not None and each.first is not None and each.first >= staged.log.first:
                held = staged.log.number, each.first
            first = commit.append(topic, each.batch, held=held)
            commit.after.append(partial(broker.published, decision.subject, topic, each.batch, first))
        commit.writes.append(PutDocument(KIND, stage, _encode(decision)))
        commit.after.append(partial(self._decisions.__setitem__, stage, decision))

    async def stage_show(self, connection: Connection, stage: str) -> object:
        """The last number that was committed; None where none was."""
        self._topic(connection, stage)
        known = self._decisions.get(stage)
        if known is not None and known.subject != connection.subject and not connection.scopes.admin:
            raise Forbidden(f"the stage {stage} is another subject's", hint="go on with a token of the same")
        return {"number": None if known is None else known.number}

    async def stage_drop(self, connection: Connection, stage: str, forget: bool = False) -> object:
        """Remove what is on a stage and not published; ``forget``: also the number that it is at. What was
        decided is brought to its end before."""
        staged = self._topic(connection, stage)
        known = self._decisions.get(stage)
        if known is not None and known.subject != connection.subject and not connection.scopes.admin:
            raise Forbidden(f"the stage {stage} is another subject's", hint="go on with a token of the same")
        async with self._lock(stage):
            await self._publish(stage)
            if staged is not None and not staged.deleted:
                await self._broker.delete_topic(staged)
            if forget and self._decisions.pop(stage, None) is not None:
                await self._broker.write([DeleteDocument(KIND, stage)])
        return None
