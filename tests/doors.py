"""Every door of a terminal, by which messages come in and go out, with what each of them carries.

A new door is one class and one entry in ``WAYS_IN`` or ``WAYS_OUT``: tests/contracts/test_doors.py sends
through each way in and receives by each way out.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from email.message import EmailMessage
from typing import Any, ClassVar
from urllib.parse import quote

import aiosmtplib
import msgspec
from paho.mqtt.packettypes import PacketTypes
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from landbridge.core.sms.spec import SmsProfile
from landbridge.gateways.event_topics import event_gateway
from landbridge.gateways.events import EventOptions
from landbridge.gateways.outgoing import OutgoingHttp
from landbridge.node.assembly import dial_to
from landbridge.node.listening import Endpoint
from landbridge.node.mail import mails_of, taking_mail
from landbridge.node.mqtt import mqtt_of
from landbridge.node.plan import SmtpPlan
from landbridge.node.sms import sms_of
from landbridge.node.webhooks import webhooks_of
from landbridge.node.websub import hub_of
from landbridge.testing import attach
from landbridge.testing.sms_provider import SmsProvider
from tests.contracts.mqtt import V5, Client, properties
from tests.contracts.web import Web, listening, web
from tests.mail_receiver import MailReceiver
from tests.receivers import LOOPBACK, Received, Receiver, says
from tests.socketio_clients import stock
from tests.subscribers import Subscriber
from tests.waiting import LIMIT, Reader, eventually


@dataclass(frozen=True)
class Parcel:
    """A message, as it is sent and as it has to arrive."""

    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)
    key: str | None = None
    priority: int = 0

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")

    @property
    def own_headers(self) -> dict[str, str]:
        """Those beside the content type."""
        return {name: value for name, value in self.headers.items() if name != "content-type"}


PARCELS = {
    "json": Parcel(
        '{"n": [1, 2.50, null],  "t": "grüß"}'.encode(),
        {"content-type": "application/json", "colour": "red"},
        "customer-7",
        4,
    ),
    "text": Parcel(
        "zwei\nZeilen, groß".encode(),
        {"content-type": "text/plain; charset=utf-8", "colour": "blue", "size": "9"},
        "customer-8",
    ),
    "bytes": Parcel(bytes(range(256)), {"content-type": "image/png", "colour": "green"}, None, 9),
    "line": Parcel(b"1|B"),
}


#: Whose token it is, and what mails are sent to.
SENDER, DOMAIN = "shop", "bus.example"
#: The number that SMS are sent from and to here, and that of who writes and reads them.
HERE, THERE = "+15550000001", "+15550000002"


@dataclass
class House:
    """A terminal with all of its doors."""

    web: Web
    token: str
    #: The port of MQTT, and that of mail.
    mqtt: int
    smtp: int

    @property
    def bus(self) -> Any:
        return self.web.bus


@asynccontextmanager
async def house(**options: Any) -> AsyncIterator[House]:
    """``options``: of its terminal."""
    async with web(socketio=True, **options) as site:
        own, dial = dial_to(site.terminal, is_part=True), dial_to(site.terminal)
        way_out, plan = OutgoingHttp(LOOPBACK), SmtpPlan(port=0, domain=DOMAIN)
        async with (
            webhooks_of(site.terminal, dial, (), way_out),
            hub_of(site.terminal, dial, LOOPBACK),
            mqtt_of(site.terminal, own, dial, "127.0.0.1", 0, None) as (
                _,
                mqtt,
            ),
            mails_of(site.terminal, dial, LOOPBACK),
            taking_mail(site.terminal, dial, plan, Endpoint("127.0.0.1"), None) as told,
            sms_of(site.terminal, dial, LOOPBACK),
        ):
            smtp = int(told.split()[0].rpartition(":")[2])
            yield House(site, site.token("publish:#", "subscribe:#", subject=SENDER), mqtt, smtp)


#: Sends a message, and returns as what it has to arrive.
Send = Callable[[Parcel], Awaitable[Parcel]]
#: Returns the next message.
Receive = Callable[[], Awaitable[Parcel]]


# -- in ------------------------------------------------------------------------------------------------


class WayIn:
    """``keeps``: what of a message the door carries, beside the payload and its content type."""

    name: ClassVar[str]
    keeps: ClassVar[frozenset[str]] = frozenset({"headers", "key", "priority"})

    def takes(self, parcel: Parcel) -> bool:
        """Can the door carry the payload?"""
        return bool(parcel.content_type)

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Send]:
        """The topic, and how to send to it."""
        await house.bus.topics.create(topic)

        async def send(parcel: Parcel) -> Parcel:
            await self.send(house, topic, parcel)
            return self.arriving(parcel)

        yield send

    async def send(self, house: House, topic: str, parcel: Parcel) -> None:
        raise NotImplementedError

    def arriving(self, parcel: Parcel) -> Parcel:
        """As what a message of this door arrives."""
        kept = parcel.headers if "headers" in self.keeps else {"content-type": parcel.content_type}
        return Parcel(
            parcel.payload,
            kept,
            parcel.key if "key" in self.keeps else None,
            parcel.priority if "priority" in self.keeps else 0,
        )


class ClientIn(WayIn):
    name = "client"

    async def send(self, house: House, topic: str, parcel: Parcel) -> None:
        await house.bus.publish(
            topic, parcel.payload, key=parcel.key, priority=parcel.priority, headers=parcel.headers
        )


def _http_headers(parcel: Parcel) -> dict[str, str]:
    said = {f"Landbridge-Header-{name}": value for name, value in parcel.own_headers.items()}
    said |= {"Content-Type": parcel.content_type, "Landbridge-Priority": str(parcel.priority)}
    return said | ({"Landbridge-Key": parcel.key} if parcel.key else {})


class HttpIn(WayIn):
    name = "HTTP"
    path = "/v1/topics/{}/messages"

    async def send(self, house: House, topic: str, parcel: Parcel) -> None:
        http = house.web.http
        path, headers = self.path.format(topic), _http_headers(parcel)
        answer = await http.post(path, content=parcel.payload, headers=headers)
        assert answer.status_code == 201, answer.text


def _as_json(parcel: Parcel) -> dict[str, Any]:
    """As a member of JSON has it. JSON stays text: it has to arrive byte for byte."""
    said: dict[str, Any] = {"key": parcel.key, "priority": parcel.priority, "headers": parcel.headers}
    if parcel.content_type.startswith("image/"):
        return said | {"base64": base64.b64encode(parcel.payload).decode()}
    return said | {"text": parcel.payload.decode()}


class WebSocketIn(WayIn):
    name = "WebSocket"

    async def send(self, house: House, topic: str, parcel: Parcel) -> None:
        async with _stream(house) as socket:
            message = {"topic": topic, **_as_json(parcel)}
            await socket.send(json.dumps({"op": "publish", "message": message}))
            assert json.loads(await socket.recv())["op"] == "done"


class CloudEventsIn(WayIn):
    """In binary form: headers are attributes, and arrive as headers ``ce-…``."""

    name = "CloudEvents"
    keeps = frozenset({"headers", "key"})
    required: ClassVar = {"specversion": "1.0", "id": "A-1", "source": "/shop", "type": "com.example.order"}

    async def send(self, house: House, topic: str, parcel: Parcel) -> None:
        attributes = self.required | parcel.own_headers
        if parcel.key is not None:
            attributes["partitionkey"] = parcel.key
        headers = {f"ce-{name}": quote(value) for name, value in attributes.items()}
        headers["content-type"] = parcel.content_type
        path = f"/v1/topics/{topic}/messages"
        answer = await house.web.http.post(path, content=parcel.payload, headers=headers)
        assert answer.status_code == 201, answer.text

    def arriving(self, parcel: Parcel) -> Parcel:
        attributes = {f"ce-{name}": value for name, value in (self.required | parcel.own_headers).items()}
        headers = {**attributes, "content-type": parcel.content_type}
        return replace(super().arriving(parcel), headers=headers)


class StructuredIn(CloudEventsIn):
    name = "CloudEvents, structured"

    async def send(self, house: House, topic: str, parcel: Parcel) -> None:
        event = {**self.required, **parcel.own_headers, "datacontenttype": parcel.content_type}
        if parcel.key is not None:
            event["partitionkey"] = parcel.key
        head, data = json.dumps(event)[:-1], base64.b64encode(parcel.payload).decode()
        if parcel.content_type == "application/json":
            body = f'{head}, "data": {parcel.payload.decode()}}}'
        else:
            body = f'{head}, "data_base64": "{data}"}}'
        headers = {"content-type": "application/cloudevents+json"}
        path = f"/v1/topics/{topic}/messages"
        answer = await house.web.http.post(path, content=body.encode(), headers=headers)
        assert answer.status_code == 201, answer.text


class FeedIn(HttpIn):
    """Publishing to a feed of WebSub."""

    name = "WebSub, publish"
    path = "/v1/feeds/{}"

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Send]:
        async with super().open(house, topic) as send:
            await house.bus.websub.open(topic, base=house.web.url)
            yield send


class PingIn(WayIn):
    """A page elsewhere, which the hub fetches when it is told that the page has changed."""

    name = "WebSub, ping"
    keeps: ClassVar[frozenset[str]] = frozenset()

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Send]:
        page: list[Parcel] = []

        def answer(request: Received) -> bytes:
            return says(200, f"Content-Type: {page[0].content_type}", body=page[0].payload)

        await house.bus.topics.create(topic)
        async with Receiver(answer) as source:

            async def send(parcel: Parcel) -> Parcel:
                page.append(parcel)
                # Whoever opens a feed with a source has it fetched, too; the next one not within ten seconds.
                await house.bus.websub.open(topic, base=house.web.url, source=source.url)
                form = {"hub.mode": "publish", "hub.topic": f"{house.web.url}/v1/feeds/{topic}"}
                answer = await house.web.http.post("/v1/websub", data=form)
                assert answer.status_code in (202, 204), answer.text
                return self.arriving(parcel)

            yield send


class SocketIoIn(WayIn):
    name = "Socket.IO"

    async def send(self, house: House, topic: str, parcel: Parcel) -> None:
        async with stock(house.web.url, house.token, ["websocket"]) as client:
            more = {name: value for name, value in _as_json(parcel).items() if name != "base64"}
            if "text" not in more:
                more["payload"] = parcel.payload
            await client.done("publish", topic=topic, **more)


class MqttIn(WayIn):
    """Version 5. The client is named by a header."""

    name = "MQTT"

    async def send(self, house: House, topic: str, parcel: Parcel) -> None:
        said = [*parcel.own_headers.items(), ("landbridge-priority", str(parcel.priority))]
        if parcel.key is not None:
            said.append(("landbridge-key", parcel.key))
        given = properties(PacketTypes.PUBLISH, ContentType=parcel.content_type, UserProperty=said)
        async with Client(house.mqtt, "sender", V5, house.token) as client:
            answer = await client.publish(topic.replace(".", "/"), parcel.payload, properties=given)
            assert not answer.is_failure

    def arriving(self, parcel: Parcel) -> Parcel:
        return replace(super().arriving(parcel), headers={**parcel.headers, "mqtt-client": "sender"})


class MailIn(WayIn):
    """The content of a mail. A mail has no headers of the message's own, no key and no priority; it arrives
    with its own fields as headers, and text arrives without a charset, because it is UTF-8 always."""

    name = "mail"
    keeps: ClassVar[frozenset[str]] = frozenset()

    async def send(self, house: House, topic: str, parcel: Parcel) -> None:
        mail = EmailMessage()
        mail["From"], mail["To"] = "Shop <shop@example.com>", f"{topic}+content@{DOMAIN}"
        mail["Subject"], mail["Message-ID"] = "Grüße", f"<{topic}@shop>"
        kind, _, more = parcel.content_type.partition(";")
        main, _, sub = kind.partition("/")
        # In base64: byte for byte, without a line end behind the last line.
        mail.set_content(parcel.payload, main, sub, params={"charset": "utf-8"} if more else None)
        client = aiosmtplib.SMTP(
            hostname="127.0.0.1", port=house.smtp, username=SENDER, password=house.token, start_tls=False
        )
        async with client:
            await client.send_message(mail)

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Send]:
        async with super().open(house, topic) as send:
            fields = {
                "mail-from": "Shop <shop@example.com>",
                "mail-to": f"{topic}+content@{DOMAIN}",
                "mail-subject": "Grüße",
                "mail-id": f"<{topic}@shop>",
                "mail-sender": "shop@example.com",
                "mail-service": SENDER,
            }

            async def send_with_fields(parcel: Parcel) -> Parcel:
                arrives = await send(parcel)
                kind = parcel.content_type.partition(";")[0]
                return replace(arrives, headers={**fields, "content-type": kind})

            yield send_with_fields


class SmsIn(WayIn):
    """An SMS is text, and a number that it comes from. It arrives as JSON that has the text, with the number
    as the key."""

    name = "SMS"

    def takes(self, parcel: Parcel) -> bool:
        return parcel.content_type.startswith("text/")

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Send]:
        await house.bus.topics.create(topic)
        outlet = f"{topic}.outlet"
        await house.bus.topics.create(outlet)
        async with SmsProvider() as provider:
            await house.bus.sms.create(
                outlet,
                "sms",
                account=provider.account,
                secret=provider.secret,
                sender=HERE,
                to=THERE,
                profile=SmsProfile(url=provider.url),
                incoming=topic,
                reached_at=house.web.url,
            )

            url = (await house.bus.sms.show(outlet, "sms")).incoming_url

            async def send(parcel: Parcel) -> Parcel:
                text = parcel.payload.decode()
                fields = {"MessageSid": "SM1", "From": THERE, "To": HERE, "Body": text}
                assert await provider.call(url, fields) == 204
                said = {"outlet": f"{outlet}/sms", "id": "SM1", "from": THERE, "body": text, "fields": fields}
                headers = {"content-type": "application/json", "sms-from": THERE}
                return Parcel(msgspec.json.encode(said), headers, THERE)

            try:
                yield send
            finally:
                await house.bus.sms.delete(outlet, "sms")


class EventsIn(WayIn):
    """Lines of the event protocol."""

    name = "events"

    def takes(self, parcel: Parcel) -> bool:
        return parcel.payload == b"1|B"

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Send]:
        async with (
            attach(house.web.terminal, subject="events") as bus,
            event_gateway(bus, topic, EventOptions()) as gateway,
        ):
            await gateway.listen("127.0.0.1", 0, 0)

            async def send(parcel: Parcel) -> Parcel:
                _, writer = await asyncio.open_connection("127.0.0.1", gateway.event_port)
                writer.write(parcel.payload + b"\n")
                await writer.drain()
                writer.close()
                await writer.wait_closed()
                return replace(parcel, key="source")  # which keeps them in order

            yield send


WAYS_IN: tuple[WayIn, ...] = (
    ClientIn(),
    HttpIn(),
    WebSocketIn(),
    CloudEventsIn(),
    StructuredIn(),
    FeedIn(),
    PingIn(),
    SocketIoIn(),
    MqttIn(),
    MailIn(),
    SmsIn(),
    EventsIn(),
)


# -- out -----------------------------------------------------------------------------------------------


class WayOut:
    """``shows``: what of a message the door shows beside its payload."""

    name: ClassVar[str]
    shows: ClassVar[frozenset[str]] = frozenset({"headers", "key", "priority"})

    def takes(self, parcel: Parcel) -> bool:
        """Can the door carry the payload?"""
        return True

    def expected(self, parcel: Parcel) -> Parcel:
        """What is seen of a message that has arrived whole."""
        return Parcel(
            parcel.payload,
            {name: value for name, value in parcel.headers.items() if self.shows_header(name)},
            parcel.key if "key" in self.shows else None,
            parcel.priority if "priority" in self.shows else 0,
        )

    def shows_header(self, name: str) -> bool:
        return "headers" in self.shows or name == "content-type"

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        """Begin to listen, before anything is sent."""
        raise NotImplementedError
        yield


class ClientOut(WayOut):
    name = "client"

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        async with Reader(house.bus.subscribe(topic, group="client", start="earliest")) as reader:

            async def receive() -> Parcel:
                found = await reader.next()
                return Parcel(found.payload, found.headers, found.key, found.priority)

            yield receive


def _shown(message: dict[str, Any]) -> Parcel:
    """A message as JSON has it, from the text of JSON: payloads have to be as they were, byte for byte."""
    if "json" in message:
        payload = message["json"].encode()
    elif "text" in message:
        payload = message["text"].encode()
    else:
        payload = base64.b64decode(message["base64"])
    return Parcel(payload, message.get("headers", {}), message.get("key"), message.get("priority", 0))


def _read(text: str) -> dict[str, Any]:
    """JSON with a message in it, whose payload stays text if it is JSON."""
    found: dict[str, Any] = json.loads(text)
    message = found.get("message", found)
    if "json" in message:
        begin = text.index('"json":') + len('"json":')
        _, end = json.JSONDecoder().raw_decode(text, begin)
        message["json"] = text[begin:end]
    return message


class PullOut(WayOut):
    name = "HTTP, pull"

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        path = f"/v1/topics/{topic}/groups/pull/pull?max=1&wait=30"

        async def receive() -> Parcel:
            text = (await house.web.http.post(path)).text
            return _shown(_read(text.removeprefix('{"messages":[').removesuffix("]}")))

        yield receive


class SseOut(WayOut):
    name = "server-sent events"

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        async with listening(house.web.http, f"/v1/topics/{topic}/events?from=earliest") as events:

            async def receive() -> Parcel:
                return _shown(_read((await anext(events)).data))

            yield receive


@asynccontextmanager
async def _stream(house: House) -> AsyncIterator[Any]:
    address = f"{house.web.url.replace('http', 'ws', 1)}/v1/stream"
    headers = {"authorization": f"Bearer {house.token}"}
    protocols = [Subprotocol("landbridge.v1")]
    async with connect(address, subprotocols=protocols, additional_headers=headers) as socket:
        yield socket


class WebSocketOut(WayOut):
    name = "WebSocket"

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        async with _stream(house) as socket:
            asked = {"op": "subscribe", "id": 1, "topic": topic, "group": "ws", "start": "earliest"}
            await socket.send(json.dumps(asked))
            assert json.loads(await socket.recv())["op"] == "done"

            async def receive() -> Parcel:
                return _shown(_read(str(await socket.recv())))

            yield receive


class CloudEventsOut(WayOut):
    """Headers ``ce-…`` are attributes; others are not shown."""

    name = "CloudEvents"
    shows = frozenset({"key"})

    def shows_header(self, name: str) -> bool:
        return name == "content-type" or name.startswith("ce-")

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        path = f"/v1/topics/{topic}/groups/events/pull?wait=30"

        async def receive() -> Parcel:
            accept = {"accept": "application/cloudevents+json"}
            text = (await house.web.http.post(path, headers=accept)).text
            return self._read(text)

        yield receive

    def _read(self, text: str) -> Parcel:
        event = json.loads(text)
        payload = base64.b64decode(event.pop("data_base64", ""))
        if "data" in event:
            data = event.pop("data")
            begin = text.index('"data":') + len('"data":')
            raw = text[begin : json.JSONDecoder().raw_decode(text, begin)[1]]
            payload = (data if event["datacontenttype"].startswith("text/") else raw).encode()
        headers = {"content-type": event.pop("datacontenttype")} if "datacontenttype" in event else {}
        key = event.pop("partitionkey", None)
        if event["type"] != "landbridge.message":  # attributes that every event must have
            headers |= {f"ce-{name}": v for name, v in event.items() if not name.startswith("landbridge")}
        return Parcel(payload, headers, key)


class _Posted(WayOut):
    """A door that posts messages to a URL: the body and its content type."""

    shows: ClassVar[frozenset[str]] = frozenset()

    def expected(self, parcel: Parcel) -> Parcel:
        found = super().expected(parcel)
        return found if found.headers else replace(found, headers={"content-type": "application/json"})


class WebhookOut(_Posted):
    name = "webhook"

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        async with Receiver() as receiver:
            await house.bus.webhooks.create(topic, "hook", receiver.url)

            async def receive() -> Parcel:
                await eventually(lambda: receiver.requests)
                request = receiver.requests[0]
                return Parcel(request.body, {"content-type": request.headers["content-type"]})

            try:
                yield receive
            finally:
                await house.bus.webhooks.delete(topic, "hook")


class FeedOut(_Posted):
    name = "WebSub"

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        if topic not in [feed.topic for feed in await house.bus.websub.feeds()]:
            await house.bus.websub.open(topic, base=house.web.url)
        async with Subscriber() as subscriber:
            feed = f"{house.web.url}/v1/feeds/{topic}"
            form = {"hub.mode": "subscribe", "hub.topic": feed, "hub.callback": subscriber.callback}
            assert (await house.web.http.post("/v1/websub", data=form)).status_code == 202
            async with asyncio.timeout(LIMIT):
                while "active" not in str(await house.bus.websub.list(topic=topic)):
                    await asyncio.sleep(0.005)

            async def receive() -> Parcel:
                await eventually(lambda: subscriber.got)
                request = subscriber.got[0]
                return Parcel(request.body, {"content-type": request.headers["content-type"]})

            try:
                yield receive
            finally:
                await house.bus.websub.close(topic)


class SocketIoOut(WayOut):
    """JSON comes as a value, whose text is the client's own."""

    name = "Socket.IO"

    def expected(self, parcel: Parcel) -> Parcel:
        if parcel.content_type != "application/json":
            return super().expected(parcel)
        return replace(super().expected(parcel), payload=json.dumps(json.loads(parcel.payload)).encode())

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        async with stock(house.web.url, house.token, ["websocket"]) as client:
            await client.done("subscribe", topic=topic, group="io", **{"from": "earliest"})

            async def receive() -> Parcel:
                [message, *_] = await client.have(1)
                payload = message.get("payload", message.get("text", "").encode() or None)
                if payload is None:
                    payload = json.dumps(message["json"]).encode()
                key, priority = message.get("key"), message.get("priority", 0)
                return Parcel(payload, message.get("headers", {}), key, priority)

            yield receive


