"""Documents: small values of programs and gateways, kept under a name and changed by compared version.

A document belongs to a collection and lives with a topic, in the topic's unit of the store, or in unit 0
where no topic is given. So it can be written in one commit with messages of that topic and with acks of its
groups: a schedule moves its last firing and publishes, a gateway moves its state and acks.

Every write gives a document a version that no other write of the store ever had or will have: it is made of
the unit's epoch, which is on disk and grows with each start, and a counter. Versions are compared for
equality only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.damage import decoded
from landbridge.core.log.store import DeleteDocument, PutDocument, Store
from landbridge.core.names import check_name
from landbridge.errors import (
    BadRequest,
    DocumentChanged,
    DocumentExists,
    StoreCorrupt,
    TooLarge,
    UnknownDocument,
)
from landbridge.stores.writer import NotLoaded

KIND = "document"
#: Characters of a document's key.
LONGEST_KEY = 512
#: Bytes of a document's value, and of all values in one answer: both travel in the head of a frame.
LARGEST = 256 << 10
PAGE_BYTES = 512 << 10
#: Versions kept in memory; the others are read when their document is written again.
KNOWN = 10_000
#: Changes that a watcher may be behind before it has to list the collection again.
CHANGES = 4_096
#: Collections whose changes are kept.
WATCHED = 1_000
#: The version of a document that an earlier edit of the same transaction has written.
DAMAGED = "damaged"  #: the version of a document that doesn't decode
#: In the place of a topic: a collection with whichever topic its documents live.
ANYWHERE = "*"
_WRITTEN = "\N{RIGHTWARDS ARROW}"


class DocumentPlace(NamedTuple):
    """Where a document is. ``topic`` is empty where it lives with no topic."""

    collection: str
    topic: str
    key: str

    @property
    def path(self) -> str:
        """Its key in the store. The line break at its end keeps it from being the beginning of another."""
        return f"{self.collection}/{self.topic}/{self.key}\n"


def check_place(collection: str, topic: str, key: str) -> DocumentPlace:
    """BadName or BadRequest for a place that can't be."""
    check_name(collection, "collection")
    if topic:
        check_name(topic, "topic")
    if not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        raise BadRequest(
            f"a document's key of {len(key)} characters",
            hint=f"1 to {LONGEST_KEY} printable characters",
        )
    return DocumentPlace(collection, topic, key)


class StoredDocument(msgspec.Struct, frozen=True, array_like=True):
    version: str
    written_at: int  #: microseconds since 1970
    written_by: str  #: the subject
    value: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredDocument).decode


def _read(collection: str, key: str, raw: bytes) -> StoredDocument:
    hint = "delete the document, or restore a backup; the others can be read one by one"
    return decoded(f"the document {collection}/{key}", _decode, raw, hint)


class Edit(NamedTuple):
    """One write of a document."""

    place: DocumentPlace
    value: bytes | None  #: None deletes it
    #: The version that it must have: None for any, "" for none (it must be new).
    expect: str | None


class VersionChange(NamedTuple):
    """What a watcher hears."""

    number: int
    key: str
    version: str | None  #: None: it was deleted
    topic: str


