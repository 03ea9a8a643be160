"""Every bound of the MQTT gateway. Spans are seconds."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

#: From the first byte of a connection to its CONNECT, and from there to the bus.
CONNECT_WITHIN = 10.0
#: Connections of callers that have not shown who they are, in all.
MOST_STRANGERS = 1000
#: Bytes of a CONNECT, its will included; and what any packet may have beside its payload.
LARGEST_CONNECT, BESIDE_PAYLOAD = 96 << 10, 128 << 10
#: Publishes of QoS 1 without a PUBACK, which version 5 calls Receive Maximum.
RECEIVE_MAXIMUM = 256
#: Publishes of any QoS of one connection under way, and their bytes. Beyond, it is not read from.
MOST_UNDER_WAY, MOST_BYTES = 1024, 4 << 20
#: Messages of QoS 1 that a client has not acked, however many it would take.
MOST_IN_FLIGHT = 256
#: Messages of one subscription that are here and not acked, and their bytes; one message may be larger.
PREFETCH, PREFETCH_BYTES = 256, 512 << 10
#: Subscriptions of one session, and packets that change them and wait for their turn.
MOST_SUBSCRIPTIONS, MOST_CHANGES = 100, 16
#: Topic aliases in each direction.
TOPIC_ALIASES = 64
#: Bytes written that the client has not taken: beyond, nothing more is delivered, and beyond the second,
#: nothing more is read from it.
HIGH_WATER, MOST_UNREAD = 256 << 10, 1 << 20
#: Time in which a client has to take something before messages of QoS 0 are dropped for it.
PATIENCE_QOS_0 = 5.0
#: The longest keep alive; what is longer, or none, becomes this in version 5.
LONGEST_KEEP_ALIVE = 3600
#: Bytes of a retained message's payload.
LARGEST_RETAINED = 128 << 10
#: The longest delay of a will.
LONGEST_WILL_DELAY = 86_400.0
#: Time for the last bytes to a client, and for what it has published.
GOODBYE_WITHIN, FINISH_WITHIN = 2.0, 10.0
#: Between two looks for sessions that are over.
LOOK_EVERY = 30.0


class MqttBounds(NamedTuple):
    """Those that are limits of the terminal."""

    #: Connections of one address whose caller has not shown who it is.
    strangers: int
    #: In all, and of one service.
    all_connections: int
    connections: int
    #: That outlive their connection, of one service.
    sessions: int
    #: How long they do at most.
    session_life: float
    #: Retained messages in all.
    retained: int


#: They may be set while the terminal runs.
AskBounds: TypeAlias = Callable[[], MqttBounds]


class Processes(NamedTuple):
    """Which process this is of those that serve the same sessions."""

    #: It has another one after a restart.
    me: str
    #: Does a process of this name still serve?
    is_live: Callable[[str], bool]
    #: Is it for this one to end sessions whose time is over?
    is_first: Callable[[], bool]
    #: Are there others?
    has_others: Callable[[], bool]


def only_process() -> Processes:
    """There is one process, and this is it."""
    me = secrets.token_hex(8)
    return Processes(me, lambda name: name == me, lambda: True, lambda: False)
