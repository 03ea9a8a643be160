"""The operations of a terminal: everything that can be asked of it besides moving messages, in one table.

Each entry has a name, a request and an answer as structs, the scope that a token needs, a verb and a path for
HTTP, and a sentence of help. The terminal dispatches by this table, the client's typed methods are made from
it, and so is the reference in docs. To add an operation, add an entry here and a handler in the terminal.

Moments are microseconds since 1970, spans are seconds, sizes are bytes. A request refuses unknown fields. An
answer may gain fields, which older clients ignore.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta
from msgspec import UnsetType as Unset

from landbridge.core.delivery.filters import Match
from landbridge.core.options import LONGEST_QUOTE, explain
from landbridge.core.routing.meter import Parts
from landbridge.core.schedule.spec import Overlap, ScheduleSpec
from landbridge.core.status import Levels
from landbridge.core.topic import GroupSpec, TopicSpec
from landbridge.core.trust.service import ServiceEndpoint, ServiceSpec
from landbridge.core.webhook.spec import Circuit, WebhookAttempt, WebhookSpec
from landbridge.errors import BadRequest

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

Verb: TypeAlias = Literal["GET", "POST", "PATCH", "DELETE"]
#: The scope of an operation that needs no token.
ANYBODY = "anybody"


@dataclass(frozen=True, slots=True)
class Operation(Generic[P, R, A]):
    """One entry of the table. P are the arguments of the request's constructor, R is the request, A the
    answer."""

    #: "topic.create": a noun and a verb.
    name: str
    request: Callable[P, R]
    #: A struct, or what msgspec can convert to; NoneType where there is nothing to say.
    answer: type[A]
    #: What a token needs, alternatives separated by "|": a rank ("observe", "operate", "admin"), or a verb.
    #: In "publish:{topic}" the field ``topic`` of the request holds a topic's name, None, or several names;
    #: in "observe|publish|subscribe:{topic}" the rank, or one of the two verbs, is enough. "self:{name}": the
    #: field is the caller's own name. Empty: any token may ask, and the handler shows only what the token may
    #: see. ANYBODY: a stranger may ask, without a token.
    scope: str
    #: True: nothing is changed by it.
    safe: bool
    verb: Verb
    #: Names in braces are fields of the request. The other fields are the query of a GET or DELETE, and the
    #: body of the others.
    path: str
    help: str

    def read(self, arguments: dict[str, Any]) -> R:
        """The request that arguments from outside make. BadRequest says which of them is wrong."""
        try:
            request: R = msgspec.convert(arguments, self.request)
        except msgspec.ValidationError as error:
            raise self._mistake(error, arguments) from None
        return request

    def _mistake(self, error: msgspec.ValidationError, arguments: dict[str, Any]) -> BadRequest:
        kind: Any = self.request
        fields = msgspec.structs.fields(kind)
        names = [field.name for field in fields]
        takes = f"it takes {', '.join(names) or 'none'}"
        for name in arguments:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}? {takes}" if near else takes
                return BadRequest(f"{self.name}: there is no argument {name[:LONGEST_QUOTE]!r}", hint=hint)
        missing = [field.name for field in fields if field.required and field.name not in arguments]
        if missing:
            return BadRequest(f"{self.name}: {' and '.join(missing)} missing", hint=takes)
        message, hint = explain(error, kind)
        return BadRequest(f"{self.name}: {message}", hint=hint)


def about(text: str) -> Meta:
    """What a field means."""
    return Meta(description=text)


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The arguments of an operation. Those that name a thing may be given by position."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation returns."""


# -- what several of them have -------------------------------------------------------------------------

TopicName = Annotated[str, about("Name of the topic.")]
GroupName = Annotated[str, about("Name of the group.")]
Kind = Annotated[Literal["stream", "queue", "work"], about("What the topic is.")]
Discipline = Annotated[Literal["fifo", "lifo", "priority"], about("The order of delivery.")]
After = Annotated[str, about("The 'next' of the page before; empty for the first page.")]
Next = Annotated[str, about("Where the next page begins; empty on the last page.")]
Force = Annotated[bool, about("Delete it although messages are not settled.")]
Limit = Annotated[int, about("Rows of this page at most; a terminal gives no more than 1000.")]
Level = Literal["off", "errors", "batches", "messages"]
MessageId = Annotated[str, about("Id of the message.")]
InTopic = Annotated[str | None, about("Look only in this topic. Ids that a producer chose need it.")]
StageName = Annotated[str, about("Name of the stage.")]
TerminalName = Annotated[str, about("Name of the terminal.")]
ArrivedAt = Annotated[int, about("When it arrived there, in microseconds; 0 if that is not known.")]
LogId = Annotated[
    str, about("Identity of the log: terminal, number and creation. A topic made anew has another one.")
]
Names = list[str]
SCOPES_HELP = "publish:PATTERN, subscribe:PATTERN, documents:PATTERN, observe, operate or admin."
Until: TypeAlias = Literal["stored", "arrived", "acked"]
Place: TypeAlias = Literal["earliest", "latest"]


# -- topics --------------------------------------------------------------------------------------------


class RetentionOptions(Arguments, frozen=True, kw_only=True):
    """What of a topic's retention is to be set. An update leaves the rest as it is."""

    settled: Annotated[
        bool | Unset, about("Remove a message when every group has settled it; the default of a queue.")
    ] = UNSET
    max_age: Annotated[float | Unset | None, about("Seconds; None keeps for ever. Default: 7 days.")] = UNSET
    max_bytes: Annotated[int | Unset | None, about("Bytes of stored batches; None: no limit.")] = UNSET
    discard: Annotated[
        Literal["settled", "any"] | Unset,
        about("'settled' (default): age and size remove what all groups have settled; 'any': anything."),
    ] = UNSET


class OfTopic(Arguments, frozen=True):
    """A topic by its name."""

    name: TopicName


class TopicOptions(OfTopic, frozen=True, kw_only=True):
    """A topic and its options. Those that are not given have their defaults, or stay in an update."""

    kind: Annotated[
        Literal["stream", "queue", "work"] | Unset,
        about(
            "'stream' (default): any producers and groups; 'queue': one producer, one consumer; "
            "'work': any producers, and consumers that share the messages of one group."
        ),
    ] = UNSET
    retention: Annotated[RetentionOptions | Unset, about("How long messages are kept.")] = UNSET
    max_backlog: Annotated[
        int | Unset, about("Bytes that the slowest group may be behind before publishes are refused.")
    ] = UNSET
    producer: Annotated[
        str | Unset | None, about("The subject that alone may publish to a queue; None: who comes first.")
    ] = UNSET
    delivery: Annotated[
        Literal["at-least-once", "at-most-once"] | Unset,
        about("Of a queue or a work queue: 'at-most-once' settles on delivery."),
    ] = UNSET
    prefetch: Annotated[
        int | Unset, about("Of a work queue: messages that a consumer may hold; 16 by default.")
    ] = UNSET
    discipline: Annotated[
        Literal["fifo", "lifo", "priority"] | Unset,
        about("The order in groups that name none; 'fifo' by default."),
    ] = UNSET
    ids: Annotated[
        Literal["any", "unique"] | Unset,
        about("'unique': a message whose id is known is not stored a second time; 'any' by default."),
    ] = UNSET


class TopicDelete(OfTopic, frozen=True, kw_only=True):
    """A topic to delete."""

    force: Force = False


class TopicList(Arguments, frozen=True, kw_only=True):
    """A page of the topics."""

    after: After = ""
    limit: Limit = 1000


class TopicWait(Arguments, frozen=True):
    """Offsets to wait for."""

    offsets: Annotated[dict[str, int], about("For each topic the offset that a message is awaited at.")]
    within: Annotated[float, about("Seconds to wait, at most 60.")] = 0.0


class TopicWatch(Arguments, frozen=True):
    """Patterns of topics to follow, and how far the caller knows of their changes."""

    patterns: Annotated[list[str], about("Names, where '*' is one word and '#' any number; 100 at most.")]
    since: Annotated[str, about("The 'since' of the answer before; empty: all topics are told.")] = ""
    within: Annotated[float, about("Seconds to wait for a change, at most 60.")] = 0.0


class TopicSeekTime(Arguments, frozen=True):
    """Moments to find in the logs of topics."""

    times: Annotated[dict[str, int], about("For each topic a moment in microseconds.")]


class TopicFacts(Result, frozen=True, kw_only=True):
    """A topic and its log."""

    name: TopicName
    kind: Kind
    first: Annotated[int, about("The oldest offset that the log has.")]
    end: Annotated[int, about("The offset that the next message will get.")]
    messages: Annotated[int, about("Messages in the log.")]
    bytes: Annotated[int, about("Bytes of the log.")]
    created_at: Annotated[int, about("When it was made, in microseconds.")]
    log: LogId


class TopicBounds(Result, frozen=True, kw_only=True):
    """What a topic's log has, and what shows whether an offset is of its history."""

    first: Annotated[int, about("The oldest offset that the log has.")]
    end: Annotated[int, about("The offset that the next message will get.")]
    log: LogId
    before: Annotated[
        int | None,
        about("Time of the message before the offset asked for; None: the log doesn't have that message."),
    ]
    newest: Annotated[int | None, about("Time of the last message; None: the log is empty.")]


class TopicRow(TopicFacts, frozen=True, kw_only=True):
    """A topic, in short."""

    groups: Annotated[int, about("The number of its groups.")]


class TopicRows(Result, frozen=True, kw_only=True):
    """Some of the topics, by name."""

    topics: Annotated[list[TopicRow], about("The topics of this page.")]
    next: Next


