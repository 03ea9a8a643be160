"""Five terminals in four places, each a process of its own, and a network between them that breaks.

    factory (behind NAT) ──┬── paris ──────┬── office (behind NAT)
                           ├── frankfurt ──┤
                           └── singapore ──┘   singapore only passes on

The links from the two clients go through lines in this process, which add delay and can be cut.

python examples/five_terminals.py
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

import landbridge
from landbridge.client.registry import RegistryClient
from landbridge.errors import BusError
from landbridge.testing.wan import Line
from stage import DemoStage, LandbridgeProcess, arguments, free_port, perform

#: Server → seconds that each way to it takes.
SERVERS = {"paris": 0.004, "frankfurt": 0.012, "singapore": 0.040}
CLIENTS = ("factory", "office")
#: Messages a second.
RATE = 500
#: Seconds to wait for something that has to happen.
PATIENCE = 60.0


async def until(holds: Callable[[], Awaitable[bool]]) -> float:
    """Wait until something holds. Returns how many seconds that takes."""
    begin = time.monotonic()
    async with asyncio.timeout(PATIENCE):
        while not await holds():
            await asyncio.sleep(0.01)
    return time.monotonic() - begin


class FiveTerminals:
    """A registry, five terminals of one customer, and the lines between them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = folder / "home"
        self._registry = LandbridgeProcess(
            self._home, "registry", "--data", str(folder / "registry"), "--port", "0"
        )
        #: The registry, asked as the customer's admin.
        self.admin: RegistryClient
        #: By their names.
        self.terminals: dict[str, LandbridgeProcess] = {}
        self.ids: dict[str, str] = {}
        #: (client, server) → the line between them.
        self.lines: dict[tuple[str, str], Line] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self._registry.start()
        try:
            url = self._registry.ready["url"]
            credential = self._registry.context("registry")["operator_token"]
            async with RegistryClient(url, token=credential) as operator:
                customer = await operator.create_message_bus_customer("acme")
            async with RegistryClient(url, token=customer.token) as self.admin:
                await self._start()
                yield
        finally:
            await asyncio.gather(*(terminal.end() for terminal in self.terminals.values()))
            for line in self.lines.values():
                await line.close()
            await self._registry.end()

    async def _start(self) -> None:
        ports = {name: free_port() for name in (*SERVERS, *CLIENTS)}
        for client in CLIENTS:
            for server, delay in SERVERS.items():
                line = self.lines[client, server] = Line("127.0.0.1", ports[server], delay=delay)
                await line.open()
        for name, port in ports.items():
            await self._create(name, port)
        for group in ("billing", "audit"):
            await self.admin.create_terminal_group(group, [self.ids["office"]])
        await self.admin.create_message_bus_topic("orders", ["billing", "audit"])
        await asyncio.gather(*(terminal.start() for terminal in self.terminals.values()))

    async def _create(self, name: str, port: int) -> None:
        """Create a terminal in the registry, and write the file that it starts from."""
        if name in SERVERS:
            made = await self.admin.create_terminal(name, mode="server", address=f"lb://127.0.0.1:{port}")
        else:
            made = await self.admin.create_terminal(name, mode="client")
        self.ids[name] = made.terminal_id
        settings: dict[str, Any] = {
            "customer_id": made.customer_id,
            "terminal_id": made.terminal_id,
            "secure_key": made.secure_key,
            "name": name,
            "registry": self.admin.url,
            "registry_key": base64.b64encode(made.registry_key).decode(),
            "listen": f"127.0.0.1:{port}",
            "http_port": 0,
            "data": str(self._folder / name),
            "probe_busy": "1s",
        }
        if name in CLIENTS:
            settings["dial"] = {server: self.lines[name, server].url for server in SERVERS}
        file = self._folder / f"{name}.yml"
        file.write_text(json.dumps({"terminal": settings}))  # JSON is YAML
        self.terminals[name] = LandbridgeProcess(self._home, "terminal", "--config", str(file))

    def connect(self, name: str) -> Any:
        """A bus on this terminal."""
        context = self.terminals[name].context(name)
        return landbridge.connect(context["url"], token=context["token"], name="demo")


