"""What the evaluation of one rule on one message may cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: Steps of a rule on a message. A step is a visited node, a tried alternative or a comparison, so all of them
#: are some tens of milliseconds. The same message and rule take the same steps everywhere, so a terminal and
#: Spark agree.
STEPS = 50_000
#: A step of regular expressions is an instruction of the program on a byte of the text, at worst. RE2 makes
#: up to some hundred millions a second.
REGEXP_STEPS = 1 << 24
#: As many rules may use up their budgets on a message; then the others that are not cheap are undecided. Ten
#: thousand costly rules would otherwise take minutes for each message.
COSTLY_RULES = 20
#: What the expressions of a set may take together for a message, where they are searched for in one pass:
#: so many times the steps that all costly ones have. A pass mostly takes far less than its worst case.
SET_SHARE = 4
#: Steps between two looks at the clock.
LOOK_EVERY = 256


#: The cause where others have used it up.
USED_UP = "other rules have used up the steps that all rules have for this message"


class OverBudget(Exception):
    """A rule needs more than its budget. The message of the exception is the cause, for those who run the
    rule."""


class Budget(NamedTuple):
    """What each rule may use for each message."""

    steps: int = STEPS
    #: Steps of regular expressions.
    regexp_steps: int = REGEXP_STEPS
    #: Seconds; None: steps alone count, and the result depends on rule and message alone.
    seconds: float | None = None
    #: The time in seconds, of which only differences count. Needed where there are ``seconds``.
    clock: Callable[[], float] | None = None


class RegexpAllowance:
    """Steps of regular expressions that all rules have together for a message, wherever they look."""

    __slots__ = ("in_sets", "left")

    def __init__(self, budget: Budget) -> None:
        #: Steps that are left to expressions that are searched for one by one, and to whole sets.
        self.left = COSTLY_RULES * budget.regexp_steps
        self.in_sets = SET_SHARE * self.left


class Spending:
    """What a rule has used up for a message."""

    __slots__ = ("_budget", "_ends_at", "_look_at", "left", "regexp_left")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        #: When ``left`` is at or below this, look at the clock. -1: never.
        self._look_at = -1
        self._ends_at = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin with another rule or message."""
        budget = self._budget
        #: Steps that are left.
        self.left = budget.steps
        self.regexp_left = budget.regexp_steps
        if budget.seconds is not None and budget.clock is not None:
            self._ends_at = budget.clock() + budget.seconds
            self._look_at = self.left - LOOK_EVERY

    def spend(self, steps: int) -> None:
        """Raises OverBudget when the rule has used up its steps or its time."""
        self.left -= steps
        if self.left < 0:
            raise OverBudget(f"it takes more than {self._budget.steps:,} steps on this message")
        if self.left <= self._look_at:
            self._look_at = self.left - LOOK_EVERY
            self._check_clock()

    def spend_regexp(self, program: int, text: int) -> None:
        """A search is paid for before it is made: by the size of its program and the bytes of its text."""
        self.regexp_left -= program * (text + 1)
        if self.regexp_left < 0:
            raise OverBudget(
                f"a regular expression of {program:,} instructions on {text:,} bytes is more than "
                f"{self._budget.regexp_steps:,} steps"
            )

    def _check_clock(self) -> None:
        assert self._budget.clock is not None
        if self._budget.clock() > self._ends_at:
            raise OverBudget(f"it takes more than {self._budget.seconds} s on this message")
