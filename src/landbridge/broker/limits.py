"""Every bound of a terminal, in one place, all settable (``landbridge up --limit name=value``)."""

from __future__ import annotations

import msgspec

from landbridge.core.routing.linkstate import LEAST_FRAME
from landbridge.errors import BadRequest


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    #: Bytes of one frame on the wire, and of one message's payload.
    max_frame: int = 16 << 20
    max_payload: int = 4 << 20
    max_topics: int = 100_000
    #: Registered services.
    max_services: int = 10_000
    #: Durable groups of one topic; groups that live with their subscriber count too.
    max_groups: int = 1_000
    #: Schedules of all topics together.
    max_schedules: int = 10_000
    #: Webhooks of all topics together.
    max_webhooks: int = 1_000
    #: Rules of all sources together.
    max_rules: int = 10_000
    max_connections: int = 4_000
    #: Subscriptions of one connection.
    max_subscriptions: int = 1_000
    #: Operations of one connection that wait for something to happen (topic.wait and the like).
    max_waits: int = 1_000
    #: Requests without a reply: of one connection, of all, and the bytes of their payloads.
    max_requests: int = 10_000
    max_requests_in_all: int = 100_000
    request_bytes: int = 256 << 20
    #: Events with an outcome that are kept, those without one yet included.
    max_events: int = 100_000
    #: Bytes of batches that a connection may have unanswered; a client that sends more isn't read from.
    publish_window: int = 8 << 20
    #: Bytes that a subscription may hold unsettled, beside its prefetch of messages.
    prefetch_bytes: int = 16 << 20
    #: Bytes of batches kept in memory for readers.
    cache: int = 64 << 20
    #: Bytes that may go into one commit.
    commit: int = 8 << 20
    #: Seconds that a connection has to say hello.
    hello_within: float = 10.0
    #: Connections of one address that have not said hello. The one that has waited longest gives way.
    max_strangers: int = 500
    #: Requests without a token, such as trades of a credential, that one address may make in a minute.
    max_requests_of_strangers: int = 600
    #: Bytes that a new topic's slowest group may be behind, unless the topic says otherwise.
    max_backlog: int = 64 << 30
    #: Messages of a topic that are gone and whose idempotency keys and unique ids are remembered all the
    #: same.
    keys_kept: int = 100_000
    #: Seconds: the longest life of a token that this terminal makes.
    max_token_life: float = 366 * 86400.0


def parse_limits(settings: list[str]) -> Limits:
    """From ``name=value`` pairs."""
    values: dict[str, int | float] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name not in Limits.__struct_fields__ or not equals:
            names = ", ".join(Limits.__struct_fields__)
            raise BadRequest(f"no limit {setting!r}", hint=f"name=value with one of: {names}")
        try:
            values[name] = type(getattr(Limits(), name))(value)
        except ValueError:
            raise BadRequest(f"limit {name}: {value!r} is not a number") from None
        if values[name] <= 0:
            raise BadRequest(f"limit {name}: {value} is not above 0")
    if values.get("max_frame", LEAST_FRAME) < LEAST_FRAME:
        raise BadRequest(f"limit max_frame: {values['max_frame']} is below {LEAST_FRAME}")
    return msgspec.convert(values, Limits)
