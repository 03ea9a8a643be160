"""Tickets: ``core.trust.tickets`` decides, this module looks up the facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from landbridge.client import registry_documents as api
from landbridge.core import replies
from landbridge.core.trust import tickets
from landbridge.core.trust.tickets import Issue, Release, Renewal, Requester, Ticket
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller
from landbridge.registry.change import Change
from landbridge.registry.entities import TopicRecord
from landbridge.registry.limits import microseconds
from landbridge.registry.state import RegistryState
from landbridge.registry.topics import GREATEST_AGE, CrossingTopics

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


class TicketOffice:
    """Operations on tickets, by terminals."""

    def __init__(self, state: RegistryState, topics: CrossingTopics) -> None:
        self._state = state
        self._topics = topics

    async def issue(self, caller: Caller, request: api.IssueTicket) -> Issue:
        """Issue a ticket to send with. Keys that are past their time are replaced first."""
        if request.topic == replies.TOPIC:
            await self._topics.make_replies(caller.own_account)
        await self._topics.replace_old_key(caller.own_account, request.topic)
        await self._replace_old_ticket_key()

        def work(change: Change) -> Issue:
            account = change.account
            topic = account.topic(request.topic)
            issued = tickets.issue(
                change.now,
                self._state.keyring.mint,
                requester=_requester(account, caller, topic),
                topic=topic.name,
                key=topic.keys[0],
                max_age=topic.max_age,
                may_send=topic.producers is None or caller.terminal in topic.producers,
            )
            change.detail = issued.seal_id.hex()
            return issued

        return await self._state.serve(caller, "issueTicket", request.topic, work)

    def redeem(self, change: Change, request: api.RedeemTicket) -> Release:
        """Release the content key of a shipment, wrapped for the terminal that asks."""
        account = change.account
        topic = account.topic(request.topic)
        ticket = self._state.keyring.mint.parse(request.ticket)
        change.detail = ticket.seal_id.hex()
        return tickets.redeem(
            change.now,
            ticket,
            request.box,
            requester=_requester(account, change.caller, topic),
            topic=topic.name,
            sender_keys=account.keys_of(ticket.sender),
            private=self._private(account, topic, ticket),
        )

    def renew(self, change: Change, request: api.RenewTicket) -> Renewal:
        """Renew a ticket for another five minutes."""
        account = change.account
        ticket = self._state.keyring.mint.parse(request.ticket)
        # Another customer's ticket is refused by ``tickets.renew``; nothing of it is looked up or noted.
        is_own = ticket.customer == account.id
        topic = account.topic(ticket.topic) if is_own else None
        if is_own:
            change.subject, change.detail = ticket.topic, ticket.seal_id.hex()
        return tickets.renew(
            change.now,
            self._state.keyring.mint,
            ticket,
            requester=_requester(account, change.caller, topic),
            sender_keys=account.keys_of(ticket.sender),
            late_open=topic.late_open if topic is not None else "never",
        )

    # -- inside ------------------------------------------------------------------------------------

    async def _replace_old_ticket_key(self) -> None:
        life = microseconds(self._state.limits.key_life)

        def is_old(now: int) -> bool:
            return now >= self._state.keyring.kept.ticket_keys[0].made_at + life

        if not is_old(self._state.clock()):
            return

        def work(change: Change) -> None:
            if is_old(change.now):  # another request may have replaced it meanwhile
                readable = microseconds(GREATEST_AGE + self._state.limits.ticket_life)
                kept = self._state.keyring.with_new_ticket_key(change.now, readable)
                self._state.put_keyring(change, kept)

        await self._state.change(Caller("registry"), "rotateTicketKey", "", work)

    def _private(self, account: Account, topic: TopicRecord, ticket: Ticket) -> X25519PrivateKey | None:
        for key in topic.keys:
            if key.kv == ticket.kv:
                vault = self._state.keyring.vault
                return vault.topic_private(account.id, account.customer.sealing_key, topic.name, key)
        return None


def _requester(account: Account, caller: Caller, topic: TopicRecord | None) -> Requester:
    assert caller.keys is not None
    terminal = account.terminals.get(caller.terminal)
    return Requester(
        customer=account.id,
        terminal=caller.terminal,
        keys=caller.keys,
        # Any terminal of the customer may have asked for a reply.
        member=topic is not None
        and (topic.name == replies.TOPIC or account.is_receiver(caller.terminal, topic)),
        # Checked again: the terminal may have been revoked since its proof was checked.
        revoked=terminal is None or bool(terminal.revoked_at),
    )
