"""A feed: a topic that an operator has opened to subscribers without a token.

A feed has a document beside its topic, which the operations ``websub.*`` write. Where the feed has a source,
a page elsewhere whose content becomes its messages, the hub alone writes a second document: what it has
fetched.

Everything here is a function of the documents and of ``now``, in microseconds.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec.structs import replace

from landbridge.core.addresses import read_url
from landbridge.core.names import check_name, is_reserved
from landbridge.core.options import read_options
from landbridge.core.time import SECOND
from landbridge.core.webhook.webhook import check_content_type
from landbridge.core.websub.spec import FeedSpec
from landbridge.errors import BadRequest

#: The collections of the documents, beside their topics.
FEEDS, SOURCES = "$websub-feeds", "$websub-sources"
#: The key of both documents: a topic has one feed.
KEY = "feed"
#: Where a feed is at an HTTP port, and the hub.
FEED_PATH, HUB_PATH = "/v1/feeds/", "/v1/websub"
#: Characters of a feed's URL: it travels in the query of each verification.
LONGEST_FEED_URL = 500
#: Seconds between two fetches of a source at least: pings are free for anybody.
FETCH_EVERY = 10.0
#: Seconds before a fetch that has failed is repeated; after the last one the hub waits for the next ping.
FETCH_RETRIES = (5.0, 60.0, 600.0)
LONGEST_TROUBLE = 300


class StoredFeed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document that the operations write."""

    spec: FeedSpec
    #: The subject in whose name the topic is read, and written where there is a source.
    owner: str
    opened_at: int
    #: Tells this feed from one of the topic that was closed before: no other one has it.
    id: str
    #: When somebody said the last time that the source has changed; 0: never.
    pinged_at: int = 0


class FeedSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the hub knows of a source."""

    #: Which source it was, and the ping up to which it is fetched.
    url: str = ""
    fetched_to: int = 0
    #: The last fetch, and no fetch before this moment.
    fetched_at: int = 0
    next_at: int = 0
    #: Fetches that have failed in a row.
    failures: int = 0
    #: SHA-256 of what was published last, and the ETag that came with it.
    digest: str = ""
    etag: str = ""
    #: Why the last fetch failed.
    trouble: str = ""


class FetchedPage(NamedTuple):
    """What a fetch has brought. ``status`` 0: nothing, for the reason in ``why``."""

    status: int
    body: bytes = b""
    etag: str = ""
    why: str = ""


# -- options -------------------------------------------------------------------------------------------


def feed_spec(raw: dict[str, Any]) -> FeedSpec:
    """The options that these make. BadRequest says what is wrong with them."""
    spec = read_options(raw, FeedSpec, "feed options")
    check_name(spec.topic, "topic")
    if is_reserved(spec.topic):
        raise BadRequest(f"{spec.topic} belongs to the terminal, and is no feed for others")
    if spec.base:
        target = read_url(spec.base)
        if target.path not in ("", "/") or "#" in spec.base:
            raise BadRequest(f"no base of URLs: {spec.base[:60]!r}", hint="such as https://hub.example")
        spec = replace(spec, base=spec.base.rstrip("/"))
    if spec.source:
        read_url(spec.source)
    for url in (spec.source, feed_url(spec.base, spec.topic)):
        if len(url) > LONGEST_FEED_URL:
            raise BadRequest(f"a URL of {len(url)} characters, a feed's has {LONGEST_FEED_URL} at most")
    check_content_type(spec.content_type)
    return spec


# -- URLs ----------------------------------------------------------------------------------------------


def feed_url(base: str, topic: str) -> str:
    """Where a topic is as a feed."""
    return f"{base}{FEED_PATH}{quote(topic, safe='')}"


def base_of(url: str) -> str:
    """Scheme and authority of a URL, in lower case."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def topic_of(url: str) -> str:
    """The topic that a URL of this form names; empty where it has another form."""
    if not url.isascii() or not url.isprintable() or set(url) & set(' <>"'):
        # urlsplit passes over line breaks and tabs. Subscribers get the URL as it is in the header Link.
        return ""
    path = urlsplit(url)
    name = path.path.removeprefix(FEED_PATH)
    is_one = path.path.startswith(FEED_PATH) and "/" not in name and not path.query and not path.fragment
    return unquote(name) if is_one else ""


def is_its_url(spec: FeedSpec, url: str, base: str) -> bool:
    """Whether a URL is this feed's: its own, under the base where the hub was asked, or its source's."""
    is_own = topic_of(url) == spec.topic and base_of(url) == (spec.base or base).lower()
    return is_own or (bool(spec.source) and url == spec.source)


def links(hub: str, url: str) -> str:
    """The header Link of a feed."""
    return f'<{hub}>; rel="hub", <{url}>; rel="self"'


# -- sources -------------------------------------------------------------------------------------------


def ping(stored: StoredFeed, now: int) -> StoredFeed:
    """Somebody says that the source has changed. A feed without one has its content in its topic."""
    if not stored.spec.source:
        return stored
    return replace(stored, pinged_at=max(now, stored.pinged_at + 1))


def fetch_due(stored: StoredFeed, source: FeedSource, now: int) -> int | None:
    """When the source is to be fetched; None: not until somebody pings."""
    if not stored.spec.source:
        return None
    if source.url != stored.spec.source:
        return 0  # a new source is fetched once, without a ping
    if source.next_at > now + int(FETCH_RETRIES[-1] * SECOND):
        return 0 if stored.pinged_at > source.fetched_to else None  # somebody has set the clock back since
    return source.next_at if stored.pinged_at > source.fetched_to else None


def after_fetch(
    stored: StoredFeed, source: FeedSource, page: FetchedPage, now: int
) -> tuple[FeedSource, bytes | None]:
    """What follows from a fetch: what is known from now on, and what is to be published; None: nothing. Both
    go to the disk in one commit. ``stored`` is the feed as it was before the fetch, so that a ping that has
    come meanwhile leads to another one."""
    if source.url != stored.spec.source:
        source = FeedSource(url=stored.spec.source)
    source = replace(source, fetched_at=now)
    if 200 <= page.status < 300 or page.status == 304:
        source = replace(
            source,
            fetched_to=stored.pinged_at,
            next_at=now + int(FETCH_EVERY * SECOND),
            failures=0,
            trouble="",
        )
        if page.status == 304:
            return source, None
        digest = hashlib.sha256(page.body).hexdigest()
        is_new = digest != source.digest
        return replace(source, digest=digest, etag=page.etag[:200]), page.body if is_new else None
    why = page.why or f"the source answered {page.status}"
    failures = source.failures + 1
    source = replace(source, failures=failures, trouble=why[:LONGEST_TROUBLE])
    if failures > len(FETCH_RETRIES):
        # Given up until the next ping.
        span = FETCH_EVERY
        source = replace(source, failures=0, fetched_to=stored.pinged_at)
    else:
        span = FETCH_RETRIES[failures - 1]
        # A source that was never fetched counts as pinged, so that it is tried again, too.
        source = replace(source, fetched_to=min(source.fetched_to, stored.pinged_at - 1))
    return replace(source, next_at=now + int(span * SECOND)), None
