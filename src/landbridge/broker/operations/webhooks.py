"""Operations on webhooks. They write the documents and the group; the sender
(``landbridge.gateways.webhooks``) watches the documents, reads the group and sends.

A webhook belongs to whoever made or last updated it, its *owner*, and reads its topic in the owner's name.
Its owner may do everything with it, and so may an operator; but whoever changes where it sends to needs the
right to read the topic, and becomes its owner, so that nobody has a topic sent to him in another's name.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.documents import DocumentPlace, Edit, check_place, decode_value, encode_value
from landbridge.broker.group import Group
from landbridge.broker.operations.dispatcher import PAGE, Dispatcher, may_see
from landbridge.broker.operations.groups import GroupOperations, save_group, topic_made
from landbridge.broker.routing import Routing
from landbridge.core.addresses import read_url
from landbridge.core.options import differences, read_options
from landbridge.core.rules.query import read_query
from landbridge.core.webhook import webhook as core
from landbridge.core.webhook.signature import (
    KEY_SIZE,
    LEAST,
    PRIVATE,
    is_key,
    public_key,
    read_secret,
    write_secret,
)
from landbridge.core.webhook.spec import WebhookSpec
from landbridge.core.webhook.webhook import StoredWebhook, WebhookProbe, WebhookSecret, WebhookState
from landbridge.errors import (
    BadRequest,
    DocumentChanged,
    DocumentExists,
    Forbidden,
    LimitReached,
    OffsetGone,
    StoreCorrupt,
    UnknownGroup,
    UnknownTopic,
    UnknownWebhook,
    WebhookExists,
)
from landbridge.protocol import operations as table

#: A document that is written by others at the same time is read again so often.
TRIES = 20
#: Seconds that a test may wait.
LONGEST_TEST = 30.0
#: Of the group: seconds that a request may take with all that it waits for, and attempts after which the
#: group gives up by itself, far more than the sender makes.
ACK_WITHIN, MAX_ATTEMPTS = 120.0, 1000
LONGEST_NOTE = 1000


class WebhookOperations:
    """The handlers of webhook.*"""

    def __init__(self, broker: Broker, routing: Routing) -> None:
        self._broker, self._routing = broker, routing
        self._documents = broker.documents
        self._groups = GroupOperations(broker)
        #: Held while a webhook is made, so that their number is right.
        self._making = asyncio.Lock()

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.WEBHOOK_CREATE, self.create)
        dispatcher.register(table.WEBHOOK_UPDATE, self.update)
        dispatcher.register(table.WEBHOOK_LIST, self.list_page)
        dispatcher.register(table.WEBHOOK_SHOW, self.show)
        dispatcher.register(table.WEBHOOK_TEST, self.test)
        dispatcher.register(table.WEBHOOK_PAUSE, self.pause)
        dispatcher.register(table.WEBHOOK_RESUME, self.resume)
        dispatcher.register(table.WEBHOOK_REPLAY, self.replay)
        dispatcher.register(table.WEBHOOK_ROTATE, self.rotate)
        dispatcher.register(table.WEBHOOK_DELETE, self.delete)

    # -- making and changing -----------------------------------------------------------------------

    async def create(self, caller: AuditedCaller, request: table.WebhookCreate) -> table.WebhookSigned:
        options = msgspec.to_builtins(request)
        options = {key: options[key] for key in options if key not in ("secret", "asymmetric", "start")}
        spec = core.webhook_spec(options)
        if request.secret:
            read_secret(request.secret)
        place = _place(spec.topic, spec.name)
        enter = topic_made(caller, spec.topic)
        topic = self._broker.topic_for(spec.topic, who=caller.subject, enter=enter)
        if topic.spec.delivery == "at-most-once":
            raise BadRequest(
                f"the queue {topic.name} settles a message when it is handed out, before anybody has got it",
                hint="create the queue with delivery at-least-once",
            )
        secret = request.secret or _new_secret(asymmetric=request.asymmetric)
        now = self._broker.clock()
        stored = StoredWebhook(
            spec=spec, owner=caller.subject, created_at=now, secrets=(WebhookSecret(secret, now),)
        )
        async with self._making:
            if await self._documents.read(place) is None:
                await self._check_room()
                stored = replace(stored, rule=await self._make_rule(caller, spec))
                await self._make_group(caller, stored, request.start)
                edits = [_edit(place, stored, ""), _edit(_state_place(place), WebhookState(), "")]
                try:
                    await self._commit(caller, place, edits, "created", None, stored)
                except DocumentExists:
                    pass
                else:
                    return await self._tell(place, stored, secret)
        _, found = await self._read(place)
        if (found.spec, found.owner) != (spec, caller.subject):
            raise WebhookExists(
                f"the webhook {spec.name} of {spec.topic} exists with other options: "
                f"{differences(found.spec, spec) or f'its owner is {found.owner}'}"
            )
        caller.change_nothing()
        if not self._has_group(found):
            await self._make_rule(caller, spec)
            await self._make_group(caller, found, request.start)
        return await self._tell(place, found, "")

    async def _check_room(self) -> None:
        count, after = 0, ""
        while True:
            found, more = await self._documents.find_anywhere(core.COLLECTION, after, PAGE)
            count += len(found)
            if not more:
                break
            after = f"{found[-1][0].topic}/{found[-1][0].key}"
        if count >= self._broker.limits.max_webhooks:
            raise LimitReached(f"there are {count} webhooks, as many as max_webhooks allows")

    async def _make_rule(self, caller: AuditedCaller, spec: WebhookSpec) -> str:
        """The topic of the rule of its query, which is made where there is none."""
        if spec.query is None:
            return ""
        enter = partial(caller.enter, what="rule")
        topic, _ = await self._routing.create(read_query(spec.query), spec.topic, caller.subject, enter)
        return topic.name

    async def _make_group(self, caller: AuditedCaller, stored: StoredWebhook, start: Any) -> None:
        spec = stored.spec
        wanted = table.GroupCreate(
            stored.reads,
            core.group_name(spec.name),
            discipline="fifo",
            ack_within=ACK_WITHIN,
            max_attempts=MAX_ATTEMPTS,
            match=spec.match,
            start="latest" if start is None else start,
        )
        await self._groups.create(caller, wanted)

    async def update(self, caller: AuditedCaller, request: table.WebhookUpdate) -> table.WebhookRow:
        def work(stored: StoredWebhook) -> StoredWebhook:
            spec = core.webhook_spec({**msgspec.to_builtins(stored.spec), **msgspec.to_builtins(request)})
            return replace(stored, spec=spec, owner=caller.subject)

        place, changed = await self._change(caller, request, work)
        if self._has_group(changed) and changed.spec.match != self._group(changed).spec.match:
            options = table.GroupOptions(changed.reads, core.group_name(place.key), match=changed.spec.match)
            await self._groups.update(caller, options)
        return await self._describe(place, changed)

    async def pause(self, caller: AuditedCaller, request: table.WebhookPause) -> table.WebhookRow:
        now, note = self._broker.clock(), request.note
        if len(note) > LONGEST_NOTE:
            raise BadRequest(f"a note of {len(note)} characters, allowed are {LONGEST_NOTE}")
        place, changed = await self._change(
            caller,
            request,
            lambda stored: replace(stored, paused_at=now, paused_by=caller.subject, note=note),
            "paused",
        )
        return await self._describe(place, changed)

    async def resume(self, caller: AuditedCaller, request: table.OfWebhook) -> table.WebhookRow:
        now = self._broker.clock()

        def work(stored: StoredWebhook) -> StoredWebhook:
            # Never the same moment twice, also if somebody has set the clock back.
            resumed_at = max(now, stored.resumed_at + 1)
            return replace(stored, paused_at=0, paused_by="", note="", resumed_at=resumed_at)

        place, changed = await self._change(caller, request, work, "resumed")
        return await self._describe(place, changed)

    async def rotate(self, caller: AuditedCaller, request: table.WebhookRotate) -> table.WebhookSigned:
        now = self._broker.clock()

        def work(stored: StoredWebhook) -> StoredWebhook:
            said = request.asymmetric
            asymmetric = is_key(stored.secrets[0].secret) if said is UNSET else said
            secret = request.secret or _new_secret(asymmetric=asymmetric)
            return replace(stored, secrets=core.rotate(stored.secrets, secret, now, request.overlap))

        place, changed = await self._change(caller, request, work, "rotated")
        return await self._tell(place, changed, changed.secrets[0].secret)

    async def _tell(self, place: DocumentPlace, stored: StoredWebhook, secret: str) -> table.WebhookSigned:
        """A webhook with what its receiver verifies by. A private key is told to nobody."""
        row = await self._describe(place, stored)
        return table.WebhookSigned(
            **msgspec.structs.asdict(row),
            secret="" if is_key(secret) else secret,
            public_key=public_key(secret),
        )

    async def replay(self, caller: AuditedCaller, request: table.WebhookReplay) -> table.WebhookReplayed:
        by_offset = request.first is not None
        if (
            by_offset == (request.begin is not None)
            or (request.until if by_offset else request.end) is not None
        ):
            raise BadRequest(
                "a replay has a first offset, or a moment to begin with",
                hint="give first (--first), or begin (--from)",
            )
        place = _place(request.topic, request.name)
        _, stored = await self._read(place)
        _check_may_change(caller, stored)
        group = self._group(stored)
        topic = self._broker.topic(stored.reads)
        if by_offset:
            first, end = request.first or 0, topic.log.end if request.end is None else request.end
        else:
            first = await self._broker.position(topic, request.begin)
            end = topic.log.end
            if request.until is not None:
                end = await self._broker.position(topic, request.until)
        if first < topic.log.first:
            raise OffsetGone(f"offset {first} of {topic.name} is gone, the oldest is {topic.log.first}")
        messages = group.replay(first, end) if first < end else 0
        after = {"first": first, "end": end, "messages": messages}
        group.owe_entry(partial(caller.enter, name=_path(place), after=after))
        await save_group(group)
        self._broker.observe("webhook", _path(place), "replayed", caller.subject, after=after)
        return table.WebhookReplayed(messages=messages)

    async def delete(self, caller: AuditedCaller, request: table.OfWebhook) -> table.Deleted:
        place = _place(request.topic, request.name)
        for _ in range(TRIES):
            version: str | None = None
            stored: StoredWebhook | None = None
            try:
                version, stored = await self._read(place)
            except StoreCorrupt:
                caller.scopes.demand_rank("operate", "delete a damaged webhook")
            else:
                _check_may_change(caller, stored)
            edits = [Edit(place, None, version)]
            try:
                has_state = await self._documents.read(_state_place(place)) is not None
            except StoreCorrupt:
                has_state = True  # it goes all the same
            if has_state:
                edits.append(Edit(_state_place(place), None, None))
            try:
                await self._commit(caller, place, edits, "deleted", stored)
                break
            except DocumentChanged:
                continue
        else:
            raise _busy(place)
        # The documents first: without them nobody reads the group, and so nobody makes it anew.
        try:
            group = self._broker.group(
                place.topic if stored is None else stored.reads, core.group_name(place.key)
            )
            name = f"{group.topic.name}/{group.name}"
            enter = partial(caller.enter, name=name, before=group.spec, what="group")
            await self._broker.delete_group(group, caller.subject, enter)
        except (UnknownGroup, UnknownTopic):
            pass
        return table.Deleted(deleted=_path(place))

    # -- testing -----------------------------------------------------------------------------------

    async def test(self, caller: AuditedCaller, request: table.WebhookTry) -> table.WebhookTested:
        if not 0 <= request.within <= LONGEST_TEST:
            raise BadRequest(f"within is 0 to {LONGEST_TEST:.0f} seconds, not {request.within:g}")
        now = self._broker.clock()
        id = f"test-{os.urandom(12).hex()}"

        def work(stored: StoredWebhook) -> StoredWebhook:
            at = max(now, stored.tests[-1].at + 1) if stored.tests else now
            return replace(stored, tests=(*stored.tests, WebhookProbe(id, at))[-core.MOST_TESTS :])

        place, _ = await self._change(caller, request, work, "tested")
        loop = asyncio.get_running_loop()
        end, after = loop.time() + request.within, ""
        while True:
            _, after, _ = await self._documents.wait(
                core.STATES, place.topic, after, max(0.0, end - loop.time())
            )
            state = await self._read_state(place)
            for attempt in state.recent:
                if attempt.id == id:
                    return table.WebhookTested(id=id, attempt=attempt)
            if loop.time() >= end:
                return table.WebhookTested(id=id, attempt=None)

    # -- showing -----------------------------------------------------------------------------------

    async def list_page(self, caller: TokenBearer, request: table.WebhookList) -> table.WebhookRows:
        if request.topic is not None:
            one, more = await self._documents.find(core.COLLECTION, request.topic, "", request.after, PAGE)
            found = [(DocumentPlace(core.COLLECTION, request.topic, key), each) for key, each in one]
            after = found[-1][0].key if more else ""
        else:
            found, more = await self._documents.find_anywhere(core.COLLECTION, request.after, PAGE)
            after = f"{found[-1][0].topic}/{found[-1][0].key}" if more else ""
        rows = []
        for place, document in found:
            if may_see(self._broker.topics, caller, place.topic):
                row = await self._describe(place, _decode(place, document.value))
                if caller.subject != row.owner and not caller.scopes.has("observe"):
                    row = replace(row, url=_without_path(row.url))
                rows.append(row)
        return table.WebhookRows(webhooks=rows, next=after)

    async def show(self, caller: TokenBearer, request: table.OfWebhook) -> table.WebhookDetails:
        place = _place(request.topic, request.name)
        _, stored = await self._read(place)
        if caller.subject != stored.owner:  # the start of an answer is nothing for every reader of the topic
            caller.scopes.demand_rank("observe", f"see the webhook of {stored.owner}")
        state, now = await self._read_state(place), self._broker.clock()
        blocked = state.blocked_until if core.circuit(state, now) == "open" else None
        return table.WebhookDetails(
            **msgspec.structs.asdict(await self._describe(place, stored)),
            options=stored.spec,
            group=core.group_name(place.key),
            created_at=stored.created_at,
            secrets=[
                each.expires_at or None
                for each in stored.secrets
                if not each.expires_at or each.expires_at > now
            ],
            public_keys=list(filter(None, map(public_key, core.valid_secrets(stored.secrets, now)))),
            failing_since=state.failing_since or None,
            blocked_until=blocked,
            disabled_why=state.disabled_why if core.is_disabled(stored, state) else "",
            trouble=self._trouble(stored, state),
            paused_at=stored.paused_at or None,
            paused_by=stored.paused_by,
            note=stored.note,
            attempts=list(reversed(state.recent)),
        )

    async def _describe(self, place: DocumentPlace, stored: StoredWebhook) -> table.WebhookRow:
        state = core.take_up(stored, await self._read_state(place))
        try:
            group = self._group(stored)
            lag = group.catch_up().cursor.lag(group.topic.log.end)
        except (UnknownGroup, UnknownTopic):
            lag = None
        is_disabled = core.is_disabled(stored, state)
        return table.WebhookRow(
            topic=place.topic,
            name=place.key,
            url=stored.spec.url,
            rule=stored.rule,
            owner=stored.owner,
            state="paused" if stored.paused_at else "disabled" if is_disabled else "active",
            circuit=core.circuit(state, self._broker.clock()),
            lag=lag,
            delivered=state.delivered,
            failed=state.failed,
            buried=state.buried,
            last_success_at=state.last_success_at or None,
        )

    def _trouble(self, stored: StoredWebhook, state: WebhookState) -> str:
        """Why nothing is read at the moment: by the sender's word, where it is not plain from here."""
        rule = self._broker.topics.get(stored.rule)
        if stored.rule and (rule is None or rule.deleted):
            return f"its rule {stored.rule} was deleted: create the webhook again, with the same options"
        return state.trouble

    # -- documents and the group -------------------------------------------------------------------

    def _group(self, stored: StoredWebhook) -> Group:
        return self._broker.group(stored.reads, core.group_name(stored.spec.name))

    def _has_group(self, stored: StoredWebhook) -> bool:
        """Whether it is there: somebody may have deleted it, or the rule with its topic."""
        try:
            self._group(stored)
        except (UnknownGroup, UnknownTopic):
            return False
        return True

    async def _read(self, place: DocumentPlace) -> tuple[str, StoredWebhook]:
        """(version, webhook)"""
        found = await self._documents.read(place)
        if found is None:
            raise UnknownWebhook(f"the topic {place.topic} has no webhook {place.key}")
        return found.version, _decode(place, found.value)

    async def _read_state(self, place: DocumentPlace) -> WebhookState:
        found = await self._documents.read(_state_place(place))
        try:
            return (
                WebhookState()
                if found is None
                else read_options(decode_value(found.value), WebhookState, "webhook")
            )
        except BadRequest as error:
            raise _damaged(place, error) from None

    async def _commit(
        self,
        caller: AuditedCaller,
        place: DocumentPlace,
        edits: list[Edit],
        change: str,
        before: StoredWebhook | None = None,
        after: StoredWebhook | None = None,
    ) -> None:
        writer = self._broker.writers[self._documents.unit_of(place.topic)]

        def work(commit: BrokerCommit) -> None:
            self._documents.write(commit, edits, caller.subject)
            caller.enter(commit, _path(place), _told(before), _told(after))

        await writer.put(work)
        self._broker.observe("webhook", _path(place), change, caller.subject)

    async def _change(
        self,
        caller: AuditedCaller,
        request: table.OfWebhook | table.WebhookUpdate,
        work: Callable[[StoredWebhook], StoredWebhook],
        change: str = "updated",
    ) -> tuple[DocumentPlace, StoredWebhook]:
        """Write what ``work`` makes of the webhook."""
        place = _place(request.topic, request.name)
        for _ in range(TRIES):
            version, stored = await self._read(place)
            _check_may_change(caller, stored)
            changed = work(stored)
            try:
                edits = [_edit(place, changed, version)]
                await self._commit(caller, place, edits, change, stored, changed)
            except DocumentChanged:
                continue
            return place, changed
        raise _busy(place)