class MqttOut(WayOut):
    """Version 5, which is not told the priority."""

    name = "MQTT"
    shows = frozenset({"headers", "key"})

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        async with Client(house.mqtt, "receiver", V5, house.token) as client:
            await client.subscribe(topic.replace(".", "/"), 1)

            async def receive() -> Parcel:
                [found] = await client.take(1)
                given = found.properties
                assert given is not None
                headers = dict(getattr(given, "UserProperty", []))
                headers.pop("landbridge-id")
                if hasattr(given, "ContentType"):
                    headers["content-type"] = given.ContentType
                return Parcel(bytes(found.payload), headers, headers.pop("landbridge-key", None))

            yield receive


class _Written(WayOut):
    """A door that writes a text for people: text alone, and of the rest what its templates name."""

    shows = frozenset({"key"})
    #: What the templates name beside the payload, in this order.
    names = ("key", "content-type", "colour")
    head = "{{ key | }}|{{ headers.content-type | }}|{{ headers.colour | }}"

    def takes(self, parcel: Parcel) -> bool:
        return not parcel.content_type.startswith("image/")

    def shows_header(self, name: str) -> bool:
        return name in self.names

    def read(self, head: str, text: str) -> Parcel:
        found = {name: said for name, said in zip(self.names, head.split("|"), strict=True) if said}
        key = found.pop("key", None)
        return Parcel(text.encode(), found, key)


