"""The hub of WebSub (W3C): verifies who subscribes to feeds, sends what they get, and ends subscriptions.

The hub is a client of the terminal. It watches the documents of feeds and subscriptions, which the operations
``websub.*`` write. What follows from them is decided in ``landbridge.core.websub``, and a subscription that
holds is sent by the sender of webhooks: a durable group of the topic and a state.

Each step reads its documents again before it acts, and each can be done twice, so a ``kill -9`` at any moment
loses nothing: a verification is asked again, a group that is there already is left as it is, and a
subscription is forgotten only when its callback was told and its group is gone.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from landbridge.client.bus import Bus
from landbridge.core.options import read_options
from landbridge.core.outlet import outlet
from landbridge.core.outlet.outlet import AfterAttempt, OutletState
from landbridge.core.outlet.spec import OutletAttempt
from landbridge.core.webhook import webhook
from landbridge.core.webhook.signature import webhook_id
from landbridge.core.webhook.webhook import StoredWebhook
from landbridge.core.websub import feed as feeds
from landbridge.core.websub import subscription as core
from landbridge.core.websub.feed import FeedSource, FetchedPage, StoredFeed
from landbridge.core.websub.subscription import (
    Ending,
    StoredSubscription,
    SubscriptionIntent,
    WebSubTarget,
)
from landbridge.core.wording import counted
from landbridge.errors import (
    BadRequest,
    BusError,
    DocumentChanged,
    Forbidden,
    StoreCorrupt,
    Unauthenticated,
    UnknownDocument,
    UnknownGroup,
    UnknownTopic,
)
from landbridge.gateways.host_rooms import HostRooms
from landbridge.gateways.outgoing import HttpAnswer, HttpResult, OutgoingHttp
from landbridge.gateways.outlets import OutletSenders, tell_crash
from landbridge.gateways.webhooks import PostForm

T = TypeVar("T")
log = structlog.get_logger("landbridge.websub")

#: Seconds between two looks at what is due.
LOOK_EVERY = 1.0
#: Messages of one subscription that are sent at the same time.
WIDTH = 4
#: Verifications and fetches under way at once, and to one host.
MOST_AT_ONCE, MOST_AT_ONE_HOST = 16, 2
#: Seconds after which something is tried again that the terminal has refused.
AGAIN_AFTER = 1.0
#: Seconds after which a source is fetched again whose page could not be published.
FETCH_AGAIN = feeds.FETCH_EVERY
#: Seconds before a callback is asked again whose confirmation could not be stored; the last one repeats.
UNSTORED_AGAIN = core.VERIFY_RETRIES
#: How often a callback is told that its subscription ends, and seconds between.
DENIALS, DENY_AGAIN = 2, 5.0
#: Seconds between two looks at how far subscriptions are behind.
LOOK_BEHIND_EVERY = 5.0
#: Of the groups: as for webhooks.
ACK_WITHIN, MAX_ATTEMPTS = 120.0, 1000

#: (topic, id)
SubscriptionKey = tuple[str, str]


class WebSubForm(PostForm):
    """Subscriptions of feeds, as the sender of outlets sends them."""

    noun = "websub"
    states = core.STATES
    width = WIDTH

    def __init__(
        self, http: OutgoingHttp, clock: Callable[[], int], on_gone: Callable[[SubscriptionKey], Any]
    ) -> None:
        """``on_gone``: awaited where a callback has answered 410."""
        super().__init__(http, clock)
        self._on_gone = on_gone

    def group_name(self, name: str) -> str:
        """The group that is read."""
        return core.group_name(name)

    def headers(self, stored: StoredWebhook, id: str, body: bytes, now: int) -> dict[str, str]:
        """Where the content is from, and the signature."""
        assert isinstance(stored, WebSubTarget)
        said = {"Link": feeds.links(stored.hub, stored.url), "Landbridge-Id": webhook_id(id)}
        return said | ({"X-Hub-Signature": core.sign(stored.secret, body)} if stored.secret else {})

    def after_attempt(
        self, stored: StoredWebhook, state: OutletState, attempt: OutletAttempt, now: int
    ) -> AfterAttempt:
        """Only 410 ends it before its lease does."""
        return outlet.after_attempt(stored.spec, state, attempt, now, failing_for=float("inf"))

    async def on_disabled(self, bus: Bus, stored: StoredWebhook, why: str) -> None:
        """The callback has answered 410."""
        await self._on_gone((stored.spec.topic, stored.spec.name))


class WebSubHub:
    """The hub of a terminal, while its block lasts.

    ``bus``: for documents, groups and the status log. ``reader_of`` and ``writer_of``: make a bus that is not
    open yet, in the name of a feed's owner, to read or to write its topic. ``http``: for callbacks.
    ``pages``: for sources. ``clock``: the terminal's.
    """

    def __init__(
        self,
        bus: Bus,
        reader_of: Callable[[str, str], Bus],
        writer_of: Callable[[str, str], Bus],
        http: OutgoingHttp,
        pages: OutgoingHttp,
        clock: Callable[[], int],
    ) -> None:
        self._bus = bus
        self._reader_of = reader_of
        self._writer_of = writer_of
        self._http = http
        self._pages = pages
        self._clock = clock
        self.senders = OutletSenders(bus, reader_of, clock, WebSubForm(http, clock, self._on_gone))
        #: What was seen of the documents; steps read them again.
        self._feeds: dict[str, StoredFeed] = {}
        self._sources: dict[str, FeedSource] = {}
        self._subscriptions: dict[SubscriptionKey, StoredSubscription] = {}
        #: Steps under way, one at a time for each subscription; (topic, "") is the feed's source.
        self._steps: dict[SubscriptionKey, asyncio.Task[None]] = {}
        #: Verifications whose outcome could not be stored: how often, and the loop's time before which there
        #: is no other one. A stranger must not make the hub ask somebody's callback once a second.
        self._unstored: dict[SubscriptionKey, tuple[int, float]] = {}
        #: Subscriptions that are not sent just now, because their group is being moved on.
        self._moving: set[SubscriptionKey] = set()
        self._rooms = HostRooms(MOST_AT_ONCE, MOST_AT_ONE_HOST)
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False

    async def __aenter__(self) -> WebSubHub:
        for work in (
            self._watch(feeds.FEEDS, self._see_feed),
            self._watch(feeds.SOURCES, self._see_source),
            self._watch(core.SUBSCRIPTIONS, self._see_subscription),
            self._look(),
            self._look_behind(),
        ):
            task = asyncio.ensure_future(work)
            task.add_done_callback(tell_crash)
            self._tasks.append(task)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True  # no step begins any more, also none that a sender's answer leads to
        tasks = [*self._tasks, *self._steps.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self.senders.stop()

    # -- what there is -------------------------------------------------------------------------------

    async def _watch(self, collection: str, see: Callable[[str, str, object], None]) -> None:
        while True:
            try:
                async for found in self._bus.documents.watch(collection, topic="*"):
                    document = found.document
                    see(found.topic, found.key, None if document is None else document.value)
            except BusError as error:
                if self._bus.closed is not None:
                    return
                log.warning("feeds are listed again", why=str(error))
                await asyncio.sleep(AGAIN_AFTER)

    def _see_feed(self, topic: str, key: str, value: object) -> None:
        feed = _read(value, StoredFeed, topic)
        if feed is None or key != feeds.KEY:
            self._feeds.pop(topic, None)
        else:
            self._feeds[topic] = feed
        for each in [each for each in self._subscriptions if each[0] == topic]:
            self._consider(each)
        self._consider_source(topic)

    def _see_source(self, topic: str, key: str, value: object) -> None:
        source = _read(value, FeedSource, topic)
        if source is None:
            self._sources.pop(topic, None)
        else:
            self._sources[topic] = source

    def _see_subscription(self, topic: str, key: str, value: object) -> None:
        sub = _read(value, StoredSubscription, topic)
        if sub is None or sub.topic != topic:
            self._forget((topic, key))
        else:
            self._subscriptions[topic, key] = sub
            self._consider((topic, key))

    def _forget(self, key: SubscriptionKey) -> None:
        self._subscriptions.pop(key, None)
        self._unstored.pop(key, None)
        self.senders.take(key, None)

    async def _look(self) -> None:
        """Leases end, and what has failed is due again."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for key in list(self._subscriptions):
                self._consider(key)
            for topic in list(self._feeds):
                self._consider_source(topic)
            for key, state in self.senders.states.items():
                if state.disabled_at:  # a kill came between the answer 410 and the end
                    self._begin(key, self._end_gone(key))

    def _consider(self, key: SubscriptionKey) -> None:
        """Send or don't, and begin the next step if it is due."""
        sub, feed, now = self._subscriptions[key], self._feeds.get(key[0]), self._clock()
        if feed is not None and core.is_active(sub, feed, now):
            if key not in self._moving:
                self.senders.take(key, core.target(key[1], sub, feed))
        else:
            self.senders.take(key, None)
        step = core.next_step(sub, feed, now)
        if step.what == "verify" and asyncio.get_running_loop().time() < self._unstored.get(key, (0, 0.0))[1]:
            return
        if step.what != "wait" and step.at <= now:
            self._begin(key, self._do(key))

    def _begin(self, key: SubscriptionKey, work: Any) -> None:
        if key in self._steps or self._is_closing:
            work.close()
            return
        task = self._steps[key] = asyncio.ensure_future(self._run(key, work))
        task.add_done_callback(lambda _: self._steps.pop(key, None))
        task.add_done_callback(tell_crash)

    async def _run(self, key: SubscriptionKey, work: Any) -> None:
        try:
            await work
        except UnknownDocument:
            if key[1]:
                self._forget(key)  # it was deleted with its topic
        except BusError as error:
            log.warning("a step of a feed is done again", topic=key[0], id=key[1], why=str(error))
            await asyncio.sleep(AGAIN_AFTER if key[1] else FETCH_AGAIN)

    # -- subscriptions -------------------------------------------------------------------------------

    async def _do(self, key: SubscriptionKey) -> None:
        """The next step, by what the documents say now. The hub's picture of them may be behind."""
        _, sub = await self._read_subscription(key)
        # One that ends, ends also where the feed is damaged.
        feed = None if sub.ending is not None else await self._read_feed(key[0])
        step = core.next_step(sub, feed, self._clock())
        if step.what == "verify" and step.at <= self._clock():
            await self._verify(key, sub)
        elif step.what == "end":
            await self._end(key, step.ending)

    async def _read_subscription(self, key: SubscriptionKey) -> tuple[str, StoredSubscription]:
        found = await self._bus.documents.read(core.SUBSCRIPTIONS, key[1], topic=key[0])
        return found.version, read_options(found.value, StoredSubscription, "subscription")

    async def _read_feed(self, topic: str) -> StoredFeed | None:
        try:
            found = await self._bus.documents.read(feeds.FEEDS, feeds.KEY, topic=topic)
        except UnknownDocument:
            return None
        return read_options(found.value, StoredFeed, "feed")

    async def _verify(self, key: SubscriptionKey, sub: StoredSubscription) -> None:
        """Ask the callback whether it wants this, and write down what follows."""
        intent = sub.intent
        assert intent is not None
        challenge = secrets.token_hex(32)
        url = core.verification_url(sub.callback, intent.mode, sub.url, challenge, intent.lease)
        async with self._rooms.taken(sub.callback):
            result = await self._http.send("GET", url, headers=_AGENT)
        status, body = (result.status, result.body) if isinstance(result, HttpAnswer) else (0, b"")
        try:
            await self._confirm(key, intent, challenge, status, body, _why(result))
        except UnknownDocument:
            raise
        except BusError:
            failures, _ = self._unstored.get(key, (0, 0.0))
            span = UNSTORED_AGAIN[min(failures, len(UNSTORED_AGAIN) - 1)]
            self._unstored[key] = failures + 1, asyncio.get_running_loop().time() + span
            raise
        self._unstored.pop(key, None)

    async def _confirm(
        self,
        key: SubscriptionKey,
        intent: SubscriptionIntent,
        challenge: str,
        status: int,
        body: bytes,
        why: str,
    ) -> None:
        """Write down what follows from the answer to a verification."""
        while True:
            version, sub = await self._read_subscription(key)
            changed = core.after_verification(sub, intent, status, body, challenge, self._clock(), why)
            if changed == sub:
                return
            is_granted = changed.terms is not None and changed.terms != sub.terms
            if is_granted:
                await self._make_group(key)
            try:
                await self._write(key, changed, version, with_state=is_granted)
            except DocumentChanged:
                continue
            except UnknownDocument:
                if is_granted:
                    await self._delete_group(key)  # it went with its topic meanwhile
                raise
            log.info("verified", topic=key[0], id=key[1], mode=intent.mode, status=status, why=why)
            return

    async def _make_group(self, key: SubscriptionKey) -> None:
        """The group before the terms: from the moment that they hold, no message is missed. One that is left
        over is deleted with the subscription."""
        await self._bus.groups.create(
            key[0],
            core.group_name(key[1]),
            discipline="fifo",
            ack_within=ACK_WITHIN,
            max_attempts=MAX_ATTEMPTS,
            dead_letter="",
            start="latest",
        )

    async def _delete_group(self, key: SubscriptionKey) -> None:
        try:
            await self._bus.groups.delete(key[0], core.group_name(key[1]), force=True)
        except (UnknownGroup, UnknownTopic):
            pass

    async def _write(
        self, key: SubscriptionKey, sub: StoredSubscription, version: str, *, with_state: bool = False
    ) -> None:
        topic, id = key
        is_new = with_state and not await self._has_state(key)
        async with self._bus.transaction() as both:
            await both.update_document(core.SUBSCRIPTIONS, id, sub, version=version, topic=topic)
            if is_new:
                await both.create_document(core.STATES, id, OutletState(), topic=topic)

    async def _has_state(self, key: SubscriptionKey) -> bool:
        try:
            await self._bus.documents.read(core.STATES, key[1], topic=key[0])
        except UnknownDocument:
            return False
        except StoreCorrupt:
            return True  # it can be deleted all the same
        return True

    async def _on_gone(self, key: SubscriptionKey) -> None:
        """The callback has answered 410."""
        self._begin(key, self._end_gone(key))

    async def _end_gone(self, key: SubscriptionKey) -> None:
        version, sub = await self._read_subscription(key)
        if sub.ending is None:
            await self._write(key, replace(sub, ending="gone"), version)

    async def _end(self, key: SubscriptionKey, ending: Ending) -> None:
        """Tell the callback, then forget the subscription: first the group, which without its documents
        nobody would delete, and which would hold the topic's messages for ever; and as long as callbacks that
        don't answer are being told."""
        topic, id = key
        version, sub = await self._read_subscription(key)
        await self._delete_group(key)
        if reason := core.denial_reason(ending):
            await self._deny(sub, reason)
        has_state = await self._has_state(key)
        try:
            async with self._bus.transaction() as both:
                await both.delete_document(core.SUBSCRIPTIONS, id, version=version, topic=topic)
                if has_state:
                    await both.delete_document(core.STATES, id, topic=topic)
        except DocumentChanged:
            return  # somebody asks for it anew, or has said why it ends: it is looked at again
        log.info("ended", topic=topic, id=id, why=ending)
        if ending in ("gone", "closed", "deleted"):
            await self._bus.status.note(
                "websub_ended", f"subscription {id} of {topic}: {ending}", topic=topic
            )

    async def _deny(self, sub: StoredSubscription, reason: str) -> None:
        """Tell a callback that its subscription ends, and don't insist."""
        for number in range(DENIALS):
            if number:
                await asyncio.sleep(DENY_AGAIN)
            async with self._rooms.taken(sub.callback):
                url = core.denial_url(sub.callback, sub.url, reason)
                if isinstance(await self._http.send("GET", url, headers=_AGENT), HttpAnswer):
                    return

    async def _look_behind(self) -> None:
        """Give up what subscriptions are too far behind with."""
        while True:
            await asyncio.sleep(LOOK_BEHIND_EVERY)
            by_topic: dict[str, set[str]] = {}
            for topic, id in self.senders.states:
                by_topic.setdefault(topic, set()).add(core.group_name(id))
            for topic, names in by_topic.items():
                try:
                    await self._catch_up(topic, names)
                except BusError as error:
                    log.warning("not looked at", topic=topic, why=str(error))

    async def _catch_up(self, topic: str, names: set[str]) -> None:
        found, feed = await self._bus.topics.show(topic), self._feeds.get(topic)
        least = core.least_floor(found.first, found.end, found.bytes, found.options.max_backlog)
        late = [row.name for row in found.groups if row.name in names and row.floor < least]
        if feed is None or not late:
            return
        try:
            async with self._reader_of(feed.owner, topic) as bus:
                for name in late:
                    await self._move_on(bus, (topic, core.id_of(name)), least, found.end)
        except (Forbidden, Unauthenticated):
            # The owner may not read the topic at the moment, so nothing is sent anyway.
            for name in late:
                await self._bus.groups.seek(topic, name, to="latest")
        what = f"{counted(len(late), 'subscription')} of {topic} behind, messages below {least} are given up"
        await self._bus.status.note("websub_behind", what, topic=topic)

    async def _move_on(self, bus: Bus, key: SubscriptionKey, least: int, end: int) -> None:
        """Give up what one subscription is behind with. One that fails doesn't stay in its group; one that
        takes its messages slowly does, and no failure ever ends that. It goes on in the middle, so that it is
        not interrupted all the time."""
        topic, group = key[0], core.group_name(key[1])
        try:
            await bus.groups.advance(topic, group, to=least)
        except BadRequest:
            self._moving.add(key)
            try:
                await self.senders.end(key)
                await bus.groups.advance(topic, group, to=least + (end - least) // 2)
            finally:
                self._moving.discard(key)
                if key in self._subscriptions:
                    self._consider(key)
        # Whoever advances a group makes it where there is none: one that was just deleted must not come back.
        try:
            _, sub = await self._read_subscription(key)
            is_active = core.is_active(sub, await self._read_feed(topic), self._clock())
        except UnknownDocument:
            is_active = False
        if not is_active:
            await self._delete_group(key)

    # -- sources -------------------------------------------------------------------------------------

    def _consider_source(self, topic: str) -> None:
        feed = self._feeds.get(topic)
        if feed is None or not feed.spec.source:
            return
        due = feeds.fetch_due(feed, self._sources.get(topic, FeedSource()), self._clock())
        if due is not None and due <= self._clock():
            self._begin((topic, ""), self._fetch(topic))

    async def _fetch(self, topic: str) -> None:
        """Fetch a source, and publish it where it has changed: in one commit with what is known of it."""
        feed = await self._read_feed(topic)
        source, version = await self._read_source(topic)
        due = None if feed is None else feeds.fetch_due(feed, source, self._clock())
        if feed is None or due is None or due > self._clock():
            self._sources[topic] = source
            return
        headers = dict(_AGENT)
        if source.etag and source.url == feed.spec.source:
            headers["If-None-Match"] = source.etag
        async with self._rooms.taken(feed.spec.source):
            result = await self._pages.send("GET", feed.spec.source, headers=headers)
        after, body = feeds.after_fetch(feed, source, _page_of(result), self._clock())
        async with self._writer_of(feed.owner, topic) as bus, bus.transaction() as both:
            if body is not None and isinstance(result, HttpAnswer):
                said = webhook.content_type(None, result.headers.get("content-type"))
                await both.publish(topic, body, headers={"content-type": said})
            if version:
                await both.update_document(feeds.SOURCES, feeds.KEY, after, version=version, topic=topic)
            else:
                await both.create_document(feeds.SOURCES, feeds.KEY, after, topic=topic)
        self._sources[topic] = after

    async def _read_source(self, topic: str) -> tuple[FeedSource, str]:
        try:
            found = await self._bus.documents.read(feeds.SOURCES, feeds.KEY, topic=topic)
        except UnknownDocument:
            return FeedSource(), ""
        return read_options(found.value, FeedSource, "source"), found.version


_AGENT = {"User-Agent": "landbridge"}


def _read(value: object, kind: type[T], topic: str) -> T | None:
    """What a document says; None where it is gone, or says nothing that can be read."""
    if value is None:
        return None
    try:
        return read_options(value, kind, "document")
    except BadRequest as error:
        log.warning("a document can't be read", topic=topic, why=str(error))
        return None


def _why(result: HttpResult) -> str:
    return "" if isinstance(result, HttpAnswer) else getattr(result, "why", "no answer in time")


def _page_of(result: HttpResult) -> FetchedPage:
    """The answer of a source."""
    if not isinstance(result, HttpAnswer):
        return FetchedPage(0, why=_why(result))
    if result.is_cut:
        return FetchedPage(0, why=f"the source has more than {len(result.body)} bytes")
    return FetchedPage(result.status, result.body, result.headers.get("etag", ""))
