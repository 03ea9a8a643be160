"""The registry, from outside: every operation of its HTTP as a coroutine, for admins and for terminals.

    async with RegistryClient("https://registry.example", token="lbac1_…") as registry:
        await registry.create_terminal("paris", mode="server", address="lbs://paris.example:7420")

An admin shows a credential; a terminal proves each request with its identity and never sends its secure key.
What the registry refuses is raised as the error that it names; where it can't be reached,
RegistryUnreachable.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from landbridge.client import registry_documents as api
from landbridge.client.context import is_loopback
from landbridge.core.routing.linkstate import SignedLinkState
from landbridge.core.routing.plan import Plan
from landbridge.core.trust.directory import PublicKeys
from landbridge.core.trust.identity import Identity
from landbridge.core.trust.tickets import Issue, Release, Renewal
from landbridge.errors import BadContext, BusError, RegistryUnreachable, from_wire

if TYPE_CHECKING:
    import httpx

#: Seconds to connect, and for an answer beyond what it was asked to wait.
CONNECT_WITHIN = 5.0
ANSWER_WITHIN = 15.0
T = TypeVar("T")


class _Problem(msgspec.Struct, frozen=True):
    code: str
    detail: str
    hint: str = ""


def _now() -> int:
    return time.time_ns() // 1000


class RegistryClient:
    """``identity`` for a terminal, ``token`` for an admin or the operator, neither to enrol. ``ca``: a file
    with the certificates to trust. ``transport``: another way to it than a socket, as httpx.ASGITransport for
    one in this process. ``clock``: microseconds; the registry's and the terminal's must agree to 30 s."""

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
        await self._http.aclose()

    # -- the registry and its customers ------------------------------------------------------------

    async def show_registry(self) -> api.RegistryInfo:
        return await self._call("GET", "/v1/registry", api.RegistryInfo)

    async def rotate_operator_credential(self) -> api.CreatedCredential:
        return await self._call("POST", "/v1/operator/credentials", api.CreatedCredential)

    async def create_message_bus_customer(self, name: str) -> api.CreatedCustomer:
        return await self._call("POST", "/v1/customers", api.CreatedCustomer, api.CreateCustomer(name=name))

    async def list_message_bus_customers(self, *, after: str = "", limit: int = 100) -> api.CustomerPage:
        return await self._call("GET", "/v1/customers", api.CustomerPage, query=_paging(after, limit))

    async def remove_message_bus_customer(self, customer_id: str, *, force: bool = False) -> None:
        await self._send("DELETE", f"/v1/customers/{_part(customer_id)}", query=_forcing(force))

    async def reset_message_bus_customer_credential(self, customer_id: str) -> api.CreatedCredential:
        path = f"/v1/customers/{_part(customer_id)}/credentials"
        return await self._call("POST", path, api.CreatedCredential)

    async def show_message_bus_customer(self) -> api.Customer:
        return await self._call("GET", "/v1/customer", api.Customer)

    async def update_message_bus_customer(self, name: str) -> api.Customer:
        return await self._call("PATCH", "/v1/customer", api.Customer, api.UpdateCustomer(name=name))

    async def rotate_message_bus_customer_credential(self) -> api.CreatedCredential:
        return await self._call("POST", "/v1/customer/credentials", api.CreatedCredential)

    async def revoke_message_bus_customer_credentials(self) -> api.Customer:
        return await self._call("DELETE", "/v1/customer/credentials", api.Customer)

    # -- terminals ---------------------------------------------------------------------------------

    async def create_terminal(
        self,
        name: str,
        *,
        mode: api.Mode = "server",
        address: str = "",
        region: str = "",
        transit: bool = True,
        admin_cost: float = 0.0,
        keys: PublicKeys | None = None,
        make_key: bool = True,
    ) -> api.CreatedTerminal:
        request = api.CreateTerminal(
            name=name,
            mode=mode,
            address=address,
            region=region,
            transit=transit,
            admin_cost=admin_cost,
            keys=keys,
            make_key=make_key,
        )
        return await self._call("POST", "/v1/terminals", api.CreatedTerminal, request)

    async def list_terminals(self, *, after: str = "", limit: int = 100) -> api.TerminalPage:
        return await self._call("GET", "/v1/terminals", api.TerminalPage, query=_paging(after, limit))

    async def show_terminal(self, terminal_id: str) -> api.Terminal:
        return await self._call("GET", f"/v1/terminals/{_part(terminal_id)}", api.Terminal)

    async def update_terminal(
        self,
        terminal_id: str,
        *,
        name: str | UnsetType = UNSET,
        mode: api.Mode | UnsetType = UNSET,
        address: str | UnsetType = UNSET,
        region: str | UnsetType = UNSET,
        draining: bool | UnsetType = UNSET,
        transit: bool | UnsetType = UNSET,
        admin_cost: float | UnsetType = UNSET,
    ) -> api.Terminal:
        request = api.UpdateTerminal(
            name=name,
            mode=mode,
            address=address,
            region=region,
            draining=draining,
            transit=transit,
            admin_cost=admin_cost,
        )
        return await self._call("PATCH", f"/v1/terminals/{_part(terminal_id)}", api.Terminal, request)

    async def remove_terminal(self, terminal_id: str, *, force: bool = False) -> None:
        await self._send("DELETE", f"/v1/terminals/{_part(terminal_id)}", query=_forcing(force))

    async def revoke_terminal(self, terminal_id: str) -> api.Terminal:
        return await self._call("POST", f"/v1/terminals/{_part(terminal_id)}/revocation", api.Terminal)

    async def rotate_terminal_key(
        self, terminal_id: str, *, keys: PublicKeys | None = None, keep_old: bool = True
    ) -> api.RotatedKey:
        request = api.RotateKey(keys=keys, keep_old=keep_old)
        return await self._call("POST", f"/v1/terminals/{_part(terminal_id)}/keys", api.RotatedKey, request)

    async def create_terminal_enrolment(self, terminal_id: str) -> api.CreatedEnrolment:
        return await self._call(
            "POST", f"/v1/terminals/{_part(terminal_id)}/enrolments", api.CreatedEnrolment
        )

    async def enrol(self, token: str, keys: PublicKeys, *, name: str | None = None) -> api.Enrolled:
        """With the public half of a key that was made here. Needs neither identity nor token of the
        client."""
        request = api.Enrol(token=token, keys=keys, name=name)
        return await self._call("POST", "/v1/enrol", api.Enrolled, request)

    # -- groups ------------------------------------------------------------------------------------

    async def create_terminal_group(self, name: str, terminals: Sequence[str] = ()) -> api.TerminalGroup:
        request = api.CreateGroup(name=name, terminals=list(terminals))
        return await self._call("POST", "/v1/groups", api.TerminalGroup, request)

    async def list_terminal_groups(self, *, after: str = "", limit: int = 100) -> api.GroupPage:
        return await self._call("GET", "/v1/groups", api.GroupPage, query=_paging(after, limit))

    async def show_terminal_group(self, group: str) -> api.TerminalGroup:
        return await self._call("GET", f"/v1/groups/{_part(group)}", api.TerminalGroup)

    async def update_terminal_group(
        self, group: str, terminals: Sequence[str], *, force: bool = False
    ) -> api.TerminalGroup:
        request = api.UpdateGroup(terminals=list(terminals))
        path = f"/v1/groups/{_part(group)}"
        return await self._call("PATCH", path, api.TerminalGroup, request, _forcing(force))

    async def remove_terminal_group(self, group: str, *, force: bool = False) -> None:
        await self._send("DELETE", f"/v1/groups/{_part(group)}", query=_forcing(force))

    async def add_terminal_to_group(self, group: str, *terminal_ids: str) -> api.TerminalGroup:
        request = api.AddTerminals(terminals=list(terminal_ids))
        return await self._call("POST", f"/v1/groups/{_part(group)}/terminals", api.TerminalGroup, request)

    async def remove_terminal_from_group(
        self, group: str, terminal_id: str, *, force: bool = False
    ) -> api.TerminalGroup:
        path = f"/v1/groups/{_part(group)}/terminals/{_part(terminal_id)}"
        return await self._call("DELETE", path, api.TerminalGroup, query=_forcing(force))

    # -- topics ------------------------------------------------------------------------------------

    async def create_message_bus_topic(
        self,
        name: str,
        groups: Sequence[str] = (),
        *,
        producers: Sequence[str] | None = None,
        late_open: api.LateOpen = "renew",
        ticket_scope: api.TicketScope = "window",
        max_age: float = 7 * 86400.0,
    ) -> api.Topic:
        request = api.CreateTopic(
            name=name,
            groups=list(groups),
            producers=None if producers is None else list(producers),
            late_open=late_open,
            ticket_scope=ticket_scope,
            max_age=max_age,
        )
        return await self._call("POST", "/v1/topics", api.Topic, request)

    async def list_message_bus_topics(self, *, after: str = "", limit: int = 100) -> api.TopicPage:
        return await self._call("GET", "/v1/topics", api.TopicPage, query=_paging(after, limit))

    async def show_message_bus_topic(self, topic: str) -> api.Topic:
        return await self._call("GET", f"/v1/topics/{_part(topic)}", api.Topic)

    async def update_message_bus_topic(
        self,
        topic: str,
        *,
        producers: list[str] | UnsetType | None = UNSET,
        late_open: api.LateOpen | UnsetType = UNSET,
        ticket_scope: api.TicketScope | UnsetType = UNSET,
        max_age: float | UnsetType = UNSET,
    ) -> api.Topic:
        request = api.UpdateTopic(
            producers=producers, late_open=late_open, ticket_scope=ticket_scope, max_age=max_age
        )
        return await self._call("PATCH", f"/v1/topics/{_part(topic)}", api.Topic, request)

    async def remove_message_bus_topic(self, topic: str, *, force: bool = False) -> None:
        await self._send("DELETE", f"/v1/topics/{_part(topic)}", query=_forcing(force))

    async def add_group_to_topic(self, topic: str, *groups: str) -> api.Topic:
        request = api.AddGroups(groups=list(groups))
        return await self._call("POST", f"/v1/topics/{_part(topic)}/groups", api.Topic, request)

    async def remove_group_from_topic(self, topic: str, group: str, *, force: bool = False) -> api.Topic:
        path = f"/v1/topics/{_part(topic)}/groups/{_part(group)}"
        return await self._call("DELETE", path, api.Topic, query=_forcing(force))

    async def rotate_message_bus_topic_key(self, topic: str) -> api.Topic:
        return await self._call("POST", f"/v1/topics/{_part(topic)}/keys", api.Topic)

    # -- by terminals ------------------------------------------------------------------------------

    async def issue(self, topic: str) -> Issue:
        """What a Sealer needs."""
        return await self._call("POST", "/v1/tickets/issue", Issue, api.IssueTicket(topic=topic))

    async def redeem(self, topic: str, ticket: bytes, box: bytes) -> Release:
        """What an Opener learns."""
        request = api.RedeemTicket(topic=topic, ticket=ticket, box=box)
        return await self._call("POST", "/v1/tickets/redeem", Release, request)

    async def renew(self, ticket: bytes) -> Renewal:
        return await self._call("POST", "/v1/tickets/renew", Renewal, api.RenewTicket(ticket=ticket))

    async def directory(
        self, version: int = 0, wait: float = 0.0, topics: Sequence[str] = ()
    ) -> api.DirectoryUpdate | None:
        """The directory where it is newer than ``version``; None if none came within ``wait`` seconds. With
        the topics that the terminal is in a group of, and of ``topics`` those that there are. The caller
        checks the signatures: core.directory.verify."""
        request = api.ReadDirectory(version=version, wait=wait, topics=list(topics))
        content = await self._send("POST", "/v1/directory", request, wait=wait)
        return self._decode(content, api.DirectoryUpdate) if content else None

    async def post_link_state(self, signed: SignedLinkState, held: Mapping[str, int] | None = None) -> None:
        """``held``: topic → messages that this terminal holds and that somebody waits for."""
        request = api.PostLinkState(body=signed.body, signature=signed.signature, held=dict(held or {}))
        await self._send("POST", "/v1/link-state", request)

    async def certificate(self, csr: str) -> api.Certificate:
        """For the key of a certificate request (PEM)."""
        return await self._call("POST", "/v1/certificate", api.Certificate, api.CertificateRequest(csr=csr))

    async def rotate_own_key(self, keys: PublicKeys, *, keep_old: bool = True) -> api.RotatedKey:
        request = api.RotateOwnKey(keys=keys, keep_old=keep_old)
        return await self._call("POST", "/v1/terminal/keys", api.RotatedKey, request)

    # -- looking -----------------------------------------------------------------------------------

    async def topology(self) -> api.Topology:
        return await self._call("GET", "/v1/topology", api.Topology)

    async def put_plan(self, plan: Plan) -> api.StoredPlan:
        """The long-term plan, in the place of the one before. By a customer's admin."""
        return await self._call("PUT", "/v1/plan", api.StoredPlan, api.PutPlan(plan=plan))

    async def put_customer_plan(self, customer_id: str, plan: Plan) -> api.StoredPlan:
        """The same for any customer. By the operator."""
        path = f"/v1/customers/{_part(customer_id)}/plan"
        return await self._call("PUT", path, api.StoredPlan, api.PutPlan(plan=plan))

    async def read_plan(self) -> api.StoredPlan:
        """UnknownPlan where nobody has made one."""
        return await self._call("GET", "/v1/plan", api.StoredPlan)

    async def planned_paths(self, terminal_id: str) -> api.PlannedPaths:
        """From a terminal to every other one, by the long-term plan."""
        return await self._call("GET", f"/v1/plan/paths/{_part(terminal_id)}", api.PlannedPaths)

    async def audit(self, *, since: int = 0, limit: int = 100) -> api.AuditPage:
        query = {"since": str(since), "limit": str(limit)}
        return await self._call("GET", "/v1/audit", api.AuditPage, query=query)

    # -- inside ------------------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        path: str,
        answer: type[T],
        body: api.Request | None = None,
        query: Mapping[str, str] | None = None,
    ) -> T:
        return self._decode(await self._send(method, path, body, query), answer)

    async def _send(
        self,
        method: str,
        path: str,
        body: api.Request | None = None,
        query: Mapping[str, str] | None = None,
        wait: float = 0.0,
    ) -> bytes:
        import httpx

        content = b"" if body is None else msgspec.json.encode(body)
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            response = await self._http.request(
                method,
                target,
                content=content,
                headers=self._headers(f"{method} {target}", content),
                timeout=httpx.Timeout(ANSWER_WITHIN + wait, connect=CONNECT_WITHIN),
            )
        except httpx.HTTPError as error:
            raise RegistryUnreachable(f"{self.url} doesn't answer: {type(error).__name__} {error}") from None
        if not response.is_success:
            raise _error_of(self.url, response)
        return response.content

    def _decode(self, content: bytes, answer: type[T]) -> T:
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
        problem = msgspec.json.decode(response.content, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return RegistryUnreachable(f"{url} answers {response.status_code}, but not as a Landbridge registry")
    return from_wire(problem.code, problem.detail, problem.hint)


def _part(name: str) -> str:
    """As one part of a path, whatever is in it."""
    return quote(name, safe="")


def _paging(after: str, limit: int) -> dict[str, str]:
    return {"after": after, "limit": str(limit)} if after else {"limit": str(limit)}


def _forcing(force: bool) -> dict[str, str]:
    return {"force": "true"} if force else {}
