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
from landbridge.client import context as contexts
from landbridge.client.context import is_loopback, parse_url
from landbridge.client.registry import RegistryClient
from landbridge.core.names import check_name
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.core.trust.registered_tokens import RegisteredTokens
from landbridge.crossing.certificates import Certificates
from landbridge.crossing.ground import Settings
from landbridge.crossing.joining import join
from landbridge.crossing.network import Network
from landbridge.errors import BadRequest, Unauthenticated, Unavailable
from landbridge.node import terminal_file
from landbridge.node.listening import Endpoint
from landbridge.node.membership import Membership
from landbridge.node.plan import NodePlan, SmtpPlan, check_life, data_folder
from landbridge.node.stores import address_of

log = structlog.get_logger("landbridge.member")

#: In the data folder: the registry's public key, as it was when the terminal first asked for it.
REGISTRY_KEY = "registry.key"
#: Seconds between two checks whether the directory has arrived.
LOOK = 0.5
#: Seconds that the registry has to say whether it accepts the terminal.
WELCOME_WITHIN = 5.0


async def enrol(file: Path, token: str, settings: Mapping[str, Any]) -> None:
    """Become a terminal: make a key, send its public half to the registry, write the file."""
    url = _registry(settings)
    key = SecureKey.new()
    with terminal_file.created(file):
        async with RegistryClient(url, ca=settings.get("registry_ca")) as client:
            found = await client.enrol(token, key.public, name=settings.get("name"))
    identity = {
        "customer_id": found.customer_id,
        "terminal_id": found.terminal_id,
        "secure_key": str(key),
        "name": found.name,
        "registry": url,
        "registry_key": base64.b64encode(found.registry_key).decode(),
    }
    terminal_file.write(file, {**_from_here(settings), **identity})


