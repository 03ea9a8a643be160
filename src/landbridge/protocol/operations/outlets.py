"""What the operations of all outlets have in common: webhooks, mail and SMS."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET
from msgspec import UnsetType as Unset

from landbridge.core.delivery.filters import Match
from landbridge.core.outlet.spec import Circuit, OutletAttempt
from landbridge.protocol.operations.common import After, TopicName
from landbridge.protocol.operations.operation import Arguments, Result, about

OutletName = Annotated[str, about("Its name, among those of its topic and kind.")]


class OfOutlet(Arguments, frozen=True):
    """A webhook, a mail or an SMS outlet by its topic and its name."""

    topic: TopicName
    name: OutletName


class OutletOptions(Arguments, frozen=True, kw_only=True):
    """What every outlet is told. Options that are not given have their defaults, or stay in an update."""

    ordered: Annotated[
        bool | Unset, about("One message at a time, in order; one that fails holds the others.")
    ] = UNSET
    rate: Annotated[float | Unset | None, about("Messages per second at most; None: no limit.")] = UNSET
    match: Annotated[
        Match | Unset | None, about("Patterns for 'key' and 'headers' of what is sent; None: everything.")
    ] = UNSET


class OutletList(Arguments, frozen=True, kw_only=True):
    """A page of the outlets of a kind."""

    topic: Annotated[str | None, about("Those of this topic alone; None: of all topics.")] = None
    after: After = ""


class OutletTry(OfOutlet, frozen=True, kw_only=True):
    """An outlet to test."""

    within: Annotated[float, about("Seconds to wait for the receiver's answer, at most 30.")] = 20.0


class OutletPause(OfOutlet, frozen=True, kw_only=True):
    """An outlet to pause."""

    note: Annotated[str, about("Why, for whoever looks at it.")] = ""


class OutletReplay(OfOutlet, frozen=True, kw_only=True):
    """An outlet, and the range of messages to send again: by offset, or by moment."""

    first: Annotated[int | None, about("The first offset.")] = None
    end: Annotated[int | None, about("The offset behind the last one; None: all there are.")] = None
    begin: Annotated[int | None, about("Messages taken at this moment or later, in microseconds.")] = None
    until: Annotated[int | None, about("Messages taken before this moment; None: all there are.")] = None


class OutletRow(Result, frozen=True, kw_only=True):
    """An outlet, in short."""

    topic: TopicName
    name: OutletName
    owner: Annotated[str, about("The subject in whose name the topic is read.")]
    state: Annotated[
        Literal["active", "paused", "disabled"],
        about("'disabled': by an answer 410, or after five days of failures; resume it."),
    ]
    circuit: Annotated[
        Circuit, about("'open': nothing is sent for a while; 'half-open': one at a time, to find out.")
    ]
    lag: Annotated[int | None, about("Messages that are not settled; None: its topic or group is gone.")]
    delivered: Annotated[int, about("Messages that the receiver has taken.")]
    failed: Annotated[int, about("Attempts that have failed.")]
    buried: Annotated[int, about("Messages given up; they are in the topic of dead letters.")]
    last_success_at: Annotated[int | None, about("The last success, in microseconds; None: none yet.")]
    trouble: Annotated[str, about("Why nothing can be sent at the moment; empty: nothing is known of.")] = ""


class OutletDetails(OutletRow, frozen=True, kw_only=True):
    """An outlet with how it is and its last attempts."""

    group: Annotated[str, about("The group whose cursor it moves, of the topic or of the rule's topic.")]
    created_at: Annotated[int, about("When it was made, in microseconds.")]
    failing_since: Annotated[int | None, about("The first failure since the last success; None: none.")]
    blocked_until: Annotated[int | None, about("Nothing is sent before this moment; None: at any time.")]
    disabled_why: Annotated[str, about("Why it is disabled.")]
    paused_at: Annotated[int | None, about("When it was paused; None: it is not.")]
    paused_by: Annotated[str, about("Who paused it.")]
    note: Annotated[str, about("Why it is paused.")]
    attempts: Annotated[list[OutletAttempt], about("The last attempts, newest first.")]


class OutletTested(Result, frozen=True, kw_only=True):
    """A test."""

    id: Annotated[str, about("The id that the receiver sees.")]
    attempt: Annotated[OutletAttempt | None, about("What came back; None: nothing yet.")]


class OutletReplayed(Result, frozen=True, kw_only=True):
    """A replay was begun."""

    messages: Annotated[int, about("Messages that are sent again, those that its match leaves out included.")]
