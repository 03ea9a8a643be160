"""Operations on topics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET
from msgspec import UnsetType as Unset

from landbridge.core.middleware.spec import AnyStage
from landbridge.core.topic import TopicSpec
from landbridge.protocol.operations.common import (
    After,
    Deleted,
    Force,
    Kind,
    Limit,
    LogId,
    Names,
    Next,
    Paused,
    PauseReason,
    TopicName,
)
from landbridge.protocol.operations.groups import GroupRow
from landbridge.protocol.operations.operation import Arguments, Result, about, operation


class RetentionOptions(Arguments, frozen=True, kw_only=True):
    """What of a topic's retention is to be set. An update leaves the rest as it is."""

    settled: Annotated[
        bool | Unset, about("Remove a message when every group has settled it; the default of a queue.")
    ] = UNSET
    max_age: Annotated[float | Unset | None, about("Seconds; None keeps for ever. Default: 7 days.")] = UNSET
    max_bytes: Annotated[int | Unset | None, about("Bytes of stored batches; None: no limit.")] = UNSET
    discard: Annotated[
        Literal["settled", "any"] | Unset,
        about("'settled' (default): age and size remove what all groups have settled; 'any': anything."),
    ] = UNSET


class OfTopic(Arguments, frozen=True):
    """A topic by its name."""

    name: TopicName


class TopicOptions(OfTopic, frozen=True, kw_only=True):
    """A topic and its options. Those that are not given have their defaults, or stay in an update."""

    kind: Annotated[
        Literal["stream", "queue", "work"] | Unset,
        about(
            "'stream' (default): any producers and groups; 'queue': one producer, one consumer; "
            "'work': any producers, and consumers that share the messages of one group."
        ),
    ] = UNSET
    retention: Annotated[RetentionOptions | Unset, about("How long messages are kept.")] = UNSET
    max_backlog: Annotated[
        int | Unset, about("Bytes that the slowest group may be behind before publishes are refused.")
    ] = UNSET
    producer: Annotated[
        str | Unset | None, about("The subject that alone may publish to a queue; None: who comes first.")
    ] = UNSET
    delivery: Annotated[
        Literal["at-least-once", "at-most-once"] | Unset,
        about("Of a queue or a work queue: 'at-most-once' settles on delivery."),
    ] = UNSET
    prefetch: Annotated[
        int | Unset, about("Of a work queue: messages that a consumer may hold; 16 by default.")
    ] = UNSET
    discipline: Annotated[
        Literal["fifo", "lifo", "priority"] | Unset,
        about("The order in groups that name none; 'fifo' by default."),
    ] = UNSET
    ids: Annotated[
        Literal["any", "unique"] | Unset,
        about("'unique': a message whose id is known is not stored a second time; 'any' by default."),
    ] = UNSET
    middleware: Annotated[
        list[AnyStage] | Unset,
        about(
            "What is done with messages before they are stored and delivered, in this order; empty: nothing."
        ),
    ] = UNSET


class TopicDelete(OfTopic, frozen=True, kw_only=True):
    """A topic to delete."""

    force: Force = False


class TopicPause(OfTopic, frozen=True, kw_only=True):
    """A topic to pause."""

    note: PauseReason = ""
    delivery: Annotated[
        bool, about("Its groups hand nothing out either; False: they go on with what is there.")
    ] = False


class TopicList(Arguments, frozen=True, kw_only=True):
    """A page of the topics."""

    after: After = ""
    limit: Limit = 1000
    contains: Annotated[str, about("Topics alone whose name has this text in it; empty: all.")] = ""


class TopicWait(Arguments, frozen=True):
    """Offsets to wait for."""

    offsets: Annotated[dict[str, int], about("For each topic the offset that a message is awaited at.")]
    within: Annotated[float, about("Seconds to wait, at most 60.")] = 0.0


class TopicWatch(Arguments, frozen=True):
    """Patterns of topics to follow, and how far the caller knows of their changes."""

    patterns: Annotated[list[str], about("Names, where '*' is one word and '#' any number; 100 at most.")]
    since: Annotated[str, about("The 'since' of the answer before; empty: all topics are told.")] = ""
    within: Annotated[float, about("Seconds to wait for a change, at most 60.")] = 0.0


class TopicSeekTime(Arguments, frozen=True):
    """Moments to find in the logs of topics."""

    times: Annotated[dict[str, int], about("For each topic a moment in microseconds.")]


class TopicFacts(Result, frozen=True, kw_only=True):
    """A topic and its log."""

    name: TopicName
    kind: Kind
    first: Annotated[int, about("The oldest offset that the log has.")]
    end: Annotated[int, about("The offset that the next message will get.")]
    messages: Annotated[int, about("Messages in the log.")]
    bytes: Annotated[int, about("Bytes of the log.")]
    created_at: Annotated[int, about("When it was made, in microseconds.")]
    log: LogId
    pause: Paused = None


