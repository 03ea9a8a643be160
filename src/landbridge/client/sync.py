"""The same bus without async: the event loop runs in a thread of its own, and calls wait for it.

Bulk stays bulk: a publisher hands over whole batches, a subscription receives them; only settling crosses the
threads message by message.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from landbridge.client import bus as asynchronous
from landbridge.client.bus import WithNouns
from landbridge.client.fetch import Stretch
from landbridge.client.message import DeliveredBatch as AsyncBatch
from landbridge.client.message import Message as AsyncMessage
from landbridge.client.payload import encode
from landbridge.client.publisher import MessageOptions, Rows
from landbridge.client.publisher import Publisher as AsyncPublisher
from landbridge.client.reading import Reading as AsyncReading
from landbridge.client.replies import Reply
from landbridge.client.transaction import Transaction as AsyncTransaction
from landbridge.core.log.batch import Headers, HeaderValue
from landbridge.core.names import CONTENT_TOPIC
from landbridge.core.pauses import PauseNote
from landbridge.errors import BusError, Disconnected

if TYPE_CHECKING:
    from landbridge.client.nouns import Noun, Synchronous
    from landbridge.client.telemetry import Telemetry

T = TypeVar("T")
P = ParamSpec("P")


class _Loop:
    """An event loop in a thread, for as long as the bus lives."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        #: Held while something is given to the loop, so that nothing is given to it after ``stop``.
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="landbridge-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop."""
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise Disconnected("the bus was closed")
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except CancelledError:  # by ``stop``, in another thread
            raise Disconnected("the bus was closed") from None

    def soon(self, act: Callable[[], Any]) -> None:
        """Call a function in the loop, without waiting for it."""
        with self._lock:
            if self._stopped:
                raise Disconnected("the bus was closed")
            self.loop.call_soon_threadsafe(act)

    def call(self, make: Callable[P, Awaitable[T]], /, *args: P.args, **options: P.kwargs) -> T:
        """Call a function in the loop, and wait for what its result is awaited to."""

        async def wait() -> T:
            return await make(*args, **options)

        return self.run(wait())

    def make(self, make: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        """Call a plain function in the loop, and wait for its result."""

        async def made() -> T:
            return make(*args, **options)

        return self.run(made())

    def stop(self) -> None:
        """Cancel what runs in the loop, and end its thread."""

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


class _BorrowedLoop(_Loop):
    """The loop of an asynchronous program, for its threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """The loop goes on: it is not ours."""


class _Wrapper:
    """Something of the asynchronous bus, and the loop that it lives in."""

    _inner: Any

    def __init__(self, loop: _Loop, inner: Any) -> None:
        self._loop = loop
        self._inner = inner


def _waiting(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], T]:
    """An asynchronous method as one that waits, with its name, arguments and docstring."""

    @wraps(method)
    def wait(self: _Wrapper, /, *args: P.args, **options: P.kwargs) -> T:
        result: T = self._loop.call(getattr(self._inner, method.__name__), *args, **options)
        return result

    return wait


class _Delivered(_Wrapper):
    """What a subscription delivers. It is read without the loop, and settled in it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Message(_Delivered):
    """As ``landbridge.Message``; ack, requeue, bury and extend are plain calls."""

    _inner: AsyncMessage

    payload: bytes
    offset: int
    id: str
    key: str | None
    headers: dict[str, HeaderValue]
    time: int
    priority: int
    attempt: int
    topic: str

    def json(self, type: Any = Any) -> Any:
        """The payload decoded from JSON, and checked against a type if one is given."""
        return self._inner.json(type)

    def text(self) -> str:
        """The payload as text, from UTF-8."""
        return self._inner.text()

    def ack(self, *, wait: bool | None = None) -> None:
        """Settle the message. Returns at once; with ``wait=True``, and for queues, it returns when the ack is
        on disk, and raises LeaseLost if the message was no longer this consumer's."""
        if wait is None and not self._inner.batch.subscription.waits:
            self._loop.soon(self._inner.ack)
        else:
            self._loop.call(self._inner.ack, wait=wait)

    wants_reply: bool

    def reply(self, value: Any, *, headers: Headers | None = None) -> None:
        """Send the reply to a message that wants one; see ``landbridge.Message.reply``."""
        self._loop.call(self._inner.reply, value, headers=headers)

    def fail(self, error: BaseException | str, *, headers: Headers | None = None) -> None:
        """Reply that it failed; see ``landbridge.Message.fail``."""
        self._loop.call(self._inner.fail, error, headers=headers)

    requeue = _waiting(AsyncMessage.requeue)
    bury = _waiting(AsyncMessage.bury)
    extend = _waiting(AsyncMessage.extend)


class DeliveredBatch(_Delivered):
    """As ``landbridge.DeliveredBatch``; ack, requeue, bury and extend are plain calls."""

    _inner: AsyncBatch

    payloads: list[bytes]
    offsets: range | list[int]
    keys: list[bytes]
    headers: list[dict[str, HeaderValue]]
    topic: str

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Message]:
        return (Message(self._loop, message) for message in self._inner)

    ack = _waiting(AsyncBatch.ack)
    requeue = _waiting(AsyncBatch.requeue)
    bury = _waiting(AsyncBatch.bury)
    extend = _waiting(AsyncBatch.extend)