class TopicNews(Result, frozen=True, kw_only=True):
    """Topics that patterns cover and that the token can subscribe."""

    topics: Annotated[Names, about("Those that are new; where 'whole' is true, all there are.")]
    gone: Annotated[Names, about("Those that were deleted.")]
    whole: Annotated[bool, about("These are all: what is not named is not there.")]
    more: Annotated[int, about("Further topics that were left out, as one answer names at most 1000.")]
    since: Annotated[str, about("What to ask with next.")]


class Deleted(Result, frozen=True, kw_only=True):
    """What was deleted."""

    deleted: Annotated[str, about("A topic's name, TOPIC/GROUP, or COLLECTION/KEY.")]


# -- groups --------------------------------------------------------------------------------------------


class OfGroup(Arguments, frozen=True):
    """A group by its topic and its name."""

    topic: TopicName
    name: GroupName


class GroupOptions(OfGroup, frozen=True, kw_only=True):
    """A group and its options. Those that are not given have their defaults, or stay in an update."""

    discipline: Annotated[
        Literal["fifo", "lifo", "priority"] | Unset, about("The order; its topic's by default.")
    ] = UNSET
    order: Annotated[
        Literal["any", "key"] | Unset,
        about("'key': a key's next message goes when the one before is settled; 'any' (default): at once."),
    ] = UNSET
    ack_within: Annotated[
        float | Unset, about("Seconds until an unsettled message comes again; 30 by default.")
    ] = UNSET
    max_attempts: Annotated[int | Unset, about("Attempts before a message is buried; 10 by default.")] = UNSET
    backoff: Annotated[
        float | Unset, about("Seconds before the second attempt, then doubled; 1 by default.")
    ] = UNSET
    backoff_most: Annotated[float | Unset, about("The longest backoff in seconds; 60 by default.")] = UNSET
    dead_letter: Annotated[
        str | Unset | None, about("Topic for buried messages; None: TOPIC.dead; '': they are dropped.")
    ] = UNSET
    match: Annotated[
        Match | Unset | None, about("Patterns for 'key' and 'headers' of what the group gets.")
    ] = UNSET
    hours: Annotated[
        Names | Unset,
        about("When it hands out messages: 'mon-fri 08:00-18:00 Europe/Berlin' …; none: always."),
    ] = UNSET


class GroupCreate(GroupOptions, frozen=True, kw_only=True):
    """A group to make, and where it begins. Without ``start`` and ``offset`` it begins at the earliest."""

    start: Annotated[Place | int | None, about("'earliest', 'latest' or a moment in microseconds.")] = None
    offset: Annotated[int | None, about("The first offset that it gets, instead of a start.")] = None


class GroupDelete(OfGroup, frozen=True, kw_only=True):
    """A group to delete."""

    force: Force = False


class GroupList(Arguments, frozen=True, kw_only=True):
    """A page of the groups."""

    topic: Annotated[str | None, about("Groups of this topic alone; None: of all topics.")] = None
    after: After = ""


class GroupSeek(OfGroup, frozen=True, kw_only=True):
    """A group to move, and where to. Give one of the two."""

    to: Annotated[Place | int | None, about("An offset, 'earliest' or 'latest'.")] = None
    time: Annotated[int | None, about("A moment: the first message taken at or after it.")] = None


class GroupAdvance(OfGroup, frozen=True, kw_only=True):
    """A group whose consumer reads by offset, and how far it has come."""

    to: Annotated[int, about("Everything below this offset is settled.")]
    log: Annotated[str | None, about("The log that the offset is of; another one is refused. None: any.")] = (
        None
    )


class GroupFacts(Result, frozen=True, kw_only=True):
    """A group and its cursor."""

    topic: TopicName
    name: GroupName
    discipline: Discipline
    floor: Annotated[int, about("Everything below this offset is settled.")]
    lag: Annotated[int, about("Messages that are not settled.")]
    leased: Annotated[int, about("Messages that consumers hold and have not settled.")]
    retrying: Annotated[int, about("Messages that have failed and will be tried again.")]
    durable: Annotated[bool, about("False: it ends with its consumer.")]


class GroupRow(GroupFacts, frozen=True, kw_only=True):
    """A group, in short."""

    consumers: Annotated[int, about("The number of its consumers.")]


class GroupRows(Result, frozen=True, kw_only=True):
    """Some of the groups, by topic and name."""

    groups: Annotated[list[GroupRow], about("The groups of this page.")]
    next: Next


class ConsumerRow(Result, frozen=True, kw_only=True):
    """A consumer of a group."""

    who: Annotated[str, about("Its token's subject, its address and what it calls itself.")]
    held: Annotated[int, about("Messages that it holds and has not settled.")]
    prefetch: Annotated[int, about("Messages that it may hold.")]


class GroupDetails(GroupFacts, frozen=True, kw_only=True):
    """A group with its options and consumers."""

    options: Annotated[GroupSpec, about("Its options, as group.create takes them.")]
    closed_until: Annotated[
        int | None, about("Its opening hours begin then, in microseconds; None: it is open.")
    ] = None
    consumers: Annotated[list[ConsumerRow], about("Its consumers at this terminal.")]


class TopicDetails(TopicFacts, frozen=True, kw_only=True):
    """A topic with its options and groups."""

    options: Annotated[TopicSpec, about("Its options, as topic.create takes them.")]
    groups: Annotated[list[GroupRow], about("Its groups at this terminal.")]
    crossing: Annotated[Names | None, about("Its groups at all terminals; None: the registry knows none.")]


class Redriven(Result, frozen=True, kw_only=True):
    """The outcome of a redrive."""

    redriven: Annotated[int, about("Dead letters that went back to the group.")]


# -- tokens --------------------------------------------------------------------------------------------


class TokenCreate(Arguments, frozen=True):
    """A token to make."""

    subject: Annotated[str, about("The service that it is for.")]
    scopes: Annotated[list[str], about(SCOPES_HELP)]
    life: Annotated[float, about("Seconds until it expires.")] = 3600.0


class TokenList(Arguments, frozen=True, kw_only=True):
    """A page of the tokens that were made here and have not expired."""

    subject: Annotated[str | None, about("Tokens of this service alone; None: of all.")] = None
    after: After = ""


class TokenRevoke(Arguments, frozen=True, kw_only=True):
    """Tokens to revoke. Give one of the two."""

    id: Annotated[str | None, about("One token.")] = None
    subject: Annotated[str | None, about("A service, with every token that it has or will get.")] = None


class TokenMade(Result, frozen=True, kw_only=True):
    """A fresh token. The terminal keeps everything but the token itself."""

    token: Annotated[str, about("The token, for LANDBRIDGE_TOKEN or connect(token=…).")]
    id: Annotated[str, about("Names it in token.list and token.revoke.")]
    subject: Annotated[str, about("The service that it is for.")]
    expires_at: Annotated[int, about("When it expires, in microseconds.")]


class TokenRow(Result, frozen=True, kw_only=True):
    """A token, in short."""

    id: Annotated[str, about("Names it in token.revoke.")]
    subject: Annotated[str, about("The service that it is for.")]
    scopes: Annotated[list[str], about("What its bearer may do.")]
    issued_at: Annotated[int, about("When it was made, in microseconds.")]
    expires_at: Annotated[int, about("When it expires, in microseconds.")]
    revoked: Annotated[bool, about("It is no longer accepted.")]


class TokenRows(Result, frozen=True, kw_only=True):
    """Some of the tokens, from the one that expires first."""

    tokens: Annotated[list[TokenRow], about("The tokens of this page.")]
    next: Next


class Revoked(Result, frozen=True, kw_only=True):
    """What was revoked."""

    revoked: Annotated[str, about("A token's id, or sub:SUBJECT.")]
    tokens: Annotated[int, about("How many tokens it ends that were made here and have not expired.")]


# -- services ------------------------------------------------------------------------------------------

ServiceName = Annotated[str, about("Name of the service.")]
ServiceStatus: TypeAlias = Literal["active", "suspended", "revoked"]
Health: TypeAlias = Literal["ok", "degraded", "failing"]
Note = Annotated[str, about("Why, for whoever looks; 2000 characters at most.")]
SeenAt = Annotated[
    int | None, about("When the terminal heard from it last, in microseconds; None: not since the start.")
]
LiveConnections = Annotated[int, about("Its connections to this terminal.")]
Requests = Annotated[int, about("Messages or requests that it has handled.")]
Errors = Annotated[int, about("How many of them failed.")]
LastError = Annotated[str, about("The last failure; empty: there was none.")]
Processing = Annotated[float, about("Seconds that it took to handle them, in all.")]
P50 = Annotated[float | None, about("Seconds: half of them took no longer; None where not known.")]
P99 = Annotated[float | None, about("Seconds: 99 of 100 took no longer; None where not known.")]


class OfService(Arguments, frozen=True):
    """A service by its name."""

    name: ServiceName


class ServiceDescription(OfService, frozen=True, kw_only=True):
    """A service and what it says of itself. What is not given has its default, or stays in an update."""

    version: Annotated[str | Unset, about("Its version, as semver.org has it; 0.0.0 by default.")] = UNSET
    owner: Annotated[str | Unset, about("Who answers for it: a person or a team.")] = UNSET
    description: Annotated[str | Unset, about("What it is for.")] = UNSET
    publishes: Annotated[Names | Unset, about("Patterns of topics that it publishes; for readers.")] = UNSET
    subscribes: Annotated[Names | Unset, about("Patterns of topics that it reads; for readers.")] = UNSET
    endpoints: Annotated[list[ServiceEndpoint] | Unset, about("What it handles or answers.")] = UNSET
    callbacks: Annotated[dict[str, str] | Unset, about("Where outcomes go: name → URL, or topic:NAME.")] = (
        UNSET
    )
    health: Annotated[
        str | Unset, about("A URL that answers 2xx while it is well; empty: its heartbeats tell.")
    ] = UNSET
    metadata: Annotated[dict[str, str] | Unset, about("Anything else, as texts by name.")] = UNSET
    scopes: Annotated[Names | Unset, about(f"What it may do at most: {SCOPES_HELP}")] = UNSET


