"""Topics that cross LANs: their audiences, their producers and the versions of their keys."""

from __future__ import annotations

import math
from itertools import pairwise

from msgspec import UNSET

from landbridge.client import registry_documents as api
from landbridge.core import replies
from landbridge.core.trust.tickets import TopicKey
from landbridge.errors import BadRequest, LimitReached, StillHolds, TopicExists, UnknownGroup
from landbridge.registry import codec
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller
from landbridge.registry.change import Change
from landbridge.registry.entities import TopicRecord
from landbridge.registry.groups import check_own_name
from landbridge.registry.limits import microseconds
from landbridge.registry.page import page
from landbridge.registry.state import RegistryState

#: Bounds of a topic's max_age, in seconds. The keys that seal tickets are kept for the greatest.
LEAST_AGE, GREATEST_AGE = 60.0, 31 * 86400.0


class CrossingTopics:
    """Operations on topics."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state

    def create(self, change: Change, request: api.CreateTopic) -> api.TopicInfo:
        """Create a topic and the first version of its key."""
        account = change.account
        check_own_name(request.name, "topic")
        if request.name in account.topics:
            raise TopicExists(f"there is a topic {request.name!r}")
        if len(account.topics) >= self._state.limits.max_topics:
            raise LimitReached(f"{len(account.topics)} topics are as many as a customer may have")
        topic = TopicRecord(
            name=request.name,
            groups=self._groups(account, {}, request.groups, change.now),
            producers=self._producers(account, request.producers),
            late_open=request.late_open,
            ticket_scope=request.ticket_scope,
            max_age=_check_age(request.max_age),
            keys=[self._new_key(change, request.name, 1)],
            created_at=change.now,
        )
        return _show(change.put(topic))

    def list_page(self, caller: Caller, request: api.ListPage) -> api.TopicPage:
        """List topics by their names."""
        items, following = page(caller.own_account.topics, request, self._state.limits)
        return api.TopicPage(items=[_show(topic) for topic in items], next=following)

    def show(self, caller: Caller, request: api.OfCrossingTopic) -> api.TopicInfo:
        """Show one topic."""
        return _show(caller.own_account.topic(request.topic))

    def update(self, change: Change, request: api.UpdateTopic) -> api.TopicInfo:
        """Change what the request gives."""
        topic = change.account.topic(request.topic)
        changes = codec.given(request, "late_open", "ticket_scope", "max_age")
        if request.producers is not UNSET:
            changes["producers"] = self._producers(change.account, request.producers)
        topic = codec.replace(topic, **changes)
        _check_age(topic.max_age)
        return _show(change.put(topic))

    def add_groups(self, change: Change, request: api.AddGroups) -> api.TopicInfo:
        """Add audiences to a topic."""
        topic = change.account.topic(request.topic)
        groups = self._groups(change.account, topic.groups, request.groups, change.now)
        change.detail = " ".join(request.groups)
        return _show(change.put(codec.replace(topic, groups=groups)))

    def remove_group(self, change: Change, request: api.RemoveGroupFromTopic) -> api.TopicInfo:
        """Remove an audience from a topic."""
        topic = change.account.topic(request.topic)
        if request.group not in topic.groups:
            raise UnknownGroup(
                f"there is no group {request.group[:200]!r} of {topic.name}",
                hint="see 'landbridge topic show --registry'",
            )
        _check_not_held(change.account, topic.name, force=request.force)
        left = {other: since for other, since in topic.groups.items() if other != request.group}
        change.detail = request.group
        return _show(change.put(codec.replace(topic, groups=left)))

    def remove(self, change: Change, request: api.RemoveTopic) -> None:
        """Remove a topic with its keys: messages on their way can't be opened any more."""
        topic = change.account.topic(request.topic)
        _check_not_held(change.account, topic.name, force=request.force)
        change.drop(topic)

    # -- keys --------------------------------------------------------------------------------------

    def rotate_key(self, change: Change, request: api.OfCrossingTopic) -> api.TopicInfo:
        """Make a new version of a topic's key."""
        return _show(self._rotate(change, change.account.topic(request.topic)))

    async def make_replies(self, account: Account) -> None:
        """Make the customer's topic of replies when the first reply crosses. It has no groups: terminals know
        by themselves whom a reply is for."""
        if replies.TOPIC in account.topics:
            return

        def work(change: Change) -> None:
            if replies.TOPIC in account.topics:  # another request may have made it meanwhile
                return
            change.put(
                TopicRecord(
                    name=replies.TOPIC,
                    groups={},
                    producers=None,
                    late_open="renew",
                    ticket_scope="window",
                    max_age=replies.KEEP,
                    keys=[self._new_key(change, replies.TOPIC, 1)],
                    created_at=change.now,
                )
            )

        await self._state.change(Caller("registry", account), "createMessageBusTopic", replies.TOPIC, work)

    async def replace_old_key(self, account: Account, name: str) -> None:
        """Make a new version of a topic's key if the newest is past ``key_life``. Called before a ticket is
        issued: a topic that is not used needs no new key."""
        topic = account.topics.get(name)
        if topic is None or not self._is_old(topic, self._state.clock()):
            return

        def work(change: Change) -> None:
            topic = account.topic(name)
            if self._is_old(topic, change.now):  # another request may have replaced it meanwhile
                self._rotate(change, topic)

        await self._state.change(Caller("registry", account), "rotateMessageBusTopicKey", name, work)

    def _is_old(self, topic: TopicRecord, now: int) -> bool:
        return now >= topic.keys[0].made_at + microseconds(self._state.limits.key_life)

    def _rotate(self, change: Change, topic: TopicRecord) -> TopicRecord:
        newest = topic.keys[0]
        # A version is needed until the last ticket that was issued under it, when its successor came, has
        # expired and can't be renewed.
        readable = microseconds(topic.max_age + self._state.limits.ticket_life)
        needed = [key for newer, key in pairwise(topic.keys) if change.now < newer.made_at + readable]
        most = self._state.limits.max_key_versions
        if 2 + len(needed) > most:
            raise LimitReached(
                f"{topic.name} has {most} versions of its key that can still be needed",
                hint="they end with its max_age; rotate less often",
            )
        change.detail = f"kv {newest.kv + 1}"
        fresh = self._new_key(change, topic.name, newest.kv + 1)
        return change.put(codec.replace(topic, keys=[fresh, newest, *needed]), in_directory=False)

    def _new_key(self, change: Change, topic: str, kv: int) -> TopicKey:
        customer, vault = change.customer, self._state.keyring.vault
        return vault.new_topic_key(customer.id, customer.sealing_key, topic, kv, change.now)

    # -- inside ------------------------------------------------------------------------------------

    def _groups(
        self, account: Account, present: dict[str, int], added: list[str], now: int
    ) -> dict[str, int]:
        groups = dict(present)
        for name in added:
            groups.setdefault(account.group(name).name, now)
        most = self._state.limits.max_members
        if len(groups) > most:
            raise LimitReached(f"a topic of {len(groups)} groups; at most {most}")
        return groups

    def _producers(self, account: Account, given: list[str] | None) -> list[str] | None:
        if given is None:
            return None
        most = self._state.limits.max_members
        if len(given) > most:
            raise LimitReached(f"a topic of {len(given)} producers; at most {most}")
        return list(dict.fromkeys(account.terminal(id).id for id in given))


def _show(topic: TopicRecord) -> api.TopicInfo:
    keys = [api.TopicKeyVersion(kv=key.kv, made_at=key.made_at) for key in topic.keys]
    return codec.show(api.TopicInfo, topic, keys=keys)


def _check_age(age: float) -> float:
    if not math.isfinite(age) or not LEAST_AGE <= age <= GREATEST_AGE:
        raise BadRequest(f"a max_age of {age} s", hint=f"{LEAST_AGE:.0f} to {GREATEST_AGE:.0f} seconds")
    return age


def _check_not_held(account: Account, topic: str, *, force: bool) -> None:
    held = account.held_of(topic)
    if held and not force:
        raise StillHolds(f"terminals hold {held} messages of {topic}")
