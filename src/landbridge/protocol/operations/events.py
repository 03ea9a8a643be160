"""Requests, events and errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from landbridge.protocol.operations.common import Nothing, TopicName
from landbridge.protocol.operations.operation import Arguments, Result, about, operation

EventId = Annotated[str, about("Id of the event; empty: one is made.")]
Payload = Annotated[Any, about("A JSON value; a text is sent as it is, and over the bus bytes are as well.")]
MessageHeaders = Annotated[dict[str, Any], about("Headers: texts, numbers and booleans.")]
MessageKey = Annotated[str, about("Key of the message.")]
JsonValue = Annotated[Any, about("The payload, where it is JSON; a text where it is one.")]
RawPayload = Annotated[bytes, about("The payload as bytes, where value doesn't have it.")]
Source = Annotated[str, about("The service that replied.")]
FailureStatus = Annotated[
    int, about("The status that the service gave, as in HTTP; 0 where it has not failed.")
]
MessageOffset = Annotated[int | None, about("Offset of the message that it is about.")]


class RequestSend(Arguments, frozen=True):
    """A request, for whoever answers requests to the topic."""

    topic: TopicName
    payload: Payload = None
    timeout: Annotated[float, about("Seconds to wait for the reply, at most 60.")] = 5.0
    durable: Annotated[
        bool, about("Store it before it is sent; then a responder at another terminal may answer, too.")
    ] = False
    headers: MessageHeaders = {}
    key: MessageKey = ""


class RequestAnswer(Result, frozen=True, kw_only=True):
    """The reply to a request. A service that failed is an error of the operation, not an answer."""

    source: Source
    value: JsonValue
    payload: RawPayload
    headers: MessageHeaders


class EventTrigger(Arguments, frozen=True):
    """An event whose outcome is kept."""

    topic: TopicName
    payload: Payload = None
    id: EventId = ""
    within: Annotated[float, about("Seconds until the event has timed out; a day by default.")] = 86_400.0
    callback: Annotated[str, about("Where the outcome goes: topic:NAME, a URL, or nowhere.")] = ""
    headers: MessageHeaders = {}
    key: MessageKey = ""


class EventTriggered(Result, frozen=True, kw_only=True):
    """An event that is stored."""

    id: EventId
    deadline: Annotated[int, about("When it has timed out, in microseconds.")]


class OfEvent(Arguments, frozen=True):
    """An event by its id."""

    id: EventId
    within: Annotated[float, about("Seconds to wait for the outcome, at most 60.")] = 0.0
    raw: Annotated[bool, about("Return the payload as bytes, whatever it is.")] = False


class EventOutcome(Result, frozen=True, kw_only=True):
    """What became of an event."""

    id: EventId
    topic: TopicName
    state: Annotated[Literal["pending", "done", "failed", "timed_out"], about("What became of it.")]
    deadline: Annotated[int, about("When it has timed out, in microseconds.")]
    ended_at: Annotated[int, about("When the outcome was stored, in microseconds; 0: there is none yet.")]
    source: Source
    value: JsonValue
    payload: RawPayload
    code: Annotated[str, about("The code of a failure.")]
    status: FailureStatus
    text: Annotated[str, about("What the service says of its failure.")]


class ErrorReport(Arguments, frozen=True):
    """A failure that a service reports of itself. It refers to a message and never repeats it."""

    code: Annotated[str, about("A short name for the kind of failure, in lower case.")]
    text: Annotated[str, about("What happened.")] = ""
    status: Annotated[int, about("A number as in HTTP, 400 to 599.")] = 500
    version: Annotated[str, about("Version of the service.")] = ""
    endpoint: Annotated[str, about("What of the service has failed.")] = ""
    trace_id: Annotated[str, about("Id of the trace, as W3C Trace Context has it.")] = ""
    topic: Annotated[str, about("Topic of the message that it is about.")] = ""
    offset: MessageOffset = None
    id: Annotated[str, about("Id of the message that it is about.")] = ""
    dropped: Annotated[int, about("Failures that the service has not reported since its last report.")] = 0


class ErrorReported(Result, frozen=True, kw_only=True):
    """What became of a report."""

    stored: Annotated[bool, about("False: the service has reported too much, and this one was only counted.")]


class ErrorRow(Result, frozen=True, kw_only=True):
    """An error that the bus may answer with."""

    code: Annotated[str, about("Stable name.")]
    http_status: Annotated[int, about("Status of the HTTP answer.")]
    exit_status: Annotated[int, about("Exit status of the command line.")]
    retriable: Annotated[bool, about("The same request may succeed later.")]
    description: Annotated[str, about("What happened.")]
    hint: Annotated[str, about("What to do, where the error itself says nothing else.")]


class ErrorCatalogue(Result, frozen=True, kw_only=True):
    """All errors of the bus."""

    errors: Annotated[list[ErrorRow], about("By exit status.")]


# -- the entries ---------------------------------------------------------------------------------------


REQUEST_SEND = operation(
    "request.send", RequestSend, RequestAnswer, "POST /v1/topics/{topic}/requests",
    "Ask whoever answers requests to a topic, and wait for the reply.", scope="publish:{topic}",
    audited=False,
    where="topic:{topic}",
)  # fmt: skip
EVENT_TRIGGER = operation(
    "event.trigger", EventTrigger, EventTriggered, "POST /v1/topics/{topic}/events",
    "Store an event whose outcome is kept for a day, and goes to a callback. The same id again is the same "
    "event.", scope="publish:{topic}", audited=False,
    where="home",
)  # fmt: skip
EVENT_OUTCOME = operation(
    "event.outcome", OfEvent, EventOutcome, "GET /v1/events/{id}",
    "Show what became of an event that the caller has triggered.",
    where="home",
)  # fmt: skip
ERROR_REPORT = operation(
    "error.report", ErrorReport, ErrorReported, "POST /v1/errors",
    "Report a failure of the calling service to the topic $errors.", audited=False,
    where="home",
)  # fmt: skip
ERROR_LIST = operation(
    "error.list",
    Nothing,
    ErrorCatalogue,
    "GET /v1/errors/catalogue",
    "List the errors of the bus.",
    where="home",
)
