"""A fleet as it is in the field: ``landbridge registry`` and ``landbridge terminal``, each in a namespace of
its own, HTTPS to the registry and TLS between the terminals; and programs in the LANs, which see nothing but
their terminal. fleet_process is the same over loopback, with lines that delay."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import os
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.system.fleet_process import HERE, SOURCE, Child
from tests.system.founding_process import Founding
from tests.system.namespaces import Namespaces
from tests.waiting import LIMIT

REGISTRY_PORT, PORT = 7490, 7420


class CommandLine(Child):
    """A ``landbridge`` of a place."""

    def __init__(self, network: Namespaces, place: str, home: Path, *arguments: object, errors: Path) -> None:
        super().__init__("", errors=errors)
        options = ("--json", "--log-level", "warning")
        self._command = network.command(
            place, "env", f"LANDBRIDGE_HOME={home}", sys.executable, "-m", "landbridge", *arguments, *options
        )


class Declined(Exception):
    """What a program was asked for, its terminal doesn't do."""


class Program:
    """A lan_process of a place. ``heard``: what it says of its own accord, a line each."""

    def __init__(self, command: list[str], errors: Path, heard: Callable[[dict[str, Any]], None]) -> None:
        self._command = command
        self._errors = errors
        self._heard = heard
        self._asking = asyncio.Lock()
        #: The answer that is waited for.
        self._answer: asyncio.Future[dict[str, Any]] | None = None

    async def start(self) -> None:
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=_environment(),
            )
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while text := await self._process.stdout.readline():
            line = json.loads(text)
            if line.keys() & {"answer", "error"}:
                assert self._answer is not None
                self._answer.set_result(line)
            else:
                self._heard(line)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RuntimeError(f"the program ended: {self._errors.read_text()[-2000:]}"))

    async def ask(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        async with self._asking:
            assert not self._reading.done(), f"the program ended: {self._errors.read_text()[-2000:]}"
            self._answer = asyncio.get_running_loop().create_future()
            self._process.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
            line = await self._answer
        if "error" in line:
            raise Declined(line["error"])
        return line["answer"]

    async def close(self) -> None:
        """It ends by itself, and without complaints, when there is nobody to tell it anything."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(LIMIT):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reading
        assert self._process.returncode == 0, self._errors.read_text()[-2000:]


class NamespaceFleet:
    """``servers``: their names. The clients are left and right, and right has the consumers of ``group``."""

    def __init__(self, folder: Path, *servers: str, topic: str, group: str) -> None:
        self.folder = folder
        self.servers = servers
        self.topic = topic
        self.group = group
        self.terminals = ("left", "right", *servers)
        self.network = Namespaces("registry", *self.terminals)
        #: By name, the registry among them.
        self.processes: dict[str, CommandLine] = {}
        self.customer = ""
        #: By name.
        self.ids: dict[str, str] = {}
        self._home = folder / "home"
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> NamespaceFleet:
        try:
            self._stack.enter_context(self.network)
            await self._found(*await self._start_registry())
            async with asyncio.TaskGroup() as starting:
                for name in self.terminals:
                    starting.create_task(self._start_terminal(name))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()

    async def _start_registry(self) -> tuple[str, Path]:
        """Its address, and what to trust for it."""
        host = self.network.address("registry")
        certificate, key = self_signed(self.folder, host)
        arguments: list[object] = ["registry", "--data", self.folder / "registry", "--host", host]
        arguments += ["--port", REGISTRY_PORT, "--tls-cert", certificate, "--tls-key", key]
        await self._start("registry", *arguments)
        return f"https://{host}:{REGISTRY_PORT}", certificate

    async def _found(self, url: str, ca: Path) -> None:
        context = json.loads((self._home / "contexts" / "registry.json").read_bytes())
        founding = Founding(
            registry=url,
            ca=str(ca),
            operator_token=context["operator_token"],
            terminals={name: self._settings(name) for name in self.terminals},
            topic=self.topic,
            groups={self.group: ["right"]},
        )
        file = self.folder / "founding.json"
        file.write_bytes(msgspec.json.encode(founding))
        process = await asyncio.create_subprocess_exec(
            *self.network.command("registry", sys.executable, HERE / "founding_process.py", file),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
        )
        said, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        founded = json.loads(said)
        self.customer, self.ids = founded["customer"], founded["terminals"]

    def _settings(self, name: str) -> dict[str, Any]:
        common: dict[str, Any] = {"http_port": 0, "data": str(self.folder / name)}
        if name not in self.servers:  # its programs are on its own machine
            return {**common, "listen": f"127.0.0.1:{PORT}"}
        where = f"{self.network.address(name)}:{PORT}"
        return {**common, "listen": where, "address": f"lbs://{where}"}

    async def _start_terminal(self, name: str) -> None:
        await self._start(name, "terminal", "--config", self.folder / f"{name}.yml")

    async def _start(self, name: str, *arguments: object) -> None:
        errors = self.folder / f"{name}.log"
        process = CommandLine(self.network, name, self._home, *arguments, errors=errors)
        self.processes[name] = process
        self._stack.push_async_callback(process.kill)
        await process.start()

    async def program(
        self, place: str, role: str, detail: object, heard: Callable[[dict[str, Any]], None]
    ) -> Program:
        """``detail``: a seed to publish, a group to consume."""
        script = (sys.executable, HERE / "lan_process.py", role, place, self.topic, detail)
        command = self.network.command(place, "env", f"LANDBRIDGE_HOME={self._home}", *script)
        made = Program(command, self.folder / f"{role}.log", heard)
        await made.start()
        self._stack.push_async_callback(made.close)
        return made

    def database(self, terminal: str) -> Path:
        return self.folder / terminal / "bus"

    async def kill(self) -> None:
        """All of them. What they have stored can be read then."""
        for process in self.processes.values():
            await process.kill()


def self_signed(folder: Path, host: str) -> tuple[Path, Path]:
    """A certificate for an address, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "registry.pem", folder / "registry.key"
    files[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(HERE.parents[1])))}
