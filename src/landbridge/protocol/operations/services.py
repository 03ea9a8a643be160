"""Operations on registered services."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET
from msgspec import UnsetType as Unset

from landbridge.core.trust.service import ServiceEndpoint, ServiceSpec
from landbridge.protocol.operations.common import (
    SCOPES_HELP,
    After,
    Deleted,
    Limit,
    Names,
    Next,
    Paused,
    PauseReason,
)
from landbridge.protocol.operations.operation import ANYBODY, Arguments, Result, about, operation

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


class ServicePause(OfService, frozen=True, kw_only=True):
    """A service to pause."""

    note: PauseReason = ""


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
    pause: Paused = None


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


class ServicePaused(Result, frozen=True, kw_only=True):
    """A service, and whether it gets anything here."""

    name: ServiceName
    pause: Paused


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


# -- the entries ---------------------------------------------------------------------------------------

_SERVICE = "/v1/services/{name}"
_SEE_SERVICE = "observe|self:{name}"

SERVICE_REGISTER = operation(
    "service.register", ServiceRegister, ServiceRegistered, "POST /v1/services",
    "Register a service and make its credential; one that is there as described is left as it is.",
    scope="admin",
    where="home",
)  # fmt: skip
SERVICE_UPDATE = operation(
    "service.update", ServiceDescription, ServiceDetails, f"PATCH {_SERVICE}",
    "Change what is registered of a service. A service may describe itself, but not set its scopes or owner.",
    scope="admin|self:{name}",
    where="home",
)  # fmt: skip
SERVICE_LIST = operation(
    "service.list", ServiceList, ServiceRows, "GET /v1/services", "List the registered services.",
    scope="observe",
    where="every",
)  # fmt: skip
SERVICE_SHOW = operation(
    "service.show", OfService, ServiceDetails, f"GET {_SERVICE}",
    "Show a service with its description, scopes and credentials.", scope=_SEE_SERVICE,
    where="every",
)  # fmt: skip
SERVICE_SUSPEND = operation(
    "service.suspend", ServiceSuspend, ServiceDetails, f"POST {_SERVICE}/suspend",
    "Refuse a service's credentials and tokens until it is resumed; its connections end at once.",
    scope="operate",
    where="home",
)  # fmt: skip
SERVICE_RESUME = operation(
    "service.resume", OfService, ServiceDetails, f"POST {_SERVICE}/resume",
    "Accept the credentials and tokens of a suspended service again.", scope="operate",
    where="home",
)  # fmt: skip
SERVICE_PAUSE = operation(
    "service.pause", ServicePause, ServicePaused, f"POST {_SERVICE}/pause",
    "Give a service no messages and no requests until it is unpaused; it stays connected, and callers are "
    "told at once.", scope="operate",
    where="home",
)  # fmt: skip
SERVICE_UNPAUSE = operation(
    "service.unpause", OfService, ServicePaused, f"POST {_SERVICE}/unpause",
    "Give a paused service messages and requests again.", scope="operate",
    where="home",
)  # fmt: skip
SERVICE_ROTATE = operation(
    "service.rotate", ServiceRotate, ServiceCredential, f"POST {_SERVICE}/rotate",
    "Make another credential for a service; the one that it has ends, now or after an overlap.",
    scope="admin",
    where="home",
)  # fmt: skip
SERVICE_REMOVE = operation(
    "service.remove", OfService, Deleted, f"DELETE {_SERVICE}",
    "Remove a service: its connections end at once, and its tokens stay refused whoever gets the name.",
    scope="admin",
    where="home",
)  # fmt: skip
SERVICE_TOKEN = operation(
    "service.token", ServiceTrade, ServiceToken, "POST /v1/token",
    "Trade a service's credential for a token of ten minutes.", scope=ANYBODY, audited=False,
    where="home",
)  # fmt: skip
SERVICE_HEARTBEAT = operation(
    "service.heartbeat", ServiceHeartbeat, type(None), f"POST {_SERVICE}/heartbeat",
    "Tell the terminal how a service is, and what its endpoints have done.", scope="admin|self:{name}",
    audited=False,
    where="home",
)  # fmt: skip
SERVICE_PING = operation(
    "service.ping", OfService, ServicePing, f"GET {_SERVICE}/ping",
    "Say whether a service is connected, and when the terminal heard from it last.", scope=_SEE_SERVICE,
    where="every",
)  # fmt: skip
SERVICE_INFO = operation(
    "service.info", OfService, ServiceInfo, f"GET {_SERVICE}/info",
    "Say what a service is, and what it handles.", scope=_SEE_SERVICE,
    where="home",
)  # fmt: skip
SERVICE_STATS = operation(
    "service.stats", OfService, ServiceStats, f"GET {_SERVICE}/stats",
    "Show what a service's endpoints have done, by its heartbeats.", scope=_SEE_SERVICE,
    where="home",
)  # fmt: skip
