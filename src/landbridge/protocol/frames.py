"""Every frame of the wire.

    u32  length of head and tail together       (little-endian)
    u32  length of the head
    head msgpack: one of the structs below, as an array that starts with its tag
    tail raw bytes: batches, where the frame carries any

The batches travel outside the msgpack so that nobody has to copy or look through them.

``request`` numbers are the asking side's own; an answer repeats them. A request of 0 wants no answer.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

VERSION = 1
#: Bytes of the greatest frame that a side takes which doesn't say how much.
DEFAULT_MAX_FRAME = 16 << 20

Natural = Annotated[int, Meta(ge=0, le=(1 << 62))]
Text = Annotated[str, Meta(max_length=1024)]
#: An idempotency key.
Key = Annotated[str, Meta(max_length=255)]
#: (first, end) of offsets.
Run = tuple[Natural, Natural]


class Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    pass


# -- from the one that dialled ------------------------------------------------------------------------


class Hello(Frame, tag=1, frozen=True):
    version: int
    token: Annotated[str, Meta(max_length=8192)]
    name: Text = ""  #: what the program calls itself, for the status log
    #: What the client takes beyond the first version: a list of texts, "pauses" and "nodes". Of any
    #: type here, so that the hello of another version is read as far as its version.
    features: Any = None


class Publish(Frame, tag=2, frozen=True):
    """Tail: the batch. Answered by Stored once it is on disk, or Refused."""

    request: Natural
    topic: Text
    producer: Annotated[bytes, Meta(min_length=1, max_length=64)]
    sequence: Annotated[int, Meta(ge=1, le=(1 << 62))]
    #: The number of the producer's batch before this one; None: the number below. Numbers in between belong
    #: to batches that were refused, and are not used again.
    after: Natural | None = None
    #: When the producer was born, by the terminal's clock (Welcome.time); 0: it says nothing of it, and the
    #: ledger remembers it for ever.
    born: Natural = 0


class Subscribe(Frame, tag=3, frozen=True):
    """Answered by Subscribed; then Deliver frames come by themselves."""

    request: Natural
    subscription: Natural  #: the client's number for it
    topic: Text
    group: Text | None = None  #: None: an ephemeral group of its own
    prefetch: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    #: Where a new group starts: "earliest" (the default of a named one), "latest" (of an ephemeral one), or a
    #: time as microseconds. A group that exists goes on where it is.
    start: Natural | Text | None = None
    #: Nothing is delivered until a frame Pull asks for it.
    by_pull: bool = False
    #: It answers requests: Requested frames come as well.
    answers: bool = False
    #: Bytes that may be delivered and unsettled, beside the prefetch; 0: as many as the terminal allows.
    prefetch_bytes: Natural = 0
    #: Refused where the topic or the group is not there; nothing is made.
    must_exist: bool = False


class Settlement(msgspec.Struct, array_like=True, frozen=True, gc=False):
    lease: Natural
    runs: list[Run]
    #: "ack", "requeue", "bury", "extend"
    verb: Text = "ack"
    after: float | None = None  #: of a requeue: seconds; None = the group's backoff
    cause: Text = ""  #: of a requeue or burial


class Settle(Frame, tag=4, frozen=True):
    """Answered by Done once it is on disk, if request isn't 0; by Refused if a lease was lost."""

    request: Natural
    subscription: Natural
    settlements: list[Settlement]


class Credit(Frame, tag=5, frozen=True):
    """For groups that settle on delivery: so many messages have been taken in."""

    subscription: Natural
    messages: Natural
    bytes: Natural


class Unsubscribe(Frame, tag=6, frozen=True):
    """What is leased goes back, uncounted. Answered by Done, after which no Deliver comes."""

    request: Natural
    subscription: Natural


class PublishOnce(Frame, tag=28, frozen=True):
    """Tail: a batch that is stored unless its idempotency key is known. Answered by Stored, or Refused. Sent
    only to a terminal that names the feature "keys"."""

    request: Natural
    topic: Text
    key: Key
    #: Of the client, for a queue, which has one producer. The batch has no number.
    producer: Annotated[bytes, Meta(min_length=1, max_length=64)]


