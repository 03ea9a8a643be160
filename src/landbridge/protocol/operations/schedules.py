"""Operations on schedules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET
from msgspec import UnsetType as Unset

from landbridge.core.schedule.spec import Overlap, ScheduleSpec
from landbridge.protocol.operations.common import SEE_ITS_TOPIC, After, Deleted, MessageId, Next, TopicName
from landbridge.protocol.operations.operation import Arguments, Result, about, operation

ScheduleName = Annotated[str, about("Name of the schedule, among those of its topic.")]
When = Annotated[str, about("'30 2 * * mon-fri', '@daily', '@every 90s' or '@at 2026-12-24T18:00'.")]
Zone = Annotated[str, about("Time zone of the IANA database, such as Europe/Berlin.")]
FireTime = Annotated[int, about("The moment that the schedule names, in microseconds.")]


class OfSchedule(Arguments, frozen=True):
    """A schedule by its topic and its name."""

    topic: TopicName
    name: ScheduleName


class ScheduleOptions(Arguments, frozen=True, kw_only=True):
    """What a schedule publishes, and how. Options that are not given have their defaults, or stay in an
    update."""

    zone: Annotated[str | Unset, about("Time zone of the IANA database; UTC by default.")] = UNSET
    payload: Annotated[Any, about("A text is sent as it is, any other JSON value as JSON.")] = UNSET
    key: Annotated[str | Unset | None, about("Key of the messages.")] = UNSET
    headers: Annotated[dict[str, str] | Unset, about("Headers of the messages.")] = UNSET
    priority: Annotated[int | Unset, about("Priority of the messages, 0 to 9.")] = UNSET
    overlap: Annotated[
        Overlap | Unset,
        about("What becomes of a firing while the message before is not settled; 'skip' by default."),
    ] = UNSET
    catch_up: Annotated[
        float | Unset, about("Seconds that a firing may be late before it is missed; 600 by default.")
    ] = UNSET
    jitter: Annotated[float | Unset, about("Each firing is delayed by up to so many seconds.")] = UNSET


class ScheduleCreate(ScheduleOptions, frozen=True):
    """A schedule to make."""

    topic: TopicName
    name: ScheduleName
    when: When


class ScheduleUpdate(ScheduleOptions, frozen=True):
    """A schedule and the options to change."""

    topic: TopicName
    name: ScheduleName
    when: Annotated[str | Unset, about("Another expression; it counts from now on.")] = UNSET


class ScheduleList(Arguments, frozen=True, kw_only=True):
    """A page of the schedules."""

    topic: Annotated[str | None, about("Schedules of this topic alone; None: of all topics.")] = None
    after: After = ""


class ScheduleShow(OfSchedule, frozen=True):
    """A schedule, and how many of its next firings to show."""

    count: Annotated[int, about("Next firings to show, at most 100.")] = 5


class SchedulePause(OfSchedule, frozen=True, kw_only=True):
    """A schedule to pause."""

    note: Annotated[str, about("Why, for whoever looks at it.")] = ""


class ScheduleBackfill(OfSchedule, frozen=True, kw_only=True):
    """A schedule, and the range of the past whose firings are to be published."""

    begin: Annotated[int, about("The first fire time of the range, in microseconds.")]
    until: Annotated[int, about("The last fire time of the range; not later than now.")]


class ScheduleRow(Result, frozen=True, kw_only=True):
    """A schedule, in short."""

    topic: TopicName
    name: ScheduleName
    when: When
    zone: Zone
    owner: Annotated[str, about("The subject in whose name it publishes.")]
    state: Annotated[
        Literal["active", "paused", "done"], about("'done': its expression names no later moment.")
    ]
    next_at: Annotated[int | None, about("The next fire time; None: there is none, or it is paused.")]
    last_at: Annotated[int | None, about("The last fire time that was published; None: there was none.")]
    fired: Annotated[int, about("Messages published.")]
    skipped: Annotated[int, about("Firings skipped, because the message before was not settled.")]
    missed: Annotated[int, about("Firings missed, because nobody could fire in time.")]
    refused: Annotated[int, about("Firings that the topic refused.")]


class ScheduleRows(Result, frozen=True, kw_only=True):
    """Some of the schedules, by topic and name."""

    schedules: Annotated[list[ScheduleRow], about("The schedules of this page.")]
    next: Next


class FiringRow(Result, frozen=True, kw_only=True):
    """What became of a firing."""

    at: FireTime
    outcome: Annotated[Literal["fired", "skipped", "missed", "refused"], about("What became of it.")]
    why: Annotated[Literal["timetable", "trigger", "backfill"], about("What caused it.")]
    decided_at: Annotated[int, about("When it was published or given up, in microseconds.")]
    offset: Annotated[int | None, about("Offset of its message; None: it has none, or it isn't known.")]
    count: Annotated[int, about("Of missed firings: how many from this one on; 1001: more than 1000.")]
    cause: Annotated[str, about("Why it was refused.")]


class ScheduleDetails(ScheduleRow, frozen=True, kw_only=True):
    """A schedule with its options and its firings."""

    options: Annotated[ScheduleSpec, about("Its options, as schedule.create takes them.")]
    created_at: Annotated[int, about("When it was made, in microseconds.")]
    next_firings: Annotated[list[int], about("The next fire times, without jitter.")]
    last_firings: Annotated[list[FiringRow], about("What was decided last, newest first.")]
    waiting: Annotated[list[int], about("Fire times that wait until the message before is settled.")]
    paused_at: Annotated[int | None, about("When it was paused; None: it is not.")]
    paused_by: Annotated[str, about("Who paused it.")]
    note: Annotated[str, about("Why it is paused.")]


class ScheduleTriggered(Result, frozen=True, kw_only=True):
    """A firing was asked for. It is published within moments."""

    id: MessageId
    at: FireTime


class ScheduleFilled(Result, frozen=True, kw_only=True):
    """A backfill was begun."""

    firings: Annotated[int, about("Messages that it publishes.")]


# -- the entries ---------------------------------------------------------------------------------------

_SCHEDULE = "/v1/topics/{topic}/schedules/{name}"

SCHEDULE_CREATE = operation(
    "schedule.create", ScheduleCreate, ScheduleRow, "POST /v1/topics/{topic}/schedules",
    "Create a schedule, which publishes to the topic in the caller's name; one that exists with the same "
    "options is left as it is.", scope="publish:{topic}",
    where="topic:{topic}",
)  # fmt: skip
SCHEDULE_UPDATE = operation(
    "schedule.update", ScheduleUpdate, ScheduleRow, f"PATCH {_SCHEDULE}",
    "Change options of a schedule. From then on it publishes in the caller's name.", scope="publish:{topic}",
    where="topic:{topic}",
)  # fmt: skip
SCHEDULE_LIST = operation(
    "schedule.list", ScheduleList, ScheduleRows, "GET /v1/schedules",
    "List the schedules of one topic, or of all topics that the token may see.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
SCHEDULE_SHOW = operation(
    "schedule.show", ScheduleShow, ScheduleDetails, f"GET {_SCHEDULE}",
    "Show a schedule with its next firings, and the last ones with what became of them.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
SCHEDULE_PAUSE = operation(
    "schedule.pause", SchedulePause, ScheduleRow, f"POST {_SCHEDULE}/pause",
    "Pause a schedule, with a note for others.",
    where="topic:{topic}",
)  # fmt: skip
SCHEDULE_RESUME = operation(
    "schedule.resume", OfSchedule, ScheduleRow, f"POST {_SCHEDULE}/resume",
    "Let a paused schedule go on from now; what it would have published meanwhile is not made up for.",
    where="topic:{topic}",
)  # fmt: skip
SCHEDULE_TRIGGER = operation(
    "schedule.trigger", OfSchedule, ScheduleTriggered, f"POST {_SCHEDULE}/trigger",
    "Publish a schedule's message once, now.",
    where="topic:{topic}",
)  # fmt: skip
SCHEDULE_BACKFILL = operation(
    "schedule.backfill", ScheduleBackfill, ScheduleFilled, f"POST {_SCHEDULE}/backfill",
    "Publish the messages of a range of the past.",
    where="topic:{topic}",
)  # fmt: skip
SCHEDULE_REMOVE = operation(
    "schedule.remove", OfSchedule, Deleted, f"DELETE {_SCHEDULE}", "Remove a schedule.",
    where="topic:{topic}",
)  # fmt: skip
