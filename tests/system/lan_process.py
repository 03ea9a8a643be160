"""A program of a LAN: a producer or a consumer that uses the terminal there, and says what it sees.

``python lan_process.py publish|consume CONTEXT TOPIC SEED|GROUP``. Each line that it prints is JSON with one
key: ``sent`` (a value, before it is), ``acked``, ``delivered``, ``confirmed`` (values), and ``answer`` or
``error`` to a line that it was told, ``[command, arguments]``. It ends when its stdin does."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import sys
from collections import Counter
from typing import Any

import landbridge
from landbridge.errors import BusError, LeaseLost

#: Seconds between two sends of a producer, at most; and messages in one go of the one that pipelines.
PAUSE, BURST = 0.05, 10
#: Seconds that a program waits for its terminal: as long as a test may take.
PATIENCE = 120.0


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


class Program:
    def __init__(self, bus: landbridge.Bus, topic: str) -> None:
        self.bus = bus
        self.topic = topic

    async def work(self) -> None:
        raise NotImplementedError

    async def obey(self, command: str, arguments: dict[str, Any]) -> Any:
        match command:
            case "call":
                return await self.bus.call(arguments.pop("op"), **arguments)
            case "certificate":
                return await names_of(**arguments)
            case _:
                raise ValueError(command)


class Publishing(Program):
    def __init__(self, bus: landbridge.Bus, topic: str, seed: str) -> None:
        super().__init__(bus, topic)
        self._dice = random.Random(int(seed))
        #: Producer → how many it has sent.
        self._counts: Counter[str] = Counter()
        self._stopping = False
        self._stopped = asyncio.Event()

    async def work(self) -> None:
        async with asyncio.TaskGroup() as producers:
            producers.create_task(self._pipelined("pipe"))
            producers.create_task(self._by_request("request"))
        self._stopped.set()

    async def obey(self, command: str, arguments: dict[str, Any]) -> Any:
        match command:
            case "mark":
                return self._counts
            case "stop":
                self._stopping = True
                await self._stopped.wait()
                return self._counts
            case _:
                return await super().obey(command, arguments)

    def _new(self, producer: str) -> str:
        value = f"{producer}:{self._counts[producer]}"
        self._counts[producer] += 1
        say(sent=value)
        return value

    async def _pipelined(self, name: str) -> None:
        out, waiting = self.bus.publisher(self.topic), []
        while not self._stopping:
            for _ in range(self._dice.randint(1, BURST)):
                waiting.append(self._new(name))
                await out.send(waiting[-1])
            await asyncio.sleep(self._dice.uniform(0, PAUSE))
            if self._dice.random() < 0.5 or self._stopping:
                await out.flush()
                say(acked=waiting)
                waiting = []
        await out.flush()
        say(acked=waiting)

    async def _by_request(self, name: str) -> None:
        while not self._stopping:
            value = self._new(name)
            await self.bus.publish(self.topic, value)
            say(acked=[value])
            await asyncio.sleep(self._dice.uniform(0, PAUSE))


class Consuming(Program):
    def __init__(self, bus: landbridge.Bus, topic: str, group: str) -> None:
        super().__init__(bus, topic)
        self._group = group

    async def work(self) -> None:
        # The next batch doesn't wait until the ack of this one is on disk: a consumer that falls behind would
        # make every reroute look slow.
        async with asyncio.TaskGroup() as acking:
            async for batch in self.bus.subscribe(self.topic, group=self._group, prefetch=200).batches():
                values = [bytes(payload).decode() for payload in batch.payloads]
                say(delivered=values)
                acking.create_task(self._ack(batch, values))

    async def _ack(self, batch: Any, values: list[str]) -> None:
        try:
            await batch.ack(wait=True)
            say(confirmed=values)
        except LeaseLost:
            pass


async def names_of(host: str, port: int, ca: str) -> list[str]:
    """The URIs in the certificate that is shown at an address, if this authority has signed it."""
    trust = ssl.create_default_context(cafile=ca)
    trust.check_hostname = False
    _, writer = await asyncio.open_connection(host, port, ssl=trust)
    try:
        shown = writer.get_extra_info("peercert")
        return [value for kind, value in shown["subjectAltName"] if kind == "URI"]
    finally:
        writer.close()


async def told(program: Program) -> None:
    """Do what is said, until nothing more will be."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        command, arguments = json.loads(line)
        try:
            say(answer=await program.obey(command, arguments))
        except (BusError, OSError) as error:
            say(error=str(error))


async def main(role: str, context: str, topic: str, detail: str) -> None:
    async with landbridge.connect(context=context, name=role, patience=PATIENCE) as bus:
        program = {"publish": Publishing, "consume": Consuming}[role](bus, topic, detail)
        async with asyncio.TaskGroup() as tasks:  # one that fails ends the program
            working = tasks.create_task(program.work())
            await told(program)
            working.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
