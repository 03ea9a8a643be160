"""What a topic and a group are, as documents: their options and the rules between them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from landbridge.core.delivery.delivery import Policy
from landbridge.core.delivery.filters import Match
from landbridge.core.log.retention import Retention
from landbridge.core.middleware.spec import AnyStage, check_stages
from landbridge.core.names import CONTENT_DEAD, check_name, is_reserved
from landbridge.core.options import read_options
from landbridge.core.schedule.hours import OpeningHours
from landbridge.errors import BadRequest

#: Bytes that a topic's slowest group may be behind before publishes are refused.
MAX_BACKLOG = 64 << 30
#: Characters of a filter's pattern, and headers that a filter may name.
LONGEST_PATTERN = 256
MOST_HEADERS = 32
#: Seconds, about 31 years. Longer spans are mistakes, and their microseconds would outgrow 64 bits.
LONGEST = 1e9


#: Messages that a consumer may hold at most.
MOST_PREFETCH = 1_000_000
#: Messages that a consumer of a work queue holds, unless the topic says otherwise.
PREFETCH = 16
Discipline: TypeAlias = Literal["fifo", "lifo", "priority"]


class RuleSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages a rule's topic has."""

    source: str  #: the topic whose messages the query chooses from
    query: dict[str, Any]  #: as ``landbridge.core.rules.query`` reads it, in its canonical form
    owner: str  #: the subject that has made the rule
    begin: int = 0  #: offset of the source from which on the query chooses


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a topic is, and how long it keeps messages."""

    name: str
    #: "stream": any producers, any groups. "queue": one producer, one group, one consumer, each message once.
    #: "work": any producers, one group, any consumers that share its messages.
    kind: Literal["stream", "queue", "work"] = "stream"
    retention: Retention = Retention()
    max_backlog: int = MAX_BACKLOG
    #: The subject that alone may publish to a queue; None = whoever comes first, while it is connected.
    producer: str | None = None
    #: "unique": a message whose id (given by its producer) is known is not stored a second time.
    ids: Literal["any", "unique"] = "any"
    #: Of a queue or a work queue: "at-most-once" settles when a message is handed out.
    delivery: Literal["at-least-once", "at-most-once"] = "at-least-once"
    #: Of a work queue: messages that a consumer may hold, however many it asks for; the others stay for other
    #: consumers.
    prefetch: int = PREFETCH
    #: The discipline of groups that name none when they are made.
    discipline: Discipline = "fifo"
    #: The rule that fills it; None: producers do.
    rule: RuleSpec | None = None
    #: What is done with messages before they are stored and delivered, in this order.
    middleware: tuple[AnyStage, ...] = ()

    @property
    def has_one_group(self) -> bool:
        """Is it a queue or a work queue?"""
        return self.kind != "stream"


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a group gets of a topic, and how."""

    topic: str
    name: str
    discipline: Discipline = "fifo"
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
    #: When it hands out messages, see ``landbridge.core.schedule.hours``; empty: always.
    hours: tuple[str, ...] = ()

    @property
    def dead_topic(self) -> str:
        name = f"{self.topic}.dead" if self.dead_letter is None else self.dead_letter
        return "" if is_reserved(name) and name != CONTENT_DEAD else name

    def policy(self, *, at_most_once: bool = False) -> Policy:
        policy = msgspec.convert(self, Policy, from_attributes=True)
        return msgspec.structs.replace(policy, at_most_once=at_most_once)


def topic_spec(raw: dict[str, Any]) -> TopicSpec:
    if raw.get("kind") in ("queue", "work"):  # they keep nothing that a consumer has settled
        retention = raw.get("retention") or {}
        if isinstance(retention, dict):  # anything else is refused below
            raw = {**raw, "retention": {"settled": True, **retention}}
    spec = read_options(raw, TopicSpec, "topic options")
    check_name(spec.name, "topic")
    if spec.retention.discard not in ("settled", "any"):
        raise BadRequest("retention.discard is 'settled' or 'any'")
    if spec.kind != "queue" and spec.producer is not None:
        raise BadRequest("producer is an option of a queue", hint="create it with kind 'queue'")
    if spec.kind == "stream" and spec.delivery != "at-least-once":
        raise BadRequest(
            "delivery is an option of a queue", hint="create it with kind 'queue' or, for several, 'work'"
        )
    if spec.kind != "work" and spec.prefetch != PREFETCH:
        raise BadRequest("prefetch is an option of a work queue", hint="create it with kind 'work'")
    if not 0 < spec.prefetch <= MOST_PREFETCH:
        raise BadRequest(f"prefetch is 1 to {MOST_PREFETCH:,}, not {spec.prefetch}")
    check_stages(spec.middleware)
    _positive(spec.max_backlog, "max_backlog")
    _positive(spec.retention.max_age, "retention.max_age", LONGEST)
    _positive(spec.retention.max_bytes, "retention.max_bytes")
    return spec


def new_group(topic: TopicSpec, name: str, **options: Any) -> GroupSpec:
    """The options of a new group, with the topic's discipline unless they name another."""
    return group_spec({"topic": topic.name, "name": name, "discipline": topic.discipline, **options})


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
    OpeningHours(spec.hours)
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
