"""Requests to the registry and its answers.

A request holds all that an operation takes: the names in the path, the query and the JSON body
(``registry_operations`` says which member goes where). Requests are strict: an unknown member is refused.
Answers may grow, so a reader passes over members that it doesn't know. Moments are microseconds since 1970,
spans are seconds, bytes are base64.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from landbridge.core.routing.plan import Plan
from landbridge.core.trust.directory import PublicKeys, SignedDirectory
from landbridge.core.trust.service import ServiceEndpoint

Mode: TypeAlias = Literal["server", "client"]
LateOpen: TypeAlias = Literal["renew", "sender_only", "never"]
TicketScope: TypeAlias = Literal["window", "message"]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an operation takes. On its own: nothing."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation answers."""


class Revealing(Answer, frozen=True):
    """An answer with a secret in it: it can't be printed or logged by mistake."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class ListPage(Request, frozen=True):
    """One page of a list: the items that follow ``after``, at most ``limit``."""

    after: str = ""
    limit: int = 100


# -- customers -----------------------------------------------------------------------------------------


class OfCustomer(Request, frozen=True):
    """An operation on one customer, by the operator."""

    customer: str


class CreateCustomer(Request, frozen=True):
    """Name of a new customer."""

    name: str


class UpdateCustomer(Request, frozen=True):
    """New name of the customer."""

    name: str


class RemoveCustomer(OfCustomer, frozen=True):
    """``force`` gives up the messages that its terminals still hold."""

    force: bool = False


class Credential(Answer, frozen=True):
    """An admin credential. Its secret is shown once, in the answer to the request that made it."""

    credential_id: str
    created_at: int


class Customer(Answer, frozen=True):
    """A customer, and how much it has."""

    customer_id: str
    name: str
    created_at: int
    credentials: list[Credential]
    directory_version: int
    terminals: int
    groups: int
    topics: int
    services: int = 0


class CustomerPage(Answer, frozen=True):
    """A page of the list of customers."""

    items: list[Customer]
    #: The ``after`` of the next page; None on the last page. The same in the other lists.
    next: str | None = None


class CreatedCustomer(Revealing, frozen=True):
    """A new customer with its first admin credential."""

    customer_id: str
    name: str
    #: The admin credential. The registry stores its digest only: keep it safe.
    token: str


class CreatedCredential(Revealing, frozen=True):
    """A new credential."""

    credential_id: str
    token: str


# -- terminals -----------------------------------------------------------------------------------------


class OfTerminal(Request, frozen=True):
    """An operation on one terminal, by its id."""

    terminal: str


class CreateTerminal(Request, frozen=True):
    """A new terminal."""

    name: str
    mode: Mode = "server"
    #: lb://host:port or lbs://host:port; a server's must be given before others can dial it.
    address: str = ""
    region: str = ""
    #: Whether the terminal may carry parcels that are neither from nor for it.
    transit: bool = True
    #: Milliseconds that are added to the cost of each of its links.
    admin_cost: float = 0.0
    #: Public half of a secure key that was made elsewhere.
    keys: PublicKeys | None = None
    #: False: no key yet, the terminal brings its own when it enrols.
    make_key: bool = True


class UpdateTerminal(OfTerminal, frozen=True):
    """Changes of a terminal. A member that isn't given stays as it is."""

    name: str | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    address: str | UnsetType = UNSET
    region: str | UnsetType = UNSET
    draining: bool | UnsetType = UNSET
    transit: bool | UnsetType = UNSET
    admin_cost: float | UnsetType = UNSET


class RemoveTerminal(OfTerminal, frozen=True):
    """``force`` gives up the messages that the terminal holds."""

    force: bool = False


class RotateKey(OfTerminal, frozen=True):
    """A new key for a terminal."""

    #: None: the registry makes a secure key and shows it once.
    keys: PublicKeys | None = None
    #: False: the old key ends now. True: both are good until the next rotation.
    keep_old: bool = True


class RotateOwnKey(Request, frozen=True):
    """A new key of the terminal that asks."""

    keys: PublicKeys
    keep_old: bool = True


