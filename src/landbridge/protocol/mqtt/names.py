"""Topic names and filters of MQTT as topics and patterns of the bus.

``/`` is ``.``: the topic ``plant/7/temperature`` is the topic ``plant.7.temperature``, both ways and one to
one. So each level is a word of a name of the bus: letters, digits, ``_`` and ``-``, and at least one of them.
What can't be such a name is refused, and never changed: two topics of MQTT would become one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from landbridge.core.names import MAX_LENGTH, check_name, check_pattern
from landbridge.errors import BadName

_HINT = (
    "levels of letters, digits, '_' and '-', joined by '/', at most 200 characters: 'plant/7' is the topic "
    "'plant.7'"
)
_LEVEL = re.compile(r"\$?[A-Za-z0-9_-]+")
SHARE = "$share"


class TopicFilter(NamedTuple):
    """A filter, as the bus has it."""

    #: A name, or a pattern with ``*`` and ``#``.
    pattern: str
    #: The group of a shared subscription; None: it is not shared.
    group: str | None


@lru_cache(maxsize=4096)
def topic_of(name: str) -> str:
    """The topic of the bus that a topic name of MQTT stands for. BadName where there is none."""
    if len(name) > MAX_LENGTH or not all(map(_LEVEL.fullmatch, name.split("/"))):
        raise BadName(f"no topic can have the name {name[:60]!r}", hint=_HINT)
    return _checked(name.replace("/", "."), name)


def name_of(topic: str) -> str:
    """The topic name of MQTT that a topic of the bus has."""
    return topic.replace(".", "/")


@lru_cache(maxsize=4096)
def filter_of(filter: str) -> TopicFilter:
    """A topic filter of MQTT as a pattern, and the group that it shares. BadName where it is none."""
    group = None
    rest = filter
    if filter == SHARE or filter.startswith(SHARE + "/"):
        _, group, rest = [*filter.split("/", 2), "", ""][:3]
        if not rest or "+" in group or "#" in group:
            raise BadName(f"the shared filter {filter[:60]!r}", hint=f"{SHARE}/GROUP/FILTER")
        check_name(group, "group")
    levels = rest.split("/")
    for index, level in enumerate(levels):
        is_last = index == len(levels) - 1
        if not (level == "+" or (level == "#" and is_last) or _LEVEL.fullmatch(level)):
            raise BadName(f"the filter {filter[:60]!r} fits no topic", hint=_HINT)
    pattern = ".".join("*" if level == "+" else level for level in levels)
    if "*" in pattern or "#" in pattern:
        return TopicFilter(check_pattern(pattern), group)
    return TopicFilter(_checked(pattern, filter), group)


def _checked(topic: str, name: str) -> str:
    try:
        return check_name(topic, "topic")
    except BadName:
        raise BadName(f"no topic can have the name {name[:60]!r}", hint=_HINT) from None
