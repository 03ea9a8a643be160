"""A registered service: a program that uses the bus. What it says of itself, and what it may do.

Only registered services use the bus. A service has a credential, which it trades for tokens of a few minutes;
each token has the service's name as its subject and some or all of its scopes. A terminal registers services
for itself; a registry registers them for all terminals of a customer.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

import msgspec

from landbridge.core.names import check_name, check_pattern
from landbridge.core.options import read_options
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import BadRequest

#: A service that is removed has no document any more; its tokens end by the moment of the removal.
ServiceState: TypeAlias = Literal["active", "suspended"]

#: Endpoints, callbacks, topics and entries of metadata that a service may name, and characters of a text.
MOST_ENTRIES, LONGEST_TEXT = 100, 2000
#: A version as semver.org has it.
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


class ServiceEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that a service does: it handles the messages of a topic, or answers requests to it."""

    name: str
    topic: str = ""
    #: It answers requests (``reply=True``).
    reply: bool = False
    description: str = ""


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a service says of itself, and its scopes."""

    name: str
    version: str = "0.0.0"
    #: Who answers for it: a person or a team.
    owner: str = ""
    description: str = ""
    #: Patterns of topics that it publishes and subscribes. Documentation: the scopes decide what it may.
    publishes: tuple[str, ...] = ()
    subscribes: tuple[str, ...] = ()
    endpoints: tuple[ServiceEndpoint, ...] = ()
    #: Where outcomes of asynchronous events go: name → URL, or "topic:NAME".
    callbacks: dict[str, str] = {}
    #: A URL that answers 2xx while the service is well; empty: its heartbeats tell.
    health: str = ""
    metadata: dict[str, str] = {}
    #: What its tokens may do at most; see ``landbridge.core.trust.scopes``.
    scopes: tuple[str, ...] = ()


def service_spec(raw: dict[str, Any]) -> ServiceSpec:
    """The service that these options make. BadRequest or BadName says which of them is wrong."""
    spec = read_options(raw, ServiceSpec, "service options")
    check_name(spec.name, "service")
    if not _VERSION.fullmatch(spec.version):
        raise BadRequest(
            f"version {spec.version[:60]!r} of a service", hint="three numbers, as 1.4.0 (semver)"
        )
    for pattern in (*spec.publishes, *spec.subscribes):
        check_pattern(pattern)
    for endpoint in spec.endpoints:
        check_name(endpoint.name, "endpoint")
    entries = (spec.publishes, spec.subscribes, spec.endpoints, spec.callbacks, spec.metadata, spec.scopes)
    if max(map(len, entries)) > MOST_ENTRIES:
        raise BadRequest(f"a service with more than {MOST_ENTRIES} topics, endpoints or other entries")
    texts = (spec.owner, spec.description, spec.health, *spec.metadata, *spec.metadata.values())
    if max(map(len, (*texts, *spec.callbacks.values()))) > LONGEST_TEXT:
        raise BadRequest(f"a service with a text above {LONGEST_TEXT} characters")
    Scopes.parse(spec.scopes)
    return spec
