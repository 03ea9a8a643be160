"""What all outlets have in common: their options, and what became of their attempts. Apart from the rest,
because clients read them, too."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from landbridge.core.delivery.filters import Match

#: "delivered": the receiver has taken it. "throttled": it wants less for a while. "gone": it wants nothing
#: more. "refused": it will never take this message. "failed": everything else.
Verdict: TypeAlias = Literal["delivered", "throttled", "gone", "refused", "failed"]
#: "closed": messages are sent. "open": none until a moment. "half-open": one at a time, to find out.
Circuit: TypeAlias = Literal["closed", "open", "half-open"]


class OutletSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every outlet is told."""

    topic: str
    name: str
    #: One message at a time, in the order of the topic: one that fails holds the others.
    ordered: bool = False
    #: Messages per second at most; None: no limit.
    rate: float | None = None
    #: Which messages of what is read; None: all.
    match: Match | None = None


class OutletAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent once, and what came back."""

    #: The message's id, as the receiver sees it.
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
    #: The start of the answer.
    answer: str = ""
    #: Seconds that the receiver has asked for; None: it has not.
    retry_after: float | None = None
    #: Messages that went together, where these are several.
    messages: int = 1
    #: What it counts against a budget.
    units: int = 0
