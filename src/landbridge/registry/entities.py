"""What the registry stores, one document for each entity. No secret is stored in the clear: of credentials
there are digests, and private keys are sealed under the master key.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from landbridge.core.routing.plan import Plan
from landbridge.core.trust.directory import PublicKeys
from landbridge.core.trust.service import ServiceSpec
from landbridge.core.trust.tickets import CustomerKey, TopicKey


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """Something that belongs to a customer, or the customer itself."""

    #: The kind of its documents in the store.
    kind: ClassVar[str]
    #: The member that tells entities of one kind and customer apart; "" where there is only one.
    key_member: ClassVar[str]

    @property
    def key(self) -> str:
        """Which one of its kind, within a customer."""
        return str(getattr(self, self.key_member))


class CredentialRecord(msgspec.Struct, frozen=True):
    """An admin credential, known by its digest."""

    id: str
    digest: bytes  #: SHA-256 of the token
    created_at: int


class AuthorityRecord(msgspec.Struct, frozen=True):
    """The certificate authority of a customer."""

    certificate: str  #: PEM
    sealed_key: bytes  #: PKCS#8, sealed


class TokenKeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key that signs the tokens of a customer's services."""

    public: bytes  #: Ed25519, 32 bytes
    sealed_key: bytes  #: 32 bytes, sealed
    made_at: int
    #: It signs from this moment on: terminals get to know it before.
    signs_from: int
    #: No token by it is taken from this moment on; 0: there is no newer key yet.
    until: int = 0


class CustomerRecord(Entity, frozen=True):
    """A customer."""

    kind = "registry/customer"
    key_member = "id"

    id: str
    name: str
    created_at: int
    #: Newest first, at most two: rotation overlaps. None are left where the operator has cut it off.
    credentials: list[CredentialRecord]
    #: Version of its directory.
    version: int
    #: Number of the log with its audit events.
    audit_log: int
    #: Seals its topics' keys; itself sealed under the master key.
    sealing_key: CustomerKey
    authority: AuthorityRecord
    #: Newest first. None where the customer was made before there were services, and has registered none yet.
    token_keys: list[TokenKeyRecord] = []


class TerminalRecord(Entity, frozen=True):
    """A terminal."""

    kind = "registry/terminal"
    key_member = "id"

    id: str
    name: str
    mode: Literal["server", "client"]
    address: str
    region: str
    #: Newest first, at most two; none before it has enrolled.
    keys: list[PublicKeys]
    created_at: int
    #: 0: it is not revoked. Revocation is for ever: a terminal that comes back is a new one.
    revoked_at: int = 0
    draining: bool = False
    transit: bool = True
    admin_cost: float = 0.0


class GroupRecord(Entity, frozen=True):
    """A terminal group."""

    kind = "registry/group"
    key_member = "name"

    name: str
    terminals: list[str]
    created_at: int


class TopicRecord(Entity, frozen=True):
    """A topic that crosses LANs."""

    kind = "registry/topic"
    key_member = "name"

    name: str
    groups: dict[str, int]  #: group → when it was added, microseconds
    producers: list[str] | None  #: None: every terminal of the customer
    late_open: Literal["renew", "sender_only", "never"]
    ticket_scope: Literal["window", "message"]
    max_age: float  #: seconds
    #: Newest first: that one encrypts, the others only decrypt.
    keys: list[TopicKey]
    created_at: int


class ServiceCredentialRecord(msgspec.Struct, frozen=True):
    """A credential of a service, known by its digest."""

    id: str
    digest: bytes  #: SHA-256 of the credential
    created_at: int
    #: It is good until then; 0: there is no newer one.
    ends_at: int = 0


class CustomerServiceRecord(Entity, frozen=True):
    """A service of a customer."""

    kind = "registry/service"
    key_member = ""

    id: str
    spec: ServiceSpec
    #: Newest first, at most two: rotation overlaps.
    credentials: list[ServiceCredentialRecord]
    created_at: int
    #: 0: it is not suspended.
    suspended_at: int = 0
    #: Tokens that were made under an earlier version of the directory have ended.
    tokens_since: int = 0
    #: When that was told, microseconds: later than a token's life, nobody needs to know it.
    ended_at: int = 0

    @property
    def key(self) -> str:
        """The name that the service was registered by."""
        return self.spec.name


class RemovedService(Entity, frozen=True):
    """A service that is no more, while one of its tokens may still live."""

    kind = "registry/removed-service"
    key_member = "name"

    name: str
    removed_at: int


class Enrolment(Entity, frozen=True):
    """The right to bring a terminal's first key, once. A new one for the same terminal takes its place."""

    kind = "registry/enrolment"
    key_member = "terminal"

    terminal: str
    digest: bytes
    expires_at: int


class Held(Entity, frozen=True):
    """The messages that a terminal last reported to hold, so that nobody removes what is needed while the
    terminal is away. Stored when the set of topics changes, not with every count."""

    kind = "registry/held"
    key_member = "terminal"

    terminal: str
    topics: dict[str, int]


class LongTermPlan(Entity, frozen=True):
    """The costs of a customer's links over days. A new plan takes the place of the one before."""

    kind = "registry/plan"
    key_member = ""

    made_at: int  #: when it came, microseconds
    plan: Plan

    @property
    def key(self) -> str:
        """The same for all: a customer has one plan."""
        return "plan"


#: The kinds of entities that belong to a customer.
KINDS: tuple[type[Entity], ...] = (
    TerminalRecord,
    GroupRecord,
    TopicRecord,
    CustomerServiceRecord,
    RemovedService,
    Enrolment,
    Held,
    LongTermPlan,
)