class RegisteredTerminal(Answer, frozen=True):
    """A terminal, as its admin sees it."""

    terminal_id: str
    name: str
    mode: Mode
    address: str
    region: str
    keys: list[PublicKeys]  #: newest first; none before it has enrolled
    created_at: int
    #: None: it is not revoked.
    revoked_at: int | None
    draining: bool
    transit: bool
    admin_cost: float
    #: Topic → messages that it holds for others, as it last reported.
    held: dict[str, int]
    #: When it last asked the registry for news, by the registry's clock; None: not since the registry began.
    seen_at: int | None = None
    #: It has not asked for news for so long that it doesn't run, or can't reach the registry.
    silent: bool = False


class TerminalPage(Answer, frozen=True):
    """A page of the list of terminals."""

    items: list[RegisteredTerminal]
    next: str | None = None


class CreatedTerminal(Revealing, frozen=True):
    """A new terminal with its secure key."""

    customer_id: str
    terminal_id: str
    name: str
    #: Shown once; the registry keeps only its public half. None where the terminal brings its own.
    secure_key: str | None
    #: Ed25519, 32 bytes: the public key that directories are signed with.
    registry_key: bytes


class RotatedKey(Revealing, frozen=True):
    """The keys of a terminal after a rotation."""

    terminal_id: str
    #: None where the registry did not make it.
    secure_key: str | None
    keys: list[PublicKeys]


class CreatedEnrolment(Revealing, frozen=True):
    """A token with which a machine becomes the terminal."""

    terminal_id: str
    #: Good once, until ``expires_at``.
    token: str
    expires_at: int


class Enrol(Request, frozen=True):
    """A machine becomes a terminal, with the public half of a key of its own."""

    token: str
    keys: PublicKeys
    #: Another name for the terminal; None keeps the one it was created with.
    name: str | None = None

    def __repr__(self) -> str:
        return "Enrol(…)"


class Enrolled(Answer, frozen=True):
    """The identity of a machine that has enrolled."""

    customer_id: str
    terminal_id: str
    name: str
    registry_key: bytes


# -- groups --------------------------------------------------------------------------------------------


class OfTerminalGroup(Request, frozen=True):
    """An operation on one terminal group, by its name."""

    group: str


class CreateGroup(Request, frozen=True):
    """A new terminal group."""

    name: str
    terminals: list[str] = []


class UpdateGroup(OfTerminalGroup, frozen=True):
    """The terminals of a group, in the place of those it has. ``force`` as in RemoveGroup."""

    terminals: list[str]
    force: bool = False


class AddTerminals(OfTerminalGroup, frozen=True):
    """More terminals for a group."""

    terminals: list[str]


class RemoveGroup(OfTerminalGroup, frozen=True):
    """``force`` gives up messages that are held and may be for the group."""

    force: bool = False


class RemoveTerminalFromGroup(OfTerminalGroup, frozen=True):
    """``force`` as in RemoveGroup."""

    terminal: str
    force: bool = False


class TerminalGroup(Answer, frozen=True):
    """A terminal group."""

    name: str
    terminals: list[str]  #: ids
    topics: list[str]  #: topics that the group is an audience of
    created_at: int


class GroupPage(Answer, frozen=True):
    """A page of the list of terminal groups."""

    items: list[TerminalGroup]
    next: str | None = None


# -- topics --------------------------------------------------------------------------------------------


class OfCrossingTopic(Request, frozen=True):
    """An operation on one topic, by its name."""

    topic: str


class CreateTopic(Request, frozen=True):
    """A new topic."""

    name: str
    groups: list[str] = []
    #: Ids of the terminals that may send to it; None = all of the customer's.
    producers: list[str] | None = None
    late_open: LateOpen = "renew"
    ticket_scope: TicketScope = "window"
    #: Seconds in which a ticket can be renewed.
    max_age: float = 7 * 86400.0


class UpdateTopic(OfCrossingTopic, frozen=True):
    """Changes of a topic. A member that isn't given stays as it is."""

    producers: list[str] | UnsetType | None = UNSET
    late_open: LateOpen | UnsetType = UNSET
    ticket_scope: TicketScope | UnsetType = UNSET
    max_age: float | UnsetType = UNSET


class RemoveTopic(OfCrossingTopic, frozen=True):
    """``force`` gives up the messages of the topic that terminals hold."""

    force: bool = False