class ServiceRegister(ServiceDescription, frozen=True, kw_only=True):
    """A service to register."""

    credential: Annotated[
        bool, about("Make a credential for it; False for a service that gets its tokens otherwise.")
    ] = True


class ServiceList(Arguments, frozen=True, kw_only=True):
    """A page of the services."""

    after: After = ""
    limit: Limit = 1000


class ServiceSuspend(OfService, frozen=True, kw_only=True):
    """A service to suspend."""

    note: Note = ""


class ServiceRotate(OfService, frozen=True, kw_only=True):
    """A service that is to get another credential."""

    overlap: Annotated[
        float, about("Seconds for which the credential that it has stays good, at most 30 days.")
    ] = 0.0


class ServiceTrade(Arguments, frozen=True):
    """A service's credential, to be traded for a token."""

    service: ServiceName
    credential: Annotated[str, about("The credential, lbsc1_….")]
    scopes: Annotated[
        Names | None, about("Scopes that the token is to have, within the service's; None: all of them.")
    ] = None


class EndpointFigures(Arguments, frozen=True, kw_only=True):
    """What an endpoint has done since its service started."""

    name: Annotated[str, about("Name of the endpoint.")]
    requests: Requests = 0
    errors: Errors = 0
    last_error: LastError = ""
    processing: Processing = 0.0
    p50: P50 = None
    p99: P99 = None


class ServiceHeartbeat(OfService, frozen=True, kw_only=True):
    """What a service says of its own health."""

    health: Annotated[Health, about("How it is.")] = "ok"
    detail: Annotated[str, about("Why, where it is not well; 2000 characters at most.")] = ""
    instance: Annotated[str, about("Tells processes of one service apart, 200 characters at most.")] = ""
    endpoints: Annotated[list[EndpointFigures], about("Figures of its endpoints, 100 at most.")] = []


class ServiceFacts(Result, frozen=True, kw_only=True):
    """A service, as the terminal has it."""

    name: ServiceName
    state: Annotated[ServiceStatus, about("'suspended' and 'revoked': none of its tokens is accepted.")]
    note: Note
    registered_at: Annotated[int, about("When it was registered, in microseconds.")]
    changed_at: Annotated[int, about("When its registration was last changed, in microseconds.")]
    implied: Annotated[
        bool, about("Registered by a token that was made for it; its scopes follow its tokens.")
    ]
    connections: LiveConnections
    seen_at: SeenAt
    health: Annotated[Health | None, about("By its last heartbeat; None: there was none for a while.")]


class ServiceRow(ServiceFacts, frozen=True, kw_only=True):
    """A service, in short."""

    version: Annotated[str, about("Its version.")]
    owner: Annotated[str, about("Who answers for it.")]
    description: Annotated[str, about("What it is for.")]
    scopes: Annotated[Names, about("What it may do at most.")]


class ServiceRows(Result, frozen=True, kw_only=True):
    """Some of the services, by name."""

    services: Annotated[list[ServiceRow], about("The services of this page.")]
    next: Next


class CredentialRow(Result, frozen=True, kw_only=True):
    """A credential of a service, without its secret."""

    made_at: Annotated[int, about("When it was made, in microseconds.")]
    ends_at: Annotated[int | None, about("When it ends, in microseconds; None: with the next rotation.")]


class ServiceDetails(ServiceFacts, frozen=True, kw_only=True):
    """A service with all that it says of itself."""

    options: Annotated[ServiceSpec, about("As service.register takes them.")]
    credentials: Annotated[list[CredentialRow], about("Its credentials, newest first.")]


class ServiceRegistered(ServiceDetails, frozen=True, kw_only=True):
    """A service was registered, or was there as it is to be."""

    credential: Annotated[
        str | None, about("Its credential, which is shown only now; None where it has one already.")
    ]


class ServiceCredential(Result, frozen=True, kw_only=True):
    """A new credential."""

    name: ServiceName
    credential: Annotated[str, about("The credential, which is shown only now.")]
    before_ends_at: Annotated[
        int | None, about("When the one before ends, in microseconds; None: there is none.")
    ]


class ServiceToken(Result, frozen=True, kw_only=True):
    """A token of a few minutes."""

    token: Annotated[str, about("The token: Authorization: Bearer TOKEN, or connect(token=…).")]
    service: ServiceName
    scopes: Annotated[Names, about("What its bearer may do.")]
    expires_at: Annotated[int, about("When it expires, in microseconds.")]
    expires_in: Annotated[float, about("Seconds until then.")]


class ServicePing(Result, frozen=True, kw_only=True):
    """Whether a service is there."""

    name: ServiceName
    state: Annotated[ServiceStatus, about("'suspended' and 'revoked': none of its tokens is accepted.")]
    connections: LiveConnections
    seen_at: SeenAt
    age: Annotated[
        float | None, about("Seconds since the last sign of life; None: not since the terminal's start.")
    ]
    answered: Annotated[
        bool, about("The service answered just now; False: the age is that of what came on its own account.")
    ]


class ServiceInfo(Result, frozen=True, kw_only=True):
    """What a service is."""

    name: ServiceName
    version: Annotated[str, about("Its version.")]
    owner: Annotated[str, about("Who answers for it.")]
    description: Annotated[str, about("What it is for.")]
    metadata: Annotated[dict[str, str], about("Anything else, as texts by name.")]
    publishes: Annotated[Names, about("Patterns of topics that it publishes.")]
    subscribes: Annotated[Names, about("Patterns of topics that it reads.")]
    endpoints: Annotated[list[ServiceEndpoint], about("What it handles or answers.")]
    instances: Annotated[Names, about("Its processes, by the names that their heartbeats give.")]


class EndpointStats(Result, frozen=True, kw_only=True):
    """What an endpoint has done in all processes of its service."""

    name: Annotated[str, about("Name of the endpoint.")]
    requests: Requests
    errors: Errors
    last_error: LastError
    processing: Processing
    p50: Annotated[float | None, about("Seconds, of the slowest process.")]
    p99: Annotated[float | None, about("Seconds, of the slowest process.")]


class InstanceStats(Result, frozen=True, kw_only=True):
    """The last heartbeat of one process of a service."""

    instance: Annotated[str, about("Its name; empty where it gives none.")]
    health: Annotated[Health, about("How it is.")]
    detail: Annotated[str, about("Why.")]
    started_at: Annotated[int, about("When its first heartbeat came, in microseconds.")]
    seen_at: Annotated[int, about("When its last one came, in microseconds.")]


class ServiceStats(Result, frozen=True, kw_only=True):
    """What a service has done, by the heartbeats that came since the terminal's start."""

    name: ServiceName
    connections: LiveConnections
    seen_at: SeenAt
    health: Annotated[Health | None, about("The worst of its processes; None: no heartbeat for a while.")]
    instances: Annotated[list[InstanceStats], about("Its processes.")]
    endpoints: Annotated[list[EndpointStats], about("Its endpoints.")]


# -- status, and the terminal itself -------------------------------------------------------------------


class StatusLevels(Arguments, frozen=True, kw_only=True):
    """Status levels to set. What is not given stays; without any, nothing is changed."""

    default: Annotated[Level | Unset, about("For everything that is not named below.")] = UNSET
    topics: Annotated[dict[str, Level] | Unset, about("By topic.")] = UNSET
    producers: Annotated[dict[str, Level] | Unset, about("By the subject that publishes.")] = UNSET
    consumers: Annotated[dict[str, Level] | Unset, about("By the subject that consumes.")] = UNSET
    topic: Annotated[
        str | Unset, about("A topic that the status log is written to as well; empty: none.")
    ] = UNSET


class StatusNote(Arguments, frozen=True):
    """Something that a gateway saw go wrong."""

    cause: Annotated[str, about("A short word for the reason, such as an error's code.")]
    detail: Annotated[str, about("What happened; cut after 1024 characters.")] = ""
    topic: Annotated[str, about("The topic concerned; empty for none.")] = ""
    messages: Annotated[int, about("Messages concerned.")] = 0


class Nothing(Arguments, frozen=True):
    """No arguments."""


class TerminalInfo(Result, frozen=True, kw_only=True):
    """A terminal."""

    name: TerminalName
    version: Annotated[str, about("Version of Landbridge.")]
    protocol: Annotated[int, about("Version of the wire protocol.")]
    python: Annotated[str, about("Version of Python.")]
    platform: Annotated[str, about("Operating system.")]
    time: Annotated[int, about("Its clock, in microseconds.")]
    started_at: Annotated[int, about("When it was started, in microseconds.")]
    start: Annotated[int, about("The number of this start, from 1.")]
    topics: Annotated[int, about("The number of its topics.")]
    connections: Annotated[int, about("The number of its connections.")]
    store: Annotated[str, about("Its store's driver.")]
    incarnation: Annotated[str, about("Which life of its store this is: another one after a restore.")] = ""
    free: Annotated[int | None, about("Bytes free on the disk of its data; None where not known.")] = None
    low: Annotated[bool, about("It has no room for messages: publishes are refused.")] = False
    damage: Annotated[list[str], about("What was found damaged since the start, 100 at most.")] = []


