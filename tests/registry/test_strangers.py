"""Requests of nobody in particular, over real sockets: half-sent, silent, too large, too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from landbridge.client import registry_operations as op
from landbridge.client.registry_operations import RegistryOperation
from landbridge.node import http_connection, http_port
from landbridge.node.assembly import dial_to
from landbridge.node.http_port import HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.site import Site as Everything
from landbridge.testing import run_terminal
from tests.registry.site import Site, Tenant
from tests.waiting import LIMIT, eventually

#: As many requests at a time as a terminal without a registry answers.
MOST = 64


@asynccontextmanager
async def served(app: Any, most: int = MOST) -> AsyncIterator[HttpPort]:
    port = HttpPort(app, Endpoint("127.0.0.1"), 0, None, most=most, hint="")
    try:
        yield port
    finally:
        await port.close()


@asynccontextmanager
async def terminal_served(most: int = MOST) -> AsyncIterator[tuple[HttpPort, str]]:
    """The port of a terminal, and a token of its admin."""
    async with (
        run_terminal() as terminal,
        served(Everything(dial_to(terminal)), most) as port,
    ):
        yield port, terminal.issue_token("admin", ["admin"], 3600.0)


class Raw:
    """A connection that sends what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def to(cls, port: HttpPort, count: int = 1) -> AsyncIterator[list[Raw]]:
        address = httpx.URL(port.url)
        made: list[Raw] = []
        try:
            for _ in range(count):
                made.append(cls(*await asyncio.open_connection(address.host, address.port)))
            yield made
        finally:
            for one in made:
                one._writer.transport.abort()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer; (0, b"") if the connection has ended."""
        try:
            async with asyncio.timeout(LIMIT):
                head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
                return int(head.split()[1]), await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0, b""

    async def end(self) -> None:
        """Wait until the other side has ended the connection."""
        try:
            async with asyncio.timeout(LIMIT):
                while await self._reader.read(65536):
                    pass
        except ConnectionError:
            pass


def head_of(method: str, path: str, length: int | str, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {length}"]
    return "\r\n".join(
        [*lines, *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()), "", ""]
    ).encode()


def connections_of(port: HttpPort) -> int:
    return len(port._server.server_state.connections)


WRONG = {"authorization": "Bearer lbac1_wrong", "landbridge_terminal": "ter_wrong"}


@pytest.mark.parametrize("operation", [op.POST_LINK_STATE, op.ISSUE_TICKET, op.PUT_PLAN, op.CREATE_CUSTOMER])
async def test_no_body_is_read_before_its_credential(
    quick: Site, operation: RegistryOperation[..., Any, Any]
) -> None:
    """150 bodies of 4 MiB, all but the last byte: the registry would hold 600 MB of them."""
    async with served(quick.app) as port, Raw.to(port, 3) as strangers:
        for stranger in strangers:
            stranger.send(head_of(operation.verb, operation.path, 100_000, **WRONG))
        assert [(await stranger.answer())[0] for stranger in strangers] == [401] * 3


async def test_no_payload_is_read_before_its_token(crashes: list[Any]) -> None:
    async with terminal_served() as (port, token), Raw.to(port, 3) as (wrong, large, endless):
        messages = "/v1/topics/orders/messages"
        wrong.send(head_of("POST", messages, 1000, authorization="Bearer wrong"))
        assert (await wrong.answer())[0] == 401
        large.send(head_of("POST", messages, 1 << 40, authorization=f"Bearer {token}"))
        status, body = await large.answer()
        assert (status, b"too_large" in body) == (413, True)
        head = head_of("POST", messages, 0, authorization=f"Bearer {token}", transfer_encoding="chunked")
        endless.send(head.replace(b"content-length: 0\r\n", b""))
        chunk = b"%x\r\n%b\r\n" % (1 << 20, bytes(1 << 20))
        for _ in range(5):  # max_payload is 4 MiB
            endless.send(chunk)
        assert (await endless.answer())[0] == 413


@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nhost:",
        head_of("POST", "/v1/topics/orders/messages", 1000, authorization="Bearer wrong"),
        head_of("POST", "/healthz", 1000) + b"x",
    ],
    ids=["nothing", "half a head", "no body", "half a body"],
)
async def test_health_is_answered_while_others_are_slow(crashes: list[Any], half: bytes) -> None:
    async with terminal_served() as (port, _), Raw.to(port, 3 * MOST) as slow:
        for one in slow:
            one.send(half)
        async with httpx.AsyncClient(base_url=port.url, timeout=LIMIT) as http:
            for _ in range(3):
                assert (await http.get("/healthz")).text == "ok\n"
        await eventually(lambda: len(port._strangers) <= http_port.MOST_STRANGERS_EACH)


async def test_health_is_answered_while_requests_are_as_many_as_allowed(crashes: list[Any]) -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/healthz":
            await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with served(app, 2) as port, httpx.AsyncClient(base_url=port.url, timeout=LIMIT) as http:
        under_way = [asyncio.ensure_future(http.get("/")) for _ in range(2)]
        await eventually(lambda: len(port._server.server_state.tasks) == 2)
        refused = await http.get("/")
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert (await http.get("/healthz")).status_code == 200
        go.set()
        assert [(await one).status_code for one in under_way] == [200, 200]


async def test_a_known_caller_gives_way_to_nobody(
    quick: Site, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_port, "MOST_STRANGERS_EACH", 5)
    body = b'{"name":"more"}'
    bearer = {"authorization": f"Bearer {acme.token}", "content_type": "application/json"}
    async with served(quick.app) as port, AsyncExitStack() as stack:
        known = []
        for number in range(10):
            (one,) = await stack.enter_async_context(Raw.to(port))
            one.send(head_of("POST", "/v1/groups", len(body) + 1, **bearer) + body[:-2])
            known.append(one)
            await eventually(lambda: connections_of(port) == len(known), "it has come")
            await eventually(lambda: not port._strangers, f"the caller {number} is let in")
        async with Raw.to(port, 20) as strangers:
            for one in strangers:
                one.send(b"GET /v1/reg")
            await strangers[0].end()
            assert len(port._strangers) == 5
            for number, one in enumerate(known):
                one.send(b'%d"}' % number)
            assert {(await one.answer())[0] for one in known} == {201}


# -- deadlines ----------------------------------------------------------------------------------------

ENROL = head_of("POST", "/v1/enrol", 1000, content_type="application/json")


@pytest.mark.parametrize(
    ("said", "status"),
    [(b"", 0), (b"GET /v1/registry HT", 408), (ENROL, 408), (ENROL + b"{", 408)],
    ids=["nothing", "half a head", "no body", "half a body"],
)
async def test_what_does_not_come_in_time(
    quick: Site, monkeypatch: pytest.MonkeyPatch, said: bytes, status: int
) -> None:
    monkeypatch.setattr(http_connection, "HEAD_WITHIN", 0.2)
    monkeypatch.setattr(http_connection, "BODY_WITHIN", 0.2)
    async with served(quick.app) as port, Raw.to(port) as (slow,):
        slow.send(said)
        answered, body = await slow.answer()
        assert (answered, b"slow_request" in body) == (status, status == 408)
        await slow.end()
        await eventually(lambda: not port._strangers and not connections_of(port))


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nx: ", ENROL], ids=["head", "body"])
async def test_a_byte_at_a_time_is_too_slow(
    quick: Site, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(http_connection, "HEAD_WITHIN", 0.2)
    monkeypatch.setattr(http_connection, "BODY_WITHIN", 0.2)

    async def trickle(send: Callable[[bytes], None]) -> None:
        while True:
            send(b"x")
            await asyncio.sleep(0.01)

    async with served(quick.app) as port, Raw.to(port) as (slow,):
        slow.send(said)
        trickling = asyncio.ensure_future(trickle(slow.send))
        try:
            await slow.end()
        finally:
            trickling.cancel()


async def test_a_long_body_that_comes_steadily_has_the_time_it_takes(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with terminal_served() as (port, token), Raw.to(port) as (steady,):
        head = head_of("POST", "/v1/topics/orders/messages", 200, authorization=f"Bearer {token}")
        steady.send(head + bytes(200))
        assert (await steady.answer())[0] == 201  # the gateway is imported now
        monkeypatch.setattr(http_connection, "BODY_WITHIN", 1.0)
        monkeypatch.setattr(http_connection, "BODY_RATE", 1)  # a second longer for each byte
        steady.send(head)
        await eventually(lambda: len(port._server.server_state.tasks) == 1, "the head has come")
        steady.send(bytes(100))
        await asyncio.sleep(1.5)
        steady.send(bytes(100))
        assert (await steady.answer())[0] == 201


async def test_a_body_of_a_stranger_is_small(quick: Site) -> None:
    async with served(quick.app) as port, Raw.to(port) as (stranger,):
        stranger.send(head_of("POST", "/v1/enrol", 100_000, content_type="application/json"))
        status, body = await stranger.answer()
        assert (status, b"too_large" in body) == (413, True)


async def test_several_requests_of_one_connection(quick: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole ones, halves of the next, and one after another without waiting for the answers."""
    get = b"GET /v1/registry HTTP/1.1\r\nhost: x\r\n\r\n"
    async with served(quick.app) as port, Raw.to(port) as (one,):
        one.send(get + get + get[:10])
        assert [(await one.answer())[0] for _ in range(2)] == [200, 200]
        one.send(get[10:])
        assert (await one.answer())[0] == 200
        assert len(port._strangers) == 1
    await eventually(lambda: not port._strangers)
