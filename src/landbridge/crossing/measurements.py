"""Measurements of links, as messages of the topic ``$links``: one for each link state that is told or heard.

Link states reach every terminal of a customer anyway, so one that writes them down has the whole bus. What
the job ``routes`` makes of them is in docs/pipeline-routes.md.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from landbridge.core.log.batch import Batch, build
from landbridge.core.log.retention import Retention
from landbridge.core.log.topic import TopicSpec
from landbridge.core.routing.linkstate import LinkState

if TYPE_CHECKING:
    from landbridge.broker.commit import Commit
    from landbridge.crossing.network import Network

TOPIC = "$links"
#: How long they are kept, in seconds, and how much of them.
MAX_AGE, MAX_BYTES = 14 * 86400.0, 1 << 30
#: Link states that wait to be written; past that they are counted and dropped, as nobody routes by them.
MOST = 10_000


class Link(msgspec.Struct, frozen=True):
    to: str  #: id of the other end
    cost: float  #: ms, as told
    rtt: float | None  #: ms; None: not told
    loss: float | None  #: share, 0 to 0.5


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What one terminal says of its links, until it says something else."""

    customer: str
    terminal: str
    name: str
    epoch: int
    sequence: int
    time: int  #: microseconds, by the terminal's clock
    carries: bool  #: may parcels pass through it that are neither from nor for it?
    links: list[Link]


_encode = msgspec.json.Encoder().encode


class Measurements:
    def __init__(self, network: Network) -> None:
        self._network = network
        self._waiting: list[bytes] = []
        #: Since the last write.
        self._dropped = 0

    def note(self, state: LinkState) -> None:
        if len(self._waiting) >= MOST:
            self._dropped += 1
            return
        network = self._network
        entry = network.entry(state.origin)
        links = [
            Link(to, cost, None, None) if told is None else Link(to, cost, told[0] / 10, told[1] / 1000)
            for (to, cost), told in zip_longest(state.links.items(), state.quality)
        ]
        measurement = Measurement(
            customer=network.identity.customer,
            terminal=state.origin,
            name=network.name_of(state.origin),
            epoch=state.epoch,
            sequence=state.sequence,
            time=state.time,
            carries=entry is not None and entry.mode == "server" and entry.transit,
            links=links,
        )
        self._waiting.append(_encode(measurement))

    def write(self) -> None:
        """Put what has gathered into the topic, in one batch."""
        if not self._waiting:
            return
        broker = self._network.broker
        if self._dropped:
            self._network.note("error", topic=TOPIC, cause="links_overflow", messages=self._dropped)
            self._dropped = 0
        payloads, self._waiting = self._waiting, []
        batch = Batch.decode(build(payloads, id=broker.new_id(), time=broker.clock()))
        topic = broker.topics.get(TOPIC)
        if topic is None:
            retention = Retention(max_age=MAX_AGE, max_bytes=MAX_BYTES, discard="any")
            topic = broker.create_topic(TopicSpec(name=TOPIC, retention=retention))

        def work(commit: Commit) -> None:
            topic.save(commit)
            commit.append(topic, batch)

        broker.committer.put(work)
