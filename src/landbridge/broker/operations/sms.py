"""Operations on SMS outlets (``landbridge.broker.operations.outlets``)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.documents import DocumentPlace
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.broker.operations.outlets import OutletOperations
from landbridge.core.outlet.outlet import OutletState
from landbridge.core.sms import outgoing as core
from landbridge.core.sms.outgoing import StoredSms
from landbridge.core.sms.spec import SmsSpec
from landbridge.errors import BadRequest, OutletExists, Unavailable, UnknownOutlet
from landbridge.protocol import operations as table


class SmsOperations(OutletOperations[StoredSms]):
    """The handlers of sms.*"""

    noun = "sms"
    collection, states = core.COLLECTION, core.STATES
    limit = "max_sms"
    kind = StoredSms
    unknown, exists = UnknownOutlet, OutletExists

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.SMS_CREATE, self.create)
        dispatcher.register(table.SMS_UPDATE, self.update)
        dispatcher.register(table.SMS_LIST, self.list_page)
        dispatcher.register(table.SMS_SHOW, self.show)
        dispatcher.register(table.SMS_TEST, self.test)
        dispatcher.register(table.SMS_PAUSE, self.pause)
        dispatcher.register(table.SMS_RESUME, self.resume)
        dispatcher.register(table.SMS_REPLAY, self.replay)
        dispatcher.register(table.SMS_DELETE, self.delete)
        dispatcher.register(table.SMS_CALL, self.call)

    def group_name(self, name: str) -> str:
        """The group that one reads."""
        return core.group_name(name)

    async def create(self, caller: AuditedCaller, request: table.SmsCreate) -> table.SmsRow:
        options: dict[str, Any] = msgspec.to_builtins(request)
        spec = core.sms_spec({key: options[key] for key in options if key not in ("secret", "start")})
        core.check_secret(request.secret)
        self._check_may_publish(caller, spec)

        def new(now: int) -> StoredSms:
            return StoredSms(spec=spec, owner=caller.subject, created_at=now, secret=request.secret)

        place, stored, _ = await self.make(caller, spec, request.start, new)
        return await self._describe(place, stored)

    async def update(self, caller: AuditedCaller, request: table.SmsUpdate) -> table.SmsRow:
        options: dict[str, Any] = msgspec.to_builtins(request)
        secret = options.pop("secret", None)
        if secret is not None:
            core.check_secret(secret)

        def work(stored: StoredSms) -> StoredSms:
            before = stored.spec
            spec = core.sms_spec({**msgspec.to_builtins(before), **options})
            self._check_may_publish(caller, spec)
            is_same = (spec.account, spec.profile.url) == (before.account, before.profile.url)
            if secret is None and not is_same:
                # The secret is for the account and the URL that it was given for, whoever changes them.
                raise BadRequest("another account or URL needs its secret", hint="give it, too")
            return replace(stored, spec=spec, owner=caller.subject, secret=secret or stored.secret)

        place, changed = await self.change(caller, request.topic, request.name, work)
        await self.follow(caller, place, changed)
        return await self._describe(place, changed)

    def _check_may_publish(self, caller: TokenBearer, spec: SmsSpec) -> None:
        """What comes back is published in the owner's name."""
        for topic in (spec.receipts, spec.incoming):
            if topic is not None:
                caller.scopes.demand("publish", topic)

    async def pause(self, caller: AuditedCaller, request: table.OutletPause) -> table.SmsRow:
        return await self._describe(*await self.pause_one(caller, request))

    async def resume(self, caller: AuditedCaller, request: table.OfOutlet) -> table.SmsRow:
        return await self._describe(*await self.resume_one(caller, request))

    async def list_page(self, caller: TokenBearer, request: table.OutletList) -> table.SmsRows:
        found, after = await self.page(caller, request)
        return table.SmsRows(sms=[await self._describe(*each) for each in found], next=after)

    async def show(self, caller: TokenBearer, request: table.OfOutlet) -> table.SmsDetails:
        stored, state, facts = await self.details(caller, self.place(request.topic, request.name))
        spec = stored.spec
        return table.SmsDetails(
            **facts,
            **self._costs(stored, state),
            options=spec,
            receipts_url=core.callback_url(spec, "receipts") if spec.receipts else "",
            incoming_url=core.callback_url(spec, "incoming") if spec.incoming else "",
        )

    async def call(self, caller: TokenBearer, request: table.SmsCall) -> None:
        """The sender takes this, where one runs."""
        raise Unavailable("no sender of SMS runs beside this terminal")

    async def _describe(self, place: DocumentPlace, stored: StoredSms) -> table.SmsRow:
        costs = self._costs(stored, await self.read_state(place))
        return table.SmsRow(**await self.facts(place, stored), **costs)

    def _costs(self, stored: StoredSms, state: OutletState) -> dict[str, Any]:
        today, this_month = core.spent(state, self._broker.clock())
        return {"account": stored.spec.account, "today": today, "this_month": this_month}

    def told(self, stored: StoredSms) -> dict[str, Any]:
        """What the audit log has of one; its secret is hidden there."""
        told: dict[str, Any] = msgspec.to_builtins(stored)
        return {**told.pop("spec"), **told}
