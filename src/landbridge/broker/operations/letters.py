"""Operations on dead letters.

A letter is a message of a group's dead-letter topic that a burial has put there. Which letters of a group
still wait is what a cursor of that topic, the group's ``$redrive.…``, has not settled: a redrive and a
deletion settle letters there, whoever asks for them, and all at once or some of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.group import LETTER_HEADERS, Enter, Group
from landbridge.broker.operations.dispatcher import PAGE, Dispatcher, may_see
from landbridge.broker.operations.groups import changeable
from landbridge.broker.topic import Topic
from landbridge.broker.turns import Turns
from landbridge.core.log.batch import Batch, HeaderValue, build, encode_headers
from landbridge.core.log.ranges import normalise
from landbridge.core.topic import group_spec
from landbridge.errors import BadRequest, LeaseLost
from landbridge.protocol import operations as table

#: Letters per commit.
AT_ONCE = 1000
#: Letters that a summary looks at.
MOST_COUNTED = 20_000
#: Messages in which one request looks for the letters of a page.
MOST_LOOKED_AT = 20_000
#: As how many things a letter counts in a turn of the loop.
LETTER_COUNTS = 8
#: Does a letter belong to what was asked for?
Choice: TypeAlias = Callable[["Letter"], bool]


class Letter(NamedTuple):
    """A message of a dead-letter topic."""

    offset: int
    batch: Batch
    row: int
    headers: dict[str, HeaderValue]

    @property
    def place(self) -> tuple[str, str]:
        """The topic and the group that have buried it."""
        return str(self.headers.get("lb-topic", "")), str(self.headers.get("lb-group", ""))

    @property
    def cause(self) -> str:
        return str(self.headers.get("lb-cause", ""))

    @property
    def buried_at(self) -> int:
        """In microseconds."""
        return self.batch.time_of(self.row)

    def number(self, header: str) -> int:
        """The value of a header that counts."""
        value = self.headers.get(header, 0)
        return value if isinstance(value, int) else 0


class LetterOperations:
    """The handlers of letter.*, and of group.redrive."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.LETTER_SUMMARY, self.summary)
        dispatcher.register(table.LETTER_LIST, self.list_page)
        dispatcher.register(table.LETTER_REDRIVE, self.redrive)
        dispatcher.register(table.LETTER_DELETE, self.delete)
        dispatcher.register(table.GROUP_REDRIVE, self.redrive_all)

    # -- looking -----------------------------------------------------------------------------------

    async def summary(self, caller: TokenBearer, request: table.LetterSummary) -> table.LetterCounts:
        if request.group is not None and request.topic is None:
            raise BadRequest("a group is one of a topic", hint="name the topic, too")
        rows: dict[tuple[str, str, str], table.CauseRow] = {}
        looked_at, stored, whole = 0, 0, True
        since = 0 if request.since is None else max(0, request.since)
        for dead in self._dead_topics(request.topic, request.group):
            begin = await self._begin(dead, since)
            stored += max(0, dead.log.end - begin)
            async for letter in _letters(dead, begin):
                if looked_at >= MOST_COUNTED:
                    whole = False
                    break
                looked_at += 1
                topic, group = letter.place
                is_asked = self._is_asked(request, topic, group) and letter.buried_at >= since
                if is_asked and self._waits(dead, letter):
                    _count(rows, dead, letter)
        whole = whole and self._are_here(request.topic)
        seen = {topic: may_see(self._broker.topics, caller, topic) for topic, _, _ in rows}
        shown = [rows[key] for key in sorted(rows) if seen[key[0]]]
        whole = whole and len(shown) <= PAGE
        return table.LetterCounts(causes=shown[:PAGE], whole=whole, looked_at=looked_at, stored=stored)

    async def _begin(self, dead: Topic, since: int) -> int:
        """The offset from which a dead-letter topic has the letters of a moment and later."""
        found = await self._broker.store.seek_time(dead.log.number, since) if since else 0
        return max(dead.log.first, found)

    def _are_here(self, topic: str | None) -> bool:
        """False where letters are in a topic that another node owns."""
        topics = self._broker.topics.values() if topic is None else [self._broker.table.topic(topic)]
        groups = [group for found in topics for group in found.groups.values()]
        return all(self._broker.units.has(group.spec.dead_topic) for group in groups if group.spec.dead_topic)

    def _is_asked(self, request: table.LetterSummary, topic: str, group: str) -> bool:
        return request.topic in (None, topic) and request.group in (None, group)

    def _dead_topics(self, topic: str | None, group: str | None) -> list[Topic]:
        """The dead-letter topics that there are, of all groups or of some."""
        topics = self._broker.topics.values() if topic is None else [self._broker.table.topic(topic)]
        names = {
            each.spec.dead_topic
            for found in topics
            for each in found.groups.values()
            if group in (None, each.name)
        }
        there = [self._broker.topics[name] for name in sorted(names) if name in self._broker.topics]
        return [dead for dead in there if dead.log.end > dead.log.first]

    async def list_page(self, caller: TokenBearer, request: table.LetterList) -> table.LetterRows:
        group = self._broker.table.group(request.topic, request.group)
        dead = dead_topic_of(self._broker, group)
        if dead is None:
            return table.LetterRows(dead_topic=group.spec.dead_topic, letters=[], next="")
        is_chosen = _choice(request.topic, request.group, request.cause, None)
        rows: list[table.LetterRow] = []
        most, looked_at = max(1, min(request.limit, PAGE)), 0
        async for letter in _letters(dead, _offset_after(request.after)):
            looked_at += 1
            if is_chosen(letter) and self._waits(dead, letter):
                rows.append(_row(letter))
            if len(rows) >= most or looked_at >= MOST_LOOKED_AT:
                return table.LetterRows(dead_topic=dead.name, letters=rows, next=str(letter.offset))
        return table.LetterRows(dead_topic=dead.name, letters=rows, next="")

    def _waits(self, dead: Topic, letter: Letter) -> bool:
        reader = dead.groups.get(reader_of(*letter.place))
        return reader is None or not reader.delivery.cursor.is_settled(letter.offset)

    # -- changing ----------------------------------------------------------------------------------

    async def redrive(self, caller: AuditedCaller, request: table.LettersChosen) -> table.LettersHandled:
        return await self._handle(caller, request, give_again=True)

    async def delete(self, caller: AuditedCaller, request: table.LettersChosen) -> table.LettersHandled:
        return await self._handle(caller, request, give_again=False)

    async def _handle(
        self, caller: AuditedCaller, request: table.LettersChosen, *, give_again: bool
    ) -> table.LettersHandled:
        """Settle the letters that were chosen, some in each commit; each one once, whoever else asks."""
        if request.offsets is not None and len(request.offsets) > PAGE:
            raise BadRequest(f"{len(request.offsets)} offsets, allowed are {PAGE}", hint="ask several times")
        group = changeable(self._broker, request.topic, request.group)
        dead = dead_topic_of(self._broker, group)
        caller.change_nothing()  # unless there are letters
        handled = 0
        if dead is not None:
            offsets = None if request.offsets is None else frozenset(request.offsets)
            is_chosen = _choice(request.topic, request.group, request.cause, offsets)
            end = dead.log.end  # what is buried from now on waits for the next time
            some: list[Letter] = []
            begin = min(offsets, default=end) if offsets is not None else 0
            async for letter in _letters(dead, begin, end):
                if is_chosen(letter) and self._waits(dead, letter):
                    some.append(letter)
                if len(some) >= AT_ONCE:
                    handled += await self._settle(caller, request, group, dead, some, give_again)
                    some = []
            handled += await self._settle(caller, request, group, dead, some, give_again)
        return table.LettersHandled(letters=handled, dry_run=request.dry_run)

    async def _settle(
        self,
        caller: AuditedCaller,
        request: table.LettersChosen,
        group: Group,
        dead: Topic,
        letters: Collection[Letter],
        give_again: bool,
    ) -> int:
        if request.dry_run or not letters:
            return len(letters)
        reader = redrive_group(self._broker, dead, group.topic.name, group.name)

        def work(commit: BrokerCommit) -> int:
            delivery = reader.catch_up()
            taken = [letter for letter in letters if delivery.withdraw(letter.offset)]
            if taken:
                runs = normalise((letter.offset, letter.offset + 1) for letter in taken)
                commit.on_failed.append(partial(reader.unsettle, runs))
                if give_again:
                    again = put_together(self._broker, [(each.batch, each.row) for each in taken])
                    again.audience = frozenset({group.name})
                    self._broker.committing.append(commit, group.topic.name, again)
                reader.save(commit)
                about = {"letters": len(taken), **_told(request)}
                caller.enter(commit, f"{group.topic.name}/{group.name}", after=about, what="group")
            return len(taken)

        handled = await dead.writer.put(work)
        await self._pass_over(dead, reader)
        return handled

    async def _pass_over(self, dead: Topic, reader: Group) -> None:
        """Settle what is no letter of the group, up to the first one that waits: or the retention of the
        dead-letter topic would wait for it."""
        consumer = self._broker.consuming.new_consumer()
        while True:
            now = self._broker.clock()
            if reader.catch_up().take(now, consumer, 1, dead.log.batch_at):
                reader.delivery.release(now, consumer, counted=False)
                break
            if reader.delivery.missing is not None:
                await dead.log.read(reader.delivery.missing)
            elif not reader.delivery.more:
                break
        reader.changed()

    # -- all of them -------------------------------------------------------------------------------

    async def redrive_all(self, caller: AuditedCaller, request: table.OfGroup) -> table.Redriven:
        """Each dead letter goes back into the topic, for this group alone, and is settled in the dead-letter
        topic in the same commit. A redrive is a cursor like any other, so it can be repeated and interrupted
        without a letter being lost or sent twice."""
        broker = self._broker
        group = changeable(broker, request.topic, request.name)
        dead = dead_topic_of(broker, group)
        caller.change_nothing()  # unless there are letters
        if dead is None:
            return table.Redriven(redriven=0)
        reader = redrive_group(broker, dead, request.topic, request.name)
        redriven = 0
        consumer = broker.consuming.new_consumer()  # the operation itself
        while True:
            handouts = reader.catch_up().take(broker.clock(), consumer, AT_ONCE, dead.log.batch_at)
            if not handouts:
                if reader.delivery.missing is not None:
                    await dead.log.read(reader.delivery.missing)
                    continue
                if reader.delivery.more:
                    continue
                break
            try:
                letters = [(h.lease, h.ranges, h.batch) for h in handouts]
                enter = None
                if not redriven:  # of the first commit; the others go on with the same
                    about = {"redrive of the letters up to": dead.log.end}
                    enter = partial(caller.enter, name=f"{request.topic}/{request.name}", after=about)
                await self._put_back(group, reader, letters, consumer, enter)
            except BaseException:
                reader.delivery.release(broker.clock(), consumer, counted=False)
                raise
            redriven += sum(len(handout.batch) for handout in handouts if handout.batch.is_letter)
        reader.changed()
        return table.Redriven(redriven=redriven)

    async def _put_back(
        self,
        group: Group,
        reader: Group,
        letters: list[tuple[int, list[tuple[int, int]], Batch]],
        consumer: int,
        enter: Enter | None,
    ) -> None:
        broker = self._broker
        batches = []
        for _, _, batch in letters:
            if not batch.is_letter:
                continue  # somebody else's message that only looks like a dead letter of this group
            again = put_together(broker, [(batch, index) for index in range(len(batch))])
            again.audience = frozenset({group.name})
            batches.append(again)

        def work(commit: BrokerCommit) -> None:
            if not all(reader.delivery.holds(lease, consumer, ranges) for lease, ranges, _ in letters):
                raise LeaseLost("the letters were given back meanwhile", hint="redrive again")
            for again in batches:
                broker.committing.append(commit, group.topic.name, again)
            for lease, ranges, _ in letters:
                held = reader.delivery.ack(commit.now, lease, consumer, ranges)
                commit.on_failed.append(partial(reader.unsettle, held))
            reader.save(commit)
            if enter is not None:
                enter(commit)

        await reader.topic.writer.put(work)