class TopicBounds(Result, frozen=True, kw_only=True):
    """What a topic's log has, and what shows whether an offset is of its history."""

    first: Annotated[int, about("The oldest offset that the log has.")]
    end: Annotated[int, about("The offset that the next message will get.")]
    log: LogId
    before: Annotated[
        int | None,
        about("Time of the message before the offset asked for; None: the log doesn't have that message."),
    ]
    newest: Annotated[int | None, about("Time of the last message; None: the log is empty.")]


class TopicRow(TopicFacts, frozen=True, kw_only=True):
    """A topic, in short."""

    groups: Annotated[int, about("The number of its groups.")]
    lag: Annotated[int, about("Messages that the durable group which is furthest behind hasn't settled.")] = 0


class TopicDetails(TopicFacts, frozen=True, kw_only=True):
    """A topic with its options and groups."""

    options: Annotated[TopicSpec, about("Its options, as topic.create takes them.")]
    groups: Annotated[list[GroupRow], about("Its groups at this terminal.")]
    crossing: Annotated[Names | None, about("Its groups at all terminals; None: the registry knows none.")]


class TopicRows(Result, frozen=True, kw_only=True):
    """Some of the topics, by name."""

    topics: Annotated[list[TopicRow], about("The topics of this page.")]
    next: Next


class TopicNews(Result, frozen=True, kw_only=True):
    """Topics that patterns cover and that the token can subscribe."""

    topics: Annotated[Names, about("Those that are new; where 'whole' is true, all there are.")]
    gone: Annotated[Names, about("Those that were deleted.")]
    whole: Annotated[bool, about("These are all: what is not named is not there.")]
    more: Annotated[int, about("Further topics that were left out, as one answer names at most 1000.")]
    since: Annotated[str, about("What to ask with next.")]


# -- the entries ---------------------------------------------------------------------------------------

_TOPIC = "/v1/topics/{name}"
_SEE_TOPIC = "observe|publish|subscribe:{name}"

TOPIC_CREATE = operation(
    "topic.create", TopicOptions, TopicRow, "POST /v1/topics",
    "Create a topic; one that exists with the same options is left as it is.", scope="operate",
    where="topic:{name}",
)  # fmt: skip
TOPIC_UPDATE = operation(
    "topic.update", TopicOptions, TopicRow, f"PATCH {_TOPIC}",
    "Change options of a topic, other than its kind.", scope="operate",
    where="topic:{name}",
)  # fmt: skip
TOPIC_LIST = operation(
    "topic.list",
    TopicList,
    TopicRows,
    "GET /v1/topics",
    "List the topics that the token may see.",
    where="every",
)
TOPIC_SHOW = operation(
    "topic.show", OfTopic, TopicDetails, f"GET {_TOPIC}",
    "Show a topic with its options and groups.", scope=_SEE_TOPIC,
    where="topic:{name}",
)  # fmt: skip
TOPIC_DELETE = operation(
    "topic.delete", TopicDelete, Deleted, f"DELETE {_TOPIC}",
    "Delete a topic with its messages and groups.", scope="operate",
    where="topic:{name}",
)  # fmt: skip
TOPIC_PAUSE = operation(
    "topic.pause", TopicPause, TopicRow, f"POST {_TOPIC}/pause",
    "Take no messages for a topic until it is resumed; what comes from other terminals waits there.",
    scope="operate",
    where="topic:{name}",
)  # fmt: skip
TOPIC_RESUME = operation(
    "topic.resume", OfTopic, TopicRow, f"POST {_TOPIC}/resume",
    "Take messages for a paused topic again.", scope="operate",
    where="topic:{name}",
)  # fmt: skip
TOPIC_WAIT = operation(
    "topic.wait", TopicWait, dict[str, TopicBounds], "POST /v1/offsets/wait",
    "Wait until one of these topics has a message at or beyond the offset given for it, and return the "
    "bounds of each log.", scope="observe|subscribe:{offsets}", safe=True,
    where="topics:{offsets}",
)  # fmt: skip
TOPIC_WATCH = operation(
    "topic.watch", TopicWatch, TopicNews, "POST /v1/topics/watch",
    "Tell which topics that the patterns cover were made or deleted, and wait for that. A wildcard leaves "
    "out topics of dead letters ('….dead') unless the pattern ends in '.dead'.", scope="", safe=True,
    where="every",
)  # fmt: skip
TOPIC_SEEK_TIME = operation(
    "topic.seek_time", TopicSeekTime, dict[str, int], "POST /v1/offsets/seek",
    "Return for each topic the first offset that was taken at or after a moment, or the end of its log.",
    scope="observe|subscribe:{times}", safe=True,
    where="topics:{times}",
)  # fmt: skip
