"""A packet PUBLISH as a message of the bus, and a message as a packet.

Content type and user properties are headers. What else MQTT has beside the payload are headers ``mqtt-…``,
which no client sets by itself: ``mqtt-client`` is the client id of the publisher.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from landbridge.client.message import Message
from landbridge.client.publisher import MessageOptions
from landbridge.core.log.batch import HeaderValue
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest
from landbridge.protocol.mqtt.fields import LONGEST, fitting
from landbridge.protocol.mqtt.packets import PublishPacket, Will
from landbridge.protocol.mqtt.properties import MOST_PROPERTIES, Properties
from landbridge.protocol.mqtt.reasons import BrokenPacket, Reason

CLIENT, RETAIN = "mqtt-client", "mqtt-retain"
_RESPONSE, _CORRELATION, _FORMAT = "mqtt-response-topic", "mqtt-correlation-data", "mqtt-payload-format"
_CONTENT_TYPE = "content-type"
#: User properties that are no headers.
_KEY, _PRIORITY, _ID = "landbridge-key", "landbridge-priority", "landbridge-id"
_OWN = ("mqtt-", "landbridge-")


def options_of(packet: PublishPacket | Will, client_id: str, now: int) -> MessageOptions:
    """What a message has besides its payload. ``now``: microseconds."""
    properties = packet.properties
    headers: dict[str, HeaderValue] = {}
    options: MessageOptions = {"headers": headers}
    for name, value in properties.get("user_properties", ()):
        if name == _KEY:
            options["key"] = value
        elif name == _PRIORITY:
            if value not in "0123456789" or not value:
                raise BadRequest(f"{_PRIORITY}: {value[:20]!r}", hint="0 to 9, where 9 goes first")
            options["priority"] = int(value)
        elif not name.startswith(_OWN):
            headers[name] = value
    if properties.get("payload_format"):
        _check_text(packet.payload)
        headers[_FORMAT] = 1
    for name, header in (
        ("content_type", _CONTENT_TYPE),
        ("response_topic", _RESPONSE),
        ("correlation_data", _CORRELATION),
    ):
        if name in properties:
            headers[header] = properties[name]
    headers[CLIENT] = client_id
    if packet.retain:
        headers[RETAIN] = True
    if "message_expiry" in properties:
        options["expires_at"] = now / SECOND + properties["message_expiry"]
    return options


def _check_text(payload: bytes) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise BrokenPacket(Reason.BAD_PAYLOAD_FORMAT, "the payload is not UTF-8, as it says") from None


def expires_at(message: Message) -> int:
    """When a message expires, in microseconds; 0: never."""
    moments = message.batch.columns.expires_at()
    return 0 if moments is None else moments[message.batch.index(message.position)]


def properties_of(
    headers: Mapping[str, HeaderValue], expires_at: int, now: int, *, key: str | None = None, id: str = ""
) -> Properties:
    """The properties of a message that is sent."""
    properties: Properties = {}
    user: list[tuple[str, str]] = [(_ID, id)] if id else []
    if key is not None:
        user.append((_KEY, fitting(key)))
    for name, value in headers.items():
        _put(properties, user, name, value)
    if user:
        properties["user_properties"] = user[:MOST_PROPERTIES]
    if expires_at:
        properties["message_expiry"] = max(0, -(-(expires_at - now) // SECOND))
    return properties


def _put(properties: Properties, user: list[tuple[str, str]], name: str, value: HeaderValue) -> None:
    if name == RETAIN:
        return
    if name == _CONTENT_TYPE and isinstance(value, str):
        properties["content_type"] = fitting(value)
    elif name == _RESPONSE and isinstance(value, str):
        properties["response_topic"] = fitting(value)
    elif name == _CORRELATION and isinstance(value, bytes):
        properties["correlation_data"] = value[:LONGEST]
    elif name == _FORMAT:
        properties["payload_format"] = 1
    else:
        user.append((fitting(name), fitting(_text(value))))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value).lower() if isinstance(value, bool) else str(value)
