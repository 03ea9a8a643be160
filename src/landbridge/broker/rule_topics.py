"""What is different of a rule's topic: in which unit it lives, who may read it, and what is done with its
messages before they are delivered."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from landbridge.core.middleware.spec import AnyStage, RedactStage, TransformStage, is_late
from landbridge.core.names import is_reserved, is_rule_topic
from landbridge.core.topic import TopicSpec
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import Forbidden


class Specified(Protocol):
    """A topic, as far as its options say what is different."""

    @property
    def spec(self) -> TopicSpec: ...


def home_of(topics: Mapping[str, Specified], name: str) -> str:
    """The topic in whose unit a topic lives: of a rule's topic and its dead letters that of its source."""
    found = topics.get(name.removesuffix(".dead"))
    return name if found is None or found.spec.rule is None else found.spec.rule.source


def unit_of(topic: str, units: int) -> int:
    """The unit that a topic lives in. The terminal's own topics are in unit 0, stages apart; a dead-letter
    topic with the default name lives with its topic. A rule's topic lives where ``home_of`` it does."""
    if is_reserved(topic) and not topic.startswith("$stage."):
        return 0
    return zlib.crc32(topic.removesuffix(".dead").encode()) % units


def views_stages(topics: Mapping[str, Specified], spec: TopicSpec) -> tuple[AnyStage, ...]:
    """The stages before delivery, with those of its source for a rule's topic: whoever may not see something
    there may not see it here. The source's exceptions are for groups of the source."""
    source = None if spec.rule is None else topics.get(spec.rule.source)
    if source is None:
        return spec.middleware
    late = [
        stage
        for stage in source.spec.middleware
        if isinstance(stage, RedactStage | TransformStage) and is_late(stage)
    ]
    return (*(replace(stage, except_groups=()) for stage in late), *spec.middleware)


def may(topics: Mapping[str, Specified], scopes: Scopes, verb: str, name: str) -> bool:
    """Do scopes allow something with a topic? Who may read its source may read a rule's topic and its dead
    letters, or who has a scope that spells out its name; a wildcard, which may not cover the source, is not
    enough."""
    if verb == "publish" and is_rule_topic(name):
        return scopes.admin  # a wildcard gives no right there: nobody publishes to it
    source = home_of(topics, name)
    if verb == "subscribe" and source == name and is_rule_topic(name.removesuffix(".dead")):
        # What is left of a rule that was deleted: which source its dead letters are of isn't known any more.
        return scopes.admin or name in scopes.subscribe
    if verb != "subscribe" or source == name:
        return scopes.may(verb, name)
    return scopes.may(verb, source) or name in scopes.subscribe


def demand(topics: Mapping[str, Specified], scopes: Scopes, verbs: Sequence[str], name: str) -> None:
    """Forbidden unless scopes allow one of the verbs with a topic."""
    if not any(may(topics, scopes, verb, name) for verb in verbs):
        verb = verbs[-1]
        needed = home_of(topics, name) if verb == "subscribe" else name
        raise Forbidden(f"the token has no scope {verb}:{needed}", hint=f"needs {verb}:{needed}")


def demand_read(topics: Mapping[str, Specified], scopes: Scopes, name: str) -> None:
    """Forbidden for whoever may not read a topic."""
    demand(topics, scopes, ("subscribe",), name)
