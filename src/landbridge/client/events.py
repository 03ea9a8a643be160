"""Events with an outcome, as a program sees them: it triggers one, asks for its outcome, or is called."""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from landbridge.client.line import TerminalLine
from landbridge.client.payload import check_headers, decode, encode
from landbridge.client.replies import Reply
from landbridge.core.log.batch import Headers
from landbridge.errors import BusError, LimitReached, TimedOut, service_failed

#: Seconds that one question for an outcome waits at the terminal; then it is asked again.
ASK_FOR = 30.0
#: Callbacks that wait at the terminal at the same time, below a connection's max_waits; and seconds after
#: which one of them makes room where there are more.
MOST_WAITS, TURN = 500, 1.0
#: Seconds before an outcome is asked for again that the terminal could not tell for now.
AGAIN_AFTER = 1.0
#: Seconds that a request waits for its event to be told as timed out by the terminal, beyond its timeout.
BEYOND = 2.0


class EventResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an event."""

    id: str
    topic: str
    #: "pending", "done", "failed" or "timed_out".
    state: Literal["pending", "done", "failed", "timed_out"]
    payload: bytes = b""
    #: The service that replied.
    source: str = ""
    #: When the outcome was stored, in microseconds since 1970; 0: there is none yet.
    ended_at: int = 0
    #: How the service failed, or that nobody replied in time; None for a reply, or while it is pending.
    error: BusError | None = None

    def json(self, type: Any = Any) -> Any:
        """The reply decoded from JSON, and checked against a type if one is given. Raises ``error``."""
        if self.error is not None:
            raise self.error
        return decode(self.payload, type)

    def text(self) -> str:
        """The reply as text, from UTF-8. Raises ``error``."""
        if self.error is not None:
            raise self.error
        return self.payload.decode()


class EventWatch:
    """The events that a bus has triggered, and the functions that are called with their outcomes."""

    def __init__(self, line: TerminalLine) -> None:
        self._line = line
        #: Waits for an outcome, each: functions that are still to be called.
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MOST_WAITS)

    async def trigger(
        self,
        topic: str,
        payload: Any,
        callback: Callable[[EventResult], Any] | str | None,
        within: float,
        id: str | None,
        headers: Headers | None,
        key: str | bytes | None,
    ) -> str:
        """Store an event. Returns its id."""
        chosen = id or uuid.UUID(bytes=self._line.new_id()).hex
        # The id is made here: after a lost answer, asking again stores nothing twice.
        await self._line.call(
            "event.trigger",
            topic=topic,
            payload=self._line.checked(encode(payload)),
            id=chosen,
            within=within,
            callback=callback if isinstance(callback, str) else "",
            headers=check_headers(headers),
            key=key.decode() if isinstance(key, bytes) else key or "",
        )
        if callback is not None and not isinstance(callback, str):
            task = asyncio.ensure_future(self._call_back(chosen, callback))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return chosen

    async def outcome(self, id: str, wait: float) -> EventResult:
        """What became of an event, after so many seconds at most."""
        until = time.monotonic() + wait
        while True:
            left = max(0.0, until - time.monotonic())
            found = _read(await self._line.call("event.outcome", id=id, within=min(left, ASK_FOR), raw=True))
            if found.state != "pending" or left <= ASK_FOR:
                return found

    async def request(
        self, topic: str, payload: Any, timeout: float, headers: Headers | None, key: str | bytes | None
    ) -> Reply:
        """A durable request: an event whose outcome is awaited."""
        id = ""
        try:
            async with asyncio.timeout(timeout + BEYOND):
                id = await self.trigger(topic, payload, None, timeout, None, headers, key)
                found = await self.outcome(id, timeout + BEYOND)
        except TimeoutError:
            found = None
        if found is None or found.state in ("pending", "timed_out"):
            stored = f"the event is {id}" if id else "the request may not have been stored"
            raise TimedOut(f"no reply from {topic} within {timeout:g} s", hint=stored)
        if found.error is not None:
            raise found.error
        return Reply(found.payload, {}, found.source)

    async def _call_back(self, id: str, callback: Callable[[EventResult], Any]) -> None:
        """Wait for an outcome, over as many connections as it takes, and call a function with it."""
        loop = asyncio.get_running_loop()
        try:
            found = await self._ended(id)
            result = callback(found)
            if inspect.isawaitable(result):
                await result
        except BusError as error:
            if self._line.closed is None:
                loop.call_exception_handler(
                    {"message": f"no outcome of the event {id} for its callback", "exception": error}
                )
        except Exception as error:
            loop.call_exception_handler(
                {"message": f"the callback of the event {id} failed", "exception": error}
            )

    async def _ended(self, id: str) -> EventResult:
        """The outcome of an event that has ended. Where many are waited for, each has its turn."""
        while True:
            try:
                async with self._room:
                    found = await self.outcome(id, TURN if len(self._tasks) > MOST_WAITS else ASK_FOR)
            except BusError as error:
                if self._line.closed is not None or not (error.retriable or isinstance(error, LimitReached)):
                    raise
                await asyncio.sleep(AGAIN_AFTER)
            else:
                if found.state != "pending":
                    return found

    def close(self) -> None:
        """Call no function any more: the bus is closed. The outcomes are kept."""
        for task in list(self._tasks):
            task.cancel()


def _read(answer: dict[str, Any]) -> EventResult:
    state = answer["state"]
    error: BusError | None = None
    if state == "failed":
        details = {"service_code": answer["code"], "status": answer["status"], "service": answer["source"]}
        error = service_failed(answer["text"], None, details)
    elif state == "timed_out":
        error = TimedOut(answer["text"])
    return EventResult(
        id=answer["id"],
        topic=answer["topic"],
        state=state,
        payload=answer["payload"],
        source=answer["source"],
        ended_at=answer["ended_at"],
        error=error,
    )
