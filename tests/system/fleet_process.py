"""A fleet of processes: a registry and the terminals of a customer, each link over a line of its own, which
the test can spoil. testing.fleet is the same in one process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

import landbridge
from landbridge.broker import topic as topics
from landbridge.client.registry import RegistryClient
from landbridge.core.log.record import unwrap
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.crossing.ground import Settings
from landbridge.errors import BusError
from landbridge.registry.limits import RegistryLimits
from landbridge.stores.journal.store import JournalFolder
from landbridge.testing.wan import Line
from tests.ports import free_port
from tests.system.member_process import Plan
from tests.waiting import LIMIT

HERE = Path(__file__).parent
SOURCE = Path(landbridge.__path__[0]).parent


class Child:
    """A process that says a line when it is ready, is killed, and started again."""

    def __init__(self, script: str, *arguments: object, errors: Path) -> None:
        self._command = [sys.executable, str(HERE / script), *map(str, arguments)]
        #: Where its stderr goes, all starts together.
        self.errors = errors
        self.said = ""
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None

    async def start(self) -> None:
        with self.errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(HERE.parents[1])))},
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(LIMIT):
            self.said = (await self._process.stdout.readline()).decode().strip()
        assert self.said, f"it didn't start: {self.errors.read_text()[-2000:]}"

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            await process.communicate()
            assert process.returncode == -signal.SIGKILL, self.errors.read_text()[-2000:]


class Member:
    """A terminal of the fleet, and the lines over which it dials others."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.process = Child("member_process.py", folder.parent / f"{plan.name}.json", errors=folder / "log")
        #: By the name of the terminal that is dialled.
        self.lines: dict[str, Line] = {}

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def id(self) -> str:
        return self.plan.terminal

    @property
    def identity(self) -> Identity:
        return Identity(self.plan.customer, self.plan.terminal, SecureKey.parse(self.plan.key))

    @property
    def database(self) -> Path:
        return Path(self.plan.database)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.plan.port

    def connect(self, name: str) -> Any:
        return landbridge.connect(
            f"lb://127.0.0.1:{self.plan.port}", token=self.process.said, name=name, patience=LIMIT
        )

    async def kill(self) -> None:
        await self.process.kill()

    async def start(self) -> None:
        await self.process.start()

    async def ask(self, op: str, **arguments: Any) -> Any:
        async with self.connect("ask") as bus:
            return await bus.call(op, **arguments)


def stored(path: Path, topic: str) -> list[str]:
    """The payloads in a topic's log, in order, of a terminal that isn't running."""
    store = JournalFolder(path)
    store.open()
    try:
        assert store.check() == []
        document = dict(store.documents(topics.KIND)).get(topic)
        if document is None:
            return []
        log, at = topics.decode(document).log, 0
        found: list[str] = []
        while batches := store.read(log, at, 1 << 20):
            for batch in batches:
                found += [bytes(payload).decode() for payload in unwrap(batch.data).payloads()]
            at = batches[-1].end
        return found
    finally:
        store.close()


class FleetProcess:
    def __init__(
        self, folder: Path, *, limits: RegistryLimits | None = None, settings: Settings | None = None
    ) -> None:
        self.folder = folder
        self._settings = settings or Settings()
        self._stack = AsyncExitStack()
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        (folder / "registry").mkdir()
        self.registry = Child(
            "registry_process.py",
            folder / "registry",
            self._port,
            msgspec.json.encode(limits or RegistryLimits()).decode(),
            errors=folder / "registry" / "log",
        )
        self.members: dict[str, Member] = {}
        self.registry_key = ""
        self.admin: RegistryClient
        self.operator: RegistryClient
        self.customer = ""

    async def __aenter__(self) -> FleetProcess:
        self._stack.push_async_callback(self.registry.kill)
        try:
            await self.registry.start()
            hello = json.loads(self.registry.said)
            self.registry_key = hello["public_key"]
            self.operator = await self._stack.enter_async_context(
                RegistryClient(self.url, token=hello["token"])
            )
            self.customer, self.admin = await self.new_customer("acme")
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()

    async def new_customer(self, name: str) -> tuple[str, RegistryClient]:
        made = await self.operator.create_message_bus_customer(name)
        admin = await self._stack.enter_async_context(RegistryClient(self.url, token=made.token))
        return made.customer_id, admin

    async def add(
        self,
        name: str,
        mode: Any = "server",
        *,
        dials: dict[str, float] | None = None,
        transit: bool = True,
        customer: tuple[str, RegistryClient] | None = None,
    ) -> Member:
        """A terminal that dials these servers, each over a line with this delay in seconds."""
        folder = self.folder / name
        folder.mkdir()
        customer_id, admin = customer or (self.customer, self.admin)
        port = free_port()
        address = f"lb://127.0.0.1:{port}" if mode == "server" else ""
        made = await admin.create_terminal(name, mode=mode, address=address, transit=transit)
        assert made.secure_key is not None
        lines: dict[str, Line] = {}
        for there, delay in (dials or {}).items():
            line = Line(*self.members[there].address, delay=delay)
            lines[there] = await self._stack.enter_async_context(line)
        plan = Plan(
            name=name,
            customer=customer_id,
            terminal=made.terminal_id,
            key=made.secure_key,
            database=str(folder / "bus"),
            port=port,
            registry=self.url,
            registry_key=self.registry_key,
            settings=msgspec.structs.replace(
                self._settings,
                neighbours=list(lines),
                dial={there: line.url for there, line in lines.items()},
            ),
        )
        (self.folder / f"{name}.json").write_bytes(msgspec.json.encode(plan))
        member = self.members[name] = Member(plan, folder)
        member.lines = lines
        self._stack.push_async_callback(member.kill)
        await member.start()
        return member

    async def topic(
        self, name: str, /, *, options: dict[str, Any] | None = None, **groups: list[Member]
    ) -> None:
        """A topic with these groups, each with its terminals."""
        for group, members in groups.items():
            await self.admin.create_terminal_group(group, [member.id for member in members])
        await self.admin.create_message_bus_topic(name, list(groups), **(options or {}))

    async def linked(self, *members: Member) -> None:
        """Until each of these has a path to each other one."""

        async def reachable(member: Member) -> set[str]:
            try:
                shown = await member.ask("topology.show")
            except BusError:  # it has no directory yet
                return set()
            return {terminal["name"] for terminal in shown["terminals"] if terminal["reachable"]}

        names = {member.name for member in members}
        async with asyncio.timeout(LIMIT):
            for member in members:
                while not names <= await reachable(member):
                    await asyncio.sleep(0.05)