class Documents:
    """The documents of a terminal."""

    def __init__(
        self,
        store: Store,
        unit_of: Callable[[str], int],
        note_damaged: Callable[[str, StoreCorrupt], None] = lambda topic, error: None,
    ) -> None:
        """``note_damaged``: called once for each document that is left out because it can't be read."""
        self._store = store
        self._note_damaged = note_damaged
        #: Those that were noted.
        self._damaged: set[DocumentPlace] = set()
        self._unit_of = unit_of  #: the unit that a topic lives in
        self._epochs: dict[int, int] = {}
        self._counter = 0
        #: DocumentPlace → the version on disk, or None where there is no such document.
        self._versions: OrderedDict[DocumentPlace, str | None] = OrderedDict()
        #: (collection, topic) → its last changes, of the collections that were watched last; and the number
        #: of the last change of all when they began to be kept.
        self._changes: OrderedDict[tuple[str, str], tuple[deque[VersionChange], int]] = OrderedDict()
        self._changed = 0  #: number of the last change since the start
        #: Number of the terminal's start. With it, a change is never taken for one of another start.
        self.start = 0
        self._watchers: dict[tuple[str, str], list[asyncio.Future[None]]] = {}

    def claimed(self, unit: int, epoch: int) -> None:
        """The terminal owns a unit from now on."""
        self._epochs[unit] = epoch

    def released(self, unit: int) -> None:
        """The terminal owns it no longer."""
        self._epochs.pop(unit, None)

    def begin_anew(self, start: int) -> None:
        """Documents have come or gone with a unit: whoever watches is told to list them again."""
        self.start = start
        self._changes.clear()
        self._versions.clear()
        watching, self._watchers = self._watchers, {}
        for watchers in watching.values():
            for watcher in watchers:
                if not watcher.done():
                    watcher.set_result(None)

    @property
    def epoch(self) -> int:
        """The greatest epoch that the terminal owns a unit under."""
        return max(self._epochs.values(), default=0)

    def unit_of(self, topic: str) -> int:
        return self._unit_of(topic) if topic else 0

    # -- writing -----------------------------------------------------------------------------------

    def check(self, commit: BrokerCommit, edits: list[Edit]) -> None:
        """DocumentExists, DocumentChanged or UnknownDocument where an edit finds another version than it
        expects. NotLoaded where a version has to be read first. StoreFull where there is no room for a value;
        documents can always be deleted."""
        if any(edit.value is not None for edit in edits):
            commit.need_room()
        missing = [edit.place for edit in edits if not self._knows(commit, edit.place)]
        if missing:
            raise NotLoaded(partial(self._load, missing))
        done: dict[DocumentPlace, str | None] = {}
        for edit in edits:
            place = edit.place
            _compare(edit, done[place] if place in done else self._version(commit, place))
            done[place] = None if edit.value is None else _WRITTEN

    def write(self, commit: BrokerCommit, edits: list[Edit], subject: str) -> list[str | None]:
        """Check these edits and do them in a commit. Returns the new versions, None for what is deleted."""
        self.check(commit, edits)
        versions: list[str | None] = []
        for edit in edits:
            version = None
            if edit.value is None:
                commit.writes.append(DeleteDocument(KIND, edit.place.path))
            else:
                self._counter += 1
                version = f"{self._epochs[commit.unit]:x}-{self._counter:x}"
                stored = StoredDocument(version, commit.now, subject, edit.value)
                commit.writes.append(PutDocument(KIND, edit.place.path, _encode(stored)))
                commit.size += len(edit.value)
            commit.documents[edit.place] = version
            commit.on_stored.append(partial(self._on_written, edit.place, version))
            versions.append(version)
        return versions

    def _version(self, commit: BrokerCommit, place: DocumentPlace) -> str | None:
        return commit.documents[place] if place in commit.documents else self._versions[place]

    def _knows(self, commit: BrokerCommit, place: DocumentPlace) -> bool:
        return place in commit.documents or place in self._versions

    async def _load(self, places: list[DocumentPlace]) -> None:
        for place in places:
            try:
                found = await self.read(place)
                version = None if found is None else found.version
            except StoreCorrupt:
                version = DAMAGED  # it can be deleted, by whoever expects no version
            self._versions[place] = version
            self._versions.move_to_end(place)
        while len(self._versions) > KNOWN:
            self._versions.popitem(last=False)

    def _on_written(self, place: DocumentPlace, version: str | None) -> None:
        self._versions[place] = version
        self._versions.move_to_end(place)
        self._changed += 1
        for where in ((place.collection, place.topic), (place.collection, ANYWHERE)):
            if where in self._changes:
                change = VersionChange(self._changed, place.key, version, place.topic)
                self._changes[where][0].append(change)
            for watcher in self._watchers.pop(where, ()):
                if not watcher.done():
                    watcher.set_result(None)

    # -- reading -----------------------------------------------------------------------------------

    async def read(self, place: DocumentPlace) -> StoredDocument | None:
        for _, raw in await self._store.documents(self.unit_of(place.topic), KIND, place.path):
            return _read(place.collection, place.key, raw)
        return None

    async def find(
        self, collection: str, topic: str, prefix: str, after: str, most: int, *, leave_out: bool = False
    ) -> tuple[list[tuple[str, StoredDocument]], bool]:
        """Documents whose key begins with ``prefix``, by key, beginning behind ``after``: as many as are
        asked for, or fewer where they are large. And whether there are more. One that can't be read raises
        StoreCorrupt; with ``leave_out``, it is noted and left out."""
        begin = f"{collection}/{topic}/"
        found: list[tuple[str, StoredDocument]] = []
        room = PAGE_BYTES
        for path, raw in await self._store.documents(self.unit_of(topic), KIND, begin + prefix):
            key = path.removeprefix(begin).removesuffix("\n")
            if key <= after:
                continue
            if len(found) >= most or room <= 0:
                return found, True
            document = self._readable(DocumentPlace(collection, topic, key), raw, leave_out=leave_out)
            if document is not None:
                found.append((key, document))
                room -= len(raw)
        return found, False

    def _readable(self, place: DocumentPlace, raw: bytes, *, leave_out: bool) -> StoredDocument | None:
        try:
            return _read(place.collection, place.key, raw)
        except StoreCorrupt as error:
            if not leave_out:
                raise
            if place not in self._damaged:
                self._damaged.add(place)
                self._note_damaged(place.topic, error)
            return None

    async def find_anywhere(
        self, collection: str, after: str, most: int
    ) -> tuple[list[tuple[DocumentPlace, StoredDocument]], bool]:
        """Documents of a collection wherever they live, by topic and key, beginning behind TOPIC/KEY. And
        whether there are more. One that can't be read is noted and left out: what is damaged of one topic
        must not stop the webhooks, feeds and schedules of all others."""
        begin = f"{collection}/"
        rows: list[tuple[tuple[str, str], bytes]] = []
        last = tuple(after.split("/", 1)) if after else ("", "")
        for unit in sorted(self._epochs):
            for path, raw in await self._store.documents(unit, KIND, begin):
                topic, _, key = path.removeprefix(begin).removesuffix("\n").partition("/")
                if (topic, key) > last:
                    rows.append(((topic, key), raw))
        rows.sort(key=lambda row: row[0])
        found: list[tuple[DocumentPlace, StoredDocument]] = []
        room = PAGE_BYTES
        for (topic, key), raw in rows:
            if len(found) >= most or room <= 0:
                return found, True
            place = DocumentPlace(collection, topic, key)
            document = self._readable(place, raw, leave_out=True)
            if document is not None:
                found.append((place, document))
                room -= len(raw)
        return found, False

    async def wait(
        self, collection: str, topic: str, after: str, within: float
    ) -> tuple[list[VersionChange], str, bool]:
        """The changes of a collection (with ANYWHERE: of all its topics) behind ``after``, at once or when
        there is one, or none after ``within`` seconds; where to go on; and whether changes are missing, so
        that the caller has to list the collection again. An empty ``after`` begins to watch: every change
        from now on is kept."""
        where = collection, topic
        if where not in self._changes:
            self._changes[where] = deque(maxlen=CHANGES), self._changed
            if len(self._changes) > WATCHED:
                self._changes.popitem(last=False)
            return [], self._now, True
        self._changes.move_to_end(where)
        changes, begun = self._changes[where]
        start, _, number = after.partition("-")
        if start != str(self.start) or not number.isdecimal() or len(number) > 20:
            return [], self._now, True
        seen = int(number)
        if seen < begun or (len(changes) == CHANGES and changes[0].number > seen + 1):
            return [], self._now, True
        if not any(change.number > seen for change in changes):
            await self._next_change(where, within)
            if where not in self._changes:
                return [], "", False  # everything begins anew, and the next call says so
        return [change for change in changes if change.number > seen], self._now, False

    @property
    def _now(self) -> str:
        """Names the last change."""
        return f"{self.start}-{self._changed}"

    async def _next_change(self, where: tuple[str, str], within: float) -> None:
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.setdefault(where, []).append(watcher)
        try:
            await asyncio.wait([watcher], timeout=within)
        finally:
            watchers = self._watchers.get(where, [])
            if watcher in watchers:
                watchers.remove(watcher)


