"""An account: all that the registry knows of one customer, in memory, as it is on disk."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from landbridge.core.routing.linkstate import LinkState, SignedLinkState
from landbridge.core.trust.directory import PublicKeys
from landbridge.core.wording import did_you_mean
from landbridge.errors import UnknownGroup, UnknownService, UnknownTerminal, UnknownTopic
from landbridge.registry.entities import (
    CustomerRecord,
    CustomerServiceRecord,
    Enrolment,
    Entity,
    GroupRecord,
    Held,
    LongTermPlan,
    RemovedService,
    TerminalRecord,
    TopicRecord,
)

T = TypeVar("T", bound=Entity)


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The newest link state of a terminal."""

    received_at: int
    signed: SignedLinkState
    state: LinkState


class Account:
    """One customer with its entities."""

    def __init__(self, customer: CustomerRecord) -> None:
        self.customer = customer
        self.terminals: dict[str, TerminalRecord] = {}  #: by id
        self.groups: dict[str, GroupRecord] = {}  #: by name
        self.topics: dict[str, TopicRecord] = {}  #: by name
        self.services: dict[str, CustomerServiceRecord] = {}  #: by name
        self.removed_services: dict[str, RemovedService] = {}  #: by name
        self.enrolments: dict[str, Enrolment] = {}  #: by terminal
        self.held: dict[str, Held] = {}  #: by terminal
        #: The plan by its key, or nothing.
        self.plans: dict[str, LongTermPlan] = {}
        #: By terminal. Not stored: after a restart they are back within a minute.
        self.reports: dict[str, LinkReport] = {}
        #: By terminal: when it last asked for the directory, microseconds. Not stored: it asks all the time.
        self.seen: dict[str, int] = {}
        #: Set, and replaced by a new one, when the directory has a new version.
        self.news = asyncio.Event()
        self._tables: dict[type[Entity], dict[str, Any]] = {
            TerminalRecord: self.terminals,
            GroupRecord: self.groups,
            TopicRecord: self.topics,
            CustomerServiceRecord: self.services,
            RemovedService: self.removed_services,
            Enrolment: self.enrolments,
            Held: self.held,
            LongTermPlan: self.plans,
        }

    @property
    def id(self) -> str:
        """The customer's id."""
        return self.customer.id

    def terminal(self, named: str) -> TerminalRecord:
        """Return a terminal by its id, or else by its name; UnknownTerminal where there is none."""
        found = self.terminals.get(named)
        if found is None:
            found = next((each for each in self.terminals.values() if each.name == named), None)
        if found is None:
            raise UnknownTerminal(f"there is no terminal {named[:40]!r}")
        return found

    def keys_of(self, terminal: str) -> list[PublicKeys]:
        """Return the keys that a terminal may use; none for an unknown or revoked one."""
        known = self.terminals.get(terminal)
        return known.keys if known is not None and not known.revoked_at else []

    def group(self, name: str) -> GroupRecord:
        """Return a terminal group; UnknownGroup where there is none."""
        found = self.groups.get(name)
        if found is None:
            hint = did_you_mean(name[:200], self.groups, "see 'landbridge group list --registry'")
            raise UnknownGroup(f"there is no group {name[:200]!r}", hint=hint)
        return found

    def topic(self, name: str) -> TopicRecord:
        """Return a topic; UnknownTopic where there is none."""
        found = self.topics.get(name)
        if found is None:
            hint = did_you_mean(name[:200], self.topics, "see 'landbridge topic list --registry'")
            raise UnknownTopic(f"there is no topic {name[:200]!r}", hint=hint)
        return found

    def service(self, named: str) -> CustomerServiceRecord:
        """Return a service by its name, or else by its id; UnknownService where there is none."""
        found = self.services.get(named)
        if found is None:
            found = next((each for each in self.services.values() if each.id == named), None)
        if found is None:
            hint = did_you_mean(named[:200], self.services, UnknownService.default_hint)
            raise UnknownService(f"there is no service {named[:200]!r}", hint=hint)
        return found

    def is_receiver(self, terminal: str, topic: TopicRecord) -> bool:
        """Is the terminal in a group of the topic?"""
        return any(name in self.groups and terminal in self.groups[name].terminals for name in topic.groups)

    def held_by(self, terminal: str) -> int:
        """Return the number of messages that a terminal last reported to hold."""
        held = self.held.get(terminal)
        return sum(held.topics.values()) if held is not None else 0

    def held_of(self, topic: str) -> int:
        """Return the number of messages of a topic that all terminals hold."""
        return sum(held.topics.get(topic, 0) for held in self.held.values())

    def table(self, kind: type[T]) -> dict[str, T]:
        """Return the entities of a kind, by their keys."""
        return cast(dict[str, T], self._tables[kind])

    def document_key(self, entity: Entity) -> str:
        """Return the key of an entity's document in the store."""
        return f"{self.id}/{entity.key}"

    def announce(self) -> None:
        """Wake the requests that wait for a newer directory."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class Index:
    """The account of a credential, of a terminal's id or of an enrolment: asked before a caller is let in."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}  #: by the customer's id
        self.credentials: dict[bytes, Account] = {}  #: by digest
        self.terminals: dict[str, Account] = {}  #: by id
        self.enrolments: dict[bytes, tuple[Account, str]] = {}  #: digest → account and terminal
        self.services: dict[bytes, tuple[Account, str]] = {}  #: digest → account and service

    def put_customer(self, account: Account, customer: CustomerRecord) -> None:
        """Add a customer, or replace what is known of it."""
        self.accounts[customer.id] = account
        for credential in account.customer.credentials:
            self.credentials.pop(credential.digest, None)
        for credential in customer.credentials:
            self.credentials[credential.digest] = account
        account.customer = customer

    def put(self, account: Account, entity: Entity) -> None:
        """Add an entity, or replace the one with its key."""
        match entity:
            case TerminalRecord():
                self.terminals[entity.id] = account
                if entity.revoked_at:
                    account.reports.pop(entity.id, None)
            case Enrolment():
                replaced = account.enrolments.get(entity.terminal)
                if replaced is not None:
                    self.enrolments.pop(replaced.digest, None)
                self.enrolments[entity.digest] = (account, entity.terminal)
            case CustomerServiceRecord():
                self._drop_credentials(account.services.get(entity.key))
                for credential in entity.credentials:
                    self.services[credential.digest] = (account, entity.key)
        account.table(type(entity))[entity.key] = entity

    def drop(self, account: Account, entity: Entity) -> None:
        """Remove an entity."""
        match entity:
            case TerminalRecord():
                self.terminals.pop(entity.id, None)
                account.reports.pop(entity.id, None)
            case Enrolment():
                self.enrolments.pop(entity.digest, None)
            case CustomerServiceRecord():
                self._drop_credentials(entity)
        account.table(type(entity)).pop(entity.key, None)

    def _drop_credentials(self, service: CustomerServiceRecord | None) -> None:
        for credential in service.credentials if service is not None else ():
            self.services.pop(credential.digest, None)

    def drop_account(self, account: Account) -> None:
        """Remove a customer with everything that belongs to it."""
        for table in (account.terminals, account.enrolments, account.services):
            for entity in list(table.values()):
                self.drop(account, entity)
        for credential in account.customer.credentials:
            self.credentials.pop(credential.digest, None)
        del self.accounts[account.id]
