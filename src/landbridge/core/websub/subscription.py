"""A subscription: what has been asked for it, what was verified, and what comes next.

A subscription is a callback and the URL of a feed. Whoever asks for one shows no token, so nothing changes
until the callback itself has confirmed it: the hub sends it a challenge, and the answer has to be that
challenge. What was asked last waits as the *intent*; what was confirmed last are the *terms*, which hold
until the lease ends or another intent is confirmed.

Everything here is a function of the document and of ``now``, in microseconds. The hub
(``landbridge.gateways.websub``) sends the requests and writes the documents.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

from landbridge.core.addresses import LONGEST_URL, read_url
from landbridge.core.time import SECOND
from landbridge.core.webhook.spec import WebhookSpec
from landbridge.core.webhook.webhook import StoredWebhook
from landbridge.core.websub.feed import HUB_PATH, StoredFeed
from landbridge.core.wording import counted
from landbridge.errors import BadRequest

#: The collections of the documents, beside their topics: of the subscriptions, and of what their sender
#: knows.
SUBSCRIPTIONS, STATES = "$websub", "$websub-states"
#: Seconds of a lease: where none is asked for, and the bounds of one that is.
LEASE, LEAST_LEASE, LONGEST_LEASE = 10 * 86400, 60, 30 * 86400
#: Bytes of a secret (W3C WebSub 5.1: less than 200), and characters of a callback.
LONGEST_SECRET, LONGEST_CALLBACK = 199, 1000
#: Characters of why a callback has not answered.
LONGEST_FAILURE = 300
#: Seconds before a verification is repeated whose callback has not answered.
VERIFY_RETRIES = (5.0, 60.0, 600.0)
#: Statuses of an answer that may be another one in a while, beside 500 and more.
_NOT_NOW = (0, 408, 425, 429)
LONGEST_REASON = 100
#: Messages that a subscription may be behind.
MOST_BEHIND = 10_000
#: Parameters of one request to the hub, and feeds that one ping may name.
MOST_PARAMETERS, MOST_PINGED = 64, 10

HubMode: TypeAlias = Literal["subscribe", "unsubscribe"]
#: Why a subscription ends. "closed", "deleted": the hub ends it, and tells the callback (denied).
Ending: TypeAlias = Literal["unsubscribed", "expired", "unverified", "gone", "closed", "deleted"]
_TOLD: Mapping[str, str] = {"closed": "the feed is closed", "deleted": "an operator has ended it"}


class SubscriptionIntent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for, and waits to be confirmed."""

    mode: HubMode
    asked_at: int
    #: Seconds, within the bounds.
    lease: int = LEASE
    secret: str = ""
    #: Verifications that have had no answer, and no other one before this moment.
    tries: int = 0
    next_at: int = 0


class SubscriptionTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was confirmed."""

    lease: int
    verified_at: int
    expires_at: int
    #: What requests are signed with; empty: they are not.
    secret: str = ""


class StoredSubscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document."""

    topic: str
    callback: str
    #: The feed's URL as the subscriber has named it, and the hub's.
    url: str
    hub: str
    #: The id of the feed: another one may have been opened for the topic since.
    feed: str
    created_at: int
    #: When something was asked for the last time. Never the same moment twice: it names the intent.
    asked_at: int = 0
    intent: SubscriptionIntent | None = None
    terms: SubscriptionTerms | None = None
    #: It ends, as soon as the callback was told and its group is gone.
    ending: Ending | None = None
    #: What became of the last verification that was not confirmed.
    refused_at: int = 0
    refused_why: str = ""


class HubRequest(NamedTuple):
    """A form that was sent to the hub."""

    mode: Literal["subscribe", "unsubscribe", "publish"]
    callback: str
    #: One; of a ping, one or several.
    topics: tuple[str, ...]
    lease: int
    secret: str


class NextStep(NamedTuple):
    """What the hub has to do for a subscription, and when at the earliest."""

    what: Literal["verify", "end", "wait"]
    at: int = 0
    ending: Ending = "expired"