def dead_topic_of(broker: Broker, group: Group) -> Topic | None:
    """Where a group's dead letters are; None where there are none yet. BadRequest where another node has
    them: a letter is handled in one commit with its group."""
    name = group.spec.dead_topic
    if name and not broker.units.has(name):
        raise BadRequest(
            f"the dead letters of the group {group.name} are in {name}, which another node owns",
            hint="read them there and publish them again; or use the group's own dead-letter topic",
        )
    return broker.topics.get(name)


def redrive_group(broker: Broker, dead: Topic, topic: str, name: str) -> Group:
    """The group of a dead-letter topic whose cursor says which letters of a group have been handled."""
    reader = reader_of(topic, name)
    found = dead.groups.get(reader)
    if found is not None:
        return found
    match = {"headers": {"lb-topic": topic, "lb-group": name}}
    spec = group_spec({"topic": dead.name, "name": reader, "match": match, "dead_letter": ""})
    return broker.table.create_group(dead, spec, dead.log.first)


def reader_of(topic: str, name: str) -> str:
    """A name of its own for each group, which no client can take."""
    return f"$redrive.{hashlib.sha256(f'{topic}/{name}'.encode()).hexdigest()[:32]}"


def put_together(broker: Broker, rows: Collection[tuple[Batch, int]]) -> Batch:
    """A batch of letters as the messages that they were."""
    priorities = [(batch.priorities() or bytes(index + 1))[index] for batch, index in rows]
    data = build(
        [batch.payload(index) for batch, index in rows],
        id=broker.new_id(),
        time=broker.clock(),
        keys=[batch.key(index) for batch, index in rows],
        headers=[
            encode_headers({k: v for k, v in batch.headers(index).items() if k not in LETTER_HEADERS})
            for batch, index in rows
        ],
        ids=[batch.id_of(index).encode() for batch, index in rows],
        priorities=bytes(priorities),
    )
    return Batch.decode(data)


