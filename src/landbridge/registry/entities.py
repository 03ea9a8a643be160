"""What the registry stores: one document each. Nothing here is a secret in the clear: credentials are
digests, private keys are sealed under the master key.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from landbridge.core.routing.plan import Plan
from landbridge.core.trust.directory import PublicKeys
from landbridge.core.trust.tickets import CustomerKey, TopicKey


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    #: The kind of its documents in the store.
    kind: ClassVar[str]

    @property
    def key(self) -> str:
        """Which one of its kind, within a customer."""
        raise NotImplementedError  # each kind has its own; a Struct can't be abstract


class Credential(msgspec.Struct, frozen=True):
    id: str
    digest: bytes  #: SHA-256 of the token
    created_at: int


class CertificateAuthority(msgspec.Struct, frozen=True):
    certificate: str  #: PEM
    sealed_key: bytes  #: PKCS#8, sealed


class Customer(Entity, frozen=True):
    kind = "registry/customer"

    id: str
    name: str
    created_at: int
    #: Newest first, at most two: rotation overlaps. None are left where the operator has cut it off.
    credentials: list[Credential]
    #: Of the directory.
    version: int
    #: Number of the log with its audit events.
    audit_log: int
    #: Seals its topics' keys; itself sealed under the master key.
    sealing_key: CustomerKey
    authority: CertificateAuthority

    @property
    def key(self) -> str:
        return self.id


class Terminal(Entity, frozen=True):
    kind = "registry/terminal"

    id: str
    name: str
    mode: Literal["server", "client"]
    address: str
    region: str
    #: Newest first, at most two; none before it has enrolled.
    keys: list[PublicKeys]
    created_at: int
    #: 0: it isn't. For ever: a terminal that comes back is a new one.
    revoked_at: int = 0
    draining: bool = False
    transit: bool = True
    admin_cost: float = 0.0

    @property
    def key(self) -> str:
        return self.id


class Group(Entity, frozen=True):
    kind = "registry/group"

    name: str
    terminals: list[str]
    created_at: int

    @property
    def key(self) -> str:
        return self.name


class Topic(Entity, frozen=True):
    kind = "registry/topic"

    name: str
    groups: dict[str, int]  #: group → when it was added, microseconds
    producers: list[str] | None  #: None: every terminal of the customer
    late_open: Literal["renew", "sender_only", "never"]
    ticket_scope: Literal["window", "message"]
    max_age: float  #: seconds
    #: Newest first: that one encrypts, the others only decrypt.
    keys: list[TopicKey]
    created_at: int

    @property
    def key(self) -> str:
        return self.name


class Enrolment(Entity, frozen=True):
    """The right to bring a terminal's first key, once. A new one for the same terminal takes its place."""

    kind = "registry/enrolment"

    terminal: str
    digest: bytes
    expires_at: int

    @property
    def key(self) -> str:
        return self.terminal


class Held(Entity, frozen=True):
    """What a terminal said last that it holds. Stored when the topics change, not the counts: it is there so
    that nobody removes what is needed while that terminal is away."""

    kind = "registry/held"

    terminal: str
    topics: dict[str, int]

    @property
    def key(self) -> str:
        return self.terminal


class LongTermPlan(Entity, frozen=True):
    """What the links of a customer are worth over days; a new one takes the place of the one before."""

    kind = "registry/plan"

    made_at: int  #: when it came, microseconds
    plan: Plan

    @property
    def key(self) -> str:
        return "plan"