# -- stages --------------------------------------------------------------------------------------------


class OfStage(Arguments, frozen=True):
    """A stage by its name."""

    stage: StageName


class StageCommit(OfStage, frozen=True, kw_only=True):
    """Rows on a stage to publish."""

    number: Annotated[int, about("Number of the commit; each number of a stage is decided once.")]
    log: Annotated[int | None, about("Number of the stage's log that the runs are in; None without runs.")]
    runs: Annotated[list[tuple[str, list[tuple[int, int]]]], about("By topic, the (first, end) of offsets.")]


class StageDrop(OfStage, frozen=True, kw_only=True):
    """A stage to empty."""

    forget: Annotated[bool, about("Also forget the number of its last commit.")] = False


class StageDecided(Result, frozen=True, kw_only=True):
    """The outcome of a commit. Whatever it says, the commit of this number is published."""

    decided: Annotated[bool, about("This call decided it; False: an earlier one had.")]


class StageShown(Result, frozen=True, kw_only=True):
    """A stage."""

    number: Annotated[int | None, about("Number of its last commit; None if there was none.")]


# -- messages ------------------------------------------------------------------------------------------


class MessageWait(Arguments, frozen=True):
    """A message that was published here, and how far to wait for it."""

    topic: TopicName
    offset: Annotated[int, about("Its offset.")]
    until: Annotated[Until, about("'arrived': at a terminal of each group; 'acked': there.")] = "arrived"
    within: Annotated[
        float | None, about("Seconds, after which it is refused as timed_out; without, as long as it takes.")
    ] = None


class OfMessage(Arguments, frozen=True):
    """A message by its id."""

    id: MessageId
    topic: InTopic = None
    offset: Annotated[
        int | None, about("Its offset in that topic, where it is known: nothing is searched then.")
    ] = None


class MessageReached(Result, frozen=True, kw_only=True):
    """The message is where it was waited for."""

    topic: TopicName
    offset: Annotated[int, about("Its offset.")]
    until: Annotated[Until, about("What was waited for.")]


class GroupPlace(Result, frozen=True, kw_only=True, omit_defaults=True):
    """A message, seen from one group."""

    group: GroupName
    at: Annotated[str, about("The terminal where it is.")]
    state: Annotated[str, about("waiting, leased, settled, on a link, on its way, arrived.")]
    waits_for: Annotated[str, about("What has to happen next; empty if nothing is known.")]
    route: Annotated[Names, about("The terminals that it was sent by; empty if it was not sent.")]
    to: Annotated[str, about("The terminal that it goes to, if another one serves the group.")] = ""
    came_by: Annotated[Names, about("The terminals that it has passed.")] = []
    arrived_at: ArrivedAt = 0
    said: Annotated[str, about("Why no more is known.")] = ""


class MessagePlace(Result, frozen=True, kw_only=True):
    """A message in one topic's log at this terminal."""

    id: MessageId
    topic: TopicName
    terminal: TerminalName
    offset: Annotated[int, about("Its offset there.")]
    published_at: Annotated[int, about("When it was published, in microseconds.")]
    came_by: Annotated[Names, about("The terminals that it has passed; empty if it was published here.")]
    arrived_at: ArrivedAt
    groups: Annotated[list[GroupPlace], about("Where it is for each group.")]


class MessagePlaces(Result, frozen=True, kw_only=True):
    """Where a message is."""

    places: Annotated[list[MessagePlace], about("The logs of this terminal that have it.")]


class GroupReason(Result, frozen=True, kw_only=True, omit_defaults=True):
    """Why a message went where it did, for one group."""

    group: GroupName
    offset: Annotated[int, about("Its offset here.")]
    terminal: Annotated[str, about("The terminal that it went to; empty if none was found yet.")]
    terminal_why: Annotated[str, about("Why that terminal.")]
    routes: Annotated[list[Names], about("The routes that were tried, each as terminals.")]
    route_why: Annotated[str, about("Why the last one of them.")]
    sent_at: Annotated[int, about("When it was sent, in microseconds; 0: not yet.")] = 0
    kept_at: Annotated[int, about("When the first hop had it on disk, in microseconds; 0: not yet.")] = 0
    arrived_at: ArrivedAt = 0


class MessageReasons(Result, frozen=True, kw_only=True):
    """Why a message went where it did."""

    id: MessageId
    groups: Annotated[list[GroupReason], about("For each group that another terminal may serve.")]


# -- routes, topology, network -------------------------------------------------------------------------


class RouteShow(Arguments, frozen=True):
    """Two terminals, by name or id."""

    there: Annotated[str, about("Where the route ends.")]
    source: Annotated[str | None, about("Where it begins; None: this terminal.")] = None


class Between(Result, frozen=True, kw_only=True):
    """Two terminals, by name."""

    from_: Annotated[str, about("One end.")] = msgspec.field(name="from")
    to: Annotated[str, about("The other end.")]


class PathCost(Result, frozen=True, kw_only=True):
    """A path between terminals."""

    hops: Annotated[Names, about("The terminals, both ends included.")]
    cost: Annotated[float, about("Sum of its links' costs, in milliseconds.")]


class LinkCost(Between, frozen=True, kw_only=True):
    """What a link costs, and why."""

    cost: Annotated[float, about("Milliseconds: the greater of what the two ends say.")]
    here_says: Annotated[float | None, about("What the first end says; None: nothing any more.")]
    there_says: Annotated[float | None, about("What the second end says; None: nothing any more.")]
    planned: Annotated[float | None, about("What the long-term plan says; None: nothing.")]
    parts: Annotated[Parts | None, about("How the cost came about, for a link of this terminal.")]


class RouteShown(Between, frozen=True, kw_only=True):
    """The paths between two terminals."""

    best: Annotated[PathCost | None, about("The cheapest now; None: there is no path.")]
    current: Annotated[PathCost | None, about("The one in use; None: none is.")]
    why: Annotated[str, about("Why the current one is in use, or why there is no path.")]
    alternates: Annotated[list[PathCost], about("Other paths.")]
    links: Annotated[list[LinkCost], about("The links of all these paths.")]


class KnownTerminal(Result, frozen=True, kw_only=True):
    """A terminal of the customer, as this terminal sees it."""

    id: Annotated[str, about("Its id.")]
    name: TerminalName
    mode: Annotated[str, about("'server': it listens; 'client': it only dials.")]
    region: Annotated[str, about("Where it is; empty if nobody has said.")]
    address: Annotated[str, about("Where it listens; empty for a client.")]
    transit: Annotated[bool, about("Others may send through it.")]
    alive: Annotated[bool, about("It tells the others of its links.")]
    reachable: Annotated[bool, about("There is a path to it.")]
    consumers: Annotated[int, about("Consumers connected to it.")]
    load: Annotated[float, about("How busy it is, from 0 to 1.")]
    draining: Annotated[bool, about("It is being emptied and gets nothing new.")]


class KnownLink(Between, frozen=True, kw_only=True):
    """A link between two terminals."""

    cost: Annotated[float | None, about("Milliseconds; None while only one end tells of it.")]
    up: Annotated[bool, about("Both ends tell of it.")]


class TopologyShown(Result, frozen=True, kw_only=True):
    """The terminals of the customer and their links."""

    me: Annotated[str, about("The terminal that answers.")]
    registry_up: Annotated[bool, about("The registry answers this terminal.")]
    directory_version: Annotated[int, about("Version of the directory that it has.")]
    terminals: Annotated[list[KnownTerminal], about("All terminals of the directory.")]
    links: Annotated[list[KnownLink], about("All links that a terminal has told of.")]
    failures: Annotated[dict[str, str], about("By terminal: why there is no link to it.")]
    single_points: Annotated[dict[str, Names], about("By terminal: which others it would cut off.")]


class PlacementRow(Result, frozen=True, kw_only=True):
    """Which terminal serves a group."""

    topic: TopicName
    group: GroupName
    to: Annotated[str, about("The terminal that gets its messages; empty if none was found.")]
    why: Annotated[str, about("Why that one.")]
    since: Annotated[int, about("Since when, in microseconds.")]


class LaneRow(Result, frozen=True, kw_only=True):
    """What goes from this terminal to another one, of one topic."""

    topic: TopicName
    to: Annotated[str, about("The terminal.")]
    on_the_way: Annotated[int, about("Shipments that have not been confirmed.")]
    bytes: Annotated[int, about("Bytes of these shipments.")]
    waits_for: Annotated[str, about("What has to happen before more is sent; empty: nothing.")]


class NetworkShown(Result, frozen=True, kw_only=True):
    """What goes on between this terminal and the others."""

    terminal: Annotated[str, about("Id of this terminal.")]
    customer: Annotated[str, about("Its customer.")]
    mode: Annotated[str, about("'server' or 'client'.")]
    registry_up: Annotated[bool, about("The registry answers.")]
    refusal: Annotated[str, about("Why the registry refuses this terminal; empty: it does not.")]
    certificate_ends_at: Annotated[int, about("When the registry's certificate ends; 0: it has none.")]
    links: Annotated[Names, about("The terminals that it has a link to.")]
    failures: Annotated[dict[str, str], about("By terminal: why there is no link to it.")]
    forwarder: Annotated[dict[str, int], about("Counts of what was sent, since the start.")]
    arrivals: Annotated[dict[str, int], about("Counts of what has arrived, since the start.")]
    carrier: Annotated[dict[str, int], about("Counts of parcels on links, since the start.")]
    in_transit: Annotated[int, about("Parcels of others that it keeps.")]
    awaiting_key: Annotated[int, about("Parcels that wait for the key to open them.")]
    placements: Annotated[list[PlacementRow], about("Groups that another terminal may serve.")]
    lanes: Annotated[list[LaneRow], about("What is sent where.")]