async def _letters(dead: Topic, begin: int, end: int | None = None) -> AsyncIterator[Letter]:
    """The letters of a dead-letter topic from an offset on. What only looks like a letter is none."""
    reader, turns = dead.reader_for(None), Turns()
    at = max(begin, dead.log.first)
    while (found := await reader.read(at)) is not None and (end is None or found[0] < end):
        first, batch = found
        last = min(first + len(batch), end or first + len(batch))
        for offset in range(max(at, first), last) if batch.is_letter else ():
            await turns.looked_at(LETTER_COUNTS)
            yield Letter(offset, batch, offset - first, batch.headers(offset - first))
        await turns.looked_at(1)
        at = first + len(batch)


def _choice(topic: str, group: str, cause: str | None, offsets: Collection[int] | None) -> Choice:
    def is_chosen(letter: Letter) -> bool:
        return (
            letter.place == (topic, group)
            and cause in (None, letter.cause)
            and (offsets is None or letter.offset in offsets)
        )

    return is_chosen


def _told(request: table.LettersChosen) -> dict[str, Any]:
    """What of a request the audit log tells."""
    found = {"cause": request.cause, "offsets": request.offsets}
    return {name: value for name, value in found.items() if value is not None}


def _offset_after(after: str) -> int:
    if after and not (after.isdecimal() and len(after) < 20):
        raise BadRequest(f"letter.list after {after[:60]!r}", hint="give the 'next' of the page before")
    return int(after) + 1 if after else 0


def _row(letter: Letter) -> table.LetterRow:
    return table.LetterRow(
        offset=letter.offset,
        was_at=letter.number("lb-offset"),
        id=letter.batch.id_of(letter.row),
        cause=letter.cause,
        attempts=letter.number("lb-attempts"),
        buried_at=letter.batch.time_of(letter.row),
        bytes=len(letter.batch.payload(letter.row)),
    )


def _count(rows: dict[tuple[str, str, str], table.CauseRow], dead: Topic, letter: Letter) -> None:
    key = (*letter.place, letter.cause)
    at, attempts = letter.buried_at, letter.number("lb-attempts")
    row = rows.get(key)
    if row is None:
        topic, group, cause = key
        rows[key] = table.CauseRow(
            topic=topic, group=group, cause=cause, letters=1, first_at=at, last_at=at, attempts=attempts,
            dead_topic=dead.name,
        )  # fmt: skip
        return
    rows[key] = msgspec.structs.replace(
        row, letters=row.letters + 1, first_at=min(row.first_at, at), last_at=max(row.last_at, at),
        attempts=max(row.attempts, attempts),
    )  # fmt: skip
