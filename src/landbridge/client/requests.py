"""Asking: a request that waits for its reply, or for the replies of all who answer.

A request that is not durable is one frame to the terminal and one frame back, without a task of its own. A
durable one is an event with an outcome that is awaited (``client/events.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from landbridge.client.line import TerminalLine
from landbridge.client.payload import check_headers, encode
from landbridge.client.replies import Reply, reply_of
from landbridge.client.wire import Wire
from landbridge.core.log.batch import Headers
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest, BusError, Disconnected, TimedOut, WrongVersion
from landbridge.protocol import frames

#: Seconds that a request waits unless it says otherwise.
TIMEOUT = 5.0
#: Replies that a request may want.
MOST_REPLIES = 1_000
#: What a terminal that passes requests on says that it knows.
FEATURE = "requests"


class Asking:
    """Sends the requests of a line."""

    def __init__(self, line: TerminalLine) -> None:
        self._line = line

    async def one(self, topic: str, payload: Any, timeout: float, headers: Headers | None, key: Any) -> Reply:
        """The first reply."""
        wire = self._line.wire or await self._live(timeout)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Reply] = loop.create_future()
        number = self._send(wire, partial(_one, done), topic, payload, timeout, 1, headers, key)
        timer = loop.call_later(timeout, _time_out, done, topic, timeout)
        try:
            reply = await done
        except (TimedOut, asyncio.CancelledError):
            wire.give_up(number)
            raise
        finally:
            timer.cancel()
        if reply.error is not None:
            raise reply.error
        return reply

    async def several(
        self, topic: str, payload: Any, most: int, timeout: float, headers: Headers | None, key: Any
    ) -> list[Reply]:
        """The replies of the groups that answer, at most so many; 0: of all. After the timeout, those that
        have come; TimedOut where there are none."""
        if not 0 <= most <= MOST_REPLIES:
            raise BadRequest(f"a request for {most} replies, at most {MOST_REPLIES}")
        if most == 1:
            return [await self.one(topic, payload, timeout, headers, key)]
        wire = self._line.wire or await self._live(timeout)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        replies: list[Reply] = []
        number = self._send(
            wire, partial(_several, done, replies), topic, payload, timeout, most, headers, key
        )
        timer = loop.call_later(timeout, _time_out, done, topic, timeout)
        try:
            await done
        except TimedOut:
            if not replies:
                raise
        finally:
            timer.cancel()
            wire.give_up(number)
        return replies

    async def _live(self, timeout: float) -> Wire:
        """The connection, when there is one again."""
        try:
            async with asyncio.timeout(timeout):
                return await self._line.live_wire()
        except TimeoutError:
            raise TimedOut(f"no connection to the terminal within {timeout:g} s") from None

    def _send(
        self,
        wire: Wire,
        answer: Callable[[Any], None],
        topic: str,
        payload: Any,
        timeout: float,
        most: int,
        headers: Headers | None,
        key: Any,
    ) -> int:
        """Send a request. Returns its number."""
        line = self._line
        if FEATURE not in line.features:
            raise WrongVersion(
                "the terminal is too old for requests", hint="update the terminal, or ask with durable=True"
            )
        if not 0 < timeout <= 3600:
            raise BadRequest(f"a timeout of {timeout} s", hint="above 0, at most 3600")
        data = line.checked(payload if type(payload) is bytes else encode(payload))
        known = check_headers(headers) if headers else {}
        raw = key.encode() if isinstance(key, str) else key or b""
        number = wire.request(answer)
        frame = frames.SendRequest(number, topic, int(timeout * SECOND) or 1, most, known, raw)
        try:
            wire.send(frame, data)
        except BaseException:
            wire.give_up(number)
            raise
        return number


def _one(done: asyncio.Future[Reply], result: Any) -> None:
    if done.done():
        return
    if type(result) is tuple:
        done.set_result(reply_of(*result))
    else:
        done.set_exception(_lost(result) if isinstance(result, BusError) else _odd(result))


def _several(done: asyncio.Future[None], replies: list[Reply], result: Any) -> None:
    if done.done():
        return
    if type(result) is tuple:
        replies.append(reply_of(*result))
    elif isinstance(result, frames.Done):
        done.set_result(None)
    else:
        done.set_exception(_lost(result) if isinstance(result, BusError) else _odd(result))


def _lost(error: BusError) -> BusError:
    """The error as the caller gets it: a request may have been answered although its reply got lost."""
    if isinstance(error, Disconnected):
        return Disconnected(
            f"{error}, before the reply came",
            hint="the service may have answered: ask again if that does no harm, or ask with durable=True",
        )
    return error


def _odd(result: object) -> BusError:
    return BusError(f"a request was answered by {type(result).__name__}")


def _time_out(done: asyncio.Future[Any], topic: str, timeout: float) -> None:
    if not done.done():
        done.set_exception(TimedOut(f"no reply from {topic} within {timeout:g} s"))
