"""A parcel: what travels between terminals. Outside, readable by everyone on the way: from, to, route.
Inside, sealed: the messages, or a control message between the two ends.

    shipment   messages of one topic, for some groups at one destination; kept by someone at every moment
    control    an end's word to the other: arrived, withdraw, ask, … ; may get lost, and is then said again
    returned   a shipment that a hop could not carry any further, on its way back to the source
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeAlias

import msgspec

from landbridge.core.log.batch import Batch, Buffer
from landbridge.core.log.ranges import Range, count
from landbridge.errors import BadFrame

#: Hops that a parcel may make in all, reroutes included.
TTL = 16
#: How often a parcel may be sent another way by terminals in transit.
MAX_REROUTES = 3


class Kind(IntEnum):
    SHIPMENT = 0
    CONTROL = 1
    RETURNED = 2


class Parcel(msgspec.Struct, array_like=True, frozen=True):
    """The outside."""

    id: bytes
    kind: int
    source: str
    destination: str
    ttl: int
    #: Who has had it, oldest first; the last one has sent it here.
    visited: list[str]
    #: Hops still to go, the destination last.
    route: list[str]
    reroutes: int = 0


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Messages of one batch, with their offsets in the source's log."""

    runs: list[Range]
    newest_first: bool
    size: int  #: bytes of the encoded batch


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """What a shipment says of itself, under seal."""

    #: Which life of the topic's log the offsets are of: when the source made the topic, microseconds.
    incarnation: int
    #: Group → below this offset the source has nothing for it any more.
    groups: dict[str, int]
    pieces: list[Piece]
    #: The sequence number below which everything has arrived, as the source knows: for a destination that has
    #: lost its memory.
    oldest: int
    #: The run of the source, which each of its starts makes anew; 0 = not told. And the runs that have
    #: changed the topic's log, see ``history.py``; only the last one where the destination knows it already.
    run: int = 0
    history: list[tuple[int, int]] = []
    #: The run of the destination that the source has compared its confirmations with: only then the floors of
    #: the groups count. 0 = none.
    compared: int = 0


# -- control messages ---------------------------------------------------------------------------------


class Stream(msgspec.Struct, array_like=True, frozen=True):
    """One topic's way from one source to one destination: shipments are numbered 1, 2, 3, … in each epoch."""

    topic: str
    incarnation: int
    epoch: int


class Arrived(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """These are in the destination's log. Ends the source's duty to keep them."""

    stream: Stream
    sequences: list[int]
    #: The run of the destination; 0 = not told.
    run: int = 0


class Stuck(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """A shipment is at its destination and can't be opened. "ticket_expired": seal it again with a new
    ticket; "ticket_dead": the topic wants no late messages opened at all."""

    stream: Stream
    sequence: int
    code: str


class Missing(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """Later ones are here, these are not: whoever kept them may be gone. Send them again, another way."""

    stream: Stream
    sequences: list[int]


class Withdraw(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The source gives these to another terminal: take back what isn't in a consumer's hands yet. What is
    still on the way needs no word: the source has begun a new epoch, and the old one is stale."""

    topic: str
    incarnation: int
    group: str
    runs: list[Range]
    #: The new epoch. If something for the group has come in it, the source has changed its mind again, and
    #: this word is late.
    epoch: int


class Withdrawn(msgspec.Struct, array_like=True, frozen=True, tag=4):
    topic: str
    incarnation: int
    group: str
    #: What had arrived and was too late to take back: it will be seen twice.
    late: list[Range]


class Ask(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """What has become of this message in this group? ``when_settled``: say so when it is settled, not
    before."""

    topic: str
    incarnation: int
    group: str
    offset: int
    when_settled: bool


class Tell(msgspec.Struct, array_like=True, frozen=True, tag=6):
    ask: Ask
    state: str  #: "missing", "waiting", "leased", "settled"
    via: list[str]  #: the terminals that have had it on its way, where that is still known
    arrived_at: int  #: microseconds; 0 = not known


class Compare(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """What of this group's messages do you have? The destination was restarted, and may have been restored
    from a backup. ``run`` and ``history`` are those of a manifest."""

    topic: str
    incarnation: int
    group: str
    run: int
    history: tuple[tuple[int, int], ...]


class Have(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """Everything below ``floor`` has arrived, or is not meant for the group, and so have these runs."""

    compare: Compare
    #: The run of the destination.
    run: int
    floor: int
    runs: list[Range]


class EpochOver(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """A shipment's epoch is earlier than one that has come before: begin a later one. Either the shipment is
    late, or its source was restored from a backup and its clock set back."""

    stream: Stream
    #: The latest epoch that is known here.
    latest: int


Control: TypeAlias = (
    Arrived | Stuck | Missing | Withdraw | Withdrawn | Ask | Tell | Compare | Have | EpochOver
)


def _decoder(kind: Any, what: str) -> Callable[[Buffer], Any]:
    decode = msgspec.msgpack.Decoder(kind).decode

    def decode_or_refuse(data: Buffer) -> Any:
        try:
            return decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadFrame(f"{what} that doesn't decode: {error}") from None

    return decode_or_refuse


encode_parcel: Callable[[Parcel], bytes] = msgspec.msgpack.Encoder().encode
encode_manifest: Callable[[Manifest], bytes] = msgspec.msgpack.Encoder().encode
encode_control: Callable[[Control], bytes] = msgspec.msgpack.Encoder().encode

#: They raise BadFrame for anything else.
decode_parcel: Callable[[Buffer], Parcel] = _decoder(Parcel, "a parcel")
decode_manifest: Callable[[Buffer], Manifest] = _decoder(Manifest, "a manifest")
decode_control: Callable[[Buffer], Control] = _decoder(Control, "a control message")


def unpack(manifest: Manifest, plaintext: Buffer) -> list[tuple[Piece, Batch]]:
    """The batches of a shipment, checked against its manifest."""
    view = memoryview(plaintext)
    at = 0
    found: list[tuple[Piece, Batch]] = []
    for piece in manifest.pieces:
        if piece.size < 0 or at + piece.size > len(view):
            raise BadFrame("a shipment whose pieces go beyond its end")
        batch = Batch.decode(view[at : at + piece.size])
        batch.validate()
        if any(first < 0 or end <= first for first, end in piece.runs) or count(piece.runs) != len(batch):
            raise BadFrame("a shipment whose offsets don't match its messages")
        found.append((piece, batch))
        at += piece.size
    if at != len(view):
        raise BadFrame(f"a shipment with {len(view) - at} bytes too many")
    return found
