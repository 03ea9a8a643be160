"""The one way out for HTTP: callbacks, webhooks and whatever else is sent to a URL that somebody has given.

Each request looks its host up once, picks an address that is allowed (``core/addresses.py``), and connects to
that very address, with the host's own name in the header and in the TLS handshake. Redirects are answers like
all others; proxies of the environment are not used. An answer is read up to a limit, undecoded, within a time
for everything together. Nothing here raises for what a peer does: the result says what happened.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from threading import Thread
from typing import TypeAlias

import httpx

from landbridge.core.addresses import Address, AllowList, Target, read_url
from landbridge.errors import BadRequest

#: Endpoints (scheme, host and port) whose connections are kept; and connections to one of them.
MOST_ENDPOINTS, CONNECTIONS = 256, 8
#: Requests under way at once, to all endpoints.
MOST_REQUESTS = 64
#: Seconds that an idle connection is kept.
IDLE = 30.0
#: Bytes of headers that an answer may have.
MOST_HEAD = 32 << 10


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The peer has answered, whatever its status says."""

    status: int
    headers: dict[str, str]
    #: As much of the body as the limit allows.
    body: bytes
    #: There was more of it.
    is_cut: bool
    seconds: float
    address: str

    @property
    def is_success(self) -> bool:
        """2xx. A redirect is none: it is not followed."""
        return 200 <= self.status < 300

    @property
    def retry_after(self) -> float | None:
        """Seconds that the peer wants to be left alone; None where it says nothing that is a number."""
        said = self.headers.get("retry-after", "")
        return float(said) if said.isdecimal() and len(said) < 8 else None


@dataclass(frozen=True, slots=True)
class HttpRefused:
    """Nothing was sent: the URL or the address that it leads to is not allowed."""

    why: str


@dataclass(frozen=True, slots=True)
class HttpTimedOut:
    """The answer was not there in time. The peer may have got the request."""

    seconds: float


@dataclass(frozen=True, slots=True)
class HttpFailed:
    """No connection, no TLS, no HTTP, or no such host."""

    why: str


HttpResult: TypeAlias = HttpAnswer | HttpRefused | HttpTimedOut | HttpFailed
#: Looks a host up: (host, port) → addresses.
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as the system knows them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class OwnLookups:
    """Looks hosts up in threads of its own. A lookup can't be ended, and whoever names a host decides how
    long it takes: where strangers do, others must not wait for the same few threads."""

    def __init__(self, most: int = 16) -> None:
        """``most``: lookups under way at once, those included that nobody waits for any more."""
        self._room = asyncio.Semaphore(most)

    async def __call__(self, host: str, port: int) -> list[str]:
        await self._room.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[str]] = loop.create_future()

        def end(found: list[str] | Exception) -> None:
            self._room.release()
            if done.done():
                return
            if isinstance(found, Exception):
                done.set_exception(found)
            else:
                done.set_result(found)

        def look_up() -> None:
            found: list[str] | Exception
            try:
                rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                found = list(dict.fromkeys(str(row[4][0]) for row in rows))
            except Exception as error:
                found = error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end, found)

        # Not of a pool: the process would wait for it at its end.
        Thread(target=look_up, name="lookup", daemon=True).start()
        return await done


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingLimits:
    """Bounds of one request."""

    #: Seconds for everything: the lookup, the connection, the request and the answer.
    within: float = 15.0
    #: Bytes of the request's body, and of the answer's that are read.
    most_sent: int = 4 << 20
    most_read: int = 64 << 10


@dataclass
class PooledEndpoint:
    """The connections to one endpoint."""

    client: httpx.AsyncClient
    #: Requests that use it at the moment.
    users: int = 0
    lock: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONNECTIONS))


