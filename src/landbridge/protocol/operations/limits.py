"""Operations on the limits of a terminal, and on what its process logs."""

from __future__ import annotations

from typing import Annotated, Literal

from landbridge.protocol.operations.common import Names, Nothing
from landbridge.protocol.operations.operation import Arguments, Result, about, operation

LogLevel = Literal["debug", "info", "warning", "error"]


class LimitsSet(Arguments, frozen=True):
    """Limits to set."""

    values: Annotated[dict[str, int | float], about("The new value of each limit.")]


class LimitsReset(Arguments, frozen=True):
    """Limits that are to have the values of the start again."""

    names: Annotated[Names, about("Their names.")]


class LimitRow(Result, frozen=True, kw_only=True):
    """A limit, and where its value comes from."""

    name: Annotated[str, about("Its name.")]
    value: Annotated[int | float, about("Its value now.")]
    source: Annotated[
        Literal["default", "start", "set"],
        about("'start': an option of 'landbridge up'; 'set': an operator, since then."),
    ]
    at_start: Annotated[int | float, about("The value that it has where nobody has set it.")]
    set_by: Annotated[str, about("Who has set it; empty: nobody.")]
    set_at: Annotated[int | None, about("When it was set, in microseconds; None: never.")]
    least: Annotated[int | float | None, about("What it can be set to at least; None: not while it runs.")]
    most: Annotated[int | float | None, about("And at most.")]
    help: Annotated[str, about("What it bounds.")]


class LimitRows(Result, frozen=True, kw_only=True):
    """All limits."""

    limits: Annotated[list[LimitRow], about("The limits, by name.")]


class LogLevelSet(Arguments, frozen=True):
    """From which level on the process of the terminal logs."""

    level: Annotated[LogLevel, about("The lowest level that is logged.")]


class LogLevelShown(Result, frozen=True, kw_only=True):
    """From which level on the process of the terminal logs."""

    level: Annotated[LogLevel, about("The lowest level that is logged.")]
    at_start: Annotated[LogLevel, about("The level that it was started with, and will have after a restart.")]


# -- the entries ---------------------------------------------------------------------------------------

_LOG_LEVEL = "/v1/terminal/logs"

LIMITS_SHOW = operation(
    "limits.show", Nothing, LimitRows, "GET /v1/limits",
    "Show the limits, and where the value of each comes from.", scope="observe",
    where="home",
)  # fmt: skip
LIMITS_SET = operation(
    "limits.set", LimitsSet, LimitRows, "PATCH /v1/limits",
    "Set limits from now on, also after restarts; all of them or none.", scope="admin",
    where="home",
)  # fmt: skip
LIMITS_RESET = operation(
    "limits.reset", LimitsReset, LimitRows, "POST /v1/limits/reset",
    "Give limits the values again that the terminal was started with.", scope="admin",
    where="home",
)  # fmt: skip
LOGS_SHOW = operation(
    "logs.show", Nothing, LogLevelShown, f"GET {_LOG_LEVEL}",
    "Show from which level on the terminal's process logs.", scope="observe",
    where="here",
)  # fmt: skip
LOGS_LEVEL = operation(
    "logs.level", LogLevelSet, LogLevelShown, f"PATCH {_LOG_LEVEL}",
    "Let the terminal's process log from this level on, until it is restarted.", scope="operate",
    where="here",
)  # fmt: skip
