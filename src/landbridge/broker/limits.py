"""Every bound of a terminal, in one place, all settable (``landbridge up --limit name=value``), and many of
them while it runs (``landbridge limits set``)."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta

from landbridge.core.routing.linkstate import LEAST_FRAME
from landbridge.core.wording import nearest
from landbridge.errors import BadRequest


def _about(text: str) -> Meta:
    return Meta(description=text)


Count: TypeAlias = int
Bytes: TypeAlias = int
Seconds: TypeAlias = float


class Limits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One object for each terminal: what reads a limit when it is used follows a change at once. Nothing but
    ``SetLimits`` changes it."""

    max_frame: Annotated[Bytes, _about("Bytes of one frame on the wire.")] = 16 << 20
    max_payload: Annotated[Bytes, _about("Bytes of one message's payload.")] = 4 << 20
    max_topics: Annotated[Count, _about("Topics.")] = 100_000
    max_services: Annotated[Count, _about("Registered services.")] = 10_000
    max_groups: Annotated[
        Count, _about("Groups of one topic; those that live with their subscriber count too.")
    ] = 1_000
    max_schedules: Annotated[Count, _about("Schedules of all topics together.")] = 10_000
    max_webhooks: Annotated[Count, _about("Webhooks of all topics together.")] = 1_000
    max_mails: Annotated[Count, _about("Mail outlets of all topics together.")] = 1_000
    max_sms: Annotated[Count, _about("SMS outlets of all topics together.")] = 1_000
    max_feeds: Annotated[Count, _about("Topics that are open as feeds (WebSub).")] = 1_000
    max_subscribers: Annotated[Count, _about("Subscriptions of one feed (WebSub).")] = 500
    max_rules: Annotated[Count, _about("Rules of all sources together.")] = 10_000
    max_mqtt_connections: Annotated[Count, _about("Connections of MQTT, of one service.")] = 1_000
    max_mqtt_sessions: Annotated[
        Count, _about("Sessions of MQTT that outlive their connection, of one service.")
    ] = 1_000
    max_retained: Annotated[Count, _about("Retained messages (MQTT).")] = 10_000
    mqtt_session_life: Annotated[
        Seconds, _about("How long a session of MQTT outlives its connection at most.")
    ] = 7 * 86400.0
    max_connections: Annotated[Count, _about("Connections.")] = 4_000
    max_subscriptions: Annotated[Count, _about("Subscriptions of one connection.")] = 1_000
    max_waits: Annotated[
        Count, _about("Operations of one connection that wait for something (topic.wait and the like).")
    ] = 1_000
    max_requests: Annotated[Count, _about("Requests without a reply, of one connection.")] = 10_000
    max_requests_in_all: Annotated[Count, _about("Requests without a reply, of all.")] = 100_000
    request_bytes: Annotated[Bytes, _about("Bytes of the payloads of requests without a reply.")] = 256 << 20
    max_events: Annotated[
        Count, _about("Events with an outcome that are kept, those without one yet included.")
    ] = 100_000
    service_share: Annotated[
        float,
        _about(
            "The part that one service may have of max_events, max_rules, max_schedules, max_webhooks, "
            "max_mails and max_sms, between 0 and 1."
        ),
    ] = 0.25
    publish_window: Annotated[
        Bytes,
        _about("Bytes of batches that a connection may have unanswered; beyond that it isn't read from."),
    ] = 8 << 20
    prefetch_bytes: Annotated[
        Bytes, _about("Bytes that a subscription may hold unsettled, beside its prefetch of messages.")
    ] = 16 << 20
    cache: Annotated[Bytes, _about("Bytes of batches kept in memory for readers.")] = 64 << 20
    commit: Annotated[Bytes, _about("Bytes that may go into one commit.")] = 8 << 20
    hello_within: Annotated[Seconds, _about("Seconds that a connection has to say hello.")] = 10.0
    max_strangers: Annotated[
        Count,
        _about("Connections of one address without a hello. The one that has waited longest gives way."),
    ] = 500
    max_requests_of_strangers: Annotated[
        Count,
        _about("Requests without a token, such as trades of a credential, of one address in a minute."),
    ] = 600
    max_backlog: Annotated[
        Bytes,
        _about("Bytes that a new topic's slowest group may be behind, unless the topic says otherwise."),
    ] = 64 << 30
    keys_kept: Annotated[
        Count,
        _about("Messages of a topic that are gone and whose idempotency keys and unique ids are remembered."),
    ] = 100_000
    max_token_life: Annotated[Seconds, _about("The longest life of a token that this terminal makes.")] = (
        366 * 86400.0
    )


