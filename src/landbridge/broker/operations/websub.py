"""Operations on feeds and their subscriptions. They write the documents; the hub
(``landbridge.gateways.websub``) watches the documents, verifies, sends and ends.

``websub.read`` and ``websub.call`` answer strangers. So all that they can make is bounded: requests of an
address, of a callback's host and for a feed in a minute, subscriptions of a feed and of a host, and what
waits to be verified.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import Authority, TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.documents import DocumentPlace, Edit, check_place, decode_value, encode_value
from landbridge.broker.group import Enter
from landbridge.broker.operations.dispatcher import PAGE, Dispatcher, may_see
from landbridge.broker.rule_topics import demand_read, home_of
from landbridge.broker.shares import count_by_owner
from landbridge.core.addresses import read_url
from landbridge.core.options import read_options
from landbridge.core.outlet import outlet
from landbridge.core.outlet.outlet import OutletState
from landbridge.core.trust.rate import AddressRate
from landbridge.core.webhook import webhook
from landbridge.core.websub import feed as feeds
from landbridge.core.websub import subscription as core
from landbridge.core.websub.feed import FeedSource, StoredFeed
from landbridge.core.websub.spec import FeedSpec
from landbridge.core.websub.subscription import HubRequest, StoredSubscription
from landbridge.errors import (
    BadRequest,
    BusError,
    DocumentChanged,
    DocumentExists,
    Forbidden,
    LimitReached,
    StoreCorrupt,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnknownDocument,
    UnknownFeed,
    UnknownGroup,
    UnknownSubscription,
    UnknownTopic,
)
from landbridge.protocol import operations as table

#: A document that is written by others at the same time is read again so often.
TRIES = 20
#: Requests to the hub in a minute: for one feed, and for callbacks of one host.
MOST_FOR_FEED, MOST_FOR_HOST = 600, 60
#: Of one feed: subscriptions of one host, and those of all hosts and of one that wait for their first
#: verification.
MOST_OF_HOST, MOST_PENDING, MOST_PENDING_OF_HOST = 100, 100, 20
#: Bytes of a message that strangers may read. Subscribers get larger ones, too.
MOST_READ = 512 << 10
#: Batches of the log that are looked through for a message that is to be seen now.
MOST_BATCHES = 16


class FeedHost(Protocol):
    """The terminal, as far as it knows who may read."""

    @property
    def authority(self) -> Authority: ...


class WebSubOperations:
    """The handlers of websub.*"""

    def __init__(self, broker: Broker, terminal: FeedHost) -> None:
        self._broker = broker
        self._terminal = terminal
        self._documents = broker.documents
        #: Held while a feed or a subscription is made, so that their numbers are right.
        self._making = asyncio.Lock()
        self._for_feed = AddressRate(MOST_FOR_FEED, 60.0)
        self._for_host = AddressRate(MOST_FOR_HOST, 60.0)

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.WEBSUB_OPEN, self.open)
        dispatcher.register(table.WEBSUB_CLOSE, self.close)
        dispatcher.register(table.WEBSUB_SHOW, self.show)
        dispatcher.register(table.WEBSUB_FEEDS, self.list_feeds)
        dispatcher.register(table.WEBSUB_LIST, self.list_page)
        dispatcher.register(table.WEBSUB_INSPECT, self.inspect)
        dispatcher.register(table.WEBSUB_DELETE, self.delete)
        dispatcher.register(table.WEBSUB_READ, self.read)
        dispatcher.register(table.WEBSUB_CALL, self.call)

    # -- feeds -------------------------------------------------------------------------------------

    async def open(self, caller: AuditedCaller, request: table.FeedOpen) -> table.FeedRow:
        options = msgspec.to_builtins(request)
        place = _feed_place(request.topic)
        async with self._making:
            for _ in range(TRIES):
                found = await self._find_feed(request.topic)
                before = {} if found is None else msgspec.to_builtins(found[1].spec)
                spec = feeds.feed_spec({**before, **options})
                self._check_may_open(caller, spec)
                if found is None:
                    await self._check_room()
                    feed = StoredFeed(
                        spec=spec,
                        owner=caller.subject,
                        opened_at=self._broker.clock(),
                        id=os.urandom(8).hex(),
                    )
                else:
                    feed = replace(found[1], spec=spec, owner=caller.subject)
                try:
                    edit = _edit(place, feed, "" if found is None else found[0])
                    known = None if found is None else _told(found[1])
                    enter = partial(
                        caller.enter, name=spec.topic, before=known, after=_told(feed), what="feed"
                    )
                    await self._commit([edit], caller.subject, enter)
                except (DocumentChanged, DocumentExists, UnknownDocument):
                    continue
                change = "created" if found is None else "updated"
                self._broker.observe("feed", spec.topic, change, caller.subject, after=spec)
                return await self._describe_feed(feed)
        raise _busy(f"the feed {request.topic}")

    def _check_may_open(self, caller: TokenBearer, spec: FeedSpec) -> None:
        """Nobody opens to all what he may not read himself."""
        demand_read(self._broker.topics, caller.scopes, spec.topic)
        if spec.source:
            caller.scopes.demand("publish", spec.topic)
        topic = self._broker.table.topic_for(spec.topic)
        if topic.spec.kind != "stream":
            raise BadRequest(
                f"{spec.topic} is of kind {topic.spec.kind}, whose messages are not for many",
                hint="a feed is a stream",
            )

    async def _check_room(self) -> None:
        counts = await count_by_owner(self._documents, feeds.FEEDS)
        self._broker.shares.check_all("max_feeds", "feeds", counts.total())

    async def close(self, caller: AuditedCaller, request: table.OfFeed) -> table.Deleted:
        place = _feed_place(request.topic)
        edits = [Edit(place, None, None)]
        if not await self._is_there(place):
            raise _unknown_feed(request.topic)
        if await self._is_there(place._replace(collection=feeds.SOURCES)):
            edits.append(Edit(place._replace(collection=feeds.SOURCES), None, None))
        enter = partial(caller.enter, name=request.topic, before={"feed": request.topic}, what="feed")
        try:
            await self._commit(edits, caller.subject, enter)
        except UnknownDocument:
            raise _unknown_feed(request.topic) from None
        self._broker.observe("feed", request.topic, "deleted", caller.subject)
        return table.Deleted(deleted=request.topic)

    async def _is_there(self, place: DocumentPlace) -> bool:
        """One that is damaged is there, too."""
        try:
            return await self._documents.read(place) is not None
        except StoreCorrupt:
            return True

    async def show(self, caller: TokenBearer, request: table.OfFeed) -> table.FeedRow:
        return await self._describe_feed(await self._feed(request.topic))

    async def list_feeds(self, caller: TokenBearer, request: table.FeedList) -> table.FeedRows:
        found, more = await self._documents.find_anywhere(feeds.FEEDS, request.after, PAGE)
        rows = [
            await self._describe_feed(_decode(place, document.value, StoredFeed))
            for place, document in found
            if may_see(self._broker.topics, caller, place.topic)
        ]
        return table.FeedRows(feeds=rows, next=_after(found[-1][0]) if more else "")

    async def read(self, caller: TokenBearer, request: table.FeedRead) -> table.FeedContent:
        feed = await self._feed(request.topic)
        base = _checked_base(feed, request.base)
        self._check_owner(feed)
        payload, said, id, offset = await self._newest(feed.spec.topic)
        if len(payload) > MOST_READ:
            raise TooLarge(
                f"the newest message has {len(payload)} bytes, {MOST_READ} can be read here",
                hint="subscribers get it whole",
            )
        return table.FeedContent(
            topic=feed.spec.topic,
            hub=f"{base}{feeds.HUB_PATH}",
            url=feeds.feed_url(base, feed.spec.topic),
            payload=payload,
            content_type=webhook.content_type(feed.spec.content_type, said),
            id=id,
            offset=offset,
        )

    def _check_owner(self, feed: StoredFeed) -> None:
        """Strangers read in the owner's name, as subscribers do: not while the owner may not read."""
        readable = home_of(self._broker.topics, feed.spec.topic)
        try:
            self._terminal.authority.check_may(self._broker.clock(), feed.owner, [f"subscribe:{readable}"])
        except (Unauthenticated, Forbidden):
            raise Unavailable(
                f"the feed {feed.spec.topic} can't be read now: whoever has opened it may not read its topic",
                hint="an operator who may can open it again",
            ) from None

    async def _newest(self, name: str) -> tuple[bytes, object, str, int]:
        """(payload, header content-type, id, offset) of the newest message that consumers would get now."""
        topic, now = self._broker.table.topic(name), self._broker.clock()
        offset = topic.log.end - 1
        for _ in range(MOST_BATCHES):
            found = await topic.reader_for(None).fetch(offset, 1) if offset >= topic.log.first else []
            if not found:
                break
            first, batch = found[0]
            if batch.audience is not None and batch.origin is None:
                offset = first - 1  # dead letters that one group gets again: no news for the others
                continue
            later, gone = batch.deliver_at(), batch.expires_at()
            for index in range(min(offset - first, len(batch) - 1), -1, -1):
                is_due = later is None or later[index] <= now
                if is_due and (gone is None or not 0 < gone[index] <= now):
                    headers = batch.headers(index)
                    said = headers.get("content-type")
                    return bytes(batch.payload(index)), said, batch.id_of(index), first + index
            offset = first - 1
        return b"", None, "", -1

    # -- what strangers ask --------------------------------------------------------------------------

    async def call(self, caller: TokenBearer, request: table.HubCall) -> table.HubAccepted:
        if len(request.form) > core.MOST_PARAMETERS:
            raise BadRequest(f"{len(request.form)} parameters, {core.MOST_PARAMETERS} are taken")
        asked = core.read_request(request.form)
        if asked.mode == "publish":
            for url in asked.topics:
                await self._ping(await self._feed_of(url, request.base))
            return table.HubAccepted(mode="publish", id="")
        return await self._ask(asked, request.base)

    async def _ping(self, feed: StoredFeed) -> None:
        """Note that a source has changed, unless a fetch waits already."""
        self._check_rate(feed)
        topic = feed.spec.topic
        if not feed.spec.source:
            return
        for _ in range(TRIES):
            version, feed = await self._read_feed(topic)
            source = await self._source(topic)
            waits = source.url == feed.spec.source and source.fetched_to < feed.pinged_at
            if waits and source.next_at > self._broker.clock():
                return  # the fetch that has not begun brings what has changed until then
            pinged = feeds.ping(feed, self._broker.clock())
            try:
                await self._commit([_edit(_feed_place(topic), pinged, version)], "")
            except DocumentChanged:
                continue
            return
        raise _busy(f"the feed {topic}")

    async def _ask(self, asked: HubRequest, base: str) -> table.HubAccepted:
        url, host = asked.topics[0], read_url(asked.callback).host
        feed = await self._feed_of(url, base)
        self._check_rate(feed)
        now = self._broker.clock()
        if not self._for_host.take(now, host):
            raise LimitReached(f"more than {MOST_FOR_HOST} requests a minute for callbacks of {host[:60]}")
        id = core.subscription_id(asked.callback, url)
        place = _place(feed.spec.topic, id)
        async with self._making:
            for _ in range(TRIES):
                found = await self._documents.read(place)
                before = None if found is None else _decode(place, found.value, StoredSubscription)
                if before is not None and (before.ending is not None or before.feed != feed.id):
                    raise LimitReached("the subscription is just being ended", hint="ask again in a while")
                if before is None:
                    if asked.mode == "unsubscribe":
                        raise UnknownSubscription("there is no subscription of this callback to this feed")
                    await self._check_places(feed, host)
                wanted = core.ask(before, feed, asked, _checked_base(feed, base), now)
                try:
                    edit = _edit(place, wanted, "" if found is None else found.version)
                    await self._commit([edit], "")
                except (DocumentChanged, DocumentExists, UnknownDocument):
                    continue
                return table.HubAccepted(mode=asked.mode, id=id)
        raise _busy("the subscription")

    async def _check_places(self, feed: StoredFeed, host: str) -> None:
        """LimitReached where there is no place for another subscription."""
        of_feed = of_host = pending = pending_of_host = 0
        for _, sub in await self._subscriptions(feed.spec.topic):
            same, waits = read_url(sub.callback).host == host, sub.terms is None
            of_feed, of_host = of_feed + 1, of_host + same
            pending, pending_of_host = pending + waits, pending_of_host + (waits and same)
        most = self._broker.limits.max_subscribers
        for count, bound, what in (
            (of_feed, most, "subscriptions of this feed, as many as max_subscribers allows"),
            (of_host, min(most, MOST_OF_HOST), f"subscriptions of this feed for {host[:60]}"),
            (pending, MOST_PENDING, "subscriptions of this feed that wait to be verified"),
            (pending_of_host, MOST_PENDING_OF_HOST, f"subscriptions that wait for {host[:60]}"),
        ):
            if count >= bound:
                raise LimitReached(f"there are {count} {what}", hint="try again in a while")

    def _check_rate(self, feed: StoredFeed) -> None:
        if not self._for_feed.take(self._broker.clock(), feed.spec.topic):
            raise LimitReached(f"more than {MOST_FOR_FEED} requests a minute for this feed")

    async def _feed_of(self, url: str, base: str) -> StoredFeed:
        """The feed with this URL, its own or its source's."""
        if topic := feeds.topic_of(url):
            found = await self._find_feed(topic)
            if found is not None and feeds.is_its_url(found[1].spec, url, base):
                return found[1]
        after, more = "", True
        while more:
            rows, more = await self._documents.find_anywhere(feeds.FEEDS, after, PAGE)
            for place, document in rows:
                after = _after(place)
                try:
                    feed: StoredFeed = _decode(place, document.value, StoredFeed)
                except StoreCorrupt:
                    continue  # named by websub.feeds; it must not close the others
                if feed.spec.source and feed.spec.source == url:
                    return feed
        raise UnknownFeed("hub.topic is no feed of this hub")

    # -- subscriptions -----------------------------------------------------------------------------

    async def list_page(self, caller: TokenBearer, request: table.SubscriptionList) -> table.SubscriptionRows:
        if request.topic is not None:
            one, more = await self._documents.find(core.SUBSCRIPTIONS, request.topic, "", request.after, PAGE)
            found = [(_place(request.topic, key), each) for key, each in one]
            after = found[-1][0].key if more else ""
        else:
            found, more = await self._documents.find_anywhere(core.SUBSCRIPTIONS, request.after, PAGE)
            after = _after(found[-1][0]) if more else ""
        rows = [
            await self._describe(place, _decode(place, document.value, StoredSubscription))
            for place, document in found
        ]
        return table.SubscriptionRows(subscriptions=rows, next=after)

    async def inspect(self, caller: TokenBearer, request: table.OfSubscription) -> table.SubscriptionDetails:
        place = _place(request.topic, request.id)
        _, sub = await self._read(place)
        state, terms = await self._state(place), sub.terms
        return table.SubscriptionDetails(
            **msgspec.structs.asdict(await self._describe(place, sub)),
            url=sub.url,
            hub=sub.hub,
            group=core.group_name(place.key),
            created_at=sub.created_at,
            verified_at=None if terms is None else terms.verified_at,
            lease=None if terms is None else terms.lease,
            refused_at=sub.refused_at or None,
            refused_why=sub.refused_why,
            trouble=state.trouble,
            attempts=list(reversed(state.recent)),
        )

    async def delete(self, caller: AuditedCaller, request: table.OfSubscription) -> table.Deleted:
        place = _place(request.topic, request.id)
        for _ in range(TRIES):
            try:
                version, sub = await self._read(place)
                before, after = {"ending": sub.ending}, {"ending": "deleted"}
                enter = partial(
                    caller.enter, name=_after(place), before=before, after=after, what="subscription"
                )
                edit = _edit(place, replace(sub, ending="deleted"), version)
                await self._commit([edit], caller.subject, enter)
            except DocumentChanged:
                continue
            except StoreCorrupt:
                await self._remove_damaged(place, caller.subject)
            self._broker.observe("subscription", f"{place.topic}/{place.key}", "deleted", caller.subject)
            return table.Deleted(deleted=f"{place.topic}/{place.key}")
        raise _busy("the subscription")

    async def _remove_damaged(self, place: DocumentPlace, who: str) -> None:
        """Nobody knows the callback, so there is nobody to tell."""
        edits = [Edit(place, None, None)]
        state = place._replace(collection=core.STATES)
        if await self._is_there(state):
            edits.append(Edit(state, None, None))
        await self._commit(edits, who)
        try:
            group = self._broker.table.group(place.topic, core.group_name(place.key))
            await self._broker.table.delete_group(group, who)
        except (UnknownGroup, UnknownTopic):
            pass

    async def _describe(self, place: DocumentPlace, sub: StoredSubscription) -> table.SubscriptionRow:
        state, now = await self._state(place), self._broker.clock()
        try:
            group = self._broker.table.group(place.topic, core.group_name(place.key))
            lag = group.catch_up().cursor.lag(group.topic.log.end)
        except (UnknownGroup, UnknownTopic):
            lag = None
        feed = await self._find_feed(place.topic)
        is_active = core.is_active(sub, None if feed is None else feed[1], now)
        is_pending = sub.ending is None and sub.terms is None and sub.intent is not None
        return table.SubscriptionRow(
            topic=place.topic,
            id=place.key,
            callback=sub.callback,
            state="active" if is_active else "pending" if is_pending else "ending",
            waits_for="" if sub.intent is None else sub.intent.mode,
            expires_at=None if sub.terms is None else sub.terms.expires_at,
            signed=bool(sub.terms is not None and sub.terms.secret),
            circuit=outlet.circuit(state, now),
            lag=lag,
            delivered=state.delivered,
            failed=state.failed,
            given_up=state.buried,
        )

    async def _describe_feed(self, feed: StoredFeed) -> table.FeedRow:
        topic = feed.spec.topic
        subs = [sub for _, sub in await self._subscriptions(topic)]
        source = await self._source(topic)
        return table.FeedRow(
            topic=topic,
            owner=feed.owner,
            opened_at=feed.opened_at,
            path=feeds.feed_url(feed.spec.base, topic),
            subscriptions=sum(core.is_active(sub, feed, self._broker.clock()) for sub in subs),
            pending=sum(sub.intent is not None for sub in subs),
            options=feed.spec,
            pinged_at=feed.pinged_at or None,
            fetched_at=source.fetched_at or None,
            trouble=source.trouble,
        )

    # -- documents ---------------------------------------------------------------------------------

    async def _feed(self, topic: str) -> StoredFeed:
        return (await self._read_feed(topic))[1]

    async def _read_feed(self, topic: str) -> tuple[str, StoredFeed]:
        found = await self._find_feed(topic)
        if found is None:
            raise _unknown_feed(topic)
        return found

    async def _find_feed(self, topic: str) -> tuple[str, StoredFeed] | None:
        """(version, feed)"""
        try:
            place = _feed_place(topic)
        except BusError:
            return None  # no name of a topic
        found = await self._documents.read(place)
        return None if found is None else (found.version, _decode(place, found.value, StoredFeed))

    async def _source(self, topic: str) -> FeedSource:
        place = _feed_place(topic)._replace(collection=feeds.SOURCES)
        found = await self._documents.read(place)
        return FeedSource() if found is None else _decode(place, found.value, FeedSource)

    async def _subscriptions(self, topic: str) -> list[tuple[str, StoredSubscription]]:
        """Those that can be read: a damaged one must not close the feed to all."""
        rows: list[tuple[str, StoredSubscription]] = []
        after, more = "", True
        while more:
            found, more = await self._documents.find(
                core.SUBSCRIPTIONS, topic, "", after, PAGE, leave_out=True
            )
            for key, document in found:
                after = key
                try:
                    rows.append((key, _decode(_place(topic, key), document.value, StoredSubscription)))
                except StoreCorrupt:
                    continue  # named by websub.list
        return rows

    async def _read(self, place: DocumentPlace) -> tuple[str, StoredSubscription]:
        found = await self._documents.read(place)
        if found is None:
            raise UnknownSubscription(f"the feed {place.topic} has no subscription {place.key}")
        return found.version, _decode(place, found.value, StoredSubscription)

    async def _state(self, place: DocumentPlace) -> OutletState:
        place = place._replace(collection=core.STATES)
        found = await self._documents.read(place)
        return OutletState() if found is None else _decode(place, found.value, OutletState)

    async def _commit(self, edits: list[Edit], subject: str, enter: Enter | None = None) -> None:
        """``enter``: writes the entry of the audit log, where an operator changes something."""
        writer = self._broker.units.writers[self._documents.unit_of(edits[0].place.topic)]

        def work(commit: BrokerCommit) -> None:
            self._documents.write(commit, edits, subject)
            if enter is not None:
                enter(commit)

        await writer.put(work)


