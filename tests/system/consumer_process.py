"""A consumer in a process of its own: ``python consumer_process.py URL TOKEN TOPIC GROUP``.

Says ``got PAYLOAD ATTEMPT`` for each message, then waits for a line, acks, and says ``acked`` or the error's
code."""

from __future__ import annotations

import asyncio
import sys

import landbridge
from landbridge.errors import BusError


async def main(url: str, token: str, topic: str, group: str) -> None:
    loop = asyncio.get_running_loop()
    async with landbridge.connect(url, token=token, name="consumer") as bus:
        async for message in bus.subscribe(topic, group=group, prefetch=1):
            print("got", message.text(), message.attempt, flush=True)
            if not await loop.run_in_executor(None, sys.stdin.readline):
                return
            try:
                await message.ack(wait=True)
                print("acked", flush=True)
            except BusError as error:
                print(error.code, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