# -- documents -----------------------------------------------------------------------------------------

Collection = Annotated[str, about("Name of the collection.")]
DocumentKey = Annotated[str, about("Key of the document, 1 to 512 printable characters.")]
DocumentHome = Annotated[
    str,
    about(
        "The topic that the document lives with, so that one transaction can write both; empty: none. To "
        "list and to wait, '*' is every topic."
    ),
]
DocumentValue = Annotated[Any, about("Any JSON value, up to 256 KiB.")]
Version = Annotated[str, about("Changes with every write, and never comes again.")]


class OfDocument(Arguments, frozen=True):
    """Which document."""

    collection: Collection
    key: DocumentKey
    topic: DocumentHome = ""


class DocumentCreate(Arguments, frozen=True):
    """A new document."""

    collection: Collection
    key: DocumentKey
    value: DocumentValue
    topic: DocumentHome = ""


class DocumentUpdate(DocumentCreate, frozen=True, kw_only=True):
    """Another value for a document."""

    version: Annotated[str, about("The version that the document must have.")]


class DocumentDelete(OfDocument, frozen=True, kw_only=True):
    """A document that is to go."""

    version: Annotated[str | None, about("The version that the document must have; None: any.")] = None


class DocumentList(Arguments, frozen=True):
    """Which documents of a collection."""

    collection: Collection
    topic: DocumentHome = ""
    prefix: Annotated[str, about("List only keys that begin with this.")] = ""
    after: After = ""
    limit: Limit = 1000


class DocumentWait(Arguments, frozen=True):
    """Which changes to wait for."""

    collection: Collection
    topic: DocumentHome = ""
    after: Annotated[str, about("The 'after' of the answer before; empty: begin to watch.")] = ""
    within: Annotated[float, about("Seconds to wait for a change, at most 60.")] = 30.0


class DocumentWritten(Result, frozen=True, kw_only=True):
    """A document was written."""

    version: Version


class Document(Result, frozen=True, kw_only=True):
    """A document as it is stored."""

    key: DocumentKey
    version: Version
    written_at: Annotated[int, about("When it was written, in microseconds.")]
    written_by: Annotated[str, about("The subject that wrote it.")]
    value: DocumentValue
    topic: DocumentHome = ""


class DocumentRows(Result, frozen=True, kw_only=True):
    """A page of documents, by key."""

    documents: Annotated[list[Document], about("The documents.")]
    next: Next


class DocumentChange(Result, frozen=True, kw_only=True):
    """A document was written or deleted."""

    key: DocumentKey
    version: Annotated[str | None, about("Its version now; None: it was deleted.")]
    topic: DocumentHome = ""


class DocumentChanges(Result, frozen=True, kw_only=True):
    """Changes of a collection, in order."""

    changes: Annotated[list[DocumentChange], about("The changes, oldest first.")]
    after: Annotated[str, about("Where the next question goes on.")]
    missed: Annotated[bool, about("Changes are missing here: list the collection again.")]


# -- schedules -----------------------------------------------------------------------------------------

ScheduleName = Annotated[str, about("Name of the schedule, among those of its topic.")]
When = Annotated[str, about("'30 2 * * mon-fri', '@daily', '@every 90s' or '@at 2026-12-24T18:00'.")]
Zone = Annotated[str, about("Time zone of the IANA database, such as Europe/Berlin.")]
FireTime = Annotated[int, about("The moment that the schedule names, in microseconds.")]


class OfSchedule(Arguments, frozen=True):
    """A schedule by its topic and its name."""

    topic: TopicName
    name: ScheduleName


class ScheduleOptions(Arguments, frozen=True, kw_only=True):
    """What a schedule publishes, and how. Options that are not given have their defaults, or stay in an
    update."""

    zone: Annotated[str | Unset, about("Time zone of the IANA database; UTC by default.")] = UNSET
    payload: Annotated[Any, about("A text is sent as it is, any other JSON value as JSON.")] = UNSET
    key: Annotated[str | Unset | None, about("Key of the messages.")] = UNSET
    headers: Annotated[dict[str, str] | Unset, about("Headers of the messages.")] = UNSET
    priority: Annotated[int | Unset, about("Priority of the messages, 0 to 9.")] = UNSET
    overlap: Annotated[
        Overlap | Unset,
        about("What becomes of a firing while the message before is not settled; 'skip' by default."),
    ] = UNSET
    catch_up: Annotated[
        float | Unset, about("Seconds that a firing may be late before it is missed; 600 by default.")
    ] = UNSET
    jitter: Annotated[float | Unset, about("Each firing is delayed by up to so many seconds.")] = UNSET


class ScheduleCreate(ScheduleOptions, frozen=True):
    """A schedule to make."""

    topic: TopicName
    name: ScheduleName
    when: When


class ScheduleUpdate(ScheduleOptions, frozen=True):
    """A schedule and the options to change."""

    topic: TopicName
    name: ScheduleName
    when: Annotated[str | Unset, about("Another expression; it counts from now on.")] = UNSET


class ScheduleList(Arguments, frozen=True, kw_only=True):
    """A page of the schedules."""

    topic: Annotated[str | None, about("Schedules of this topic alone; None: of all topics.")] = None
    after: After = ""


class ScheduleShow(OfSchedule, frozen=True):
    """A schedule, and how many of its next firings to show."""

    count: Annotated[int, about("Next firings to show, at most 100.")] = 5


class SchedulePause(OfSchedule, frozen=True, kw_only=True):
    """A schedule to pause."""

    note: Annotated[str, about("Why, for whoever looks at it.")] = ""


class ScheduleBackfill(OfSchedule, frozen=True, kw_only=True):
    """A schedule, and the range of the past whose firings are to be published."""

    begin: Annotated[int, about("The first fire time of the range, in microseconds.")]
    until: Annotated[int, about("The last fire time of the range; not later than now.")]


class ScheduleRow(Result, frozen=True, kw_only=True):
    """A schedule, in short."""

    topic: TopicName
    name: ScheduleName
    when: When
    zone: Zone
    owner: Annotated[str, about("The subject in whose name it publishes.")]
    state: Annotated[
        Literal["active", "paused", "done"], about("'done': its expression names no later moment.")
    ]
    next_at: Annotated[int | None, about("The next fire time; None: there is none, or it is paused.")]
    last_at: Annotated[int | None, about("The last fire time that was published; None: there was none.")]
    fired: Annotated[int, about("Messages published.")]
    skipped: Annotated[int, about("Firings skipped, because the message before was not settled.")]
    missed: Annotated[int, about("Firings missed, because nobody could fire in time.")]
    refused: Annotated[int, about("Firings that the topic refused.")]


class ScheduleRows(Result, frozen=True, kw_only=True):
    """Some of the schedules, by topic and name."""

    schedules: Annotated[list[ScheduleRow], about("The schedules of this page.")]
    next: Next


class FiringRow(Result, frozen=True, kw_only=True):
    """What became of a firing."""

    at: FireTime
    outcome: Annotated[Literal["fired", "skipped", "missed", "refused"], about("What became of it.")]
    why: Annotated[Literal["timetable", "trigger", "backfill"], about("What caused it.")]
    decided_at: Annotated[int, about("When it was published or given up, in microseconds.")]
    offset: Annotated[int | None, about("Offset of its message; None: it has none, or it isn't known.")]
    count: Annotated[int, about("Of missed firings: how many from this one on; 1001: more than 1000.")]
    cause: Annotated[str, about("Why it was refused.")]


class ScheduleDetails(ScheduleRow, frozen=True, kw_only=True):
    """A schedule with its options and its firings."""

    options: Annotated[ScheduleSpec, about("Its options, as schedule.create takes them.")]
    created_at: Annotated[int, about("When it was made, in microseconds.")]
    next_firings: Annotated[list[int], about("The next fire times, without jitter.")]
    last_firings: Annotated[list[FiringRow], about("What was decided last, newest first.")]
    waiting: Annotated[list[int], about("Fire times that wait until the message before is settled.")]
    paused_at: Annotated[int | None, about("When it was paused; None: it is not.")]
    paused_by: Annotated[str, about("Who paused it.")]
    note: Annotated[str, about("Why it is paused.")]


class ScheduleTriggered(Result, frozen=True, kw_only=True):
    """A firing was asked for. It is published within moments."""

    id: MessageId
    at: FireTime


class ScheduleFilled(Result, frozen=True, kw_only=True):
    """A backfill was begun."""

    firings: Annotated[int, about("Messages that it publishes.")]


# -- webhooks ------------------------------------------------------------------------------------------

WebhookName = Annotated[str, about("Name of the webhook, among those of its topic.")]
WebhookUrl = Annotated[str, about("Where messages are sent to, by POST: http:// or https://.")]
Secret = Annotated[str, about("whsec_ and 24 to 64 bytes in base64; empty: one is made.")]


class OfWebhook(Arguments, frozen=True):
    """A webhook by its topic and its name."""

    topic: TopicName
    name: WebhookName


