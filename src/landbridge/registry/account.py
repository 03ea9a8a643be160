"""An account: all that the registry knows of one customer, in memory, as it is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from landbridge.core.log.store import DeleteDocument, PutDocument, Write
from landbridge.core.routing.linkstate import LinkState, SignedLinkState
from landbridge.core.wording import did_you_mean
from landbridge.errors import UnknownGroup, UnknownTerminal, UnknownTopic
from landbridge.registry import codec
from landbridge.registry.entities import (
    Customer,
    Enrolment,
    Entity,
    Group,
    Held,
    LongTermPlan,
    Terminal,
    Topic,
)

T = TypeVar("T", bound=Entity)


@dataclass(frozen=True, slots=True)
class Report:
    """The newest link state of a terminal."""

    received_at: int
    signed: SignedLinkState
    state: LinkState


class Account:
    def __init__(self, customer: Customer) -> None:
        self.customer = customer
        self.terminals: dict[str, Terminal] = {}  #: by id
        self.groups: dict[str, Group] = {}  #: by name
        self.topics: dict[str, Topic] = {}
        self.enrolments: dict[str, Enrolment] = {}  #: by terminal
        self.held: dict[str, Held] = {}
        #: The one there is, by its key, or none.
        self.plans: dict[str, LongTermPlan] = {}
        #: By terminal. Not stored: after a restart they are back within a minute.
        self.reports: dict[str, Report] = {}
        #: Set, and replaced by a new one, when the directory has a new version.
        self.news = asyncio.Event()

    @property
    def id(self) -> str:
        return self.customer.id

    def terminal(self, id: str) -> Terminal:
        found = self.terminals.get(id)
        if found is None:
            raise UnknownTerminal(f"there is no terminal {id[:40]!r}")
        return found

    def group(self, name: str) -> Group:
        found = self.groups.get(name)
        if found is None:
            hint = did_you_mean(name[:200], self.groups, "see 'landbridge group list --registry'")
            raise UnknownGroup(f"there is no group {name[:200]!r}", hint=hint)
        return found

    def topic(self, name: str) -> Topic:
        found = self.topics.get(name)
        if found is None:
            hint = did_you_mean(name[:200], self.topics, "see 'landbridge topic list --registry'")
            raise UnknownTopic(f"there is no topic {name[:200]!r}", hint=hint)
        return found

    def receives(self, terminal: str, topic: Topic) -> bool:
        """Is a terminal in a group of the topic?"""
        return any(name in self.groups and terminal in self.groups[name].terminals for name in topic.groups)

    def sends(self, terminal: str, topic: Topic) -> bool:
        return topic.producers is None or terminal in topic.producers

    def held_by(self, terminal: str) -> int:
        """Messages that a terminal said last it holds."""
        held = self.held.get(terminal)
        return sum(held.topics.values()) if held is not None else 0

    def held_of(self, topic: str) -> int:
        """Messages of a topic, at all terminals."""
        return sum(held.topics.get(topic, 0) for held in self.held.values())

    def table(self, kind: type[T]) -> dict[str, T]:
        """Where the entities of a kind are."""
        return cast(dict[str, T], getattr(self, _TABLES[kind]))

    def forget_report(self, terminal: str) -> None:
        self.reports.pop(terminal, None)

    def announce(self) -> None:
        """Wake whoever waits for a newer directory."""
        news, self.news = self.news, asyncio.Event()
        news.set()


_TABLES: dict[type[Entity], str] = {
    Terminal: "terminals",
    Group: "groups",
    Topic: "topics",
    Enrolment: "enrolments",
    Held: "held",
    LongTermPlan: "plans",
}
#: What the documents of an account are, beside the customer itself.
KINDS: tuple[type[Entity], ...] = tuple(_TABLES)


class Index:
    """Whom a credential, a terminal's id or an enrolment belongs to. Asked before anybody is let in."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}  #: by the customer's id
        self.credentials: dict[bytes, Account] = {}  #: by digest
        self.terminals: dict[str, Account] = {}  #: by id
        self.enrolments: dict[bytes, tuple[Account, str]] = {}  #: digest → account and terminal

    def put_customer(self, account: Account, customer: Customer) -> None:
        self.accounts[customer.id] = account
        for credential in account.customer.credentials:
            self.credentials.pop(credential.digest, None)
        for credential in customer.credentials:
            self.credentials[credential.digest] = account
        account.customer = customer

    def put(self, account: Account, entity: Entity) -> None:
        table = account.table(type(entity))
        match entity:
            case Terminal():
                self.terminals[entity.id] = account
            case Enrolment():
                replaced = account.enrolments.get(entity.terminal)
                if replaced is not None:
                    self.enrolments.pop(replaced.digest, None)
                self.enrolments[entity.digest] = (account, entity.terminal)
        table[entity.key] = entity

    def drop(self, account: Account, entity: Entity) -> None:
        match entity:
            case Terminal():
                self.terminals.pop(entity.id, None)
                account.forget_report(entity.id)
            case Enrolment():
                self.enrolments.pop(entity.digest, None)
        account.table(type(entity)).pop(entity.key, None)

    def drop_account(self, account: Account) -> None:
        for table in (account.terminals, account.enrolments):
            for entity in list(table.values()):
                self.drop(account, entity)
        for credential in account.customer.credentials:
            self.credentials.pop(credential.digest, None)
        del self.accounts[account.id]


class Change:
    """One operation in the making: one commit. Nothing in memory moves before it is stored."""

    def __init__(self, now: int, index: Index, account: Account | None, subject: str) -> None:
        self.now = now
        self.writes: list[Write] = []
        #: Done, in this order, when it is stored.
        self.after: list[Callable[[], None]] = []
        #: For the audit event.
        self.subject = subject
        self.detail = ""
        self._index = index
        self._account = account
        #: As this change leaves it.
        self._customer = account.customer if account is not None else None
        self._in_directory = False

    @property
    def account(self) -> Account:
        assert self._account is not None, "an operation of the operator"
        return self._account

    @property
    def customer(self) -> Customer:
        assert self._customer is not None, "an operation of the operator"
        return self._customer

    def put(self, entity: T, *, in_directory: bool = True) -> T:
        """``in_directory``: terminals are to hear of it."""
        account = self.account
        self.writes.append(PutDocument(entity.kind, document_key(account, entity), codec.encode(entity)))
        self.after.append(lambda: self._index.put(account, entity))
        self._in_directory |= in_directory
        return entity

    def drop(self, entity: Entity | None, *, in_directory: bool = True) -> None:
        if entity is None:
            return
        account = self.account
        self.writes.append(DeleteDocument(entity.kind, document_key(account, entity)))
        self.after.append(lambda: self._index.drop(account, entity))
        self._in_directory |= in_directory

    def put_customer(self, customer: Customer) -> None:
        self._customer = customer

    def write(self, writes: list[Write], after: Callable[[], None]) -> None:
        """Anything else."""
        self.writes += writes
        self.after.append(after)

    def seal(self) -> list[Write]:
        """All writes, with the customer once."""
        if self._in_directory:
            self._customer = codec.replace(self.customer, version=self.customer.version + 1)
        if self._account is not None and self._customer is not self._account.customer:
            account, customer = self.account, self.customer
            self.writes.append(PutDocument(Customer.kind, customer.id, codec.encode(customer)))
            self.after.append(lambda: self._index.put_customer(account, customer))
        if self._in_directory:
            self.after.append(self.account.announce)
        return self.writes

    def apply(self) -> None:
        for step in self.after:
            step()


def document_key(account: Account, entity: Entity) -> str:
    return f"{account.id}/{entity.key}"
