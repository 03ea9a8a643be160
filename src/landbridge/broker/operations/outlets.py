"""What the operations of all outlets have in common: webhooks, mail and SMS. They write the documents and the
group; a sender (``landbridge.gateways.outlets``) watches the documents, reads the group and sends.

An outlet belongs to whoever made or last updated it, its *owner*, and reads its topic in the owner's name.
Its owner may do everything with it, and so may an operator; but whoever changes where it sends to needs the
right to read the topic, and becomes its owner, so that nobody has a topic sent to him in another's name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.documents import DocumentPlace, Edit, check_place, decode_value, encode_value
from landbridge.broker.group import Group
from landbridge.broker.operations.dispatcher import PAGE, may_see
from landbridge.broker.operations.groups import GroupOperations, save_group, topic_made
from landbridge.broker.shares import count_by_owner
from landbridge.core.options import differences, read_options
from landbridge.core.outlet import outlet as core
from landbridge.core.outlet.outlet import OutletProbe, OutletState, StoredOutlet
from landbridge.core.outlet.spec import OutletSpec
from landbridge.errors import (
    BadRequest,
    BusError,
    DocumentChanged,
    DocumentExists,
    Forbidden,
    OffsetGone,
    StoreCorrupt,
    UnknownGroup,
    UnknownTopic,
)
from landbridge.protocol import operations as table

S = TypeVar("S", bound=StoredOutlet)

#: A document that is written by others at the same time is read again so often.
TRIES = 20
#: Seconds that a test may wait.
LONGEST_TEST = 30.0
#: Of the group: seconds that a request may take with all that it waits for, and attempts after which the
#: group gives up by itself, far more than the sender makes.
ACK_WITHIN, MAX_ATTEMPTS = 120.0, 1000
LONGEST_NOTE = 1000


class OutletOperations(Generic[S]):
    """Documents and groups of the outlets of one kind."""

    #: What one is called, in texts and in the topic of changes.
    noun: str
    #: The collections of what operations write, and of what the sender writes.
    collection: str
    states: str
    #: The limit of their number, by its name.
    limit: str
    kind: type[S]
    unknown: type[BusError]
    exists: type[BusError]

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._documents = broker.documents
        self._groups = GroupOperations(broker)
        #: Held while one is made, so that their number is right.
        self._making = asyncio.Lock()
        #: Why this process sends none of them, and the command that mends it; empty: it does.
        self.lacking = self.mended_by = ""

    def lack(self, what: str, mended_by: str) -> None:
        """This process can't send them: for want of a package."""
        self.lacking, self.mended_by = f"{what}: {mended_by}", mended_by

    # -- what differs ------------------------------------------------------------------------------

    def group_name(self, name: str) -> str:
        """The group that one reads."""
        raise NotImplementedError

    def ack_within(self, spec: Any) -> float:
        """Of the group: seconds that a message may take with all that it waits for."""
        return ACK_WITHIN

    async def prepare(self, caller: AuditedCaller, stored: S) -> S:
        """Make what its group needs, before the group is made."""
        return stored

    def trouble(self, stored: S, state: OutletState) -> str:
        """Why nothing is sent at the moment: by the sender's word, where it is not plain from here."""
        return self.lacking or state.trouble

    def check_lacks_nothing(self) -> None:
        """Raise BadRequest where this process can't send outlets of the kind at all."""
        if self.lacking:
            raise BadRequest(self.lacking, hint=self.mended_by)

    def told(self, stored: S) -> dict[str, Any]:
        """What the audit log has of one."""
        raise NotImplementedError

    # -- making and changing -----------------------------------------------------------------------

    async def make(
        self, caller: AuditedCaller, spec: OutletSpec, start: Any, new: Callable[[int], S]
    ) -> tuple[DocumentPlace, S, bool]:
        """Make an outlet and its group: (where it is, what is stored, whether it is new). ``new``: makes what
        is stored, at a moment. One that is there with the same options stays as it is."""
        place = self.place(spec.topic, spec.name)
        topic = self._broker.table.topic_for(
            spec.topic, who=caller.subject, enter=topic_made(caller, spec.topic)
        )
        if topic.spec.delivery == "at-most-once":
            raise BadRequest(
                f"the queue {topic.name} settles a message when it is handed out, before anybody has got it",
                hint="create the queue with delivery at-least-once",
            )
        stored = new(self._broker.clock())
        async with self._making:
            if await self._documents.read(place) is None:
                await self._check_room(caller)
                stored = await self.prepare(caller, stored)
                await self._make_group(caller, stored, start)
                edits = [_edit(place, stored, ""), _edit(self.state_place(place), OutletState(), "")]
                try:
                    await self.commit(caller, place, edits, "created", None, stored)
                except DocumentExists:
                    pass
                else:
                    return place, stored, True
        _, found = await self.read(place)
        if (found.spec, found.owner) != (spec, caller.subject):
            raise self.exists(
                f"the {self.noun} {spec.name} of {spec.topic} exists with other options: "
                f"{differences(found.spec, spec) or f'its owner is {found.owner}'}"
            )
        caller.change_nothing()
        if not self.has_group(found):
            await self.prepare(caller, found)
            await self._make_group(caller, found, start)
        return place, found, False

    async def _check_room(self, caller: TokenBearer) -> None:
        counts = await count_by_owner(self._documents, self.collection)
        what = f"of the kind {self.noun}"
        self._broker.shares.check(self.limit, what, counts.total(), lambda: counts[caller.subject], caller)

    async def _make_group(self, caller: AuditedCaller, stored: S, start: Any) -> None:
        spec = stored.spec
        wanted = table.GroupCreate(
            stored.reads,
            self.group_name(spec.name),
            discipline="fifo",
            ack_within=self.ack_within(spec),
            max_attempts=MAX_ATTEMPTS,
            match=spec.match,
            start="latest" if start is None else start,
        )
        await self._groups.create(caller, wanted)

    async def follow(self, caller: AuditedCaller, place: DocumentPlace, changed: S) -> None:
        """Give the group what the options of its outlet say now."""
        if not self.has_group(changed):
            return
        found, spec = self.group(changed).spec, changed.spec
        ack_within = self.ack_within(spec)
        if (found.match, found.ack_within) != (spec.match, ack_within):
            options = table.GroupOptions(
                changed.reads, self.group_name(place.key), match=spec.match, ack_within=ack_within
            )
            await self._groups.update(caller, options)

    async def pause_one(self, caller: AuditedCaller, request: table.OutletPause) -> tuple[DocumentPlace, S]:
        """Let nothing be sent."""
        now, note = self._broker.clock(), request.note
        if len(note) > LONGEST_NOTE:
            raise BadRequest(f"a note of {len(note)} characters, allowed are {LONGEST_NOTE}")
        return await self.change(
            caller,
            request.topic,
            request.name,
            lambda stored: replace(stored, paused_at=now, paused_by=caller.subject, note=note),
            "paused",
        )

    async def resume_one(self, caller: AuditedCaller, request: table.OfOutlet) -> tuple[DocumentPlace, S]:
        """Let one that is paused or disabled go on."""
        now = self._broker.clock()

        def work(stored: S) -> S:
            # Never the same moment twice, also if somebody has set the clock back.
            resumed_at = max(now, stored.resumed_at + 1)
            return replace(stored, paused_at=0, paused_by="", note="", resumed_at=resumed_at)

        return await self.change(caller, request.topic, request.name, work, "resumed")

    async def replay(self, caller: AuditedCaller, request: table.OutletReplay) -> table.OutletReplayed:
        by_offset = request.first is not None
        if (
            by_offset == (request.begin is not None)
            or (request.until if by_offset else request.end) is not None
        ):
            raise BadRequest(
                "a replay has a first offset, or a moment to begin with",
                hint="give first (--first), or begin (--from)",
            )
        place = self.place(request.topic, request.name)
        _, stored = await self.read(place)
        self.check_may_change(caller, stored)
        group = self.group(stored)
        topic = self._broker.table.topic(stored.reads)
        if by_offset:
            first, end = request.first or 0, topic.log.end if request.end is None else request.end
        else:
            first = await self._broker.table.position(topic, request.begin)
            end = topic.log.end
            if request.until is not None:
                end = await self._broker.table.position(topic, request.until)
        if first < topic.log.first:
            raise OffsetGone(f"offset {first} of {topic.name} is gone, the oldest is {topic.log.first}")
        messages = group.replay(first, end) if first < end else 0
        after = {"first": first, "end": end, "messages": messages}
        group.owe_entry(partial(caller.enter, name=_path(place), after=after))
        await save_group(group)
        self._broker.observe(self.noun, _path(place), "replayed", caller.subject, after=after)
        return table.OutletReplayed(messages=messages)

    async def delete(self, caller: AuditedCaller, request: table.OfOutlet) -> table.Deleted:
        place = self.place(request.topic, request.name)
        for _ in range(TRIES):
            version: str | None = None
            stored: S | None = None
            try:
                version, stored = await self.read(place)
            except StoreCorrupt:
                caller.scopes.demand_rank("operate", f"delete a damaged {self.noun}")
            else:
                self.check_may_change(caller, stored)
            edits = [Edit(place, None, version)]
            try:
                has_state = await self._documents.read(self.state_place(place)) is not None
            except StoreCorrupt:
                has_state = True  # it goes all the same
            if has_state:
                edits.append(Edit(self.state_place(place), None, None))
            try:
                await self.commit(caller, place, edits, "deleted", stored)
                break
            except DocumentChanged:
                continue
        else:
            raise self._busy(place)
        # The documents first: without them nobody reads the group, and so nobody makes it anew.
        try:
            reads = place.topic if stored is None else stored.reads
            group = self._broker.table.group(reads, self.group_name(place.key))
            name = f"{group.topic.name}/{group.name}"
            enter = partial(caller.enter, name=name, before=group.spec, what="group")
            await self._broker.table.delete_group(group, caller.subject, enter)
        except (UnknownGroup, UnknownTopic):
            pass
        return table.Deleted(deleted=_path(place))

    # -- testing -----------------------------------------------------------------------------------

    async def test(self, caller: AuditedCaller, request: table.OutletTry) -> table.OutletTested:
        self.check_lacks_nothing()
        if not 0 <= request.within <= LONGEST_TEST:
            raise BadRequest(f"within is 0 to {LONGEST_TEST:.0f} seconds, not {request.within:g}")
        now = self._broker.clock()
        id = f"test-{os.urandom(12).hex()}"

        def work(stored: S) -> S:
            at = max(now, stored.tests[-1].at + 1) if stored.tests else now
            return replace(stored, tests=(*stored.tests, OutletProbe(id, at))[-core.MOST_TESTS :])

        place, _ = await self.change(caller, request.topic, request.name, work, "tested")
        loop = asyncio.get_running_loop()
        end, after = loop.time() + request.within, ""
        while True:
            _, after, _ = await self._documents.wait(
                self.states, place.topic, after, max(0.0, end - loop.time())
            )
            state = await self.read_state(place)
            for attempt in state.recent:
                if attempt.id == id:
                    return table.OutletTested(id=id, attempt=attempt)
            if loop.time() >= end:
                return table.OutletTested(id=id, attempt=None)

    # -- showing -----------------------------------------------------------------------------------

    async def page(
        self, caller: TokenBearer, request: table.OutletList
    ) -> tuple[list[tuple[DocumentPlace, S]], str]:
        """Some of those that the caller may see, and where the next page begins."""
        if request.topic is not None:
            one, more = await self._documents.find(self.collection, request.topic, "", request.after, PAGE)
            found = [(DocumentPlace(self.collection, request.topic, key), each) for key, each in one]
            after = found[-1][0].key if more else ""
        else:
            found, more = await self._documents.find_anywhere(self.collection, request.after, PAGE)
            after = f"{found[-1][0].topic}/{found[-1][0].key}" if more else ""
        seen = [each for each in found if may_see(self._broker.topics, caller, each[0].topic)]
        return [(place, self._decode(place, document.value)) for place, document in seen], after

    async def facts(self, place: DocumentPlace, stored: S) -> dict[str, Any]:
        """The fields of ``OutletRow``."""
        state = core.take_up(stored, await self.read_state(place))
        try:
            group = self.group(stored)
            lag = group.catch_up().cursor.lag(group.topic.log.end)
        except (UnknownGroup, UnknownTopic):
            lag = None
        is_disabled = core.is_disabled(stored, state)
        return {
            "topic": place.topic,
            "name": place.key,
            "owner": stored.owner,
            "state": "paused" if stored.paused_at else "disabled" if is_disabled else "active",
            "circuit": core.circuit(state, self._broker.clock()),
            "lag": lag,
            "delivered": state.delivered,
            "failed": state.failed,
            "buried": state.buried,
            "last_success_at": state.last_success_at or None,
            "trouble": self.trouble(stored, state),
        }

    async def details(
        self, caller: TokenBearer, place: DocumentPlace
    ) -> tuple[S, OutletState, dict[str, Any]]:
        """What is stored, and the fields of ``OutletDetails``, to its owner or an observer."""
        _, stored = await self.read(place)
        if caller.subject != stored.owner:  # the start of an answer is nothing for every reader of the topic
            caller.scopes.demand_rank("observe", f"see the {self.noun} of {stored.owner}")
        state, now = await self.read_state(place), self._broker.clock()
        is_open = core.circuit(state, now) == "open"
        more = {
            "group": self.group_name(place.key),
            "created_at": stored.created_at,
            "failing_since": state.failing_since or None,
            "blocked_until": state.blocked_until if is_open else None,
            "disabled_why": state.disabled_why if core.is_disabled(stored, state) else "",
            "paused_at": stored.paused_at or None,
            "paused_by": stored.paused_by,
            "note": stored.note,
            "attempts": list(reversed(state.recent)),
        }
        return stored, state, await self.facts(place, stored) | more

    # -- documents and the group -------------------------------------------------------------------

    def place(self, topic: str, name: str) -> DocumentPlace:
        """Where the document of one is."""
        return check_place(self.collection, topic, name)

    def state_place(self, place: DocumentPlace) -> DocumentPlace:
        """Where its sender writes."""
        return place._replace(collection=self.states)

    def group(self, stored: S) -> Group:
        """Its group. UnknownGroup where somebody has deleted it."""
        return self._broker.table.group(stored.reads, self.group_name(stored.spec.name))

    def has_group(self, stored: S) -> bool:
        """Whether it is there: somebody may have deleted it, or the rule with its topic."""
        try:
            self.group(stored)
        except (UnknownGroup, UnknownTopic):
            return False
        return True

    async def read(self, place: DocumentPlace) -> tuple[str, S]:
        """(version, what is stored)"""
        found = await self._documents.read(place)
        if found is None:
            raise self.unknown(f"the topic {place.topic} has no {self.noun} {place.key}")
        return found.version, self._decode(place, found.value)

    async def read_state(self, place: DocumentPlace) -> OutletState:
        """What its sender knows."""
        found = await self._documents.read(self.state_place(place))
        if found is None:
            return OutletState()
        try:
            return read_options(decode_value(found.value), OutletState, self.noun)
        except BadRequest as error:
            raise self._damaged(place, error) from None

    async def commit(
        self,
        caller: AuditedCaller,
        place: DocumentPlace,
        edits: list[Edit],
        change: str,
        before: S | None = None,
        after: S | None = None,
    ) -> None:
        """Write documents, with the entry of the audit log."""
        writer = self._broker.units.writers[self._documents.unit_of(place.topic)]
        told = [None if each is None else self.told(each) for each in (before, after)]

        def work(commit: BrokerCommit) -> None:
            self._documents.write(commit, edits, caller.subject)
            caller.enter(commit, _path(place), *told)

        await writer.put(work)
        self._broker.observe(self.noun, _path(place), change, caller.subject)

    async def change(
        self, caller: AuditedCaller, topic: str, name: str, work: Callable[[S], S], change: str = "updated"
    ) -> tuple[DocumentPlace, S]:
        """Write what ``work`` makes of one."""
        place = self.place(topic, name)
        for _ in range(TRIES):
            version, stored = await self.read(place)
            self.check_may_change(caller, stored)
            changed = work(stored)
            try:
                await self.commit(caller, place, [_edit(place, changed, version)], change, stored, changed)
            except DocumentChanged:
                continue
            return place, changed
        raise self._busy(place)

    def check_may_change(self, caller: TokenBearer, stored: S) -> None:
        """Forbidden for others than its owner and operators."""
        if caller.subject != stored.owner and not caller.scopes.has("operate"):
            raise Forbidden(
                f"the {self.noun} {stored.spec.name} of {stored.spec.topic} is {stored.owner}'s",
                hint="its owner or an operator can change it",
            )

    def _busy(self, place: DocumentPlace) -> DocumentChanged:
        return DocumentChanged(f"the {self.noun} {place.key} is written by others all the time")

    def _decode(self, place: DocumentPlace, value: bytes) -> S:
        try:
            return read_options(decode_value(value), self.kind, self.noun)
        except BadRequest as error:
            raise self._damaged(place, error) from None

    def _damaged(self, place: DocumentPlace, error: BadRequest) -> StoreCorrupt:
        return StoreCorrupt(
            f"what is stored of the {self.noun} {place.key} of {place.topic} can't be read: {error}",
            hint=f"delete the {self.noun} and create it again",
        )


def _path(place: DocumentPlace) -> str:
    return f"{place.topic}/{place.key}"


def _edit(place: DocumentPlace, value: StoredOutlet | OutletState, expect: str) -> Edit:
    return Edit(place, encode_value(msgspec.to_builtins(value)), expect)
