"""Scopes: what the bearer of a token may do.

publish:PATTERN      publish to the topics that the pattern covers (and create them, where allowed)
subscribe:PATTERN    read them, in any group
documents:PATTERN    read and write the documents of the collections that the pattern covers
observe              see everything and change nothing: topics, groups, services, metrics, but no payloads
operate              observe, and change topics, groups, status levels and the state of services
admin                everything, also registering services, their credentials and tokens
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from landbridge.core.changes import TOPIC as CHANGES
from landbridge.core.names import check_pattern, covers, matches
from landbridge.errors import BadRequest, Forbidden

VERBS = ("publish", "subscribe", "documents")
#: Scopes without a pattern. Each includes those before it.
RANKS = ("observe", "operate", "admin")


@dataclass(frozen=True, slots=True)
class Scopes:
    admin: bool
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    documents: tuple[str, ...]
    #: The highest of RANKS that was given, counted from 1; 0 for none.
    rank: int = 0

    @classmethod
    def parse(cls, scopes: Iterable[str]) -> Scopes:
        rank = 0
        patterns: dict[str, list[str]] = {verb: [] for verb in VERBS}
        for scope in scopes:
            verb, colon, pattern = scope.partition(":")
            if scope in RANKS:
                rank = max(rank, RANKS.index(scope) + 1)
            elif verb in patterns and colon:
                patterns[verb].append(check_pattern(pattern))
            else:
                raise BadRequest(
                    f"no scope {scope[:60]!r}",
                    hint="publish:PATTERN, subscribe:PATTERN, documents:PATTERN, observe, operate or admin",
                )
        given = {verb: tuple(found) for verb, found in patterns.items()}
        return cls(admin=rank == len(RANKS), rank=rank, **given)

    def may(self, verb: str, topic: str) -> bool:
        if self.admin or (topic == CHANGES and verb == "subscribe" and self.has("observe")):
            return True
        patterns: tuple[str, ...] = getattr(self, verb)
        return any(matches(pattern, topic) for pattern in patterns)

    def demand(self, verb: str, topic: str) -> None:
        if not self.may(verb, topic):
            raise Forbidden(f"the token has no scope {verb}:{topic}", hint=f"needs {verb}:{topic}")

    def as_texts(self) -> list[str]:
        """As ``parse`` takes them."""
        ranks = [RANKS[self.rank - 1]] if self.rank else []
        return ranks + [f"{verb}:{pattern}" for verb in VERBS for pattern in getattr(self, verb)]

    def has(self, rank: str) -> bool:
        """Whether they include one of RANKS."""
        return self.rank > RANKS.index(rank)

    def demand_rank(self, rank: str, what: str) -> None:
        if not self.has(rank):
            raise Forbidden(f"the token doesn't allow to {what}", hint=f"needs the scope {rank}")

    def cover(self, other: Scopes) -> bool:
        """Whether these allow all that the others allow. Each pattern of the others has to be within one
        pattern of these."""
        if self.admin:
            return True
        return self.rank >= other.rank and all(
            any(covers(wide, narrow) for wide in getattr(self, verb))
            for verb in VERBS
            for narrow in getattr(other, verb)
        )
