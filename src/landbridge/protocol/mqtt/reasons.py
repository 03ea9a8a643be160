"""The reason codes of MQTT 5 (2.4), what 3.1.1 says in their place, and the error of a broken packet."""

from __future__ import annotations

from enum import IntEnum

from landbridge.errors import (
    BadName,
    BusError,
    Fenced,
    Forbidden,
    InvalidMessage,
    LimitReached,
    ShuttingDown,
    StoreFull,
    TooLarge,
    Unauthenticated,
    Unavailable,
)


class Reason(IntEnum):
    """Why something was done or refused. From 0x80 on it is a failure."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    DISCONNECT_WITH_WILL = 0x04
    NO_SUBSCRIPTION_EXISTED = 0x11
    UNSPECIFIED = 0x80
    MALFORMED = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    BAD_CLIENT_ID = 0x85
    BAD_CREDENTIALS = 0x86
    NOT_AUTHORIZED = 0x87
    UNAVAILABLE = 0x88
    BUSY = 0x89
    SHUTTING_DOWN = 0x8B
    BAD_AUTH_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    TAKEN_OVER = 0x8E
    BAD_FILTER = 0x8F
    BAD_TOPIC_NAME = 0x90
    PACKET_ID_IN_USE = 0x91
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    BAD_TOPIC_ALIAS = 0x94
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE = 0x98
    BAD_PAYLOAD_FORMAT = 0x99
    QOS_NOT_SUPPORTED = 0x9B


#: The return codes of a CONNACK in 3.1.1 (3.2.2.3). What has none ends the connection without an answer.
_RETURN_CODES = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_VERSION: 1,
    Reason.BAD_CLIENT_ID: 2,
    Reason.UNAVAILABLE: 3,
    Reason.BUSY: 3,
    Reason.QUOTA_EXCEEDED: 3,
    Reason.SHUTTING_DOWN: 3,
    Reason.BAD_CREDENTIALS: 4,
    Reason.NOT_AUTHORIZED: 5,
}

#: The first class that fits decides.
_OF_ERRORS: tuple[tuple[type[BusError], Reason], ...] = (
    (Unauthenticated, Reason.NOT_AUTHORIZED),
    (Forbidden, Reason.NOT_AUTHORIZED),
    (BadName, Reason.BAD_TOPIC_NAME),
    (InvalidMessage, Reason.BAD_PAYLOAD_FORMAT),
    (LimitReached, Reason.QUOTA_EXCEEDED),
    (TooLarge, Reason.QUOTA_EXCEEDED),
    (StoreFull, Reason.QUOTA_EXCEEDED),
    (ShuttingDown, Reason.UNSPECIFIED),
    (Fenced, Reason.UNSPECIFIED),
    (Unavailable, Reason.QUOTA_EXCEEDED),
)


def return_code(reason: Reason) -> int | None:
    """What a CONNACK of 3.1.1 says in the place of a reason; None: nothing, the connection ends."""
    return _RETURN_CODES.get(reason)


def reason_of(error: BusError) -> Reason:
    """The reason code of a publish or a subscription that the bus refuses."""
    for kind, reason in _OF_ERRORS:
        if isinstance(error, kind):
            return reason
    return Reason.IMPLEMENTATION_SPECIFIC


class BrokenPacket(Exception):
    """The peer broke the protocol, or asked for what can't be had. The connection ends with this reason."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def malformed(text: str) -> BrokenPacket:
    """A packet that can't be read."""
    return BrokenPacket(Reason.MALFORMED, text)


def protocol_error(text: str) -> BrokenPacket:
    """A packet that can be read, and may not come."""
    return BrokenPacket(Reason.PROTOCOL_ERROR, text)
