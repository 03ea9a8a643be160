"""How much of everything the registry allows, and how long its keys and tokens live."""

from __future__ import annotations

import msgspec


class RegistryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Every settable bound of a registry. Spans are seconds."""

    max_customers: int = 10_000
    #: Terminals, terminal groups and topics of one customer.
    max_terminals: int = 10_000
    max_groups: int = 10_000
    max_topics: int = 10_000
    #: Services of one customer. Each is named in the directory that all its terminals have.
    max_services: int = 1000
    #: Terminals in one group, groups of one topic, producers of one topic.
    max_members: int = 10_000
    #: Versions of a topic's key that can still decrypt.
    max_key_versions: int = 64
    #: Items in one page of a list.
    max_page: int = 1000
    #: Audit events kept of each customer.
    audit_events: int = 100_000
    #: Bytes of a request's body.
    max_body: int = 256 * 1024
    #: Requests that wait for a newer directory: in all, and of one terminal.
    max_waiting: int = 20_000
    max_waiting_each: int = 2
    #: Longest time that one of them may wait.
    max_wait: float = 30.0
    ticket_life: float = 300.0
    #: Age at which a topic's key, and the key that seals tickets, are replaced.
    key_life: float = 86400.0
    enrolment_life: float = 600.0
    #: Age at which a link state no longer counts.
    link_state_life: float = 180.0
    certificate_life: float = 30 * 86400.0
    #: Wrong credentials that one address may show in a minute; further ones are answered with 429.
    wrong_per_minute: int = 20


def microseconds(seconds: float) -> int:
    """Return a span in the unit of the registry's clock."""
    return round(seconds * 1_000_000)
