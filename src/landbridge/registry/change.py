"""A change: one operation in the making, and one commit. Nothing in memory moves before it is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from landbridge.core.log.store import DeleteDocument, PutDocument, Write
from landbridge.registry import codec
from landbridge.registry.account import Account, Index
from landbridge.registry.caller import Caller
from landbridge.registry.entities import CustomerRecord, Entity

T = TypeVar("T", bound=Entity)


class Change:
    """What one operation writes to the store, and does in memory after that."""

    def __init__(self, now: int, index: Index, caller: Caller, subject: str) -> None:
        self.now = now
        self.caller = caller
        #: Subject and detail of the audit event.
        self.subject = subject
        self.detail = ""
        self.writes: list[Write] = []
        #: Called in this order when the writes are stored.
        self.after: list[Callable[[], None]] = []
        self._index = index
        self._account = caller.account
        #: The customer as this change leaves it.
        self._customer = caller.account.customer if caller.account is not None else None
        self._in_directory = False

    @property
    def account(self) -> Account:
        """The account that is changed."""
        assert self._account is not None, "an operation of the operator on no customer"
        return self._account

    @property
    def customer(self) -> CustomerRecord:
        """The customer of the account, as this change leaves it."""
        assert self._customer is not None, "an operation of the operator on no customer"
        return self._customer

    def open_account(self, account: Account) -> None:
        """Change this account: the operator has none of its own."""
        self._account, self._customer = account, account.customer

    def put(self, entity: T, *, in_directory: bool = True) -> T:
        """Store an entity. ``in_directory``: terminals have to learn of it."""
        account = self.account
        self.writes.append(PutDocument(entity.kind, account.document_key(entity), codec.encode(entity)))
        self.after.append(lambda: self._index.put(account, entity))
        self._in_directory |= in_directory
        return entity

    def drop(self, entity: Entity | None, *, in_directory: bool = True) -> None:
        """Delete an entity; None is nothing to delete."""
        if entity is None:
            return
        account = self.account
        self.writes.append(DeleteDocument(entity.kind, account.document_key(entity)))
        self.after.append(lambda: self._index.drop(account, entity))
        self._in_directory |= in_directory

    def put_customer(self, customer: CustomerRecord) -> CustomerRecord:
        """Store the customer of the account."""
        self._customer = customer
        return customer

    def announce(self) -> None:
        """Make a new version of the directory."""
        self._in_directory = True

    def write(self, writes: Sequence[Write], after: Callable[[], None]) -> None:
        """Write anything else; ``after`` is called when it is stored."""
        self.writes += writes
        self.after.append(after)

    def seal(self) -> list[Write]:
        """Return all writes, the customer's document once."""
        if self._in_directory:
            self._customer = codec.replace(self.customer, version=self.customer.version + 1)
        if self._account is not None and self._customer is not self._account.customer:
            account, customer = self.account, self.customer
            self.writes.append(PutDocument(customer.kind, customer.id, codec.encode(customer)))
            self.after.append(lambda: self._index.put_customer(account, customer))
        if self._in_directory:
            self.after.append(self.account.announce)
        return self.writes

    def apply(self) -> None:
        """Move memory to what is stored."""
        for step in self.after:
            step()
