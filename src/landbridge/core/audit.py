"""The audit log: who has changed what of a terminal, when, from where, and from what to what. Each change is
a small JSON message of the topic ``$audit``, whose key names the thing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from landbridge.core.changes import difference
from landbridge.core.log.retention import Retention
from landbridge.core.text import redact

TOPIC = "$audit"
#: What the topic keeps: 400 days, and 256 MiB at most.
KEEP = Retention(max_age=400 * 86400.0, max_bytes=256 << 20, discard="any")
#: Bytes that one value may take as JSON, and all values of one side of a change. Larger ones are cut, and the
#: entry says so.
LARGEST_VALUE, LARGEST_SIDE = 2 << 10, 8 << 10
#: Values that stay secret, by the names of their fields. The names of what is secret are told.
SECRET = frozenset(
    {
        "api-key", "api_key", "apikey", "authorization", "cookie", "credential", "credentials", "passphrase",
        "password", "private_key", "proxy-authorization", "secret", "secrets", "signature", "token", "tokens",
        "x-api-key", "x-auth-token",
    }
)  # fmt: skip
HIDDEN = "[hidden]"


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True, rename={"before": "from", "after": "to"}):
    """One change that somebody has asked for."""

    time: int  #: microseconds
    operation: str  #: the operation that was asked for, as "topic.update"
    what: str  #: "topic", "group", "service", "schedule", …
    name: str  #: of the thing: a topic's name, TOPIC/GROUP, …
    who: str  #: the service whose token was shown
    token: str = ""  #: the token's id; or, of a credential, the beginning of its digest
    peer: str = ""  #: where the connection came from; "memory": from a part of the terminal, such as its HTTP
    origin: str = ""  #: whom a gateway says that it asked for: the address of its client
    program: str = ""  #: what the program calls itself
    before: Any = None  #: the values of what has changed; None: there was nothing before
    after: Any = None  #: None: there is nothing any more
    cut: tuple[str, ...] = ()  #: fields whose values were too large to be told whole

    @property
    def key(self) -> bytes:
        """The key of its message."""
        return f"{self.what}/{self.name}".encode()


_encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(AuditEntry).decode


def encode(entry: AuditEntry) -> bytes:
    """The message's payload."""
    return _encode(entry)


def told(before: Any, after: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """What an entry tells of a change: the fields that differ, without secrets, within bounds; and the names
    of the fields that were cut. ``before`` and ``after``: structs or JSON values, None where there is
    nothing."""
    if before is not None and after is not None:
        before, after = difference(before, after)
    cut: dict[str, None] = {}
    sides = [
        _bounded(_harmless("", msgspec.to_builtins(side, str_keys=True)), cut) for side in (before, after)
    ]
    return sides[0], sides[1], tuple(cut)


def _harmless(name: str, value: Any) -> Any:
    """The value without secrets: those that are named so, and tokens anywhere in a text."""
    if name.lower() in SECRET and value not in (None, "", [], {}, ()):
        return HIDDEN
    if isinstance(value, dict):
        return {str(key): _harmless(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_harmless("", each) for each in value]
    if isinstance(value, str):
        return redact(value)
    return value


def _bounded(side: Any, cut: dict[str, None]) -> Any:
    if not isinstance(side, dict):
        return _cut("", side, LARGEST_VALUE, cut)
    room, found = LARGEST_SIDE, {}
    for name, value in side.items():
        kept = found[name] = _cut(name, value, min(room, LARGEST_VALUE), cut)
        room = max(0, room - len(_encode(kept)))
    return found


def _cut(name: str, value: Any, room: int, cut: dict[str, None]) -> Any:
    """The value, or the beginning of its JSON where that is longer than ``room`` bytes."""
    raw = _encode(value)
    if len(raw) <= room:
        return value
    cut[name] = None
    text = value if isinstance(value, str) else raw.decode()
    return text.encode()[: room // 2].decode(errors="ignore") + "…"
