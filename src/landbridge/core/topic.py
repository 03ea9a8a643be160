"""What a topic and a group are, as documents: their options and the rules between them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from landbridge.core.delivery.delivery import Policy
from landbridge.core.delivery.filters import Match
from landbridge.core.log.retention import Retention
from landbridge.core.names import check_name, is_reserved
from landbridge.core.options import read_options
from landbridge.errors import BadRequest

#: Bytes that a topic's slowest group may be behind before publishes are refused.
MAX_BACKLOG = 64 << 30
#: Characters of a filter's pattern, and headers that a filter may name.
LONGEST_PATTERN = 256
MOST_HEADERS = 32
#: Seconds, about 31 years. Longer spans are mistakes, and their microseconds would outgrow 64 bits.
LONGEST = 1e9


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a topic is, and how long it keeps messages."""

    name: str
    #: "stream": any producers, any groups. "queue": one producer, one group, one consumer, each message once.
    kind: Literal["stream", "queue"] = "stream"
    retention: Retention = Retention()
    max_backlog: int = MAX_BACKLOG
    #: The subject that alone may publish to a queue; None = whoever comes first, while it is connected.
    producer: str | None = None
    #: A queue's delivery: "at-most-once" settles when a message is handed out.
    delivery: Literal["at-least-once", "at-most-once"] = "at-least-once"


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a group gets of a topic, and how."""

    topic: str
    name: str
    discipline: Literal["fifo", "lifo", "priority"] = "fifo"
    #: "key": messages of one key go one at a time, each when the one before is settled; "any": all at once.
    order: Literal["any", "key"] = "any"
    ack_within: float = 30.0
    max_attempts: int = 10
    backoff: float = 1.0
    backoff_most: float = 60.0
    #: Where buried messages go; "" = nowhere, they are only settled; None = "<topic>.dead", and nowhere for
    #: the terminal's own topics ($…).
    dead_letter: str | None = None
    match: Match | None = None

    @property
    def dead_topic(self) -> str:
        name = f"{self.topic}.dead" if self.dead_letter is None else self.dead_letter
        return "" if is_reserved(name) else name

    def policy(self, *, at_most_once: bool = False) -> Policy:
        policy = msgspec.convert(self, Policy, from_attributes=True)
        return msgspec.structs.replace(policy, at_most_once=at_most_once)


def topic_spec(raw: dict[str, Any]) -> TopicSpec:
    if raw.get("kind") == "queue":  # a queue keeps nothing that its consumer has settled
        retention = raw.get("retention") or {}
        if isinstance(retention, dict):  # anything else is refused below
            raw = {**raw, "retention": {"settled": True, **retention}}
    spec = read_options(raw, TopicSpec, "topic options")
    check_name(spec.name, "topic")
    if spec.retention.discard not in ("settled", "any"):
        raise BadRequest("retention.discard is 'settled' or 'any'")
    if spec.kind == "stream" and (spec.producer is not None or spec.delivery != "at-least-once"):
        raise BadRequest("producer and delivery are options of a queue", hint="create it with kind 'queue'")
    _positive(spec.max_backlog, "max_backlog")
    _positive(spec.retention.max_age, "retention.max_age", LONGEST)
    _positive(spec.retention.max_bytes, "retention.max_bytes")
    return spec


def group_spec(raw: dict[str, Any]) -> GroupSpec:
    spec = read_options(raw, GroupSpec, "group options")
    check_name(spec.topic, "topic")
    check_name(spec.name, "group")
    if spec.dead_topic:  # the default too: the topic's own name may be too long to get ".dead" added
        check_name(spec.dead_topic, "topic")
        if spec.dead_topic == spec.topic:
            raise BadRequest("a topic can't be its own dead-letter topic")
    if spec.order == "key" and spec.discipline != "fifo":
        raise BadRequest(
            f"order per key is for the discipline fifo, not for {spec.discipline}",
            hint="use two groups, or leave one of the two options out",
        )
    _check_match(spec.match or Match())
    _positive(spec.ack_within, "ack_within", LONGEST)
    _positive(spec.max_attempts, "max_attempts")
    if not (0 <= spec.backoff <= LONGEST and 0 <= spec.backoff_most <= LONGEST):
        raise BadRequest(f"backoff is a span of 0 to {LONGEST:.0f} seconds")
    return spec


def _check_match(match: Match) -> None:
    """A pattern costs work for its length, and for each message."""
    if len(match.headers) > MOST_HEADERS:
        raise BadRequest(
            f"match names {len(match.headers)} headers, allowed are {MOST_HEADERS}",
            hint="let the producer put what consumers choose by into one header, or into the key",
        )
    for pattern in (match.key or "", *match.headers, *match.headers.values()):
        if len(pattern) > LONGEST_PATTERN:
            raise BadRequest(
                f"match has a pattern of {len(pattern)} characters, allowed are {LONGEST_PATTERN}",
                hint="make several groups, or let the producer put what consumers choose by into one header",
            )


def _positive(value: float | None, name: str, most: float = 1 << 62) -> None:
    if value is not None and not 0 < value <= most:
        raise BadRequest(f"{name} must be greater than 0 and at most {most:.0f}, not {value}")
