"""What middleware costs: messages of 1 KiB of JSON, all different, with and without it, in turns.

``validate`` is compared with a bare loop that decodes and validates the same payloads with the same
libraries. The stage is measured as a terminal runs it, by the batch and in slices of the event loop.
``compress`` is compared with the same publishes to a topic without it, at a terminal in a process of its
own that syncs before each ack; and so are the two together."""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import string
import time
from typing import Any

import jsonschema_rs
import msgspec

import landbridge
from bench.roles import Crew, ready, scratch, terminal
from bench.scenarios import Row, alone
from landbridge.broker.stage_work import StageCounts, Workshop, make_ready
from landbridge.core.log.batch import Batch, build
from landbridge.core.middleware.event_types import EventType, SchemaVersion
from landbridge.core.middleware.spec import ValidateStage

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "customer": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 100},
                "mail": {"type": "string", "pattern": "@"},
            },
            "required": ["name", "mail"],
        },
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "sku": {"type": "string", "minLength": 8, "maxLength": 8},
                    "quantity": {"type": "integer", "minimum": 1},
                    "price": {"type": "number"},
                    "note": {"type": "string"},
                },
                "required": ["sku", "quantity", "price"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["id", "customer", "lines"],
}
#: Different payloads; they are published again and again.
DIFFERENT = 8192
#: Messages per batch that the client cuts.
PER_BATCH = 512
#: Rounds of each repetition.
ROUNDS = 3


def payloads(count: int = DIFFERENT) -> list[bytes]:
    """Orders of about 1 KiB, the same in each run."""
    chosen = random.Random(7)

    def word(length: int) -> str:
        return "".join(chosen.choices(string.ascii_lowercase, k=length))

    def order(number: int) -> bytes:
        lines = [
            {
                "sku": word(8),
                "quantity": chosen.randint(1, 99),
                "price": chosen.randint(100, 99_999) / 100,
                "note": " ".join(chosen.choices(WORDS, k=5)),
            }
            for _ in range(9)
        ]
        customer = {"name": f"{word(6).title()} {word(9).title()}", "mail": f"{word(8)}@example.com"}
        return msgspec.json.encode({"id": number, "customer": customer, "lines": lines})

    return [order(number) for number in range(count)]


WORDS = ["deliver", "to", "the", "back", "door", "please", "ring", "twice", "fragile", "gift", "wrap", "blue"]


def bare_loop(data: list[bytes]) -> float:
    """Messages per second of a loop that decodes and validates, and does nothing else."""
    decode, is_valid = msgspec.json.Decoder().decode, jsonschema_rs.Draft202012Validator(SCHEMA).is_valid
    gc.collect()
    begin = time.perf_counter()
    for payload in data:
        if not is_valid(decode(payload)):
            raise ValueError("an order that isn't valid")
    return len(data) / (time.perf_counter() - begin)


async def stage_alone(data: list[bytes]) -> float:
    """Messages per second of the stage ``validate``."""
    version = SchemaVersion(version=1, schema=SCHEMA, registered_at=0, registered_by="bench")
    types = {"default": EventType(newest=1, versions=(version,))}
    counts = {"validate": StageCounts()}
    batches = [
        Batch.decode(build(data[at : at + PER_BATCH], id=bytes(16), time=1))
        for at in range(0, len(data), PER_BATCH)
    ]
    workshop = Workshop()
    stages = make_ready([ValidateStage()], "orders", types, counts, workshop.checking)
    gc.collect()
    begin = time.perf_counter()
    for batch in batches:
        await workshop.run(batch, stages, {})
    took = time.perf_counter() - begin
    workshop.close()
    assert counts["validate"].messages == len(data)
    return len(data) / took


async def prepare(bus: landbridge.Bus, gate: Any, topic: str, stages: list[str]) -> None:
    """Make a topic with these stages."""
    await ready(gate)
    chosen: Any = [{"stage": stage} for stage in stages]
    await bus.topics.create(topic, middleware=chosen)
    await bus.types.register(topic, "default", schema=SCHEMA)


async def publish_orders(bus: landbridge.Bus, gate: Any, topic: str, count: int) -> tuple[float, float]:
    """Publish so many orders, in batches."""
    data = payloads()
    await ready(gate)
    begin = time.monotonic()
    async with bus.publisher(topic) as out:
        for at in range(0, count, len(data)):
            await out.send_many(data[: count - at])
    return begin, time.monotonic()


async def read_orders(bus: landbridge.Bus, gate: Any, topic: str, count: int) -> tuple[float, float]:
    """Read and ack all of them, by the batch."""
    await ready(gate)
    begin, left = time.monotonic(), count
    async for batch in bus.subscribe(topic, group="readers", prefetch=20_000).batches():
        await batch.ack()
        left -= len(batch)
        if left <= 0:
            break
    return begin, time.monotonic()


def published(stages: list[str], count: int) -> tuple[float, float, float]:
    """(messages published per second, messages read per second, bytes stored per message) with these stages.
    The store takes room in steps, so the bytes are those of its records."""
    with scratch() as folder, terminal(folder / "bus") as running:
        alone(running, prepare, "orders", stages)
        begin, end = alone(running, publish_orders, "orders", count)
        crew = Crew(running, 1)
        crew.add(read_orders, "orders", count)
        ((reading, read),) = crew.results()
        size = asyncio.run(_bytes_of(running.url, running.token))
        return count / (end - begin), count / (read - reading), size / count


async def _bytes_of(url: str, token: str) -> int:
    async with landbridge.connect(url, token=token) as bus:
        return (await bus.topics.show("orders")).bytes


CHAINS: dict[str, list[str]] = {
    "plain": [],
    "validate": ["validate"],
    "compress": ["compress"],
    "both": ["validate", "compress"],
}


def middleware(scale: float, times: int) -> list[Row]:
    """The rows of this scenario."""
    data = payloads() * 2
    count = max(20_000, int(200_000 * scale))
    bare: list[float] = []
    staged: list[float] = []
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CHAINS}
    for _ in range(3 * ROUNDS):  # short and many, for other work of the machine hits one or the other
        bare.append(bare_loop(data))
        staged.append(asyncio.run(stage_alone(data)))
    for _ in range(times * ROUNDS if scale >= 1 else 2):
        for name, stages in CHAINS.items():
            found[name].append(published(stages, count))

    def ratio(name: str, column: int) -> float:
        """The median of the rounds' ratios to the plain topic."""
        rounds = zip(found[name], found["plain"], strict=True)
        return statistics.median(ours[column] / plain[column] for ours, plain in rounds)

    def rate(name: str, column: int = 0) -> float:
        return statistics.median(each[column] for each in found[name])

    return [
        Row("bare loop: decode and validate", statistics.median(bare), "msg/s", bare=True),
        Row("stage validate", statistics.median(staged), "msg/s"),
        Row(
            "stage validate ÷ bare loop",
            statistics.median(ours / loop for ours, loop in zip(staged, bare, strict=True)), "×", 0.7,
        ),
        Row("published, 1 KiB of JSON", rate("plain"), "msg/s"),
        Row("published with validate ÷ without", ratio("validate", 0), "×"),
        Row("published with compress ÷ without", ratio("compress", 0), "×", 0.5),
        Row("published with both ÷ without", ratio("both", 0), "×"),
        Row("read, 1 KiB of JSON", rate("plain", 1), "msg/s"),
        Row("read from compress ÷ without", ratio("compress", 1), "×"),
        Row("disk with compress ÷ without", ratio("compress", 2), "×", 1 / 3, "less"),
    ]  # fmt: skip
