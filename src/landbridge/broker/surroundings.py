"""What the broker asks of those around it: the connections that requests come over, and the part that links
this terminal to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from landbridge.broker.group import Consumer, Group
from landbridge.broker.middleware import PublishingSubject
from landbridge.broker.topic import Topic
from landbridge.core.cluster.table import ClusterTable, NodeRecord
from landbridge.core.log.batch import Batch
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import BusError
from landbridge.protocol import frames
from landbridge.protocol.session import Session


class Crossing(Protocol):
    """What the broker asks of the part that links this terminal to others (``landbridge.crossing``)."""

    def topic_made(self, topic: Topic) -> None:
        """A topic was made here: do groups elsewhere want its messages?"""

    def check_subscribe(self, group: Group) -> None:
        """Raise Misuse where this terminal may not have consumers of the group."""

    def check_size(self, topic: str, batch: Batch) -> None:
        """Raise TooLarge where a message is larger than what reaches the terminals of the topic's groups."""

    def consumers_changed(self, group: Group) -> None: ...

    def reply_to(self, terminal: str) -> bool:
        """A reply is to be stored for another terminal. Is it one of the customer's? Then what is stored in
        the terminal's group of ``$replies`` goes there."""

    def settled(self, group: Group) -> None:
        """The group has settled messages."""

    def accept(self, transport: asyncio.Transport, session: Session, frame: frames.Join) -> None:
        """Another terminal has dialled in: the connection is a link from here on."""

    def groups_of(self, topic: str) -> list[str] | None:
        """The groups that a topic has at all terminals; None where the registry has no such topic, or isn't
        known yet."""

    @property
    def has_others(self) -> bool:
        """Does the customer have another terminal?"""

    async def close(self) -> None: ...


class NodesPort(Protocol):
    """What a terminal asks of the part of its process that keeps it in the table of nodes. Only a node has
    one."""

    #: What this node says of itself, and the table as it was heard of last.
    record: NodeRecord
    table: ClusterTable
    #: Why the table can't be reached; empty while it can.
    trouble: str

    async def drain(self, name: str, draining: bool) -> ClusterTable:
        """See ``core.cluster.roster.Roster``."""

    async def look(self) -> ClusterTable:
        """The table as it is now."""


class Elsewhere(Protocol):
    """What the broker asks of the part that knows the other nodes of this terminal (``broker/cluster.py``).
    Only a node has one."""

    def owner_of(self, unit: int) -> str:
        """The name of the node that owns a unit; empty where nobody does at the moment."""

    def topics(self) -> int:
        """How many topics other nodes have, as they have last told."""

    def check_owned(self, unit: int) -> None:
        """NotOwner where this node's time to own the unit may be over, by its own clock."""

    async def append(self, topic: str, producer: bytes, number: int, subject: str, batch: Batch) -> int:
        """Append a batch at the topic's owner, unless the ledger there knows this number of the producer.
        Returns the offset of its first message."""

    async def settle(self, log: int, group: str) -> None:
        """Wait until a group's owner has written down what transactions of other units have acked there."""

    async def find_unit(self, topic: str) -> int:
        """The unit of a topic, which another node may own."""

    async def reserve(
        self, unit: int, token: bytes, home: int, subject: str, acks: Sequence[frames.ApartAck]
    ) -> None:
        """``Reservations.reserve`` at the unit's owner; ``keep``, ``drop`` and ``decide`` likewise."""

    async def keep(self, unit: int, token: bytes) -> None: ...
    async def drop(self, unit: int, token: bytes) -> None: ...
    async def decide(self, home: int, token: bytes) -> bool | None: ...

    async def prepare(self, publisher: PublishingSubject, topic: str, batch: Batch) -> Batch:
        """Ask a topic's owner whether it takes a batch, and have its middleware look at it. Returns the batch
        as it is to be stored."""

    async def append_rows(
        self, topic: str, producer: bytes, left: int, subject: str, batches: Sequence[Batch]
    ) -> None:
        """Append rows of a stage at the topic's owner (``stage_rows.py``)."""

    async def forget_producer(self, topic: str, producer: bytes) -> None:
        """No more rows of this producer come."""

    async def look_at(self, topic: str, subject: str) -> str:
        """Ask a topic's owner whether messages of this subject may be written there. Returns the topic's
        kind, empty where there is no such topic yet."""

    def announce(self) -> None:
        """What other nodes follow of unit 0 has changed: tell them to look."""

    def tell(self, topic: str, batch: Batch) -> None:
        """Append a batch of the terminal's own at the topic's owner. Nobody waits for it, and it is lost if
        this process ends."""


class Client(Protocol):
    """The connection that a request came over, as far as the broker needs it."""

    closed: bool
    consumers: dict[int, Consumer]
    #: It takes frames that tell of pauses.
    hears_pauses: bool

    @property
    def scopes(self) -> Scopes: ...

    @property
    def subject(self) -> str: ...

    @property
    def claims(self) -> Mapping[str, str]: ...

    @property
    def who(self) -> str: ...

    @property
    def writable(self) -> bool: ...

    def send(self, frame: frames.Frame, *tail: bytes | memoryview) -> None: ...
    def flush(self) -> None: ...
    def lose(self, consumer: Consumer, why: BusError) -> None: ...
    def move_on(self, why: BusError) -> None: ...


class AckingClient(Protocol):
    """Who acks: a connection, or a part of the terminal that consumes a topic of its own."""

    consumers: dict[int, Consumer]