class Traffic:
    """Messages from the factory to two groups at the office, numbered, at a steady rate."""

    def __init__(self, factory: landbridge.Bus, office: landbridge.Bus) -> None:
        self._factory, self._office = factory, office
        self.sent = 0
        #: Group → the numbers that it has got, in order of arrival.
        self.arrived: dict[str, list[int]] = {"billing": [], "audit": []}
        self._sending = True

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """At the end, all messages have arrived."""
        readers = [asyncio.ensure_future(self._consume(group)) for group in self.arrived]
        sending = asyncio.ensure_future(self._publish())
        try:
            yield
            self._sending = False
            await sending
            await until(self._have_all_arrived)
        finally:
            for task in (sending, *readers):
                task.cancel()
            await asyncio.gather(sending, *readers, return_exceptions=True)

    async def _have_all_arrived(self) -> bool:
        return all(len(set(numbers)) >= self.sent for numbers in self.arrived.values())

    async def _publish(self) -> None:
        begin = time.monotonic()
        async with self._factory.publisher("orders") as out:
            while self._sending:
                country = ("de", "fr", "sg")[self.sent % 3]
                await out.send({"n": self.sent, "country": country, "amount": self.sent % 100})
                self.sent += 1
                wait = begin + self.sent / RATE - time.monotonic()
                if wait > 0:
                    await asyncio.sleep(wait)

    async def _consume(self, group: str) -> None:
        async for message in self._office.subscribe("orders", group=group, prefetch=5000):
            self.arrived[group].append(message.json()["n"])
            await message.ack()

    async def next_arrives(self) -> float:
        """Wait for a message that is sent from now on. Returns how many seconds that takes."""
        number = self.sent

        async def has_arrived() -> bool:
            return any(n >= number for n in self.arrived["billing"][-50:])

        return await until(has_arrived)