def _feed_place(topic: str) -> DocumentPlace:
    return check_place(feeds.FEEDS, topic, feeds.KEY)


def _place(topic: str, id: str) -> DocumentPlace:
    return check_place(core.SUBSCRIPTIONS, topic, id)


def _after(place: DocumentPlace) -> str:
    return f"{place.topic}/{place.key}"


def _edit(place: DocumentPlace, value: msgspec.Struct, expect: str) -> Edit:
    return Edit(place, encode_value(msgspec.to_builtins(value)), expect)


def _checked_base(feed: StoredFeed, base: str) -> str:
    """How the hub is reached: as the operator says, otherwise as the caller has."""
    if not feed.spec.base and base:
        read_url(base)
    return feed.spec.base or base


def _told(feed: StoredFeed) -> dict[str, Any]:
    """What the audit log has of a feed."""
    return {**msgspec.to_builtins(feed.spec), "owner": feed.owner}


def _busy(what: str) -> DocumentChanged:
    return DocumentChanged(f"{what} is written by others all the time")


def _unknown_feed(topic: str) -> UnknownFeed:
    return UnknownFeed(f"the topic {topic[:200]} is no feed")


def _decode(place: DocumentPlace, value: bytes, kind: Callable[..., Any]) -> Any:
    try:
        return read_options(decode_value(value), kind, place.collection)  # type: ignore[arg-type]
    except BadRequest as error:
        raise StoreCorrupt(
            f"what is stored of {place.collection}/{place.key} for {place.topic} can't be read: {error}",
            hint="'landbridge websub delete TOPIC ID', or close the feed and open it again",
        ) from None
