"""Requests and replies, as a program sees them: the reply that a request returns, and the request that a
subscription delivers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from landbridge.client.message import DeliveredBatch, Message, Settling
from landbridge.client.payload import check_headers, decode, encode, failure_of
from landbridge.core.log.batch import Batch as Columns
from landbridge.core.log.batch import Headers, HeaderValue, build
from landbridge.errors import ServiceFailed, service_failed
from landbridge.protocol import frames

#: What stands for the columns of a request, which has none.
_NO_COLUMNS = Columns.decode(build((b"",), id=bytes(16), time=0))


class Reply(msgspec.Struct, frozen=True):
    """What ``bus.request`` returns."""

    payload: bytes
    headers: dict[str, HeaderValue]
    #: The subject of the token with which the service replied: its name.
    source: str
    #: How the service failed; None for an ordinary reply. A request for one reply raises it.
    error: ServiceFailed | None = None

    def json(self, type: Any = Any) -> Any:
        """The payload decoded from JSON, and checked against a type if one is given. Raises ``error``."""
        if self.error is not None:
            raise self.error
        return decode(self.payload, type)

    def text(self) -> str:
        """The payload as text, from UTF-8. Raises ``error``."""
        if self.error is not None:
            raise self.error
        return self.payload.decode()


def reply_of(frame: frames.Replied, tail: memoryview | bytes) -> Reply:
    """The reply that a frame carries."""
    failure, source = frame.failure, frame.source
    return Reply(bytes(tail), frame.headers, source, None if failure is None else error_of(failure, source))


def error_of(failure: frames.Failure, source: str) -> ServiceFailed:
    """The error that a failure of a service is raised as."""
    details = {"service_code": failure.code, "status": failure.status, "service": source}
    return service_failed(failure.text, None, details)


class Answering(Protocol):
    """The subscription that a request came over."""

    topic: str
    ready: asyncio.Future[None]

    def answer(
        self, number: int, payload: bytes, headers: dict[str, HeaderValue], failure: frames.Failure | None
    ) -> None:
        """Send a reply."""


class RequestMessage(Message, frozen=True, gc=False):
    """A request that a subscription has delivered: reply to it with ``reply`` or ``fail``. It is stored
    nowhere, so there is nothing to settle: ``ack`` does nothing, and ``requeue`` and ``bury`` fail it."""

    request: frames.Requested
    subscription: Answering
    #: When the caller stops waiting, in the loop's time.
    until: float

    @property
    def topic(self) -> str:
        """The topic that it was sent to."""
        return self.request.topic

    @property
    def requester(self) -> str:
        """The subject of the token with which it was sent."""
        return self.request.requester

    @property
    def offset(self) -> int:
        """-1: it stands in no log."""
        return -1

    @property
    def id(self) -> str:
        """Its number at this terminal."""
        return f"request-{self.request.number}"

    @property
    def key(self) -> str | None:
        """Its key; None if it has none."""
        return self.request.key.decode(errors="replace") if self.request.key else None

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """Its headers."""
        return self.request.headers

    @property
    def time(self) -> int:
        """0: the moment when it was sent is not kept."""
        return 0

    @property
    def priority(self) -> int:
        """0: requests go in the order in which they come."""
        return 0

    @property
    def attempt(self) -> int:
        """1: a request is not tried again."""
        return 1

    @property
    def wants_reply(self) -> bool:
        """Somebody waits for a reply."""
        return True

    @property
    def is_late(self) -> bool:
        """Has its caller stopped waiting?"""
        return asyncio.get_running_loop().time() >= self.until

    def reply(self, value: Any, *, headers: Headers | None = None) -> asyncio.Future[None]:
        """Send the reply: bytes, text, or what JSON can say."""
        known = check_headers(headers) if headers else {}
        self.subscription.answer(self.request.number, encode(value), known, None)
        return self.subscription.ready

    def fail(self, error: BaseException | str, *, headers: Headers | None = None) -> asyncio.Future[None]:
        """Reply that it failed: an exception (ServiceFailed names a code and a status), or a text."""
        raised = ServiceFailed(error) if isinstance(error, str) else error
        self.subscription.answer(self.request.number, b"", check_headers(headers), failure_of(raised))
        return self.subscription.ready

    def ack(self, *, wait: bool | None = None) -> asyncio.Future[None]:
        """Nothing: there is nothing to settle."""
        return self.subscription.ready

    def requeue(self, after: float | None = None, *, cause: str = "") -> asyncio.Future[None]:
        """Fail it: a request that is not stored can't be tried again."""
        return self.fail(cause or "the request was given back")

    def bury(self, cause: str = "") -> asyncio.Future[None]:
        """Fail it."""
        return self.fail(cause or "the request was given up")

    def extend(self) -> asyncio.Future[None]:
        """Nothing: the caller alone says how long it waits."""
        return self.subscription.ready


class RequestBatch(DeliveredBatch):
    """One request, where batches are expected."""

    def __init__(self, subscription: Settling, message_of: frames.Requested, payload: bytes) -> None:
        deliver = frames.Deliver(message_of.subscription, 0, [(0, 1)])
        super().__init__(subscription, deliver, _NO_COLUMNS)
        self.message: RequestMessage
        self._payload = payload

    @property
    def payloads(self) -> list[bytes]:
        """The payload of the request, alone."""
        return [self._payload]

    def messages(self) -> Iterator[Message]:
        """The request, alone."""
        return iter([self.message])

    def ack(self, *, wait: bool | None = None) -> asyncio.Future[None]:
        """Nothing: there is nothing to settle."""
        return self.subscription.ready

    def requeue(self, after: float | None = None, *, cause: str = "") -> asyncio.Future[None]:
        """Fail the request."""
        return self.message.requeue(after, cause=cause)

    def bury(self, cause: str = "") -> asyncio.Future[None]:
        """Fail the request."""
        return self.message.bury(cause)

    def extend(self) -> asyncio.Future[None]:
        """Nothing: the caller alone says how long it waits."""
        return self.subscription.ready
