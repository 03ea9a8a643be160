"""Subscribing: a stream of messages or batches that survives reconnects."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, Self

from landbridge.client.line import TerminalLine
from landbridge.client.message import DeliveredBatch, Message
from landbridge.client.publisher import microseconds
from landbridge.client.reading import Reading
from landbridge.client.replies import RequestBatch, RequestMessage
from landbridge.client.wire import Wire, end_future
from landbridge.core.log.batch import Batch, HeaderValue
from landbridge.core.pauses import PauseNote
from landbridge.core.time import SECOND
from landbridge.errors import (
    BadRequest,
    BusError,
    Disconnected,
    LeaseLost,
    QueueTaken,
    ShuttingDown,
    from_wire,
)
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame

#: Messages handed over without a pause after which the loop gets a turn (to send acks, to read).
TURN = 512
#: Seconds between two tries to subscribe again after a lost connection.
AGAIN_AFTER = 0.2


def place(start: Any) -> int | str:
    """Where a group begins, as frames have it: a word, or a moment in microseconds."""
    if not isinstance(start, str):
        return microseconds(start)
    if start not in ("earliest", "latest"):
        raise BadRequest(f"start {start[:60]!r}", hint="'earliest', 'latest' or a time")
    return start


def _pause_of(frame: frames.Paused) -> PauseNote | None:
    return PauseNote(paused_at=frame.at, paused_by=frame.by, note=frame.note) if frame.paused else None


class Subscription(Reading):
    """A consumer of a group, made by ``bus.subscribe(topic, …)``. Iterate it, or its ``batches()``."""

    def __init__(
        self,
        bus: TerminalLine,
        number: int,
        topic: str,
        group: str | None,
        prefetch: int,
        start: Any,
        answers: bool = False,
        must_exist: bool = False,
    ) -> None:
        super().__init__()
        self._bus = bus
        self.number = number
        self.topic = topic
        self.group = group
        self.prefetch = prefetch
        self._start = None if start is None else place(start)
        self._answers = answers
        self._must_exist = must_exist
        #: Stands for the batch of a request that is handed on by itself.
        self._no_batch = RequestBatch(self, frames.Requested(number, 0, topic, 0, ""), b"")
        self._loop = asyncio.get_running_loop()
        #: Requests that have come over this connection and have no reply yet, about.
        self._answering = 0
        #: Open: the program wants it. Subscribed: the terminal has answered once, so every new connection
        #: subscribes again.
        self._open = self._subscribed = self._closed = False
        self._batches: deque[DeliveredBatch] = deque()
        #: Payloads of the batch that is being handed over message by message. Emptying the list ends that.
        self._handing: list[bytes] = []
        self._arrival: asyncio.Future[None] | None = None
        self._error: BusError | None = None
        #: Batches with acks that wait for the loop's next turn.
        self._listed: list[DeliveredBatch] = []
        self._flush_soon = False
        self._handed = 0
        #: By default ack() waits for the disk, as it does for a queue.
        self.waits = False
        #: The group settles on delivery.
        self.at_most_once = False
        #: Seconds without progress after which messages are another consumer's.
        self.ack_within = 0.0
        #: A future that is done, for acks that don't wait.
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready.set_result(None)

    # -- opening and closing -----------------------------------------------------------------------

    async def open(self) -> Self:
        """Subscribe now rather than at the first message."""
        await self._bus.come_near(self.topic)
        if not self._open and not self._closed:
            self._open = True
            self._bus.subscriptions[self.number] = self
            try:
                self._on_subscribed(await self._bus.ask(self._subscribe))
            except BaseException:
                self._forget()
                raise
        return self

    def _subscribe(self, request: int) -> Frame:
        return frames.Subscribe(
            request,
            self.number,
            self.topic,
            self.group,
            self.prefetch,
            self._start,
            answers=self._answers,
            prefetch_bytes=self.prefetch_bytes,
            must_exist=self._must_exist,
        )

    def _on_subscribed(self, frame: frames.Subscribed) -> None:
        self._subscribed = True
        self.group = frame.group if not frame.group.startswith("ephemeral-") else None
        self.at_most_once, self.ack_within = frame.at_most_once, frame.ack_within
        self.waits = frame.kind in ("queue", "work") and not frame.at_most_once

    def disconnected(self) -> None:
        """The connection was lost. Messages that were delivered and not handed over will be delivered again,
        so they are dropped; unless the group settles on delivery, which delivers nothing twice."""
        self._answering = 0
        if not self.at_most_once:
            self._batches.clear()
            self._handing.clear()
        for batch in self._listed:
            batch.listed = False
        self._listed.clear()

    def restart(self) -> None:
        """On a new connection: subscribe again."""
        # Before the first answer, ``open`` asks again by itself. A subscription that has failed stays so.
        if self._open and self._subscribed and self._error is None:
            self._subscribe_again(self._bus.wire, asyncio.get_running_loop().time() + self._bus.patience)

    def _subscribe_again(self, wire: Wire | None, give_up_at: float) -> None:
        if wire is None or wire is not self._bus.wire or not self._open:
            return
        loop = asyncio.get_running_loop()

        def answer(result: Frame | BusError) -> None:
            if isinstance(result, frames.Subscribed):
                self._on_subscribed(result)
            elif isinstance(result, Disconnected | ShuttingDown):
                pass  # the next connection asks again
            elif isinstance(result, BusError):
                # Perhaps the terminal hasn't noticed yet that the old connection is gone, and keeps the
                # place in the queue for it.
                if (result.retriable or isinstance(result, QueueTaken)) and loop.time() < give_up_at:
                    loop.call_later(AGAIN_AFTER, self._subscribe_again, wire, give_up_at)
                else:
                    self.fail(result)

        self.paused = None  # or else the terminal says so again
        wire.send(self._subscribe(wire.request(answer)))

    async def close(self) -> None:
        """Send the acks, give back what was not settled, and end the subscription."""
        if self._closed:
            return
        self._closed = True
        if self._open:
            wire = self._bus.wire
            self._batches.clear()
            if wire is not None and wire.open:
                try:
                    self.flush_acks()
                    await wire.ask(lambda request: frames.Unsubscribe(request, self.number))
                except (Disconnected, ShuttingDown):
                    pass  # without a connection the terminal has ended the subscription already
        self._forget()
        self._wake()

    def _forget(self) -> None:
        self._open = False
        self._bus.subscriptions.pop(self.number, None)

    # -- arriving ----------------------------------------------------------------------------------

    def received(self, frame: Frame, tail: memoryview) -> None:
        """A frame for this subscription has come."""
        if isinstance(frame, frames.Deliver):
            self._batches.append(DeliveredBatch(self, frame, Batch.decode(tail)))
            self._wake()
        elif isinstance(frame, frames.Requested):
            self._answering += 1
            until = self._loop.time() + frame.within / SECOND
            payload = bytes(tail)
            if self.on_request is not None:
                self.on_request(RequestMessage(payload, 0, self._no_batch, frame, self, until))
            else:
                batch = RequestBatch(self, frame, payload)
                batch.message = RequestMessage(payload, 0, batch, frame, self, until)
                self._batches.append(batch)
                self._wake()
        elif isinstance(frame, frames.Paused):
            self.paused = _pause_of(frame)
            if self.on_paused is not None:
                self.on_paused(self.paused)
        elif isinstance(frame, frames.Lost | frames.Refused):
            error = from_wire(frame.code, frame.message, frame.hint)
            # A Refused is about an ack that nobody waited for. If the reason is a lost lease or a full disk,
            # the message comes again, which is enough.
            if isinstance(frame, frames.Lost) or not (isinstance(error, LeaseLost) or error.retriable):
                self.fail(error)

    def fail(self, error: BusError) -> None:
        """End the subscription with an error, which whoever reads it gets."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def next_batch(self) -> DeliveredBatch | None:
        """The next batch; None when the subscription was closed."""
        if self._handed >= TURN:
            self._handed = 0
            await asyncio.sleep(0)
        while (batch := self.take_batch()) is None:
            if self._closed:
                return None
            if self._error is not None:
                raise self._error
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
            self._handed = 0
        return batch

    def _take(self) -> DeliveredBatch:
        """The batch that came first, of those that have come."""
        batch = self._batches.popleft()
        self._handed += len(batch)
        return batch

    def take_batch(self) -> DeliveredBatch | None:
        """A batch that is here already."""
        if not self._batches:
            return None
        batch = self._take()
        if self.at_most_once and self._bus.wire is not None and not isinstance(batch, RequestBatch):
            self._bus.wire.send(frames.Credit(self.number, len(batch), batch.columns.size))
        return batch

    def messages_of(self, batch: DeliveredBatch) -> Iterator[Message]:
        """The messages of a batch. They end early if the connection is lost: the rest is delivered again."""
        if isinstance(batch, RequestBatch):
            return batch.messages()
        self._handing = batch.payloads.copy()
        return map(Message, self._handing, range(len(batch)), repeat(batch))

    @property
    def has_batches(self) -> bool:
        """Would ``take_batch`` return one?"""
        return bool(self._batches)

    # -- replying ----------------------------------------------------------------------------------

    def answer(
        self, number: int, payload: bytes, headers: dict[str, HeaderValue], failure: frames.Failure | None
    ) -> None:
        """Send the reply to a request that is not stored. Without a connection it is dropped: the terminal
        has given the request to another one."""
        wire = self._bus.wire
        if wire is not None:
            self._bus.checked(payload)
            self._answering -= 1
            others = self._answering > 0
            wire.answer(
                frames.SendReply(0, self.number, number, -1, headers, failure), payload, others=others
            )

    def reply(
        self,
        batch: DeliveredBatch,
        position: int,
        payload: bytes,
        headers: dict[str, HeaderValue],
        failure: frames.Failure | None,
    ) -> asyncio.Future[None]:
        """Send the reply to a stored message, which settles it. The future is done when both are on disk."""
        offset = batch.offsets[position]
        self._check_reply(payload)
        batch.note_settled([position])
        undo = partial(batch.unsettled, [position])
        return self._reply_to(batch.lease, offset, payload, headers, failure, undo)

    def reply_at(
        self,
        lease: int,
        offset: int,
        payload: bytes,
        headers: dict[str, HeaderValue],
        failure: frames.Failure | None,
    ) -> asyncio.Future[None]:
        """As ``reply``, for a gateway, which knows a message by its lease and offset."""
        self._check_reply(payload)
        return self._reply_to(lease, offset, payload, headers, failure, lambda: None)

    def _check_reply(self, payload: bytes) -> None:
        if self.at_most_once:
            raise BadRequest("this group settles on delivery: there is nothing to reply to")
        self._bus.checked(payload)

    def _reply_to(
        self,
        lease: int,
        offset: int,
        payload: bytes,
        headers: dict[str, HeaderValue],
        failure: frames.Failure | None,
        failed: Callable[[], None],
    ) -> asyncio.Future[None]:
        def make(request: int) -> Frame:
            return frames.SendReply(request, self.number, lease, offset, headers, failure)

        return self._ask_by(make, payload, failed=failed)

    # -- settling ----------------------------------------------------------------------------------

    def list_acks(self, batch: DeliveredBatch) -> None:
        """Send the batch's acks with the loop's next turn, together with those of other batches."""
        batch.listed = True
        self._listed.append(batch)
        if not self._flush_soon:
            self._flush_soon = True
            asyncio.get_running_loop().call_soon(self._flush_at_turn)

    def _take_acks(self) -> list[frames.Settlement]:
        listed, self._listed = self._listed, []
        taken = ((batch.lease, batch.take_acks()) for batch in listed)
        return [frames.Settlement(lease, runs) for lease, runs in taken if lease and runs]

    def _flush_at_turn(self) -> None:
        self._flush_soon = False
        self.flush_acks()

    def flush_acks(self) -> None:
        """Send the acks that nobody waits for. Without a connection they are dropped: what was leased will be
        delivered again."""
        settlements = self._take_acks() if self._listed else None
        wire = self._bus.wire
        if settlements and wire is not None:
            wire.send(frames.Settle(0, self.number, settlements))

    def settle(
        self,
        settlement: frames.Settlement,
        *,
        again: bool = False,
        failed: Callable[[], None] | None = None,
    ) -> asyncio.Future[None]:
        """Send a settlement. The future is done when the settlement is on disk.

        again: this consumer has settled some of these messages before. failed: called if the messages were
        not settled and still can be."""
        if self.at_most_once:
            raise BadRequest(
                "this group settles on delivery: there is nothing to give back",
                hint="subscribe with a group name",
            )
        # The acks that nobody waits for go in a frame of their own: their refusal must not fail this one.
        self.flush_acks()
        return self._ask([settlement], again=again, failed=failed)

    def _ask(
        self,
        settlements: list[frames.Settlement],
        *,
        again: bool = False,
        failed: Callable[[], None] | None = None,
    ) -> asyncio.Future[None]:
        return self._ask_by(
            lambda request: frames.Settle(request, self.number, settlements), again=again, failed=failed
        )

    def _ask_by(
        self,
        make: Callable[[int], Frame],
        *tail: bytes,
        again: bool = False,
        failed: Callable[[], None] | None = None,
    ) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wire = self._bus.wire
        if wire is None or not wire.open:
            done.set_exception(LeaseLost("the connection was lost: the message will come again"))
            return done

        def answer(result: Frame | BusError) -> None:
            if done.done():
                return
            if isinstance(result, Disconnected | ShuttingDown):
                result = LeaseLost(
                    "the connection was lost before the answer: if it was not settled, it will come again"
                )
            elif isinstance(result, LeaseLost) and again:
                result = LeaseLost(
                    "the message was already settled by this consumer",
                    hint="settle each message once; if that failed, it was given back and comes again",
                )
            elif isinstance(result, BusError) and not isinstance(result, LeaseLost) and failed is not None:
                failed()
            end_future(done, result if isinstance(result, BusError) else None)

        wire.send(make(wire.request(answer)), *tail)
        return done

    async def flush(self) -> None:
        """Wait until every ack so far is on disk."""
        await self._ask(self._take_acks())
