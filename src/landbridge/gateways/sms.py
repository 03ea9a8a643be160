"""SMS outlets: messages as SMS, by a provider's HTTP interface; and what providers call back with, as
messages.

A message is acked when the provider has taken its SMS. What it costs is counted on disk before it is sent.
Delivery receipts and SMS that come in are calls of the provider to this terminal's HTTP port: each is signed,
and is stored in the name of the outlet's owner before it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from landbridge.client.bus import Bus
from landbridge.client.message import Message
from landbridge.core.outlet import outlet
from landbridge.core.outlet.outlet import Admission, AfterAttempt, OutletProbe, OutletState
from landbridge.core.outlet.spec import OutletAttempt
from landbridge.core.sms import outgoing as core
from landbridge.core.sms.outgoing import SmsDraft, StoredSms
from landbridge.core.templates import MessageValues
from landbridge.errors import BadPayload, TimedOut, Unauthenticated
from landbridge.gateways.host_rooms import HostRooms
from landbridge.gateways.outgoing import CONNECTIONS, HttpAnswer, OutgoingHttp
from landbridge.gateways.outlets import EachAlone, ToldByStatus, WatchedSenders
from landbridge.gateways.webhooks import start_of, why_none

if TYPE_CHECKING:
    from landbridge.protocol.operations import SmsCall

log = structlog.get_logger("landbridge.sms")

#: SMS of one outlet under way at once, to one host, and of all.
WIDTH, MOST_AT_ONE_HOST, MOST_AT_ONCE = 4, CONNECTIONS, 32
#: Connections to store callbacks that are kept, by owner and topic.
MOST_WRITERS = 50
#: Seconds to store a callback.
STORE_WITHIN = 10.0


class SmsForm(ToldByStatus, EachAlone):
    """SMS outlets, as the sender of outlets sends them."""

    noun = "sms"
    states = core.STATES
    width = WIDTH

    def __init__(self, http: OutgoingHttp) -> None:
        self._http = http
        self._rooms = HostRooms(MOST_AT_ONCE, MOST_AT_ONE_HOST)

    def group_name(self, name: str) -> str:
        """The group that is read."""
        return core.group_name(name)

    def admit(self, stored: StoredSms, state: OutletState, message: Message, now: int) -> Admission:
        """A message that makes no SMS is given up; one that the budget doesn't allow waits."""
        try:
            sms = core.draft(stored.spec, values_of(stored.spec.topic, message))
        except BadPayload as error:
            return Admission(state, "bury", str(error))
        return core.admit(stored.spec, state, sms.segments, now)

    async def send(self, stored: StoredSms, messages: list[Message], number: int, now: int) -> OutletAttempt:
        """Ask the provider to send the SMS of a message."""
        [message] = messages
        sms = core.draft(stored.spec, values_of(stored.spec.topic, message))
        return await self._ask(stored, sms, message.id, number, message.offset, now)

    def admit_test(self, stored: StoredSms, state: OutletState, now: int) -> Admission:
        """A test costs what any SMS costs. It waits for no budget."""
        try:
            sms = _test_of(stored, now)
        except BadPayload as error:
            return Admission(state, "bury", str(error))
        found = core.admit(stored.spec, state, sms.segments, now)
        if found.verdict == "leave":
            return Admission(state, "leave", "the budget of the day or of the month is used up")
        return found

    async def send_test(self, stored: StoredSms, probe: OutletProbe, now: int) -> OutletAttempt:
        """An SMS to the recipient, where it is fixed."""
        return await self._ask(stored, _test_of(stored, now), probe.id, 1, None, now)

    def after_attempt(
        self, stored: StoredSms, state: OutletState, attempt: OutletAttempt, now: int
    ) -> AfterAttempt:
        """What follows from an answer: what a refused SMS was to cost is free again."""
        return outlet.after_attempt(stored.spec, core.refund(state, attempt), attempt, now)

    async def _ask(
        self, stored: StoredSms, sms: SmsDraft, id: str, number: int, offset: int | None, now: int
    ) -> OutletAttempt:
        request = core.request_of(stored, sms, id)
        async with self._rooms.taken(request.url):
            begun = asyncio.get_running_loop().time()
            result = await self._http.send("POST", request.url, request.body, request.headers)
            seconds = round(asyncio.get_running_loop().time() - begun, 3)
        is_answer = isinstance(result, HttpAnswer)
        status = result.status if isinstance(result, HttpAnswer) else 0
        answer = start_of(result)
        if isinstance(result, HttpAnswer) and result.is_success:
            answer = core.provider_id(stored.spec.profile, result.body) or answer
        return OutletAttempt(
            id=id,
            at=now,
            seconds=seconds,
            verdict=core.verdict_of(status),
            number=number,
            offset=offset,
            status=status,
            detail=why_none(result) if not is_answer or status < 300 else answer[:150],
            answer=answer,
            retry_after=result.retry_after if isinstance(result, HttpAnswer) else None,
            units=sms.segments,
        )


