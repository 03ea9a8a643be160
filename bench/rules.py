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
    #: Seconds of the terminal's processor for a message, until it is routed. Other work of the machine counts
    #: less than in the rates.
    cpu: float
    #: Seconds for making a rule, and the longest publish while rules were made.
    making: float
    longest: float


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
            out.send(None)
            begin = time.perf_counter()
            async with bus.publisher(None) as publisher:
                await publisher.send_many(payloads)
            stored = count / (time.perf_counter() - begin)
            await _until_routed(bus)
            routed = count / (time.perf_counter() - begin)
            out.send(RoutingMeasured(stored, routed, 0.0, making / rules, longest))

    uvloop.run(main())


def _rows(payloads: list[bytes]) -> Any:
    from landbridge.client.publisher import Rows

    rows = Rows()
    for payload in payloads:
        rows.add(payload)
    return rows


def measure(rules: int, count: int, *, several: bool = False) -> RoutingMeasured:
    with scratch() as folder, terminal(folder / "bus") as running:
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(
            target=_publish, args=(running.url, running.token, rules, several, count, there), daemon=True
        )
        process.start()
        try:
            here.recv()
            before = running.cpu()
            found: RoutingMeasured = here.recv()
            return found._replace(cpu=(running.cpu() - before) / count)
        finally:
            process.kill()
            process.join()


def rules(scale: float, times: int) -> list[Row]:
    count, most = max(5_000, int(100_000 * scale)), int((PARTIAL + REGEXP + JSONPATH) * scale)
    runs: list[tuple[RoutingMeasured, RoutingMeasured, RoutingMeasured]] = []
    for _ in range(max(1, times)):
        runs.append((measure(1, count), measure(most, count), measure(most, count, several=True)))
        print(*runs[-1], sep="\n", file=sys.stderr)
    rows = [Row("one rule, until routed", statistics.median(one.routed for one, _, _ in runs), "msg/s")]

    def add(what: str, ratios: list[float], target: float | None = None) -> None:
        note = " ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
        rows.append(Row(f"{most:,} rules: {what}", statistics.median(ratios), "×", target, note=note))

    add("stored, × one rule", [many.stored / one.stored for one, many, _ in runs], TARGET)
    add("routed, × one rule", [many.routed / one.routed for one, many, _ in runs], TARGET)
    add("routed by CPU, × one rule", [one.cpu / many.cpu for one, many, _ in runs])
    add("each its own rule, stored", [spread.stored / one.stored for one, _, spread in runs])
    add("each its own rule, routed", [spread.routed / one.routed for one, _, spread in runs])
    add("each its own rule, by CPU", [one.cpu / spread.cpu for one, _, spread in runs])
    makings, longests = (
        [1e3 * many.making for _, many, _ in runs],
        [1e3 * many.longest for _, many, _ in runs],
    )
    rows.append(Row(f"make one of {most:,} rules", statistics.median(makings), "ms", better="less"))
    rows.append(Row("longest publish meanwhile", max(longests), "ms", better="less"))
    return rows
