"""The same bus without async: the event loop runs in a thread of its own, calls wait for it.

Bulk stays bulk: a publisher hands over whole batches, a subscription receives them; only settling crosses the
threads message by message.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from landbridge.client import bus as asynchronous
from landbridge.client.bus import Receipt
from landbridge.client.fetch import Stretch
from landbridge.client.message import DeliveredBatch as AsyncBatch
from landbridge.client.message import Message as AsyncMessage
from landbridge.client.payload import encode
from landbridge.client.publisher import Publisher as AsyncPublisher
from landbridge.client.publisher import Rows
from landbridge.core.log.batch import Headers, HeaderValue
from landbridge.errors import BusError, Disconnected

T = TypeVar("T")


class _Loop:
    """An event loop in a thread, for as long as the bus lives."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        #: Held while something is given to the loop, so that nothing is given to it after ``stop``.
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="landbridge-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise Disconnected("the bus was closed")
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = self.submit(coroutine)
        try:
            return future.result()
        except CancelledError:  # by ``stop``, in another thread
            raise Disconnected("the bus was closed") from None

    def soon(self, act: Callable[[], Any]) -> None:
        with self._lock:
            if self._stopped:
                raise Disconnected("the bus was closed")
            self.loop.call_soon_threadsafe(act)

    def call(self, make: Callable[[], Any]) -> Any:
        """Await, in the loop, what ``make`` makes there."""

        async def wait() -> Any:
            return await make()

        return self.run(wait())

    def stop(self) -> None:
        async def finish() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.loop.shutdown_asyncgens()

        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        # Everything that was given to the loop before is a task by the time ``finish`` looks at them.
        asyncio.run_coroutine_threadsafe(finish(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Message:
    """As landbridge.Message; ack, requeue and bury are plain calls."""

    __slots__ = ("_loop", "_message")

    def __init__(self, loop: _Loop, message: AsyncMessage) -> None:
        self._loop = loop
        self._message = message

    payload: bytes
    offset: int
    id: str
    key: str | None
    headers: dict[str, HeaderValue]
    time: int
    priority: int
    attempt: int
    topic: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def json(self, type: Any = Any) -> Any:
        return self._message.json(type)

    def text(self) -> str:
        return self._message.text()

    def ack(self, *, wait: bool | None = None) -> None:
        if wait is None and not self._message.batch.subscription.waits:
            self._loop.soon(self._message.ack)
        else:
            self._loop.call(lambda: self._message.ack(wait=wait))

    def requeue(self, after: float | None = None, *, cause: str = "") -> None:
        self._loop.call(lambda: self._message.requeue(after, cause=cause))

    def bury(self, cause: str = "") -> None:
        self._loop.call(lambda: self._message.bury(cause))

    def extend(self) -> None:
        self._loop.call(self._message.extend)


class DeliveredBatch:
    def __init__(self, loop: _Loop, batch: AsyncBatch) -> None:
        self._loop = loop
        self._batch = batch

    payloads: list[bytes]
    offsets: range | list[int]
    keys: list[bytes]
    headers: list[dict[str, HeaderValue]]
    topic: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __len__(self) -> int:
        return len(self._batch)

    def __iter__(self) -> Iterator[Message]:
        return (Message(self._loop, message) for message in self._batch)

    def ack(self, *, wait: bool | None = None) -> None:
        self._loop.call(lambda: self._batch.ack(wait=wait))

    def requeue(self, after: float | None = None, *, cause: str = "") -> None:
        self._loop.call(lambda: self._batch.requeue(after, cause=cause))

    def bury(self, cause: str = "") -> None:
        self._loop.call(lambda: self._batch.bury(cause))


class Publisher:
    """Gathers here, hands over by the batch. ``flush`` and leaving the block wait until all is stored."""

    def __init__(self, loop: _Loop, publisher: AsyncPublisher) -> None:
        self._loop = loop
        self._publisher = publisher
        #: Not handed over yet.
        self._rows = Rows()

    def send(
        self,
        payload: Any,
        *,
        key: str | bytes | None = None,
        priority: int = 0,
        headers: Headers | None = None,
        id: str | None = None,
        deliver_at: Any = None,
        expires_at: Any = None,
    ) -> None:
        data = encode(payload)
        if not self._publisher.fits(self._rows, data):
            self._hand_over()
        self._rows.add(data, key, priority, headers, id, deliver_at, expires_at)

    def send_many(self, payloads: Iterable[Any]) -> int:
        self._hand_over()
        return int(self._loop.call(lambda: self._publisher.send_many(payloads)))

    def _hand_over(self) -> None:
        rows, self._rows = self._rows, Rows()
        if rows.payloads:
            self._loop.run(self._publisher.send_rows(rows))

    def flush(self) -> None:
        self._hand_over()
        self._loop.call(self._publisher.flush)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or isinstance(error, Exception):
            try:
                self.flush()
            except BusError:
                if error is None:
                    raise


class Subscription:
    def __init__(self, loop: _Loop, subscription: Any) -> None:
        self._loop = loop
        self._subscription = subscription

    def open(self) -> Subscription:
        self._loop.call(self._subscription.open)
        return self

    def batches(self) -> Iterator[DeliveredBatch]:
        self._loop.call(self._subscription.open)
        try:
            while (batch := self._loop.call(self._subscription.next_batch)) is not None:
                yield DeliveredBatch(self._loop, batch)
        finally:
            self.close()

    def __iter__(self) -> Iterator[Message]:
        for batch in self.batches():
            for message in self._subscription.messages_of(batch._batch):
                yield Message(self._loop, message)

    def flush(self) -> None:
        self._loop.call(self._subscription.flush)

    def close(self) -> None:
        try:
            self._loop.call(self._subscription.close)
        except Disconnected:
            pass  # it ended with the bus

    def __enter__(self) -> Subscription:
        return self.open()

    def __exit__(self, *error: Any) -> None:
        self.close()


class Transaction:
    def __init__(self, loop: _Loop, transaction: Any) -> None:
        self._loop = loop
        self._transaction = transaction

    def publish(self, topic: str, payload: Any, **options: Any) -> None:
        self._loop.call(lambda: self._transaction.publish(topic, payload, **options))

    def ack(self, message: Message | DeliveredBatch) -> None:
        inner = message._message if isinstance(message, Message) else message._batch
        self._loop.call(lambda: self._transaction.ack(inner))

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self._loop.call(self._transaction.commit)


class Bus:
    def __init__(self, make: Callable[[], Any]) -> None:
        """``make``, called in the loop, makes an unopened asynchronous bus."""
        self._loop = _Loop()
        try:
            self._bus = self._loop.call(make)
        except BaseException:
            self._loop.stop()
            raise

    def publish(self, topic: str, payload: Any, **options: Any) -> Receipt:
        receipt: Receipt = self._loop.call(lambda: self._bus.publish(topic, payload, **options))
        return receipt

    def publisher(self, topic: str) -> Publisher:
        return Publisher(self._loop, self._loop.run(_made(lambda: self._bus.publisher(topic))))

    def subscribe(
        self, topic: str, *, group: str | None = None, prefetch: int = 1000, start: Any = None
    ) -> Subscription:
        def make() -> Any:
            return self._bus.subscribe(topic, group=group, prefetch=prefetch, start=start)

        return Subscription(self._loop, self._loop.run(_made(make)))

    def transaction(self) -> Transaction:
        return Transaction(self._loop, self._bus.transaction())

    def fetch(self, topic: str, offset: int, max_bytes: int = 4 << 20) -> Stretch:
        return self.fetch_soon(topic, offset, max_bytes).result()

    def fetch_soon(self, topic: str, offset: int, max_bytes: int = 4 << 20) -> Future[Stretch]:
        """As ``fetch``, under way while something else is done."""
        return self._loop.submit(self._bus.fetch(topic, offset, max_bytes))

    def call_soon(self, op: str, /, **args: Any) -> Future[Any]:
        return self._loop.submit(self._bus.call(op, **args))

    def stage_soon(self, stage: str, topic: str, data: bytes) -> Future[tuple[int, int]]:
        return self._loop.submit(self._bus.stage(stage, topic, data))

    def new_id(self) -> bytes:
        """A UUIDv7."""
        id: bytes = self._bus.new_id()
        return id

    @property
    def closed(self) -> BusError | None:
        """Why the bus is of no more use; None while it is."""
        closed: BusError | None = self._bus.closed
        return closed

    @property
    def max_batch(self) -> int:
        """Bytes of a batch that the terminal takes."""
        return int(self._bus.max_batch)

    def call(self, op: str, /, **args: Any) -> Any:
        return self._loop.call(lambda: self._bus.call(op, **args))

    def renew(self, token: str) -> None:
        self._loop.call(lambda: self._bus.renew(token))

    def ping(self) -> float:
        return float(self._loop.call(self._bus.ping))

    def close(self) -> None:
        try:
            self._loop.call(self._bus.close)
        except Disconnected:
            pass  # closed already
        finally:
            self._loop.stop()

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


async def _made(make: Callable[[], T]) -> T:
    return make()


def connect(
    url: str | None = None,
    *,
    token: Any = None,
    context: str | None = None,
    name: str = "",
    patience: float = 30.0,
) -> Bus:
    """As landbridge.connect, connected when it returns; use it with ``with``."""
    connecting = asynchronous.connect(url, token=token, context=context, name=name, patience=patience)
    return Bus(lambda: connecting)
