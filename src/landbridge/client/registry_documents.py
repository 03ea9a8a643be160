"""What is said to the registry and what it answers: the JSON bodies of its HTTP, both ways.

Requests are strict: a member that isn't known is a mistake and is said so. Answers may grow, so a reader
leaves out what it doesn't know. Moments are microseconds since 1970, spans are seconds, bytes are base64.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from landbridge.core.routing.plan import Plan
from landbridge.core.trust.directory import PublicKeys, SignedDirectory

Mode: TypeAlias = Literal["server", "client"]
LateOpen: TypeAlias = Literal["renew", "sender_only", "never"]
TicketScope: TypeAlias = Literal["window", "message"]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Revealing(Answer, frozen=True):
    """An answer with a secret in it: it can't be printed or logged by mistake."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


# -- customers -----------------------------------------------------------------------------------------


class CreateCustomer(Request, frozen=True):
    name: str


class UpdateCustomer(Request, frozen=True):
    name: str


class Credential(Answer, frozen=True):
    """An admin credential, by its name: the secret itself is shown once, when it is made."""

    credential_id: str
    created_at: int


class Customer(Answer, frozen=True):
    customer_id: str
    name: str
    created_at: int
    credentials: list[Credential]
    directory_version: int
    terminals: int
    groups: int
    topics: int


class CustomerPage(Answer, frozen=True):
    items: list[Customer]
    #: What to give as ``after`` to read on; None at the end.
    next: str | None = None


class CreatedCustomer(Revealing, frozen=True):
    customer_id: str
    name: str
    #: The admin credential. It is nowhere else: keep it safe.
    token: str


class CreatedCredential(Revealing, frozen=True):
    credential_id: str
    token: str


# -- terminals -----------------------------------------------------------------------------------------


class CreateTerminal(Request, frozen=True):
    name: str
    mode: Mode = "server"
    #: lb://host:port or lbs://host:port; a server's must be given before others can dial it.
    address: str = ""
    region: str = ""
    transit: bool = True
    admin_cost: float = 0.0
    #: Of a secure key that was made elsewhere.
    keys: PublicKeys | None = None
    #: False: no key yet, the terminal brings its own when it enrols.
    make_key: bool = True


class UpdateTerminal(Request, frozen=True):
    """What isn't given stays."""

    name: str | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    address: str | UnsetType = UNSET
    region: str | UnsetType = UNSET
    draining: bool | UnsetType = UNSET
    transit: bool | UnsetType = UNSET
    admin_cost: float | UnsetType = UNSET


class RotateKey(Request, frozen=True):
    #: None: the registry makes a secure key and shows it once.
    keys: PublicKeys | None = None
    #: False: the old key ends now. True: both are good until the next rotation.
    keep_old: bool = True


class RotateOwnKey(Request, frozen=True):
    keys: PublicKeys
    keep_old: bool = True


class Terminal(Answer, frozen=True):
    terminal_id: str
    name: str
    mode: Mode
    address: str
    region: str
    keys: list[PublicKeys]  #: newest first; none before it has enrolled
    created_at: int
    #: None: it isn't.
    revoked_at: int | None
    draining: bool
    transit: bool
    admin_cost: float
    #: Topic → messages that it holds for others, by its own last word.
    held: dict[str, int]


class TerminalPage(Answer, frozen=True):
    items: list[Terminal]
    next: str | None = None


class CreatedTerminal(Revealing, frozen=True):
    customer_id: str
    terminal_id: str
    name: str
    #: Shown once; the registry keeps only its public half. None where the terminal brings its own.
    secure_key: str | None
    #: Ed25519, 32 bytes: what signs the directory.
    registry_key: bytes


class RotatedKey(Revealing, frozen=True):
    terminal_id: str
    secure_key: str | None
    keys: list[PublicKeys]


class CreatedEnrolment(Revealing, frozen=True):
    terminal_id: str
    #: Good once, until ``expires_at``.
    token: str
    expires_at: int


class Enrol(Request, frozen=True):
    token: str
    keys: PublicKeys
    #: Another name for the terminal; None keeps the one it was created with.
    name: str | None = None

    def __repr__(self) -> str:
        return "Enrol(…)"


class Enrolled(Answer, frozen=True):
    customer_id: str
    terminal_id: str
    name: str
    registry_key: bytes


# -- groups --------------------------------------------------------------------------------------------


class CreateGroup(Request, frozen=True):
    name: str
    terminals: list[str] = []