class DocumentEdit(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A document that a transaction writes."""

    collection: Text
    topic: Text  #: the topic that it lives with; empty: none
    key: Text
    value: bytes | None  #: a JSON value in MessagePack; None deletes the document
    expect: Text | None  #: the version that it must have; empty: it must be new; None: any


class ApartAck(msgspec.Struct, array_like=True, frozen=True):
    """Of a terminal with several nodes: an ack of messages that the client holds at another node than the one
    where its transaction happens."""

    topic: Text
    group: Text  #: empty: the only one of its topic
    subscription: Natural  #: its number in the client's connection there
    lease: Natural
    runs: list[Run]  #: offsets


class Transact(Frame, tag=7, frozen=True):
    """Publishes, acks and documents in one commit. Tail: the batches, one after the other. Answered by Done
    with the first offsets, or Refused, and then nothing of it happened."""

    request: Natural
    producer: Annotated[bytes, Meta(min_length=1, max_length=64)]
    number: Annotated[int, Meta(ge=1, le=(1 << 62))]
    floor: Natural  #: the lowest number of a transaction that this producer has no answer for
    publishes: list[tuple[Text, Natural]]  #: topic, size of its batch in the tail
    acks: list[tuple[Natural, Natural, list[Run]]]  #: subscription, lease, offsets
    documents: list[DocumentEdit] = []
    begun: Natural = 0  #: when it was begun, by the terminal's clock (Welcome.time); 0: not told
    #: Its idempotency key; with one it is answered with {"firsts": […], "repeated": …}. Sent only to a
    #: terminal that names the feature "keys".
    key: Key = ""
    #: Acks of what the client holds at other nodes of the terminal.
    apart: list[ApartAck] = []

    @property
    def parts(self) -> int:
        """How many publishes, runs of acks and documents it has."""
        acked = [*(runs for _, _, runs in self.acks), *(each.runs for each in self.apart)]
        return len(self.publishes) + len(self.documents) + sum(len(runs) or 1 for runs in acked)


class Call(Frame, tag=8, frozen=True):
    """Everything that is not on the hot path: topics, groups, tokens, … Answered by Done or Refused."""

    request: Natural
    op: Text
    args: dict[str, Any]
    origin: Text = ""  #: of a gateway: the address of the client that it asks for


class Renew(Frame, tag=9, frozen=True):
    """A fresh token for a connection that lives on."""

    request: Natural
    token: Annotated[str, Meta(max_length=8192)]


class Ping(Frame, tag=10, frozen=True):
    request: Natural


class Bye(Frame, tag=11, frozen=True):
    """The client leaves in good order: its anonymous producer is not coming back."""

    producer: bytes = b""


class Join(Frame, tag=12, frozen=True):
    """Instead of Hello: the one that dials is a terminal and wants a link. Answered by Challenge."""

    version: int
    customer: Text
    terminal: Text
    nonce: Annotated[bytes, Meta(min_length=16, max_length=64)]
    #: Bytes of the greatest frame that it takes, as in Linked.
    max_frame: Natural = DEFAULT_MAX_FRAME


class Prove(Frame, tag=13, frozen=True):
    """Answers a Challenge. Answered by Linked."""

    signature: Annotated[bytes, Meta(max_length=128)]


class Fetch(Frame, tag=14, frozen=True):
    """Read a topic's log by offset, as no group: nothing is leased, settled or left out. Answered by Fetched
    or Refused."""

    request: Natural
    topic: Text
    offset: Natural
    #: Of batches; the first one comes whatever its size, and no frame is larger than max_frame.
    max_bytes: Annotated[int, Meta(ge=1, le=(1 << 40))]


class Stage(Frame, tag=15, frozen=True):
    """Tail: a batch for a topic, stored where nobody sees it until ``stage.commit`` publishes it. Answered by
    Done with (number of the stage's log, first offset there), or Refused."""

    request: Natural
    stage: Text
    topic: Text


class Pull(Frame, tag=24, frozen=True):
    """For a subscription by pull: deliver so many messages from now on, and no more. It replaces what is left
    of the Pull before; 0 stops the delivery. Not answered: Deliver frames come."""

    subscription: Natural
    messages: Natural


#: Headers of a request or a reply; their values are texts, bytes, numbers and booleans.
Headers: TypeAlias = dict[Annotated[str, Meta(max_length=200)], Any]


class SendRequest(Frame, tag=16, frozen=True):
    """Ask whoever answers requests to the topic. Nothing of it is written to disk. Tail: the payload.
    Answered by Replied, or Refused; with ``most`` above 1, or 0 for all, by any number of Replied and then
    Done."""

    request: Natural
    topic: Text
    within: Annotated[int, Meta(ge=1, le=(1 << 62))]  #: microseconds that the caller waits
    most: Annotated[int, Meta(ge=0, le=1_000)] = 1
    headers: Headers = {}
    key: Annotated[bytes, Meta(max_length=1024)] = b""


class Failure(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a service says of its own failure."""

    code: Annotated[str, Meta(max_length=200)]
    status: Annotated[int, Meta(ge=400, le=599)]
    text: Annotated[str, Meta(max_length=4096)]


class SendReply(Frame, tag=17, frozen=True):
    """Answers a Requested. Tail: the payload; empty with a failure. With ``offset``, it answers a message
    that the consumer holds under the lease ``number``: the reply is stored and the message acked in one
    commit, and then the frame is answered by Done, or by Refused."""

    request: Natural
    subscription: Natural
    number: Natural
    offset: int = -1
    headers: Headers = {}
    failure: Failure | None = None


class Relay(Frame, tag=29, frozen=True):
    """Between nodes of one terminal: something that one node asks of another. Tail: a batch. Answered by
    Relayed, or Refused."""

    request: Natural
    op: Text
    args: dict[str, Any]


# -- from the one that listens ------------------------------------------------------------------------


class Welcome(Frame, tag=32, frozen=True):
    version: int
    terminal: str
    max_frame: int
    max_payload: int
    #: Bytes of batches that may be unanswered on this connection.
    window: int
    #: The terminal's clock, microseconds since 1970.
    time: Natural = 0
    #: What this terminal knows beyond the frames of the first version: "keys", "requests".
    features: Annotated[list[Text], Meta(max_length=64)] = []
    #: Where the terminal's nodes are, if it has several: this one, and others to go to when it is gone.
    nodes: Annotated[list[Text], Meta(max_length=256)] = []


class Stored(Frame, tag=33, frozen=True):
    request: Natural
    first: int  #: offset of the batch's first message; -1 for a repeat that is very old
    repeated: bool = False  #: all of it was stored before, by another request
    batch: bytes = b""  #: id of the batch that was stored, where that may be another one; else empty


class Subscribed(Frame, tag=34, frozen=True):
    request: Natural
    subscription: Natural
    group: str
    kind: str
    at_most_once: bool
    ack_within: float


class Deliver(Frame, tag=35, frozen=True):
    """Tail: a batch whose messages have these offsets, in this order."""

    subscription: Natural
    lease: Natural
    runs: list[Run]
    newest_first: bool = False
    attempts: dict[int, int] = {}


class Done(Frame, tag=36, frozen=True):
    request: Natural
    result: Any = None


class Refused(Frame, tag=37, frozen=True):
    """An error. With a request: its answer. Without: of a settlement nobody waits for."""

    request: Natural
    code: str
    message: str
    hint: str = ""
    subscription: Natural = 0
    details: dict[str, Any] = {}  #: what else the error says; see BusError.details


class Lost(Frame, tag=38, frozen=True):
    """A subscription ended from this side: topic deleted, token revoked for it, …"""

    subscription: Natural
    code: str
    message: str
    hint: str = ""


class Closing(Frame, tag=39, frozen=True):
    """The connection ends now, and why."""

    code: str
    message: str
    hint: str = ""


class Challenge(Frame, tag=40, frozen=True):
    """Answers a Join: who listens here, proved, and what the one that dials has to sign."""

    version: int
    terminal: Text
    nonce: Annotated[bytes, Meta(min_length=16, max_length=64)]
    signature: Annotated[bytes, Meta(max_length=128)]


class Linked(Frame, tag=41, frozen=True):
    """The link is up. From now on both sides may send the frames below."""

    max_frame: int


class Fetched(Frame, tag=42, frozen=True):
    """Tail: the batches, one after the other, as they stand in the log. None at its end."""

    request: Natural
    first: Natural  #: of the log: the oldest offset that it still has
    end: Natural  #: of the log
    #: First offset, messages, bytes in the tail, and the terminal where it was published, "" for this one.
    batches: list[tuple[Natural, Natural, Natural, str]]
    log: str = ""  #: the identity of the log, as in ``topic.show``


class Requested(Frame, tag=43, frozen=True):
    """A request for a subscription that answers. Tail: the payload. Answered by SendReply."""

    subscription: Natural
    number: Natural  #: the terminal's own
    topic: str
    within: int  #: microseconds that are left
    requester: str  #: the subject that asks
    headers: Headers = {}
    key: bytes = b""


class Replied(Frame, tag=44, frozen=True):
    """A reply to a request. Tail: the payload."""

    request: Natural
    source: str  #: the subject that replied
    last: bool = True  #: nothing comes after it
    headers: Headers = {}
    failure: Failure | None = None


class Paused(Frame, tag=45, frozen=True):
    """A subscription gets nothing until further notice, and goes on existing; or it goes on. Sent only to a
    client that names the feature "pauses"."""

    subscription: Natural
    paused: bool
    by: str = ""  #: the subject that has paused the group, the topic or the service
    note: str = ""  #: why
    at: Natural = 0  #: microseconds: since when


class Relayed(Frame, tag=46, frozen=True):
    """Answers a Relay. Tail: a batch."""

    request: Natural
    result: Any = None


# -- on a link, from either side ----------------------------------------------------------------------

Terminal = Annotated[str, Meta(max_length=64)]
Id = Annotated[bytes, Meta(min_length=16, max_length=16)]


class Carry(Frame, tag=64, frozen=True):
    """A parcel. Tail: what is sealed in it. With a number: answered by Kept once it is on disk, or by
    Declined; until then it is the sender's to keep. With 0: a control message, which may get lost."""

    number: Natural
    id: Id
    kind: Annotated[int, Meta(ge=0, le=7)]
    source: Terminal
    destination: Terminal
    ttl: Annotated[int, Meta(ge=0, le=64)]
    visited: Annotated[list[Terminal], Meta(max_length=64)]  #: who has had it, oldest first
    route: Annotated[list[Terminal], Meta(max_length=16)]  #: hops still to go, the destination last
    reroutes: Annotated[int, Meta(ge=0, le=64)] = 0


class Kept(Frame, tag=65, frozen=True):
    """Custody has passed to this side."""

    numbers: list[Natural]


class Declined(Frame, tag=66, frozen=True):
    """Custody stays with the other side."""

    number: Natural
    code: Text


class States(Frame, tag=67, frozen=True):
    """Link states, each (body, signature)."""

    states: Annotated[list[tuple[bytes, bytes]], Meta(max_length=4096)]


class Probe(Frame, tag=68, frozen=True):
    number: Natural


class Echo(Frame, tag=69, frozen=True):
    number: Natural


class DirectoryCopy(Frame, tag=70, frozen=True):
    """A directory that the peer doesn't have yet, as the registry has signed it."""

    body: bytes
    signature: Annotated[bytes, Meta(max_length=128)]


Asked: TypeAlias = (
    Hello
    | Publish
    | Subscribe
    | Settle
    | Credit
    | Unsubscribe
    | Transact
    | Call
    | Renew
    | Ping
    | Bye
    | Join
    | Prove
    | Closing
    | Fetch
    | Stage
    | Pull
    | PublishOnce
    | SendRequest
    | SendReply
    | Relay
)
Answered: TypeAlias = (
    Welcome
    | Stored
    | Subscribed
    | Deliver
    | Done
    | Refused
    | Lost
    | Closing
    | Challenge
    | Linked
    | Fetched
    | Requested
    | Replied
    | Paused
    | Relayed
)
OnLink: TypeAlias = Carry | Kept | Declined | States | Probe | Echo | DirectoryCopy | Closing
