"""CloudEvents 1.0 as messages: the attributes are headers ``ce-NAME`` of the message, the data is its
payload.

``datacontenttype`` is the header ``content-type``, and the extension ``partitionkey`` is the message's key.
The three forms by HTTP are binary (attributes are headers of the request), structured (one JSON object) and
batch (an array of such objects). A message that was not published as an event gets the attributes that an
event must have from its id and topic.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import msgspec

from landbridge.client.message import Message
from landbridge.client.publisher import MessageOptions
from landbridge.core.time import show_iso
from landbridge.errors import BadPayload
from landbridge.gateways.http.exchange import HeaderPair
from landbridge.gateways.http.forms import is_json, read

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
_NAME = re.compile(r"[a-z0-9]{1,64}")
_REQUIRED = ("specversion", "id", "source", "type")
#: Members of the JSON form that are no attributes.
_DATA = frozenset({"data", "data_base64"})
#: Attributes that messages have in another place than in a header ``ce-…``.
_ELSEWHERE = frozenset({"datacontenttype", "partitionkey"})
#: What a header of HTTP has percent-encoded: all but printable ASCII, and ``"`` and ``%`` (3.1.3.2).
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def is_event(content_type: str, headers: dict[bytes, bytes]) -> bool:
    """Is a request an event in binary form?"""
    return b"ce-specversion" in headers and content_type not in (STRUCTURED, BATCH)


def from_headers(payload: bytes, headers: dict[bytes, bytes]) -> tuple[bytes, MessageOptions]:
    """The message of an event in binary form."""
    attributes: dict[str, Any] = {}
    for name, value in headers.items():
        if name.startswith(b"ce-"):
            try:
                attributes[name[3:].decode("ascii")] = unquote_to_bytes(value).decode()
            except UnicodeDecodeError:
                raise BadPayload(f"the attribute {name.decode('latin-1')[:60]!r} is not UTF-8") from None
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    if "datacontenttype" in attributes:
        raise BadPayload("ce-datacontenttype: in binary form that is the header Content-Type")
    return payload, _options(attributes, content_type)


def from_structured(body: bytes) -> list[tuple[bytes, MessageOptions]]:
    """The message of an event in structured form, as a list of one."""
    return [_from_object(read(body, dict[str, msgspec.Raw], "the event"))]


def from_batch(body: bytes) -> list[tuple[bytes, MessageOptions]]:
    """The messages of a batch of events."""
    return [_from_object(event) for event in read(body, list[dict[str, msgspec.Raw]], "the batch of events")]


def _from_object(event: dict[str, msgspec.Raw]) -> tuple[bytes, MessageOptions]:
    attributes: dict[str, Any] = {}
    for name, raw in event.items():
        if name not in _DATA:
            try:
                value = msgspec.json.decode(raw)
            except (msgspec.MsgspecError, RecursionError) as error:  # it is read with more care than before
                raise BadPayload(f"the attribute {name[:60]!r} can't be read: {error}") from None
            if value is None:
                continue  # as if it were not there
            if not isinstance(value, str | bool | int) or (isinstance(value, int) and abs(value) > 2**31):
                raise BadPayload(f"the attribute {name[:60]!r} is neither text, a boolean nor 32 bits")
            attributes[name] = value
    content_type = attributes.pop("datacontenttype", "")
    if not isinstance(content_type, str):
        raise BadPayload("datacontenttype is not text")
    data, packed = event.get("data"), event.get("data_base64")
    if data is not None and packed is not None:
        raise BadPayload("an event has data or data_base64, not both")
    payload = b""
    if packed is not None:
        try:
            payload = base64.b64decode(msgspec.json.decode(packed, type=str), validate=True)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            raise BadPayload("data_base64 is not base64") from None
    elif data is not None:
        content_type = content_type or "application/json"
        payload = bytes(data)
        if not _is_json_type(content_type) and payload[:1] == b'"':
            payload = str(read(payload, str, "the event's data")).encode()
    return payload, _options(attributes, content_type)


def _options(attributes: dict[str, Any], content_type: str) -> MessageOptions:
    for name in attributes:
        if not _NAME.fullmatch(name):
            raise BadPayload(
                f"{name[:60]!r} can't be the name of an attribute", hint="letters a-z and digits"
            )
    for name in _REQUIRED:
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            raise BadPayload(f"the event has no {name}", hint="specversion, id, source and type are needed")
    if attributes["specversion"] != "1.0":
        raise BadPayload(
            f"specversion {str(attributes['specversion'])[:20]!r}", hint="this is CloudEvents 1.0"
        )
    if "time" in attributes and not _is_time(attributes["time"]):
        raise BadPayload("the event's time is not a moment", hint="RFC 3339: 2026-01-31T12:00:00Z")
    headers = {f"ce-{name}": value for name, value in attributes.items() if name not in _ELSEWHERE}
    if content_type:
        headers["content-type"] = content_type
    options: MessageOptions = {"headers": headers}
    if key := attributes.get("partitionkey"):
        options["key"] = str(key)
    return options


def _is_time(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value.upper()).tzinfo is not None
    except (ValueError, AttributeError):
        return False


def _is_json_type(content_type: str) -> bool:
    said = content_type.partition(";")[0].strip().lower()
    return said in ("application/json", "text/json") or said.endswith("+json")


# -- out -----------------------------------------------------------------------------------------------


def attributes_of(message: Message, receipt: str | None) -> dict[str, Any]:
    """The attributes of a message as an event, without datacontenttype."""
    headers = message.headers
    found = {
        name[3:]: value
        for name, value in headers.items()
        if name.startswith("ce-") and _NAME.fullmatch(name[3:]) and isinstance(value, str | bool | int)
    }
    if not all(found.get(name) for name in _REQUIRED):
        found |= {"specversion": "1.0", "id": message.id, "type": "landbridge.message"}
        found |= {"source": f"/v1/topics/{message.topic}", "time": show_iso(message.time)}
    if message.key is not None:
        found["partitionkey"] = message.key
    found["landbridgetopic"], found["landbridgeoffset"] = message.topic, str(message.offset)
    if receipt is not None:
        found["landbridgereceipt"] = receipt
    return found


def to_object(message: Message, receipt: str | None) -> dict[str, Any]:
    """A message as an event in structured form."""
    event = attributes_of(message, receipt)
    content_type = message.headers.get("content-type")
    said = content_type if isinstance(content_type, str) else ""
    payload = message.payload
    if said:
        event["datacontenttype"] = said
    if not payload:
        return event
    if (not said or _is_json_type(said)) and is_json(payload):
        event["data"] = msgspec.Raw(payload)
    elif said.startswith("text/") and _is_text(payload):
        event["data"] = payload.decode()
    else:
        event["data_base64"] = base64.b64encode(payload).decode()
    return event


def _is_text(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def to_headers(attributes: dict[str, Any]) -> Iterable[HeaderPair]:
    """Attributes as headers of the binary form. What can't be the name of one is left out: a message's
    headers are its producer's choice."""
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        yield f"ce-{name}".encode(), quote(text, safe=_PLAIN).encode()
