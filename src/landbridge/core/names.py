"""The rules for names: topics, groups, services. Words joined by dots, so that patterns can speak of them.

A leading ``$`` marks what belongs to the terminal itself (``$status``); no pattern matches it unless it is
spelled out.
"""

from __future__ import annotations

import re
from functools import lru_cache

from landbridge.errors import BadName

MAX_LENGTH = 200
_NAME = re.compile(r"\$?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PATTERN_WORD = re.compile(r"\*|#|\$?[A-Za-z0-9_-]+")


def check_name(name: str, what: str) -> str:
    if len(name) > MAX_LENGTH or not _NAME.fullmatch(name):
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise BadName(f"{shown!r} can't be the name of a {what}")
    return name


def is_reserved(name: str) -> bool:
    """Is it the name of a topic that the terminal alone writes?"""
    return name.startswith("$")


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
