"""Operations that follow a message."""

from __future__ import annotations

from typing import Annotated

from landbridge.protocol.operations.common import (
    SEE_ITS_TOPIC,
    ArrivedAt,
    GroupName,
    InTopic,
    MessageId,
    Names,
    TerminalName,
    TopicName,
    Until,
)
from landbridge.protocol.operations.operation import Arguments, Result, about, operation


class MessageWait(Arguments, frozen=True):
    """A message that was published here, and how far to wait for it."""

    topic: TopicName
    offset: Annotated[int, about("Its offset.")]
    until: Annotated[Until, about("'arrived': at a terminal of each group; 'acked': there.")] = "arrived"
    within: Annotated[
        float | None, about("Seconds, after which it is refused as timed_out; without, as long as it takes.")
    ] = None


class OfMessage(Arguments, frozen=True):
    """A message by its id, or by its offset in a topic."""

    id: Annotated[str, about("Id of the message; empty: the offset says which.")]
    topic: InTopic = None
    offset: Annotated[
        int | None, about("Its offset in that topic, where it is known: nothing is searched then.")
    ] = None


class MessageReached(Result, frozen=True, kw_only=True):
    """The message is where it was waited for."""

    topic: TopicName
    offset: Annotated[int, about("Its offset.")]
    until: Annotated[Until, about("What was waited for.")]


class GroupPlace(Result, frozen=True, kw_only=True, omit_defaults=True):
    """A message, seen from one group."""

    group: GroupName
    at: Annotated[str, about("The terminal where it is.")]
    state: Annotated[str, about("waiting, leased, settled, on a link, on its way, arrived.")]
    waits_for: Annotated[str, about("What has to happen next; empty if nothing is known.")]
    route: Annotated[Names, about("The terminals that it was sent by; empty if it was not sent.")]
    to: Annotated[str, about("The terminal that it goes to, if another one serves the group.")] = ""
    came_by: Annotated[Names, about("The terminals that it has passed.")] = []
    arrived_at: ArrivedAt = 0
    said: Annotated[str, about("Why no more is known.")] = ""


class MessagePlace(Result, frozen=True, kw_only=True):
    """A message in one topic's log at this terminal."""

    id: MessageId
    topic: TopicName
    terminal: TerminalName
    offset: Annotated[int, about("Its offset there.")]
    published_at: Annotated[int, about("When it was published, in microseconds.")]
    came_by: Annotated[Names, about("The terminals that it has passed; empty if it was published here.")]
    arrived_at: ArrivedAt
    groups: Annotated[list[GroupPlace], about("Where it is for each group.")]


class MessagePlaces(Result, frozen=True, kw_only=True):
    """Where a message is."""

    places: Annotated[list[MessagePlace], about("The logs of this terminal that have it.")]


class GroupReason(Result, frozen=True, kw_only=True, omit_defaults=True):
    """Why a message went where it did, for one group."""

    group: GroupName
    offset: Annotated[int, about("Its offset here.")]
    terminal: Annotated[str, about("The terminal that it went to; empty if none was found yet.")]
    terminal_why: Annotated[str, about("Why that terminal.")]
    routes: Annotated[list[Names], about("The routes that were tried, each as terminals.")]
    route_why: Annotated[str, about("Why the last one of them.")]
    sent_at: Annotated[int, about("When it was sent, in microseconds; 0: not yet.")] = 0
    kept_at: Annotated[int, about("When the first hop had it on disk, in microseconds; 0: not yet.")] = 0
    arrived_at: ArrivedAt = 0


class MessageReasons(Result, frozen=True, kw_only=True):
    """Why a message went where it did."""

    id: MessageId
    groups: Annotated[list[GroupReason], about("For each group that another terminal may serve.")]


# -- the entries ---------------------------------------------------------------------------------------


MESSAGE_WAIT = operation(
    "message.wait", MessageWait, MessageReached, "GET /v1/topics/{topic}/offsets/{offset}/wait",
    "Wait until a message that was published here has arrived, or is acked, in every durable group.",
    scope="observe|publish:{topic}",
    where="topic:{topic}",
)  # fmt: skip
MESSAGE_WHERE = operation(
    "message.where", OfMessage, MessagePlaces, "GET /v1/messages/{id}/where",
    "Show where a message is: at which terminal, in which state, and what it waits for.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
MESSAGE_WHY = operation(
    "message.why", OfMessage, MessageReasons, "GET /v1/messages/{id}/why",
    "Show why a message went to which terminal, and by which route.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
