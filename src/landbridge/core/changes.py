"""What observers hear: each change of a topic, group, link, service, schedule or rule as a small JSON
message of the topic ``$bus``.
"""

from __future__ import annotations

from typing import Any

import msgspec

TOPIC = "$bus"
#: Bytes that one change's values may take. Larger ones are left out: whoever wants them asks for the thing
#: itself.
LARGEST = 16 << 10


class Change(msgspec.Struct, omit_defaults=True, rename={"before": "from", "after": "to"}):
    """One change."""

    time: int  #: microseconds
    what: str  #: "topic", "group", "link", "service", "schedule", "rule", …
    name: str
    change: str  #: "created", "updated", "deleted", "up", "down", …
    who: str = ""  #: the subject that has asked for it; empty for the terminal itself
    before: Any = None  #: of an update: the values of what has changed
    after: Any = None


_encode = msgspec.json.Encoder().encode


def encode(change: Change) -> bytes:
    """The message's payload."""
    payload = _encode(change)
    if len(payload) > LARGEST:
        payload = _encode(msgspec.structs.replace(change, before=None, after=None))
    return payload


def difference(before: Any, after: Any) -> tuple[Any, Any]:
    """What of two values is different. Of two structs or dictionaries: the fields that are."""
    before, after = msgspec.to_builtins(before), msgspec.to_builtins(after)
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return before, after
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: before.get(name) for name in names}, {name: after.get(name) for name in names}