class WebhookOptions(Arguments, frozen=True, kw_only=True):
    """What a webhook sends, and how. Options that are not given have their defaults, or stay in an update."""

    content_type: Annotated[
        str | Unset | None,
        about("The header Content-Type; None: the message's header content-type, or application/json."),
    ] = UNSET
    ordered: Annotated[
        bool | Unset, about("One message at a time, in order; one that fails holds the others.")
    ] = UNSET
    rate: Annotated[float | Unset | None, about("Requests per second at most; None: no limit.")] = UNSET
    match: Annotated[
        Match | Unset | None, about("Patterns for 'key' and 'headers' of what is sent; None: everything.")
    ] = UNSET


class WebhookCreate(WebhookOptions, frozen=True):
    """A webhook to make, and where it begins."""

    topic: TopicName
    name: WebhookName
    url: WebhookUrl
    secret: Secret = ""
    start: Annotated[
        Place | int | None, about("'earliest', 'latest' (default) or a moment in microseconds.")
    ] = None


class WebhookUpdate(WebhookOptions, frozen=True):
    """A webhook and the options to change."""

    topic: TopicName
    name: WebhookName
    url: Annotated[str | Unset, about("Another URL.")] = UNSET


class WebhookList(Arguments, frozen=True, kw_only=True):
    """A page of the webhooks."""

    topic: Annotated[str | None, about("Webhooks of this topic alone; None: of all topics.")] = None
    after: After = ""


class WebhookTry(OfWebhook, frozen=True, kw_only=True):
    """A webhook to test."""

    within: Annotated[float, about("Seconds to wait for the receiver's answer, at most 30.")] = 20.0


class WebhookPause(OfWebhook, frozen=True, kw_only=True):
    """A webhook to pause."""

    note: Annotated[str, about("Why, for whoever looks at it.")] = ""


class WebhookReplay(OfWebhook, frozen=True, kw_only=True):
    """A webhook, and the range of messages to send again: by offset, or by moment."""

    first: Annotated[int | None, about("The first offset.")] = None
    end: Annotated[int | None, about("The offset behind the last one; None: all there are.")] = None
    begin: Annotated[int | None, about("Messages taken at this moment or later, in microseconds.")] = None
    until: Annotated[int | None, about("Messages taken before this moment; None: all there are.")] = None


class WebhookRotate(OfWebhook, frozen=True, kw_only=True):
    """A webhook that gets a new secret."""

    secret: Secret = ""
    overlap: Annotated[
        float, about("Seconds for which requests are signed with the secrets before, too; a day by default.")
    ] = 86400.0


class WebhookRow(Result, frozen=True, kw_only=True):
    """A webhook, in short."""

    topic: TopicName
    name: WebhookName
    url: WebhookUrl
    owner: Annotated[str, about("The subject in whose name the topic is read.")]
    state: Annotated[
        Literal["active", "paused", "disabled"],
        about("'disabled': by an answer 410, or after five days of failures; resume it."),
    ]
    circuit: Annotated[
        Circuit, about("'open': no requests for a while; 'half-open': one at a time, to find out.")
    ]
    lag: Annotated[int | None, about("Messages that are not settled; None: its topic or group is gone.")]
    delivered: Annotated[int, about("Messages that the receiver has taken.")]
    failed: Annotated[int, about("Attempts that have failed.")]
    buried: Annotated[int, about("Messages given up; they are in the topic of dead letters.")]
    last_success_at: Annotated[int | None, about("The last success, in microseconds; None: none yet.")]


class WebhookRows(Result, frozen=True, kw_only=True):
    """Some of the webhooks, by topic and name."""

    webhooks: Annotated[list[WebhookRow], about("The webhooks of this page.")]
    next: Next


class WebhookDetails(WebhookRow, frozen=True, kw_only=True):
    """A webhook with its options and its last attempts."""

    options: Annotated[WebhookSpec, about("Its options, as webhook.create takes them.")]
    group: Annotated[str, about("The group of the topic whose cursor it moves.")]
    created_at: Annotated[int, about("When it was made, in microseconds.")]
    secrets: Annotated[
        list[int | None],
        about("Of each valid secret, newest first: when it ends, in microseconds; None: at a rotation."),
    ]
    failing_since: Annotated[int | None, about("The first failure since the last success; None: none.")]
    blocked_until: Annotated[int | None, about("No request before this moment; None: at any time.")]
    disabled_why: Annotated[str, about("Why it is disabled.")]
    trouble: Annotated[str, about("Why its topic can't be read at the moment.")]
    paused_at: Annotated[int | None, about("When it was paused; None: it is not.")]
    paused_by: Annotated[str, about("Who paused it.")]
    note: Annotated[str, about("Why it is paused.")]
    attempts: Annotated[list[WebhookAttempt], about("The last attempts, newest first.")]


class WebhookSigned(WebhookRow, frozen=True, kw_only=True):
    """A webhook, with the secret that its requests are signed with from now on."""

    secret: Annotated[str, about("Shown this once; empty: it existed with the same options.")]


class WebhookTested(Result, frozen=True, kw_only=True):
    """A test."""

    id: Annotated[str, about("The webhook-id of its request.")]
    attempt: Annotated[WebhookAttempt | None, about("What came back; None: nothing yet.")]


class WebhookReplayed(Result, frozen=True, kw_only=True):
    """A replay was begun."""

    messages: Annotated[int, about("Messages that are sent again, those that its match leaves out included.")]


# -- requests, events and errors -----------------------------------------------------------------------

EventId = Annotated[str, about("Id of the event; empty: one is made.")]
Payload = Annotated[Any, about("A JSON value; a text is sent as it is, and over the bus bytes are as well.")]
MessageHeaders = Annotated[dict[str, Any], about("Headers: texts, numbers and booleans.")]
MessageKey = Annotated[str, about("Key of the message.")]
JsonValue = Annotated[Any, about("The payload, where it is JSON; a text where it is one.")]
RawPayload = Annotated[bytes, about("The payload as bytes, where value doesn't have it.")]
Source = Annotated[str, about("The service that replied.")]
FailureStatus = Annotated[
    int, about("The status that the service gave, as in HTTP; 0 where it has not failed.")
]
MessageOffset = Annotated[int | None, about("Offset of the message that it is about.")]


class RequestSend(Arguments, frozen=True):
    """A request, for whoever answers requests to the topic."""

    topic: TopicName
    payload: Payload = None
    timeout: Annotated[float, about("Seconds to wait for the reply, at most 60.")] = 5.0
    durable: Annotated[
        bool, about("Store it before it is sent; then a responder at another terminal may answer, too.")
    ] = False
    headers: MessageHeaders = {}
    key: MessageKey = ""


class RequestAnswer(Result, frozen=True, kw_only=True):
    """The reply to a request. A service that failed is an error of the operation, not an answer."""

    source: Source
    value: JsonValue
    payload: RawPayload
    headers: MessageHeaders


class EventTrigger(Arguments, frozen=True):
    """An event whose outcome is kept."""

    topic: TopicName
    payload: Payload = None
    id: EventId = ""
    within: Annotated[float, about("Seconds until the event has timed out; a day by default.")] = 86_400.0
    callback: Annotated[str, about("Where the outcome goes: topic:NAME, a URL, or nowhere.")] = ""
    headers: MessageHeaders = {}
    key: MessageKey = ""


class EventTriggered(Result, frozen=True, kw_only=True):
    """An event that is stored."""

    id: EventId
    deadline: Annotated[int, about("When it has timed out, in microseconds.")]


class OfEvent(Arguments, frozen=True):
    """An event by its id."""

    id: EventId
    within: Annotated[float, about("Seconds to wait for the outcome, at most 60.")] = 0.0
    raw: Annotated[bool, about("Return the payload as bytes, whatever it is.")] = False


class EventOutcome(Result, frozen=True, kw_only=True):
    """What became of an event."""

    id: EventId
    topic: TopicName
    state: Annotated[Literal["pending", "done", "failed", "timed_out"], about("What became of it.")]
    deadline: Annotated[int, about("When it has timed out, in microseconds.")]
    ended_at: Annotated[int, about("When the outcome was stored, in microseconds; 0: there is none yet.")]
    source: Source
    value: JsonValue
    payload: RawPayload
    code: Annotated[str, about("The code of a failure.")]
    status: FailureStatus
    text: Annotated[str, about("What the service says of its failure.")]


class ErrorReport(Arguments, frozen=True):
    """A failure that a service reports of itself. It refers to a message and never repeats it."""

    code: Annotated[str, about("A short name for the kind of failure, in lower case.")]
    text: Annotated[str, about("What happened.")] = ""
    status: Annotated[int, about("A number as in HTTP, 400 to 599.")] = 500
    version: Annotated[str, about("Version of the service.")] = ""
    endpoint: Annotated[str, about("What of the service has failed.")] = ""
    trace_id: Annotated[str, about("Id of the trace, as W3C Trace Context has it.")] = ""
    topic: Annotated[str, about("Topic of the message that it is about.")] = ""
    offset: MessageOffset = None
    id: Annotated[str, about("Id of the message that it is about.")] = ""
    dropped: Annotated[int, about("Failures that the service has not reported since its last report.")] = 0


class ErrorReported(Result, frozen=True, kw_only=True):
    """What became of a report."""

    stored: Annotated[bool, about("False: the service has reported too much, and this one was only counted.")]


class ErrorRow(Result, frozen=True, kw_only=True):
    """An error that the bus may answer with."""

    code: Annotated[str, about("Stable name.")]
    http_status: Annotated[int, about("Status of the HTTP answer.")]
    exit_status: Annotated[int, about("Exit status of the command line.")]
    retriable: Annotated[bool, about("The same request may succeed later.")]
    description: Annotated[str, about("What happened.")]
    hint: Annotated[str, about("What to do, where the error itself says nothing else.")]


