"""Customers and their admin credentials. The operator makes and removes customers; a customer's admin renames
it and rotates its credentials.
"""

from __future__ import annotations

from landbridge.client import registry_documents as api
from landbridge.core.log.store import DeleteDocument, DropLog, PutDocument, Write
from landbridge.core.names import check_name
from landbridge.core.trust import credential
from landbridge.errors import LimitReached, NameTaken, StillHolds, UnknownCustomer
from landbridge.registry import codec
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller
from landbridge.registry.change import Change
from landbridge.registry.entities import KINDS, CredentialRecord, CustomerRecord
from landbridge.registry.page import page
from landbridge.registry.state import RegistryState

#: Credentials of one customer that are good at a time.
_OVERLAP = 2


class Customers:
    """Operations on customers."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state

    # -- by the operator ---------------------------------------------------------------------------

    def create(self, change: Change, request: api.CreateCustomer) -> api.CreatedCustomer:
        """Create a customer with its keys, its audit log and its first credential."""
        check_name(request.name, "customer")
        if request.name in self._names():
            raise NameTaken(f"there is a customer {request.name!r}")
        return self._create(change, request.name)

    def create_host(self, change: Change, name: str) -> api.CreatedCustomer:
        """Create the customer of the host, under the name or, where another customer has it, under the name
        with a number. Its id is stored with it: a name decides nothing, as customers rename themselves."""
        taken = self._names()
        numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
        return self._create(change, next(each for each in (name, *numbered) if each not in taken), host=True)

    def _names(self) -> set[str]:
        return {account.customer.name for account in self._state.index.accounts.values()}

    def _create(self, change: Change, name: str, *, host: bool = False) -> api.CreatedCustomer:
        accounts, keyring = self._state.index.accounts, self._state.keyring
        if len(accounts) >= self._state.limits.max_customers:
            raise LimitReached(f"{len(accounts)} customers are as many as there may be")
        id = credential.new_id("cus")
        token, made = new_credential(change.now)
        customer = CustomerRecord(
            id=id,
            name=name,
            created_at=change.now,
            credentials=[made],
            version=1,
            audit_log=keyring.kept.next_log,
            sealing_key=keyring.vault.new_customer_key(id, change.now),
            authority=keyring.new_authority(id, change.now),
            token_keys=[keyring.new_token_key(id, change.now, change.now)],
        )
        kept = codec.replace(keyring.kept, next_log=customer.audit_log + 1)
        self._state.put_keyring(change, codec.replace(kept, host=id) if host else kept)
        put = PutDocument(customer.kind, id, codec.encode(customer))
        change.write([put], lambda: self._state.index.put_customer(Account(customer), customer))
        change.detail = id
        return api.CreatedCustomer(customer_id=id, name=customer.name, token=token)

    def list_page(self, _: Caller, request: api.ListPage) -> api.CustomerPage:
        """List customers by their ids."""
        items, following = page(self._state.index.accounts, request, self._state.limits)
        return api.CustomerPage(items=[_show(each, each.customer) for each in items], next=following)

    def remove(self, change: Change, request: api.RemoveCustomer) -> None:
        """Remove a customer with everything that belongs to it."""
        account = self.account(request.customer)
        held = sum(account.held_by(terminal) for terminal in account.held)
        if held and not request.force:
            raise StillHolds(f"the terminals of {account.id} hold {held} messages")
        writes: list[Write] = [
            DeleteDocument(CustomerRecord.kind, account.id),
            DropLog(account.customer.audit_log),
        ]
        for kind in KINDS:
            for entity in account.table(kind).values():
                writes.append(DeleteDocument(kind.kind, account.document_key(entity)))
        change.write(writes, lambda: self._state.index.drop_account(account))
        change.after.append(account.announce)  # requests that wait for its directory are refused now
        change.detail = account.customer.name

    def reset_credential(self, change: Change, request: api.OfCustomer) -> api.CreatedCredential:
        """Replace all credentials of a customer whose own credential was lost or stolen."""
        change.open_account(self.account(request.customer))
        token, made = new_credential(change.now)
        change.put_customer(codec.replace(change.customer, credentials=[made]))
        return api.CreatedCredential(credential_id=made.id, token=token)

    def rotate_operator(self, change: Change, _: api.Request) -> api.CreatedCredential:
        """Replace the operator's credential."""
        token, made = new_credential(change.now)
        kept = codec.replace(self._state.keyring.kept, operator_digest=made.digest)
        self._state.put_keyring(change, kept)
        return api.CreatedCredential(credential_id=made.id, token=token)

    def account(self, id: str) -> Account:
        """Return the account of a customer; UnknownCustomer where there is none."""
        account = self._state.index.accounts.get(id)
        if account is None:
            raise UnknownCustomer(f"there is no customer {id[:40]!r}", hint="see 'landbridge customer list'")
        return account

    # -- by its own admin --------------------------------------------------------------------------

    def show(self, caller: Caller, _: api.Request) -> api.Customer:
        """Show the admin's own customer."""
        return _show(caller.own_account, caller.own_account.customer)

    def update(self, change: Change, request: api.UpdateCustomer) -> api.Customer:
        """Change the name."""
        # Whether another customer has that name is not checked: this one must not learn of others.
        check_name(request.name, "customer")
        return _show(change.account, change.put_customer(codec.replace(change.customer, name=request.name)))

    def rotate_credential(self, change: Change, _: api.Request) -> api.CreatedCredential:
        """Make another credential. The one in use stays good beside it, until ``revoke_credentials``."""
        token, made = new_credential(change.now)
        used = [known for known in change.customer.credentials if known.digest == change.caller.digest]
        credentials = [made, *used][:_OVERLAP]
        change.put_customer(codec.replace(change.customer, credentials=credentials))
        change.detail = made.id
        return api.CreatedCredential(credential_id=made.id, token=token)

    def revoke_credentials(self, change: Change, _: api.Request) -> api.Customer:
        """End all credentials but the one in use."""
        credentials = change.customer.credentials
        used = [known for known in credentials if known.digest == change.caller.digest]
        change.detail = " ".join(known.id for known in credentials if known not in used)
        return _show(change.account, change.put_customer(codec.replace(change.customer, credentials=used)))


def new_credential(now: int) -> tuple[str, CredentialRecord]:
    """Make an admin credential: returns the token, and the record by which the registry knows it."""
    token, digest = credential.new(credential.ADMIN)
    return token, CredentialRecord(credential.new_id("cre"), digest, now)


def _show(account: Account, customer: CustomerRecord) -> api.Customer:
    return codec.show(
        api.Customer,
        customer,
        customer_id=customer.id,
        credentials=[
            api.Credential(credential_id=known.id, created_at=known.created_at)
            for known in customer.credentials
        ],
        directory_version=customer.version,
        terminals=len(account.terminals),
        groups=len(account.groups),
        topics=len(account.topics),
        services=len(account.services),
    )
