"""The event types of topics as documents: a topic's types are in the collection ``$types`` and live with
it."""

from __future__ import annotations

from landbridge.broker.damage import decoded
from landbridge.broker.documents import Documents
from landbridge.core.middleware import event_types
from landbridge.core.middleware.event_types import COLLECTION, EventType

#: Documents that are read at once.
PAGE = 100


async def types_of(documents: Documents, topic: str) -> dict[str, EventType]:
    """The types that a topic lists, by name. StoreCorrupt where one can't be read: a message must not go
    unchecked because of that."""
    found: dict[str, EventType] = {}
    after = ""
    while True:
        page, more = await documents.find(COLLECTION, topic, "", after, PAGE)
        for name, stored in page:
            hint = f"remove it with 'landbridge type remove {topic} {name}', and register it anew"
            what = f"the event type {name} of {topic}"
            found[name] = decoded(what, event_types.decode, stored.value, hint)
        if not more:
            return found
        after = page[-1][0]
