"""Operations on groups."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET
from msgspec import UnsetType as Unset

from landbridge.core.delivery.filters import Match
from landbridge.core.topic import GroupSpec
from landbridge.protocol.operations.common import (
    READ_TOPIC,
    SEE_ITS_TOPIC,
    After,
    Deleted,
    Discipline,
    Force,
    GroupName,
    Names,
    Next,
    Paused,
    PauseReason,
    Place,
    TopicName,
)
from landbridge.protocol.operations.operation import Arguments, Result, about, operation


class OfGroup(Arguments, frozen=True):
    """A group by its topic and its name."""

    topic: TopicName
    name: GroupName


class GroupOptions(OfGroup, frozen=True, kw_only=True):
    """A group and its options. Those that are not given have their defaults, or stay in an update."""

    discipline: Annotated[
        Literal["fifo", "lifo", "priority"] | Unset, about("The order; its topic's by default.")
    ] = UNSET
    order: Annotated[
        Literal["any", "key"] | Unset,
        about("'key': a key's next message goes when the one before is settled; 'any' (default): at once."),
    ] = UNSET
    ack_within: Annotated[
        float | Unset, about("Seconds until an unsettled message comes again; 30 by default.")
    ] = UNSET
    max_attempts: Annotated[int | Unset, about("Attempts before a message is buried; 10 by default.")] = UNSET
    backoff: Annotated[
        float | Unset, about("Seconds before the second attempt, then doubled; 1 by default.")
    ] = UNSET
    backoff_most: Annotated[float | Unset, about("The longest backoff in seconds; 60 by default.")] = UNSET
    dead_letter: Annotated[
        str | Unset | None, about("Topic for buried messages; None: TOPIC.dead; '': they are dropped.")
    ] = UNSET
    match: Annotated[
        Match | Unset | None, about("Patterns for 'key' and 'headers' of what the group gets.")
    ] = UNSET
    hours: Annotated[
        Names | Unset,
        about("When it hands out messages: 'mon-fri 08:00-18:00 Europe/Berlin' …; none: always."),
    ] = UNSET


class GroupCreate(GroupOptions, frozen=True, kw_only=True):
    """A group to make, and where it begins. Without ``start`` and ``offset`` it begins at the earliest."""

    start: Annotated[Place | int | None, about("'earliest', 'latest' or a moment in microseconds.")] = None
    offset: Annotated[int | None, about("The first offset that it gets, instead of a start.")] = None


class GroupDelete(OfGroup, frozen=True, kw_only=True):
    """A group to delete."""

    force: Force = False


class GroupPause(OfGroup, frozen=True, kw_only=True):
    """A group to pause."""

    note: PauseReason = ""


class GroupList(Arguments, frozen=True, kw_only=True):
    """A page of the groups."""

    topic: Annotated[str | None, about("Groups of this topic alone; None: of all topics.")] = None
    after: After = ""


class GroupSeek(OfGroup, frozen=True, kw_only=True):
    """A group to move, and where to. Give one of the two."""

    to: Annotated[Place | int | None, about("An offset, 'earliest' or 'latest'.")] = None
    time: Annotated[int | None, about("A moment: the first message taken at or after it.")] = None


class GroupAdvance(OfGroup, frozen=True, kw_only=True):
    """A group whose consumer reads by offset, and how far it has come."""

    to: Annotated[int, about("Everything below this offset is settled.")]
    log: Annotated[str | None, about("The log that the offset is of; another one is refused. None: any.")] = (
        None
    )


class GroupFacts(Result, frozen=True, kw_only=True):
    """A group and its cursor."""

    topic: TopicName
    name: GroupName
    discipline: Discipline
    floor: Annotated[int, about("Everything below this offset is settled.")]
    lag: Annotated[int, about("Messages that are not settled.")]
    leased: Annotated[int, about("Messages that consumers hold and have not settled.")]
    retrying: Annotated[int, about("Messages that have failed and will be tried again.")]
    durable: Annotated[bool, about("False: it ends with its consumer.")]
    pause: Paused = None


class GroupRow(GroupFacts, frozen=True, kw_only=True):
    """A group, in short."""

    consumers: Annotated[int, about("The number of its consumers.")]


class GroupRows(Result, frozen=True, kw_only=True):
    """Some of the groups, by topic and name."""

    groups: Annotated[list[GroupRow], about("The groups of this page.")]
    next: Next


class ConsumerRow(Result, frozen=True, kw_only=True):
    """A consumer of a group."""

    who: Annotated[str, about("Its token's subject, its address and what it calls itself.")]
    held: Annotated[int, about("Messages that it holds and has not settled.")]
    prefetch: Annotated[int, about("Messages that it may hold.")]


class GroupDetails(GroupFacts, frozen=True, kw_only=True):
    """A group with its options and consumers."""

    options: Annotated[GroupSpec, about("Its options, as group.create takes them.")]
    closed_until: Annotated[
        int | None, about("Its opening hours begin then, in microseconds; None: it is open.")
    ] = None
    consumers: Annotated[list[ConsumerRow], about("Its consumers at this terminal.")]


class Redriven(Result, frozen=True, kw_only=True):
    """The outcome of a redrive."""

    redriven: Annotated[int, about("Dead letters that went back to the group.")]


# -- the entries ---------------------------------------------------------------------------------------

_GROUP = "/v1/topics/{topic}/groups/{name}"
_MAKE_GROUP = "operate|subscribe:{topic}"

GROUP_CREATE = operation(
    "group.create", GroupCreate, GroupRow, "POST /v1/topics/{topic}/groups",
    "Create a group; one that exists with the same options is left as it is.", scope=_MAKE_GROUP,
    where="topic:{topic}",
)  # fmt: skip
GROUP_UPDATE = operation(
    "group.update",
    GroupOptions,
    GroupRow,
    f"PATCH {_GROUP}",
    "Change options of a group.",
    scope="operate",
    where="topic:{topic}",
)
GROUP_LIST = operation(
    "group.list", GroupList, GroupRows, "GET /v1/groups",
    "List the groups of one topic, or of all topics that the token may see.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
GROUP_SHOW = operation(
    "group.show", OfGroup, GroupDetails, f"GET {_GROUP}",
    "Show a group with its options and consumers.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
GROUP_SEEK = operation(
    "group.seek", GroupSeek, GroupRow, f"POST {_GROUP}/seek",
    "Move a group to an offset or a moment, forwards or backwards.", scope="operate",
    where="topic:{topic}",
)  # fmt: skip
GROUP_ADVANCE = operation(
    "group.advance", GroupAdvance, GroupRow, f"POST {_GROUP}/advance",
    "Settle everything below an offset, for a group whose consumer reads by offset; the group is made if "
    "there is none, and never goes back.", scope=READ_TOPIC, audited=False,
    where="topic:{topic}",
)  # fmt: skip
GROUP_REDRIVE = operation(
    "group.redrive", OfGroup, Redriven, f"POST {_GROUP}/redrive",
    "Give a group its dead letters again, each once.", scope="operate",
    where="topic:{topic}",
)  # fmt: skip
GROUP_PAUSE = operation(
    "group.pause", GroupPause, GroupRow, f"POST {_GROUP}/pause",
    "Hand out no messages of a group until it is resumed; its consumers stay connected, and may settle what "
    "they hold.", scope="operate",
    where="topic:{topic}",
)  # fmt: skip
GROUP_RESUME = operation(
    "group.resume", OfGroup, GroupRow, f"POST {_GROUP}/resume",
    "Hand out the messages of a paused group again.", scope="operate",
    where="topic:{topic}",
)  # fmt: skip
GROUP_DELETE = operation(
    "group.delete",
    GroupDelete,
    Deleted,
    f"DELETE {_GROUP}",
    "Delete a group.",
    scope="operate",
    where="topic:{topic}",
)