class Ceiling(NamedTuple):
    """Between which values a limit can be set while the terminal runs."""

    least: int | float
    most: int | float

    def within(self, value: int | float) -> int | float:
        """The value, or the bound that it is beyond."""
        return max(self.least, min(self.most, value))


#: The limits that can be set while the terminal runs. The others are built into connections, logs and the
#: store when they are made, or bound what the system was asked for at the start: they need a restart.
CEILINGS = {
    "max_payload": Ceiling(1 << 10, 1 << 30),
    "max_topics": Ceiling(1, 10_000_000),
    "max_services": Ceiling(1, 1_000_000),
    "max_groups": Ceiling(1, 100_000),
    "max_schedules": Ceiling(1, 1_000_000),
    "max_webhooks": Ceiling(1, 100_000),
    "max_mails": Ceiling(1, 100_000),
    "max_sms": Ceiling(1, 100_000),
    "max_feeds": Ceiling(1, 100_000),
    "max_subscribers": Ceiling(1, 100_000),
    "max_rules": Ceiling(1, 10_000),
    "max_mqtt_connections": Ceiling(1, 100_000),
    "max_mqtt_sessions": Ceiling(1, 100_000),
    "max_retained": Ceiling(1, 1_000_000),
    "mqtt_session_life": Ceiling(1.0, 366 * 86400.0),
    "max_subscriptions": Ceiling(1, 100_000),
    "max_waits": Ceiling(1, 100_000),
    "max_requests": Ceiling(1, 1_000_000),
    "max_requests_in_all": Ceiling(1, 10_000_000),
    "request_bytes": Ceiling(1 << 10, 1 << 40),
    "max_events": Ceiling(1, 10_000_000),
    "service_share": Ceiling(0.001, 1.0),
    "prefetch_bytes": Ceiling(1 << 10, 1 << 30),
    "cache": Ceiling(1 << 20, 1 << 40),
    "hello_within": Ceiling(0.5, 300.0),
    "max_strangers": Ceiling(1, 100_000),
    "max_requests_of_strangers": Ceiling(1, 1_000_000),
    "max_backlog": Ceiling(1 << 10, 1 << 50),
    "max_token_life": Ceiling(60.0, 10 * 366 * 86400.0),
}


class SetLimit(msgspec.Struct, frozen=True):
    """A limit that an operator has set."""

    value: int | float
    by: str
    at: int  #: microseconds


def about_limits() -> dict[str, str]:
    """What each limit bounds, by its name."""
    hints = get_type_hints(Limits, include_extras=True)
    return {name: str(hints[name].__metadata__[0].description) for name in Limits.__struct_fields__}


def check_limit(name: str, value: int | float | None) -> int | float | None:
    """The value that a limit is to have; None for the one of the start. BadRequest where it can't."""
    if name not in Limits.__struct_fields__:
        raise _unknown(name)
    ceiling = CEILINGS.get(name)
    if ceiling is None:
        raise BadRequest(
            f"the limit {name} can't be set while the terminal runs",
            hint=f"restart it with --limit {name}=VALUE",
        )
    if value is None:
        return None
    kind = type(getattr(Limits(), name))
    if isinstance(value, bool) or not math.isfinite(value) or (kind is int and value != int(value)):
        raise BadRequest(f"limit {name}: {value!r} is no {'whole ' if kind is int else ''}number")
    if not ceiling.least <= value <= ceiling.most:
        raise BadRequest(f"limit {name}: {value:,} is not between {ceiling.least:,} and {ceiling.most:,}")
    found: int | float = kind(value)
    return found


def _unknown(name: str) -> BadRequest:
    names = Limits.__struct_fields__
    near = nearest(name.partition("=")[0], names)
    hint = f"did you mean {near}?" if near else f"name=value with one of: {', '.join(names)}"
    return BadRequest(f"no limit {name[:60]!r}", hint=hint)


def parse_limits(settings: list[str]) -> Limits:
    """From ``name=value`` pairs."""
    values: dict[str, int | float] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name not in Limits.__struct_fields__ or not equals:
            raise _unknown(setting)
        try:
            values[name] = type(getattr(Limits(), name))(value)
        except ValueError:
            raise BadRequest(f"limit {name}: {value!r} is not a number") from None
        if values[name] <= 0:
            raise BadRequest(f"limit {name}: {value} is not above 0")
    if values.get("max_frame", LEAST_FRAME) < LEAST_FRAME:
        raise BadRequest(f"limit max_frame: {values['max_frame']} is below {LEAST_FRAME}")
    if values.get("service_share", 1.0) > 1.0:
        raise BadRequest(f"limit service_share: {values['service_share']} is above 1")
    return msgspec.convert(values, Limits)
