"""Customers and their admin credentials. The operator makes and removes them; a customer's admin looks after
its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from landbridge.client import registry_documents as api
from landbridge.core.log.store import DeleteDocument, DropLog, PutDocument, Write
from landbridge.core.names import check_name
from landbridge.errors import LimitReached, NameTaken, StillHolds, UnknownCustomer
from landbridge.registry import codec, credential
from landbridge.registry.account import KINDS, Account, Change, document_key
from landbridge.registry.caller import Caller
from landbridge.registry.entities import Credential, Customer
from landbridge.registry.page import page

if TYPE_CHECKING:
    from landbridge.registry.registry import Registry

#: Credentials of one customer that are good at a time.
_OVERLAP = 2


class Customers:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    # -- by the operator ---------------------------------------------------------------------------

    async def create(self, caller: Caller, request: api.CreateCustomer) -> api.CreatedCustomer:
        def work(change: Change) -> api.CreatedCustomer:
            self._check_new_name(request.name)
            accounts = self._registry.index.accounts
            if len(accounts) >= self._registry.limits.max_customers:
                raise LimitReached(f"{len(accounts)} customers are as many as there may be")
            keyring = self._registry.keyring
            id = credential.new_id("cus")
            token, made = new_credential(change.now)
            customer = Customer(
                id=id,
                name=request.name,
                created_at=change.now,
                credentials=[made],
                version=1,
                audit_log=keyring.kept.next_log,
                sealing_key=keyring.vault.new_customer_key(id, change.now),
                authority=self._registry.new_authority(id, change.now),
            )
            self._registry.put_keyring(change, codec.replace(keyring.kept, next_log=customer.audit_log + 1))
            put = PutDocument(Customer.kind, id, codec.encode(customer))
            change.write([put], lambda: self._registry.index.put_customer(Account(customer), customer))
            change.detail = id
            return api.CreatedCustomer(customer_id=id, name=customer.name, token=token)

        return await self._registry.change(caller, "createMessageBusCustomer", request.name, work)

    def listed(self, after: str, limit: int) -> api.CustomerPage:
        most = self._registry.limits.max_page
        items, following = page(self._registry.index.accounts, after, limit, most)
        return api.CustomerPage(items=[show(account) for account in items], next=following)

    async def remove(self, caller: Caller, id: str, *, force: bool) -> None:
        """With all that it has."""

        def work(change: Change) -> None:
            account = self.account(id)
            held = sum(sum(held.topics.values()) for held in account.held.values())
            if held and not force:
                raise StillHolds(f"the terminals of {id} hold {held} messages")
            change.write(_removal(account), lambda: self._registry.index.drop_account(account))
            change.after.append(account.announce)  # whoever waits for its directory waits for nothing
            change.after.append(lambda: self._registry.directories.forget(id))
            change.detail = account.customer.name

        await self._registry.change(caller, "removeMessageBusCustomer", id, work)

    async def reset_credential(self, caller: Caller, id: str) -> api.CreatedCredential:
        """For a customer that has lost its own, or had it stolen: the old ones end."""

        def work(change: Change) -> api.CreatedCredential:
            account = self.account(id)
            token, made = new_credential(change.now)
            customer = codec.replace(account.customer, credentials=[made])
            put = PutDocument(Customer.kind, id, codec.encode(customer))
            change.write([put], lambda: self._registry.index.put_customer(account, customer))
            return api.CreatedCredential(credential_id=made.id, token=token)

        return await self._registry.change(caller, "resetMessageBusCustomerCredential", id, work)

    async def rotate_operator(self, caller: Caller) -> api.CreatedCredential:
        def work(change: Change) -> api.CreatedCredential:
            token, made = new_credential(change.now)
            kept = codec.replace(self._registry.keyring.kept, operator_digest=made.digest)
            self._registry.put_keyring(change, kept)
            return api.CreatedCredential(credential_id=made.id, token=token)

        return await self._registry.change(caller, "rotateOperatorCredential", "", work)

    def account(self, id: str) -> Account:
        account = self._registry.index.accounts.get(id)
        if account is None:
            raise UnknownCustomer(f"there is no customer {id[:40]!r}", hint="see 'landbridge customer list'")
        return account

    # -- by its own admin --------------------------------------------------------------------------

    async def update(self, caller: Caller, request: api.UpdateCustomer) -> api.Customer:
        def work(change: Change) -> None:
            # Not whether another customer has that name: it would be told of one that it shouldn't know.
            check_name(request.name, "customer")
            change.put_customer(codec.replace(change.customer, name=request.name))

        await self._registry.change(caller, "updateMessageBusCustomer", request.name, work)
        assert caller.account is not None
        return show(caller.account)

    async def rotate_credential(self, caller: Caller) -> api.CreatedCredential:
        """The one that is used stays good beside the new one, until ``revoke_credentials``."""

        def work(change: Change) -> api.CreatedCredential:
            token, made = new_credential(change.now)
            used = [c for c in change.customer.credentials if c.digest == caller.digest]
            credentials = [made, *used][:_OVERLAP]
            change.put_customer(codec.replace(change.customer, credentials=credentials))
            change.detail = made.id
            return api.CreatedCredential(credential_id=made.id, token=token)

        return await self._registry.change(caller, "rotateMessageBusCustomerCredential", "", work)

    async def revoke_credentials(self, caller: Caller) -> api.Customer:
        """All but the one that is used."""

        def work(change: Change) -> None:
            used = [c for c in change.customer.credentials if c.digest == caller.digest]
            ended = [c.id for c in change.customer.credentials if c.digest != caller.digest]
            change.put_customer(codec.replace(change.customer, credentials=used))
            change.detail = " ".join(ended)

        await self._registry.change(caller, "revokeMessageBusCustomerCredentials", "", work)
        assert caller.account is not None
        return show(caller.account)

    # -- inside ------------------------------------------------------------------------------------

    def _check_new_name(self, name: str) -> None:
        check_name(name, "customer")
        if any(account.customer.name == name for account in self._registry.index.accounts.values()):
            raise NameTaken(f"there is a customer {name!r}")


def show(account: Account) -> api.Customer:
    customer = account.customer
    return api.Customer(
        customer_id=customer.id,
        name=customer.name,
        created_at=customer.created_at,
        credentials=[
            api.Credential(credential_id=c.id, created_at=c.created_at) for c in customer.credentials
        ],
        directory_version=customer.version,
        terminals=len(account.terminals),
        groups=len(account.groups),
        topics=len(account.topics),
    )


def new_credential(now: int) -> tuple[str, Credential]:
    token = credential.new(credential.ADMIN)
    digest = credential.digest(credential.ADMIN, token)
    assert digest is not None
    return token, Credential(credential.new_id("cre"), digest, now)


def _removal(account: Account) -> list[Write]:
    writes: list[Write] = [DeleteDocument(Customer.kind, account.id), DropLog(account.customer.audit_log)]
    for kind in KINDS:
        for entity in account.table(kind).values():
            writes.append(DeleteDocument(kind.kind, document_key(account, entity)))
    return writes