def encode_value(value: object) -> bytes:
    """A JSON value as it is stored. TooLarge where it is above the limit."""
    return check_value(msgspec.msgpack.encode(value))


decode_value = msgspec.msgpack.decode


def check_value(value: bytes) -> bytes:
    """TooLarge for an encoded value above the limit, BadRequest for what is no JSON value in MessagePack."""
    if len(value) > LARGEST:
        raise TooLarge(f"a document of {len(value)} bytes, allowed are {LARGEST}")
    try:
        found = msgspec.msgpack.decode(value)
        is_json = msgspec.json.decode(msgspec.json.encode(found)) == found
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        is_json = False
    if not is_json:
        raise BadRequest("a document that is no JSON value", hint="texts, numbers, lists, objects by text")
    return value


def _compare(edit: Edit, version: str | None) -> None:
    place, expect = edit.place, edit.expect
    name = f"{place.collection}/{place.key}"
    if expect == "" and version is not None:
        raise DocumentExists(f"there is a document {name} already", hint="update it by its version")
    if (expect and version is None) or (edit.value is None and version is None):
        raise UnknownDocument(f"there is no document {name}")
    if expect and version != expect:
        raise DocumentChanged(
            f"the document {name} has version {version}, not {expect}", hint="read it again, then decide anew"
        )
