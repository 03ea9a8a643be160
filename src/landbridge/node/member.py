"""A terminal of a customer whose registry is elsewhere: ``landbridge terminal --config FILE``."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from landbridge.broker.server import Terminal
from landbridge.cli.loop import run
from landbridge.cli.options import data_folder
from landbridge.cli.up import announce
from landbridge.client import context as contexts
from landbridge.client.context import is_loopback
from landbridge.client.registry import RegistryClient
from landbridge.core.names import check_name
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.crossing.certificates import Certificates
from landbridge.crossing.network import Network, Settings, join
from landbridge.errors import BadRequest, Unauthenticated, Unavailable
from landbridge.node import terminal_file
from landbridge.node.assembly import Plan, serve
from landbridge.node.listening import Endpoint
from landbridge.node.membership import Membership

log = structlog.get_logger("landbridge.member")

#: In the data folder: the registry's public key, as it was when the terminal first asked for it.
REGISTRY_KEY = "registry.key"
#: Seconds between two looks whether the directory has come.
LOOK = 0.5
#: Seconds that the registry is given to say whether it knows the terminal.
WELCOME_WITHIN = 5.0


def enrol(file: Path, token: str, said: Mapping[str, Any]) -> None:
    """Become a terminal: make a key, let the registry know its public half, write the file."""
    url = _registry(said)
    terminal_file.create(file)
    key = SecureKey.new()

    async def main() -> Any:
        async with RegistryClient(url, ca=said.get("registry_ca")) as client:
            return await client.enrol(token, key.public, name=said.get("name"))

    try:
        found = run(main())
    except BaseException:
        file.unlink()
        raise
    settings = {
        "customer_id": found.customer_id,
        "terminal_id": found.terminal_id,
        "secure_key": str(key),
        "name": found.name,
        "registry": url,
        "registry_key": base64.b64encode(found.registry_key).decode(),
    }
    others = {key: said[key] for key in terminal_file.KEYS if key in said}
    for path in terminal_file.PATHS:
        if others.get(path):  # meant from here, not from where the file is
            others[path] = str(Path(others[path]).expanduser().absolute())
    terminal_file.write(file, {**others, **settings})


def start(said: Mapping[str, Any]) -> None:
    """Start the terminal that these settings are of, until a signal."""
    missing = [key for key in ("customer_id", "terminal_id", "secure_key") if not said.get(key)]
    if missing:
        raise BadRequest(
            f"the terminal's settings have no {', '.join(missing)}",
            hint="'landbridge terminal create NAME --write FILE' writes a file that has all of them",
        )
    name = check_name(said.get("name") or said["terminal_id"], "terminal")
    host, port = terminal_file.endpoint(said.get("listen") or terminal_file.DEFAULT_LISTEN)
    data = Path(said["data"]).expanduser() if said.get("data") else data_folder() / "terminals" / name
    plan = Plan(
        data=data.absolute(),
        host=host,
        port=port,
        http_port=said.get("http_port", 7480) or None,
        name=name,
        context=said.get("context") or name,
        limits=[f"{limit}={value}" for limit, value in said.get("limits", {}).items()],
        tls_cert=_path(said, "tls_cert"),
        tls_key=_path(said, "tls_key"),
        auto_create=said.get("auto_create", True),
    )
    run(_start(plan, said))


async def _start(plan: Plan, said: Mapping[str, Any]) -> None:
    await serve(plan, announce, Member(plan, said))


def _path(said: Mapping[str, Any], key: str) -> Path | None:
    return Path(said[key]).expanduser() if said.get(key) else None


def _registry(said: Mapping[str, Any]) -> str:
    """Where the registry is: as it is set, else as the current context knows it."""
    if said.get("registry"):
        return str(said["registry"])
    name = contexts.current()
    known = contexts.load(name).registry if name is not None else None
    if known is None:
        raise BadRequest("nothing says where the registry is", hint="give --registry URL")
    return known


class Member(Membership):
    def __init__(self, plan: Plan, said: Mapping[str, Any]) -> None:
        assert plan.data is not None
        self._said = said
        self._data = plan.data
        self._own_certificates = bool(said.get("own_certificates")) or plan.tls_cert is not None
        self.customer, self.terminal = said["customer_id"], said["terminal_id"]
        self.registry_url = _registry(said)
        self._key = SecureKey.parse(said["secure_key"])
        identity = Identity(self.customer, self.terminal, self._key)
        self._client = RegistryClient(self.registry_url, identity=identity, ca=said.get("registry_ca"))
        self._certificates: Certificates | None = None
        #: Of a certificate that was given.
        self._given_digest = b""
        #: Is the listener's certificate the registry's?
        self._is_certified = False
        self._task: asyncio.Task[None] | None = None

    def tls(self, endpoint: Endpoint) -> ssl.SSLContext | None:
        if self._own_certificates:
            tls = endpoint.tls()
            self._given_digest = endpoint.digest()
            return tls
        from landbridge.broker.clock import Clock

        self._certificates = Certificates(
            self._data / "tls", self.customer, self.terminal, self._client, Clock()
        )
        address = str(self._said.get("address", ""))
        self._is_certified = not is_loopback(endpoint.host) or address.startswith("lbs:")
        return self._certificates.listener if self._is_certified else None

    async def open(self, terminal: Terminal) -> None:
        await self._check_welcome()
        if self._certificates is not None:
            try:
                await self._certificates.open()
            except Unavailable as error:
                if self._is_certified:
                    raise
                # Links that are dialled do without one, until the registry is back.
                log.warning("no certificate yet", detail=str(error))

    async def _check_welcome(self) -> None:
        """Whoever starts a terminal that was revoked should hear of it, and not from a log. Where the
        registry is away, the terminal starts with what it knows."""
        try:
            async with asyncio.timeout(WELCOME_WITHIN):
                await self._client.directory()
        except Unauthenticated as error:
            raise Unauthenticated(
                f"the registry refuses this terminal: {error}",
                hint="was it revoked or removed, or its key rotated? is the clock of this machine right?",
            ) from None
        except (Unavailable, TimeoutError) as error:
            log.warning("the registry is away", registry=self.registry_url, detail=str(error))

    def endpoint(self, given: Endpoint) -> Endpoint:
        if not self._is_certified:
            return given
        assert self._certificates is not None
        own = self._certificates.own_file
        return Endpoint(given.host, own, own, self._certificates.ca_file)

    async def join(self, terminal: Terminal, address: str, http: str | None) -> None:
        settings = {key: self._said[key] for key in Settings.__struct_fields__ if key in self._said}
        settings["own_certificates"] = self._own_certificates
        network = await join(
            terminal,
            self.customer,
            self.terminal,
            self._key,
            self._client,
            await self._registry_key(),
            Settings(**settings),
        )
        if self._certificates is not None:
            self._certificates.use(network)
        else:
            network.client_tls = self._dialling(network)
            network.certificate_digest = self._given_digest
        self._task = asyncio.ensure_future(self._compare(network))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._certificates is not None:
            await self._certificates.close()
        await self._client.close()

    async def _registry_key(self) -> bytes:
        """As it is set; else the one that the registry showed when it was first asked, and no other since."""
        file = self._data / REGISTRY_KEY
        text = self._said.get("registry_key") or await asyncio.to_thread(_read, file)
        if not text:
            text = base64.b64encode((await self._client.show_registry()).registry_key).decode()
            await asyncio.to_thread(file.write_text, text)
            log.warning("trusting the registry's key from now on", key=text, registry=self.registry_url)
        try:
            return base64.b64decode(text.strip(), validate=True)
        except (ValueError, binascii.Error):
            raise BadRequest("the registry_key is not base64") from None

    def _dialling(self, network: Network) -> ssl.SSLContext | None:
        """For links under certificates that were given."""
        authority = self._said.get("tls_ca")
        try:
            tls = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise BadRequest(f"can't read {authority}: {error.strerror or error}") from None
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        if network.directory.ca:
            tls.load_verify_locations(cadata=network.directory.ca)
        return tls

    async def _compare(self, network: Network) -> None:
        """The registry's word counts for mode and address. Where this terminal's file says otherwise,
        somebody should know."""
        while True:
            await asyncio.sleep(LOOK)
            if network.directory.version:
                break
        entry = network.entry(self.terminal)
        if entry is None:
            log.warning("the directory doesn't name this terminal", terminal=self.terminal)
            return
        for key, known in (("mode", entry.mode), ("address", entry.address)):
            wanted = self._said.get(key)
            if wanted and wanted.rstrip("/") != known:
                log.warning(
                    f"the registry has another {key} for this terminal",
                    registry=known,
                    here=wanted,
                    hint=f"landbridge terminal update {entry.name} --{key} {wanted}",
                )


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
