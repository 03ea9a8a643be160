"""MQTT over WebSockets, at the HTTP port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from landbridge.gateways.http.cross_origin import CrossOrigin
from landbridge.gateways.mqtt.websocket import serve_websocket
from landbridge.node import web_socket
from landbridge.node.assembly import dial_to
from landbridge.node.http_port import HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.site import Site as HttpSite
from landbridge.node.web_socket import WebSocketConnection
from landbridge.protocol.mqtt.encoding import encode
from landbridge.protocol.mqtt.packets import V5, ConnectPacket, PingPacket
from tests.contracts.mqtt import V5 as PAHO_V5
from tests.contracts.mqtt import V311, Client, Site, mqtt_site
from tests.waiting import eventually

ORIGIN = "https://dashboard.example"


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Site]:
    """Its port is the HTTP port."""
    async with mqtt_site() as found:
        http = HttpSite(dial_to(found.terminal), origins=[ORIGIN])
        http.mqtt = partial(serve_websocket, found.gateway, CrossOrigin(http.origins))
        port = HttpPort(http, Endpoint("127.0.0.1"), 0, None, most=64, hint="", web_sockets=True)
        try:
            yield Site(found.terminal, found.gateway, int(port.url.rpartition(":")[2]), found.bus)
        finally:
            await found.gateway.close()
            http.stop()
            await port.close()
            await http.close()


def client(site: Site, client_id: str = "c1", version: Any = PAHO_V5, **options: Any) -> Client:
    return site.client(client_id, version, transport="websockets", **options)


def url(site: Site) -> str:
    return f"ws://127.0.0.1:{site.port}/mqtt"


@pytest.mark.parametrize("version", [V311, PAHO_V5])
async def test_messages_come_and_go(site: Site, version: Any) -> None:
    large = bytes(range(256)) * 4096
    async with client(site, "reader", version) as reader, client(site, "writer", version) as writer:
        await reader.subscribe("plant/#", qos=1)
        await writer.publish("plant/7", b"21.5", qos=1)
        await writer.publish("plant/8", large, qos=1)
        found = await reader.take(2)
        assert [(each.topic, each.payload) for each in found] == [("plant/7", b"21.5"), ("plant/8", large)]
    [stretch] = (await site.bus.fetch("plant.8", 0)).batches
    assert stretch.batch.payload(0) == large
    await eventually(lambda: not site.gateway.connections)


async def test_packets_need_not_be_messages(site: Site) -> None:
    """A packet in pieces, and several in one message: MQTT-6.0.0-2 and 6.0.0-3."""
    token = site.token("publish:#")
    hello = encode(ConnectPacket(version=V5, client_id="raw", password=token.encode()), V5)
    ping = encode(PingPacket(is_answer=False), V5)
    async with connect(url(site), subprotocols=["mqtt"]) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == "mqtt"
        for at in range(len(hello)):
            await socket.send(hello[at : at + 1])
        assert (await socket.recv())[0] == 0x20  # CONNACK
        await socket.send(ping + ping)
        answers = b""
        while len(answers) < 4:
            answer = await socket.recv()
            assert isinstance(answer, bytes)
            answers += answer
        assert answers == bytes([0xD0, 0] * 2)
        await socket.send("text")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003
    await eventually(lambda: not site.gateway.connections)


async def test_pings_of_a_peer_that_reads_nothing_gather_no_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[WebSocketConnection] = []
    pinged = []
    connected, handled = WebSocketConnection.connection_made, WebSocketConnection.handle_ping

    def connection_made(connection: WebSocketConnection, transport: Any) -> None:
        made.append(connection)
        connected(connection, transport)

    def handle_ping(connection: WebSocketConnection, event: Any) -> None:
        pinged.append(event.payload)
        handled(connection, event)

    monkeypatch.setattr(WebSocketConnection, "connection_made", connection_made)
    monkeypatch.setattr(WebSocketConnection, "handle_ping", handle_ping)
    monkeypatch.setattr(web_socket, "KNOWN_WITHIN", 1e6)  # a busy machine takes its time for so many
    count = 8_000
    async with connect(url(site), subprotocols=["mqtt"]) as peer:  # type: ignore[list-item]
        [connection] = made
        peer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours = connection.transport.get_extra_info("socket")
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        peer.transport.pause_reading()
        frame = bytes([0x89, 0x80 | 125, 0, 0, 0, 0]) + bytes(125)
        for _ in range(count // 500):
            peer.transport.write(frame * 500)
            await asyncio.sleep(0)
        await eventually(lambda: len(pinged) == count)
        # What the sockets of both ends hold is not counted.
        assert connection.transport.get_write_buffer_size() < 256 << 10
        peer.transport.abort()


async def test_strangers_are_kept_out(site: Site) -> None:
    for options in (
        {"subprotocols": ["mqtt"], "origin": "https://evil.example"},
        {"subprotocols": ["other"]},
        {},
    ):
        with pytest.raises((InvalidStatus, ConnectionClosed)):
            async with connect(url(site), **options) as socket:
                await socket.recv()
    async with connect(url(site), subprotocols=["mqtt"], origin=ORIGIN) as socket:  # type: ignore[arg-type, list-item]
        assert socket.subprotocol == "mqtt"
    refused = client(site, token="nonsense")
    await refused.connect()
    assert refused.connack is None or refused.connack[1].is_failure
    await refused.close()
    await eventually(lambda: not site.gateway.connections)


async def test_clients_are_told_when_the_port_closes(site: Site) -> None:
    async with client(site) as told:
        await asyncio.wait_for(site.gateway.close(), 60)
        await eventually(lambda: told.ended is not None)
        assert str(told.ended[0]) == "Server shutting down"
