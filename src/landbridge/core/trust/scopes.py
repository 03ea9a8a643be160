"""Scopes: what the bearer of a token may do.

publish:PATTERN      publish to the topics that the pattern covers (and create them, where allowed)
subscribe:PATTERN    read them, in any group
documents:PATTERN    read and write the documents of the collections that the pattern covers
admin                everything: topics, groups, tokens, status levels, metrics
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from landbridge.core.names import check_pattern, matches
from landbridge.errors import BadRequest, Forbidden

VERBS = ("publish", "subscribe", "documents")


@dataclass(frozen=True, slots=True)
class Scopes:
    admin: bool
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    documents: tuple[str, ...]

    @classmethod
    def parse(cls, scopes: Iterable[str]) -> Scopes:
        admin = False
        patterns: dict[str, list[str]] = {verb: [] for verb in VERBS}
        for scope in scopes:
            verb, colon, pattern = scope.partition(":")
            if scope == "admin":
                admin = True
            elif verb in patterns and colon:
                patterns[verb].append(check_pattern(pattern))
            else:
                raise BadRequest(
                    f"no scope {scope[:60]!r}",
                    hint="publish:PATTERN, subscribe:PATTERN, documents:PATTERN or admin",
                )
        return cls(admin, *(tuple(patterns[verb]) for verb in VERBS))

    def may(self, verb: str, topic: str) -> bool:
        if self.admin:
            return True
        patterns: tuple[str, ...] = getattr(self, verb)
        return any(matches(pattern, topic) for pattern in patterns)

    def demand(self, verb: str, topic: str) -> None:
        if not self.may(verb, topic):
            raise Forbidden(f"the token has no scope {verb}:{topic}", hint=f"needs {verb}:{topic}")

    def demand_admin(self, what: str) -> None:
        if not self.admin:
            raise Forbidden(f"the token doesn't allow to {what}", hint="needs the scope admin")
