"""The options of a webhook, and what became of its attempts. Apart from the rest, because clients read them,
too."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from landbridge.core.delivery.filters import Match

#: "delivered": 2xx. "throttled": 429, 502 or 504. "gone": 410. "failed": everything else.
Verdict: TypeAlias = Literal["delivered", "throttled", "gone", "failed"]
#: "closed": requests are sent. "open": none until a moment. "half-open": one at a time, to find out.
Circuit: TypeAlias = Literal["closed", "open", "half-open"]


class WebhookSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sent where."""

    topic: str
    name: str
    url: str
    #: The header Content-Type; None: the message's own, otherwise application/json.
    content_type: str | None = None
    #: One request at a time, in the order of the topic: a message that fails holds the others.
    ordered: bool = False
    #: Requests per second at most; None: no limit.
    rate: float | None = None
    #: Which messages of the topic, or of the rule's topic; None: all.
    match: Match | None = None
    #: A query in its canonical form: the messages that its rule chooses from the topic; None: there is none.
    query: dict[str, Any] | None = None


class WebhookAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and what came back."""

    #: The header webhook-id: the message's id, where a header can hold it.
    id: str
    #: When it was sent, in microseconds.
    at: int
    #: How long it took, in seconds.
    seconds: float
    verdict: Verdict
    #: The number of the attempt for this message, from 1.
    number: int = 1
    #: The offset of the message; None for a test.
    offset: int | None = None
    #: Of the answer; 0: there was none.
    status: int = 0
    #: Why there was no answer.
    detail: str = ""
    #: The start of the answer's body.
    answer: str = ""
    #: Seconds that the receiver has asked for; None: it has not.
    retry_after: float | None = None
