"""Operations on SMS outlets."""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Literal

from msgspec import UNSET
from msgspec import UnsetType as Unset

from landbridge.core.sms.spec import SmsProfile, SmsSpec
from landbridge.protocol.operations.common import (
    READ_TOPIC,
    SEE_ITS_TOPIC,
    Deleted,
    Next,
    Place,
    TopicName,
)
from landbridge.protocol.operations.operation import ANYBODY, Result, about, operation
from landbridge.protocol.operations.outlets import (
    OfOutlet,
    OutletDetails,
    OutletList,
    OutletName,
    OutletOptions,
    OutletPause,
    OutletReplay,
    OutletReplayed,
    OutletRow,
    OutletTested,
    OutletTry,
)


class SmsOptions(OutletOptions, frozen=True, kw_only=True):
    """What an SMS outlet sends, and how. Options that are not given have their defaults, or stay in an
    update."""

    body: Annotated[str | Unset, about("Template of the text.")] = UNSET
    profile: Annotated[SmsProfile | Unset, about("How the provider is asked; Twilio's by default.")] = UNSET
    per_day: Annotated[int | Unset | None, about("Segments of a day (UTC); None: no limit.")] = UNSET
    per_month: Annotated[int | Unset | None, about("Segments of a month (UTC); None: no limit.")] = UNSET
    most_segments: Annotated[int | Unset, about("Segments of one SMS; a longer one is given up.")] = UNSET
    receipts: Annotated[str | Unset | None, about("Topic of delivery receipts; None: none are taken.")] = (
        UNSET
    )
    incoming: Annotated[str | Unset | None, about("Topic of SMS that come in; None: none are taken.")] = UNSET
    reached_at: Annotated[
        str | Unset, about("How the provider reaches the HTTP port: https://bus.example")
    ] = UNSET


class SmsCreate(SmsOptions, frozen=True):
    """An SMS outlet to make, and where it begins."""

    topic: TopicName
    name: OutletName
    account: Annotated[str, about("Who shows itself to the provider.")]
    secret: Annotated[
        str, about("What the account shows, and what callbacks are signed with. It is never shown again.")
    ]
    sender: Annotated[str, about("The number or the name that the SMS come from.")]
    to: Annotated[str, about("Template of the recipient's number (E.164).")]
    start: Annotated[
        Place | int | None, about("'earliest', 'latest' (default) or a moment in microseconds.")
    ] = None


class SmsUpdate(SmsOptions, frozen=True):
    """An SMS outlet and the options to change."""

    topic: TopicName
    name: OutletName
    account: Annotated[str | Unset, about("Another account; it needs its secret.")] = UNSET
    secret: Annotated[str | Unset, about("Another secret.")] = UNSET
    sender: Annotated[str | Unset, about("Another number or name that the SMS come from.")] = UNSET
    to: Annotated[str | Unset, about("Another recipient.")] = UNSET


class SmsCall(OfOutlet, frozen=True, kw_only=True):
    """What a provider calls back with."""

    what: Annotated[Literal["receipts", "incoming"], about("What it tells.")]
    query: Annotated[str, about("The query of its request, as it came.")] = ""
    content_type: Annotated[str, about("The media type of its body.")] = ""
    body: Annotated[bytes, about("Its body.")] = b""
    headers: Annotated[dict[str, str], about("Its headers, in lower case.")] = {}


class SmsRow(OutletRow, frozen=True, kw_only=True):
    """An SMS outlet, in short."""

    account: Annotated[str, about("Who shows itself to the provider.")]
    today: Annotated[int, about("Segments of this day (UTC).")]
    this_month: Annotated[int, about("Segments of this month (UTC).")]


class SmsRows(Result, frozen=True, kw_only=True):
    """Some of the SMS outlets, by topic and name."""

    sms: Annotated[list[SmsRow], about("The SMS outlets of this page.")]
    next: Next


class SmsDetails(OutletDetails, frozen=True, kw_only=True):
    """An SMS outlet with its options and its last attempts."""

    account: Annotated[str, about("Who shows itself to the provider.")]
    today: Annotated[int, about("Segments of this day (UTC).")]
    this_month: Annotated[int, about("Segments of this month (UTC).")]
    options: Annotated[SmsSpec, about("Its options, as sms.create takes them; without the secret.")]
    receipts_url: Annotated[str, about("Where the provider tells of deliveries; empty: nowhere.")]
    incoming_url: Annotated[str, about("What to give the provider for SMS that come in; empty: nothing.")]


# -- the entries ---------------------------------------------------------------------------------------

_SMS = "/v1/topics/{topic}/sms/{name}"

SMS_CREATE = operation(
    "sms.create", SmsCreate, SmsRow, "POST /v1/topics/{topic}/sms",
    "Create an SMS outlet, which sends messages of the topic as SMS and reads them in the caller's name; one "
    "that exists with the same options is left as it is.", scope=READ_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
SMS_UPDATE = operation(
    "sms.update", SmsUpdate, SmsRow, f"PATCH {_SMS}",
    "Change options of an SMS outlet. From then on it reads in the caller's name.", scope=READ_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
SMS_LIST = operation(
    "sms.list", OutletList, SmsRows, "GET /v1/sms",
    "List the SMS outlets of one topic, or of all topics that the token may see.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
SMS_SHOW = operation(
    "sms.show", OfOutlet, SmsDetails, f"GET {_SMS}",
    "Show an SMS outlet with its last attempts, to its owner or an observer.",
    where="topic:{topic}",
)  # fmt: skip
SMS_TEST = operation(
    "sms.test", OutletTry, OutletTested, f"POST {_SMS}/test",
    "Send a test to the fixed recipient of an SMS outlet, and show what the provider said.",
    where="topic:{topic}",
)  # fmt: skip
SMS_PAUSE = operation(
    "sms.pause", OutletPause, SmsRow, f"POST {_SMS}/pause",
    "Pause an SMS outlet, with a note for others. Its messages wait.",
    where="topic:{topic}",
)  # fmt: skip
SMS_RESUME = operation(
    "sms.resume", OfOutlet, SmsRow, f"POST {_SMS}/resume",
    "Let a paused or disabled SMS outlet go on, at once and as if nothing had failed.",
    where="topic:{topic}",
)  # fmt: skip
SMS_REPLAY = operation(
    "sms.replay", OutletReplay, OutletReplayed, f"POST {_SMS}/replay",
    "Send a range of messages as SMS again.",
    where="topic:{topic}",
)  # fmt: skip
SMS_DELETE = operation(
    "sms.delete", OfOutlet, Deleted, f"DELETE {_SMS}", "Delete an SMS outlet with its group.",
    where="topic:{topic}",
)  # fmt: skip
SMS_CALL = operation(
    "sms.call", SmsCall, NoneType, f"POST {_SMS}/{{what}}",
    "Take a delivery receipt or an SMS that comes in, from the provider who has signed it.",
    scope=ANYBODY, audited=False,
    where="topic:{topic}",
)  # fmt: skip
