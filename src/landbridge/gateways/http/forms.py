"""Messages as JSON: what a client sends where there are several in a body, and what it gets.

A payload is bytes. In JSON it stands as ``json``, as ``text`` or as ``base64``, whichever of the three says
it without loss. What comes in as ``json`` is stored as it was written, byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import time
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from landbridge.client.message import Message
from landbridge.client.publisher import Moment, Rows
from landbridge.core.log.batch import Batch, HeaderValue
from landbridge.core.time import parse_span
from landbridge.errors import BadPayload, BadRequest

#: A header of a message as JSON has it.
PlainValue = str | int | float | bool
GivenMoment = Annotated[
    str | float | None,
    Meta(description="ISO 8601 with a zone, seconds since 1970, or a span from now: +30s."),
]


class MessageGiven(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to publish. Give one of json, text and base64."""

    json: Annotated[msgspec.Raw | UnsetType, Meta(description="The payload, as any JSON value.")] = UNSET
    text: Annotated[str | None, Meta(description="The payload, as text.")] = None
    base64: Annotated[str | None, Meta(description="The payload, as base64 of its bytes.")] = None
    key: Annotated[str | None, Meta(description="For filters, order per key and compaction.")] = None
    priority: Annotated[int, Meta(ge=0, le=9, description="0 to 9, where 9 goes first.")] = 0
    headers: Annotated[dict[str, PlainValue], Meta(description="Its headers.")] = {}
    id: Annotated[str | None, Meta(description="An id of your own; by default the bus makes one.")] = None
    deliver_at: GivenMoment = None
    expires_at: GivenMoment = None

    def payload(self) -> bytes:
        """The payload's bytes."""
        raw = b"" if self.json is UNSET else bytes(self.json)
        if (self.json is not UNSET) + (self.text is not None) + (self.base64 is not None) != 1:
            raise BadPayload("a message has one of json, text and base64")
        if self.text is not None:
            return self.text.encode()
        if self.base64 is None:
            return raw
        try:
            return base64.b64decode(self.base64, validate=True)
        except (binascii.Error, ValueError):
            raise BadPayload("'base64' of a message is not base64") from None

    def add_to(self, rows: Rows) -> None:
        """Add it to a batch in the making."""
        rows.add(
            self.payload(),
            self.key,
            self.priority,
            self.headers or None,
            self.id,
            moment_of(self.deliver_at, "deliver_at"),
            moment_of(self.expires_at, "expires_at"),
        )


class MessageForTopic(MessageGiven, kw_only=True, forbid_unknown_fields=True):
    """A message to publish, with its topic."""

    topic: Annotated[str, Meta(description="Name of the topic.")]


class MessageShown(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message that was delivered. It has one of json, text and base64."""

    topic: Annotated[str, Meta(description="The topic that it was read from.")]
    offset: Annotated[int, Meta(description="Its place in the topic's log.")]
    id: Annotated[str, Meta(description="Its id, which is the same at every terminal.")]
    time: Annotated[int, Meta(description="When it was published, in microseconds since 1970.")]
    attempt: Annotated[int, Meta(description="The number of this attempt, from 1.")]
    receipt: Annotated[
        str | None, Meta(description="What settles it; missing where its group settles on delivery.")
    ] = None
    key: Annotated[str | None, Meta(description="Its key, if it has one.")] = None
    priority: Annotated[int, Meta(description="0 to 9.")] = 0
    headers: Annotated[dict[str, Any], Meta(description="Its headers; bytes as base64.")] = {}
    json: Annotated[msgspec.Raw | UnsetType, Meta(description="The payload, where it is JSON.")] = UNSET
    text: Annotated[str | None, Meta(description="The payload, where it is text.")] = None
    base64: Annotated[str | None, Meta(description="The payload, where it is neither.")] = None


#: Checks JSON without making values of it.
_check_json = msgspec.json.Decoder(msgspec.Raw).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def is_json(payload: bytes) -> bool:
    """Is it JSON, in UTF-8?"""
    try:
        _check_json(payload)
        payload.decode()
    except _UNREADABLE:
        return False
    return True


def check_json(payload: bytes, what: str) -> None:
    """BadPayload where it isn't JSON: it would trouble every consumer."""
    try:
        _check_json(payload)
        payload.decode()
    except _UNREADABLE as error:
        raise BadPayload(f"{what} is not JSON: {error}") from None


#: What ``curl -d`` says of every body if it isn't told the content type. So it tells nothing.
_SAID_BY_CURL = "application/x-www-form-urlencoded"


def payload_form(payload: bytes, content_type: object) -> dict[str, Any]:
    """The payload as a member of a JSON object. Its content type decides, if the payload is what that says;
    without one, JSON is tried before text."""
    return plain_form(payload, content_type) or {"base64": base64.b64encode(payload).decode()}


def plain_form(payload: bytes, content_type: object) -> dict[str, Any] | None:
    """The same for a payload that is JSON or text; None for any other."""
    said = content_type.partition(";")[0].strip().lower() if isinstance(content_type, str) else ""
    if said == _SAID_BY_CURL:
        said = ""
    if (not said or said == "application/json" or said.endswith("+json")) and is_json(payload):
        return {"json": msgspec.Raw(payload)}
    if not said or said.startswith("text/"):
        try:
            return {"text": payload.decode()}
        except UnicodeDecodeError:
            pass
    return None


def shown_headers(headers: dict[str, HeaderValue]) -> dict[str, Any]:
    """The headers as JSON can say them."""
    if any(type(value) is bytes for value in headers.values()):
        return {k: base64.b64encode(v).decode() if type(v) is bytes else v for k, v in headers.items()}
    return headers


def shown(message: Message, receipt: str | None) -> MessageShown:
    """A message as JSON has it."""
    headers = message.headers
    return MessageShown(
        topic=message.topic,
        offset=message.offset,
        id=message.id,
        time=message.time,
        receipt=receipt,
        attempt=message.attempt,
        key=message.key,
        priority=message.priority,
        headers=shown_headers(headers),
        **payload_form(message.payload, headers.get("content-type")),
    )


def fields_of_log(topic: str, offset: int, batch: Batch, index: int) -> dict[str, Any]:
    """What is shown of a message of a log, beside its payload. Headers are as they are."""
    key = batch.key(index)
    priorities = batch.priorities()
    return {
        "topic": topic,
        "offset": offset,
        "id": batch.id_of(index),
        "time": batch.time_of(index),
        "attempt": 1,
        "key": key.decode(errors="replace") if key else None,
        "priority": 0 if priorities is None else priorities[index],
        "headers": batch.headers(index),
    }


def moment_of(given: str | float | None, name: str) -> Moment:
    """The moment that a client means: ISO 8601 with a zone, seconds since 1970, or ``+30s`` from now."""
    if given is None or isinstance(given, int | float):
        return given
    text = given.strip()
    try:
        if text.startswith("+"):
            return time.time() + parse_span(text[1:])
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    except (ValueError, OverflowError):
        pass
    raise BadRequest(
        f"{name} {given[:40]!r} is not a moment",
        hint="2026-01-31T12:00:00Z, seconds since 1970, or a span from now such as +30s",
    )


def read(body: bytes, kind: Any, what: str) -> Any:
    """Decode the JSON of a body, strictly."""
    try:
        body.decode()
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{what}: {error}") from None
    except _UNREADABLE as error:
        raise BadPayload(f"{what} is not JSON: {error}") from None