class ErrorCatalogue(Result, frozen=True, kw_only=True):
    """All errors of the bus."""

    errors: Annotated[list[ErrorRow], about("By exit status.")]


# -- the table -----------------------------------------------------------------------------------------

#: Every operation, by its name.
OPERATIONS: dict[str, Operation[..., Any, Any]] = {}


def _operation(
    name: str,
    request: Callable[P, R],
    answer: type[A],
    route: str,
    help: str,
    *,
    scope: str = "",
    safe: bool = False,
) -> Operation[P, R, A]:
    """``route``: verb and path."""
    verb, _, path = route.partition(" ")
    # A test checks that the verb is one of four. Through Any: the table has no P, R and A.
    entry: Any = Operation(name, request, answer, scope, safe or verb == "GET", verb, path, help)  # type: ignore[arg-type]
    OPERATIONS[name] = entry
    return entry  # type: ignore[no-any-return]


_TOPIC = "/v1/topics/{name}"
_GROUP = "/v1/topics/{topic}/groups/{name}"
_SEE_TOPIC = "observe|publish|subscribe:{name}"
_SEE_GROUP = "observe|publish|subscribe:{topic}"
_READ = "subscribe:{topic}"
_MAKE_GROUP = "operate|subscribe:{topic}"

TOPIC_CREATE = _operation(
    "topic.create", TopicOptions, TopicRow, "POST /v1/topics",
    "Create a topic; one that exists with the same options is left as it is.", scope="operate",
)  # fmt: skip
TOPIC_UPDATE = _operation(
    "topic.update", TopicOptions, TopicRow, f"PATCH {_TOPIC}",
    "Change options of a topic, other than its kind.", scope="operate",
)  # fmt: skip
TOPIC_LIST = _operation(
    "topic.list", TopicList, TopicRows, "GET /v1/topics", "List the topics that the token may see."
)
TOPIC_SHOW = _operation(
    "topic.show", OfTopic, TopicDetails, f"GET {_TOPIC}",
    "Show a topic with its options and groups.", scope=_SEE_TOPIC,
)  # fmt: skip
TOPIC_DELETE = _operation(
    "topic.delete", TopicDelete, Deleted, f"DELETE {_TOPIC}",
    "Delete a topic with its messages and groups.", scope="operate",
)  # fmt: skip
TOPIC_WAIT = _operation(
    "topic.wait", TopicWait, dict[str, TopicBounds], "POST /v1/offsets/wait",
    "Wait until one of these topics has a message at or beyond the offset given for it, and return the "
    "bounds of each log.", scope="observe|subscribe:{offsets}", safe=True,
)  # fmt: skip
TOPIC_WATCH = _operation(
    "topic.watch", TopicWatch, TopicNews, "POST /v1/topics/watch",
    "Tell which topics that the patterns cover were made or deleted, and wait for that. A wildcard leaves "
    "out topics of dead letters ('….dead') unless the pattern ends in '.dead'.", scope="", safe=True,
)  # fmt: skip
TOPIC_SEEK_TIME = _operation(
    "topic.seek_time", TopicSeekTime, dict[str, int], "POST /v1/offsets/seek",
    "Return for each topic the first offset that was taken at or after a moment, or the end of its log.",
    scope="observe|subscribe:{times}", safe=True,
)  # fmt: skip

GROUP_CREATE = _operation(
    "group.create", GroupCreate, GroupRow, "POST /v1/topics/{topic}/groups",
    "Create a group; one that exists with the same options is left as it is.", scope=_MAKE_GROUP,
)  # fmt: skip
GROUP_UPDATE = _operation(
    "group.update", GroupOptions, GroupRow, f"PATCH {_GROUP}", "Change options of a group.", scope="operate"
)
GROUP_LIST = _operation(
    "group.list", GroupList, GroupRows, "GET /v1/groups",
    "List the groups of one topic, or of all topics that the token may see.", scope=_SEE_GROUP,
)  # fmt: skip
GROUP_SHOW = _operation(
    "group.show", OfGroup, GroupDetails, f"GET {_GROUP}",
    "Show a group with its options and consumers.", scope=_SEE_GROUP,
)  # fmt: skip
GROUP_SEEK = _operation(
    "group.seek", GroupSeek, GroupRow, f"POST {_GROUP}/seek",
    "Move a group to an offset or a moment, forwards or backwards.", scope="operate",
)  # fmt: skip
GROUP_ADVANCE = _operation(
    "group.advance", GroupAdvance, GroupRow, f"POST {_GROUP}/advance",
    "Settle everything below an offset, for a group whose consumer reads by offset; the group is made if "
    "there is none, and never goes back.", scope=_READ,
)  # fmt: skip
GROUP_REDRIVE = _operation(
    "group.redrive", OfGroup, Redriven, f"POST {_GROUP}/redrive",
    "Give a group its dead letters again, each once.", scope="operate",
)  # fmt: skip
GROUP_DELETE = _operation(
    "group.delete", GroupDelete, Deleted, f"DELETE {_GROUP}", "Delete a group.", scope="operate"
)

TOKEN_CREATE = _operation(
    "token.create", TokenCreate, TokenMade, "POST /v1/tokens", "Make a token for a service.", scope="admin"
)
TOKEN_LIST = _operation(
    "token.list", TokenList, TokenRows, "GET /v1/tokens",
    "List the tokens that were made here and have not expired.", scope="admin",
)  # fmt: skip
TOKEN_REVOKE = _operation(
    "token.revoke", TokenRevoke, Revoked, "POST /v1/tokens/revoke",
    "Revoke a token, or every token of a service; their connections end at once.", scope="admin",
)  # fmt: skip

_SERVICE = "/v1/services/{name}"
_SEE_SERVICE = "observe|self:{name}"

SERVICE_REGISTER = _operation(
    "service.register", ServiceRegister, ServiceRegistered, "POST /v1/services",
    "Register a service and make its credential; one that is there as described is left as it is.",
    scope="admin",
)  # fmt: skip
SERVICE_UPDATE = _operation(
    "service.update", ServiceDescription, ServiceDetails, f"PATCH {_SERVICE}",
    "Change what is registered of a service. A service may describe itself, but not set its scopes or owner.",
    scope="admin|self:{name}",
)  # fmt: skip
SERVICE_LIST = _operation(
    "service.list", ServiceList, ServiceRows, "GET /v1/services", "List the registered services.",
    scope="observe",
)  # fmt: skip
SERVICE_SHOW = _operation(
    "service.show", OfService, ServiceDetails, f"GET {_SERVICE}",
    "Show a service with its description, scopes and credentials.", scope=_SEE_SERVICE,
)  # fmt: skip
SERVICE_SUSPEND = _operation(
    "service.suspend", ServiceSuspend, ServiceDetails, f"POST {_SERVICE}/suspend",
    "Refuse a service's credentials and tokens until it is resumed; its connections end at once.",
    scope="operate",
)  # fmt: skip
SERVICE_RESUME = _operation(
    "service.resume", OfService, ServiceDetails, f"POST {_SERVICE}/resume",
    "Accept the credentials and tokens of a suspended service again.", scope="operate",
)  # fmt: skip
SERVICE_ROTATE = _operation(
    "service.rotate", ServiceRotate, ServiceCredential, f"POST {_SERVICE}/rotate",
    "Make another credential for a service; the one that it has ends, now or after an overlap.",
    scope="admin",
)  # fmt: skip
SERVICE_REMOVE = _operation(
    "service.remove", OfService, Deleted, f"DELETE {_SERVICE}",
    "Remove a service: its connections end at once, and its tokens stay refused whoever gets the name.",
    scope="admin",
)  # fmt: skip
SERVICE_TOKEN = _operation(
    "service.token", ServiceTrade, ServiceToken, "POST /v1/token",
    "Trade a service's credential for a token of ten minutes.", scope=ANYBODY,
)  # fmt: skip
SERVICE_HEARTBEAT = _operation(
    "service.heartbeat", ServiceHeartbeat, type(None), f"POST {_SERVICE}/heartbeat",
    "Tell the terminal how a service is, and what its endpoints have done.", scope="admin|self:{name}",
)  # fmt: skip
SERVICE_PING = _operation(
    "service.ping", OfService, ServicePing, f"GET {_SERVICE}/ping",
    "Say whether a service is connected, and when the terminal heard from it last.", scope=_SEE_SERVICE,
)  # fmt: skip
SERVICE_INFO = _operation(
    "service.info", OfService, ServiceInfo, f"GET {_SERVICE}/info",
    "Say what a service is, and what it handles.", scope=_SEE_SERVICE,
)  # fmt: skip
SERVICE_STATS = _operation(
    "service.stats", OfService, ServiceStats, f"GET {_SERVICE}/stats",
    "Show what a service's endpoints have done, by its heartbeats.", scope=_SEE_SERVICE,
)  # fmt: skip

STATUS_SHOW = _operation(
    "status.show", Nothing, Levels, "GET /v1/status/levels", "Show the status levels.", scope="observe"
)
STATUS_LEVELS = _operation(
    "status.levels", StatusLevels, Levels, "PATCH /v1/status/levels",
    "Set status levels from now on, and return all of them.", scope="operate",
)  # fmt: skip
STATUS_NOTE = _operation(
    "status.note", StatusNote, type(None), "POST /v1/status/notes",
    "Write an error event in the caller's name to the status log.", scope="publish:$status",
)  # fmt: skip
TERMINAL_INFO = _operation(
    "terminal.info", Nothing, TerminalInfo, "GET /v1/terminal", "Describe the terminal."
)
TERMINAL_METRICS = _operation(
    "terminal.metrics", Nothing, str, "GET /v1/terminal/metrics",
    "Return the terminal's metrics in Prometheus' text format.", scope="observe",
)  # fmt: skip

