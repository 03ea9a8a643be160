"""What a client sends and gets by Socket.IO: each event has one argument, an object."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from landbridge.errors import BadPayload, BadRequest
from landbridge.gateways.http.events import MOST_CREDIT, USUAL_CREDIT
from landbridge.gateways.http.forms import MessageForTopic, MessageShown
from landbridge.gateways.http.settle import LONGEST_AFTER, LONGEST_CAUSE
from landbridge.protocol.http import Problem


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """The payload of the sign-in (``auth`` of the stock clients)."""

    token: Annotated[str, Meta(description="A token, or the credential of a service.", max_length=8192)] = ""


class Placeholder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Stands for an attachment, as the protocol has it."""

    is_placeholder: bool = field(name="_placeholder")
    num: int


class PublishGiven(MessageForTopic, kw_only=True, forbid_unknown_fields=True):
    """A message to publish. Give one of json, text, base64 and payload."""

    binary: Annotated[
        Placeholder | None, Meta(description="The payload, as bytes (Buffer, ArrayBuffer, bytes).")
    ] = field(name="payload", default=None)
    idempotency_key: Annotated[str | None, Meta(description="The same key is stored once.")] = None

    def bytes_of(self, attachments: list[bytes]) -> bytes:
        """The payload, which may be an attachment."""
        if self.binary is None:
            return self.payload()
        if self.json is not UNSET or self.text is not None or self.base64 is not None:
            raise BadPayload("a message has one of json, text, base64 and payload")
        if not 0 <= self.binary.num < len(attachments):
            raise BadPayload("the packet has no such attachment")
        return attachments[self.binary.num]


class PublishDone(msgspec.Struct, frozen=True):
    """The message is stored."""

    id: str
    offset: int
    repeated: bool = False


class SubscribeGiven(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Join a topic: its log, or with ``group`` a group of it."""

    topic: str
    group: Annotated[str | None, Meta(description="The group; without one the log of the topic.")] = None
    start: Annotated[
        Literal["earliest", "latest"] | Annotated[int, Meta(ge=0, lt=1 << 62)] | None,
        Meta(description="earliest, latest (the default), or an offset of the log to go on from."),
    ] = field(name="from", default=None)
    log: Annotated[
        str | None, Meta(description="The identity of the log that the offset is of, as it was answered.")
    ] = None
    credit: Annotated[
        int, Meta(ge=1, le=MOST_CREDIT, description="Of a group: messages that may be unsettled.")
    ] = USUAL_CREDIT
    settle: Annotated[
        Literal["callback", "receipt"],
        Meta(description="Of a group: by the callback of each message, or by receipts alone."),
    ] = "callback"

    def check(self) -> None:
        """BadRequest where members don't go together."""
        if self.group is None and self.credit != USUAL_CREDIT:
            raise BadRequest("credit is for a group", hint='"group": "NAME"')
        if self.group is not None and (isinstance(self.start, int) or self.log is not None):
            raise BadRequest(
                "a group has its own place in the log", hint='"from": "earliest" or "latest" for a new group'
            )


class SubscribeDone(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A subscription has begun."""

    subscription: Annotated[int, Meta(description="Its number: messages have it.")]
    topic: str
    group: str | None = None
    offset: Annotated[
        int | UnsetType, Meta(description="Of a log: the offset of the first message to come.")
    ] = UNSET
    log: Annotated[str, Meta(description="The identity of the log; a topic made anew has another.")] = ""


class UnsubscribeGiven(msgspec.Struct, forbid_unknown_fields=True):
    """Leave a topic; what is not settled goes back to the group."""

    subscription: int


class CallbackSettlement(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What the callback of a message says, where it says more than a word."""

    verb: Literal["ack", "requeue", "bury"]
    after: Annotated[float, Meta(ge=0, le=LONGEST_AFTER)] | None = None
    cause: Annotated[str, Meta(max_length=LONGEST_CAUSE)] = ""


#: The argument of a message's callback.
CallbackGiven = Literal["ack", "requeue", "bury"] | CallbackSettlement


class RequestDone(msgspec.Struct):
    """A request was carried out, and there is nothing to tell."""


class RequestRefused(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A request was refused (as its answer), a subscription has ended, or the connection ends (as an
    event)."""

    problem: Problem
    event: Annotated[str, Meta(description="The event that was refused, where it has no callback.")] = ""
    subscription: int | UnsetType = UNSET
    offset: Annotated[int | UnsetType, Meta(description="Of a message that was not settled.")] = UNSET


class PausedTold(msgspec.Struct, kw_only=True):
    """A group, its topic or the service was paused, or goes on."""

    subscription: int
    paused: Annotated[str | None, Meta(description="By whom and why; null: no longer.")]


class MessageSent(MessageShown, kw_only=True, omit_defaults=True):
    """A message of a subscription. It has one of json, text and payload, which is bytes."""

    subscription: int
    payload: dict[str, Any] | UnsetType = UNSET


#: What stands for the attachment of a message that is neither JSON nor text.
ATTACHED = {"_placeholder": True, "num": 0}
