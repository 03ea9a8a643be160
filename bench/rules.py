"""Content routing: a terminal with 10,000 rules beside one with one rule, in turns. Messages of 1 KiB are
published without a topic, as fast as it goes, and each matches one rule. Terminal and publisher are a process
each; the rate counts from the first message until all are stored, and until all are in the rules' topics."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import uvloop

import landbridge
from bench.roles import SPAWN, scratch, terminal
from bench.scenarios import Row

PARTIAL, REGEXP, JSONPATH = 9_000, 950, 50
SIZE = 1_000
#: The least share of the throughput with one rule that is left with 10,000.
TARGET = 0.5
WORDS = ("blue", "slow", "urgent", "spare", "round", "heavy", "late", "fragile")


class RoutingMeasured(NamedTuple):
    """Messages per second."""

    stored: float
    routed: float


def rule(number: int) -> dict[str, Any]:
    """The rule that messages of this number match, of 10,000."""
    if number < PARTIAL:
        return {"customer": [f"c{number}"], "state": ["paid", "open"], "amount": [{"numeric": [">=", 0]}]}
    if number < PARTIAL + REGEXP:
        return {"kind": "regexp", "pattern": f'"note":"(very )?{WORDS[number % 8]} r{number}[ ,.]'}
    return {"kind": "jsonpath", "path": f"$.items[?@.sku == 's{number}' && @.price > 10]"}


def message(number: int) -> bytes:
    """A message of about 1 KiB that matches the rule of this number and no other."""
    sku = f"s{number}" if number >= PARTIAL + REGEXP else "other"
    note = f"very {WORDS[number % 8]} r{number} " if PARTIAL <= number < PARTIAL + REGEXP else "nothing "
    document = {
        "id": number,
        "customer": f"c{number}" if number < PARTIAL else "nobody",
        "state": "paid",
        "amount": 12.5,
        "note": note,
        "items": [{"sku": sku, "price": 20}, {"sku": "b", "price": 1}],
        "address": {"city": "Lyon", "zip": "69001", "lines": ["12 rue de la Paix", "2nd floor"]},
    }
    text = json.dumps(document, separators=(",", ":"))
    document["pad"] = "x" * max(0, SIZE - len(text) - 9)
    return json.dumps(document, separators=(",", ":")).encode()


async def make_rules(bus: landbridge.Bus, numbers: list[int]) -> float:
    """Returns the longest time in seconds that a publish took while rules were made."""
    longest = 0.0
    done = asyncio.Event()

    async def publish() -> None:
        nonlocal longest
        while not done.is_set():
            begin = time.perf_counter()
            await bus.publish(None, b'{"customer": "nobody"}')
            longest = max(longest, time.perf_counter() - begin)
            await asyncio.sleep(0.01)

    publishing = asyncio.create_task(publish())
    for number in numbers:
        await bus.rules.create(rule(number))
    done.set()
    await publishing
    return longest


async def _until_routed(bus: landbridge.Bus) -> None:
    """The cursor of the rules is a group's, which has settled a message that is routed."""
    await bus.messages.wait("$content", (await bus.topics.show("$content")).end - 1, "acked")


def _publish(url: str, token: str, rules: int, several: bool, count: int, out: Connection) -> None:
    """``several``: the messages match rules of all kinds in turn; else all of them the first rule."""

    async def main() -> None:
        # In an order that no two messages of a batch have a rule in common for as long as it goes.
        last = PARTIAL + REGEXP + JSONPATH
        numbers = [n * 7919 % last if several else 0 for n in range(count)]
        payloads = [message(number) for number in numbers]
        async with landbridge.connect(url, token=token) as bus:
            begin = time.perf_counter()
            longest = await make_rules(bus, list(range(rules)))
            making = time.perf_counter() - begin
            await bus.publish_batch(None, _rows(payloads[:100]))
            await _until_routed(bus)
            begin = time.perf_counter()
            async with bus.publisher(None) as publisher:
                await publisher.send_many(payloads)
            stored = count / (time.perf_counter() - begin)
            await _until_routed(bus)
            routed = count / (time.perf_counter() - begin)
            out.send((RoutingMeasured(stored, routed), making / rules, longest))

    uvloop.run(main())


def _rows(payloads: list[bytes]) -> Any:
    from landbridge.client.publisher import Rows

    rows = Rows()
    for payload in payloads:
        rows.add(payload)
    return rows


def measure(rules: int, count: int, *, several: bool = False) -> tuple[RoutingMeasured, float, float]:
    """The rates, seconds for making a rule, and the longest publish in seconds meanwhile."""
    with scratch() as folder, terminal(folder / "bus") as running:
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(
            target=_publish, args=(running.url, running.token, rules, several, count, there), daemon=True
        )
        process.start()
        try:
            found: tuple[RoutingMeasured, float, float] = here.recv()
            return found
        finally:
            process.kill()
            process.join()


def rules(scale: float, times: int) -> list[Row]:
    count, most = max(5_000, int(100_000 * scale)), int((PARTIAL + REGEXP + JSONPATH) * scale)
    pairs: dict[str, list[float]] = {"stored": [], "in its rule's topic": [], "in one of all topics": []}
    ones, makings, longests = [], [], []
    for _ in range(max(1, times)):
        one, _, _ = measure(1, count)
        many, making, longest = measure(most, count)
        ones.append(one.routed)
        makings.append(1e3 * making)
        longests.append(1e3 * longest)
        pairs["stored"].append(many.stored / one.stored)
        pairs["in its rule's topic"].append(many.routed / one.routed)
        if scale >= 1:
            spread, _, _ = measure(most, count, several=True)
            pairs["in one of all topics"].append(spread.routed / one.routed)
        print(one, many, file=sys.stderr)
    rows = [Row("one rule, until routed", statistics.median(ones), "msg/s")]
    for what, ratios in pairs.items():
        if ratios:
            note = " ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
            target = None if what == "in one of all topics" else TARGET
            name = f"{most:,} rules, {what}, × one rule"
            rows.append(Row(name, statistics.median(ratios), "×", target, note=note))
    rows.append(Row(f"make one of {most:,} rules", statistics.median(makings), "ms", better="less"))
    rows.append(Row("longest publish meanwhile", max(longests), "ms", better="less"))
    return rows