class Publisher(_Wrapper):
    """Publishes many messages in order, made by ``bus.publisher(topic)``. They gather here and are handed
    over by the batch. ``flush`` and leaving the block wait until all is stored, and raise a refusal."""

    _inner: AsyncPublisher

    def __init__(self, loop: _Loop, inner: AsyncPublisher) -> None:
        super().__init__(loop, inner)
        #: Not handed over yet.
        self._rows = Rows()

    def send(self, payload: Any, **options: Unpack[MessageOptions]) -> None:
        """Add a message. Waits only when there is no room."""
        data = encode(payload)
        if not self._inner.fits(self._rows, data):
            self._hand_over()
        self._rows.add(data, **options)

    def send_many(self, payloads: Iterable[Any]) -> int:
        """Send an iterable of payloads. Returns the number of messages sent."""
        self._hand_over()
        return self._loop.call(self._inner.send_many, payloads)

    def _hand_over(self) -> None:
        rows, self._rows = self._rows, Rows()
        if rows.payloads:
            self._loop.call(self._inner.send_rows, rows)

    def flush(self) -> None:
        """Wait until everything sent so far is answered. Raises the first refusal."""
        self._hand_over()
        self._loop.call(self._inner.flush)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or isinstance(error, Exception):
            try:
                self.flush()
            except BusError:
                if error is None:
                    raise


