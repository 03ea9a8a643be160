"""The rules for names: topics, groups, services. Words joined by dots, so that patterns can speak of them.

A leading ``$`` marks what belongs to the terminal itself (``$status``); no pattern matches it unless it is
spelled out.
"""

from __future__ import annotations

import re
from functools import lru_cache

from landbridge.errors import BadName

MAX_LENGTH = 200
#: The topic of messages that are published without a topic, and that of those which rules can't decide about.
CONTENT_TOPIC, CONTENT_DEAD = "$content", "$content.dead"
#: The group of a source that is the rules' place in it.
RULES_GROUP = "$rules"
#: Characters of the name of a rule's topic after "match.": 128 bits, so that nobody finds two queries of one
#: name.
RULE_TOPIC_DIGITS = 32
_RULE_TOPIC = re.compile(rf"match\.[0-9a-f]{{{RULE_TOPIC_DIGITS}}}")
_NAME = re.compile(r"\$?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PATTERN_WORD = re.compile(r"\*|#|\$?[A-Za-z0-9_-]+")


def check_name(name: str, what: str) -> str:
    if len(name) > MAX_LENGTH or not _NAME.fullmatch(name):
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise BadName(f"{shown!r} can't be the name of a {what}", hint=_hint(name))
    return name


def _hint(name: str) -> str:
    """For those who know other buses: in NATS '>', in MQTT '/' and '+'."""
    if ">" in name or "+" in name or "/" in name:
        return "words are joined by '.'; in a pattern '*' is one word and '#' any number"
    return BadName.default_hint


def is_reserved(name: str) -> bool:
    """Is it the name of a topic that the terminal alone writes?"""
    return name.startswith("$")


def is_rule_topic(name: str) -> bool:
    """Does it have the form of the names of rules' topics? Rules alone write to those."""
    return _RULE_TOPIC.fullmatch(name) is not None


def is_own(topic: str) -> bool:
    """Is the topic one that the bus has made for itself? Those of rules and their dead letters count, too."""
    return is_reserved(topic) or is_rule_topic(topic.removesuffix(".dead"))


def is_pattern(name: str) -> bool:
    """Does it stand for several topics?"""
    return "*" in name or "#" in name


def check_pattern(pattern: str) -> str:
    if len(pattern) > MAX_LENGTH or not all(map(_PATTERN_WORD.fullmatch, pattern.split("."))):
        raise BadName(
            f"{pattern[:60]!r} is not a pattern of topics",
            hint="words joined by '.', where '*' stands for one word and '#' for any number of words",
        )
    return pattern


@lru_cache(maxsize=4096)
def matches(pattern: str, name: str) -> bool:
    """Does a pattern cover a name? ``*`` is one word, ``#`` is any number of words, also none."""
    if is_reserved(name) and not is_reserved(pattern):
        return False
    # Patterns have few words; the rows of this table are "can the first i words of the pattern be used up".
    words = pattern.split(".")
    reach = [True] + [False] * len(words)
    for index, word in enumerate(words):
        if word == "#" and reach[index]:
            reach[index + 1] = True
    for part in name.split("."):
        following = [False] * (len(words) + 1)
        for index, word in enumerate(words):
            if word == "#":
                following[index + 1] = reach[index + 1] or reach[index] or following[index]
            elif reach[index] and word in ("*", part):
                following[index + 1] = True
        reach = following
    return reach[-1]


def covers(wide: str, narrow: str) -> bool:
    """Does a pattern cover every name that another pattern covers? False also in the few cases that a
    comparison word by word does not see, such as ``*.#`` and ``#.a``."""
    if is_reserved(narrow) and not is_reserved(wide):
        return False
    # A row of the table says which ends of ``narrow`` are covered by the words of ``wide`` looked at so far,
    # from the last word to the first one.
    these, those = _ordered(wide), _ordered(narrow)
    end = len(those)
    row = [index == end for index in range(end + 1)]
    for word in reversed(these):
        before = [False] * (end + 1)
        for index in range(end, -1, -1):
            if word == "#":
                # It takes no more, or the next word, whatever that is.
                before[index] = row[index] or (index < end and before[index + 1])
            elif index < end and those[index] != "#":
                before[index] = word in ("*", those[index]) and row[index + 1]
        row = before
    return row[0]


def _ordered(pattern: str) -> list[str]:
    """The words of a pattern. In each run of wildcards the ``*`` stand first and one ``#`` last, which covers
    the same names: so that patterns can be compared word by word."""
    found: list[str] = []
    is_open = False  #: the run of wildcards at the end has a "#"
    for word in pattern.split("."):
        if word == "#":
            is_open = True
            continue
        if is_open and word != "*":
            found.append("#")
            is_open = False
        found.append(word)
    return [*found, "#"] if is_open else found