class UpdateGroup(Request, frozen=True):
    terminals: list[str]


class AddTerminals(Request, frozen=True):
    terminals: list[str]


class TerminalGroup(Answer, frozen=True):
    name: str
    terminals: list[str]  #: ids
    topics: list[str]  #: those that it is an audience of
    created_at: int


class GroupPage(Answer, frozen=True):
    items: list[TerminalGroup]
    next: str | None = None


# -- topics --------------------------------------------------------------------------------------------


class CreateTopic(Request, frozen=True):
    name: str
    groups: list[str] = []
    #: Ids of the terminals that may send to it; None = all of the customer's.
    producers: list[str] | None = None
    late_open: LateOpen = "renew"
    ticket_scope: TicketScope = "window"
    #: Seconds.
    max_age: float = 7 * 86400.0


class UpdateTopic(Request, frozen=True):
    """What isn't given stays."""

    producers: list[str] | UnsetType | None = UNSET
    late_open: LateOpen | UnsetType = UNSET
    ticket_scope: TicketScope | UnsetType = UNSET
    max_age: float | UnsetType = UNSET


class AddGroups(Request, frozen=True):
    groups: list[str]


class TopicKeyVersion(Answer, frozen=True):
    kv: int
    made_at: int


class Topic(Answer, frozen=True):
    name: str
    groups: dict[str, int]  #: group → when it was added
    producers: list[str] | None
    late_open: LateOpen
    ticket_scope: TicketScope
    max_age: float
    keys: list[TopicKeyVersion]  #: newest first: it encrypts, the others only decrypt
    created_at: int


class TopicPage(Answer, frozen=True):
    items: list[Topic]
    next: str | None = None


# -- tickets -------------------------------------------------------------------------------------------


class IssueTicket(Request, frozen=True):
    topic: str


class RedeemTicket(Request, frozen=True):
    topic: str
    ticket: bytes
    box: bytes


class RenewTicket(Request, frozen=True):
    ticket: bytes


# -- what terminals report and fetch -------------------------------------------------------------------


class ReadDirectory(Request, frozen=True):
    #: The one that is known; 0 = none, or other topics are wanted than before.
    version: int = 0
    #: Seconds to wait for a newer one.
    wait: float = 0.0
    #: Topics that are used at the terminal, beside those that it is in a group of.
    topics: list[str] = []


class DirectoryUpdate(Answer, frozen=True):
    #: Terminals and groups. May be handed on to other terminals of the customer.
    directory: SignedDirectory
    #: Topics: those that this terminal has to do with, and no others.
    topics: SignedDirectory


class PostLinkState(Request, frozen=True):
    body: bytes  #: as it was signed
    signature: bytes
    #: Topic → messages that this terminal holds and that somebody waits for.
    held: dict[str, int] = {}


class ReportedLinks(Answer, frozen=True):
    """The newest link state of a terminal, as it came."""

    terminal_id: str
    received_at: int
    body: bytes
    signature: bytes
    epoch: int
    sequence: int
    #: Neighbour → cost, as this end sees it.
    links: dict[str, float]
    held: dict[str, int]


class Topology(Answer, frozen=True):
    items: list[ReportedLinks]


class PutPlan(Request, frozen=True):
    """A long-term plan, by ids."""

    plan: Plan


class StoredPlan(Answer, frozen=True):
    made_at: int
    #: Without terminals that were removed or revoked since it was made.
    plan: Plan


class PlannedPath(Answer, frozen=True):
    terminal_id: str  #: the destination
    #: The terminals after the source, the destination last: the first one is the next hop.
    hops: list[str]
    cost: float  #: ms


class PlannedPaths(Answer, frozen=True):
    items: list[PlannedPath]


class CertificateRequest(Request, frozen=True):
    csr: str  #: PEM


class Certificate(Answer, frozen=True):
    certificate: str  #: PEM
    ca: str  #: PEM
    expires_at: int


class RegistryInfo(Answer, frozen=True):
    registry_key: bytes
    version: str


# -- audit ---------------------------------------------------------------------------------------------


class AuditEvent(Answer, frozen=True):
    number: int
    time: int
    #: operator, admin:ID, terminal:ID, enrolment, or ? for somebody who wasn't let in
    who: str
    #: The operation's name, as in the OpenAPI document.
    op: str
    subject: str
    #: "ok", or the code of the refusal.
    outcome: str
    detail: str


class AuditPage(Answer, frozen=True):
    items: list[AuditEvent]
    #: What to give as ``since`` to read on.
    next: int
