"""Operations on webhooks."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET
from msgspec import UnsetType as Unset

from landbridge.core.webhook.spec import WebhookSpec
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

WebhookUrl = Annotated[str, about("Where messages are sent to, by POST: http:// or https://.")]
Secret = Annotated[
    str,
    about("whsec_ and 24 to 64 bytes in base64, or a key: whsk_ and 32 bytes; empty: one is made."),
]
WebhookRule = Annotated[
    str, about("The topic of the rule of its query, whose messages are sent; empty: it has no query.")
]
PublicKey = Annotated[
    str, about("whpk_…, which receivers verify signatures v1a with; empty: both sides have the secret.")
]


class WebhookOptions(OutletOptions, frozen=True, kw_only=True):
    """What a webhook sends, and how. Options that are not given have their defaults, or stay in an update."""

    content_type: Annotated[
        str | Unset | None,
        about("The header Content-Type; None: the message's header content-type, or application/json."),
    ] = UNSET


class WebhookCreate(WebhookOptions, frozen=True):
    """A webhook to make, and where it begins."""

    topic: TopicName
    name: OutletName
    url: WebhookUrl
    query: Annotated[
        dict[str, Any] | None,
        about("Send what this query chooses from the topic alone: a pattern, or with its kind; None: all."),
    ] = None
    secret: Secret = ""
    asymmetric: Annotated[
        bool, about("Sign with a key that is made and never shown (Ed25519, v1a) instead of a secret.")
    ] = False
    start: Annotated[
        Place | int | None, about("'earliest', 'latest' (default) or a moment in microseconds.")
    ] = None


class WebhookUpdate(WebhookOptions, frozen=True):
    """A webhook and the options to change."""

    topic: TopicName
    name: OutletName
    url: Annotated[str | Unset, about("Another URL.")] = UNSET


class WebhookRotate(OfOutlet, frozen=True, kw_only=True):
    """A webhook that gets a new secret."""

    secret: Secret = ""
    asymmetric: Annotated[
        bool | Unset, about("Make a key (Ed25519, v1a), or a secret; as before by default.")
    ] = UNSET
    overlap: Annotated[
        float, about("Seconds for which requests are signed with the secrets before, too; a day by default.")
    ] = 86400.0


class WebhookRow(OutletRow, frozen=True, kw_only=True):
    """A webhook, in short."""

    url: Annotated[
        str, about("Where messages are sent to. In a list, others than its owner and observers see no path.")
    ]
    rule: WebhookRule


class WebhookRows(Result, frozen=True, kw_only=True):
    """Some of the webhooks, by topic and name."""

    webhooks: Annotated[list[WebhookRow], about("The webhooks of this page.")]
    next: Next


class WebhookDetails(OutletDetails, frozen=True, kw_only=True):
    """A webhook with its options and its last attempts."""

    url: WebhookUrl
    rule: WebhookRule
    options: Annotated[WebhookSpec, about("Its options, as webhook.create takes them.")]
    secrets: Annotated[
        list[int | None],
        about("Of each valid secret, newest first: when it ends, in microseconds; None: at a rotation."),
    ]
    public_keys: Annotated[list[PublicKey], about("The public key of each valid secret that is a key.")]


class WebhookSigned(WebhookRow, frozen=True, kw_only=True):
    """A webhook, with the secret that its requests are signed with from now on."""

    secret: Annotated[
        str, about("Shown this once; empty: it existed with the same options, or signs with a key.")
    ]
    public_key: PublicKey


# -- the entries ---------------------------------------------------------------------------------------

_WEBHOOK = "/v1/topics/{topic}/webhooks/{name}"

WEBHOOK_CREATE = operation(
    "webhook.create", WebhookCreate, WebhookSigned, "POST /v1/topics/{topic}/webhooks",
    "Create a webhook, which sends messages of the topic to a URL and reads them in the caller's name; one "
    "that exists with the same options is left as it is. A query makes its rule where there is none.",
    scope=READ_TOPIC, where="topic:{topic}",
)  # fmt: skip
WEBHOOK_UPDATE = operation(
    "webhook.update", WebhookUpdate, WebhookRow, f"PATCH {_WEBHOOK}",
    "Change options of a webhook. From then on it reads in the caller's name.", scope=READ_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_LIST = operation(
    "webhook.list", OutletList, WebhookRows, "GET /v1/webhooks",
    "List the webhooks of one topic, or of all topics that the token may see.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_SHOW = operation(
    "webhook.show", OfOutlet, WebhookDetails, f"GET {_WEBHOOK}",
    "Show a webhook with its last attempts, to its owner or an observer.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_TEST = operation(
    "webhook.test", OutletTry, OutletTested, f"POST {_WEBHOOK}/test",
    "Send a test to the receiver of a webhook, and show what came back.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_PAUSE = operation(
    "webhook.pause", OutletPause, WebhookRow, f"POST {_WEBHOOK}/pause",
    "Pause a webhook, with a note for others. Its messages wait.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_RESUME = operation(
    "webhook.resume", OfOutlet, WebhookRow, f"POST {_WEBHOOK}/resume",
    "Let a paused or disabled webhook go on, at once and as if nothing had failed.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_REPLAY = operation(
    "webhook.replay", OutletReplay, OutletReplayed, f"POST {_WEBHOOK}/replay",
    "Send a range of messages again.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_ROTATE = operation(
    "webhook.rotate", WebhookRotate, WebhookSigned, f"POST {_WEBHOOK}/rotate",
    "Give a webhook a new secret. For a while, requests are signed with both.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_DELETE = operation(
    "webhook.delete", OfOutlet, Deleted, f"DELETE {_WEBHOOK}", "Delete a webhook with its group.",
    where="topic:{topic}",
)  # fmt: skip
