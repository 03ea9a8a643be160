"""Operations on mail outlets."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET
from msgspec import UnsetType as Unset

from landbridge.core.mail.spec import MailDigest, MailSpec
from landbridge.protocol.operations.common import (
    READ_TOPIC,
    SEE_ITS_TOPIC,
    Deleted,
    Next,
    Place,
    TopicName,
)
from landbridge.protocol.operations.operation import Result, about, operation
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

MailServerUrl = Annotated[
    str,
    about(
        "Where mails are handed over: smtp://HOST:PORT with STARTTLS, smtps://HOST:PORT, or "
        "smtp+plain://HOST:PORT in the clear."
    ),
]
MailSender = Annotated[str, about("The address of the header From.")]
MailTo = Annotated[
    tuple[str, ...], about("Templates of addresses; one that is a place alone may be a list in the message.")
]


class MailOptions(OutletOptions, frozen=True, kw_only=True):
    """What a mail outlet sends, and how. Options that are not given have their defaults, or stay in an
    update."""

    user: Annotated[str | Unset, about("Who shows itself to the server; empty: nobody.")] = UNSET
    subject: Annotated[str | Unset, about("Template of the subject.")] = UNSET
    body: Annotated[str | Unset, about("Template of the text, of each message in a digest.")] = UNSET
    html: Annotated[bool | Unset, about("The text is HTML; what is filled in is escaped.")] = UNSET
    digest: Annotated[
        MailDigest | Unset | None,
        about("Several messages in one mail: 'every' so many seconds, or 'most' messages; None: each alone."),
    ] = UNSET
    password: Annotated[str | Unset, about("What the user shows to the server. It is never shown again.")] = (
        UNSET
    )


class MailCreate(MailOptions, frozen=True):
    """A mail outlet to make, and where it begins."""

    topic: TopicName
    name: OutletName
    server: MailServerUrl
    sender: MailSender
    to: MailTo
    start: Annotated[
        Place | int | None, about("'earliest', 'latest' (default) or a moment in microseconds.")
    ] = None


class MailUpdate(MailOptions, frozen=True):
    """A mail outlet and the options to change."""

    topic: TopicName
    name: OutletName
    server: Annotated[str | Unset, about("Another server.")] = UNSET
    sender: Annotated[str | Unset, about("Another address of the header From.")] = UNSET
    to: Annotated[tuple[str, ...] | Unset, about("Other recipients.")] = UNSET


class MailBounce(OfOutlet, frozen=True, kw_only=True):
    """A mail that came back."""

    first: Annotated[int, about("Offset of the first message that the mail was of.")]
    end: Annotated[int, about("The offset behind the last one.")]
    cause: Annotated[str, about("Why it could not be delivered.")] = ""


class MailRow(OutletRow, frozen=True, kw_only=True):
    """A mail outlet, in short."""

    server: MailServerUrl


class MailRows(Result, frozen=True, kw_only=True):
    """Some of the mail outlets, by topic and name."""

    mails: Annotated[list[MailRow], about("The mail outlets of this page.")]
    next: Next


class MailDetails(OutletDetails, frozen=True, kw_only=True):
    """A mail outlet with its options and its last attempts."""

    server: MailServerUrl
    options: Annotated[MailSpec, about("Its options, as mail.create takes them; without the password.")]


class MailBounced(Result, frozen=True, kw_only=True):
    """What follows from a mail that came back."""

    messages: Annotated[int, about("Messages that are given up.")]


# -- the entries ---------------------------------------------------------------------------------------

_MAIL = "/v1/topics/{topic}/mails/{name}"

MAIL_CREATE = operation(
    "mail.create", MailCreate, MailRow, "POST /v1/topics/{topic}/mails",
    "Create a mail outlet, which sends messages of the topic as mails and reads them in the caller's name; "
    "one that exists with the same options is left as it is.", scope=READ_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
MAIL_UPDATE = operation(
    "mail.update", MailUpdate, MailRow, f"PATCH {_MAIL}",
    "Change options of a mail outlet. From then on it reads in the caller's name.", scope=READ_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
MAIL_LIST = operation(
    "mail.list", OutletList, MailRows, "GET /v1/mails",
    "List the mail outlets of one topic, or of all topics that the token may see.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
MAIL_SHOW = operation(
    "mail.show", OfOutlet, MailDetails, f"GET {_MAIL}",
    "Show a mail outlet with its last attempts, to its owner or an observer.",
    where="topic:{topic}",
)  # fmt: skip
MAIL_TEST = operation(
    "mail.test", OutletTry, OutletTested, f"POST {_MAIL}/test",
    "Send a test to the fixed recipients of a mail outlet, and show what the server said.",
    where="topic:{topic}",
)  # fmt: skip
MAIL_PAUSE = operation(
    "mail.pause", OutletPause, MailRow, f"POST {_MAIL}/pause",
    "Pause a mail outlet, with a note for others. Its messages wait.",
    where="topic:{topic}",
)  # fmt: skip
MAIL_RESUME = operation(
    "mail.resume", OfOutlet, MailRow, f"POST {_MAIL}/resume",
    "Let a paused or disabled mail outlet go on, at once and as if nothing had failed.",
    where="topic:{topic}",
)  # fmt: skip
MAIL_REPLAY = operation(
    "mail.replay", OutletReplay, OutletReplayed, f"POST {_MAIL}/replay",
    "Mail a range of messages again.",
    where="topic:{topic}",
)  # fmt: skip
MAIL_BOUNCE = operation(
    "mail.bounce", MailBounce, MailBounced, f"POST {_MAIL}/bounce",
    "Say that a mail came back: its messages are given up, with the cause.", scope="operate",
    where="topic:{topic}",
)  # fmt: skip
MAIL_DELETE = operation(
    "mail.delete", OfOutlet, Deleted, f"DELETE {_MAIL}", "Delete a mail outlet with its group.",
    where="topic:{topic}",
)  # fmt: skip