class OutgoingHttp:
    """Sends HTTP requests. Use it with ``async with``, or close it."""

    def __init__(
        self,
        allowed: Iterable[str] = (),
        *,
        limits: OutgoingLimits | None = None,
        resolve: Resolve = resolve,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """``allowed``: networks and hosts beside the public addresses. ``trust``: the certificates to trust,
        those of the system if there is none."""
        self._allowed = AllowList(allowed)
        self.limits = limits or OutgoingLimits()
        self._resolve = resolve
        #: One for all endpoints, made when it is needed: each one is half a megabyte of certificates, read
        #: from the disk.
        self._trust = trust
        #: (scheme, host, port) → its connections; the last used are at the end.
        self._endpoints: OrderedDict[tuple[str, str, int], PooledEndpoint] = OrderedDict()
        self._room = asyncio.Semaphore(MOST_REQUESTS)

    async def __aenter__(self) -> OutgoingHttp:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def check_address(self, url: str) -> None:
        """BadRequest for a URL with an address that nothing may be sent to. One with a name is taken: where
        that leads may change, and each request looks."""
        target = read_url(url)
        if target.address is not None and not self._allowed.allows(target.host, target.address):
            raise BadRequest(
                f"the terminal may not send to {target.host}, which is no public address",
                hint=f"its operator may allow that: 'landbridge up --allow-outgoing {target.host}', "
                "or allow_outgoing in its file",
            )

    async def close(self) -> None:
        """Close all connections."""
        endpoints, self._endpoints = list(self._endpoints.values()), OrderedDict()
        for endpoint in endpoints:
            await endpoint.client.aclose()

    async def send(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpResult:
        """Send a request and read its answer."""
        begun = time.monotonic()
        if len(body) > self.limits.most_sent:
            return HttpRefused(f"a body of {len(body)} bytes, allowed are {self.limits.most_sent}")
        try:
            target = read_url(url)
        except BadRequest as error:
            return HttpRefused(str(error))
        try:
            async with asyncio.timeout(self.limits.within):
                return await self._send(method, target, body, dict(headers or {}), begun)
        except TimeoutError:
            return HttpTimedOut(time.monotonic() - begun)

    async def _send(
        self, method: str, target: Target, body: bytes, headers: dict[str, str], begun: float
    ) -> HttpResult:
        address = await self._choose(target)
        if isinstance(address, HttpRefused | HttpFailed):
            return address
        endpoint = self._endpoint(target)
        endpoint.users += 1
        try:
            # The endpoint's own share first: what waits for a slow one takes no place of the others.
            async with endpoint.lock, self._room:
                return await self._exchange(endpoint.client, method, target, address, body, headers, begun)
        except httpx.TimeoutException:
            return HttpTimedOut(time.monotonic() - begun)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return HttpFailed(f"{type(error).__name__}: {error}"[:500])
        finally:
            endpoint.users -= 1
            await self._close_unused()

    async def _choose(self, target: Target) -> Address | HttpRefused | HttpFailed:
        """The address to connect to: looked up once, and checked."""
        if target.address is not None:
            addresses = [target.address]
        else:
            try:
                addresses = [ip_address(each) for each in await self._resolve(target.host, target.port)]
            except (OSError, ValueError, UnicodeError) as error:
                return HttpFailed(f"no address of {target.host}: {error}")
        for address in addresses:
            if self._allowed.allows(target.host, address):
                return address
        found = ", ".join(map(str, addresses[:4])) or "nothing"
        leads = "" if found == target.host else f"{target.host} leads to {found}: "
        return HttpRefused(f"{leads}the terminal may not send to {found} without --allow-outgoing")

    def _endpoint(self, target: Target) -> PooledEndpoint:
        key = target.scheme, target.host, target.port
        found = self._endpoints.get(key)
        if found is None:
            if self._trust is None:
                self._trust = httpx.create_ssl_context(trust_env=False)
            found = self._endpoints[key] = PooledEndpoint(
                httpx.AsyncClient(
                    verify=self._trust,
                    trust_env=False,
                    follow_redirects=False,
                    timeout=self.limits.within,
                    limits=httpx.Limits(
                        max_connections=CONNECTIONS, max_keepalive_connections=2, keepalive_expiry=IDLE
                    ),
                )
            )
        self._endpoints.move_to_end(key)
        return found

    async def _close_unused(self) -> None:
        """Close the connections of endpoints beyond the bound that nobody uses now, oldest first."""
        for key in list(self._endpoints)[: max(0, len(self._endpoints) - MOST_ENDPOINTS)]:
            if not self._endpoints[key].users:
                await self._endpoints.pop(key).client.aclose()

    async def _exchange(
        self,
        client: httpx.AsyncClient,
        method: str,
        target: Target,
        address: Address,
        body: bytes,
        headers: dict[str, str],
        begun: float,
    ) -> HttpResult:
        shown = f"[{address}]" if address.version == 6 else str(address)
        own = {name: value for name, value in headers.items() if name.lower() not in _OURS}
        request = client.build_request(
            method,
            f"{target.scheme}://{shown}:{target.port}{target.path}",
            content=body,
            headers={**own, "Host": target.authority, "Accept-Encoding": "identity"},
            # The certificate has to be the name's, not the address's.
            extensions={"sni_hostname": target.host},
        )
        answer = await client.send(request, stream=True)
        try:
            if sum(len(name) + len(value) for name, value in answer.headers.raw) > MOST_HEAD:
                return HttpFailed(f"an answer with more than {MOST_HEAD} bytes of headers")
            read = bytearray()
            async for chunk in answer.aiter_raw():
                read += chunk
                if len(read) > self.limits.most_read:
                    break
        finally:
            await answer.aclose()  # of an answer that was not read to its end, the connection goes too
        most = self.limits.most_read
        return HttpAnswer(
            status=answer.status_code,
            headers={name.lower(): value for name, value in answer.headers.items()},
            body=bytes(read[:most]),
            is_cut=len(read) > most,
            seconds=time.monotonic() - begun,
            address=str(address),
        )


#: Headers that nobody else sets.
_OURS = frozenset({"host", "accept-encoding", "content-length", "transfer-encoding", "connection"})
