"""Operations on event types. They write the documents and let the topic's middleware go by them at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.damage import decoded
from landbridge.broker.documents import DocumentPlace, Edit, check_place, check_value
from landbridge.broker.event_types import types_of
from landbridge.broker.group import Enter
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.core.middleware import event_types as core
from landbridge.core.middleware.event_types import COLLECTION, MOST_TYPES, EventType
from landbridge.core.names import is_reserved
from landbridge.errors import (
    BadRequest,
    DocumentChanged,
    DocumentExists,
    LimitReached,
    StoreCorrupt,
    TooLarge,
    UnknownType,
)
from landbridge.protocol import operations as table

#: A type that others change at the same time is read again so often.
TRIES = 20


class EventTypeOperations:
    """The handlers of type.*"""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._documents = broker.documents

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.TYPE_REGISTER, self.register_type)
        dispatcher.register(table.TYPE_LIST, self.list_all)
        dispatcher.register(table.TYPE_SHOW, self.show)
        dispatcher.register(table.TYPE_REMOVE, self.remove)

    async def register_type(self, caller: AuditedCaller, request: table.TypeRegister) -> table.TypeDetails:
        name = core.check_type_name(request.name)
        if is_reserved(request.topic):
            raise BadRequest(f"{request.topic} is the terminal's own")
        topic = self._broker.table.topic_for(request.topic, who=caller.subject)
        now = self._broker.clock()

        wanted = core.TypeRegistration(
            schema=request.schema,
            now=now,
            who=caller.subject,
            description=request.description,
            compatibility=request.compatibility,
        )

        async def change(known: EventType | None) -> EventType:
            if wanted.is_costly:
                return await self._broker.middleware.workshop.checking.register(topic.name, known, wanted)
            return core.register(known, wanted)

        if name not in (known := await types_of(self._documents, topic.name)) and len(known) >= MOST_TYPES:
            raise LimitReached(f"{topic.name} lists {len(known)} event types, as many as it may")
        changed = await self._change(caller, topic.name, name, change)
        assert changed is not None
        return _details(topic.name, name, changed)

    async def _change(
        self,
        caller: AuditedCaller,
        topic: str,
        name: str,
        change: Callable[[EventType | None], Awaitable[EventType | None]],
    ) -> EventType | None:
        """Read a type, change it and write it, again where somebody else was faster. None removes it."""
        place = check_place(COLLECTION, topic, name)
        writer = self._broker.units.writer_for(topic)
        found_topic = self._broker.table.topic(topic)
        for _ in range(TRIES):
            version, known = await self._read(place)
            changed = await change(known)
            if changed == known:
                caller.change_nothing()
                return changed
            value = None if changed is None else core.encode(changed)
            if value is not None:
                try:
                    check_value(value)
                except TooLarge as error:
                    hint = "remove old versions: 'landbridge type remove TOPIC TYPE --version N'"
                    raise TooLarge(
                        f"the schemas of {name}, all versions together: {error}", hint=hint
                    ) from None
            if not found_topic.stored:
                await found_topic.writer.put(found_topic.save)
            edits = [Edit(place, value, version)]
            enter = partial(
                caller.enter, name=f"{topic}/{name}", before=_numbers(known), after=_numbers(changed)
            )
            try:
                await writer.put(partial(self._write, edits, caller.subject, enter))
            except (DocumentChanged, DocumentExists):
                continue
            self._broker.middleware.types_changed(topic)
            verb = "deleted" if changed is None else "updated" if known else "created"
            self._broker.observe(
                "type", f"{topic}/{name}", verb, caller.subject, _numbers(known), _numbers(changed)
            )
            return changed
        raise DocumentChanged(f"the event type {name} of {topic} is changed by others all the time")

    def _write(self, edits: list[Edit], subject: str, enter: Enter, commit: BrokerCommit) -> None:
        self._documents.write(commit, edits, subject)
        enter(commit)

    async def _read(self, place: DocumentPlace) -> tuple[str, EventType | None]:
        stored = await self._documents.read(place)
        if stored is None:
            return "", None
        hint = f"remove it with 'landbridge type remove {place.topic} {place.key}'"
        what = f"the event type {place.key} of {place.topic}"
        return stored.version, decoded(what, core.decode, stored.value, hint)

    async def list_all(self, caller: TokenBearer, request: table.OfTypes) -> table.TypeRows:
        topic = self._broker.table.topic(request.topic).name
        found = await types_of(self._documents, topic)
        return table.TypeRows(types=[_row(topic, name, found[name]) for name in sorted(found)])

    async def show(self, caller: TokenBearer, request: table.OfType) -> table.TypeDetails:
        topic = self._broker.table.topic(request.topic).name
        _, found = await self._read(_place(topic, request.name))
        if found is None:
            raise UnknownType(f"{topic} lists no event type {request.name[:60]!r}")
        return _details(topic, request.name, found)

    async def remove(self, caller: AuditedCaller, request: table.TypeRemove) -> table.Deleted:
        topic, number = self._broker.table.topic(request.topic).name, request.version
        place = _place(topic, request.name)

        async def change(known: EventType | None) -> EventType | None:
            if known is None:
                raise UnknownType(f"{topic} lists no event type {request.name[:60]!r}")
            return None if number is None else core.without(known, number)

        try:
            await self._change(caller, topic, request.name, change)
        except StoreCorrupt:
            if number is not None:
                raise
            edits = [Edit(place, None, None)]
            enter = partial(caller.enter, name=f"{topic}/{request.name}")
            await self._broker.units.writer_for(topic).put(partial(self._write, edits, caller.subject, enter))
            self._broker.middleware.types_changed(topic)
        version = "" if number is None else f"/{number}"
        return table.Deleted(deleted=f"{topic}/{request.name}{version}")


def _place(topic: str, name: str) -> DocumentPlace:
    if not core.is_type_name(name):
        raise UnknownType(f"{topic} lists no event type {name[:60]!r}")
    return check_place(COLLECTION, topic, name)


def _numbers(found: EventType | None) -> dict[str, list[int]] | None:
    """What observers are told of a type: its versions, without the schemas, which may be large."""
    return None if found is None else {"versions": [each.version for each in found.versions]}


def _row(topic: str, name: str, found: EventType) -> table.TypeRow:
    return table.TypeRow(
        topic=topic,
        name=name,
        description=found.description,
        versions=[each.version for each in found.versions],
        schema=found.versions[-1].schema if found.versions else None,
    )


def _details(topic: str, name: str, found: EventType) -> table.TypeDetails:
    return table.TypeDetails(
        topic=topic,
        name=name,
        description=found.description,
        versions=[each.version for each in found.versions],
        schema=found.versions[-1].schema if found.versions else None,
        schemas=[
            table.TypeVersion(
                version=each.version,
                schema=each.schema,
                registered_at=each.registered_at,
                registered_by=each.registered_by,
            )
            for each in found.versions
        ],
    )
