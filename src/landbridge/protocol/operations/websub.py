"""Operations on feeds and their subscriptions (W3C WebSub)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET
from msgspec import UnsetType as Unset

from landbridge.core.outlet.spec import Circuit, OutletAttempt
from landbridge.core.websub.spec import FeedSpec
from landbridge.protocol.operations.common import SEE_ITS_TOPIC, After, Deleted, Next, TopicName
from landbridge.protocol.operations.operation import ANYBODY, Arguments, Result, about, operation

SubscriptionId = Annotated[str, about("Id of the subscription: it follows from callback and feed.")]
Base = Annotated[str, about("How the caller has reached this HTTP port, such as https://hub.example.")]


class OfFeed(Arguments, frozen=True):
    """A feed by its topic."""

    topic: TopicName


class FeedOptions(Arguments, frozen=True, kw_only=True):
    """How a topic is a feed. Options that are not given have their defaults, or stay."""

    base: Annotated[
        str | Unset,
        about("How the HTTP port is reached from outside: https://hub.example; empty: as subscribers do."),
    ] = UNSET
    source: Annotated[
        str | Unset,
        about("A page that is fetched at each ping and published when it has changed; empty: none."),
    ] = UNSET
    content_type: Annotated[
        str | Unset | None,
        about("The header Content-Type; None: the message's header content-type, or application/json."),
    ] = UNSET
    ordered: Annotated[
        bool | Unset, about("One message at a time to each subscriber; one that fails holds the others.")
    ] = UNSET


class FeedOpen(FeedOptions, frozen=True):
    """A topic to open as a feed, or a feed to change."""

    topic: TopicName


class FeedList(Arguments, frozen=True, kw_only=True):
    """A page of the feeds."""

    after: After = ""


class FeedRead(Arguments, frozen=True):
    """A feed to read."""

    topic: TopicName
    base: Base = ""


class HubCall(Arguments, frozen=True):
    """A form that was sent to the hub."""

    form: Annotated[list[tuple[str, str]], about("The parameters hub.mode, hub.topic and so on, in order.")]
    base: Base = ""


class SubscriptionList(Arguments, frozen=True, kw_only=True):
    """A page of the subscriptions."""

    topic: Annotated[str | None, about("Of this topic's feed alone; None: of all.")] = None
    after: After = ""


class OfSubscription(Arguments, frozen=True):
    """A subscription by its feed and its id."""

    topic: TopicName
    id: SubscriptionId


class FeedRow(Result, frozen=True, kw_only=True):
    """A feed."""

    topic: TopicName
    owner: Annotated[str, about("The subject in whose name the topic is read.")]
    opened_at: Annotated[int, about("When it was opened, in microseconds.")]
    path: Annotated[str, about("Where it is at the HTTP port; with the base if it has one.")]
    subscriptions: Annotated[int, about("Subscriptions that get messages.")]
    pending: Annotated[int, about("Requests that wait to be verified.")]
    options: Annotated[FeedSpec, about("Its options.")]
    pinged_at: Annotated[int | None, about("The last ping, where it has a source; None: none yet.")]
    fetched_at: Annotated[int | None, about("The last fetch of its source; None: none yet.")]
    trouble: Annotated[str, about("Why the last fetch of its source has failed.")]


class FeedRows(Result, frozen=True, kw_only=True):
    """Some of the feeds, by topic."""

    feeds: Annotated[list[FeedRow], about("The feeds of this page.")]
    next: Next


class FeedContent(Result, frozen=True, kw_only=True):
    """The newest message of a feed."""

    topic: TopicName
    hub: Annotated[str, about("Where to subscribe.")]
    url: Annotated[str, about("What to subscribe to.")]
    payload: Annotated[bytes, about("The payload; empty where the feed has no message.")]
    content_type: Annotated[str, about("Its media type.")]
    id: Annotated[str, about("The message's id; empty where there is none.")]
    offset: Annotated[int, about("Its offset; -1 where there is none.")]


class HubAccepted(Result, frozen=True, kw_only=True):
    """The hub has taken a request, which is stored. Whether it is verified shows later."""

    mode: Annotated[Literal["subscribe", "unsubscribe", "publish"], about("What was asked for.")]
    id: Annotated[str, about("Id of the subscription; empty for a ping.")]


class SubscriptionRow(Result, frozen=True, kw_only=True):
    """A subscription, in short. Its secret is never shown."""

    topic: TopicName
    id: SubscriptionId
    callback: Annotated[str, about("Where messages are sent to.")]
    state: Annotated[
        Literal["pending", "active", "ending"],
        about("'pending': not verified yet; 'active': it gets messages; 'ending': it is being removed."),
    ]
    waits_for: Annotated[
        Literal["", "subscribe", "unsubscribe"], about("What waits to be verified; empty: nothing.")
    ]
    expires_at: Annotated[int | None, about("When its lease ends, in microseconds; None: it is pending.")]
    signed: Annotated[bool, about("Whether it has a secret.")]
    circuit: Annotated[
        Circuit, about("'open': no requests for a while; 'half-open': one at a time, to find out.")
    ]
    lag: Annotated[int | None, about("Messages that are not settled; None: it has no group yet.")]
    delivered: Annotated[int, about("Messages that the subscriber has taken.")]
    failed: Annotated[int, about("Attempts that have failed.")]
    given_up: Annotated[int, about("Messages given up after the last attempt.")]


class SubscriptionRows(Result, frozen=True, kw_only=True):
    """Some of the subscriptions, by topic and id."""

    subscriptions: Annotated[list[SubscriptionRow], about("The subscriptions of this page.")]
    next: Next


class SubscriptionDetails(SubscriptionRow, frozen=True, kw_only=True):
    """A subscription with its last attempts."""

    url: Annotated[str, about("The feed's URL, as the subscriber has named it.")]
    hub: Annotated[str, about("The hub's URL, as it is told to the subscriber.")]
    group: Annotated[str, about("The group of the topic whose cursor it moves.")]
    created_at: Annotated[int, about("When it was asked for the first time, in microseconds.")]
    verified_at: Annotated[int | None, about("The last verification that was confirmed; None: none.")]
    lease: Annotated[int | None, about("Seconds of its lease; None: it is pending.")]
    refused_at: Annotated[int | None, about("The last verification that was not confirmed; None: none.")]
    refused_why: Annotated[str, about("Why not.")]
    trouble: Annotated[str, about("Why its topic can't be read at the moment.")]
    attempts: Annotated[list[OutletAttempt], about("The last attempts, newest first.")]


# -- the entries ---------------------------------------------------------------------------------------

_FEED = "/v1/topics/{topic}/feed"

WEBSUB_OPEN = operation(
    "websub.open", FeedOpen, FeedRow, f"POST {_FEED}",
    "Open a topic as a feed, to which anybody may subscribe without a token, or change the options of one; "
    "the caller has to be allowed to read the topic, and to publish to it where there is a source.",
    scope="operate",
    where="topic:{topic}",
)  # fmt: skip
WEBSUB_CLOSE = operation(
    "websub.close", OfFeed, Deleted, f"DELETE {_FEED}",
    "Close a feed. Its subscriptions end, and their callbacks are told.", scope="operate",
    where="topic:{topic}",
)  # fmt: skip
WEBSUB_SHOW = operation(
    "websub.show", OfFeed, FeedRow, f"GET {_FEED}", "Show a feed.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
WEBSUB_FEEDS = operation(
    "websub.feeds", FeedList, FeedRows, "GET /v1/feeds", "List the feeds whose topics the token may see.",
    where="every",
)  # fmt: skip
WEBSUB_LIST = operation(
    "websub.list", SubscriptionList, SubscriptionRows, "GET /v1/websub",
    "List the subscriptions of one feed, or of all feeds.", scope="observe",
    where="topic:{topic}",
)  # fmt: skip
WEBSUB_INSPECT = operation(
    "websub.inspect", OfSubscription, SubscriptionDetails, "GET /v1/websub/{topic}/{id}",
    "Show a subscription with its last attempts.", scope="observe",
    where="topic:{topic}",
)  # fmt: skip
WEBSUB_DELETE = operation(
    "websub.delete", OfSubscription, Deleted, "DELETE /v1/websub/{topic}/{id}",
    "End a subscription. Its callback is told.", scope="operate",
    where="topic:{topic}",
)  # fmt: skip
WEBSUB_READ = operation(
    "websub.read", FeedRead, FeedContent, "GET /v1/feeds/{topic}",
    "Read the newest message of a feed, with where to subscribe.", scope=ANYBODY,
    where="topic:{topic}",
)  # fmt: skip
WEBSUB_CALL = operation(
    "websub.call", HubCall, HubAccepted, "POST /v1/websub",
    "Subscribe to a feed, end that, or say that a feed's source has changed.", scope=ANYBODY,
    audited=False,
    where="any",
)  # fmt: skip
