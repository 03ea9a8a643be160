"""How a service tells the terminal of itself: what it is when it starts, and how it is while it runs.

A service whose token is its own, or an admin's, describes itself by ``service.update`` or
``service.register``. Then it sends a heartbeat every few seconds, with what its endpoints have done. A
service whose token may do neither runs all the same, and so does one at a terminal that is older.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from landbridge.core.latency import Histogram, bucket, percentiles
from landbridge.core.time import SECOND
from landbridge.core.trust.service import LONGEST_TEXT, ServiceEndpoint, service_spec
from landbridge.errors import BusError, Forbidden, UnknownService

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.protocol.operations import EndpointFigures, Health

log = logging.getLogger("landbridge")

#: Seconds between two heartbeats.
HEARTBEAT_EVERY = 10.0
#: Characters of an error that a heartbeat repeats.
LONGEST_ERROR = 500
#: Endpoints that a service tells of.
MOST_ENDPOINTS = 100


class DescribedRoute(Hashable, Protocol):
    """A route of a service, as far as it is described."""

    @property
    def handler(self) -> Callable[..., Any]:
        """What handles its messages."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Where its messages come from: names and patterns."""


class EndpointCount:
    """What one endpoint has done since the service was made."""

    def __init__(self) -> None:
        self.requests = self.errors = 0
        self.last_error = ""
        #: Microseconds, in all.
        self.processing = 0
        self._spans: Histogram = {}

    def took(self, span: int) -> None:
        """A message was handled, well or not, in so many microseconds."""
        self.requests += 1
        self.processing += span
        number = bucket(span)
        self._spans[number] = self._spans.get(number, 0) + 1

    def figures(self, name: str) -> EndpointFigures:
        """As a heartbeat has them."""
        from landbridge.protocol.operations import EndpointFigures

        p50, p99 = (None if span is None else span / SECOND for span in percentiles(self._spans, (0.5, 0.99)))
        return EndpointFigures(
            name=name,
            requests=self.requests,
            errors=self.errors,
            last_error=self.last_error,
            processing=self.processing / SECOND,
            p50=p50,
            p99=p99,
        )


class Registration:
    """One service, as it tells of itself. ``health`` and ``detail`` are the program's to set."""

    def __init__(
        self, name: str, *, version: str, description: str, owner: str, metadata: dict[str, str]
    ) -> None:
        options = {"version": version, "description": description, "owner": owner, "metadata": metadata}
        #: What was given. A mistake is raised here, not when the service runs.
        self.options = {option: value for option, value in options.items() if value}
        service_spec({"name": name, **self.options})
        self.name, self.version = name, version
        #: Tells this process from others of the same service.
        self.instance = f"{os.getpid()}-{os.urandom(4).hex()}"
        self.health: Health = "ok"
        self.detail = ""
        self._counts: dict[Hashable, EndpointCount] = {}

    def count(self, route: Hashable) -> EndpointCount:
        """The figures of a route."""
        return self._counts.setdefault(route, EndpointCount())

    async def timed(self, route: Hashable, handle: Callable[[], Awaitable[None]]) -> None:
        """Handle a message of a route, and count it."""
        begin = time.perf_counter_ns()
        try:
            await handle()
        finally:
            self.count(route).took((time.perf_counter_ns() - begin) // 1000)

    def failed(self, route: Hashable, error: BaseException) -> None:
        """A message of a route could not be handled."""
        count = self.count(route)
        count.errors += 1
        count.last_error = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]

    async def tell(self, bus: Bus, routes: Sequence[DescribedRoute]) -> None:
        """Describe the service, then send heartbeats until cancelled. Returns where the terminal won't hear
        of them; no error of it concerns the service."""
        named = dict(zip(names_of(routes), routes, strict=True))
        try:
            await self._describe(bus, named)
        except BusError as error:
            log.info("%s is not registered by itself: %s", self.name, error)
            return
        while True:
            figures = [self.count(route).figures(name) for name, route in named.items()][:MOST_ENDPOINTS]
            try:
                await bus.services.heartbeat(
                    self.name,
                    health=self.health,
                    detail=self.detail[:LONGEST_TEXT],
                    instance=self.instance,
                    endpoints=figures,
                )
            except BusError as error:
                if bus.closed is not None:
                    return
                log.debug("a heartbeat of %s was refused: %s", self.name, error)
            await asyncio.sleep(HEARTBEAT_EVERY)

    async def _describe(self, bus: Bus, named: dict[str, DescribedRoute]) -> None:
        endpoints = [
            ServiceEndpoint(
                name=name,
                topic=", ".join(route.topics)[:LONGEST_TEXT],
                reply=bool(getattr(route, "reply", False)),
                description=(route.handler.__doc__ or "").strip().partition("\n")[0][:LONGEST_TEXT],
            )
            for name, route in named.items()
        ][:MOST_ENDPOINTS]
        options: dict[str, Any] = {
            **self.options,
            "endpoints": msgspec.to_builtins(endpoints),
            "subscribes": sorted({topic for route in named.values() for topic in route.topics})[
                :MOST_ENDPOINTS
            ],
        }
        try:
            await bus.call("service.update", name=self.name, **options)
        except UnknownService:
            await bus.call("service.register", name=self.name, credential=False, **options)
        except Forbidden:
            # Who answers for a service is for an admin to say.
            if options.pop("owner", None) is None:
                raise
            await bus.call("service.update", name=self.name, **options)


def names_of(routes: Sequence[DescribedRoute]) -> list[str]:
    """A name for each route: that of its handler, numbered where several have the same."""
    names: list[str] = []
    for route in routes:
        given = getattr(route.handler, "__name__", "handler")
        name = re.sub(r"[^A-Za-z0-9_-]", "_", given)[:100] or "handler"
        number = 2
        found = name
        while found in names:
            found, number = f"{name}-{number}", number + 1
        names.append(found)
    return names
