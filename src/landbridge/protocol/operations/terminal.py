"""Operations on the status log and on the terminal itself."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET
from msgspec import UnsetType as Unset

from landbridge.core.status import Levels
from landbridge.protocol.operations.common import GroupName, Level, Nothing, TerminalName, TopicName
from landbridge.protocol.operations.operation import Arguments, Result, about, operation


class StatusLevels(Arguments, frozen=True, kw_only=True):
    """Status levels to set. What is not given stays; without any, nothing is changed."""

    default: Annotated[Level | Unset, about("For everything that is not named below.")] = UNSET
    topics: Annotated[dict[str, Level] | Unset, about("By topic.")] = UNSET
    producers: Annotated[dict[str, Level] | Unset, about("By the subject that publishes.")] = UNSET
    consumers: Annotated[dict[str, Level] | Unset, about("By the subject that consumes.")] = UNSET
    topic: Annotated[
        str | Unset, about("A topic that the status log is written to as well; empty: none.")
    ] = UNSET


class StatusNote(Arguments, frozen=True):
    """Something that a gateway saw go wrong."""

    cause: Annotated[str, about("A short word for the reason, such as an error's code.")]
    detail: Annotated[str, about("What happened; cut after 1024 characters.")] = ""
    topic: Annotated[str, about("The topic concerned; empty for none.")] = ""
    messages: Annotated[int, about("Messages concerned.")] = 0


class TerminalInfo(Result, frozen=True, kw_only=True):
    """A terminal."""

    name: TerminalName
    version: Annotated[str, about("Version of Landbridge.")]
    protocol: Annotated[int, about("Version of the wire protocol.")]
    python: Annotated[str, about("Version of Python.")]
    platform: Annotated[str, about("Operating system.")]
    time: Annotated[int, about("Its clock, in microseconds.")]
    started_at: Annotated[int, about("When it was started, in microseconds.")]
    start: Annotated[int, about("The number of this start, from 1.")]
    topics: Annotated[int, about("The number of its topics.")]
    connections: Annotated[int, about("The number of its connections.")]
    store: Annotated[str, about("Its store's driver.")]
    incarnation: Annotated[str, about("Which life of its store this is: another one after a restore.")] = ""
    free: Annotated[int | None, about("Bytes free on the disk of its data; None where not known.")] = None
    low: Annotated[bool, about("It has no room for messages: publishes are refused.")] = False
    damage: Annotated[list[str], about("What was found damaged since the start, 100 at most.")] = []
    node: Annotated[str, about("Which of its nodes has answered; empty where it has none.")] = ""
    http: Annotated[str, about("Where its process answers HTTP, with the console at /; empty: nowhere.")] = ""
    paused: Annotated[
        list[str], about("What operators have paused, who and why, 100 at most; told to observers.")
    ] = []


class GroupBehind(Result, frozen=True, kw_only=True):
    """A group that has much to settle."""

    topic: TopicName
    name: GroupName
    lag: Annotated[int, about("Messages that are not settled.")]


class TerminalFigures(Result, frozen=True, kw_only=True):
    """What a terminal has done since its start, and what there is. A caller that asks again makes rates of
    them."""

    time: Annotated[int, about("Its clock, in microseconds.")]
    started_at: Annotated[int, about("When it was started, in microseconds.")]
    published: Annotated[int, about("Messages taken.")]
    published_bytes: Annotated[int, about("Bytes of them.")]
    delivered: Annotated[int, about("Messages handed to consumers, each time counted.")]
    delivered_bytes: Annotated[int, about("Bytes of them.")]
    acked: Annotated[int, about("Messages settled by their consumers.")]
    requeued: Annotated[int, about("Messages that failed and were given back.")]
    buried: Annotated[int, about("Messages given up.")]
    refused: Annotated[int, about("Publishes refused.")]
    forbidden: Annotated[int, about("Operations that a token's scopes did not allow.")]
    commits: Annotated[int, about("Commits to the store.")]
    commit_seconds: Annotated[float, about("What the commits have taken, together.")]
    connections: Annotated[int, about("Connections now.")]
    topics: Annotated[int, about("Topics now.")]
    groups: Annotated[int, about("Durable groups, at the last count.")]
    lag: Annotated[int, about("Messages not settled in all durable groups, at the last count.")]
    bytes: Annotated[int, about("Bytes of all logs, at the last count.")]
    behind: Annotated[list[GroupBehind], about("The groups that are furthest behind, ten at most.")]
    free: Annotated[int | None, about("Bytes free on the disk of its data; None where not known.")]
    low: Annotated[bool, about("It has no room for messages: publishes are refused.")]
    troubles: Annotated[list[str], about("What an operator should look at, 100 at most; empty: all is well.")]


# -- the entries ---------------------------------------------------------------------------------------


STATUS_SHOW = operation(
    "status.show",
    Nothing,
    Levels,
    "GET /v1/status/levels",
    "Show the status levels.",
    scope="observe",
    where="home",
)
STATUS_LEVELS = operation(
    "status.levels", StatusLevels, Levels, "PATCH /v1/status/levels",
    "Set status levels from now on, and return all of them.", scope="operate",
    where="home",
)  # fmt: skip
STATUS_NOTE = operation(
    "status.note", StatusNote, type(None), "POST /v1/status/notes",
    "Write an error event in the caller's name to the status log.", scope="publish:$status", audited=False,
    where="here",
)  # fmt: skip
TERMINAL_INFO = operation(
    "terminal.info",
    Nothing,
    TerminalInfo,
    "GET /v1/terminal",
    "Describe the terminal.",
    where="every",
)
TERMINAL_METRICS = operation(
    "terminal.metrics", Nothing, str, "GET /v1/terminal/metrics",
    "Return the terminal's metrics in Prometheus' text format.", scope="observe",
    where="here",
)  # fmt: skip
TERMINAL_FIGURES = operation(
    "terminal.figures", Nothing, TerminalFigures, "GET /v1/terminal/figures",
    "Return what the terminal has done since its start, and what there is: counts that rates are made of.",
    scope="observe", where="every",
)  # fmt: skip
