"""``landbridge up --mqtt`` as a process: TLS, clients of others, and nothing of QoS 1 lost by a kill."""

from __future__ import annotations

import asyncio
import signal
import ssl
import subprocess
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.certificates import self_signed
from tests.cli.conftest import LIMIT, Place, Up
from tests.contracts.mqtt import V5, V311, Client
from tests.ports import free_port
from tests.waiting import eventually


def token_of(place: Place) -> str:
    return str(place.call("context", "show", "local", "--show-token", "--json").json["token"])


def port_of(up: Up) -> int:
    port = urlsplit(up.ready["mqtt"]).port
    assert port is not None
    return port


def test_it_is_refused_off_this_machine_without_tls(place: Place) -> None:
    refused = place.run("up", "--json", "--port", "0", "--host", "0.0.0.0", "--mqtt", "0")
    assert refused.status == 10
    assert "--tls-cert" in refused.error["hint"]


def test_a_port_that_is_taken_is_said(place: Place) -> None:
    with place.up("--http-port", "0", "--mqtt", "0") as first:
        taken = str(port_of(first))
        other = [
            "--data",
            str(place.folder / "other"),
            "--context",
            "other",
            "--http-port",
            "0",
            "--log-level",
            "error",
        ]
        refused = place.run("up", "--json", "--port", "0", "--mqtt", taken, *other)
        assert refused.status == 53
        assert "--mqtt" in refused.error["hint"]


async def test_with_tls(place: Place, tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    with place.up("--http-port", "0", "--mqtt", "0", "--tls-cert", str(cert), "--tls-key", str(key)) as up:
        assert up.ready["mqtt"].startswith("mqtts://127.0.0.1:")
        client = Client(port_of(up), "a", V5, token_of(place))
        client.paho.tls_set_context(ssl.create_default_context(cafile=str(cert)))
        client.host = "localhost"
        async with client:
            assert await client.subscribe("t", 1) == 1
            await client.publish("t", b"sealed")
            assert await client.payloads(1) == [b"sealed"]


@pytest.mark.skipif(which("mosquitto_sub") is None, reason="the clients of mosquitto are not installed")
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_the_clients_of_mosquitto(place: Place, version: str) -> None:
    with place.up("--http-port", "0", "--mqtt", "0") as up:
        known = [
            "-h",
            "127.0.0.1",
            "-p",
            str(port_of(up)),
            "-u",
            "admin",
            "-P",
            token_of(place),
            "-V",
            version,
        ]
        for payload in ("old", "new"):
            sent = ["mosquitto_pub", *known, "-t", "lamp/1", "-q", "1", "-r", "-m", payload]
            subprocess.run(sent, check=True, timeout=LIMIT)
        got = subprocess.run(
            ["mosquitto_sub", *known, "-t", "lamp/+", "-q", "1", "-C", "1", "-F", "%t %r %p"],
            check=True, timeout=LIMIT, capture_output=True, text=True,
        )  # fmt: skip
        assert got.stdout == "lamp/1 1 new\n"
        refused = subprocess.run(
            ["mosquitto_pub", *known[:4], "-P", "wrong", "-u", "admin", "-V", version, "-t", "a", "-m", "x"],
            check=False, timeout=LIMIT, capture_output=True, text=True,
        )  # fmt: skip
        assert refused.returncode != 0


class Device:
    """A client that connects again whenever it has to, as devices do."""

    def __init__(self, port: int, client_id: str, version: Any, token: str) -> None:
        self._make = lambda: Client(
            port, client_id, version, token, clean=False, expiry=3600 if version == V5 else None
        )
        self.client: Client | None = None
        #: What has come over all connections.
        self.received: set[bytes] = set()

    async def connected(self) -> Client:
        while self.client is None or self.client.ended is not None:
            if self.client is not None:
                await self.client.close()
            client = self._make()
            client.paho.on_message = lambda _, __, message: self.received.add(bytes(message.payload))
            try:
                await client.connect()
            except OSError:
                await asyncio.sleep(0.05)
                continue
            if client.connack is None or client.connack[1].is_failure:
                await client.close()
                await asyncio.sleep(0.05)
                continue
            self.client = client
        return self.client


async def publish(device: Device, stop: asyncio.Event, acked: list[bytes]) -> None:
    """Publish numbers, each until it is acked."""
    number = 0
    while not stop.is_set():
        payload = b"%d" % number
        client = await device.connected()
        info = client.paho.publish(f"readings/{number % 5}", payload, 1)
        while info.mid not in client.acked and client.ended is None:
            await asyncio.sleep(0.001)
        if info.mid in client.acked:
            acked.append(payload)
            number += 1


async def stay(device: Device, stop: asyncio.Event) -> None:
    """Stay connected. What was subscribed once is the session's, also after a kill."""
    while not stop.is_set():
        client = await device.connected()
        assert client.session_present or client.codes
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("version", "kills"),
    [(V311, 1), (V5, 1), pytest.param(V5, 5, marks=pytest.mark.slow)],
    ids=["3.1.1", "5", "5-often"],
)
async def test_nothing_of_qos_1_is_lost_by_kills(place: Place, version: Any, kills: int) -> None:
    port = free_port()
    arguments = ["--http-port", "0", "--mqtt", str(port)]
    acked: list[bytes] = []
    stop, done = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    sender, reader = None, None
    try:
        for life in range(kills + 1):
            with place.up(*arguments) as up:
                assert up.ready["mqtt"] == f"mqtt://127.0.0.1:{port}"
                if sender is None or reader is None:
                    token = token_of(place)
                    reader = Device(port, "reader", version, token)
                    client = await reader.connected()
                    assert await client.subscribe("readings/+", 1) == 1
                    sender = Device(port, "sender", version, token)
                    tasks.append(asyncio.ensure_future(publish(sender, stop, acked)))
                    tasks.append(asyncio.ensure_future(stay(reader, done)))
                goal = len(acked) + 40
                await eventually(lambda goal=goal: len(acked) >= goal or tasks[0].done())
                if life < kills:
                    up.process.send_signal(signal.SIGKILL)
                    continue
                stop.set()
                await tasks[0]
                received = reader.received
                await eventually(lambda received=received: received >= set(acked) or tasks[1].done())
                done.set()
                await tasks[1]
        assert reader is not None
        assert reader.received >= set(acked)
        assert len(acked) >= 40 * (kills + 1)
    finally:
        for task in tasks:
            task.cancel()
        for device in (sender, reader):
            if device is not None and device.client is not None:
                await device.client.close()
