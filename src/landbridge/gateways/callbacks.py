"""Posts the outcomes of events to the URLs that were given as callbacks.

The terminal stores each such outcome in the topic ``$callbacks``, in the commit that ends the event. This
gateway is the consumer of one durable group there: an outcome is acked when the receiver has answered with
2xx, and tried again otherwise, also after a restart. So a receiver gets each outcome at least once, with the
event's id in the header ``Landbridge-Event``.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from landbridge.client.bus import Bus
from landbridge.client.message import Message
from landbridge.core.replies import CALLBACKS, CODE, SOURCE, STATUS
from landbridge.errors import BusError, LeaseLost, NotOwner
from landbridge.gateways.outgoing import HttpAnswer, HttpRefused, HttpResult, HttpTimedOut, OutgoingHttp

log = logging.getLogger("landbridge.callbacks")

GROUP = "callbacks"
#: Attempts, the first included: the last one is about ten hours after the first.
ATTEMPTS = 16
#: Seconds before the second attempt, then doubled.
BACKOFF, LONGEST_BACKOFF = 5.0, 3600.0
#: Seconds after which an outcome counts as not posted, far above the time limit of a request.
ACK_WITHIN = 120.0
#: Posts under way at once; to one host; and outcomes for one host that are under way or wait for that here.
CONCURRENCY, SHARE, PLACES = 16, 8, 32
#: Seconds that an outcome waits for a place, and everything behind it. A host that has none for so long is
#: slow: for a while its outcomes go back to the group at once, where they wait as after a failure.
PLACE_WITHIN, SLOW_FOR = 2.0, 30.0
#: Seconds before the group is read again after an error.
AGAIN_AFTER = 1.0
GONE = 410


class CallbackPost(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The JSON that a receiver gets."""

    event: str
    topic: str
    state: str
    service: str = ""
    #: The reply, where it is JSON or text; otherwise ``base64`` has its bytes.
    value: Any = None
    base64: str = ""
    #: Of an event that failed or timed out.
    code: str = ""
    status: int = 0
    text: str = ""


def post_of(message: Message) -> CallbackPost:
    """What is posted for a message of the topic."""
    headers = message.headers
    state = str(headers.get("lb-state", ""))
    post = CallbackPost(
        event=str(headers.get("lb-event", "")),
        topic=str(headers.get("lb-topic", "")),
        state=state,
        service=str(headers.get(SOURCE, "")),
    )
    if state != "done":
        status = headers.get(STATUS, 0)
        return replace(
            post,
            code=str(headers.get(CODE, "")),
            status=status if isinstance(status, int) else 0,
            text=message.payload.decode(errors="replace"),
        )
    try:
        return replace(post, value=msgspec.json.decode(message.payload))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return replace(post, value=message.payload.decode())
    except UnicodeDecodeError:
        return replace(post, base64=base64.b64encode(message.payload).decode())


class HostShare:
    """What one host may have of the posts under way, so that a slow one leaves room for the others."""

    def __init__(self) -> None:
        self.posts = asyncio.Semaphore(SHARE)
        self._places = asyncio.Semaphore(PLACES)
        #: Outcomes that have a place.
        self.taken = 0
        #: Until then it is known to be slow, in the loop's time.
        self._slow_until = 0.0

    async def find_place(self) -> bool:
        """Wait for a place. False: the host is slow."""
        now = asyncio.get_running_loop().time
        if self._places.locked() and now() < self._slow_until:
            return False
        try:
            async with asyncio.timeout(PLACE_WITHIN):
                await self._places.acquire()
        except TimeoutError:
            self._slow_until = now() + SLOW_FOR
            return False
        self.taken += 1
        return True

    def leave(self) -> None:
        """An outcome is settled."""
        self.taken -= 1
        self._places.release()


class CallbackPoster:
    """The consumer of the group."""

    def __init__(self, bus: Bus, http: OutgoingHttp, *, backoff: float = BACKOFF) -> None:
        self._bus = bus
        self._http = http
        self._backoff = backoff
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(CONCURRENCY)
        #: By host and port, those that have outcomes under way.
        self._shares: dict[str, HostShare] = {}

    async def run(self) -> None:
        """Post outcomes until cancelled."""
        try:
            while self._bus.closed is None:
                try:
                    await self._read()
                except NotOwner:  # another node has the topic, and posts
                    await asyncio.sleep(AGAIN_AFTER)
                except BusError as error:
                    log.warning("callbacks wait: %s", error)
                    await asyncio.sleep(AGAIN_AFTER)
        finally:
            for task in list(self._tasks):
                task.cancel()

    async def _read(self) -> None:
        await self._bus.call(
            "group.create",
            topic=CALLBACKS,
            name=GROUP,
            ack_within=ACK_WITHIN,
            max_attempts=ATTEMPTS,
            backoff=self._backoff,
            backoff_most=LONGEST_BACKOFF,
            dead_letter="",
        )
        async for message in self._bus.subscribe(CALLBACKS, group=GROUP, prefetch=4 * PLACES):
            host = urlsplit(str(message.headers.get("lb-url", ""))).netloc
            share = self._shares.setdefault(host, HostShare())
            if not await share.find_place():
                await self._put_back(message)
                continue
            task = asyncio.ensure_future(self._post_in(share, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(partial(self._leave, host, share))

    async def _put_back(self, message: Message) -> None:
        try:
            await message.requeue(cause="the receiver is slow, and others wait")
        except LeaseLost:
            pass  # it comes again anyway

    async def _post_in(self, share: HostShare, message: Message) -> None:
        async with share.posts, self._room:
            await self._post(message)

    def _leave(self, host: str, share: HostShare, _: object) -> None:
        share.leave()
        if not share.taken:
            self._shares.pop(host, None)

    async def _post(self, message: Message) -> None:
        url = str(message.headers.get("lb-url", ""))
        post = post_of(message)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "landbridge",
            "Landbridge-Event": post.event,
            "Landbridge-Attempt": str(message.attempt),
        }
        result = await self._http.send("POST", url, msgspec.json.encode(post), headers)
        try:
            await self._settle(message, result)
        except LeaseLost:
            pass  # the connection was lost: it is posted again
        except BusError as error:
            log.warning("the callback of the event %s is not settled: %s", post.event, error)

    async def _settle(self, message: Message, result: HttpResult) -> None:
        if isinstance(result, HttpAnswer) and result.is_success:
            await message.ack()
        elif isinstance(result, HttpRefused) or (isinstance(result, HttpAnswer) and result.status == GONE):
            await message.bury(_told(result))  # trying again would change nothing
        else:
            after = result.retry_after if isinstance(result, HttpAnswer) else None
            after = None if after is None else min(after, LONGEST_BACKOFF)
            await message.requeue(after, cause=_told(result))


def _told(result: HttpResult) -> str:
    """Why an outcome was not taken."""
    if isinstance(result, HttpAnswer):
        return f"the receiver answered {result.status}"
    if isinstance(result, HttpTimedOut):
        return f"the receiver did not answer within {result.seconds:.0f} s"
    return result.why


@asynccontextmanager
async def posting(bus: Bus, http: OutgoingHttp, *, backoff: float = BACKOFF) -> AsyncIterator[CallbackPoster]:
    """Post the outcomes of a terminal's events while the block lasts."""
    poster = CallbackPoster(bus, http, backoff=backoff)
    task = asyncio.ensure_future(poster.run())
    try:
        yield poster
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