class SmsSenders(WatchedSenders):
    """Sends the SMS outlets of a terminal while its block lasts, and takes what their providers call back
    with."""

    def __init__(
        self,
        bus: Bus,
        bus_of: Callable[[str, str], Bus],
        writer_of: Callable[[str, str], Bus],
        http: OutgoingHttp,
        clock: Callable[[], int],
    ) -> None:
        """``writer_of``: makes a bus that is not open yet, in the name of an owner, to publish to a topic."""
        super().__init__(bus, bus_of, clock, SmsForm(http), core.COLLECTION, StoredSms)
        self._writer_of = writer_of
        #: Open connections, the last used at the end.
        self._writers: dict[tuple[str, str], Bus] = {}
        self._opening = asyncio.Lock()

    async def take_call(self, _: object, request: SmsCall) -> None:
        """A provider's callback. Done when its message is on disk."""
        sender = self.senders.get((request.topic, request.name))
        stored = None if sender is None else sender.stored
        if not isinstance(stored, StoredSms):
            # The same answer as to a wrong signature: a stranger learns no names.
            raise Unauthenticated("the callback is not signed by the provider")
        profile = stored.spec.profile
        signature = request.headers.get(profile.signature_header.lower(), "")
        said = core.read_callback(
            stored, request.what, request.query, request.content_type, request.body, signature
        )
        try:
            async with asyncio.timeout(STORE_WITHIN):
                bus = await self._writer(stored.owner, said.topic)
                await bus.publish(
                    said.topic,
                    said.payload,
                    key=said.key or None,
                    headers=dict(said.headers),
                    idempotency_key=said.idempotency_key,
                )
        except TimeoutError:
            raise TimedOut(f"not stored within {STORE_WITHIN:.0f} s") from None

    async def _writer(self, owner: str, topic: str) -> Bus:
        """An open connection to publish to a topic, in its owner's name."""
        async with self._opening:
            found = self._writers.pop((owner, topic), None)
            if found is None or found.closed is not None:
                found = self._writer_of(owner, topic)
                await found.open()
            self._writers[owner, topic] = found
            if len(self._writers) > MOST_WRITERS:
                oldest = next(iter(self._writers))
                await self._writers.pop(oldest).close()
            return found

    async def stop(self) -> None:
        """End all senders, and close what callbacks were stored by."""
        await super().stop()
        writers, self._writers = list(self._writers.values()), {}
        for each in writers:
            await each.close()


def _test_of(stored: StoredSms, now: int) -> SmsDraft:
    values = MessageValues(b"", {}, more={"topic": stored.spec.topic}, time=now)
    return core.draft(replace(stored.spec, body=f"Test of {stored.spec.name}"), values)


def values_of(topic: str, message: Message) -> MessageValues:
    """What a template may name of a message."""
    more = {"topic": topic, "id": message.id, "offset": str(message.offset)}
    if message.key is not None:
        more["key"] = message.key
    return MessageValues(bytes(message.payload), message.headers, more=more, time=message.time)
