"""Operations on webhooks: outlets that post to URLs (``landbridge.broker.operations.outlets``)."""

from __future__ import annotations

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
from landbridge.broker.documents import DocumentPlace
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.broker.operations.outlets import OutletOperations
from landbridge.broker.routing import Routing
from landbridge.core.addresses import read_url
from landbridge.core.outlet.outlet import OutletState
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
from landbridge.core.webhook.webhook import StoredWebhook, WebhookSecret
from landbridge.errors import UnknownWebhook, WebhookExists
from landbridge.protocol import operations as table


class WebhookOperations(OutletOperations[StoredWebhook]):
    """The handlers of webhook.*"""

    noun = "webhook"
    collection, states = core.COLLECTION, core.STATES
    limit = "max_webhooks"
    kind = StoredWebhook
    unknown, exists = UnknownWebhook, WebhookExists

    def __init__(self, broker: Broker, routing: Routing) -> None:
        super().__init__(broker)
        self._routing = routing
        #: BadRequest for a URL to which this process sends nothing, whatever its host leads to. Whatever
        #: sends the webhooks sets it.
        self.check_url: Callable[[str], None] = lambda url: None

    async def prepare(self, caller: AuditedCaller, stored: StoredWebhook) -> StoredWebhook:
        """Make the rule of its query, where there is none."""
        spec = stored.spec
        if spec.query is None:
            return stored
        enter = partial(caller.enter, what="rule")
        topic, _ = await self._routing.create(read_query(spec.query), spec.topic, caller, enter)
        return replace(stored, rule=topic.name)

    def trouble(self, stored: StoredWebhook, state: OutletState) -> str:
        """Why nothing is sent at the moment."""
        rule = self._broker.topics.get(stored.rule)
        if stored.rule and (rule is None or rule.deleted):
            return f"its rule {stored.rule} was deleted: create the webhook again, with the same options"
        return super().trouble(stored, state)

    def group_name(self, name: str) -> str:
        """The group that one reads."""
        return core.group_name(name)

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

    async def create(self, caller: AuditedCaller, request: table.WebhookCreate) -> table.WebhookSigned:
        options = msgspec.to_builtins(request)
        options = {key: options[key] for key in options if key not in ("secret", "asymmetric", "start")}
        spec = core.webhook_spec(options)
        self.check_url(spec.url)
        if request.secret:
            read_secret(request.secret)
        secret = request.secret or _new_secret(asymmetric=request.asymmetric)

        def new(now: int) -> StoredWebhook:
            secrets = (WebhookSecret(secret, now),)
            return StoredWebhook(spec=spec, owner=caller.subject, created_at=now, secrets=secrets)

        place, stored, is_new = await self.make(caller, spec, request.start, new)
        return await self._tell(place, stored, secret if is_new else "")

    async def update(self, caller: AuditedCaller, request: table.WebhookUpdate) -> table.WebhookRow:
        if request.url is not UNSET:
            self.check_url(request.url)

        def work(stored: StoredWebhook) -> StoredWebhook:
            spec = core.webhook_spec({**msgspec.to_builtins(stored.spec), **msgspec.to_builtins(request)})
            return replace(stored, spec=spec, owner=caller.subject)

        place, changed = await self.change(caller, request.topic, request.name, work)
        await self.follow(caller, place, changed)
        return await self._describe(place, changed)

    async def pause(self, caller: AuditedCaller, request: table.OutletPause) -> table.WebhookRow:
        return await self._describe(*await self.pause_one(caller, request))

    async def resume(self, caller: AuditedCaller, request: table.OfOutlet) -> table.WebhookRow:
        return await self._describe(*await self.resume_one(caller, request))

    async def rotate(self, caller: AuditedCaller, request: table.WebhookRotate) -> table.WebhookSigned:
        now = self._broker.clock()

        def work(stored: StoredWebhook) -> StoredWebhook:
            said = request.asymmetric
            asymmetric = is_key(stored.secrets[0].secret) if said is UNSET else said
            secret = request.secret or _new_secret(asymmetric=asymmetric)
            return replace(stored, secrets=core.rotate(stored.secrets, secret, now, request.overlap))

        place, changed = await self.change(caller, request.topic, request.name, work, "rotated")
        return await self._tell(place, changed, changed.secrets[0].secret)

    async def _tell(self, place: DocumentPlace, stored: StoredWebhook, secret: str) -> table.WebhookSigned:
        """A webhook with what its receiver verifies by. A private key is told to nobody."""
        row = await self._describe(place, stored)
        return table.WebhookSigned(
            **msgspec.structs.asdict(row),
            secret="" if is_key(secret) else secret,
            public_key=public_key(secret),
        )

    async def list_page(self, caller: TokenBearer, request: table.OutletList) -> table.WebhookRows:
        rows = []
        found, after = await self.page(caller, request)
        for place, stored in found:
            row = await self._describe(place, stored)
            if caller.subject != row.owner and not caller.scopes.has("observe"):
                row = replace(row, url=_without_path(row.url))
            rows.append(row)
        return table.WebhookRows(webhooks=rows, next=after)

    async def show(self, caller: TokenBearer, request: table.OfOutlet) -> table.WebhookDetails:
        stored, _, facts = await self.details(caller, self.place(request.topic, request.name))
        now = self._broker.clock()
        return table.WebhookDetails(
            **facts,
            url=stored.spec.url,
            rule=stored.rule,
            options=stored.spec,
            secrets=[
                each.expires_at or None
                for each in stored.secrets
                if not each.expires_at or each.expires_at > now
            ],
            public_keys=list(filter(None, map(public_key, core.valid_secrets(stored.secrets, now)))),
        )

    async def _describe(self, place: DocumentPlace, stored: StoredWebhook) -> table.WebhookRow:
        return table.WebhookRow(**await self.facts(place, stored), url=stored.spec.url, rule=stored.rule)

    def told(self, stored: StoredWebhook) -> dict[str, Any]:
        """What the audit log has of one; its secrets are hidden there."""
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
