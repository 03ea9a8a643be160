"""Operations on webhooks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET
from msgspec import UnsetType as Unset

from landbridge.core.delivery.filters import Match
from landbridge.core.webhook.spec import Circuit, WebhookAttempt, WebhookSpec
from landbridge.protocol.operations.common import (
    READ_TOPIC,
    SEE_ITS_TOPIC,
    After,
    Deleted,
    Next,
    Place,
    TopicName,
)
from landbridge.protocol.operations.operation import Arguments, Result, about, operation

WebhookName = Annotated[str, about("Name of the webhook, among those of its topic.")]
WebhookUrl = Annotated[str, about("Where messages are sent to, by POST: http:// or https://.")]
Secret = Annotated[
    str,
    about("whsec_ and 24 to 64 bytes in base64, or a key: whsk_ and 32 bytes; empty: one is made."),
]
PublicKey = Annotated[
    str, about("whpk_…, which receivers verify signatures v1a with; empty: both sides have the secret.")
]


class OfWebhook(Arguments, frozen=True):
    """A webhook by its topic and its name."""

    topic: TopicName
    name: WebhookName


class WebhookOptions(Arguments, frozen=True, kw_only=True):
    """What a webhook sends, and how. Options that are not given have their defaults, or stay in an update."""

    content_type: Annotated[
        str | Unset | None,
        about("The header Content-Type; None: the message's header content-type, or application/json."),
    ] = UNSET
    ordered: Annotated[
        bool | Unset, about("One message at a time, in order; one that fails holds the others.")
    ] = UNSET
    rate: Annotated[float | Unset | None, about("Requests per second at most; None: no limit.")] = UNSET
    match: Annotated[
        Match | Unset | None, about("Patterns for 'key' and 'headers' of what is sent; None: everything.")
    ] = UNSET


class WebhookCreate(WebhookOptions, frozen=True):
    """A webhook to make, and where it begins."""

    topic: TopicName
    name: WebhookName
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
    name: WebhookName
    url: Annotated[str | Unset, about("Another URL.")] = UNSET


class WebhookList(Arguments, frozen=True, kw_only=True):
    """A page of the webhooks."""

    topic: Annotated[str | None, about("Webhooks of this topic alone; None: of all topics.")] = None
    after: After = ""


class WebhookTry(OfWebhook, frozen=True, kw_only=True):
    """A webhook to test."""

    within: Annotated[float, about("Seconds to wait for the receiver's answer, at most 30.")] = 20.0


class WebhookPause(OfWebhook, frozen=True, kw_only=True):
    """A webhook to pause."""

    note: Annotated[str, about("Why, for whoever looks at it.")] = ""


class WebhookReplay(OfWebhook, frozen=True, kw_only=True):
    """A webhook, and the range of messages to send again: by offset, or by moment."""

    first: Annotated[int | None, about("The first offset.")] = None
    end: Annotated[int | None, about("The offset behind the last one; None: all there are.")] = None
    begin: Annotated[int | None, about("Messages taken at this moment or later, in microseconds.")] = None
    until: Annotated[int | None, about("Messages taken before this moment; None: all there are.")] = None


class WebhookRotate(OfWebhook, frozen=True, kw_only=True):
    """A webhook that gets a new secret."""

    secret: Secret = ""
    asymmetric: Annotated[
        bool | Unset, about("Make a key (Ed25519, v1a), or a secret; as before by default.")
    ] = UNSET
    overlap: Annotated[
        float, about("Seconds for which requests are signed with the secrets before, too; a day by default.")
    ] = 86400.0


class WebhookRow(Result, frozen=True, kw_only=True):
    """A webhook, in short."""

    topic: TopicName
    name: WebhookName
    url: Annotated[
        str, about("Where messages are sent to. In a list, others than its owner and observers see no path.")
    ]
    rule: Annotated[
        str, about("The topic of the rule of its query, whose messages are sent; empty: it has no query.")
    ]
    owner: Annotated[str, about("The subject in whose name the topic is read.")]
    state: Annotated[
        Literal["active", "paused", "disabled"],
        about("'disabled': by an answer 410, or after five days of failures; resume it."),
    ]
    circuit: Annotated[
        Circuit, about("'open': no requests for a while; 'half-open': one at a time, to find out.")
    ]
    lag: Annotated[int | None, about("Messages that are not settled; None: its topic or group is gone.")]
    delivered: Annotated[int, about("Messages that the receiver has taken.")]
    failed: Annotated[int, about("Attempts that have failed.")]
    buried: Annotated[int, about("Messages given up; they are in the topic of dead letters.")]
    last_success_at: Annotated[int | None, about("The last success, in microseconds; None: none yet.")]


class WebhookRows(Result, frozen=True, kw_only=True):
    """Some of the webhooks, by topic and name."""

    webhooks: Annotated[list[WebhookRow], about("The webhooks of this page.")]
    next: Next


class WebhookDetails(WebhookRow, frozen=True, kw_only=True):
    """A webhook with its options and its last attempts."""

    options: Annotated[WebhookSpec, about("Its options, as webhook.create takes them.")]
    group: Annotated[str, about("The group whose cursor it moves, of the topic or of the rule's topic.")]
    created_at: Annotated[int, about("When it was made, in microseconds.")]
    secrets: Annotated[
        list[int | None],
        about("Of each valid secret, newest first: when it ends, in microseconds; None: at a rotation."),
    ]
    public_keys: Annotated[list[PublicKey], about("The public key of each valid secret that is a key.")]
    failing_since: Annotated[int | None, about("The first failure since the last success; None: none.")]
    blocked_until: Annotated[int | None, about("No request before this moment; None: at any time.")]
    disabled_why: Annotated[str, about("Why it is disabled.")]
    trouble: Annotated[str, about("Why its topic can't be read at the moment.")]
    paused_at: Annotated[int | None, about("When it was paused; None: it is not.")]
    paused_by: Annotated[str, about("Who paused it.")]
    note: Annotated[str, about("Why it is paused.")]
    attempts: Annotated[list[WebhookAttempt], about("The last attempts, newest first.")]


class WebhookSigned(WebhookRow, frozen=True, kw_only=True):
    """A webhook, with the secret that its requests are signed with from now on."""

    secret: Annotated[
        str, about("Shown this once; empty: it existed with the same options, or signs with a key.")
    ]
    public_key: PublicKey


class WebhookTested(Result, frozen=True, kw_only=True):
    """A test."""

    id: Annotated[str, about("The webhook-id of its request.")]
    attempt: Annotated[WebhookAttempt | None, about("What came back; None: nothing yet.")]


class WebhookReplayed(Result, frozen=True, kw_only=True):
    """A replay was begun."""

    messages: Annotated[int, about("Messages that are sent again, those that its match leaves out included.")]


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
    "webhook.list", WebhookList, WebhookRows, "GET /v1/webhooks",
    "List the webhooks of one topic, or of all topics that the token may see.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_SHOW = operation(
    "webhook.show", OfWebhook, WebhookDetails, f"GET {_WEBHOOK}",
    "Show a webhook with its last attempts, to its owner or an observer.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_TEST = operation(
    "webhook.test", WebhookTry, WebhookTested, f"POST {_WEBHOOK}/test",
    "Send a test to the receiver of a webhook, and show what came back.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_PAUSE = operation(
    "webhook.pause", WebhookPause, WebhookRow, f"POST {_WEBHOOK}/pause",
    "Pause a webhook, with a note for others. Its messages wait.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_RESUME = operation(
    "webhook.resume", OfWebhook, WebhookRow, f"POST {_WEBHOOK}/resume",
    "Let a paused or disabled webhook go on, at once and as if nothing had failed.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_REPLAY = operation(
    "webhook.replay", WebhookReplay, WebhookReplayed, f"POST {_WEBHOOK}/replay",
    "Send a range of messages again.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_ROTATE = operation(
    "webhook.rotate", WebhookRotate, WebhookSigned, f"POST {_WEBHOOK}/rotate",
    "Give a webhook a new secret. For a while, requests are signed with both.",
    where="topic:{topic}",
)  # fmt: skip
WEBHOOK_DELETE = operation(
    "webhook.delete", OfWebhook, Deleted, f"DELETE {_WEBHOOK}", "Delete a webhook with its group.",
    where="topic:{topic}",
)  # fmt: skip
