"""Topics of a customer: their audiences, their producers and the versions of their keys."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import UNSET

from landbridge.client import registry_documents as api
from landbridge.core.trust.tickets import TopicKey
from landbridge.errors import BadRequest, LimitReached, StillHolds, TopicExists, UnknownGroup
from landbridge.registry import codec
from landbridge.registry.account import Account, Change
from landbridge.registry.caller import Caller
from landbridge.registry.entities import Topic
from landbridge.registry.groups import check_own_name
from landbridge.registry.page import page

if TYPE_CHECKING:
    from landbridge.registry.registry import Registry

#: Seconds. The keys that seal tickets are kept for as long as the greatest.
LEAST_AGE, GREATEST_AGE = 60.0, 31 * 86400.0
_SECOND = 1_000_000


class Topics:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def create(self, caller: Caller, request: api.CreateTopic) -> api.Topic:
        def work(change: Change) -> api.Topic:
            account = change.account
            check_own_name(request.name, "topic")
            if request.name in account.topics:
                raise TopicExists(f"there is a topic {request.name!r}")
            if len(account.topics) >= self._registry.limits.max_topics:
                raise LimitReached(f"{len(account.topics)} topics are as many as a customer may have")
            topic = Topic(
                name=request.name,
                groups=self._groups(account, {}, request.groups, change.now),
                producers=self._producers(account, request.producers),
                late_open=request.late_open,
                ticket_scope=request.ticket_scope,
                max_age=_check_age(request.max_age),
                keys=[self._new_key(change, request.name, 1)],
                created_at=change.now,
            )
            return show(change.put(topic))

        return await self._registry.change(caller, "createMessageBusTopic", request.name, work)

    def listed(self, account: Account, after: str, limit: int) -> api.TopicPage:
        items, following = page(account.topics, after, limit, self._registry.limits.max_page)
        return api.TopicPage(items=[show(topic) for topic in items], next=following)

    async def update(self, caller: Caller, name: str, request: api.UpdateTopic) -> api.Topic:
        def work(change: Change) -> api.Topic:
            topic = change.account.topic(name)
            producers = topic.producers
            if request.producers is not UNSET:
                producers = self._producers(change.account, request.producers)
            topic = codec.replace(
                topic,
                producers=producers,
                late_open=topic.late_open if request.late_open is UNSET else request.late_open,
                ticket_scope=topic.ticket_scope if request.ticket_scope is UNSET else request.ticket_scope,
                max_age=topic.max_age if request.max_age is UNSET else _check_age(request.max_age),
            )
            return show(change.put(topic))

        return await self._registry.change(caller, "updateMessageBusTopic", name, work)

    async def add_groups(self, caller: Caller, name: str, request: api.AddGroups) -> api.Topic:
        def work(change: Change) -> api.Topic:
            topic = change.account.topic(name)
            groups = self._groups(change.account, topic.groups, request.groups, change.now)
            change.detail = " ".join(request.groups)
            return show(change.put(codec.replace(topic, groups=groups)))

        return await self._registry.change(caller, "addGroupToTopic", name, work)

    async def remove_group(self, caller: Caller, name: str, group: str, *, force: bool) -> api.Topic:
        def work(change: Change) -> api.Topic:
            topic = change.account.topic(name)
            if group not in topic.groups:
                raise UnknownGroup(
                    f"there is no group {group[:200]!r} of {name}",
                    hint="see 'landbridge topic show --registry'",
                )
            _check_not_held(change.account, name, force=force)
            left = {other: since for other, since in topic.groups.items() if other != group}
            change.detail = group
            return show(change.put(codec.replace(topic, groups=left)))

        return await self._registry.change(caller, "removeGroupFromTopic", name, work)

    async def remove(self, caller: Caller, name: str, *, force: bool) -> None:
        """With its keys: what is still under way can't be opened any more."""

        def work(change: Change) -> None:
            topic = change.account.topic(name)
            _check_not_held(change.account, name, force=force)
            change.drop(topic)

        await self._registry.change(caller, "removeMessageBusTopic", name, work)

    # -- keys --------------------------------------------------------------------------------------

    async def rotate_key(self, caller: Caller, name: str) -> api.Topic:
        def work(change: Change) -> api.Topic:
            return show(self._rotate(change, change.account.topic(name)))

        return await self._registry.change(caller, "rotateMessageBusTopicKey", name, work)

    async def keep_key_young(self, account: Account, name: str) -> None:
        """A new version where the newest has had its time. Called before a ticket is issued: a topic that
        nobody uses needs none."""
        topic = account.topics.get(name)
        if topic is None or not self._is_due(topic, self._registry.clock()):
            return

        def work(change: Change) -> None:
            topic = account.topic(name)
            if self._is_due(topic, change.now):  # not done meanwhile by another
                self._rotate(change, topic)

        await self._registry.change(Caller("registry", account), "rotateMessageBusTopicKey", name, work)

    def _is_due(self, topic: Topic, now: int) -> bool:
        return now >= topic.keys[0].made_at + round(self._registry.limits.key_life * _SECOND)

    def _rotate(self, change: Change, topic: Topic) -> Topic:
        newest = topic.keys[0]
        # A version is needed for as long as a ticket that was issued under it last, when its successor came,
        # can be renewed and then lives.
        readable = round((topic.max_age + self._registry.limits.ticket_life) * _SECOND)
        needed = [
            key
            for key, newer in zip(topic.keys[1:], topic.keys, strict=False)
            if change.now < newer.made_at + readable
        ]
        most = self._registry.limits.max_key_versions
        if 2 + len(needed) > most:
            raise LimitReached(
                f"{topic.name} has {most} versions of its key that can still be needed",
                hint="they end with its max_age; rotate less often",
            )
        change.detail = f"kv {newest.kv + 1}"
        fresh = self._new_key(change, topic.name, newest.kv + 1)
        return change.put(codec.replace(topic, keys=[fresh, newest, *needed]), in_directory=False)

    def _new_key(self, change: Change, topic: str, kv: int) -> TopicKey:
        customer = change.customer
        vault = self._registry.keyring.vault
        return vault.new_topic_key(customer.id, customer.sealing_key, topic, kv, change.now)

    # -- inside ------------------------------------------------------------------------------------

    def _groups(
        self, account: Account, present: dict[str, int], added: list[str], now: int
    ) -> dict[str, int]:
        groups = dict(present)
        for name in added:
            groups.setdefault(account.group(name).name, now)
        most = self._registry.limits.max_members
        if len(groups) > most:
            raise LimitReached(f"a topic of {len(groups)} groups; at most {most}")
        return groups

    def _producers(self, account: Account, given: list[str] | None) -> list[str] | None:
        if given is None:
            return None
        most = self._registry.limits.max_members
        if len(given) > most:
            raise LimitReached(f"a topic of {len(given)} producers; at most {most}")
        return list(dict.fromkeys(account.terminal(id).id for id in given))


def show(topic: Topic) -> api.Topic:
    return api.Topic(
        name=topic.name,
        groups=topic.groups,
        producers=topic.producers,
        late_open=topic.late_open,
        ticket_scope=topic.ticket_scope,
        max_age=topic.max_age,
        keys=[api.TopicKeyVersion(kv=key.kv, made_at=key.made_at) for key in topic.keys],
        created_at=topic.created_at,
    )


def _check_age(age: float) -> float:
    if not math.isfinite(age) or not LEAST_AGE <= age <= GREATEST_AGE:
        raise BadRequest(f"a max_age of {age} s", hint=f"{LEAST_AGE:.0f} to {GREATEST_AGE:.0f} seconds")
    return age


def _check_not_held(account: Account, topic: str, *, force: bool) -> None:
    held = account.held_of(topic)
    if held and not force:
        raise StillHolds(f"terminals hold {held} messages of {topic}")
