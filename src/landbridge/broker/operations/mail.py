"""Operations on mail outlets (``landbridge.broker.operations.outlets``)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.documents import DocumentPlace
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.broker.operations.groups import save_group
from landbridge.broker.operations.outlets import ACK_WITHIN, OutletOperations
from landbridge.core.mail import outgoing as core
from landbridge.core.mail.outgoing import BouncedMail, StoredMail
from landbridge.core.mail.spec import MailSpec
from landbridge.core.templates import one_line
from landbridge.errors import BadRequest, LimitReached, OutletExists, UnknownOutlet
from landbridge.protocol import operations as table


class MailOperations(OutletOperations[StoredMail]):
    """The handlers of mail.*"""

    noun = "mail"
    collection, states = core.COLLECTION, core.STATES
    limit = "max_mails"
    kind = StoredMail
    unknown, exists = UnknownOutlet, OutletExists
    #: Held while a mail that came back is written down and its messages are handed out again: in between,
    #: they are settled, and would be taken as done with.
    _bouncing: asyncio.Lock

    def register(self, dispatcher: Dispatcher) -> None:
        self._bouncing = asyncio.Lock()
        dispatcher.register(table.MAIL_CREATE, self.create)
        dispatcher.register(table.MAIL_UPDATE, self.update)
        dispatcher.register(table.MAIL_LIST, self.list_page)
        dispatcher.register(table.MAIL_SHOW, self.show)
        dispatcher.register(table.MAIL_TEST, self.test)
        dispatcher.register(table.MAIL_PAUSE, self.pause)
        dispatcher.register(table.MAIL_RESUME, self.resume)
        dispatcher.register(table.MAIL_REPLAY, self.replay)
        dispatcher.register(table.MAIL_BOUNCE, self.bounce)
        dispatcher.register(table.MAIL_DELETE, self.delete)

    def group_name(self, name: str) -> str:
        """The group that one reads."""
        return core.group_name(name)

    def ack_within(self, spec: MailSpec) -> float:
        """The messages of a digest are leased while it waits."""
        return ACK_WITHIN + (0.0 if spec.digest is None else spec.digest.every)

    async def create(self, caller: AuditedCaller, request: table.MailCreate) -> table.MailRow:
        self.check_lacks_nothing()
        options, password = _options(request, ("start",))
        spec = core.mail_spec(options)
        _check_pair(spec, password)

        def new(now: int) -> StoredMail:
            return StoredMail(
                spec=spec,
                owner=caller.subject,
                created_at=now,
                id=os.urandom(8).hex(),
                secret=os.urandom(32).hex(),
                password=password,
            )

        place, stored, _ = await self.make(caller, spec, request.start, new)
        return await self._describe(place, stored)

    async def update(self, caller: AuditedCaller, request: table.MailUpdate) -> table.MailRow:
        options, password = _options(request, ())

        def work(stored: StoredMail) -> StoredMail:
            before = msgspec.to_builtins(stored.spec)
            if options.get("digest", UNSET) is None and "ordered" not in options:
                before["ordered"] = False  # the digest wanted it
            spec = core.mail_spec({**before, **options})
            # The password is for the server and the user that it was given for, whoever changes them.
            is_same = (spec.server, spec.user) == (stored.spec.server, stored.spec.user)
            kept = password if request.password is not UNSET else stored.password if is_same else ""
            _check_pair(spec, kept)
            return replace(stored, spec=spec, owner=caller.subject, password=kept)

        place, changed = await self.change(caller, request.topic, request.name, work)
        await self.follow(caller, place, changed)
        return await self._describe(place, changed)

    async def pause(self, caller: AuditedCaller, request: table.OutletPause) -> table.MailRow:
        return await self._describe(*await self.pause_one(caller, request))

    async def resume(self, caller: AuditedCaller, request: table.OfOutlet) -> table.MailRow:
        return await self._describe(*await self.resume_one(caller, request))

    async def list_page(self, caller: TokenBearer, request: table.OutletList) -> table.MailRows:
        found, after = await self.page(caller, request)
        return table.MailRows(mails=[await self._describe(*each) for each in found], next=after)

    async def show(self, caller: TokenBearer, request: table.OfOutlet) -> table.MailDetails:
        stored, _, facts = await self.details(caller, self.place(request.topic, request.name))
        return table.MailDetails(**facts, server=stored.spec.server, options=stored.spec)

    async def replay(self, caller: AuditedCaller, request: table.OutletReplay) -> table.OutletReplayed:
        """Whoever mails messages again wants them sent, also those that came back."""
        place = self.place(request.topic, request.name)
        _, stored = await self.read(place)
        async with self._bouncing:
            if stored.bounced:
                await self.change(
                    caller, place.topic, place.key, lambda stored: replace(stored, bounced=()), "replayed"
                )
            return await super().replay(caller, request)

    async def bounce(self, caller: AuditedCaller, request: table.MailBounce) -> table.MailBounced:
        """Its messages are handed out again, and the sender gives them up."""
        place = self.place(request.topic, request.name)
        cause = one_line(request.cause, 250) or "it could not be delivered"
        bounced = BouncedMail(request.first, request.end, cause)
        if not 0 <= request.first < request.end or request.end - request.first > core.MOST_TOGETHER:
            raise BadRequest(f"offsets {request.first} to {request.end} are no mail's")
        async with self._bouncing:
            _, stored = await self.read(place)
            known = [
                each for each in stored.bounced if (each.first, each.end) == (bounced.first, bounced.end)
            ]
            if any(each.taken for each in known):
                caller.change_nothing()
                return table.MailBounced(messages=0)
            await self._note(caller, place, known, bounced)
            group, topic = self.group(stored), self._broker.table.topic(stored.reads)
            first, end = max(request.first, topic.log.first), min(request.end, topic.log.end)
            messages = group.replay(first, end) if first < end else 0
            await save_group(group)
            await self._note(caller, place, [bounced], replace(bounced, taken=True))
        return table.MailBounced(messages=messages)

    async def _note(
        self, caller: AuditedCaller, place: DocumentPlace, before: list[BouncedMail], after: BouncedMail
    ) -> None:
        """Write a mail that came back down, in the place of what was known of it."""

        def work(stored: StoredMail) -> StoredMail:
            others = [each for each in stored.bounced if each not in before]
            while len(others) >= core.MOST_BOUNCED:
                oldest = next((each for each in others if each.taken), None)
                if oldest is None:
                    raise LimitReached(f"{len(others)} mails that came back wait to be given up")
                others.remove(oldest)
            return replace(stored, bounced=(*others, after))

        await self.change(caller, place.topic, place.key, work, "bounced")

    async def _describe(self, place: DocumentPlace, stored: StoredMail) -> table.MailRow:
        return table.MailRow(**await self.facts(place, stored), server=stored.spec.server)

    def told(self, stored: StoredMail) -> dict[str, Any]:
        """What the audit log has of one; its secrets are hidden there."""
        told: dict[str, Any] = msgspec.to_builtins(stored)
        return {**told.pop("spec"), **told}


def _options(
    request: table.MailCreate | table.MailUpdate, others: tuple[str, ...]
) -> tuple[dict[str, Any], str]:
    """The options that were given, and the password."""
    options: dict[str, Any] = msgspec.to_builtins(request)
    password = options.pop("password", "")
    core.check_password(password)
    return {key: options[key] for key in options if key not in others}, password


def _check_pair(spec: MailSpec, password: str) -> None:
    if bool(spec.user) != bool(password):
        raise BadRequest("a user and a password belong together", hint="give both, or neither")
