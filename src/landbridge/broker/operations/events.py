"""Operations on requests and events: for programs that ask by an operation, as those over HTTP do."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.broker.outcomes import EventCaller, Outcomes
from landbridge.broker.requests import Outstanding
from landbridge.core.replies import TriggeredEvent
from landbridge.core.time import SECOND
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import BadRequest, BusError, TimedOut, service_failed
from landbridge.protocol import frames
from landbridge.protocol import operations as table
from landbridge.protocol.frames import Frame

#: Seconds that request.send and event.outcome wait at most.
LONGEST_WAIT = 60.0


class EventOperations:
    """The handlers of request.* and event.*"""

    def __init__(self, broker: Broker, outcomes: Outcomes) -> None:
        self._broker = broker
        self._outcomes = outcomes

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.REQUEST_SEND, self.send)
        dispatcher.register(table.EVENT_TRIGGER, self.trigger)
        dispatcher.register(table.EVENT_OUTCOME, self.outcome)

    async def trigger(self, caller: EventCaller, request: table.EventTrigger) -> table.EventTriggered:
        if not request.id:
            request = msgspec.structs.replace(request, id=self._broker.new_id().hex())
        event = await self._outcomes.trigger(caller, request, read_payload(request.payload))
        return table.EventTriggered(id=event.id, deadline=event.deadline)

    async def outcome(self, caller: TokenBearer, request: table.OfEvent) -> table.EventOutcome:
        within = max(0.0, min(request.within, LONGEST_WAIT))
        event, payload = await self._outcomes.outcome(caller, request.id, within)
        value, raw = (None, payload) if request.raw else show_payload(payload)
        return table.EventOutcome(
            id=event.id,
            topic=event.topic,
            state=event.state,
            deadline=event.deadline,
            ended_at=event.ended_at,
            source=event.source,
            value=value,
            payload=raw,
            code=event.code,
            status=event.status,
            text=event.text,
        )

    async def send(self, caller: EventCaller, request: table.RequestSend) -> table.RequestAnswer:
        if not 0 < request.timeout <= LONGEST_WAIT:
            raise BadRequest(f"a timeout of {request.timeout} s", hint=f"at most {LONGEST_WAIT:.0f} seconds")
        payload = read_payload(request.payload)
        if request.durable:
            return await self._send_durably(caller, request, payload)
        self._broker.publishing.check_target(caller, request.topic)
        asking = OneRequest(caller)
        frame = frames.SendRequest(
            1, request.topic, int(request.timeout * SECOND), 1, request.headers, request.key.encode()
        )
        frame, payload = await self._broker.publishing.after_middleware(caller, frame, payload)
        try:
            self._broker.requests.ask(asking, frame, memoryview(payload))
            replied, answer = await asking.done
        finally:
            self._broker.requests.forget(asking)
        if replied.failure is not None:
            failure = replied.failure
            details = {"service_code": failure.code, "status": failure.status, "service": replied.source}
            raise service_failed(failure.text, None, details)
        value, raw = show_payload(answer)
        return table.RequestAnswer(source=replied.source, value=value, payload=raw, headers=replied.headers)

    async def _send_durably(
        self, caller: EventCaller, request: table.RequestSend, payload: bytes
    ) -> table.RequestAnswer:
        asked = table.EventTrigger(
            request.topic,
            None,
            self._broker.new_id().hex(),
            request.timeout,
            headers=request.headers,
            key=request.key,
        )
        event = await self._outcomes.trigger(caller, asked, payload)
        # A little longer than the event has: its end tells whether it timed out or failed.
        event, answer = await self._outcomes.outcome(caller, event.id, request.timeout + 2.0)
        check_ended(event, request.timeout)
        value, raw = show_payload(answer)
        return table.RequestAnswer(source=event.source, value=value, payload=raw, headers={})


class OneRequest:
    """Whoever asks by an operation, as one who asks over a connection."""

    writable = True

    def __init__(self, caller: TokenBearer) -> None:
        self._caller = caller
        self.requests: dict[int, Outstanding] = {}
        #: The reply and its payload.
        self.done: asyncio.Future[tuple[frames.Replied, bytes]] = asyncio.get_running_loop().create_future()

    @property
    def subject(self) -> str:
        return self._caller.subject

    @property
    def scopes(self) -> Scopes:
        return self._caller.scopes

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None:
        if isinstance(frame, frames.Replied) and not self.done.done():
            self.done.set_result((frame, bytes(tail[0])))

    def refuse(self, request: int, error: BusError, subscription: int = 0) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    # The name is the protocol's: a request for one reply never ends without one.
    def end(self, request: int) -> None:
        if not self.done.done():
            self.done.set_exception(TimedOut("no reply"))


def check_ended(event: TriggeredEvent, timeout: float) -> None:
    """Raise what a failed event is raised as, and TimedOut for one without an outcome."""
    if event.state == "failed":
        details = {"service_code": event.code, "status": event.status, "service": event.source}
        raise service_failed(event.text, None, details)
    if event.state != "done":
        raise TimedOut(f"no reply from {event.topic} within {timeout:g} s")


def read_payload(value: Any) -> bytes:
    """The bytes of a payload that an operation was given."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def show_payload(payload: bytes) -> tuple[Any, bytes]:
    """A payload as an answer has it: (the value of JSON, or a text, b""), or (None, the bytes)."""
    if not payload:
        return None, b""
    try:
        return msgspec.json.decode(payload), b""
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return payload.decode(), b""
    except UnicodeDecodeError:
        return None, payload
