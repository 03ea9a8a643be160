"""The status log: what happened, to whom, how often and why, as messages of the topic ``$status``.

Errors and comings and goings are events of their own. Publishes, deliveries and acks are counted per
(event, who, topic, group) and written once a second at level ``batches``, so that the log costs the same
whatever the traffic; at level ``messages`` every batch is an event that names its offsets. Deliveries, acks
and arrivals also have how long ago their messages were published, as a histogram.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from landbridge.core.latency import Histogram, bucket

TOPIC = "$status"
LEVELS = ("off", "errors", "batches", "messages")
OFF, ERRORS, BATCHES, MESSAGES = range(4)

#: Events that are written at level ``errors`` already.
_ERRORS = frozenset({"refuse", "bury", "error", "damage", "room"})


class Levels(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much to log. The most particular setting wins: producer or consumer, then topic, then default.
    Producers and consumers are named by their tokens' subject."""

    default: str = "batches"
    topics: dict[str, str] = {}
    producers: dict[str, str] = {}
    consumers: dict[str, str] = {}
    #: A topic that the status log is written to as well; empty: none.
    topic: str = ""

    def of(self, event: str, who: str, topic: str) -> int:
        if self.producers or self.consumers or self.topics:
            side = self.producers if event == "publish" else self.consumers
            name = side.get(who) or self.topics.get(topic) or self.default
        else:
            name = self.default
        return LEVELS.index(name)


class Event(msgspec.Struct, omit_defaults=True):
    time: int  #: microseconds; for a counted event, of its last occurrence
    event: str
    who: str = ""  #: the token's subject
    peer: str = ""  #: where the connection comes from
    topic: str = ""
    group: str = ""
    messages: int = 0
    batches: int = 0
    bytes: int = 0
    cause: str = ""  #: an error's code, a reason
    detail: str = ""
    since: int = 0  #: time of the first occurrence of a counted event
    offsets: list[tuple[int, int]] = []
    latency: Histogram = {}  #: since the producer's time, see landbridge.core.latency


encode = msgspec.json.Encoder().encode


class StatusLog:
    """Collects events until the terminal drains them into the topic."""

    #: Events held at most; past that the oldest kind of waste, repeated errors, is counted instead.
    MOST = 10_000

    def __init__(self, levels: Levels | None = None) -> None:
        self.levels = levels or Levels()
        self._events: list[Event] = []
        self._counted: dict[tuple[str, str, str, str, str], Event] = {}
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._events or self._counted)

    def note(self, now: int, event: str, *, who: str = "", topic: str = "", **fields: Any) -> None:
        """Something that is an event by itself: a connection, a refusal, a burial."""
        level = self.levels.of(event, who, topic)
        if level < (ERRORS if event in _ERRORS else BATCHES) or topic == TOPIC:
            return
        if len(self._events) >= self.MOST:
            self.dropped += 1
            return
        self._events.append(Event(now, event, who=who, topic=topic, **fields))

    def count(
        self,
        now: int,
        event: str,
        who: str,
        topic: str,
        group: str = "",
        cause: str = "",
        *,
        messages: int,
        size: int = 0,
        offsets: tuple[tuple[int, int], ...] | list[tuple[int, int]] = (),
        published: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Something that happens all the time: counted, or at level ``messages`` told one by one.
        ``published``: when the messages were, and how many of them then."""
        if topic == TOPIC:
            return
        level = self.levels.of(event, who, topic)
        if level < BATCHES:
            return
        key = (event, who, topic, group, cause)
        seen = self._counted.get(key) if level == BATCHES else None
        if seen is None:
            kept = self._counted if level == BATCHES else self._events
            if len(kept) >= self.MOST:
                self.dropped += 1
                return
            seen = Event(now, event, who=who, topic=topic, group=group, cause=cause)
            if level == BATCHES:
                seen.since = now
                self._counted[key] = seen
            else:
                seen.offsets = list(offsets)
                self._events.append(seen)
        seen.time = now
        seen.messages += messages
        seen.batches += 1
        seen.bytes += size
        for moment, count in published:
            number = bucket(now - moment)
            seen.latency[number] = seen.latency.get(number, 0) + count

    def take(self, now: int) -> list[Event]:
        """The events since the last time."""
        events = [*self._events, *self._counted.values()]
        if self.dropped:
            events.append(Event(now, "error", cause="status_overflow", messages=self.dropped))
        self._events, self._counted, self.dropped = [], {}, 0
        events.sort(key=attrgetter("time"))
        return events


def parse_levels(raw: Mapping[str, Any]) -> Levels:
    levels = msgspec.convert(raw, Levels)
    for names in (levels.topics, levels.producers, levels.consumers, {"default": levels.default}):
        for name in names.values():
            if name not in LEVELS:
                raise msgspec.ValidationError(f"no level {name!r}: off, errors, batches or messages")
    return levels
