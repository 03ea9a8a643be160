"""Numbers and names in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

#: How alike two names are, 0 to 1: one letter of six may be wrong, or two be swapped.
ALIKE = 0.8
#: Names that are looked through for one: a wrong name must not be dear where there are very many.
MOST = 500


def counted(count: int, noun: str) -> str:
    """``1 message``, ``2,000 messages``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of these names that ``name`` was perhaps meant to be."""
    others = [other for other in islice(known, MOST) if other != name]
    return next(iter(get_close_matches(name, others, n=1, cutoff=ALIKE)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint for a name that isn't known: a question where another one is near, and what else there is to
    say."""
    near = nearest(name, known)
    return " ".join(part for part in (f"did you mean {near}?" if near else "", otherwise) if part)
