"""Webhooks: outlets that post to URLs, signed as Standard Webhooks says.

Subscriptions of feeds (``landbridge.gateways.websub``) are sent in another form: other documents, other
headers, and another end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from landbridge.client.bus import Bus
from landbridge.client.message import Message
from landbridge.core.outlet.outlet import LONGEST_ANSWER, LONGEST_DETAIL, OutletProbe
from landbridge.core.outlet.spec import OutletAttempt
from landbridge.core.time import SECOND
from landbridge.core.webhook import webhook as core
from landbridge.core.webhook.signature import sign, webhook_id
from landbridge.core.webhook.webhook import StoredWebhook
from landbridge.gateways.host_rooms import HostRooms
from landbridge.gateways.outgoing import CONNECTIONS, HttpAnswer, HttpResult, HttpTimedOut, OutgoingHttp
from landbridge.gateways.outlets import EachAlone, ToldByStatus, WatchedSenders

#: Requests under way at once: of one webhook; to one host, as many as OutgoingHttp has connections to it; and
#: of all, fewer than it sends at once, so that none spends its time limit waiting there.
CONCURRENCY, MOST_AT_ONE_HOST, MOST_AT_ONCE = 8, CONNECTIONS, 48
#: The type of the test's event.
TEST = {"type": "landbridge.test"}


class PostForm(EachAlone):
    """Outlets that post each message to a URL."""

    def __init__(self, http: OutgoingHttp, clock: Callable[[], int]) -> None:
        """``clock``: the terminal's."""
        self._http = http
        self._clock = clock
        self._rooms = HostRooms(MOST_AT_ONCE, MOST_AT_ONE_HOST)

    def headers(self, stored: StoredWebhook, id: str, body: bytes, now: int) -> dict[str, str]:
        """What makes a request one of its kind. ``id``: the message's."""
        raise NotImplementedError

    async def send(
        self, stored: StoredWebhook, messages: list[Message], number: int, now: int
    ) -> OutletAttempt:
        """Post a message."""
        [message] = messages
        own = {"Landbridge-Topic": stored.reads, "Landbridge-Offset": str(message.offset)}
        own["Landbridge-Attempt"] = str(number)
        said = core.content_type(stored.spec.content_type, message.headers.get("content-type"))
        return await self._post(stored, message.id, message.payload, said, own, number, message.offset)

    async def send_test(self, stored: StoredWebhook, probe: OutletProbe, now: int) -> OutletAttempt:
        """Post an event of a type of its own."""
        event = TEST | {"topic": stored.spec.topic, "webhook": stored.spec.name, "time": probe.at}
        body = msgspec.json.encode(event)
        return await self._post(stored, probe.id, body, "application/json", {}, 1, None)

    async def _post(
        self,
        stored: StoredWebhook,
        id: str,
        body: bytes,
        content_type: str,
        own: dict[str, str],
        number: int,
        offset: int | None,
    ) -> OutletAttempt:
        """Send a request, signed for this attempt."""
        async with self._rooms.taken(stored.spec.url):
            now = self._clock()
            headers = {
                **own,
                "Content-Type": content_type,
                "User-Agent": "landbridge",
                **self.headers(stored, id, body, now),
            }
            begun = asyncio.get_running_loop().time()
            result = await self._http.send("POST", stored.spec.url, body, headers)
            seconds = round(asyncio.get_running_loop().time() - begun, 3)
        status = result.status if isinstance(result, HttpAnswer) else 0
        return OutletAttempt(
            id=webhook_id(id),
            at=now,
            seconds=seconds,
            verdict=core.verdict_of(status),
            number=number,
            offset=offset,
            status=status,
            detail=why_none(result),
            answer=start_of(result),
            retry_after=result.retry_after if isinstance(result, HttpAnswer) else None,
        )


class WebhookForm(ToldByStatus, PostForm):
    """Webhooks: signed as Standard Webhooks says."""

    noun = "webhook"
    states = core.STATES
    width = CONCURRENCY

    def group_name(self, name: str) -> str:
        """The group that is read."""
        return core.group_name(name)

    def headers(self, stored: StoredWebhook, id: str, body: bytes, now: int) -> dict[str, str]:
        """Id, moment and signature."""
        shown, timestamp = webhook_id(id), now // SECOND
        return {
            "webhook-id": shown,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(core.valid_secrets(stored.secrets, now), shown, timestamp, body),
        }


class WebhookSenders(WatchedSenders):
    """Sends the webhooks of a terminal while its block lasts."""

    def __init__(
        self, bus: Bus, bus_of: Callable[[str, str], Bus], http: OutgoingHttp, clock: Callable[[], int]
    ) -> None:
        super().__init__(bus, bus_of, clock, WebhookForm(http, clock), core.COLLECTION, StoredWebhook)


def why_none(result: HttpResult) -> str:
    """Why there was no answer."""
    if isinstance(result, HttpAnswer):
        return ""
    if isinstance(result, HttpTimedOut):
        return f"no answer within {result.seconds:.0f} s"
    return result.why[:LONGEST_DETAIL]


def start_of(result: HttpResult) -> str:
    """The start of an answer; empty where there was none."""
    if not isinstance(result, HttpAnswer):
        return ""
    return result.body[: 4 * LONGEST_ANSWER].decode(errors="replace")[:LONGEST_ANSWER]