class AddGroups(OfCrossingTopic, frozen=True):
    """More audiences for a topic."""

    groups: list[str]


class RemoveGroupFromTopic(OfCrossingTopic, frozen=True):
    """``force`` as in RemoveTopic."""

    group: str
    force: bool = False


class TopicKeyVersion(Answer, frozen=True):
    """One version of a topic's key, without the key."""

    kv: int
    made_at: int


class TopicInfo(Answer, frozen=True):
    """A topic, as its admin sees it."""

    name: str
    groups: dict[str, int]  #: group → when it was added
    producers: list[str] | None
    late_open: LateOpen
    ticket_scope: TicketScope
    max_age: float
    keys: list[TopicKeyVersion]  #: newest first: it encrypts, the others only decrypt
    created_at: int


class TopicPage(Answer, frozen=True):
    """A page of the list of topics."""

    items: list[TopicInfo]
    next: str | None = None


# -- services ------------------------------------------------------------------------------------------


class OfCustomerService(Request, frozen=True):
    """An operation on one service, by its name or id."""

    service: str


class RegisterCustomerService(Request, frozen=True):
    """A new service. The members are those of ``core.trust.service.ServiceSpec``."""

    name: str
    scopes: list[str] = []
    version: str = "0.0.0"
    owner: str = ""
    description: str = ""
    publishes: list[str] = []
    subscribes: list[str] = []
    endpoints: list[ServiceEndpoint] = []
    callbacks: dict[str, str] = {}
    health: str = ""
    metadata: dict[str, str] = {}


class UpdateCustomerService(OfCustomerService, frozen=True):
    """Changes of a service. A member that isn't given stays as it is. Where scopes are taken away, the tokens
    that the service has end."""

    scopes: list[str] | UnsetType = UNSET
    version: str | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    publishes: list[str] | UnsetType = UNSET
    subscribes: list[str] | UnsetType = UNSET
    endpoints: list[ServiceEndpoint] | UnsetType = UNSET
    callbacks: dict[str, str] | UnsetType = UNSET
    health: str | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET


class RotateServiceCredential(OfCustomerService, frozen=True):
    """A new credential for a service."""

    #: Seconds that the credential before stays good beside it. 0: it ends now, and all tokens of the service.
    overlap: float = 86400.0


class CustomerServiceCredential(Answer, frozen=True):
    """A credential of a service. Its secret is shown once, in the answer to the request that made it."""

    credential_id: str
    created_at: int
    #: None: it is the newest.
    ends_at: int | None


class CustomerService(Answer, frozen=True):
    """A service, as its admin sees it."""

    service_id: str
    name: str
    state: Literal["active", "suspended"]
    scopes: list[str]
    version: str
    owner: str
    description: str
    publishes: list[str]
    subscribes: list[str]
    endpoints: list[ServiceEndpoint]
    callbacks: dict[str, str]
    health: str
    metadata: dict[str, str]
    created_at: int
    #: None: it is not suspended.
    suspended_at: int | None
    credentials: list[CustomerServiceCredential]  #: newest first


class CustomerServicePage(Answer, frozen=True):
    """A page of the list of services."""

    items: list[CustomerService]
    next: str | None = None


class CreatedServiceCredential(Revealing, frozen=True):
    """A new credential of a service."""

    customer_id: str
    service_id: str
    name: str
    credential_id: str
    #: The registry stores its digest only: keep it safe.
    credential: str


class CreateServiceToken(Request, frozen=True):
    """A token for a service, which shows its credential."""

    #: Name or id.
    service: str
    credential: str
    #: Those that the token is to have; None: all of the service's.
    scopes: list[str] | None = None
    #: Seconds; 600 at most.
    life: float = 600.0

    def __repr__(self) -> str:
        return "CreateServiceToken(…)"


class CreatedServiceToken(Revealing, frozen=True):
    """A token that all terminals of the customer take."""

    customer_id: str
    name: str
    token: str
    token_id: str
    scopes: list[str]
    expires_at: int


class RotateTokenKey(Request, frozen=True):
    """A new key that signs the tokens of all services."""

    #: False: tokens that the keys before have signed end now, as where such a key was stolen. True: the new
    #: key signs in a minute, when terminals know it, and older tokens live to their end.
    keep_old: bool = True


