"""What the terminal knows of services that run: when it heard from them, and what their heartbeats say. It is
all in memory: after a start of the terminal, the next heartbeat tells all again."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable

from landbridge.core.text import printable
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

#: Microseconds for which a heartbeat says how a service is, and after which a process is forgotten.
FRESH, FORGET_AFTER = 60 * SECOND, 3600 * SECOND
#: Processes of one service, endpoints of one heartbeat, and characters of its texts.
MOST_INSTANCES, MOST_ENDPOINTS = 20, 100
LONGEST_NAME, LONGEST_TEXT, LONGEST_ERROR = 200, 2000, 500
_WORSE: list[table.Health] = ["ok", "degraded", "failing"]


class Instance:
    """One process of a service, by its last heartbeat."""

    def __init__(self, now: int) -> None:
        self.started_at = now
        self.beat_at = now
        self.said = table.ServiceHeartbeat("")


class Heartbeats:
    """Signs of life, by service."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        #: Service → when it was last heard of.
        self._seen_at: dict[str, int] = {}
        #: Service → its processes by name; the one that has been silent for longest stands first.
        self._instances: dict[str, OrderedDict[str, Instance]] = {}

    def heard(self, service: str, at: int) -> None:
        """Something has come from a service."""
        self._seen_at[service] = max(at, self._seen_at.get(service, 0))

    def seen_at(self, service: str) -> int | None:
        """When the service was last heard of; None: not since the start."""
        return self._seen_at.get(service)

    def forget(self, service: str) -> None:
        """The service was removed."""
        self._seen_at.pop(service, None)
        self._instances.pop(service, None)

    def beat(self, said: table.ServiceHeartbeat) -> None:
        """A heartbeat has come. BadRequest for one that is too large or makes no sense."""
        _check(said)
        now = self._clock()
        self.heard(said.name, now)
        instances = self._instances.setdefault(said.name, OrderedDict())
        found = instances.pop(said.instance, None) or Instance(now)
        found.beat_at, found.said = now, said
        instances[said.instance] = found
        if len(instances) > MOST_INSTANCES:
            instances.popitem(last=False)

    def instances(self, service: str) -> dict[str, Instance]:
        """The processes of a service that have told of themselves within the last hour."""
        found = self._instances.get(service, OrderedDict())
        before = self._clock() - FORGET_AFTER
        return {name: each for name, each in sorted(found.items()) if each.beat_at > before}

    def health(self, service: str) -> table.Health | None:
        """The worst of what its processes have said within the last minute; None: nothing."""
        before = self._clock() - FRESH
        said = [each.said.health for each in self.instances(service).values() if each.beat_at > before]
        return max(said, key=_WORSE.index, default=None)

    def rows(self, service: str) -> list[table.InstanceStats]:
        """Its processes."""
        return [
            table.InstanceStats(
                instance=name,
                health=each.said.health,
                detail=printable(each.said.detail[:LONGEST_TEXT]),
                started_at=each.started_at,
                seen_at=each.beat_at,
            )
            for name, each in self.instances(service).items()
        ]

    def endpoints(self, service: str) -> list[table.EndpointStats]:
        """Its endpoints, with the figures of all processes."""
        found: dict[str, list[table.EndpointFigures]] = {}
        # The process that was heard of last says what the last error was.
        for each in sorted(self.instances(service).values(), key=lambda each: each.beat_at):
            for figures in each.said.endpoints:
                found.setdefault(figures.name, []).append(figures)
        return [_sum(name, found[name]) for name in sorted(found)]


def _sum(name: str, parts: list[table.EndpointFigures]) -> table.EndpointStats:
    errors = [part.last_error for part in parts if part.last_error]
    return table.EndpointStats(
        name=name,
        requests=sum(part.requests for part in parts),
        errors=sum(part.errors for part in parts),
        last_error=printable(errors[-1][:LONGEST_ERROR]) if errors else "",
        processing=sum(part.processing for part in parts),
        p50=_highest(part.p50 for part in parts),
        p99=_highest(part.p99 for part in parts),
    )


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _check(said: table.ServiceHeartbeat) -> None:
    if len(said.endpoints) > MOST_ENDPOINTS:
        raise BadRequest(f"a heartbeat of {len(said.endpoints)} endpoints, allowed are {MOST_ENDPOINTS}")
    names = [said.instance, *(each.name for each in said.endpoints)]
    if not all(len(name) <= LONGEST_NAME and (name.isprintable()) for name in names):
        raise BadRequest(
            f"an instance or endpoint whose name is not up to {LONGEST_NAME} printable characters"
        )
    texts = [(said.detail, LONGEST_TEXT), *((each.last_error, LONGEST_ERROR) for each in said.endpoints)]
    if any(len(text) > most for text, most in texts):
        raise BadRequest(f"a detail above {LONGEST_TEXT} characters, or an error above {LONGEST_ERROR}")
    for each in said.endpoints:
        figures = (each.requests, each.errors, each.processing, each.p50 or 0.0, each.p99 or 0.0)
        if not all(0 <= figure < 1 << 62 and math.isfinite(figure) for figure in figures):
            raise BadRequest(f"figures of the endpoint {each.name!r} that can't be")
