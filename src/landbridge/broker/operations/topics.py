"""Operations on topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from landbridge.broker import rule_topics
from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.documents import Edit, check_place
from landbridge.broker.operations.dispatcher import PAGE, Dispatcher, may_see
from landbridge.broker.operations.groups import describe_group
from landbridge.broker.routing import Routing
from landbridge.broker.stage_work import check as check_middleware
from landbridge.broker.topic import KIND, Topic
from landbridge.broker.topic import encode as encode_topic
from landbridge.broker.topic_changes import covers
from landbridge.broker.turns import TOPIC_COUNTS, Turns
from landbridge.core.audit import TOPIC as AUDIT
from landbridge.core.log.store import PutDocument
from landbridge.core.mail.outgoing import COLLECTION as MAILS
from landbridge.core.mail.outgoing import STATES as MAIL_STATES
from landbridge.core.middleware.event_types import COLLECTION as TYPES
from landbridge.core.names import check_pattern, is_reserved
from landbridge.core.options import differences
from landbridge.core.schedule.schedule import COLLECTION as SCHEDULES
from landbridge.core.sms.outgoing import COLLECTION as SMS
from landbridge.core.sms.outgoing import STATES as SMS_STATES
from landbridge.core.topic import TopicSpec, topic_spec
from landbridge.core.webhook.webhook import COLLECTION as WEBHOOKS
from landbridge.core.webhook.webhook import STATES as WEBHOOK_STATES
from landbridge.core.websub.feed import FEEDS, SOURCES
from landbridge.core.websub.subscription import STATES as SUBSCRIPTION_STATES
from landbridge.core.websub.subscription import SUBSCRIPTIONS
from landbridge.core.wording import counted
from landbridge.errors import BadRequest, TopicExists, UnknownDocument, UnknownTopic
from landbridge.protocol import operations as table

#: Seconds that topic.wait waits at most.
LONGEST_WAIT = 60.0
#: Documents that a topic takes along when it is deleted, and what the topic of changes calls them: they would
#: make it anew, or point to nothing. A webhook's state has no name of its own there.
GONE_WITH_A_TOPIC = (
    (SCHEDULES, "schedule"),
    (WEBHOOKS, "webhook"),
    (WEBHOOK_STATES, ""),
    (MAILS, "mail"),
    (MAIL_STATES, ""),
    (SMS, "sms"),
    (SMS_STATES, ""),
    (FEEDS, ""),
    (SOURCES, ""),
    (SUBSCRIPTIONS, ""),
    (SUBSCRIPTION_STATES, ""),
    (TYPES, ""),
)
#: Topics that one request may name.
MOST_TOPICS = 100


class TopicOperations:
    """The handlers of topic.*"""

    def __init__(self, broker: Broker, routing: Routing) -> None:
        self._broker, self._routing = broker, routing

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.TOPIC_CREATE, self.create)
        dispatcher.register(table.TOPIC_UPDATE, self.update)
        dispatcher.register(table.TOPIC_LIST, self.list_page)
        dispatcher.register(table.TOPIC_SHOW, self.show)
        dispatcher.register(table.TOPIC_DELETE, self.delete)
        dispatcher.register(table.TOPIC_WAIT, self.wait)
        dispatcher.register(table.TOPIC_WATCH, self.watch)
        dispatcher.register(table.TOPIC_SEEK_TIME, self.seek_time)

    async def create(self, caller: AuditedCaller, request: table.TopicOptions) -> table.TopicRow:
        options = {"max_backlog": self._broker.limits.max_backlog, **msgspec.to_builtins(request)}
        spec = topic_spec(options)
        check_middleware(spec.middleware)
        if is_reserved(spec.name):
            raise BadRequest("names with a leading $ belong to the terminal")
        topic = self._broker.topics.get(spec.name)
        if topic is not None and topic.deleted:  # its deletion is being written
            await topic.writer.drain()
            topic = self._broker.topics.get(spec.name)
        if topic is None:
            enter = partial(caller.enter, name=spec.name, after=spec)
            topic = self._broker.table.create_topic(spec, caller.subject, enter)
        elif topic.spec != spec:
            raise TopicExists(
                f"the topic {spec.name} exists with other options: {differences(topic.spec, spec)}",
                hint="'landbridge topic update' changes it; a kind can't be changed",
            )
        if not topic.stored:
            await topic.writer.put(topic.save)
        caller.change_nothing()  # or else its making has an entry
        return describe_topic(topic)

    async def update(self, caller: AuditedCaller, request: table.TopicOptions) -> table.TopicRow:
        topic = self._broker.table.topic(request.name)
        if topic.name == AUDIT:
            caller.scopes.demand_rank("admin", "change how long the audit log is kept")
        check_middleware(_changed(topic.spec, request).middleware)

        def work(commit: BrokerCommit) -> tuple[TopicSpec, TopicSpec]:
            # By what the options are now: another change of them, or the deletion, may have come before.
            before, after = topic.spec, _changed(topic.spec, request)
            if topic.deleted:
                raise UnknownTopic(f"the topic {topic.name} was deleted")
            topic.spec = after
            commit.on_failed.append(lambda: setattr(topic, "spec", before))
            commit.writes.append(PutDocument(KIND, topic.name, encode_topic(topic.document)))
            if before == after:
                caller.change_nothing()
            else:
                caller.enter(commit, topic.name, before, after)
            return before, after

        before, spec = await topic.writer.put(work)
        self._broker.table.follow_middleware(topic)
        self._broker.observe("topic", topic.name, "updated", caller.subject, before, spec)
        self._broker.trimmer.plan(topic, soon=True)
        return describe_topic(topic)

    async def list_page(self, caller: TokenBearer, request: table.TopicList) -> table.TopicRows:
        most = max(1, min(request.limit, PAGE))
        rows: list[table.TopicRow] = []
        turns = Turns()
        part = request.contains
        for name in sorted(name for name in self._broker.topics if name > request.after and part in name):
            await turns.looked_at(TOPIC_COUNTS)
            topic = self._broker.topics.get(name)
            if topic is not None and may_see(self._broker.topics, caller, name):
                if len(rows) >= most:
                    return table.TopicRows(topics=rows, next=rows[-1].name)
                rows.append(describe_topic(topic))
        return table.TopicRows(topics=rows, next="")

    async def show(self, caller: TokenBearer, request: table.OfTopic) -> table.TopicDetails:
        topic, crossing = self._broker.table.topic(request.name), self._broker.crossing
        return table.TopicDetails(
            **_facts(topic),
            options=topic.spec,
            groups=[describe_group(group) for group in topic.groups.values()],
            crossing=None if crossing is None else crossing.groups_of(topic.name),
        )

    async def delete(self, caller: AuditedCaller, request: table.TopicDelete) -> table.Deleted:
        if request.name in self._broker.damaged and request.force:
            if request.name == AUDIT:
                caller.scopes.demand_rank("admin", "give up the audit log")
            enter = partial(caller.enter, name=request.name, before={"damaged": True})
            await self._broker.table.give_up_topic(request.name, enter)
            return table.Deleted(deleted=request.name)
        topic = self._broker.table.topic(request.name)
        if is_reserved(topic.name):
            raise BadRequest(f"{topic.name} belongs to the terminal")
        if topic.spec.rule is not None:
            raise BadRequest(f"{topic.name} is the topic of a rule", hint="'landbridge rule delete'")
        chosen = self._routing.of_source(topic.name)
        lag = max((_lag(each) for each in (topic, *chosen)), default=0)
        if lag and not request.force:
            raise BadRequest(
                f"the topic {topic.name} holds {counted(lag, 'message')} that a group hasn't settled",
                hint="use --force to delete them",
            )
        for rule in chosen:
            await self._routing.delete(rule, caller.subject, partial(caller.enter, what="rule"))
        for collection, kind in GONE_WITH_A_TOPIC:
            await self._remove_documents(collection, kind, topic.name, caller)
        enter = partial(caller.enter, name=topic.name, before=topic.spec)
        await self._broker.table.delete_topic(topic, caller.subject, enter)
        return table.Deleted(deleted=topic.name)

    async def _remove_documents(self, collection: str, kind: str, topic: str, caller: AuditedCaller) -> None:
        """Remove what there is for a topic that is to be deleted."""
        broker, documents = self._broker, self._broker.documents

        def work(commit: BrokerCommit, edit: Edit) -> None:
            documents.write(commit, [edit], caller.subject)
            if kind:
                caller.enter(commit, f"{topic}/{edit.place.key}", {"topic": topic}, what=kind)

        writer = broker.units.writer_for(topic)
        after = ""
        while True:
            found, more = await documents.find(collection, topic, "", after, PAGE)
            for name, _ in found:
                edit = Edit(check_place(collection, topic, name), None, None)
                try:
                    await writer.put(partial(work, edit=edit))
                except UnknownDocument:
                    continue  # somebody else was faster
                if kind:
                    broker.observe(kind, f"{topic}/{name}", "deleted", caller.subject)
            if not more:
                return
            after = found[-1][0]

    async def wait(self, caller: TokenBearer, request: table.TopicWait) -> dict[str, table.TopicBounds]:
        _check_number(request.offsets)
        topics = {name: self._broker.table.topic(name) for name in request.offsets}
        logs = {name: topic.log for name, topic in topics.items()}
        loop = asyncio.get_running_loop()
        now = loop.time
        until = now() + min(request.within, LONGEST_WAIT)
        while logs and now() < until:
            if any(logs[name].end > offset for name, offset in request.offsets.items()):
                break
            grown: asyncio.Future[None] = loop.create_future()
            for log in logs.values():
                log.on_growth(grown)
            await asyncio.wait([grown], timeout=until - now())
            grown.cancel()
        return {name: await _bounds(topic, request.offsets[name]) for name, topic in topics.items()}

    async def watch(self, caller: TokenBearer, request: table.TopicWatch) -> table.TopicNews:
        patterns, changes = request.patterns, self._broker.topic_changes
        may_read = partial(_may_read, self._broker.topics)
        _check_patterns(patterns)
        if (version := self._version(request.since)) is not None:
            loop = asyncio.get_running_loop()
            until = loop.time() + min(request.within, LONGEST_WAIT)
            while True:
                names = changes.since(version)
                if names is None:
                    break
                if found := [name for name in names if covers(patterns, name) and may_read(caller, name)]:
                    return self._news(found, changes.version)
                left = until - loop.time()
                if left <= 0:
                    return self._news([], changes.version)
                version = changes.version
                await changes.wait(patterns, left)
        version = changes.version  # what changes while we look is told again next time
        turns, all_names = Turns(), []
        for name in sorted(self._broker.topics):
            await turns.looked_at(1)
            if covers(patterns, name) and may_read(caller, name) and self._is_there(name):
                all_names.append(name)
        return table.TopicNews(
            topics=all_names[:PAGE],
            gone=[],
            whole=True,
            more=max(0, len(all_names) - PAGE),
            since=self._since(version),
        )

    def _is_there(self, name: str) -> bool:
        topic = self._broker.topics.get(name)
        return topic is not None and not topic.deleted

    def _news(self, names: list[str], version: int) -> table.TopicNews:
        """What has become of topics with these names."""
        there = [name for name in names if self._is_there(name)]
        return table.TopicNews(
            topics=there[:PAGE],
            gone=[name for name in names if name not in set(there)],
            whole=False,
            more=max(0, len(there) - PAGE),
            since=self._since(version),
        )

    def _since(self, version: int) -> str:
        return f"{self._broker.life.incarnation}/{self._broker.life.start}/{version}"

    def _version(self, since: str) -> int | None:
        """The version of the topics that an answer has told; None where it is of another start."""
        start, _, version = since.rpartition("/")
        if (
            start != f"{self._broker.life.incarnation}/{self._broker.life.start}"
            or len(version) > 20
            or not version.isdecimal()
        ):
            return None
        return int(version)

    async def seek_time(self, caller: TokenBearer, request: table.TopicSeekTime) -> dict[str, int]:
        broker = self._broker
        _check_number(request.times)
        return {
            name: await broker.table.position(broker.table.topic(name), at)
            for name, at in request.times.items()
        }


async def _bounds(topic: Topic, offset: int) -> table.TopicBounds:
    log = topic.log
    before = await log.time_before(offset)
    end = log.end
    newest = before if offset == end else await log.time_before(end)
    return table.TopicBounds(first=log.first, end=end, log=topic.log_id, before=before, newest=newest)


def _lag(topic: Topic) -> int:
    """Messages that the slowest group has not settled."""
    return max((group.delivery.cursor.lag(topic.log.end) for group in topic.groups.values()), default=0)


def _check_patterns(patterns: list[str]) -> None:
    if not 0 < len(patterns) <= MOST_TOPICS:
        raise BadRequest(f"{len(patterns)} patterns, allowed are 1 to {MOST_TOPICS}")
    for pattern in patterns:
        check_pattern(pattern)


def _may_read(topics: Mapping[str, Topic], caller: TokenBearer, topic: str) -> bool:
    return rule_topics.may(topics, caller.scopes, "subscribe", topic)


def _check_number(topics: Mapping[str, int]) -> None:
    if len(topics) > MOST_TOPICS:
        raise BadRequest(
            f"{len(topics)} topics in one request, allowed are {MOST_TOPICS}", hint="make several requests"
        )


def _changed(spec: TopicSpec, request: table.TopicOptions) -> TopicSpec:
    """The options of a topic with those changed that a request names."""
    old, options = msgspec.to_builtins(spec), msgspec.to_builtins(request)
    if options.get("kind", old["kind"]) != old["kind"]:
        raise BadRequest("a topic's kind can't be changed")
    if "retention" in options:
        options["retention"] = {**old["retention"], **options["retention"]}
    return topic_spec({**old, **options})


def describe_topic(topic: Topic) -> table.TopicRow:
    durable = [group for group in topic.groups.values() if group.durable]
    lag = max((group.delivery.cursor.lag(topic.log.end) for group in durable), default=0)
    return table.TopicRow(**_facts(topic), groups=len(topic.groups), lag=lag)


def _facts(topic: Topic) -> dict[str, Any]:
    log = topic.log
    return {
        "name": topic.name,
        "kind": topic.spec.kind,
        "first": log.first,
        "end": log.end,
        "messages": log.end - log.first,
        "bytes": log.bytes,
        "created_at": topic.created_at,
        "log": topic.log_id,
        "pause": topic.pause,
    }
