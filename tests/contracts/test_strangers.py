"""Connections that say nothing: whoever can reach a terminal's port can open them, and must gain nothing."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.client.context import Context
from landbridge.client.wire import dial_of
from landbridge.protocol import frames
from landbridge.protocol.session import Session
from landbridge.testing import run_terminal
from landbridge.transport.strangers import Strangers, site_of
from tests.certificates import self_signed
from tests.waiting import LIMIT, eventually, turns

FEW = Limits(max_connections=40, max_strangers=10, hello_within=600.0)


@asynccontextmanager
async def silent(port: int, count: int, said: bytes = b"") -> AsyncIterator[list[socket.socket]]:
    """Connections that say no more than the beginning of something."""
    loop = asyncio.get_running_loop()
    made = []
    try:
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            made.append(one)
            await loop.sock_connect(one, ("127.0.0.1", port))
            if said:
                await loop.sock_sendall(one, said)
        yield made
    finally:
        for one in made:
            one.close()


async def is_open(connection: socket.socket) -> bool:
    """Whether the other side has not ended it."""
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return True
    except ConnectionResetError:
        pass
    return False


async def count_open(connections: list[socket.socket]) -> int:
    return sum([await is_open(one) for one in connections])


async def until_open(connections: list[socket.socket], count: int) -> None:
    async with asyncio.timeout(LIMIT):
        while await count_open(connections) > count:
            await asyncio.sleep(0.01)


def port_of(terminal: Terminal) -> int:
    return int(terminal.url.rpartition(":")[2])


def bus_of(terminal: Terminal, ca: str | None = None) -> Bus:
    token = terminal.issue_token("admin", ["admin"], 3600.0)
    url = terminal.url.replace("127.0.0.1", "localhost") if ca else terminal.url
    return Bus(dial_of(Context(url, token, ca)), token, name="test", patience=0.0)


HALF_A_HELLO = b"".join(map(bytes, Session.send(frames.Hello(frames.VERSION, "x" * 100, ""))))[:50]


@pytest.mark.parametrize("said", [b"", HALF_A_HELLO], ids=["nothing", "half a hello"])
async def test_silent_connections_lock_nobody_out(crashes: list[Any], said: bytes) -> None:
    async with run_terminal(port=0, limits=FEW) as terminal:
        async with bus_of(terminal) as before, silent(port_of(terminal), 60, said) as connections:
            async with bus_of(terminal) as bus:
                await bus.publish("orders", b"1")
            await before.publish("orders", b"2")  # who has said hello gives way to nobody
            await until_open(connections, FEW.max_strangers)
            assert await is_open(connections[-1]), "the one that has waited longest gives way"
            assert 0 < len(terminal.strangers) <= FEW.max_strangers
        await eventually(lambda: not terminal.strangers and not terminal.connections)


async def test_silent_connections_take_no_room_from_clients(crashes: list[Any]) -> None:
    limits = Limits(max_connections=3, max_strangers=10, hello_within=600.0)
    async with (
        run_terminal(port=0, limits=limits) as terminal,
        silent(port_of(terminal), 3),
        bus_of(terminal),
        bus_of(terminal),
        bus_of(terminal) as bus,
    ):
        await bus.publish("orders", b"1")
        async with silent(port_of(terminal), 3) as late:
            await until_open(late, 0)
        await bus.publish("orders", b"2")


class Joiners:
    """Stands for the crossing: terminals that have asked to become links, and are links where ``proven``."""

    def __init__(self, *, proven: bool) -> None:
        self._proven = proven
        self.kept: list[asyncio.Transport] = []

    def accept(self, transport: asyncio.Transport, session: Session, frame: frames.Join) -> None:
        transport.set_protocol(asyncio.Protocol())
        self.kept.append(transport)
        if self._proven:
            session.link()

    async def close(self) -> None:
        for transport in self.kept:
            transport.abort()


@pytest.mark.parametrize("proven", [False, True])
async def test_terminals_that_join_and_prove_nothing(crashes: list[Any], proven: bool) -> None:
    join = b"".join(map(bytes, Session.send(frames.Join(frames.VERSION, "cus_x", "ter_x", bytes(32)))))
    async with run_terminal(port=0, limits=FEW) as terminal:
        crossing: Any = Joiners(proven=proven)
        terminal.broker.crossing = crossing
        async with AsyncExitStack() as stack:
            connections: list[socket.socket] = []
            for _ in range(30):
                (one,) = await stack.enter_async_context(silent(port_of(terminal), 1, join))
                connections.append(one)
                await eventually(lambda: len(crossing.kept) == len(connections), "it has asked to join")
            assert not terminal.connections
            await until_open(connections, 30 if proven else FEW.max_strangers)
            await turns()
            assert await count_open(connections) == (30 if proven else FEW.max_strangers)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def with_tls(limits: Limits, certificate: tuple[Path, Path]) -> AsyncIterator[Terminal]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    async with run_terminal(limits=limits) as terminal:
        await terminal.listen("127.0.0.1", 0, tls)
        yield terminal


async def test_silent_before_tls(crashes: list[Any], certificate: tuple[Path, Path]) -> None:
    async with (
        with_tls(FEW, certificate) as terminal,
        silent(port_of(terminal), 60, b"\x16\x03") as connections,
    ):
        async with bus_of(terminal, str(certificate[0])) as bus:
            await bus.publish("orders", b"1")
        await until_open(connections, FEW.max_strangers)
        assert 0 < len(terminal.strangers) <= FEW.max_strangers


async def test_a_tls_handshake_has_as_long_as_a_hello(
    crashes: list[Any], certificate: tuple[Path, Path]
) -> None:
    limits = Limits(hello_within=0.2)
    async with with_tls(limits, certificate) as terminal, silent(port_of(terminal), 5) as connections:
        await until_open(connections, 0)
        await eventually(lambda: not terminal.strangers)


# -- the table of strangers ---------------------------------------------------------------------------


def test_the_one_that_has_waited_longest_gives_way() -> None:
    strangers, cut = Strangers(each=2, most=3), []

    def enter(name: str, address: str) -> Any:
        return strangers.enter(address, lambda: cut.append(name))

    enter("a1", "a")
    a2 = enter("a2", "a")
    enter("a3", "a")
    assert cut == ["a1"], "of its own address first"
    enter("b1", "b")
    enter("c1", "c")
    assert cut == ["a1", "a2"], "of all, where there are too many in all"
    strangers.leave(a2)  # it may leave again
    assert len(strangers) == 3
    while strangers.make_room():
        pass
    assert cut == ["a1", "a2", "a3", "b1", "c1"]
    assert not strangers._at


@pytest.mark.parametrize(
    ("peer", "site"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::"),
    ],
)
def test_addresses_are_counted_by_site(peer: Any, site: str) -> None:
    assert site_of(peer) == site
