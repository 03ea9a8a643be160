"""Operations on dead letters: messages that a group has given up, which wait in its dead-letter topic."""

from __future__ import annotations

from typing import Annotated

from landbridge.protocol.operations.common import SEE_ITS_TOPIC, After, GroupName, Limit, Next, TopicName
from landbridge.protocol.operations.operation import Arguments, Result, about, operation

LetterCause = Annotated[str | None, about("Letters of this cause alone; None: of all.")]
DeadTopic = Annotated[str, about("The topic that the letters are in.")]
LetterOffset = Annotated[int, about("Offset of the letter in that topic.")]


class LetterSummary(Arguments, frozen=True, kw_only=True):
    """Which dead letters to count."""

    topic: Annotated[str | None, about("Letters of this topic's groups alone; None: of all.")] = None
    group: Annotated[str | None, about("Letters of this group of the topic alone; None: of all.")] = None
    since: Annotated[
        int | None,
        about("Letters buried at or after this moment alone, in microseconds; None: of all times."),
    ] = None


class LetterList(Arguments, frozen=True, kw_only=True):
    """A page of the letters that wait, oldest first."""

    topic: TopicName
    group: GroupName
    cause: LetterCause = None
    after: After = ""
    limit: Limit = 100


class LettersChosen(Arguments, frozen=True, kw_only=True):
    """Dead letters of a group: all that wait, those of a cause, or those with these offsets."""

    topic: TopicName
    group: GroupName
    cause: LetterCause = None
    offsets: Annotated[
        list[int] | None, about("Offsets in the dead-letter topic, 1000 at most; None: of all letters.")
    ] = None
    dry_run: Annotated[bool, about("Count them, and change nothing.")] = False


class CauseRow(Result, frozen=True, kw_only=True):
    """The letters of a group that have the same cause."""

    topic: TopicName
    group: GroupName
    cause: Annotated[str, about("Why they were buried.")]
    letters: Annotated[int, about("How many wait.")]
    first_at: Annotated[int, about("When the oldest one was buried, in microseconds.")]
    last_at: Annotated[int, about("When the newest one was buried, in microseconds.")]
    attempts: Annotated[int, about("The most attempts that one of them has had.")]
    dead_topic: DeadTopic


class LetterCounts(Result, frozen=True, kw_only=True):
    """Dead letters by cause."""

    causes: Annotated[list[CauseRow], about("By topic, group and cause; 1000 at most.")]
    whole: Annotated[bool, about("False: there are more than were looked at, which are the oldest.")]
    looked_at: Annotated[int, about("How many letters of the dead-letter topics were looked at.")] = 0
    stored: Annotated[
        int,
        about(
            "How many letters these topics have from 'since' on, with those that were redriven or given up "
            "and that the retention has not removed yet."
        ),
    ] = 0


class LetterRow(Result, frozen=True, kw_only=True):
    """A dead letter, without its payload."""

    offset: LetterOffset
    was_at: Annotated[int, about("The offset that the message had in its topic.")]
    id: Annotated[str, about("The message's id.")]
    cause: Annotated[str, about("Why it was buried.")]
    attempts: Annotated[int, about("Attempts that were made.")]
    buried_at: Annotated[int, about("When it was buried, in microseconds.")]
    bytes: Annotated[int, about("Bytes of its payload.")]


class LetterRows(Result, frozen=True, kw_only=True):
    """Some of the letters of a group."""

    dead_topic: DeadTopic
    letters: Annotated[list[LetterRow], about("The letters of this page.")]
    next: Next


class LettersHandled(Result, frozen=True, kw_only=True):
    """What was done with letters, or would be."""

    letters: Annotated[int, about("How many.")]
    dry_run: Annotated[bool, about("Nothing was changed.")]


# -- the entries ---------------------------------------------------------------------------------------

_LETTERS = "/v1/topics/{topic}/groups/{group}/letters"

LETTER_SUMMARY = operation(
    "letter.summary", LetterSummary, LetterCounts, "GET /v1/letters",
    "Count the dead letters that wait, by topic, group and cause; of topics that the token may see.",
    where="topic:{topic}",
)  # fmt: skip
LETTER_LIST = operation(
    "letter.list", LetterList, LetterRows, f"GET {_LETTERS}",
    "List the dead letters of a group that wait, oldest first, without their payloads.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
LETTER_REDRIVE = operation(
    "letter.redrive", LettersChosen, LettersHandled, f"POST {_LETTERS}/redrive",
    "Give a group some of its dead letters again, each once.", scope="operate",
    where="topic:{topic}",
)  # fmt: skip
LETTER_DELETE = operation(
    "letter.delete", LettersChosen, LettersHandled, f"POST {_LETTERS}/delete",
    "Give dead letters of a group up for good: they wait no more, and the retention of the dead-letter topic "
    "removes them.", scope="operate",
    where="topic:{topic}",
)  # fmt: skip