class Subscription(_Wrapper):
    """A consumer of a group, made by ``bus.subscribe(topic, …)``. Iterate it, or its ``batches()``."""

    _inner: AsyncReading

    @property
    def paused(self) -> PauseNote | None:
        """Of one topic: why nothing comes, where an operator has paused the group, its topic or this service.
        None: nothing is paused."""
        return self._inner.paused

    def open(self) -> Subscription:
        """Subscribe now rather than at the first message."""
        self._loop.call(self._inner.open)
        return self

    def batches(self) -> Iterator[DeliveredBatch]:
        """Iterate over batches, as they were delivered."""
        self.open()
        try:
            while (batch := self._loop.call(self._inner.next_batch)) is not None:
                yield DeliveredBatch(self._loop, batch)
        finally:
            self.close()

    def __iter__(self) -> Iterator[Message]:
        for batch in self.batches():
            for message in self._inner.messages_of(batch._inner):
                yield Message(self._loop, message)

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none has come within ``timeout`` seconds (None: wait for ever)."""
        message = self._loop.call(self._inner.poll, timeout)
        return None if message is None else Message(self._loop, message)

    def poll_batch(self, timeout: float | None = None) -> DeliveredBatch | None:
        """The next batch; None if none has come within ``timeout`` seconds (None: wait for ever)."""
        batch = self._loop.call(self._inner.poll_batch, timeout)
        return None if batch is None else DeliveredBatch(self._loop, batch)

    flush = _waiting(AsyncReading.flush)

    def close(self) -> None:
        """Send the acks, give back what was not settled, and end the subscription."""
        try:
            self._loop.call(self._inner.close)
        except Disconnected:
            pass  # the subscription ended with the bus

    def __enter__(self) -> Subscription:
        return self.open()

    def __exit__(self, *error: Any) -> None:
        self.close()


class Transaction(_Wrapper):
    """Made by ``bus.transaction()``; leaving its block commits, unless the block raises."""

    _inner: AsyncTransaction

    publish = _waiting(AsyncTransaction.publish)
    create_document = _waiting(AsyncTransaction.create_document)
    update_document = _waiting(AsyncTransaction.update_document)
    delete_document = _waiting(AsyncTransaction.delete_document)
    commit = _waiting(AsyncTransaction.commit)

    @property
    def repeated(self) -> bool:
        """Once it is committed: it had happened before, as another transaction with the same key."""
        return self._inner.repeated

    @property
    def offsets(self) -> list[tuple[str, int]]:
        """Once it is committed: topic and first offset of each batch; -1 where that is not known any more."""
        return self._inner.offsets

    def ack(self, message: Message | DeliveredBatch) -> None:
        """Add an ack, which settles a message or a batch if the transaction is committed."""
        self._loop.call(self._inner.ack, message._inner)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.commit()


class Bus(_Wrapper, WithNouns["Synchronous"]):
    """A connection to a terminal, made by ``landbridge.sync.connect()``; use it with ``with``."""

    _inner: asynchronous.Bus

    def __init__(self, make: Callable[[], Awaitable[asynchronous.Bus]]) -> None:
        """``make``, called in the loop, makes an unopened asynchronous bus."""
        loop = _Loop()
        try:
            super().__init__(loop, loop.call(make))
        except BaseException:
            loop.stop()
            raise

    @classmethod
    def beside(cls, bus: asynchronous.Bus) -> Bus:
        """The bus of an asynchronous program, for a thread of the program. Called in its loop."""
        made = cls.__new__(cls)
        _Wrapper.__init__(made, _BorrowedLoop(asyncio.get_running_loop()), bus)
        return made

    def message(self, message: AsyncMessage) -> Message:
        """A message of the asynchronous program, for a thread."""
        return Message(self._loop, message)

    def _make_noun(self, kind: type[Noun[Synchronous]]) -> Noun[Synchronous]:
        return kind(self._inner.call, self._loop.run)

    publish = _waiting(asynchronous.Bus.publish)
    publish_batch = _waiting(asynchronous.Bus.publish_batch)

    def publisher(self, topic: str | None) -> Publisher:
        """For many messages: they gather into batches, and you wait only when there is no room."""
        made = Publisher(self._loop, self._loop.make(self._inner.publisher, topic))
        if self._inner.telemetry is not None:
            vars(made)["send"] = self._inner.telemetry.carrying(topic or CONTENT_TOPIC, made.send)
        return made

    def subscribe(
        self,
        topic: str | Sequence[str] | None = None,
        *,
        match: Mapping[str, Any] | None = None,
        group: str | None = None,
        prefetch: int = 1000,
        start: Any = None,
        reply: bool = False,
        create: bool = True,
    ) -> Subscription:
        """Read a topic, or several as one; see ``landbridge.Bus.subscribe``."""
        made = self._loop.make(
            self._inner.subscribe,
            topic,
            match=match,
            group=group,
            prefetch=prefetch,
            start=start,
            reply=reply,
            create=create,
        )
        return Subscription(self._loop, made)

    if TYPE_CHECKING:

        @overload
        def request(
            self,
            topic: str,
            payload: Any,
            *,
            timeout: float = ...,
            durable: bool = ...,
            headers: Headers | None = ...,
            key: str | bytes | None = ...,
        ) -> Reply: ...

        @overload
        def request(
            self,
            topic: str,
            payload: Any,
            *,
            timeout: float = ...,
            gather: Literal[True],
            headers: Headers | None = ...,
            key: str | bytes | None = ...,
        ) -> list[Reply]: ...

        @overload
        def request(
            self,
            topic: str,
            payload: Any,
            *,
            timeout: float = ...,
            replies: int,
            headers: Headers | None = ...,
            key: str | bytes | None = ...,
        ) -> list[Reply]: ...

        def request(self, *args: Any, **options: Any) -> Any:
            """As ``landbridge.Bus.request``."""

    else:
        request = _waiting(asynchronous.Bus.request)

    #: A function given as the callback is called in the thread of the bus, and must not use the bus there.
    trigger = _waiting(asynchronous.Bus.trigger)
    outcome = _waiting(asynchronous.Bus.outcome)

    def transaction(self, *, idempotency_key: str | None = None) -> Transaction:
        """Publishes and acks in one atomic commit; see ``landbridge.Bus.transaction``."""
        return Transaction(self._loop, self._inner.transaction(idempotency_key=idempotency_key))

    call = _waiting(asynchronous.Bus.call)
    fetch = _waiting(asynchronous.Bus.fetch)
    renew = _waiting(asynchronous.Bus.renew)
    ping = _waiting(asynchronous.Bus.ping)

    def fetch_soon(self, topic: str, offset: int, max_bytes: int = 4 << 20) -> Future[Stretch]:
        """As ``fetch``, in the background."""
        return self._loop.submit(self._inner.fetch(topic, offset, max_bytes))

    def call_soon(self, op: str, /, **args: Any) -> Future[Any]:
        """As ``call``, in the background."""
        return self._loop.submit(self._inner.call(op, **args))

    def stage_soon(self, stage: str, topic: str, data: bytes) -> Future[tuple[int, int]]:
        """As ``landbridge.Bus.stage``, in the background."""
        return self._loop.submit(self._inner.stage(stage, topic, data))

    def new_id(self) -> bytes:
        """A UUIDv7, for a batch."""
        return self._inner.new_id()

    @property
    def closed(self) -> BusError | None:
        """Why the bus is closed for good; None while it is in use."""
        return self._inner.closed

    @property
    def max_batch(self) -> int:
        """The size in bytes of a batch that the terminal takes."""
        return self._inner.max_batch

    def close(self) -> None:
        """Disconnect: acks are sent and leases given back before."""
        try:
            self._loop.call(self._inner.close)
        except Disconnected:
            pass  # closed already
        finally:
            self._loop.stop()

    def __enter__(self) -> Bus:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def connect(
    url: str | None = None,
    *,
    token: str | Callable[[], str] | None = None,
    context: str | None = None,
    ca: str | None = None,
    name: str = "",
    patience: float = 30.0,
    telemetry: Telemetry | bool = False,
) -> Bus:
    """As ``landbridge.connect``; the bus is connected when this returns. Use it with ``with``."""
    connecting = asynchronous.connect(
        url, token=token, context=context, ca=ca, name=name, patience=patience, telemetry=telemetry
    )
    return Bus(lambda: connecting)