class WebSubTarget(StoredWebhook, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription as what the sender of webhooks sends."""

    hub: str
    url: str
    secret: str


# -- what is asked -------------------------------------------------------------------------------------


def read_request(pairs: Sequence[tuple[str, str]]) -> HubRequest:
    """The request that the parameters of a form make. Parameters that nobody knows are passed over, as W3C
    WebSub demands (5.1)."""
    given: dict[str, str] = {}
    topics: list[str] = []
    for name, value in pairs:
        plain = name.removesuffix("[]")
        if plain in ("hub.topic", "hub.url"):
            topics.append(value)
        elif plain.startswith("hub."):
            if plain in given:
                raise BadRequest(f"{plain[:60]} is given twice")
            given[plain] = value
    mode = given.get("hub.mode", "")
    if mode not in ("subscribe", "unsubscribe", "publish"):
        raise BadRequest(f"hub.mode={mode[:40]!r}", hint="subscribe, unsubscribe or publish")
    topics = list(dict.fromkeys(topics))
    most = MOST_PINGED if mode == "publish" else 1
    if not 0 < len(topics) <= most:
        raise BadRequest(f"{len(topics)} times hub.topic", hint=f"1 to {most} of this mode")
    if mode == "publish":
        return HubRequest("publish", "", tuple(topics), 0, "")
    callback = given.get("hub.callback", "")
    secret = given.get("hub.secret", "")
    if len(secret.encode(errors="surrogatepass")) > LONGEST_SECRET:
        raise BadRequest(f"a hub.secret of {LONGEST_SECRET + 1} bytes or more")
    return HubRequest(
        "subscribe" if mode == "subscribe" else "unsubscribe",
        check_callback(callback, topics[0]),
        tuple(topics),
        lease_of(given.get("hub.lease_seconds", "")),
        secret,
    )


def check_callback(callback: str, url: str) -> str:
    """The callback, if requests can be sent to it, with all that the hub adds to its query."""
    if not callback:
        raise BadRequest("hub.callback is missing")
    if len(callback) > LONGEST_CALLBACK or "#" in callback:
        raise BadRequest(f"a hub.callback has at most {LONGEST_CALLBACK} characters, and no fragment")
    read_url(callback)
    longest = max(
        len(verification_url(callback, "unsubscribe", url, "0" * 64, LONGEST_LEASE)),
        len(denial_url(callback, url, "x" * LONGEST_REASON)),
    )
    if longest > LONGEST_URL:
        raise BadRequest("hub.callback and hub.topic are too long together")
    return callback


def lease_of(text: str) -> int:
    """The lease for ``hub.lease_seconds``: as asked within the bounds, which the hub may set (5.1)."""
    if not text:
        return LEASE
    if not (text.isascii() and text.isdecimal()) or len(text) > 20:
        raise BadRequest(f"hub.lease_seconds={text[:40]!r}", hint="a number of seconds")
    # 0 is what older subscribers send for "as long as you like".
    return min(max(int(text), LEAST_LEASE), LONGEST_LEASE) if int(text) else LEASE


def subscription_id(callback: str, url: str) -> str:
    """A subscription is a callback and a feed's URL (3): its name follows from both."""
    return hashlib.sha256(f"{url}\n{callback}".encode()).hexdigest()[:20]


def group_name(id: str) -> str:
    """The group of a subscription."""
    return f"websub.{id}"


def id_of(group: str) -> str:
    """The subscription of a group."""
    return group.removeprefix("websub.")


def ask(
    found: StoredSubscription | None,
    feed: StoredFeed,
    request: HubRequest,
    base: str,
    now: int,
) -> StoredSubscription:
    """Somebody asks for a subscription, a renewal or an end. What is confirmed stays until this is."""
    if found is not None and found.feed != feed.id:
        found = None  # of a feed that was closed before
    assert request.mode != "publish"
    url = request.topics[0]
    if found is None:
        found = StoredSubscription(
            topic=feed.spec.topic,
            callback=request.callback,
            url=url,
            hub=hub_of(feed, base),
            feed=feed.id,
            created_at=now,
        )
    asked_at = max(now, found.asked_at + 1)
    intent = SubscriptionIntent(
        mode=request.mode, asked_at=asked_at, lease=request.lease, secret=request.secret, next_at=now
    )
    return replace(found, asked_at=asked_at, intent=intent)


def hub_of(feed: StoredFeed, base: str) -> str:
    """The hub's URL for whoever has reached it under ``base``."""
    return f"{feed.spec.base or base}{HUB_PATH}"


# -- requests to the callback --------------------------------------------------------------------------


def verification_url(callback: str, mode: HubMode, url: str, challenge: str, lease: int) -> str:
    """Where a verification goes: the callback, whose own query stays (5.3)."""
    added = {"hub.mode": mode, "hub.topic": url, "hub.challenge": challenge}
    if mode == "subscribe":
        added["hub.lease_seconds"] = str(lease)
    return _with_query(callback, added)


def denial_url(callback: str, url: str, reason: str) -> str:
    """Where the end of a subscription is told (5.2)."""
    return _with_query(callback, {"hub.mode": "denied", "hub.topic": url, "hub.reason": reason})


def denial_reason(ending: Ending) -> str:
    """What the callback is told of this end; empty: nothing, it knows or has gone."""
    return _TOLD.get(ending, "")


def _with_query(callback: str, added: Mapping[str, str]) -> str:
    joint = "" if callback.endswith(("?", "&")) else "&" if "?" in callback else "?"
    return f"{callback}{joint}{urlencode(added)}"


def sign(secret: str, body: bytes) -> str:
    """The header X-Hub-Signature (7.1)."""
    return f"sha256={hmac.new(secret.encode(errors='surrogatepass'), body, hashlib.sha256).hexdigest()}"


# -- what follows --------------------------------------------------------------------------------------


def after_verification(
    sub: StoredSubscription,
    intent: SubscriptionIntent,
    status: int,
    body: bytes,
    challenge: str,
    now: int,
    failure: str = "",
) -> StoredSubscription:
    """What follows from the answer to a verification of ``intent``. ``status`` 0: there was none, because of
    ``failure``.

    Only a success with the very challenge confirms (5.3.1); a redirect is none. An intent that another one
    has replaced meanwhile says nothing any more: the other one is verified by itself."""
    if sub.intent is None or sub.intent.asked_at != intent.asked_at or sub.ending is not None:
        return sub
    if 200 <= status < 300 and hmac.compare_digest(body, challenge.encode()):
        if intent.mode == "unsubscribe":
            return replace(sub, intent=None, terms=None, ending="unsubscribed")
        terms = SubscriptionTerms(
            lease=intent.lease,
            verified_at=now,
            expires_at=now + intent.lease * SECOND,
            secret=intent.secret,
        )
        return replace(sub, intent=None, terms=terms, refused_at=0, refused_why="")
    if status in _NOT_NOW or status >= 500:
        tries = intent.tries + 1
        why = f"no answer to {counted(tries, 'verification')}: {(failure or str(status))[:LONGEST_FAILURE]}"
        if tries <= len(VERIFY_RETRIES):
            again = replace(intent, tries=tries, next_at=now + int(VERIFY_RETRIES[intent.tries] * SECOND))
            return replace(sub, intent=again, refused_at=now, refused_why=why)
    elif 200 <= status < 300:
        why = "the answer to the verification was not its challenge"
    else:
        why = f"the callback answered the verification by {status}"
    return replace(sub, intent=None, refused_at=now, refused_why=why)


def next_step(sub: StoredSubscription, feed: StoredFeed | None, now: int) -> NextStep:
    """What the hub has to do for it."""
    if sub.ending is not None:
        return NextStep("end", ending=sub.ending)
    if feed is None or feed.id != sub.feed:
        return NextStep("end", ending="closed" if sub.terms is not None else "unverified")
    if sub.intent is not None:
        # A moment beyond all retries was written before somebody set the clock back.
        is_sane = sub.intent.next_at <= now + int(VERIFY_RETRIES[-1] * SECOND)
        return NextStep("verify", max(sub.intent.next_at, now) if is_sane else now)
    if sub.terms is None:
        return NextStep("end", ending="unverified")
    if sub.terms.expires_at <= now:
        return NextStep("end", ending="expired")
    return NextStep("wait", sub.terms.expires_at)


def is_active(sub: StoredSubscription, feed: StoredFeed | None, now: int) -> bool:
    """Whether messages are sent."""
    return (
        feed is not None
        and feed.id == sub.feed
        and sub.ending is None
        and sub.terms is not None
        and sub.terms.expires_at > now
    )


def least_floor(first: int, end: int, size: int, max_backlog: int) -> int:
    """Below this offset, messages are given up for subscriptions that have not settled them.

    Anybody may subscribe, and the topic keeps what a group has not settled: so subscribers may be so many
    messages behind, and where they hold half of what the topic takes before it refuses publishers, a quarter
    of that. ``first``, ``end`` and ``size``: of the log, the last one in bytes."""
    behind = MOST_BEHIND
    if first < end and 2 * size >= max_backlog:
        behind = min(behind, max_backlog * (end - first) // (4 * size))
    return max(first, end - behind)


def target(id: str, sub: StoredSubscription, feed: StoredFeed) -> WebSubTarget:
    """What the sender sends, and where."""
    assert sub.terms is not None
    options = feed.spec
    spec = WebhookSpec(
        topic=sub.topic,
        name=id,
        url=sub.callback,
        content_type=options.content_type,
        ordered=options.ordered,
    )
    return WebSubTarget(
        spec=spec,
        owner=feed.owner,
        created_at=sub.created_at,
        secrets=(),
        hub=sub.hub,
        url=sub.url,
        secret=sub.terms.secret,
    )
