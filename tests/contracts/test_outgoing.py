"""The one way out for HTTP, against receivers that answer, hang, redirect, flood and lie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from landbridge.core.addresses import LONGEST_URL
from landbridge.gateways import outgoing
from landbridge.gateways.host_rooms import HostRooms
from landbridge.gateways.outgoing import (
    HttpAnswer,
    HttpFailed,
    HttpRefused,
    HttpTimedOut,
    OutgoingHttp,
    OutgoingLimits,
)
from tests.receivers import abort, end_server

LOOPBACK = ["127.0.0.0/8"]
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def receiver(answer: Answer) -> AsyncIterator[int]:
    """A server that reads the head of each request, then does what ``answer`` does."""

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await answer(reader, writer)
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has seen enough, or the test has ended
        finally:
            await abort(writer)
            serving.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await end_server(server, serving)


def saying(raw: bytes, seen: list[bytes] | None = None) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(head)
        writer.write(raw)
        await writer.drain()

    return answer


async def test_an_answer_with_the_name_in_its_host_header() -> None:
    seen: list[bytes] = []

    async def resolve(host: str, port: int) -> list[str]:
        assert host == "hooks.internal"
        return ["127.0.0.1"]

    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-A: b\r\n\r\nhi"
    async with receiver(saying(ok, seen)) as port, OutgoingHttp(["*.internal"], resolve=resolve) as http:
        url = f"http://hooks.internal:{port}/a?b=c"
        answer = await http.send("POST", url, b"body", {"Host": "evil", "X-Own": "1"})
    assert isinstance(answer, HttpAnswer)
    assert answer.is_success
    assert (answer.status, answer.body, answer.is_cut, answer.headers["x-a"]) == (200, b"hi", False, "b")
    head = seen[0].decode().lower()
    assert head.startswith("post /a?b=c http/1.1\r\n")
    assert f"host: hooks.internal:{port}\r\n" in head
    assert "evil" not in head
    assert "x-own: 1" in head


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "localhost"]
)
async def test_nothing_is_sent_to_what_is_not_public(host: str) -> None:
    seen: list[bytes] = []
    async with receiver(saying(b"", seen)) as port, OutgoingHttp() as http:
        assert isinstance(await http.send("POST", f"http://{host}:{port}/"), HttpRefused)
    assert not seen


async def test_a_name_is_looked_up_once_and_the_checked_address_is_used() -> None:
    lookups: list[str] = []

    async def rebinding(host: str, port: int) -> list[str]:
        lookups.append(host)
        return ["127.0.0.1"] if len(lookups) == 1 else ["10.0.0.1"]

    ok = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with receiver(saying(ok)) as port, OutgoingHttp(LOOPBACK, resolve=rebinding) as http:
        answer = await http.send("POST", f"http://rebind.example:{port}/")
        assert isinstance(answer, HttpAnswer)
        assert answer.address == "127.0.0.1"
        assert len(lookups) == 1
        assert isinstance(await http.send("POST", f"http://rebind.example:{port}/"), HttpRefused)


async def test_an_address_that_is_allowed_is_chosen_among_others() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.1", "127.0.0.1"]

    ok = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with receiver(saying(ok)) as port, OutgoingHttp(LOOPBACK, resolve=resolve) as http:
        assert isinstance(await http.send("POST", f"http://two.example:{port}/"), HttpAnswer)


async def test_a_redirect_is_an_answer_and_not_followed() -> None:
    seen: list[bytes] = []
    raw = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/x\r\ncontent-length: 0\r\n\r\n"
    async with receiver(saying(raw, seen)) as port, OutgoingHttp(LOOPBACK) as http:
        answer = await http.send("POST", f"http://127.0.0.1:{port}/")
    assert isinstance(answer, HttpAnswer)
    assert answer.status == 302
    assert not answer.is_success
    assert len(seen) == 1


async def test_a_body_is_read_up_to_the_limit() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n")
        for _ in range(4096):
            writer.write(bytes(16384))
            await writer.drain()

    limits = OutgoingLimits(most_read=1000)
    async with receiver(flood) as port, OutgoingHttp(LOOPBACK, limits=limits) as http:
        answer = await http.send("POST", f"http://127.0.0.1:{port}/")
    assert isinstance(answer, HttpAnswer)
    assert (len(answer.body), answer.is_cut) == (1000, True)


async def test_endless_headers_are_a_failure() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(100_000):
            writer.write(b"x-%d: %s\r\n" % (number, bytes([97]) * 1000))
            await writer.drain()

    async with receiver(flood) as port, OutgoingHttp(LOOPBACK) as http:
        assert isinstance(await http.send("POST", f"http://127.0.0.1:{port}/"), HttpFailed)


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"]
)
async def test_whoever_hangs_is_left_in_time(raw: bytes) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await reader.read()

    limits = OutgoingLimits(within=0.2)
    async with receiver(hang) as port, OutgoingHttp(LOOPBACK, limits=limits) as http:
        assert isinstance(await http.send("POST", f"http://127.0.0.1:{port}/"), HttpTimedOut)


async def test_one_byte_at_a_time_is_not_for_ever() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    limits = OutgoingLimits(within=0.2)
    async with receiver(drip) as port, OutgoingHttp(LOOPBACK, limits=limits) as http:
        assert isinstance(await http.send("POST", f"http://127.0.0.1:{port}/"), HttpTimedOut)


@pytest.mark.parametrize(
    "raw", [b"\x00\xff garbage\r\n\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 999999 no\r\n\r\n"]
)
async def test_what_is_no_http_is_a_failure(raw: bytes) -> None:
    async with receiver(saying(raw)) as port, OutgoingHttp(LOOPBACK) as http:
        assert isinstance(await http.send("POST", f"http://127.0.0.1:{port}/"), HttpFailed)


async def test_a_peer_without_tls_is_a_failure() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with receiver(plain) as port, OutgoingHttp(LOOPBACK) as http:
        assert isinstance(await http.send("POST", f"https://127.0.0.1:{port}/"), HttpFailed)


async def test_odd_urls_and_large_bodies_are_refused() -> None:
    async with OutgoingHttp(LOOPBACK, limits=OutgoingLimits(most_sent=10)) as http:
        assert isinstance(await http.send("POST", "http://127.0.0.1/", bytes(11)), HttpRefused)
        for url in ("ftp://127.0.0.1/", "http://a@127.0.0.1/", "http://127.0.0.1/" + "a" * LONGEST_URL):
            assert isinstance(await http.send("POST", url), HttpRefused)
        assert isinstance(
            await http.send("POST", "http://127.0.0.1/", headers={"x": "a\r\nb: c"}), HttpFailed
        )


async def test_the_connections_of_many_endpoints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "MOST_ENDPOINTS", 2)
    ok = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with receiver(saying(ok)) as port, OutgoingHttp(LOOPBACK) as http:
        for last in range(1, 6):
            answer = await http.send("POST", f"http://127.0.0.{last}:{port}/")
            assert isinstance(answer, HttpAnswer | HttpFailed)
        assert len(http._endpoints) <= 2


async def test_what_waits_for_a_slow_endpoint_takes_no_place_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outgoing, "MOST_REQUESTS", 3)
    monkeypatch.setattr(outgoing, "CONNECTIONS", 2)
    answer, arrived = asyncio.Event(), asyncio.Semaphore(0)

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.release()
        await answer.wait()

    ok = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with receiver(wait) as slow, receiver(saying(ok)) as quick, OutgoingHttp(LOOPBACK) as http:
        sending = [asyncio.ensure_future(http.send("POST", f"http://127.0.0.1:{slow}/")) for _ in range(8)]
        for _ in range(2):
            await arrived.acquire()
        found = await http.send("POST", f"http://127.0.0.1:{quick}/")
        assert isinstance(found, HttpAnswer)
        assert not any(each.done() for each in sending)
        answer.set()
        await asyncio.gather(*sending)


async def test_a_slow_host_takes_only_its_own_part_of_the_room() -> None:
    rooms, slow, most = HostRooms(8, 2), asyncio.Event(), [0, 0]

    async def send(url: str, until: asyncio.Event) -> str:
        async with rooms.taken(url):
            most[0] += 1
            most[1] = max(most)
            await until.wait()
            most[0] -= 1
        return url

    done = asyncio.Event()
    done.set()
    waiting = [asyncio.ensure_future(send(f"http://Slow.example:{80 + n}/", slow)) for n in range(20)]
    await asyncio.sleep(0)
    for number in range(20):
        assert await send(f"https://other-{number}.example/", done)
    await asyncio.gather(*(send("https://one.example/", done) for _ in range(20)))
    assert not any(task.done() for task in waiting)
    assert most[0] == 2
    slow.set()
    assert len(await asyncio.gather(*waiting)) == 20
    assert most[1] <= 8
    assert not rooms._of_hosts
