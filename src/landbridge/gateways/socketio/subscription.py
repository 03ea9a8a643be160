"""Subscriptions of a client: of a topic's log by offset, or of a group with leases."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from landbridge.client.message import Message
from landbridge.client.pulling import PullSubscription
from landbridge.core.pauses import PauseNote
from landbridge.errors import LeaseLost, OtherLog
from landbridge.gateways.http.events import beginning, check_stretch
from landbridge.gateways.http.forms import fields_of_log, plain_form, shown_headers
from landbridge.gateways.http.pull import receipt_of
from landbridge.gateways.http.sessions import HttpSession, answered_soon
from landbridge.gateways.socketio.forms import (
    ATTACHED,
    MessageSent,
    PausedTold,
    SubscribeDone,
    SubscribeGiven,
)
from landbridge.gateways.socketio.packet import event_text
from landbridge.gateways.socketio.tail import tail_of

#: Messages that are taken from a group at a time, and about how many bytes of them, which are judged by those
#: before: what waits for a slow client stays in its group.
AT_ONCE, BYTES_AT_ONCE = 16, 256 << 10
#: Seconds that one pull waits.
PULL_WITHIN = 30.0

_encode = msgspec.json.Encoder().encode
#: A packet as it is sent: its text, and its attachment.
MadePacket: TypeAlias = tuple[str, bytes | None]


class Speaking(Protocol):
    """The client to whom messages go."""

    def next_callback(self) -> int:
        """A number for the callback of one more message."""

    async def say(self, text: str) -> None:
        """Send a packet. Returns when the client may be sent more."""

    async def say_made(self, make: Callable[[], MadePacket]) -> None:
        """The same for a packet that is made when there is room for it."""


class LogSubscription:
    """A client that follows the log of a topic. Its place is the client's own, which comes back with the
    offset that it wants next."""

    group = None

    def __init__(self, session: HttpSession, given: SubscribeGiven, number: int) -> None:
        self._session = session
        self._given = given
        self._number = number
        self._offset = 0
        self._log = ""

    async def open(self, client: Speaking) -> SubscribeDone:
        """Find the place where it begins."""
        given = self._given
        if isinstance(given.start, int):
            last = b"%b:%d" % (given.topic.encode(), given.start - 1)
            place = beginning(self._session.bus, given.topic, last, None)
        else:
            place = beginning(self._session.bus, given.topic, None, given.start)
        async with answered_soon():
            self._offset, self._log = await place
        if given.log not in (None, self._log):
            raise OtherLog(f"{given.topic} was made anew", hint='begin again, with "from": "earliest"')
        return SubscribeDone(subscription=self._number, topic=given.topic, offset=self._offset, log=self._log)

    async def run(self, client: Speaking) -> None:
        """Send what the log has, and what comes, until it is cancelled."""
        topic = self._given.topic
        tail = tail_of(self._session.bus, topic)
        while True:
            found = await tail.read(self._offset)
            check_stretch(topic, self._offset, found.first, self._log, found.log)
            for fetched in found.batches:
                for index in range(max(0, self._offset - fetched.first), len(fetched.batch)):
                    fields = fields_of_log(topic, fetched.first + index, fetched.batch, index)
                    payload = fetched.batch.payload(index)
                    await _send(client, None, payload, subscription=self._number, **fields)
                    self._offset = fetched.first + index + 1
            if not found.batches:
                await tail.grown(self._offset)

    async def close(self) -> None:
        """There is nothing to give back."""


class GroupSubscription:
    """A client that is a consumer of a group. It has up to ``credit`` messages leased; those that it has not
    settled when it leaves go back."""

    def __init__(self, session: HttpSession, given: SubscribeGiven, number: int) -> None:
        self._session = session
        self._given = given
        self._number = number
        assert given.group is not None
        assert not isinstance(given.start, int)  # see SubscribeGiven.check
        self._subscription: PullSubscription = session.bus.pull_from(
            given.topic, given.group, prefetch=given.credit, start=given.start
        )
        #: What settles messages by their callbacks: the receipt and the offset, by the number of the
        #: callback. The oldest is forgotten where there are more than leases: its lease has ended.
        self._callbacks: OrderedDict[int, tuple[str, int]] = OrderedDict()
        self._telling: set[asyncio.Task[None]] = set()

    async def open(self, client: Speaking) -> SubscribeDone:
        """Become a consumer."""
        self._subscription.on_paused = lambda note: self._tell_paused(client, note)
        async with answered_soon():
            await self._subscription.open()
        self._session.streams[self._subscription.number] = self._subscription
        given = self._given
        return SubscribeDone(subscription=self._number, topic=given.topic, group=given.group)

    def _tell_paused(self, client: Speaking, note: PauseNote | None) -> None:
        told = _encode(PausedTold(subscription=self._number, paused=None if note is None else note.told))
        task = asyncio.ensure_future(client.say(event_text(b"paused", told)))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def run(self, client: Speaking) -> None:
        """Send messages as long as the client takes them, until it is cancelled."""
        count = 1
        while True:
            messages = await self._subscription.pull(min(count, self._given.credit), PULL_WITHIN)
            for message in messages:
                await self._deliver(client, message)
            if messages:
                mean = sum(len(message.payload) for message in messages) // len(messages)
                count = max(1, min(AT_ONCE, BYTES_AT_ONCE // (mean + 1)))

    async def _deliver(self, client: Speaking, message: Message) -> None:
        receipt = receipt_of(self._session, message)
        callback = None
        if receipt is not None and self._given.settle == "callback":
            callback = client.next_callback()
            self._callbacks[callback] = receipt, message.offset
            if len(self._callbacks) > 2 * self._given.credit:
                self._callbacks.popitem(last=False)
        headers = message.headers
        await _send(
            client,
            callback,
            message.payload,
            subscription=self._number,
            topic=message.topic,
            offset=message.offset,
            id=message.id,
            time=message.time,
            attempt=message.attempt,
            receipt=receipt,
            key=message.key,
            priority=message.priority,
            headers=headers,
        )

    def has_callback(self, callback: int) -> bool:
        """Is this the callback of one of its messages?"""
        return callback in self._callbacks

    def receipt_of_callback(self, callback: int) -> tuple[str, int]:
        """The receipt and the offset of a message, by its callback, which is used once."""
        found = self._callbacks.pop(callback, None)
        if found is None:
            raise LeaseLost("no message is leased by this callback")
        return found

    async def close(self) -> None:
        """Stop consuming; what is not settled goes back."""
        for task in list(self._telling):
            task.cancel()
        self._session.streams.pop(self._subscription.number, None)
        await self._subscription.close()


async def _send(client: Speaking, callback: int | None, payload: bytes, **fields: Any) -> None:
    """Send a message: a payload that is neither JSON nor text as an attachment."""

    def make() -> MadePacket:
        form = plain_form(payload, fields["headers"].get("content-type"))
        fields["headers"] = shown_headers(fields["headers"])
        sent = MessageSent(**fields, **(form or {"payload": ATTACHED}))
        attachment = None if form else payload
        text = event_text(b"message", _encode(sent), id=callback, attachments=int(attachment is not None))
        return text, attachment

    # As JSON, a message may take six times its bytes: one is made at a time, whatever else waits.
    await client.say_made(make)