class MailOut(_Written):
    name = "mail"

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        async with MailReceiver() as receiver:
            await house.bus.mails.create(
                topic,
                "mail",
                server=receiver.url,
                sender="bus@example.com",
                to=["ops@example.com"],
                subject=self.head,
            )

            async def receive() -> Parcel:
                await eventually(lambda: receiver.raw)
                return self.read(receiver.mails[0]["Subject"], receiver.texts[0])

            try:
                yield receive
            finally:
                await house.bus.mails.delete(topic, "mail")


class SmsOut(_Written):
    name = "SMS"

    @asynccontextmanager
    async def open(self, house: House, topic: str) -> AsyncIterator[Receive]:
        async with SmsProvider() as provider:
            await house.bus.sms.create(
                topic,
                "sms",
                account=provider.account,
                secret=provider.secret,
                sender=HERE,
                to=THERE,
                profile=SmsProfile(url=provider.url),
                body=f"{self.head}\n{{{{ payload }}}}",
            )

            async def receive() -> Parcel:
                await eventually(lambda: provider.sent)
                head, _, text = provider.sent[0].body.partition("\n")
                return self.read(head, text)

            try:
                yield receive
            finally:
                await house.bus.sms.delete(topic, "sms")


WAYS_OUT: tuple[WayOut, ...] = (
    ClientOut(),
    PullOut(),
    SseOut(),
    WebSocketOut(),
    CloudEventsOut(),
    WebhookOut(),
    FeedOut(),
    SocketIoOut(),
    MqttOut(),
    MailOut(),
    SmsOut(),
)
