"""Measurements of links, as messages of the topic ``$links``: one for each link state that is told or heard.

Link states reach every terminal of a customer anyway, so a single terminal that writes them down records the
whole bus. docs/pipeline-routes.md says what the job ``routes`` makes of them.
"""

from __future__ import annotations

from itertools import zip_longest

import msgspec

from landbridge.core.log.batch import Batch, build
from landbridge.core.log.retention import Retention
from landbridge.core.routing.linkstate import LinkState
from landbridge.core.topic import TopicSpec
from landbridge.crossing.ground import Ground

TOPIC = "$links"
#: Seconds and bytes for which measurements are kept.
MAX_AGE, MAX_BYTES = 14 * 86400.0, 1 << 30
#: Link states that may wait to be written. Further ones are counted and dropped, as nobody routes by them.
MOST = 10_000


class MeasuredLink(msgspec.Struct, frozen=True):
    to: str  #: id of the other end
    cost: float  #: ms, as the terminal tells it
    rtt: float | None  #: ms; None if the terminal doesn't tell it
    loss: float | None  #: share of late or lost probes, 0 to 0.5


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What one terminal says about its links, until it says something else."""

    customer: str
    terminal: str
    name: str
    epoch: int
    sequence: int
    time: int  #: microseconds, by the terminal's clock
    carries: bool  #: whether parcels may pass through it that are neither from nor for it
    links: list[MeasuredLink]


_encode = msgspec.json.Encoder().encode


class Measurements:
    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        #: Encoded measurements, to be written with the next batch.
        self._waiting: list[bytes] = []
        #: Measurements dropped since the last write.
        self._dropped = 0

    def note(self, state: LinkState) -> None:
        if len(self._waiting) >= MOST:
            self._dropped += 1
            return
        entry = self._ground.entry(state.origin)
        links = [
            MeasuredLink(to, cost, *((None, None) if told is None else (told[0] / 10, told[1] / 1000)))
            for (to, cost), told in zip_longest(state.links.items(), state.quality)
        ]
        measurement = Measurement(
            customer=self._ground.identity.customer,
            terminal=state.origin,
            name=self._ground.name_of(state.origin),
            epoch=state.epoch,
            sequence=state.sequence,
            time=state.time,
            carries=entry is not None and entry.carries,
            links=links,
        )
        self._waiting.append(_encode(measurement))

    def write(self) -> None:
        """Write the waiting measurements to the topic, in one batch."""
        if not self._waiting:
            return
        broker = self._ground.broker
        if self._dropped:
            self._ground.note("error", topic=TOPIC, cause="links_overflow", messages=self._dropped)
            self._dropped = 0
        payloads, self._waiting = self._waiting, []
        batch = Batch.decode(build(payloads, id=broker.new_id(), time=broker.clock()))
        topic = broker.topics.get(TOPIC)
        if topic is None:
            retention = Retention(max_age=MAX_AGE, max_bytes=MAX_BYTES, discard="any")
            topic = broker.table.create_topic(TopicSpec(name=TOPIC, retention=retention))

        topic.writer.tell(lambda commit: broker.committing.append(commit, topic, batch))
