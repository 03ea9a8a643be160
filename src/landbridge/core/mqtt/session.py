"""Sessions of MQTT: what is kept of a client while it is away, and for how long.

A session belongs to a service and a client id. It outlives its connection if the client has asked for that;
then it is a document, and each of its filters of QoS 1 is a durable group of the topics that the filter
covers.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from landbridge.core.time import SECOND

#: The collection of the sessions, and that of the retained messages.
SESSIONS, RETAINED = "$mqtt-sessions", "$mqtt-retained"
#: Characters of a client id.
LONGEST_CLIENT_ID = 128
#: The session expiry that stands for "never" (MQTT 5, 3.1.2.11.2).
NEVER = 0xFFFF_FFFF
#: Characters of the client id that a group's name shows, and digits that tell it from others.
_SHOWN, _DIGITS = 60, 20
_GROUP = re.compile(rf"mqtt\.[A-Za-z0-9_-]{{1,{_SHOWN}}}\.[0-9a-f]{{{_DIGITS}}}")


class StoredFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One subscription of a session."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    #: The client's number for it; 0: none.
    subscription_id: int = 0


class StoredSession(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A session as its document has it."""

    service: str
    client_id: str
    #: Seconds that it outlives its connection.
    expiry: float
    #: When it ends, in microseconds; 0 while the client is connected, and after a terminal that was killed.
    expires_at: int = 0
    #: The process that has its client, or had it last.
    holder: str = ""
    filters: list[StoredFilter] = []


def session_key(service: str, client_id: str) -> str:
    """The key of a session's document. A client id may have characters that no key has."""
    return _digest(service, client_id)


def group_of(service: str, client_id: str, filter: str) -> str:
    """The group of a filter of a session. Its name shows whose it is."""
    shown = re.sub(r"[^A-Za-z0-9_-]", "_", client_id)[:_SHOWN] or "_"
    return f"mqtt.{shown}.{_digest(service, client_id, filter)}"


def is_of_session(group: str) -> bool:
    """Has it the form of the names that ``group_of`` makes?"""
    return _GROUP.fullmatch(group) is not None


def groups_of(session: StoredSession) -> list[str]:
    """The groups that end with a session. A shared filter's group is not its own."""
    return [
        group_of(session.service, session.client_id, each.filter) for each in session.filters if _is_own(each)
    ]


def _is_own(each: StoredFilter) -> bool:
    return each.qos > 0 and not each.filter.startswith("$share/")


def allowed_expiry(asked: int, most: float) -> float:
    """Seconds that a session may outlive its connection: what the client asks for, within the limit."""
    return min(float(asked), most)


def is_over(session: StoredSession, now: int) -> bool:
    """Has the session of a client that is away ended?"""
    return bool(session.expires_at) and session.expires_at <= now


def left(session: StoredSession, now: int) -> StoredSession:
    """The session from the moment on when its client is gone."""
    return msgspec.structs.replace(session, expires_at=now + int(session.expiry * SECOND))


def _digest(*parts: str) -> str:
    told = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(told).hexdigest()[:_DIGITS]
