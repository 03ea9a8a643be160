"""Operations on documents."""

from __future__ import annotations

from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.documents import (
    ANYWHERE,
    DocumentPlace,
    Edit,
    StoredDocument,
    check_place,
    decode_value,
    encode_value,
)
from landbridge.broker.operations.dispatcher import PAGE, Dispatcher
from landbridge.core.names import check_name
from landbridge.errors import BadRequest, UnknownDocument
from landbridge.protocol import operations as table

#: Seconds that document.wait waits at most.
LONGEST_WAIT = 60.0


class DocumentOperations:
    """The handlers of document.*"""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._documents = broker.documents

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.DOCUMENT_CREATE, self.create)
        dispatcher.register(table.DOCUMENT_READ, self.read)
        dispatcher.register(table.DOCUMENT_UPDATE, self.update)
        dispatcher.register(table.DOCUMENT_DELETE, self.delete)
        dispatcher.register(table.DOCUMENT_LIST, self.list_page)
        dispatcher.register(table.DOCUMENT_WAIT, self.wait)

    async def _write(
        self, caller: TokenBearer, place: DocumentPlace, value: bytes | None, expect: str | None
    ) -> str:
        """Returns the new version; empty where the document is deleted."""
        writer = self._broker.units.writers[self._documents.unit_of(place.topic)]
        edits = [Edit(place, value, expect)]
        versions = await writer.put(lambda commit: self._documents.write(commit, edits, caller.subject))
        return versions[0] or ""

    async def create(self, caller: TokenBearer, request: table.DocumentCreate) -> table.DocumentWritten:
        place = check_place(request.collection, request.topic, request.key)
        version = await self._write(caller, place, encode_value(request.value), "")
        return table.DocumentWritten(version=version)

    async def read(self, caller: TokenBearer, request: table.OfDocument) -> table.Document:
        place = check_place(request.collection, request.topic, request.key)
        found = await self._documents.read(place)
        if found is None:
            raise UnknownDocument(f"there is no document {place.collection}/{place.key}")
        return _describe(place.key, found, place.topic)

    async def update(self, caller: TokenBearer, request: table.DocumentUpdate) -> table.DocumentWritten:
        place = check_place(request.collection, request.topic, request.key)
        if not request.version:
            raise BadRequest("an update names the version that it replaces", hint="read the document first")
        version = await self._write(caller, place, encode_value(request.value), request.version)
        return table.DocumentWritten(version=version)

    async def delete(self, caller: TokenBearer, request: table.DocumentDelete) -> table.Deleted:
        place = check_place(request.collection, request.topic, request.key)
        await self._write(caller, place, None, request.version)
        return table.Deleted(deleted=f"{place.collection}/{place.key}")

    async def list_page(self, caller: TokenBearer, request: table.DocumentList) -> table.DocumentRows:
        collection = check_name(request.collection, "collection")
        most = max(1, min(request.limit, PAGE))
        if request.topic == ANYWHERE:
            if request.prefix:
                raise BadRequest(
                    "a prefix is of the documents that live with one topic", hint="name the topic"
                )
            places, more = await self._documents.find_anywhere(collection, request.after, most)
            rows = [_describe(place.key, document, place.topic) for place, document in places]
            return table.DocumentRows(documents=rows, next=f"{rows[-1].topic}/{rows[-1].key}" if more else "")
        found, more = await self._documents.find(
            collection, request.topic, request.prefix, request.after, most
        )
        rows = [_describe(key, document, request.topic) for key, document in found]
        return table.DocumentRows(documents=rows, next=rows[-1].key if more else "")

    async def wait(self, caller: TokenBearer, request: table.DocumentWait) -> table.DocumentChanges:
        collection = check_name(request.collection, "collection")
        if request.topic not in ("", ANYWHERE):  # it is remembered
            check_name(request.topic, "topic")
        within = max(0.0, min(request.within, LONGEST_WAIT))
        changes, after, missed = await self._documents.wait(collection, request.topic, request.after, within)
        rows = [
            table.DocumentChange(key=change.key, version=change.version, topic=change.topic)
            for change in changes
        ]
        return table.DocumentChanges(changes=rows, after=after, missed=missed)


def _describe(key: str, found: StoredDocument, topic: str) -> table.Document:
    return table.Document(
        key=key,
        version=found.version,
        written_at=found.written_at,
        written_by=found.written_by,
        topic=topic,
        value=decode_value(found.value),
    )