class Play:
    """What happens to the five terminals, and what becomes of the messages."""

    def __init__(
        self, stage: DemoStage, site: FiveTerminals, factory: landbridge.Bus, traffic: Traffic
    ) -> None:
        self._stage = stage
        self._site = site
        self._factory = factory
        self._traffic = traffic

    async def run(self) -> None:
        await until(self._has_links)
        await asyncio.sleep(2.0)  # a few probes, so that the costs mean something
        await self._show_routes()
        async with self._traffic.flowing():
            await asyncio.sleep(2.0)
            await self._cut_lines()
            await self._kill_transit()
            await self._revoke_transit()
            await asyncio.sleep(1.0)
        await self._count()

    async def _has_links(self) -> bool:
        try:
            shown = await self._factory.network.route("office")
        except BusError:
            return False  # the directory isn't there yet
        return shown.best is not None and len(shown.alternates) >= 2

    async def _show_routes(self) -> None:
        shown = await self._factory.network.route("office")
        table = Table("way from factory to office", "cost", box=None, padding=(0, 2))
        for path in (shown.best, *shown.alternates):
            if path is not None:
                table.add_row(" › ".join(path.hops), f"{path.cost:.0f} ms")
        self._stage.say(table)

    async def _hops(self) -> list[str]:
        """The terminals that messages pass at present, both ends included."""
        shown = await self._factory.network.route("office")
        path = shown.current or shown.best
        return [] if path is None else path.hops

    async def _reroute(self, fact: str, text: str, form: str = "{:.2f} s") -> None:
        took = await self._traffic.next_arrives()
        self._stage.note(fact, took, text, form)
        await asyncio.sleep(0.5)
        way = " › ".join(await self._hops())
        self._stage.say(f"  messages flow another way after {took:.1f} s: {way}")

    async def _cut_lines(self) -> None:
        say = self._stage.say
        first = (await self._hops())[1]
        line = self._site.lines["factory", first]
        line.black_hole()
        say(f"  [red]cut[/]: factory – {first}, which is in use, swallows everything without a word")
        await self._reroute("reroute after a black hole", "time to reroute after a black hole", "{:.1f} s")
        line.heal()
        say("  healed")
        await asyncio.sleep(1.0)
        last = (await self._hops())[-2]
        line = self._site.lines["office", last]
        line.cut()
        say(f"  [red]cut[/]: {last} – office, by a reset")
        await self._reroute("reroute after a reset", "time to reroute after a reset")
        line.heal()
        say("  healed")
        await asyncio.sleep(2.0)

    async def _kill_transit(self) -> None:
        name = (await self._hops())[1]
        self._stage.say(f"  [red]kill -9[/]: {name}, with whatever is passing through it")
        await self._site.terminals[name].end(signal.SIGKILL)
        await self._reroute("reroute after a kill", "time to reroute after kill -9 of the transit")
        await self._site.terminals[name].start()
        self._stage.say(f"  {name} is back, and passes on what it had kept")
        await asyncio.sleep(1.0)

    async def _revoke_transit(self) -> None:
        name = (await self._hops())[1]
        await self._site.admin.revoke_terminal(self._site.ids[name])
        self._stage.say(f"  [red]revoked[/]: {name}, as if it were stolen")

        async def is_gone() -> bool:
            shown = await self._factory.network.topology()
            return name not in {terminal.name for terminal in shown.terminals}

        took = await until(is_gone)
        self._stage.note("cut off after", took, "a revoked terminal is cut off after", "{:.2f} s")
        self._stage.say(f"  nobody talks to it any more after {took:.1f} s")
        await self._traffic.next_arrives()
        self._stage.say(f"  messages flow: {' › '.join(await self._hops())}")

    async def _count(self) -> None:
        stage, sent, groups = self._stage, self._traffic.sent, self._traffic.arrived.values()
        forwarder = (await self._factory.network.show()).forwarder
        lost = sum(sent - len(set(numbers)) for numbers in groups)
        doubled = sum(len(numbers) - len(set(numbers)) for numbers in groups)
        stage.check(lost == 0, "every message arrives at every group")
        stage.check(doubled == 0, "no message arrives twice")
        in_order = all(numbers == sorted(numbers) for numbers in groups)
        stage.check(in_order, "messages arrive in the order in which they were sent")
        arrived = len(set(self._traffic.arrived["billing"]))
        stage.note("sent", sent, "sent at factory")
        stage.note("arrived", arrived, "arrived at office, in each of two groups")
        stage.note("lost", lost, "lost")
        stage.note("doubled", doubled, "doubled")
        stage.note("shipped", forwarder["shipped"])
        again = forwarder["reroutes"] + forwarder["repeated"]
        stage.note("reroutes", again, "shipments sent another way or again")


@asynccontextmanager
async def five_terminals(stage: DemoStage, folder: Path) -> AsyncIterator[tuple[dict[str, str], int]]:
    """Yields, while the office still runs, where it is and the number of messages that it has got."""
    stage.say("\n[bold]Five terminals, one bus.[/] Each is a process; factory and office are behind NAT.")
    folder.mkdir(exist_ok=True)
    site = FiveTerminals(folder)
    async with site.running():
        async with site.connect("factory") as factory, site.connect("office") as office:
            traffic = Traffic(factory, office)
            await Play(stage, site, factory, traffic).run()
        context = site.terminals["office"].context("office")
        yield {"url": context["url"], "token": context["token"]}, traffic.sent


async def act(stage: DemoStage, folder: Path) -> None:
    async with five_terminals(stage, folder):
        pass


if __name__ == "__main__":
    raise SystemExit(perform(act, as_json=arguments(__doc__).json))