def _from_here(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with absolute paths: relative ones were meant from the current folder, not from the
    folder of the file that they are written to."""
    found = {key: settings[key] for key in terminal_file.KEYS if key in settings}
    for path in terminal_file.PATHS:
        if found.get(path):
            found[path] = str(Path(found[path]).expanduser().absolute())
    return found


def plan_of(settings: Mapping[str, Any]) -> NodePlan:
    """The process of the terminal whose settings these are."""
    missing = [key for key in ("customer_id", "terminal_id", "secure_key") if not settings.get(key)]
    if missing:
        raise BadRequest(
            f"the terminal's settings have no {', '.join(missing)}",
            hint="'landbridge terminal create NAME --write FILE' writes a file that has all of them",
        )
    name = check_name(settings.get("name") or settings["terminal_id"], "terminal")
    host, port = terminal_file.endpoint(settings.get("listen") or terminal_file.DEFAULT_LISTEN)
    own = data_folder() / "terminals" / name / str(settings.get("node") or "")
    data = Path(settings["data"]).expanduser() if settings.get("data") else own
    return NodePlan(
        **_node(settings),
        data=data.absolute(),
        host=host,
        port=port,
        http_port=settings.get("http_port", 7480) or None,
        name=name,
        context=settings.get("context") or name,
        limits=[f"{limit}={value}" for limit, value in settings.get("limits", {}).items()],
        tls_cert=_path(settings, "tls_cert"),
        tls_key=_path(settings, "tls_key"),
        auto_create=settings.get("auto_create", True),
        allow_outgoing=settings.get("allow_outgoing", []),
        smtp=_smtp(settings),
        store=address_of(settings.get("store"), is_visible=False),
    )


def _node(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a plan says of one of several nodes."""
    if not settings.get("node"):
        given = [key for key in ("node_address", "node_life", "together") if settings.get(key)]
        if given:
            raise BadRequest(f"{given[0]} is for a node", hint="give the setting 'node', too")
        return {}
    if str(settings.get("address", "")).startswith("lbs:") and not settings.get("tls_cert"):
        raise BadRequest(
            "a node doesn't listen with a certificate of the registry",
            hint="give it one of your own: tls_cert, tls_key, and tls_ca for those of the other nodes",
        )
    found: dict[str, Any] = {"node": check_name(settings["node"], "node")}
    if settings.get("node_address"):
        parse_url(settings["node_address"])
        found["address"] = settings["node_address"]
    if "node_life" in settings:
        found["node_life"] = check_life(settings["node_life"])
    return found | {"together": settings.get("together", False), "tls_ca": _path(settings, "tls_ca")}


def _smtp(settings: Mapping[str, Any]) -> SmtpPlan | None:
    port, tls_port = settings.get("smtp"), settings.get("smtps")
    if port is None and tls_port is None:
        return None
    return SmtpPlan(port=port, tls_port=tls_port, domain=settings.get("smtp_domain") or "localhost")


def _path(settings: Mapping[str, Any], key: str) -> Path | None:
    return Path(settings[key]).expanduser() if settings.get(key) else None


def _registry(settings: Mapping[str, Any]) -> str:
    """The registry's URL: from the settings, else from the current context."""
    if settings.get("registry"):
        return str(settings["registry"])
    name = contexts.current()
    known = contexts.load(name).registry if name is not None else None
    if known is None:
        raise BadRequest("nothing says where the registry is", hint="give --registry URL")
    return known


class MemberOfRegistry(Membership):
    """Of a customer whose registry is another process, which is asked over HTTP."""

    def __init__(self, plan: NodePlan, settings: Mapping[str, Any]) -> None:
        assert plan.data is not None
        self._settings = settings
        self._data = plan.data
        self._own_certificates = bool(settings.get("own_certificates")) or plan.tls_cert is not None
        self.customer, self.terminal = settings["customer_id"], settings["terminal_id"]
        self.registry_url = _registry(settings)
        self._key = SecureKey.parse(settings["secure_key"])
        identity = Identity(self.customer, self.terminal, self._key)
        self._client = RegistryClient(self.registry_url, identity=identity, ca=settings.get("registry_ca"))
        self._certificates: Certificates | None = None
        #: SHA-256 of a certificate that was given; empty without one.
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
        address = str(self._settings.get("address", ""))
        self._is_certified = not is_loopback(endpoint.host) or address.startswith("lbs:")
        return self._certificates.listener if self._is_certified else None

    async def check(self) -> None:
        await self._check_welcome()

    async def open(self, terminal: Terminal) -> None:
        # Programs that come before the directory does are asked to come again.
        terminal.authority.registered = terminal.authority.registered or RegisteredTokens()
        await self._check_welcome()
        if self._certificates is not None:
            try:
                await self._certificates.open()
            except Unavailable as error:
                if self._is_certified:
                    raise
                # Links that this terminal dials need no certificate of its own: it can wait for the registry.
                log.warning("no certificate yet", detail=str(error))

    async def _check_welcome(self) -> None:
        """Raise Unauthenticated if the registry refuses this terminal, so that the user sees it at once
        and not in a log. If the registry is away, the terminal starts with what it knows."""
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
        chosen = {key: self._settings[key] for key in Settings.__struct_fields__ if key in self._settings}
        chosen["own_certificates"] = self._own_certificates
        registry_key, settings = await self._registry_key(), Settings(**chosen)
        network = await join(
            terminal, self.customer, self.terminal, self._key, self._client, registry_key, settings
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
        """The registry's public key: from the settings, else the key that the registry showed when it was
        first asked. That key is saved, and no other is accepted later."""
        file = self._data / REGISTRY_KEY
        text = self._settings.get("registry_key") or await asyncio.to_thread(_read, file)
        if not text:
            text = base64.b64encode((await self._client.show_registry()).registry_key).decode()
            await asyncio.to_thread(file.write_text, text)
            log.warning("trusting the registry's key from now on", key=text, registry=self.registry_url)
        try:
            return base64.b64decode(text.strip(), validate=True)
        except (ValueError, binascii.Error):
            raise BadRequest("the registry_key is not base64") from None

    def _dialling(self, network: Network) -> ssl.SSLContext | None:
        """The TLS context to dial with, for links under certificates that were given."""
        authority = self._settings.get("tls_ca")
        try:
            tls = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise BadRequest(f"can't read {authority}: {error.strerror or error}") from None
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        if network.directory.ca:
            tls.load_verify_locations(cadata=network.directory.ca)
        return tls

    async def _compare(self, network: Network) -> None:
        """Warn if the terminal's file says another mode or address than the registry, whose word counts."""
        while True:
            await asyncio.sleep(LOOK)
            if network.directory.version:
                break
        entry = network.entry(self.terminal)
        if entry is None:
            log.warning("the directory doesn't name this terminal", terminal=self.terminal)
            return
        for key, known in (("mode", entry.mode), ("address", entry.address)):
            wanted = self._settings.get(key)
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
