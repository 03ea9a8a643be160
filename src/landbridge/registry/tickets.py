"""Tickets: core.tickets decides, the facts are looked up here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from landbridge.client import registry_documents as api
from landbridge.core.trust import tickets
from landbridge.core.trust.tickets import Issue, Release, Renewal, Requester, Sender, Ticket
from landbridge.registry.account import Account, Change
from landbridge.registry.caller import Caller
from landbridge.registry.entities import Topic
from landbridge.registry.topics import GREATEST_AGE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from landbridge.registry.registry import Registry

_SECOND = 1_000_000


class Tickets:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def issue(self, caller: Caller, request: api.IssueTicket) -> Issue:
        assert caller.account is not None
        await self._registry.topics.keep_key_young(caller.account, request.topic)
        await self._keep_mint_young()

        def work(change: Change) -> Issue:
            account = change.account
            topic = account.topic(request.topic)
            issued = tickets.issue(
                change.now,
                self._registry.keyring.mint,
                requester=_requester(account, caller, topic),
                topic=topic.name,
                key=topic.keys[0],
                max_age=topic.max_age,
                may_send=account.sends(caller.terminal, topic),
            )
            change.detail = issued.seal_id.hex()
            return issued

        return await self._registry.serve(caller, "issueTicket", request.topic, work)

    async def redeem(self, caller: Caller, request: api.RedeemTicket) -> Release:
        def work(change: Change) -> Release:
            account = change.account
            topic = account.topic(request.topic)
            ticket = self._registry.keyring.mint.parse(request.ticket)
            change.detail = ticket.seal_id.hex()
            return tickets.redeem(
                change.now,
                ticket,
                request.box,
                requester=_requester(account, caller, topic),
                topic=topic.name,
                sender=_sender(account, ticket),
                private=self._private(account, topic, ticket),
            )

        return await self._registry.serve(caller, "redeemTicket", request.topic, work)

    async def renew(self, caller: Caller, request: api.RenewTicket) -> Renewal:
        def work(change: Change) -> Renewal:
            account = change.account
            ticket = self._registry.keyring.mint.parse(request.ticket)
            # Of another customer's ticket nothing is looked up and nothing noted: it is refused by its
            # customer.
            is_own = ticket.customer == account.id
            topic = account.topic(ticket.topic) if is_own else None
            if is_own:
                change.subject, change.detail = ticket.topic, ticket.seal_id.hex()
            return tickets.renew(
                change.now,
                self._registry.keyring.mint,
                ticket,
                requester=_requester(account, caller, topic),
                sender=_sender(account, ticket),
                late_open=topic.late_open if topic is not None else "never",
            )

        return await self._registry.serve(caller, "renewTicket", "", work)

    # -- inside ------------------------------------------------------------------------------------

    async def _keep_mint_young(self) -> None:
        life = round(self._registry.limits.key_life * _SECOND)

        def is_due(now: int) -> bool:
            return now >= self._registry.keyring.kept.ticket_keys[0].made_at + life

        if not is_due(self._registry.clock()):
            return

        def work(change: Change) -> None:
            if is_due(change.now):  # not done meanwhile by another
                readable = round((GREATEST_AGE + self._registry.limits.ticket_life) * _SECOND)
                kept = self._registry.keyring.with_new_ticket_key(change.now, readable)
                self._registry.put_keyring(change, kept)

        await self._registry.change(Caller("registry"), "rotateTicketKey", "", work)

    def _private(self, account: Account, topic: Topic, ticket: Ticket) -> X25519PrivateKey | None:
        for key in topic.keys:
            if key.kv == ticket.kv:
                vault = self._registry.keyring.vault
                return vault.topic_private(account.id, account.customer.sealing_key, topic.name, key)
        return None


def _requester(account: Account, caller: Caller, topic: Topic | None) -> Requester:
    assert caller.keys is not None
    terminal = account.terminals.get(caller.terminal)
    return Requester(
        customer=account.id,
        terminal=caller.terminal,
        keys=caller.keys,
        member=topic is not None and account.receives(caller.terminal, topic),
        # Again, although its proof was good: it may have been revoked since.
        revoked=terminal is None or bool(terminal.revoked_at),
    )


def _sender(account: Account, ticket: Ticket) -> Sender | None:
    terminal = account.terminals.get(ticket.sender)
    return Sender(keys=terminal.keys, revoked=bool(terminal.revoked_at)) if terminal is not None else None
