"""Socket.IO of a real terminal, which is killed while the stock clients of JavaScript and Python use it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import socketio

from tests import npm
from tests.cli.conftest import LIMIT, Place, Up, finish, read_line
from tests.cli.test_http import token_of
from tests.ports import free_port
from tests.socketio_clients import stock
from tests.waiting import eventually

PROGRAM = Path(__file__).with_name("socketio_client.mjs")
CLIENT = "4.8.4"
#: Messages of each program.
EACH = 150


class PythonProgram:
    """The same as the program in JavaScript."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._auth = {"token": token}
        self.stored: dict[str, int] = {}
        self.seen: list[tuple[str, int]] = []
        self.consumed: list[tuple[str, int, int]] = []
        self.connects = 0
        self.sio = socketio.AsyncClient(reconnection_delay=0.05, reconnection_delay_max=0.2)
        self.sio.on("connect", self._on_connect)
        self.sio.on("message", self._on_message)

    async def _on_connect(self) -> None:
        self.connects += 1
        await self.sio.emit("subscribe", {"topic": "orders", "from": len(self.seen)})
        await self.sio.emit("subscribe", {"topic": "orders", "group": "py", "from": "earliest", "credit": 20})

    async def _on_message(self, message: dict[str, Any]) -> str | None:
        if "receipt" in message:
            self.consumed.append((message["text"], message["offset"], message["attempt"]))
            return "ack"
        self.seen.append((message["text"], message["offset"]))
        return None

    async def publish(self, count: int) -> None:
        for number in range(count):
            text = f"py:{number}"
            while text not in self.stored:
                with contextlib.suppress(socketio.exceptions.SocketIOError):
                    order = {"topic": "orders", "text": text, "idempotency_key": text}
                    answer = await self.sio.call("publish", order, timeout=5)
                    self.stored[text] = answer["offset"]
                    continue
                await asyncio.sleep(0.02)

    async def open(self) -> None:
        await self.sio.connect(self._url, auth=self._auth, retry=True)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["websocket", "polling", "polling+websocket"])
async def test_a_terminal_that_is_killed_loses_and_doubles_nothing(place: Place, transport: str) -> None:
    installed = npm.package("socket.io-client", CLIENT)
    (place.folder / "node_modules").symlink_to(installed / "node_modules")
    program = place.folder / PROGRAM.name
    program.write_text(PROGRAM.read_text())
    ports = ["--port", str(free_port()), "--http-port", str(free_port()), "--no-registry", "--socketio"]
    started = [place.start("up", "--json", *ports)]
    url = Up(started[0]).ready["http"]
    arguments = [npm.NODE, str(program), url, token_of(place), str(EACH), str(2 * EACH), transport]
    node = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    python = PythonProgram(url, token_of(place))
    try:
        assert read_line(node.stderr) == b"ready\n"
        await python.open()
        publishing = asyncio.ensure_future(python.publish(EACH))
        for share in (1, 2):
            await eventually(lambda share=share: len(python.stored) >= share * EACH // 3)
            started[-1].send_signal(signal.SIGKILL)
            started[-1].communicate()
            started.append(place.start("up", "--json", *ports))
            await asyncio.to_thread(Up, started[-1])
        await publishing
        await eventually(lambda: len(python.seen) >= 2 * EACH)
        await eventually(lambda: len({text for text, *_ in python.consumed}) >= 2 * EACH)
        ended = await asyncio.to_thread(finish, node)
        assert ended.status == 0, ended.err
    finally:
        await python.sio.shutdown()
        for process in (node, *started):
            process.kill()
            process.communicate()
    javascript = json.loads(ended.out)
    assert javascript["connects"] > 3
    assert python.connects >= 3
    stored = {**javascript["stored"], **python.stored}
    assert sorted(stored.values()) == list(range(2 * EACH)), "each is stored once"
    for seen in (javascript["seen"], python.seen):
        assert [offset for _, offset in seen] == list(range(2 * EACH)), "and seen once, in order"
        assert dict(seen) == stored
    for consumed in (javascript["consumed"], python.consumed):
        assert {text: offset for text, offset, _ in consumed} == stored, "each was consumed"
        times = Counter(text for text, *_ in consumed)
        assert max(times.values()) <= 3, "and again only where its ack was cut off"


async def test_the_gateway_alone_serves_socketio(place: Place) -> None:
    with place.up("--no-registry", "--http-port", "0"):
        process = place.start("http", "--port", "0", "--json", "--socketio")
        try:
            url = json.loads(read_line(process.stdout))["url"]
            async with stock(url, token_of(place)) as client:
                assert (await client.done("publish", topic="orders", json={"n": 1}))["offset"] == 0
                await client.done("subscribe", topic="orders", group="g", **{"from": "earliest"})
                assert (await client.have(1))[0]["json"] == {"n": 1}
            process.send_signal(signal.SIGTERM)
            ended = await asyncio.to_thread(finish, process)
            assert (ended.status, "Traceback" in ended.err) == (0, False), ended.err
        finally:
            process.kill()
            process.communicate(timeout=LIMIT)


def test_without_an_http_port_there_is_no_socketio(place: Place) -> None:
    refused = place.call("up", "--http-port", "0", "--socketio", "--data", os.devnull)
    assert refused.status
    assert "--http-port 0" in refused.err