class TokenKeyInfo(Answer, frozen=True):
    """A key that signs the tokens of a customer's services, without its secret."""

    #: The ``kid`` of its tokens.
    key_id: str
    made_at: int
    signs_from: int
    #: None: there is no newer one.
    until: int | None


class TokenKeys(Answer, frozen=True):
    """The keys whose tokens are taken, newest first."""

    items: list[TokenKeyInfo]


# -- by terminals --------------------------------------------------------------------------------------


class IssueTicket(Request, frozen=True):
    """A ticket to send with."""

    topic: str


class RedeemTicket(Request, frozen=True):
    """The content key of a shipment, for its ticket and its box."""

    topic: str
    ticket: bytes
    box: bytes


class RenewTicket(Request, frozen=True):
    """Another five minutes for a ticket."""

    ticket: bytes


class ReadDirectory(Request, frozen=True):
    """A directory that is newer than the one the terminal has."""

    #: Version that the terminal has; 0 = none, or it wants other topics than before.
    version: int = 0
    #: Seconds to wait for a newer one.
    wait: float = 0.0
    #: Topics that are used at the terminal, beside those that it is in a group of.
    topics: list[str] = []


class NewDirectory(Answer, frozen=True):
    """What a terminal has to know, signed by the registry."""

    #: Terminals and groups. May be handed on to other terminals of the customer.
    directory: SignedDirectory
    #: The topics that this terminal sends or receives, and no others.
    topics: SignedDirectory


class PostLinkState(Request, frozen=True):
    """A terminal's report of its links and of the messages that it holds."""

    body: bytes  #: as it was signed
    signature: bytes
    #: Topic → messages that this terminal holds and that a group waits for.
    held: dict[str, int] = {}


class CertificateRequest(Request, frozen=True):
    """A request for a certificate."""

    csr: str  #: PEM


class Certificate(Answer, frozen=True):
    """A terminal's certificate, and that of the authority that signed it."""

    certificate: str  #: PEM
    ca: str  #: PEM
    expires_at: int


# -- links, plans, audit -------------------------------------------------------------------------------


class ReportedLinks(Answer, frozen=True):
    """The newest link state of a terminal, unchanged."""

    terminal_id: str
    received_at: int
    body: bytes
    signature: bytes
    epoch: int
    sequence: int
    #: Neighbour → cost, as this end of the link measures it.
    links: dict[str, float]
    held: dict[str, int]


class Topology(Answer, frozen=True):
    """The newest link states of all terminals."""

    items: list[ReportedLinks]


class PutPlan(Request, frozen=True):
    """A long-term plan of the links between terminals, by their ids."""

    plan: Plan


class PutCustomerPlan(OfCustomer, frozen=True):
    """A long-term plan for any customer."""

    plan: Plan


class StoredPlan(Answer, frozen=True):
    """The long-term plan of a customer."""

    made_at: int
    #: Without terminals that were removed or revoked since it was made.
    plan: Plan


class PlannedPath(Answer, frozen=True):
    """The best path to one terminal."""

    terminal_id: str  #: the destination
    #: The terminals after the source, the destination last: the first one is the next hop.
    hops: list[str]
    cost: float  #: ms


class PlannedPaths(Answer, frozen=True):
    """The best path to every terminal that can be reached."""

    items: list[PlannedPath]


class RegistryInfo(Answer, frozen=True):
    """The registry itself."""

    registry_key: bytes
    version: str


class ReadAudit(Request, frozen=True):
    """One page of audit events: from number ``since`` on, at most ``limit``."""

    since: int = 0
    limit: int = 100


class AuditEvent(Answer, frozen=True):
    """One operation that was done or refused."""

    number: int
    time: int
    #: operator, admin:ID, terminal:ID, service:ID, enrolment, registry, or ? for a caller that was not let in
    who: str
    #: The operation's name, as in the OpenAPI document.
    op: str
    subject: str
    #: "ok", or the code of the refusal.
    outcome: str
    detail: str


class AuditPage(Answer, frozen=True):
    """A page of the audit."""

    items: list[AuditEvent]
    #: The ``since`` of the next page.
    next: int