STAGE_COMMIT = _operation(
    "stage.commit", StageCommit, StageDecided, "POST /v1/stages/{stage}/commits",
    "Publish these runs of a stage's log once, as the commit of this number.",
)  # fmt: skip
STAGE_SHOW = _operation(
    "stage.show", OfStage, StageShown, "GET /v1/stages/{stage}", "Show the last commit of a stage."
)
STAGE_DROP = _operation(
    "stage.drop", StageDrop, type(None), "DELETE /v1/stages/{stage}",
    "Remove what is on a stage and not published.",
)  # fmt: skip

MESSAGE_WAIT = _operation(
    "message.wait", MessageWait, MessageReached, "GET /v1/topics/{topic}/offsets/{offset}/wait",
    "Wait until a message that was published here has arrived, or is acked, in every durable group.",
    scope="observe|publish:{topic}",
)  # fmt: skip
MESSAGE_WHERE = _operation(
    "message.where", OfMessage, MessagePlaces, "GET /v1/messages/{id}/where",
    "Show where a message is: at which terminal, in which state, and what it waits for.", scope=_SEE_GROUP,
)  # fmt: skip
MESSAGE_WHY = _operation(
    "message.why", OfMessage, MessageReasons, "GET /v1/messages/{id}/why",
    "Show why a message went to which terminal, and by which route.", scope=_SEE_GROUP,
)  # fmt: skip
ROUTE_SHOW = _operation(
    "route.show", RouteShow, RouteShown, "GET /v1/routes/{there}",
    "Show the paths between two terminals and what each link costs.", scope="observe",
)  # fmt: skip
TOPOLOGY_SHOW = _operation(
    "topology.show", Nothing, TopologyShown, "GET /v1/topology",
    "Show the customer's terminals and their links.", scope="observe",
)  # fmt: skip
NETWORK_SHOW = _operation(
    "network.show", Nothing, NetworkShown, "GET /v1/network",
    "Show what goes on between this terminal and the others.", scope="observe",
)  # fmt: skip

_DOCUMENT = "/v1/documents/{collection}/{key}"
_DOCUMENTS = "documents:{collection}"

DOCUMENT_CREATE = _operation(
    "document.create", DocumentCreate, DocumentWritten, "POST /v1/documents/{collection}",
    "Create a document; refused where there is one of that key.", scope=_DOCUMENTS,
)  # fmt: skip
DOCUMENT_READ = _operation(
    "document.read", OfDocument, Document, f"GET {_DOCUMENT}", "Read a document.", scope=_DOCUMENTS
)
DOCUMENT_UPDATE = _operation(
    "document.update", DocumentUpdate, DocumentWritten, f"PATCH {_DOCUMENT}",
    "Replace a document's value; refused where it has another version than the one given.", scope=_DOCUMENTS,
)  # fmt: skip
DOCUMENT_DELETE = _operation(
    "document.delete", DocumentDelete, Deleted, f"DELETE {_DOCUMENT}", "Delete a document.", scope=_DOCUMENTS
)
DOCUMENT_LIST = _operation(
    "document.list", DocumentList, DocumentRows, "GET /v1/documents/{collection}",
    "List the documents of a collection, by key.", scope=_DOCUMENTS,
)  # fmt: skip
DOCUMENT_WAIT = _operation(
    "document.wait", DocumentWait, DocumentChanges, "GET /v1/documents/{collection}/changes",
    "Wait for the next changes of a collection.", scope=_DOCUMENTS,
)  # fmt: skip

_SCHEDULE = "/v1/topics/{topic}/schedules/{name}"

SCHEDULE_CREATE = _operation(
    "schedule.create", ScheduleCreate, ScheduleRow, "POST /v1/topics/{topic}/schedules",
    "Create a schedule, which publishes to the topic in the caller's name; one that exists with the same "
    "options is left as it is.", scope="publish:{topic}",
)  # fmt: skip
SCHEDULE_UPDATE = _operation(
    "schedule.update", ScheduleUpdate, ScheduleRow, f"PATCH {_SCHEDULE}",
    "Change options of a schedule. From then on it publishes in the caller's name.", scope="publish:{topic}",
)  # fmt: skip
SCHEDULE_LIST = _operation(
    "schedule.list", ScheduleList, ScheduleRows, "GET /v1/schedules",
    "List the schedules of one topic, or of all topics that the token may see.", scope=_SEE_GROUP,
)  # fmt: skip
SCHEDULE_SHOW = _operation(
    "schedule.show", ScheduleShow, ScheduleDetails, f"GET {_SCHEDULE}",
    "Show a schedule with its next firings, and the last ones with what became of them.", scope=_SEE_GROUP,
)  # fmt: skip
SCHEDULE_PAUSE = _operation(
    "schedule.pause", SchedulePause, ScheduleRow, f"POST {_SCHEDULE}/pause",
    "Pause a schedule, with a note for others.",
)  # fmt: skip
SCHEDULE_RESUME = _operation(
    "schedule.resume", OfSchedule, ScheduleRow, f"POST {_SCHEDULE}/resume",
    "Let a paused schedule go on from now; what it would have published meanwhile is not made up for.",
)  # fmt: skip
SCHEDULE_TRIGGER = _operation(
    "schedule.trigger", OfSchedule, ScheduleTriggered, f"POST {_SCHEDULE}/trigger",
    "Publish a schedule's message once, now.",
)  # fmt: skip
SCHEDULE_BACKFILL = _operation(
    "schedule.backfill", ScheduleBackfill, ScheduleFilled, f"POST {_SCHEDULE}/backfill",
    "Publish the messages of a range of the past.",
)  # fmt: skip
SCHEDULE_REMOVE = _operation(
    "schedule.remove", OfSchedule, Deleted, f"DELETE {_SCHEDULE}", "Remove a schedule.",
)  # fmt: skip

_WEBHOOK = "/v1/topics/{topic}/webhooks/{name}"

WEBHOOK_CREATE = _operation(
    "webhook.create", WebhookCreate, WebhookSigned, "POST /v1/topics/{topic}/webhooks",
    "Create a webhook, which sends messages of the topic to a URL and reads them in the caller's name; one "
    "that exists with the same options is left as it is.", scope=_READ,
)  # fmt: skip
WEBHOOK_UPDATE = _operation(
    "webhook.update", WebhookUpdate, WebhookRow, f"PATCH {_WEBHOOK}",
    "Change options of a webhook. From then on it reads in the caller's name.", scope=_READ,
)  # fmt: skip
WEBHOOK_LIST = _operation(
    "webhook.list", WebhookList, WebhookRows, "GET /v1/webhooks",
    "List the webhooks of one topic, or of all topics that the token may see.", scope=_SEE_GROUP,
)  # fmt: skip
WEBHOOK_SHOW = _operation(
    "webhook.show", OfWebhook, WebhookDetails, f"GET {_WEBHOOK}",
    "Show a webhook with its last attempts, to its owner or an observer.",
)  # fmt: skip
WEBHOOK_TEST = _operation(
    "webhook.test", WebhookTry, WebhookTested, f"POST {_WEBHOOK}/test",
    "Send a test to the receiver of a webhook, and show what came back.",
)  # fmt: skip
WEBHOOK_PAUSE = _operation(
    "webhook.pause", WebhookPause, WebhookRow, f"POST {_WEBHOOK}/pause",
    "Pause a webhook, with a note for others. Its messages wait.",
)  # fmt: skip
WEBHOOK_RESUME = _operation(
    "webhook.resume", OfWebhook, WebhookRow, f"POST {_WEBHOOK}/resume",
    "Let a paused or disabled webhook go on, at once and as if nothing had failed.",
)  # fmt: skip
WEBHOOK_REPLAY = _operation(
    "webhook.replay", WebhookReplay, WebhookReplayed, f"POST {_WEBHOOK}/replay",
    "Send a range of messages again.",
)  # fmt: skip
WEBHOOK_ROTATE = _operation(
    "webhook.rotate", WebhookRotate, WebhookSigned, f"POST {_WEBHOOK}/rotate",
    "Give a webhook a new secret. For a while, requests are signed with both.",
)  # fmt: skip
WEBHOOK_DELETE = _operation(
    "webhook.delete", OfWebhook, Deleted, f"DELETE {_WEBHOOK}", "Delete a webhook with its group.",
)  # fmt: skip

REQUEST_SEND = _operation(
    "request.send", RequestSend, RequestAnswer, "POST /v1/topics/{topic}/requests",
    "Ask whoever answers requests to a topic, and wait for the reply.", scope="publish:{topic}",
)  # fmt: skip
EVENT_TRIGGER = _operation(
    "event.trigger", EventTrigger, EventTriggered, "POST /v1/topics/{topic}/events",
    "Store an event whose outcome is kept for a day, and goes to a callback. The same id again is the same "
    "event.", scope="publish:{topic}",
)  # fmt: skip
EVENT_OUTCOME = _operation(
    "event.outcome", OfEvent, EventOutcome, "GET /v1/events/{id}",
    "Show what became of an event that the caller has triggered.",
)  # fmt: skip
ERROR_REPORT = _operation(
    "error.report", ErrorReport, ErrorReported, "POST /v1/errors",
    "Report a failure of the calling service to the topic $errors.",
)  # fmt: skip
ERROR_LIST = _operation(
    "error.list", Nothing, ErrorCatalogue, "GET /v1/errors/catalogue", "List the errors of the bus."
)
