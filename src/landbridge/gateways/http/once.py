"""Requests that a client may repeat: with the same ``Idempotency-Key`` a message is stored once.

The terminal remembers the keys, beside the messages and not for a while only, so a repeat is known after a
restart, and at another gateway of the same terminal.
"""

from __future__ import annotations

from typing import Any, Unpack, cast

from landbridge.client.bus import Bus, Receipt
from landbridge.client.publisher import MessageOptions, Rows
from landbridge.errors import BadRequest
from landbridge.gateways.http.exchange import HttpRequest, text_of

#: Characters of a key.
LONGEST_KEY = 255
#: What a bus stored of a topic: the topic, the id of the batch and its first offset.
StoredBatch = tuple[str, str, int]


def idempotency_key(request: HttpRequest) -> str | None:
    """The key of a request; None where it has none. It may stand in quotes (the IETF's draft)."""
    raw = request.headers.get(b"idempotency-key")
    if raw is None:
        return None
    key = text_of(raw, "Idempotency-Key").strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 0 < len(key) <= LONGEST_KEY or not key.isprintable():
        raise BadRequest(f"an Idempotency-Key of 1 to {LONGEST_KEY} printable characters")
    return key


async def publish_once(
    bus: Bus, topic: str, payload: bytes, once: str, **options: Unpack[MessageOptions]
) -> tuple[Receipt, bool]:
    """Publish a message under a key. Returns its receipt, and whether it had been stored before."""
    receipt = await cast(Any, bus).publish(topic, payload, idempotency_key=once, **options)
    return receipt, receipt.repeated


async def transact_once(
    bus: Bus, batches: list[tuple[str, Rows]], key: str | None
) -> tuple[list[StoredBatch], bool]:
    """Publish batches in one transaction, under a key where there is one. Returns what is stored, and whether
    it had been stored before."""
    transaction: Any = bus.transaction() if key is None else cast(Any, bus).transaction(idempotency_key=key)
    async with transaction:
        for topic, rows in batches:
            await transaction.publish_rows(topic, rows)
    return transaction.stored, key is not None and transaction.repeated
