"""Which topics were made and deleted lately, for those who follow a pattern of names.

What is told costs as much as has changed, not as much as there is: whoever has been told of all topics once
gets the changes since then. A caller that is too far behind, or comes from another start of the terminal, is
told of all topics again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from landbridge.core.names import is_rule_topic, matches

#: Changes that are remembered.
MOST_CHANGES = 4096
#: The last word of the topics that dead letters go to, unless a group names another one.
DEAD = "dead"


class TopicChanges:
    def __init__(self) -> None:
        #: The number of changes since the terminal started.
        self.version = 0
        #: The names of the last ones, the latest last.
        self._recent: deque[str] = deque(maxlen=MOST_CHANGES)
        #: Who waits for a change, and the patterns of the names.
        self._waiting: dict[asyncio.Future[None], Sequence[str]] = {}

    def note(self, name: str) -> None:
        """A topic was made or is gone."""
        self.version += 1
        self._recent.append(name)
        for waiting, patterns in list(self._waiting.items()):
            if not waiting.done() and covers(patterns, name):
                waiting.set_result(None)

    def forget(self) -> None:
        """Topics have come or gone otherwise: whoever asks what has changed is told of all."""
        self.version += len(self._recent) + 1
        self._recent.clear()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def since(self, version: int) -> list[str] | None:
        """The names that have changed since a version; None where that is no longer known."""
        behind = self.version - version
        if not 0 <= behind <= len(self._recent):
            return None
        return sorted(set(list(self._recent)[len(self._recent) - behind :]))

    async def wait(self, patterns: Sequence[str], within: float) -> None:
        """Return when a topic that a pattern covers is made or deleted, at the latest after some seconds."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[changed] = patterns
        try:
            await asyncio.wait([changed], timeout=within)
        finally:
            del self._waiting[changed]
            changed.cancel()


def covers(patterns: Sequence[str], name: str) -> bool:
    """Does one of the patterns cover a topic? A wildcard doesn't cover topics of dead letters, or whoever
    handles ``orders.*`` would get again what was given up. A pattern that ends in ``.dead`` does. Nor does
    one cover topics of rules, whose messages are in their sources; one that begins with ``match.`` does."""
    is_dead, is_chosen = name.rpartition(".")[2] == DEAD, is_rule_topic(name)
    return any(
        (not is_dead or pattern.rpartition(".")[2] == DEAD)
        and (not is_chosen or pattern.partition(".")[0] == "match")
        and matches(pattern, name)
        for pattern in patterns
    )
