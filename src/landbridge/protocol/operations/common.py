"""Fields and structs that the operations of several nouns have."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from landbridge.core.pauses import PauseNote
from landbridge.protocol.operations.operation import Arguments, Result, about

TopicName = Annotated[str, about("Name of the topic.")]
GroupName = Annotated[str, about("Name of the group.")]
Kind = Annotated[Literal["stream", "queue", "work"], about("What the topic is.")]
Discipline = Annotated[Literal["fifo", "lifo", "priority"], about("The order of delivery.")]
After = Annotated[str, about("The 'next' of the page before; empty for the first page.")]
Next = Annotated[str, about("Where the next page begins; empty on the last page.")]
Force = Annotated[bool, about("Delete it although messages are not settled.")]
Limit = Annotated[int, about("Rows of this page at most; a terminal gives no more than 1000.")]
Level = Literal["off", "errors", "batches", "messages"]
MessageId = Annotated[str, about("Id of the message.")]
InTopic = Annotated[str | None, about("Look only in this topic. Ids that a producer chose need it.")]
StageName = Annotated[str, about("Name of the stage.")]
TerminalName = Annotated[str, about("Name of the terminal.")]
ArrivedAt = Annotated[int, about("When it arrived there, in microseconds; 0 if that is not known.")]
LogId = Annotated[
    str, about("Identity of the log: terminal, number and creation. A topic made anew has another one.")
]
Names = list[str]
SCOPES_HELP = "publish:PATTERN, subscribe:PATTERN, documents:PATTERN, observe, operate or admin."
Until: TypeAlias = Literal["stored", "arrived", "acked"]
Place: TypeAlias = Literal["earliest", "latest"]


#: Why something is paused.
PauseReason = Annotated[str, about("Why, for whoever looks; 2000 characters at most.")]
Paused = Annotated[
    PauseNote | None, about("Since when an operator has paused it, who, and why; None: it isn't.")
]


class Nothing(Arguments, frozen=True):
    """No arguments."""


class Deleted(Result, frozen=True, kw_only=True):
    """What was deleted."""

    deleted: Annotated[str, about("A topic's name, TOPIC/GROUP, or COLLECTION/KEY.")]


#: Scopes of operations on what a topic has: who may see the topic, and who may read it.
SEE_ITS_TOPIC = "observe|publish|subscribe:{topic}"
READ_TOPIC = "subscribe:{topic}"
