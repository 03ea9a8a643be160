"""The figures of a report: minutes, added up by step, topic, group, producer and consumer.

Spark adds minutes up to steps. What follows is plain Python over the few rows that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from landbridge.core.latency import Histogram, add, percentiles
from landbridge.core.time import SECOND
from landbridge.pipeline.functions import F
from landbridge.pipeline.jobs.activity.minutes import COUNTS, HISTOGRAMS, PERCENTILES, merged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Seconds of a step. The first one is taken that leaves at most MOST_STEPS of them.
STEPS = (60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400)
MOST_STEPS = 120


class Figures(msgspec.Struct):
    """The sums of a topic, a group, a producer, a consumer, a step, or of everything."""

    published: int = 0
    arrived: int = 0
    delivered: int = 0
    acked: int = 0
    requeued: int = 0
    expired: int = 0
    buried: int = 0
    refused: int = 0
    errors: int = 0
    connected: int = 0
    published_bytes: int = 0
    delivered_bytes: int = 0
    #: Times from the publish to the delivery, to the ack, and to the arrival in this LAN.
    waiting: Histogram = {}
    latency: Histogram = {}
    crossing: Histogram = {}
    #: The largest lag of a group; None where none was reported.
    lag: int | None = None
    causes: dict[str, int] = {}

    @property
    def taken(self) -> int:
        """Messages that have come into the topic."""
        return self.published + self.arrived

    @property
    def failures(self) -> int:
        return self.buried + self.refused + self.errors

    def add(self, row: Mapping[str, Any]) -> None:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + row[name])
        for name in HISTOGRAMS:
            add(getattr(self, name), row[name] or {})
        for cause, count in (row["causes"] or {}).items():
            self.causes[cause] = self.causes.get(cause, 0) + count
        if row["lag"] is not None:
            self.lag = max(self.lag or 0, row["lag"])

    def spans(self, name: str) -> list[float | None]:
        """Percentiles of a histogram in milliseconds, in the order of PERCENTILES."""
        found = percentiles(getattr(self, name), PERCENTILES.values())
        return [None if micros is None else micros / 1000 for micros in found]

    def document(self) -> dict[str, Any]:
        """For programs: with percentiles instead of histograms."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in COUNTS}
        for name in HISTOGRAMS:
            fields[f"{name}_ms"] = dict(zip(PERCENTILES, self.spans(name), strict=True))
        return fields | {"lag": self.lag}


