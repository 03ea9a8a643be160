"""The second half of ``landbridge demo``: five terminals in four places, each a process of its own, and a
network between them that breaks.

    factory (behind NAT) ──┬── paris ──────┬── office (behind NAT)
                           ├── frankfurt ──┤
                           └── singapore ──┘   singapore only passes on

The links from the two clients go through lines in this process, which add delay and can be cut.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import landbridge
from landbridge.cli.demo_tables import Tables
from landbridge.client.registry import RegistryClient
from landbridge.errors import BusError
from landbridge.node import terminal_file
from landbridge.testing.wan import Line

#: Server → seconds that each way to it takes.
SERVERS = {"paris": 0.004, "frankfurt": 0.012, "singapore": 0.040}
CLIENTS = ("factory", "office")
#: Messages a second.
RATE = 500
#: Seconds to wait for something that has to happen.
PATIENCE = 60.0


class Process:
    """A ``landbridge`` process."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._home = home
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self.ready: dict[str, Any] = {}

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "landbridge",
            *self._arguments,
            "--json",
            "--log-level",
            "error",
            env={**os.environ, "LANDBRIDGE_HOME": str(self._home)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = self._process.stdout, self._process.stderr
        assert out is not None
        assert err is not None
        line = await out.readline()
        if not line:
            said = (await err.read()).decode()
            raise RuntimeError(f"'landbridge {' '.join(self._arguments)}' didn't start: {said}")
        # Read, so that it never waits for us; one that is revoked has much to complain about.
        self._reading = asyncio.ensure_future(_forget(err))
        self.ready = json.loads(line)

    async def end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()


class Crossing:
    def __init__(self, console: Console, folder: Path) -> None:
        self._console = console
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._home = folder / "home"
        self.facts: dict[str, Any] = {}
        self.broken: list[str] = []
        self._terminals: dict[str, Process] = {}
        self._ids: dict[str, str] = {}
        #: (client, server) → the line between them.
        self._lines: dict[tuple[str, str], Line] = {}
        #: Number of a message → when each group got it, in order of arrival.
        self._arrived: dict[str, dict[int, float]] = {"billing": {}, "audit": {}}
        self._order: dict[str, list[int]] = {"billing": [], "audit": []}
        self._sent = 0
        self._sending = True
        self.tables: Tables | None = None

    def _say(self, text: str) -> None:
        self._console.print(text)

    def _check(self, holds: bool, promise: str) -> None:
        if not holds:
            self.broken.append(promise)
            self._say(f"  [red]broken:[/] {promise}")

    async def run(self) -> None:
        self._say("\n[bold]Five terminals, one bus.[/] Each is a process; factory and office are behind NAT.")
        async with self._registry() as admin:
            try:
                await self._start(admin)
                await self._play(admin)
            finally:
                await asyncio.gather(*(process.end(signal.SIGTERM) for process in self._terminals.values()))
                for line in self._lines.values():
                    await line.close()

    # -- setting up --------------------------------------------------------------------------------

    @asynccontextmanager
    async def _registry(self) -> AsyncIterator[RegistryClient]:
        """A registry with a customer, and its admin."""
        registry = Process(self._home, "registry", "--data", str(self._folder / "registry"), "--port", "0")
        await registry.start()
        try:
            url = registry.ready["url"]
            context = json.loads((self._home / "contexts" / "registry.json").read_bytes())
            async with RegistryClient(url, token=context["operator_token"]) as operator:
                customer = await operator.create_message_bus_customer("acme")
            async with RegistryClient(url, token=customer.token) as admin:
                self._customer = customer.customer_id
                yield admin
        finally:
            await registry.end(signal.SIGTERM)

    async def _start(self, admin: RegistryClient) -> None:
        ports = {name: _free_port() for name in (*SERVERS, *CLIENTS)}
        for client in CLIENTS:
            for server, delay in SERVERS.items():
                line = Line("127.0.0.1", ports[server], delay=delay)
                await line.open()
                self._lines[client, server] = line
        for name, port in ports.items():
            await self._create(admin, name, port)
        await admin.create_terminal_group("billing", [self._ids["office"]])
        await admin.create_terminal_group("audit", [self._ids["office"]])
        await admin.create_message_bus_topic("orders", ["billing", "audit"])
        await asyncio.gather(*(process.start() for process in self._terminals.values()))

    async def _create(self, admin: RegistryClient, name: str, port: int) -> None:
        is_server = name in SERVERS
        made = await admin.create_terminal(
            name,
            mode="server" if is_server else "client",
            address=f"lb://127.0.0.1:{port}" if is_server else "",
        )
        self._ids[name] = made.terminal_id
        file = self._folder / f"{name}.yml"
        terminal_file.create(file)
        settings: dict[str, Any] = {
            "customer_id": made.customer_id,
            "terminal_id": made.terminal_id,
            "secure_key": made.secure_key,
            "name": name,
            "registry": admin.url,
            "registry_key": base64.b64encode(made.registry_key).decode(),
            "listen": f"127.0.0.1:{port}",
            "http_port": 0,
            "data": str(self._folder / name),
            "probe_busy": "1s",
        }
        if not is_server:
            settings["dial"] = {server: self._lines[name, server].url for server in SERVERS}
        terminal_file.write(file, settings)
        self._terminals[name] = Process(self._home, "terminal", "--config", str(file))

    def _connect(self, name: str) -> Any:
        context = self._context(name)
        return landbridge.connect(context["url"], token=context["token"], name="demo")

    def _context(self, name: str) -> dict[str, str]:
        context: dict[str, str] = json.loads((self._home / "contexts" / f"{name}.json").read_bytes())
        return context

    # -- what happens ------------------------------------------------------------------------------

    async def _play(self, admin: RegistryClient) -> None:
        async with self._connect("factory") as factory, self._connect("office") as office:
            await self._linked(factory)
            await self._quiet(2.0)  # a few probes, so that the costs mean something
            await self._show(factory)
            readers = [asyncio.ensure_future(self._consume(office, group)) for group in self._order]
            sending = asyncio.ensure_future(self._publish(factory))
            try:
                await self._quiet(2.0)
                await self._cut(factory)
                await self._kill(factory)
                await self._revoke(admin, factory)
                await self._quiet(1.0)
                self._sending = False
                await sending
                await self._drain()
            finally:
                for task in (sending, *readers):
                    task.cancel()
                await asyncio.gather(sending, *readers, return_exceptions=True)
            await self._count(factory)
        await self._tables()

    async def _tables(self) -> None:
        context = self._context("office")
        where = {"url": context["url"], "token": context["token"]}
        self.tables = Tables(self._console, self._folder, where, self._sent)
        try:
            await self.tables.run()
        finally:
            self.facts |= self.tables.facts
            self.broken += self.tables.broken

    async def _linked(self, factory: landbridge.Bus) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    shown = await factory.call("route.show", there="office")
                    if shown["best"] is not None and len(shown["alternates"]) >= 2:
                        return
                except BusError:
                    pass  # the directory isn't there yet
                await asyncio.sleep(0.1)

    async def _show(self, factory: landbridge.Bus) -> None:
        shown = await factory.call("route.show", there="office")
        table = Table("way from factory to office", "cost", box=None, padding=(0, 2))
        for path in (shown["best"], *shown["alternates"]):
            table.add_row(" › ".join(path["hops"]), f"{path['cost']:.0f} ms")
        self._console.print(table)

    async def _publish(self, factory: landbridge.Bus) -> None:
        begin = time.monotonic()
        async with factory.publisher("orders") as out:
            while self._sending:
                country = ("de", "fr", "sg")[self._sent % 3]
                await out.send({"n": self._sent, "country": country, "amount": self._sent % 100})
                self._sent += 1
                wait = begin + self._sent / RATE - time.monotonic()
                if wait > 0:
                    await asyncio.sleep(wait)

    async def _consume(self, office: landbridge.Bus, group: str) -> None:
        arrived, order = self._arrived[group], self._order[group]
        async for message in office.subscribe("orders", group=group, prefetch=5000):
            number = message.json()["n"]
            order.append(number)
            arrived.setdefault(number, time.monotonic())
            await message.ack()

    async def _quiet(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _until_flowing(self) -> float:
        """Seconds from now until a message arrives that is sent from now on."""
        begin, number = time.monotonic(), self._sent
        async with asyncio.timeout(PATIENCE):
            while not any(n >= number for n in self._order["billing"][-50:]):
                await self._quiet(0.005)
        return time.monotonic() - begin

    async def _hops(self, factory: landbridge.Bus) -> list[str]:
        """The terminals that messages pass at present, both ends included."""
        shown = await factory.call("route.show", there="office")
        path = shown["current"] or shown["best"]
        return list(path["hops"]) if path is not None else []

    async def _cut(self, factory: landbridge.Bus) -> None:
        first = (await self._hops(factory))[1]
        line = self._lines["factory", first]
        line.black_hole()
        self._say(f"  [red]cut[/]: factory – {first}, which is in use, swallows everything without a word")
        await self._flows("reroute after a black hole", factory)
        line.heal()
        self._say("  healed")
        await self._quiet(1.0)
        last = (await self._hops(factory))[-2]
        line = self._lines["office", last]
        line.cut()
        self._say(f"  [red]cut[/]: {last} – office, by a reset")
        await self._flows("reroute after a reset", factory)
        line.heal()
        self._say("  healed")
        await self._quiet(2.0)

    async def _flows(self, fact: str, factory: landbridge.Bus) -> None:
        took = self.facts[fact] = await self._until_flowing()
        await self._quiet(0.5)
        self._say(f"  messages flow another way after {took:.1f} s: {' › '.join(await self._hops(factory))}")

    async def _kill(self, factory: landbridge.Bus) -> None:
        name = (await self._hops(factory))[1]
        self._say(f"  [red]kill -9[/]: {name}, with whatever is passing through it")
        killed = self._terminals[name]
        await killed.end(signal.SIGKILL)
        await self._flows("reroute after a kill", factory)
        await killed.start()
        self._say(f"  {name} is back, and passes on what it had kept")
        await self._quiet(1.0)

    async def _revoke(self, admin: RegistryClient, factory: landbridge.Bus) -> None:
        name = (await self._hops(factory))[1]
        await admin.revoke_terminal(self._ids[name])
        self._say(f"  [red]revoked[/]: {name}, as if it were stolen")
        begin = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            while True:
                shown = await factory.call("topology.show")
                if name not in {terminal["name"] for terminal in shown["terminals"]}:
                    break
                await asyncio.sleep(0.02)
        took = self.facts["cut off after"] = time.monotonic() - begin
        self._say(f"  nobody talks to it any more after {took:.1f} s")
        await self._until_flowing()
        self._say(f"  messages flow: {' › '.join(await self._hops(factory))}")

    async def _drain(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while any(len(arrived) < self._sent for arrived in self._arrived.values()):
                await self._quiet(0.05)

    async def _count(self, factory: landbridge.Bus) -> None:
        shown = await factory.call("network.show")
        lost = sum(self._sent - len(arrived) for arrived in self._arrived.values())
        doubled = sum(len(order) - len(set(order)) for order in self._order.values())
        in_order = all(order == sorted(order) for order in self._order.values())
        self._check(lost == 0, "every message arrives at every group")
        self._check(doubled == 0, "no message arrives twice")
        self._check(in_order, "messages arrive in the order in which they were sent")
        self.facts |= {
            "sent": self._sent,
            "arrived": len(self._arrived["billing"]),
            "lost": lost,
            "doubled": doubled,
            "shipped": shown["forwarder"]["shipped"],
            "reroutes": shown["forwarder"]["reroutes"] + shown["forwarder"]["repeated"],
        }

    def rows(self) -> list[tuple[str, str]]:
        facts = self.facts
        return [
            ("sent at factory", f"{facts['sent']:,}"),
            ("arrived at office, in each of two groups", f"{facts['arrived']:,}"),
            ("lost", str(facts["lost"])),
            ("doubled", str(facts["doubled"])),
            ("shipments sent another way or again", f"{facts['reroutes']:,}"),
            ("time to reroute after a black hole", f"{facts['reroute after a black hole']:.1f} s"),
            ("time to reroute after a reset", f"{facts['reroute after a reset']:.2f} s"),
            ("time to reroute after kill -9 of the transit", f"{facts['reroute after a kill']:.2f} s"),
            ("a revoked terminal is cut off after", f"{facts['cut off after']:.2f} s"),
            *(self.tables.rows() if self.tables is not None else ()),
        ]


async def _forget(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
