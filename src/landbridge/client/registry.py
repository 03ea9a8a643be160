"""The client of a registry: every operation is a method, for admins and for terminals.

    async with RegistryClient("https://registry.example", token="lbac1_…") as registry:
        await registry.create_terminal("paris", mode="server", address="lbs://paris.example:7420")

An admin shows a credential; a terminal proves each request with its identity and never sends its secure key.
A refusal is raised as the error that the registry names, and RegistryUnreachable if it can't be reached. The
arguments of a method are those of its request in ``registry_documents``, path and query included.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from landbridge.client import registry_documents as api
from landbridge.client import registry_operations as op
from landbridge.client.context import is_loopback
from landbridge.client.registry_operations import RegistryOperation
from landbridge.core.routing.linkstate import SignedLinkState
from landbridge.core.trust.identity import Identity, digest_of
from landbridge.errors import BadContext, BusError, RegistryUnreachable, from_wire
from landbridge.protocol.http import Problem, content_digest

if TYPE_CHECKING:
    import httpx

#: Seconds to connect, and for an answer (beyond the time that the request asks the registry to wait).
CONNECT_WITHIN = 5.0
ANSWER_WITHIN = 15.0
P = ParamSpec("P")
Q = TypeVar("Q", bound=api.Request)
A = TypeVar("A")


def _now() -> int:
    return time.time_ns() // 1000


class _Method(Generic[P, A]):
    """A method of the client that takes what the request of an operation takes, and returns its answer."""

    def __init__(self, operation: RegistryOperation[P, Any, A]) -> None:
        self._operation = operation
        request = getattr(operation.request, "__name__", "")
        self.__doc__ = f"{operation.help}. The arguments are those of registry_documents.{request}."

    def __get__(self, client: RegistryClient | None, _: type) -> Callable[P, Coroutine[Any, Any, A]]:
        async def call(*args: P.args, **kwargs: P.kwargs) -> A:
            assert client is not None, "a method of an instance"
            return await client.call(self._operation, self._operation.request(*args, **kwargs))

        call.__name__, call.__doc__ = self._operation.name, self.__doc__
        return call


class RegistryClient:
    """A connection to a registry.

    ``identity`` for a terminal, ``token`` for an admin or the operator, neither to enrol. ``ca``: a file with
    the certificates to trust. ``transport``: what to use instead of a socket, as httpx.ASGITransport for a
    registry in this process. ``clock``: microseconds; it must agree with the registry's to 30 s."""

    def __init__(
        self,
        url: str,
        *,
        identity: Identity | None = None,
        token: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        ca: str | None = None,
        clock: Callable[[], int] = _now,
    ) -> None:
        import httpx

        self.url = _check_url(url, in_process=transport is not None)
        self._identity = identity
        self._token = token
        self._clock = clock
        is_tls = self.url.startswith("https:")
        self._http = httpx.AsyncClient(
            base_url=self.url,
            transport=transport,
            verify=_tls(ca) if is_tls else False,
            # A proxy that the environment names is for the internet, not for this machine.
            trust_env=is_tls,
            timeout=httpx.Timeout(ANSWER_WITHIN, connect=CONNECT_WITHIN),
        )

    def __repr__(self) -> str:
        who = self._identity or ("admin" if self._token else "anybody")
        return f"<RegistryClient {self.url} as {who}>"

    async def __aenter__(self) -> RegistryClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # -- the registry and its customers ---------------------------------------------------------------

    show_registry = _Method(op.SHOW_REGISTRY)
    rotate_operator_credential = _Method(op.ROTATE_OPERATOR_CREDENTIAL)
    create_message_bus_customer = _Method(op.CREATE_CUSTOMER)
    list_message_bus_customers = _Method(op.LIST_CUSTOMERS)
    remove_message_bus_customer = _Method(op.REMOVE_CUSTOMER)
    reset_message_bus_customer_credential = _Method(op.RESET_CUSTOMER_CREDENTIAL)
    show_message_bus_customer = _Method(op.SHOW_CUSTOMER)
    update_message_bus_customer = _Method(op.UPDATE_CUSTOMER)
    rotate_message_bus_customer_credential = _Method(op.ROTATE_CUSTOMER_CREDENTIAL)
    revoke_message_bus_customer_credentials = _Method(op.REVOKE_CUSTOMER_CREDENTIALS)

    # -- terminals ------------------------------------------------------------------------------------

    create_terminal = _Method(op.CREATE_TERMINAL)
    list_terminals = _Method(op.LIST_TERMINALS)
    show_terminal = _Method(op.SHOW_TERMINAL)
    update_terminal = _Method(op.UPDATE_TERMINAL)
    remove_terminal = _Method(op.REMOVE_TERMINAL)
    revoke_terminal = _Method(op.REVOKE_TERMINAL)
    rotate_terminal_key = _Method(op.ROTATE_TERMINAL_KEY)
    create_terminal_enrolment = _Method(op.CREATE_TERMINAL_ENROLMENT)
    enrol = _Method(op.ENROL_TERMINAL)

    # -- groups ---------------------------------------------------------------------------------------

    create_terminal_group = _Method(op.CREATE_TERMINAL_GROUP)
    list_terminal_groups = _Method(op.LIST_TERMINAL_GROUPS)
    show_terminal_group = _Method(op.SHOW_TERMINAL_GROUP)
    update_terminal_group = _Method(op.UPDATE_TERMINAL_GROUP)
    remove_terminal_group = _Method(op.REMOVE_TERMINAL_GROUP)
    remove_terminal_from_group = _Method(op.REMOVE_TERMINAL_FROM_GROUP)

    async def add_terminal_to_group(self, group: str, *terminals: str) -> api.TerminalGroup:
        """Add one or more terminals, by their ids or names."""
        return await self.call(op.ADD_TERMINAL_TO_GROUP, api.AddTerminals(group, list(terminals)))

    # -- topics ---------------------------------------------------------------------------------------

    create_message_bus_topic = _Method(op.CREATE_TOPIC)
    list_message_bus_topics = _Method(op.LIST_TOPICS)
    show_message_bus_topic = _Method(op.SHOW_TOPIC)
    update_message_bus_topic = _Method(op.UPDATE_TOPIC)
    remove_message_bus_topic = _Method(op.REMOVE_TOPIC)
    remove_group_from_topic = _Method(op.REMOVE_GROUP_FROM_TOPIC)
    rotate_message_bus_topic_key = _Method(op.ROTATE_TOPIC_KEY)

    async def add_group_to_topic(self, topic: str, *groups: str) -> api.TopicInfo:
        """Add one or more groups."""
        return await self.call(op.ADD_GROUP_TO_TOPIC, api.AddGroups(topic, list(groups)))

    # -- services -------------------------------------------------------------------------------------

    register_service = _Method(op.REGISTER_SERVICE)
    list_services = _Method(op.LIST_SERVICES)
    show_service = _Method(op.SHOW_SERVICE)
    update_service = _Method(op.UPDATE_SERVICE)
    remove_service = _Method(op.REMOVE_SERVICE)
    suspend_service = _Method(op.SUSPEND_SERVICE)
    resume_service = _Method(op.RESUME_SERVICE)
    rotate_service_credential = _Method(op.ROTATE_SERVICE_CREDENTIAL)
    rotate_token_key = _Method(op.ROTATE_TOKEN_KEY)
    create_service_token = _Method(op.CREATE_SERVICE_TOKEN)

    # -- by terminals ---------------------------------------------------------------------------------

    issue = _Method(op.ISSUE_TICKET)
    redeem = _Method(op.REDEEM_TICKET)
    renew = _Method(op.RENEW_TICKET)
    certificate = _Method(op.REQUEST_CERTIFICATE)
    rotate_own_key = _Method(op.ROTATE_OWN_KEY)

    async def directory(
        self, version: int = 0, wait: float = 0.0, topics: Sequence[str] = ()
    ) -> api.NewDirectory | None:
        """Return the directory if it is newer than ``version``; None if none came within ``wait`` seconds.

        It has the topics that the terminal is in a group of, and those of ``topics`` that exist. The caller
        checks the signatures: ``core.trust.directory.verify``."""
        return await self.call(op.READ_DIRECTORY, api.ReadDirectory(version, wait, list(topics)))

    async def post_link_state(self, signed: SignedLinkState, held: Mapping[str, int] | None = None) -> None:
        """Report a link state. ``held``: topic → messages that this terminal holds and a group waits for."""
        request = api.PostLinkState(signed.body, signed.signature, dict(held or {}))
        await self.call(op.POST_LINK_STATE, request)

    # -- links, plans, audit --------------------------------------------------------------------------

    topology = _Method(op.READ_TOPOLOGY)
    put_plan = _Method(op.PUT_PLAN)
    put_customer_plan = _Method(op.PUT_CUSTOMER_PLAN)
    read_plan = _Method(op.READ_PLAN)
    planned_paths = _Method(op.PLANNED_PATHS)
    audit = _Method(op.READ_AUDIT)

    # -- how they are sent ----------------------------------------------------------------------------

    async def call(self, operation: RegistryOperation[..., Q, A], request: Q) -> A:
        """Send a request and return its answer. All other methods come down to this one."""
        import httpx

        values = msgspec.to_builtins(request)  # without members that have their default
        path = operation.path.format(**{name: quote(values[name], safe="") for name in operation.in_path})
        query = {name: _text(values[name]) for name in operation.in_query if name in values}
        target = f"{path}?{urlencode(query)}" if query else path
        body = {name: values[name] for name in operation.in_body if name in values}
        content = msgspec.json.encode(body) if operation.in_body else b""
        try:
            response = await self._http.request(
                operation.verb,
                target,
                content=content,
                headers=self._headers(f"{operation.verb} {target}", content),
                timeout=httpx.Timeout(ANSWER_WITHIN + values.get("wait", 0.0), connect=CONNECT_WITHIN),
            )
        except httpx.HTTPError as error:
            raise RegistryUnreachable(f"{self.url} doesn't answer: {type(error).__name__} {error}") from None
        if not response.is_success:
            raise _error_of(self.url, response)
        return self._decode(response.content, operation.answer) if response.content else cast(A, None)

    def _decode(self, content: bytes, answer: type[A]) -> A:
        try:
            return msgspec.json.decode(content, type=answer)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise RegistryUnreachable(f"what answers at {self.url} is not a Landbridge registry") from None

    def _headers(self, op: str, content: bytes) -> dict[str, str]:
        headers = {"content-type": "application/json"} if content else {}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if self._identity is not None:
            proof = self._identity.proof(op, content, self._clock())
            headers["landbridge-terminal"] = self._identity.terminal
            headers["landbridge-timestamp"] = str(proof.timestamp)
            headers["landbridge-nonce"] = base64.b64encode(proof.nonce).decode()
            headers["landbridge-proof"] = base64.b64encode(proof.signature).decode()
            if content:
                headers["content-digest"] = content_digest(digest_of(content))
        return headers


def _check_url(url: str, *, in_process: bool) -> str:
    hint = "https://host, or http://127.0.0.1:port on this machine"
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise BadContext(f"{url!r} is not the address of a registry: {error}", hint=hint) from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise BadContext(f"{url!r} is not the address of a registry", hint=hint)
    if parts.path not in ("", "/"):
        # A proof names the path that the registry sees.
        raise BadContext(f"{url!r} has a path: a registry is at the root of its host", hint=hint)
    if parts.scheme == "http" and not in_process and not is_loopback(host):
        raise BadContext(f"{url!r} would send credentials in the clear", hint=f"use https://{host}")
    return url.rstrip("/")


def _tls(ca: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise BadContext(f"can't read the certificates in {ca}: {error.strerror or error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _error_of(url: str, response: httpx.Response) -> BusError:
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return RegistryUnreachable(f"{url} answers {response.status_code}, but not as a Landbridge registry")
    return from_wire(problem.code, problem.detail, problem.hint)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
