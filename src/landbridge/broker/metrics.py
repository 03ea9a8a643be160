"""Prometheus metrics, made from the broker's own counters at the moment of the scrape: the hot path counts in
plain integers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from landbridge.broker.broker import Broker
from landbridge.core.time import SECOND

#: Topics and groups with series of their own; a scrape stays bounded.
MOST_SERIES = 10_000


class _Collected(Collector):
    """The figures of one scrape."""

    def __init__(self, broker: Broker, connections: int) -> None:
        self._broker = broker
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        broker = self._broker
        for name, value in msgspec.structs.asdict(broker.totals).items():
            yield CounterMetricFamily(
                f"landbridge_{name}", f"{name.replace('_', ' ')} since the start", value
            )
        yield CounterMetricFamily(
            "landbridge_commits", "commits to the store since the start", broker.commits
        )
        yield GaugeMetricFamily("landbridge_connections", "connections now", self._connections)
        yield GaugeMetricFamily("landbridge_topics", "topics now", len(broker.topics))
        if broker.room.free is not None:
            yield GaugeMetricFamily(
                "landbridge_disk_free_bytes", "bytes free on the disk of the data", broker.room.free
            )
        yield GaugeMetricFamily(
            "landbridge_store_low", "1 while there is no room for messages", int(broker.room.is_low)
        )
        yield GaugeMetricFamily(
            "landbridge_damage_findings", "what was found damaged since the start", len(broker.damage.found)
        )
        paused = GaugeMetricFamily("landbridge_paused", "what operators have paused", labels=["what"])
        for what, count in broker.pauses.counts.items():
            paused.add_metric([what], count)
        yield paused
        yield GaugeMetricFamily("landbridge_cache_bytes", "batches held in memory", broker.cache.size)
        stored = GaugeMetricFamily("landbridge_topic_bytes", "bytes stored", labels=["topic"])
        ends = CounterMetricFamily("landbridge_topic_messages", "offset of the topic's end", labels=["topic"])
        lag = GaugeMetricFamily("landbridge_group_lag", "messages not settled", labels=["topic", "group"])
        held = GaugeMetricFamily("landbridge_group_leases", "leases out", labels=["topic", "group"])
        closed = GaugeMetricFamily(
            "landbridge_group_closed_until_seconds",
            "when a group that is closed now opens again, as a Unix time",
            labels=["topic", "group"],
        )
        left = MOST_SERIES
        for topic in broker.topics.values():
            if left <= 0:
                break
            stored.add_metric([topic.name], topic.log.bytes)
            ends.add_metric([topic.name], topic.log.end)
            left -= 1
            for group in topic.groups.values():
                if group.durable:
                    lag.add_metric([topic.name, group.name], group.delivery.cursor.lag(topic.log.end))
                    held.add_metric([topic.name, group.name], len(group.delivery.leases))
                    left -= 1
                    if (opens_at := group.closed_until()) is not None:
                        closed.add_metric([topic.name, group.name], opens_at / SECOND)
        yield from (stored, ends, lag, held, closed)
        yield from _of_gateways(broker)


def _of_gateways(broker: Broker) -> Iterator[Metric]:
    families: dict[str, Metric] = {}
    for figure in islice((figure for figures in broker.figures for figure in figures()), MOST_SERIES):
        family = families.get(figure.name)
        if family is None:
            kind = CounterMetricFamily if figure.counts else GaugeMetricFamily
            family = families[figure.name] = kind(figure.name, figure.help, labels=list(figure.labels))
        family.add_metric(list(figure.labels.values()), figure.value)  # type: ignore[attr-defined]
    yield from families.values()


def render(broker: Broker, connections: int) -> str:
    """The metrics of a terminal with so many connections, in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(broker, connections))
    return generate_latest(registry).decode()
