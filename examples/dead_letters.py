"""A worker that tells apart what is worth another attempt and what is not: the first is requeued, the second
is buried, that is, moved to the topic ``jobs.dead``.

python examples/dead_letters.py        on a terminal of its own, in memory; --context NAME: on that one
"""

from __future__ import annotations

import argparse
import asyncio

import landbridge
import landbridge.testing


class NotYet(Exception):
    """The work can't be done now, but later."""


def work(job: dict[str, int], attempt: int) -> float:
    if job["n"] == 1 and attempt == 1:
        raise NotYet
    return 100 / job["n"]


async def consume(bus: landbridge.Bus, jobs: int) -> None:
    """Until so many jobs are settled."""
    async for message in bus.subscribe("jobs", group="workers", prefetch=10):
        try:
            result = work(message.json(), message.attempt)
        except NotYet:
            print(f"job {message.json()['n']}: again in a moment")
            await message.requeue(after=0.1)
            continue
        except ArithmeticError as error:
            print(f"job {message.json()['n']}: buried, {error}")
            await message.bury(str(error))
        else:
            print(f"job {message.json()['n']}: {result:.0f}")
            await message.ack()
        jobs -= 1
        if not jobs:
            break


async def run(bus: landbridge.Bus) -> None:
    for n in (0, 1, 2):
        await bus.publish("jobs", {"n": n})
    await consume(bus, jobs=3)
    async for dead in bus.subscribe("jobs.dead", group="undertaker"):
        print(f"in jobs.dead: {dead.json()}, because of {dead.headers}")
        await dead.ack()
        break


async def main(context: str | None) -> None:
    async with landbridge.testing.bus() if context is None else landbridge.connect(context=context) as bus:
        await run(bus)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", help="the terminal to use")
    asyncio.run(main(parser.parse_args().context))