class ActivityReport:
    """The figures of a span of time, in steps."""

    def __init__(self, begin: int, end: int, step: int) -> None:
        #: Microseconds: the beginning of the first step, and the end of the last one.
        self.begin, self.end = begin, end
        #: Seconds.
        self.step = step
        self.total = Figures()
        self.steps: dict[int, Figures] = {at: Figures() for at in range(begin, end, step * SECOND)}
        self.topics: dict[str, Figures] = {}
        self.groups: dict[tuple[str, str], Figures] = {}
        #: Producers by topic and name; consumers by topic, group and name.
        self.producers: dict[tuple[str, str], Figures] = {}
        self.consumers: dict[tuple[str, str, str], Figures] = {}
        #: By step: the messages that have come into a topic, and the largest lag of a group.
        self.topic_steps: dict[str, dict[int, int]] = {}
        self.lag_steps: dict[tuple[str, str], dict[int, int]] = {}
        #: The lag of each group right now; empty where the terminal wasn't asked.
        self.lags: dict[tuple[str, str], int] = {}

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) / SECOND

    @property
    def lag(self) -> int | None:
        """The lag of all groups: now, or else as it was last reported."""
        if self.lags:
            return sum(self.lags.values())
        last = [steps[max(steps)] for steps in self.lag_steps.values()]
        return sum(last) if last else None

    def add(self, row: Mapping[str, Any]) -> None:
        at, topic, group, role, who = (row[name] for name in ("step", "topic", "group", "role", "who"))
        for figures in (self.total, self.steps.setdefault(at, Figures())):
            figures.add(row)
        if not topic:
            return
        self.topics.setdefault(topic, Figures()).add(row)
        steps = self.topic_steps.setdefault(topic, {})
        steps[at] = steps.get(at, 0) + row["published"] + row["arrived"]
        if group:
            self.groups.setdefault((topic, group), Figures()).add(row)
            if row["lag"] is not None:
                lags = self.lag_steps.setdefault((topic, group), {})
                lags[at] = max(lags.get(at, 0), row["lag"])
        if role == "producer":
            self.producers.setdefault((topic, who), Figures()).add(row)
        elif role == "consumer":
            self.consumers.setdefault((topic, group, who), Figures()).add(row)

    def lag_of(self, topic: str, group: str) -> int | None:
        if self.lags:
            return self.lags.get((topic, group))
        steps = self.lag_steps.get((topic, group))
        return steps[max(steps)] if steps else None

    def busiest(self) -> list[str]:
        """The topics, those with the most messages first."""
        return sorted(self.topics, key=lambda name: (-self.topics[name].taken, name))

    def slowest(self) -> list[tuple[str, str, str]]:
        """The consumers, by the 99th percentile of the time to the ack, the slowest first. Those without an
        ack come last, by their time to the delivery."""

        def speed(key: tuple[str, str, str]) -> tuple[float, ...]:
            figures = self.consumers[key]
            spans = (figures.spans(name)[-1] for name in ("latency", "waiting"))
            return tuple(1.0 if span is None else -span for span in spans)

        return sorted(self.consumers, key=lambda key: (speed(key), key))

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "begin": self.begin,
            "end": self.end,
            "step": self.step,
            "total": self.total.document() | {"lag": self.lag},
            "steps": [{"begin": at} | figures.document() for at, figures in sorted(self.steps.items())],
            "topics": [{"topic": name} | self.topics[name].document() for name in self.busiest()],
            "groups": [
                {"topic": topic, "group": group}
                | figures.document()
                | {"lag": self.lag_of(topic, group), "most_lag": figures.lag}
                for (topic, group), figures in sorted(self.groups.items())
            ],
            "producers": [
                {"topic": topic, "who": who} | figures.document()
                for (topic, who), figures in sorted(self.producers.items())
            ],
            "consumers": [
                {"topic": topic, "group": group, "who": who} | self.consumers[topic, group, who].document()
                for topic, group, who in self.slowest()
            ],
            "causes": self.total.causes,
        }


def step_for(begin: int, end: int) -> int:
    return next((step for step in STEPS if end - begin <= MOST_STEPS * step * SECOND), STEPS[-1])


def compile_report(
    minutes: DataFrame,
    *,
    since: int | None = None,
    now: int,
    lags: Mapping[tuple[str, str], int] | None = None,
) -> ActivityReport:
    """The report of the minutes from ``since``, or from the first one, to ``now``."""
    if since is not None:
        minutes = minutes.where(F.unix_micros("minute") >= since // (60 * SECOND) * 60 * SECOND)
    minutes = minutes.cache()  # They are read twice: for the first minute, and for the sums.
    try:
        first = minutes.agg(F.unix_micros(F.min("minute")).alias("first")).collect()[0]["first"]
        begin = since if since is not None else now if first is None else first
        step = step_for(begin, now)
        cut = (F.floor(F.unix_micros("minute") / (step * SECOND)) * step).cast("timestamp")
        rows = merged(minutes.withColumn("minute", cut)).withColumn("step", F.unix_micros("minute")).collect()
    finally:
        minutes.unpersist()
    return summarise((row.asDict() for row in rows), begin, now, step, lags or {})


def summarise(
    rows: Iterable[Mapping[str, Any]], begin: int, now: int, step: int, lags: Mapping[tuple[str, str], int]
) -> ActivityReport:
    width = step * SECOND
    report = ActivityReport(begin // width * width, now // width * width + width, step)
    for row in rows:
        report.add(row)
    report.lags = dict(lags)
    return report
