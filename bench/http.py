"""The HTTP gateway: single messages beside a bare uvicorn application that answers 204, lines in bulk, and a
live stream.

The terminal with its HTTP port, the bare application and the client are a process each. The client writes its
requests as bytes and reads no more of the answers than their end, so that it costs as little as it can.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import structlog
import uvicorn
import uvloop

from bench.roles import SPAWN, scratch
from bench.scenarios import Row
from landbridge.broker.server import Terminal
from landbridge.node.assembly import dial_to
from landbridge.node.http_port import HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.site import Site
from landbridge.stores.journal.store import JournalStore

#: Connections that post single messages at the same time, and those that post lines.
CONNECTIONS, OF_LINES = 64, 4
SIZE = 100
#: Messages of a request with lines.
LINES = 20_000
PAYLOAD = b'{"n":1234567,"text":"' + b"x" * (SIZE - 23) + b'"}'


# -- the servers -------------------------------------------------------------------------------------------


def serve_terminal(path: str, ready: Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))

    async def main() -> None:
        terminal = Terminal(JournalStore(path))
        await terminal.open()
        port = HttpPort(
            Site(dial_to(terminal)), Endpoint("127.0.0.1"), 0, None, most=1024, hint="", web_sockets=True
        )
        token = terminal.issue_token("bench", ["admin"], 86400.0)
        gc.collect()
        gc.freeze()
        ready.send((port.url, token))
        await asyncio.Event().wait()

    uvloop.run(main())


def serve_bare(ready: Connection) -> None:
    """What any HTTP server in Python has to do: read the request, say 204."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    bound = socket.create_server(("127.0.0.1", 0))
    ready.send((f"http://127.0.0.1:{bound.getsockname()[1]}", ""))
    config = uvicorn.Config(app, lifespan="off", access_log=False, log_config=None)
    uvicorn.Server(config).run([bound])


@contextmanager
def running(target: Callable[..., None], *args: Any) -> Iterator[tuple[str, str, psutil.Process]]:
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*args, there), daemon=True)
    process.start()
    try:
        url, token = here.recv()
        yield url, token, psutil.Process(process.pid)
    finally:
        process.kill()
        process.join()


# -- the client --------------------------------------------------------------------------------------------


class Poster(asyncio.Protocol):
    """Sends the same request again and again, each after the answer of the one before."""

    def __init__(self, request: bytes, count: int, status: bytes) -> None:
        self._request = request
        self._left = count
        self._status = status
        self._buffer = b""
        self._transport: Any = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        at = head.lower().find(b"content-length: ")
        length = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) < length:
            return
        if not head.startswith(b"HTTP/1.1 " + self._status):
            self.done.set_exception(RuntimeError(self._buffer[:500].decode()))
            return
        self._buffer = body[length:]
        self._left -= 1
        if self._left:
            self._transport.write(self._request)
        else:
            self._transport.close()
            self.done.set_result(None)


def request_of(token: str, body: bytes, content_type: bytes) -> bytes:
    head = [
        b"POST /v1/topics/orders/messages HTTP/1.1",
        b"host: bench",
        b"authorization: Bearer " + token.encode(),
        b"content-type: " + content_type,
        b"content-length: %d" % len(body),
    ]
    return b"\r\n".join([*head, b"", b""]) + body


def post(results: Connection, url: str, request: bytes, connections: int, count: int, status: bytes) -> None:
    """Tells the requests per second of ``connections`` that send ``count`` requests each."""

    async def main() -> float:
        host, port = url.removeprefix("http://").split(":")
        loop = asyncio.get_running_loop()
        begin = time.perf_counter()
        made = await asyncio.gather(
            *(
                loop.create_connection(lambda: Poster(request, count, status), host, int(port))
                for _ in range(connections)
            )
        )
        await asyncio.gather(*(poster.done for _, poster in made))
        return connections * count / (time.perf_counter() - begin)

    results.send(uvloop.run(main()))


def read_stream(results: Connection, url: str, token: str, count: int) -> None:
    """Tells the events per second that one reader gets of a topic that has them all."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = "GET /v1/topics/orders/events?from=earliest HTTP/1.1\r\nhost: bench\r\n"
        connection.sendall(f"{head}authorization: Bearer {token}\r\n\r\n".encode())
        begin, seen, tail = 0.0, 0, b""
        while seen < count:
            data = connection.recv(1 << 20)
            if not data:
                raise RuntimeError(f"the stream ended after {seen} events: {tail[-300:]!r}")
            begin = begin or time.perf_counter()
            joined = tail + data
            seen += joined.count(b"\ndata: ")
            tail = joined[-6:]
        results.send(count / (time.perf_counter() - begin))


def measured(target: Callable[..., None], *args: Any) -> float:
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(there, *args), daemon=True)
    process.start()
    try:
        found: float = here.recv()
        return found
    finally:
        process.join(10)


# -- the scenario ------------------------------------------------------------------------------------------


def http(scale: float, times: int) -> list[Row]:
    """Requests and messages per second by HTTP."""
    single, bulk = max(50, int(300 * scale)), max(4, int(20 * scale))
    found: dict[str, list[float]] = {
        name: [] for name in ("bare", "one", "bare cpu", "one cpu", "lines", "stream")
    }
    for _ in range(times):
        with scratch() as folder:
            _round(Path(folder), single, bulk, found)
    ratios = [one / bare for one, bare in zip(found["one"], found["bare"], strict=True)]
    middle = {name: statistics.median(values) for name, values in found.items()}
    return [
        Row(
            "http: POST / bare uvicorn 204",
            statistics.median(ratios),
            "×",
            0.5,
            note=f"{CONNECTIONS} connections",
        ),
        Row("http: POST of one message", middle["one"], "req/s", note="stored with fsync"),
        Row("http: CPU of a POST", middle["one cpu"], "µs", better="less"),
        Row("bare uvicorn, CPU of a 204", middle["bare cpu"], "µs", better="less", bare=True),
        Row("bare uvicorn, 204", middle["bare"], "req/s", bare=True),
        Row("http: lines", middle["lines"], "msg/s", 200_000.0, note=f"{SIZE} B, {LINES} a request"),
        Row("http: live stream to one reader", middle["stream"], "msg/s", 100_000.0, note="as JSON"),
    ]


def _round(folder: Path, single: int, bulk: int, found: dict[str, list[float]]) -> None:
    with (
        running(serve_terminal, str(folder / "bus")) as (url, token, terminal),
        running(serve_bare) as (bare, _, alone),
    ):
        one = request_of(token, PAYLOAD, b"application/json")
        for name, where, status, server in (
            ("bare", bare, b"204", alone),
            ("one", url, b"201", terminal),
        ):
            measured(post, where, one, CONNECTIONS, 20, status)  # both are warm now
            before = sum(server.cpu_times()[:2])
            found[name].append(measured(post, where, one, CONNECTIONS, single, status))
            spent = sum(server.cpu_times()[:2]) - before
            found[f"{name} cpu"].append(1e6 * spent / (CONNECTIONS * single))
    with running(serve_terminal, str(folder / "bulk")) as (url, token, _):
        lines = request_of(token, (PAYLOAD + b"\n") * LINES, b"application/x-ndjson")
        rate = measured(post, url, lines, OF_LINES, bulk, b"201")
        found["lines"].append(rate * LINES)
        found["stream"].append(measured(read_stream, url, token, OF_LINES * bulk * LINES))
