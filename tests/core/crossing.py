"""A customer with three terminals and one topic, and the decisions about them, without a registry."""

from __future__ import annotations

from typing import Any

import msgspec

from landbridge.core.trust import tickets
from landbridge.core.trust.directory import PublicKeys
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.core.trust.seal import Header, Opener, Sealer, look
from landbridge.core.trust.tickets import Issue, Mint, Release, Renewal, Requester, Ticket, Vault

SECOND = 1_000_000
DAY = 86_400 * SECOND
NOW = 1_790_000_000 * SECOND


class Crossing:
    """``oslo`` sends to ``lima``; ``rome`` passes on, or does worse."""

    def __init__(self, customer: str = "cus_a", topic: str = "orders", life: float = 300.0) -> None:
        self.customer = customer
        self.topic = topic
        self.vault = Vault(b"m" * 32)
        self.customer_key = self.vault.new_customer_key(customer, NOW)
        self.key = self.vault.new_topic_key(customer, self.customer_key, topic, 1, NOW)
        self.mint = Mint(b"t" * 32, life=life)
        self.oslo = Identity(customer, "ter_oslo", SecureKey.new())
        self.rome = Identity(customer, "ter_rome", SecureKey.new())
        self.lima = Identity(customer, "ter_lima", SecureKey.new())
        #: In a group of the topic.
        self.members = {"ter_lima"}
        self.revoked: set[str] = set()
        self.late_open: tickets.LateOpen = "renew"

    def requester(self, identity: Identity, **changes: Any) -> Requester:
        facts = Requester(
            customer=identity.customer,
            terminal=identity.terminal,
            keys=identity.public,
            member=identity.terminal in self.members,
            revoked=identity.terminal in self.revoked,
        )
        return msgspec.structs.replace(facts, **changes)

    def sender_keys(self, ticket: Ticket) -> list[PublicKeys]:
        known = (self.oslo, self.rome, self.lima) if ticket.sender not in self.revoked else ()
        return [identity.public for identity in known if identity.terminal == ticket.sender]

    def issue(self, identity: Identity | None = None, now: int = NOW, max_age: float = 7 * 86_400.0) -> Issue:
        return tickets.issue(
            now,
            self.mint,
            requester=self.requester(identity or self.oslo),
            topic=self.topic,
            key=self.key,
            max_age=max_age,
            may_send=True,
        )

    def redeem(
        self, ticket: bytes, box: bytes, by: Identity | None = None, now: int = NOW, topic: str | None = None
    ) -> Release:
        parsed = self.mint.parse(ticket)
        return tickets.redeem(
            now,
            parsed,
            box,
            requester=self.requester(by or self.lima),
            topic=topic or self.topic,
            sender_keys=self.sender_keys(parsed),
            private=self.vault.topic_private(self.customer, self.customer_key, self.topic, self.key),
        )

    def renew(self, ticket: bytes, by: Identity, now: int = NOW) -> Renewal:
        parsed = self.mint.parse(ticket)
        return tickets.renew(
            now,
            self.mint,
            parsed,
            requester=self.requester(by),
            sender_keys=self.sender_keys(parsed),
            late_open=self.late_open,
        )

    def sealer(self, now: int = NOW) -> Sealer:
        return Sealer(self.oslo, self.issue(now=now), now)

    def seal(self, sealer: Sealer, plaintext: bytes = b"a batch", sequence: int = 1, now: int = NOW) -> bytes:
        return sealer.seal(
            "ter_lima",
            [self.lima.public],
            now=now,
            epoch=1,
            sequence=sequence,
            meta=b"meta",
            plaintext=plaintext,
            messages=1,
        )

    def look(self, frame: bytes, now: int = NOW) -> Header:
        return look(self.lima, [self.oslo.public], "ter_oslo", frame, now)

    def opener(self, header: Header, now: int = NOW) -> Opener:
        """Lima, once it has redeemed the header's ticket."""
        opener = Opener(self.lima)
        opener.learn(header, self.redeem(header.ticket, header.box, now=now), now)
        return opener
