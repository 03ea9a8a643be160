"""An event gateway as a process of its own, for tests that kill it: ``URL TOKEN TOPIC``.

Prints its two ports when it is ready. No clean-up of any kind: it is there to be killed."""

from __future__ import annotations

import asyncio
import sys

import structlog
import uvloop

import landbridge
from landbridge.gateways.event_topics import event_gateway


async def main(url: str, token: str, topic: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    bus = await landbridge.connect(url, token=token, name="events")
    gateway = await event_gateway(bus, topic).__aenter__()
    await gateway.listen("127.0.0.1", 0, 0)
    print(gateway.event_port, gateway.client_port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
