"""The office: a registry of one customer for simulations. The decisions are those of core.tickets and
core.directory; who exists is kept in dicts, and it can be away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from landbridge.broker.clock import Clock
from landbridge.client.registry_documents import NewDirectory
from landbridge.core.routing.linkstate import SignedLinkState
from landbridge.core.trust import directory as directories
from landbridge.core.trust import tickets
from landbridge.core.trust.directory import (
    Directory,
    GroupEntry,
    PublicKeys,
    SignedDirectory,
    TerminalEntry,
    TopicEntry,
)
from landbridge.core.trust.identity import Identity
from landbridge.core.trust.tickets import (
    Issue,
    Mint,
    Release,
    Renewal,
    Requester,
    Ticket,
    TopicKey,
    Vault,
)
from landbridge.errors import RegistryUnreachable, Unauthenticated

CUSTOMER = "cus_simulated"


class Office:
    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self.clock = clock
        self.chance = chance
        self.up = True
        self.terminals: dict[str, TerminalEntry] = {}
        self.groups: dict[str, list[str]] = {}
        self.topics: dict[str, TopicEntry] = {}
        self.revoked: list[str] = []
        self.version = 1
        self._news = asyncio.Event()
        self._key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
        self.public_key = self._key.public_key().public_bytes_raw()
        self._vault = Vault(b"m" * 32)
        self._customer_key = self._vault.new_customer_key(CUSTOMER, clock())
        self._topic_keys: dict[str, TopicKey] = {}
        self.mint = Mint(b"t" * 32)
        self._signed: dict[tuple[int, frozenset[str] | None], SignedDirectory] = {}

    # -- what the operator does --------------------------------------------------------------------

    def changed(self) -> None:
        self.version += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    def add_terminal(self, entry: TerminalEntry) -> None:
        self.terminals[entry.id] = entry
        self.changed()

    def add_topic(self, name: str, groups: Sequence[str]) -> None:
        self.topics[name] = TopicEntry(name=name, groups=dict.fromkeys(groups, 0))
        self._topic_keys[name] = self._vault.new_topic_key(
            CUSTOMER, self._customer_key, name, 1, self.clock()
        )
        self.changed()

    def add_group(self, topic: str, group: str) -> None:
        """Add a group to a topic that exists, as of now."""
        entry = self.topics[topic]
        groups = {**entry.groups, group: self.clock()}
        self.topics[topic] = msgspec.structs.replace(entry, groups=groups)
        self.changed()

    def set_group(self, name: str, terminals: Sequence[str]) -> None:
        self.groups[name] = list(terminals)
        self.changed()

    def revoke(self, terminal: str) -> None:
        self.revoked.append(terminal)
        self.groups = {name: [t for t in ids if t != terminal] for name, ids in self.groups.items()}
        self.changed()

    # -- what it knows -----------------------------------------------------------------------------

    def signed(self, topics: frozenset[str] | None) -> SignedDirectory:
        """The common part; or with ``topics``, these and what belongs to them."""
        key = (self.version, topics)
        found = self._signed.get(key)
        if found is None:
            known = Directory(
                customer=CUSTOMER,
                version=self.version,
                terminals=[entry for id, entry in self.terminals.items() if id not in self.revoked],
                groups=[GroupEntry(name=name, terminals=ids) for name, ids in self.groups.items()],
                revoked=self.revoked,
            )
            if topics is not None:
                entries = [self.topics[name] for name in sorted(topics)]
                known = msgspec.structs.replace(known, terminals=[], groups=[], topics=entries)
            found = self._signed[key] = directories.sign(known, self._key)
        return found

    def receives(self, terminal: str, topic: str) -> bool:
        return any(terminal in self.groups.get(group, ()) for group in self.topics[topic].groups)

    def sender_keys(self, ticket: Ticket) -> list[PublicKeys]:
        entry = self.terminals.get(ticket.sender)
        return entry.keys if entry is not None and entry.id not in self.revoked else []

    def requester(self, identity: Identity, topic: str) -> Requester:
        return Requester(
            customer=CUSTOMER,
            terminal=identity.terminal,
            keys=identity.public,
            member=self.receives(identity.terminal, topic),
            revoked=identity.terminal in self.revoked,
        )

    async def reached(self, identity: Identity) -> None:
        """A request has come, or it hasn't."""
        await asyncio.sleep(self.chance.uniform(0.01, 0.2))
        if not self.up:
            raise RegistryUnreachable("the office is closed")
        if identity.terminal in self.revoked:
            raise Unauthenticated("the proof of this request is not good")

    async def wait_for_news(self, wait: float) -> None:
        try:
            async with asyncio.timeout(wait):
                await self._news.wait()
        except TimeoutError:
            pass

    def topic_key(self, name: str) -> TopicKey:
        return self._topic_keys[name]

    def redeem(self, identity: Identity, topic: str, ticket: bytes, box: bytes) -> Release:
        private = self._vault.topic_private(CUSTOMER, self._customer_key, topic, self._topic_keys[topic])
        parsed = self.mint.parse(ticket)
        return tickets.redeem(
            self.clock(),
            parsed,
            box,
            requester=self.requester(identity, topic),
            topic=topic,
            sender_keys=self.sender_keys(parsed),
            private=private,
        )


class RegistryDesk:
    """Where one terminal asks: a RegistryPort."""

    def __init__(self, office: Office, identity: Identity) -> None:
        self._office = office
        self._identity = identity

    async def issue(self, topic: str) -> Issue:
        office = self._office
        await office.reached(self._identity)
        return tickets.issue(
            office.clock(),
            office.mint,
            requester=office.requester(self._identity, topic),
            topic=topic,
            key=office.topic_key(topic),
            max_age=office.topics[topic].max_age,
            may_send=True,
        )

    async def redeem(self, topic: str, ticket: bytes, box: bytes) -> Release:
        await self._office.reached(self._identity)
        return self._office.redeem(self._identity, topic, ticket, box)

    async def renew(self, ticket: bytes) -> Renewal:
        office = self._office
        await office.reached(self._identity)
        parsed = office.mint.parse(ticket)
        return tickets.renew(
            office.clock(),
            office.mint,
            parsed,
            requester=office.requester(self._identity, parsed.topic),
            sender_keys=office.sender_keys(parsed),
            late_open=office.topics[parsed.topic].late_open,
        )

    async def directory(self, version: int, wait: float, topics: Sequence[str]) -> NewDirectory | None:
        office = self._office
        await office.reached(self._identity)
        if office.version <= version and wait:
            await office.wait_for_news(wait)
            await office.reached(self._identity)
        if office.version <= version:
            return None
        me = self._identity.terminal
        known = frozenset(name for name in office.topics if name in topics or office.receives(me, name))
        return NewDirectory(directory=office.signed(None), topics=office.signed(known))

    async def post_link_state(self, signed: SignedLinkState, held: dict[str, int]) -> None:
        await self._office.reached(self._identity)
