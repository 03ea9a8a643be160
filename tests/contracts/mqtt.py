"""A terminal with its MQTT port, and clients of MQTT that others have written, for tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.gateways.mqtt.port import MqttPort
from landbridge.node.assembly import dial_to
from landbridge.node.mqtt import mqtt_of
from landbridge.testing import attach, run_terminal
from tests.waiting import LIMIT, eventually

V311, V5 = MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5


@dataclass
class Site:
    terminal: Terminal
    gateway: MqttPort
    port: int
    bus: Bus

    def token(self, *scopes: str, subject: str = "shop", life: float = 3600.0) -> str:
        return self.terminal.issue_token(subject, list(scopes), life)

    def client(self, client_id: str = "c1", version: Any = V5, **options: Any) -> Client:
        token = options.pop("token", None) or self.token("publish:#", "subscribe:#")
        return Client(self.port, client_id, version, token, **options)


@asynccontextmanager
async def mqtt_site(**options: Any) -> AsyncIterator[Site]:
    async with run_terminal(**options) as terminal, attach(terminal) as bus:
        own, clients = dial_to(terminal, is_part=True), dial_to(terminal)
        async with mqtt_of(terminal, own, clients, "127.0.0.1", 0, None) as (gateway, port):
            yield Site(terminal, gateway, port, bus)


def properties(kind: int, **values: Any) -> Properties:
    made = Properties(kind)
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Client:
    """A client of paho in a thread of its own. ``async with`` connects and disconnects."""

    def __init__(
        self,
        port: int,
        client_id: str,
        version: Any,
        token: str,
        *,
        clean: bool = True,
        expiry: int | None = None,
        username: str = "",
        receive_maximum: int | None = None,
        manual: bool = False,
        keep_alive: int = 60,
        aliases: int | None = None,
        largest: int | None = None,
        transport: str = "tcp",
    ) -> None:
        self.version, self.port, self.clean, self.keep_alive = version, port, clean, keep_alive
        self.host = "127.0.0.1"
        named: dict[str, Any] = {} if version == V5 else {"clean_session": clean}
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=version,
            manual_ack=manual,
            reconnect_on_failure=False,
            transport=transport,  # type: ignore[arg-type]  # of two words
            **named,
        )
        self.paho.username_pw_set(username, token)
        self.properties = None
        if version == V5:
            given = {
                "SessionExpiryInterval": expiry,
                "ReceiveMaximum": receive_maximum,
                "TopicAliasMaximum": aliases,
                "MaximumPacketSize": largest,
            }
            self.properties = properties(
                PacketTypes.CONNECT, **{name: value for name, value in given.items() if value is not None}
            )
        self.messages: list[paho.MQTTMessage] = []
        self.connack: tuple[Any, Any, Any] | None = None
        self.ended: Any = None
        self.acked: dict[int, Any] = {}
        self.codes: dict[int, Any] = {}
        self.paho.on_connect = self._on_connect
        self.paho.on_message = lambda _, __, message: self.messages.append(message)
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_publish = lambda _, __, mid, reason, ___: self.acked.__setitem__(mid, reason)
        self.paho.on_subscribe = lambda _, __, mid, codes, ___: self.codes.__setitem__(mid, codes)
        self.paho.on_unsubscribe = lambda _, __, mid, codes, ___: self.codes.__setitem__(mid, codes)

    def _on_connect(self, _: Any, __: Any, flags: Any, reason: Any, given: Any) -> None:
        self.connack = flags, reason, given

    def _on_disconnect(self, _: Any, __: Any, flags: Any, reason: Any, given: Any) -> None:
        self.ended = reason, given

    async def connect(self) -> Client:
        named: dict[str, Any] = {}
        if self.version == V5:
            named = {"clean_start": self.clean, "properties": self.properties}
        await asyncio.to_thread(self.paho.connect, self.host, self.port, self.keep_alive, **named)
        self.paho.loop_start()
        await eventually(lambda: self.connack is not None or self.ended is not None, "an answer to CONNECT")
        return self

    async def __aenter__(self) -> Client:
        await self.connect()
        assert self.connack is not None
        assert not self.connack[1].is_failure, self.connack
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.paho.disconnect()
        await asyncio.to_thread(self.paho.loop_stop)
        self.paho._reset_sockets()  # else it leaves them to the garbage collector

    async def kill(self) -> None:
        """Go without a word."""
        sock: Any = self.paho.socket()
        assert sock is not None
        sock.shutdown(socket.SHUT_RDWR)
        await asyncio.to_thread(self.paho.loop_stop)
        self.paho._reset_sockets()

    @property
    def session_present(self) -> bool:
        assert self.connack is not None
        return bool(self.connack[0].session_present)

    async def publish(self, topic: str, payload: bytes | str = b"", qos: int = 1, **options: Any) -> Any:
        """The reason of the PUBACK."""
        info = self.paho.publish(topic, payload, qos, **options)
        await eventually(lambda: info.mid in self.acked, f"an ack of {topic}")
        return self.acked[info.mid]

    async def subscribe(self, filter: str, qos: int = 1, **options: Any) -> int:
        """The code of the SUBACK."""
        given = options.pop("properties", None)
        if self.version == V5:
            _, mid = self.paho.subscribe(filter, options=SubscribeOptions(qos, **options), properties=given)
        else:
            _, mid = self.paho.subscribe(filter, qos)
        assert mid is not None
        await eventually(lambda: mid in self.codes, f"a SUBACK of {filter}")
        return int(self.codes[mid][0].value)

    async def unsubscribe(self, filter: str) -> None:
        _, mid = self.paho.unsubscribe(filter)
        assert mid is not None
        await eventually(lambda: mid in self.codes, f"an UNSUBACK of {filter}")

    async def take(self, count: int) -> list[paho.MQTTMessage]:
        """So many messages, the first ones that came."""
        async with asyncio.timeout(LIMIT):
            while len(self.messages) < count:
                await asyncio.sleep(0.001)
        taken, self.messages = self.messages[:count], self.messages[count:]
        return taken

    async def payloads(self, count: int) -> list[bytes]:
        return [bytes(message.payload) for message in await self.take(count)]
