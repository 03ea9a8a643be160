"""Regular expressions: many at once, over one text. They are RE2's, so their time is linear in the text.

All expressions of a place are in one set, which finds those that match in one pass. A set can't be changed,
only made anew, which takes some 10 µs for each expression. So the expressions that came last are in a small
set of their own, and join the large one when they are many.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from landbridge.core.rules.bounds import LARGEST_PROGRAM, LONGEST_TEXT
from landbridge.core.rules.budget import USED_UP, Budget, OverBudget, RegexpAllowance, Spending
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    import re2

#: Bytes that one expression may use, and that a set may use besides for each of its expressions. RE2 takes
#: the latter as it needs it.
EXPRESSION_MEMORY = 1 << 20
SET_MEMORY, SET_MEMORY_EACH = 8 << 20, 64 << 10
#: The small set joins the large one when it has more expressions than this, or than a part of the large one.
YOUNG, YOUNG_PART = 16, 16
#: An expression with more instructions, or with a count of two digits, is searched for alone. The automaton
#: of a set is made while it reads. Each of its states stands for places in all expressions, and such an
#: expression can have a new state for each byte, so all others would pay for it.
ALONE = 256
_MANY_TIMES = re.compile(r"\{[0-9,]*[0-9]{2}")
#: A text that no message has but by intent: the expression for it shows that a set works.
_PROBE = b"\0landbridge\0probe\0"
_PROBE_EXPRESSION = rb"\A\x00landbridge\x00probe\x00\z"


def _options(memory: int) -> re2.Options:
    import re2

    options = re2.Options()
    options.max_mem = memory
    options.log_errors = False
    options.never_capture = True
    return options


class Expression:
    """One regular expression."""

    __slots__ = ("_compiled", "is_alone", "pattern", "program")

    def __init__(self, pattern: str, place: str) -> None:
        """``place`` is what errors call the pattern."""
        import re2

        if len(pattern) > LONGEST_TEXT:
            raise BadRequest(f"{place}: {len(pattern):,} characters, allowed are {LONGEST_TEXT}")
        try:
            self.pattern = pattern.encode()
            # Not by re2.compile, which keeps what it has compiled.
            self._compiled: Any = re2._Regexp(self.pattern, _options(EXPRESSION_MEMORY))
        except (re2.error, UnicodeEncodeError) as error:
            said = error.args[0] if error.args else error
            said = said.decode(errors="replace") if isinstance(said, bytes) else said
            raise BadRequest(
                f"{place}: {said}",
                hint="the syntax is that of RE2, which has no look-around and no references back",
            ) from None
        #: Instructions.
        self.program: int = max(self._compiled.programsize, 1)
        if self.program > LARGEST_PROGRAM:
            raise BadRequest(
                f"{place}: {self.program:,} instructions when compiled, allowed are {LARGEST_PROGRAM:,}",
                hint="repeat less: a{100} counts a hundred times",
            )

        self.is_alone = self.program > ALONE or _MANY_TIMES.search(pattern) is not None

    def is_in(self, text: bytes, spending: Spending) -> bool:
        spending.spend_regexp(self.program, len(text))
        return self._compiled.search(text) is not None

    def is_all_of(self, text: bytes, spending: Spending) -> bool:
        spending.spend_regexp(self.program, len(text))
        return self._compiled.fullmatch(text) is not None


class _FixedSet:
    """Expressions in one set of RE2, or in several, where one would be too large."""

    def __init__(self, members: list[tuple[str, Expression]]) -> None:
        self._parts = [*_compiled(members)]
        self.heaviest = max((expression.program for _, expression in members), default=0)
        #: Instructions of all of them.
        self.weight = sum(expression.program for _, expression in members)

    def found(self, text: bytes) -> list[str]:
        return [ids[index] for match, ids in self._parts for index in match(text)]


def _compiled(members: list[tuple[str, Expression]]) -> Iterator[tuple[Any, list[str]]]:
    import re2

    if not members:
        return
    made = re2.Set.SearchSet(_options(SET_MEMORY + SET_MEMORY_EACH * len(members)))
    for _, expression in members:
        made.Add(expression.pattern)
    made.Add(_PROBE_EXPRESSION)
    try:
        made.Compile()
        # A set that has too little memory for its automaton says of every text that nothing matches.
        works = len(members) in made._set.Match(_PROBE)
    except re2.error:
        works = False
    if works:
        yield made._set.Match, [*(id for id, _ in members), ""]
    elif len(members) > 1:
        half = len(members) // 2
        yield from _compiled(members[:half])
        yield from _compiled(members[half:])
    else:
        [(id, expression)] = members
        search = expression._compiled.search
        yield (lambda text: [0] if search(text) is not None else []), [id]


class ExpressionSet:
    """Expressions by id, over texts of one place."""

    def __init__(self) -> None:
        self._members: dict[str, Expression] = {}
        #: Those of them that are in no set.
        self._alone: dict[str, Expression] = {}
        #: Ids in the large set; removed ones stay until the set is made anew.
        self._old_ids: set[str] = set()
        #: The sets as they are compiled; None: to be made at the next search.
        self._old: _FixedSet | None = None
        self._young: _FixedSet | None = None

    def __len__(self) -> int:
        return len(self._members)

    def add(self, members: Iterable[tuple[str, Expression]]) -> None:
        for id, expression in members:
            if id in self._old_ids:  # the large set knows another expression by that id
                self._begin_anew()
            self._members[id] = expression
            if expression.is_alone:
                self._alone[id] = expression
        self._young = None

    def remove(self, id: str) -> None:
        del self._members[id]
        self._alone.pop(id, None)
        if id not in self._old_ids:
            self._young = None

    def _begin_anew(self) -> None:
        self._old, self._young, self._old_ids = None, None, set()

    def _sets(self) -> tuple[_FixedSet, _FixedSet]:
        if self._old is None or self._young is None:
            together = {id: each for id, each in self._members.items() if id not in self._alone}
            young = [each for each in together.items() if each[0] not in self._old_ids]
            gone = len(self._old_ids) + len(young) - len(together)
            most = max(YOUNG, len(self._old_ids) // YOUNG_PART)
            if self._old is None or len(young) > most or gone > most:
                self._old, self._old_ids, young = _FixedSet([*together.items()]), set(together), []
            self._young = _FixedSet(young)
        return self._old, self._young

    def search(
        self, text: bytes, budget: Budget, allowance: RegexpAllowance
    ) -> tuple[list[str], list[tuple[str, str]]]:
        """The ids of the expressions that are in the text, and those that would need more than their budget,
        each with the cause. ``allowance``: what is left to all rules for the message."""
        old, young = self._sets()
        members = self._members
        # A set's automaton is made while it reads, at worst with a state of all expressions for each byte.
        worst = (old.weight + young.weight) * (len(text) + 1)
        if (
            max(old.heaviest, young.heaviest) * (len(text) + 1) > budget.regexp_steps
            or worst > allowance.in_sets
        ):
            return _search_one_by_one(members, text, budget, allowance)
        allowance.in_sets -= worst
        found = old.found(text)
        if young.heaviest:
            found += young.found(text)
        if found:
            found = [id for id in found if id in members]
        if not self._alone:
            return found, []
        others, exceeded = _search_one_by_one(self._alone, text, budget, allowance)
        return found + others, exceeded


def _search_one_by_one(
    members: Mapping[str, Expression], text: bytes, budget: Budget, allowance: RegexpAllowance
) -> tuple[list[str], list[tuple[str, str]]]:
    found, exceeded = [], []
    # The cheap ones first, so that costly ones don't use up what these need.
    for id, expression in sorted(members.items(), key=lambda member: member[1].program):
        worst = expression.program * (len(text) + 1)
        # One that is refused by its own budget costs nothing, and leaves what it would need to others.
        if allowance.left < worst <= budget.regexp_steps:
            exceeded.append((id, USED_UP))
            continue
        try:
            is_in = expression.is_in(text, Spending(budget))
            allowance.left -= worst
            if is_in:
                found.append(id)
        except OverBudget as error:
            exceeded.append((id, str(error)))
    return found, exceeded