def _told(stored: StoredWebhook | None) -> dict[str, Any] | None:
    """What the audit log has of a webhook; its secrets are hidden there."""
    if stored is None:
        return None
    told: dict[str, Any] = msgspec.to_builtins(stored)
    spec = told.pop("spec")
    # For many receivers the path is the secret: its digest shows whether it has changed.
    digest = hashlib.sha256(stored.spec.url.encode()).hexdigest()[:8]
    return {**spec, "url": f"{_without_path(stored.spec.url)} ({digest})", **told}


def _new_secret(*, asymmetric: bool) -> str:
    return write_secret(os.urandom(KEY_SIZE), PRIVATE) if asymmetric else write_secret(os.urandom(LEAST + 8))


def _without_path(url: str) -> str:
    """Whom a webhook sends to. For many receivers, the path is the secret."""
    target = read_url(url)
    return f"{target.scheme}://{target.authority}/…"


def _place(topic: str, name: str) -> DocumentPlace:
    return check_place(core.COLLECTION, topic, name)


def _state_place(place: DocumentPlace) -> DocumentPlace:
    return place._replace(collection=core.STATES)


def _path(place: DocumentPlace) -> str:
    return f"{place.topic}/{place.key}"


def _edit(place: DocumentPlace, value: StoredWebhook | WebhookState, expect: str) -> Edit:
    return Edit(place, encode_value(msgspec.to_builtins(value)), expect)


def _busy(place: DocumentPlace) -> DocumentChanged:
    return DocumentChanged(f"the webhook {place.key} is written by others all the time")


def _check_may_change(caller: TokenBearer, stored: StoredWebhook) -> None:
    if caller.subject != stored.owner and not caller.scopes.has("operate"):
        raise Forbidden(
            f"the webhook {stored.spec.name} of {stored.spec.topic} is {stored.owner}'s",
            hint="its owner or an operator can change it",
        )


def _decode(place: DocumentPlace, value: bytes) -> StoredWebhook:
    try:
        return read_options(decode_value(value), StoredWebhook, "webhook")
    except BadRequest as error:
        raise _damaged(place, error) from None


def _damaged(place: DocumentPlace, error: BadRequest) -> StoreCorrupt:
    return StoreCorrupt(
        f"what is stored of the webhook {place.key} of {place.topic} can't be read: {error}",
        hint="delete the webhook and create it again",
    )
