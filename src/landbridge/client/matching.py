"""Subscribing by query: the messages that say what somebody wants, whichever topic the query has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from landbridge.client.line import TerminalLine
from landbridge.client.many_topics import ManyTopics
from landbridge.core.names import CONTENT_TOPIC, is_pattern
from landbridge.errors import BadRequest


class MatchedTopics(ManyTopics):
    """A consumer of the messages that a query chooses, made by ``bus.subscribe(match={…})``. Opening it makes
    the query's rule where there is none, and then the consumer reads the rule's topic. A query has a topic
    for each source."""

    def __init__(
        self,
        bus: TerminalLine,
        new_number: Callable[[], int],
        match: Mapping[str, Any],
        sources: Sequence[str],
        group: str | None,
        prefetch: int,
        start: Any,
    ) -> None:
        super().__init__(bus, new_number, sources, group, prefetch, start)
        self._match, self._sources = dict(match), list(sources)

    async def open(self) -> Self:
        """Make the rules that are missing, and subscribe to their topics."""
        if not self._open and not self._closed:
            made = [
                await self._bus.call("rule.create", match=self._match, source=source)
                for source in self._sources
            ]
            self._named = [each["rule"] for each in made]
            self.topic = ", ".join(self._named)
        return await super().open()


def sources_of(topic: str | Sequence[str] | None) -> list[str]:
    """The topics that a query chooses from, as ``bus.subscribe`` has them."""
    found = [CONTENT_TOPIC] if topic is None else [topic] if isinstance(topic, str) else list(topic)
    for source in found:
        if is_pattern(source):
            raise BadRequest(
                f"{source[:60]!r} is a pattern",
                hint="name the topics that the query chooses from",
            )
    return found
