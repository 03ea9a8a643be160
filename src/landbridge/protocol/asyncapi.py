"""The AsyncAPI 3 description of a terminal: its topics as channels, and who sends and receives there.

https://www.asyncapi.com/docs/reference/specification/v3.0.0. A topic is a channel. A group receives from its
topic. What registered services say of themselves becomes operations too: a service sends to each topic that
its ``publishes`` covers, and each of its endpoints receives, and replies where it answers requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from landbridge.core.names import is_pattern, matches
from landbridge.core.topic import GroupSpec, TopicSpec
from landbridge.core.trust.service import ServiceEndpoint, ServiceSpec

VERSION = "3.0.0"
MESSAGE = "message"
#: What every message has besides its payload, as AsyncAPI headers.
_HEADERS: dict[str, Any] = {
    "type": "object",
    "description": "Headers that the producer chose: text, bytes, numbers, booleans.",
    "properties": {
        "traceparent": {
            "type": "string",
            "description": "W3C Trace Context, where the producer traces.",
        }
    },
    "additionalProperties": True,
}


def asyncapi(
    terminal: str,
    topics: Sequence[TopicSpec],
    groups: Iterable[GroupSpec],
    services: Iterable[ServiceSpec] = (),
    *,
    host: str = "localhost:7420",
    secure: bool = False,
    version: str = "0.0.0",
) -> dict[str, Any]:
    """The description, as a document to be written as JSON.

    host, secure: where the terminal is, and whether by TLS. version: of the description. Names that services
    mention and that aren't topics here are left out, but for the topics of their endpoints."""
    services = list(services)
    there = {topic.name: _channel(topic) for topic in topics}
    for service in services:
        for endpoint in service.endpoints:
            if endpoint.topic and not is_pattern(endpoint.topic) and endpoint.topic not in there:
                there[endpoint.topic] = _channel_of(endpoint.topic, "A topic that is not made yet.")
    operations: dict[str, Any] = {}
    for group in groups:
        if group.topic in there:
            operations[f"receive/{group.topic}/{group.name}"] = _of_group(group)
    for service in services:
        operations |= _of_service(service, list(there))
    return {
        "asyncapi": VERSION,
        "info": {
            "title": f"Topics of {terminal}",
            "version": version,
            "description": "The topics of a Landbridge terminal, and the groups and services that use them.",
        },
        "servers": {
            "terminal": {
                "host": host,
                "protocol": "lbs" if secure else "lb",
                "description": "The terminal. The same topics are there over HTTP.",
                "security": [{"$ref": "#/components/securitySchemes/token"}],
            }
        },
        "defaultContentType": "application/json",
        "channels": there,
        "operations": operations,
        "components": {
            "messages": {
                MESSAGE: {
                    "title": "Any message",
                    "summary": "The terminal takes any bytes, which producer and consumer agree on.",
                    "headers": {"$ref": "#/components/schemas/headers"},
                    "payload": {"$ref": "#/components/schemas/payload"},
                }
            },
            "schemas": {"headers": _HEADERS, "payload": {"description": "JSON by convention."}},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": "A token with the scopes publish:TOPIC and subscribe:TOPIC.",
                }
            },
        },
    }


def _channel(topic: TopicSpec) -> dict[str, Any]:
    kind = "A queue: each message goes to one group." if topic.kind == "queue" else "A stream of messages."
    return _channel_of(topic.name, kind) | {"x-landbridge": _options(topic)}


def _channel_of(topic: str, description: str) -> dict[str, Any]:
    return {
        "address": topic,
        "description": description,
        "messages": {MESSAGE: {"$ref": f"#/components/messages/{MESSAGE}"}},
        "servers": [{"$ref": "#/servers/terminal"}],
    }


def _options(spec: TopicSpec | GroupSpec) -> dict[str, Any]:
    """All but the names."""
    options: dict[str, Any] = msgspec.to_builtins(spec)
    return {name: value for name, value in options.items() if name not in ("name", "topic")}


def _operation(action: str, topic: str, title: str) -> dict[str, Any]:
    channel = f"#/channels/{_pointer(topic)}"
    return {
        "action": action,
        "channel": {"$ref": channel},
        "title": title,
        "messages": [{"$ref": f"{channel}/messages/{MESSAGE}"}],
    }


def _of_group(group: GroupSpec) -> dict[str, Any]:
    title = f"The group {group.name} receives each message of {group.topic}"
    return _operation("receive", group.topic, title) | {"x-landbridge": _options(group)}


def _of_service(service: ServiceSpec, topics: list[str]) -> dict[str, Any]:
    about: dict[str, Any] = {"tags": [{"name": service.name}]}
    if service.description:
        about["description"] = service.description
    operations: dict[str, Any] = {}
    for topic in topics:
        if any(matches(pattern, topic) for pattern in service.publishes):
            sends = _operation("send", topic, f"{service.name} publishes to {topic}")
            operations[f"send/{service.name}/{topic}"] = sends | about
    for endpoint in service.endpoints:
        for topic in topics:
            if endpoint.topic and matches(endpoint.topic, topic):
                receives = _of_endpoint(service, endpoint, topic)
                operations[f"handle/{service.name}/{endpoint.name}/{topic}"] = about | receives
    handled = {endpoint.topic for endpoint in service.endpoints}
    for topic in topics:
        if topic not in handled and any(matches(pattern, topic) for pattern in service.subscribes):
            reads = _operation("receive", topic, f"{service.name} subscribes {topic}")
            operations[f"receive/{service.name}//{topic}"] = reads | about
    return operations


def _of_endpoint(service: ServiceSpec, endpoint: ServiceEndpoint, topic: str) -> dict[str, Any]:
    does = "answers requests to" if endpoint.reply else "handles"
    operation = _operation("receive", topic, f"{service.name}: {endpoint.name} {does} {topic}")
    if endpoint.description:
        operation["description"] = endpoint.description
    if endpoint.reply:
        operation["reply"] = {
            "address": {
                "description": "Where the requester waits, as the request says.",
                "location": "$message.header#/lb-reply-to",
            }
        }
    return operation


def _pointer(name: str) -> str:
    """A name within a JSON pointer, in the fragment of a URI."""
    return name.replace("~", "~0").replace("/", "~1").replace("$", "%24")
