"""Idempotency keys: what a topic remembers of publishes that say by a key of their own which request they
are, and of message ids where those are unique.

A key belongs to a subject and a topic. Its entry is written in the commit that stores the messages, so the
two can't disagree after a crash. The entry lives as long as the log holds the messages, and beyond that
until so many later messages have been removed too: an offset decides, so nothing has to be counted, and a
restart forgets nothing. What was forgotten leaves one number behind: the moment up to which keys may have
been forgotten. An unknown key that tells when it was made (a UUIDv7, a ULID) and is older than that may have
been stored, and is refused as too old. A key that tells no time can't be judged then (ADR 27).
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from array import array

import msgspec

from landbridge.core.log.batch import Batch, Column
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest, KeyReused, TooOld

#: Characters of an idempotency key.
LONGEST = 255
#: A key tells its time only if that is after this moment (the year 2001) and at most a day ahead of the
#: terminal's clock. Anything else that looks like a UUIDv7 or a ULID is taken for a key without a time.
EARLIEST, AHEAD = 1_000_000_000 * SECOND, 86_400 * SECOND
#: Bytes of a hash of a key, an id or a body.
HASH = 16

_CROCKFORD = {c: n for n, c in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}
#: The columns that make a body. Moments are not among them: a client that repeats a request computes them
#: anew.
_BODY = (Column.PAYLOAD, Column.KEY, Column.HEADERS, Column.ID, Column.PRIORITY)


class KeyEntry(msgspec.Struct, array_like=True, frozen=True):
    """What is known of one key, or of one message id."""

    #: Offset of the first message that was stored by it; of a transaction, in the topic of the key.
    first: int
    #: The hash of the body; empty for a message id.
    body: bytes = b""
    #: Id of the batch that was stored: a client that repeats the very same call sends the same one.
    batch: bytes = b""
    #: Of a transaction: the first offset of each of its outputs, -1 for one in another unit of the store.
    outputs: tuple[int, ...] = ()

    def check(self, key: str, body: bytes) -> None:
        """KeyReused where the key was used for another body."""
        if self.body != body:
            raise KeyReused(f"the key {key!r} was used for another body, which is stored at {self.first}")


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(KeyEntry).decode


def _hash(kind: bytes, *parts: bytes) -> bytes:
    found = hashlib.blake2b(digest_size=HASH, person=kind)
    for part in parts:
        found.update(struct.pack("<Q", len(part)))
        found.update(part)
    return found.digest()


def check_key(key: str) -> str:
    """BadRequest for what can't be an idempotency key."""
    if not 0 < len(key) <= LONGEST or not key.isprintable():
        raise BadRequest(
            f"an idempotency key of {len(key)} characters",
            hint=f"1 to {LONGEST} printable characters; best is a UUIDv7",
        )
    return key


def key_name(subject: str, key: str) -> bytes:
    """Under which name the entry of a subject's key is kept."""
    return _hash(b"key", subject.encode(), key.encode())


def id_name(id: bytes) -> bytes:
    """Under which name the entry of a message id is kept."""
    return _hash(b"id", id)


def body_hash(*outputs: tuple[str, Batch]) -> bytes:
    """The hash of what is published: topic, payloads, keys, headers, given ids and priorities of each
    batch."""
    parts: list[bytes] = []
    for topic, batch in outputs:
        parts += [topic.encode(), str(len(batch)).encode()]
        for column in _BODY:
            if batch.has(column):
                parts += [column.name.encode(), *_column(batch, column)]
    return _hash(b"body", *parts)


def _column(batch: Batch, column: Column) -> tuple[bytes, ...]:
    if column is Column.PRIORITY:
        return (batch.priorities() or b"",)
    ends, data = batch.span(column)
    counted = array("i", bytes(ends))
    if counted[0]:  # the ends of a slice don't start at 0
        counted = array("i", (end - counted[0] for end in counted))
    return counted.tobytes(), bytes(data)


def made_at(key: str, now: int) -> int:
    """When a key says that it was made, in microseconds; 0 where it says nothing."""
    moment = _uuid_time(key) or _ulid_time(key)
    return moment if EARLIEST < moment <= now + AHEAD else 0


def _uuid_time(key: str) -> int:
    if len(key) not in (32, 36):
        return 0
    try:
        found = uuid.UUID(key)
    except ValueError:
        return 0
    return (found.int >> 80) * 1000 if found.version == 7 else 0


def _ulid_time(key: str) -> int:
    if len(key) != 26 or any(c not in _CROCKFORD for c in key.upper()):
        return 0
    moment = 0
    for c in key[:10].upper():
        moment = moment << 5 | _CROCKFORD[c]
    return moment * 1000


def check_age(key: str, now: int, forgotten: int, topic: str) -> None:
    """TooOld for an unknown key that may have been forgotten. ``forgotten``: keys of messages that were
    stored up to this moment may have been."""
    moment = made_at(key, now)
    if 0 < moment <= forgotten:
        raise TooOld(
            f"whether {topic} has stored the key {key!r} is no longer known",
            hint="look whether it was stored; if it wasn't, use a fresh key (is the clock right?)",
        )


def kept_from(first: int, kept: int) -> int:
    """Entries of offsets below this are forgotten when the log begins at ``first``. ``kept``: how many
    messages that are gone are remembered."""
    return max(0, first - kept)


def given_ids(batch: Batch) -> list[bytes]:
    """The ids that the producer has given, b"" for a message without one; empty where it gave none at all."""
    return batch.ids() or []


def fresh(ids: list[bytes], known: set[bytes]) -> list[int]:
    """Which messages of a batch are to be stored: those without an id, and the first one of each id that is
    not known. ``ids``: of all messages, as by ``given_ids``."""
    seen = set(known)
    indices: list[int] = []
    for index, id in enumerate(ids):
        if not id or id not in seen:
            indices.append(index)
            seen.add(id)
    return indices
