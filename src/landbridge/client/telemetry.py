"""OpenTelemetry: traces that go on from producer to consumer, and metrics of both. Needs the extra ``otel``.

A message carries the trace that it was published in, in the header ``traceparent`` (W3C Trace Context).
Headers travel with a message over any number of terminals, which know nothing of this. Whoever handles the
message goes on in the same trace: the consumer's span is a child of the producer's span, and linked to it.

A bus without telemetry has nothing of this module and pays nothing for it: ``connect(telemetry=True)`` puts
traced methods in the place of the bus's own.
Names of spans, attributes and metrics are OpenTelemetry's for messaging.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

from landbridge.client.message import DeliveredBatch, Message
from landbridge.core.log.batch import HeaderValue
from landbridge.core.names import CONTENT_TOPIC
from landbridge.errors import BadRequest

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise BadRequest(
        "telemetry needs OpenTelemetry, which is not installed", hint="pip install 'landbridge[otel]'"
    ) from None

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

SYSTEM = "landbridge"
#: The W3C headers.
TRACE_HEADERS = ("traceparent", "tracestate")
_W3C = TraceContextTextMapPropagator()


class StoredMessage(Protocol):
    """A receipt."""

    @property
    def id(self) -> str: ...

    @property
    def offset(self) -> int: ...


class Telemetry:
    """Where spans and metrics go: to the given providers, or to OpenTelemetry's global ones."""

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(SYSTEM, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SYSTEM, meter_provider=meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were given to the bus."
        )
        self._sending = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Time until a publish or a request is answered."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were handled."
        )
        self._handling = meter.create_histogram(
            "messaging.process.duration", "s", "Time in which a message was handled."
        )

    def trace(self, bus: Any) -> None:
        """Trace what a bus publishes and requests: its methods for that get a span around them, or put the
        current trace into their messages."""
        methods = vars(bus)
        for verb in ("publish", "request"):
            if (method := getattr(bus, verb, None)) is not None:
                methods[verb] = self._in_a_span(verb, method)
        make_publisher, make_transaction = bus.publisher, bus.transaction

        def publisher(topic: str | None) -> Any:
            made = make_publisher(topic)
            vars(made)["send"] = self.carrying(topic or CONTENT_TOPIC, made.send)
            return made

        def transaction(**options: Any) -> Any:
            made = make_transaction(**options)
            vars(made)["publish"] = self._carrying_anywhere(made.publish)
            return made

        methods["publisher"], methods["transaction"] = publisher, transaction

    # -- producers ---------------------------------------------------------------------------------

    @contextmanager
    def sending(self, topic: str, headers: Mapping[str, HeaderValue] | None, verb: str) -> Iterator[Sending]:
        """A span around a publish or a request. Its block sends the ``headers`` of what it yields."""
        attributes = _attributes(topic, verb, "send")
        began = time.perf_counter()
        failed: dict[str, str] = {}
        try:
            with self._tracer.start_as_current_span(
                f"{verb} {topic}", _context(headers), SpanKind.PRODUCER, attributes
            ) as span:
                carrier: dict[str, str] = {}
                _W3C.inject(carrier)
                yield Sending(span, {**(headers or {}), **carrier})
        except BaseException as error:
            failed = {"error.type": _kind_of(error)}
            raise
        finally:
            self._sent.add(1, {**attributes, **failed})
            self._sending.record(time.perf_counter() - began, {**attributes, **failed})

    def _in_a_span(self, verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        async def traced(topic: str | None, payload: Any, **options: Any) -> Any:
            topic = topic or CONTENT_TOPIC
            with self.sending(topic, options.get("headers"), verb) as sending:
                answer = await method(topic, payload, **{**options, "headers": sending.headers})
                if verb == "publish":
                    sending.stored(answer)
                return answer

        return traced

    def _carrying_anywhere(self, publish: Callable[..., Any]) -> Callable[..., Any]:
        """``Transaction.publish`` with the current trace in each message."""

        @wraps(publish)
        async def carrying(topic: str | None, payload: Any, **options: Any) -> None:
            topic = topic or CONTENT_TOPIC
            await publish(topic, payload, **self.carry(topic, options))

        return carrying

    def carry(self, topic: str, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a message that goes with many others: it carries the trace that is current, and has
        no span of its own."""
        self._sent.add(1, _attributes(topic, "publish", "send"))
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        if not carrier:
            return options
        return {**options, "headers": {**carrier, **(options.get("headers") or {})}}

    def carrying(self, topic: str, send: Callable[..., Any]) -> Callable[..., Any]:
        """``Publisher.send`` with the current trace in each message."""

        def carrying(payload: Any, **options: Any) -> Any:
            return send(payload, **self.carry(topic, options))

        return carrying

    # -- consumers ---------------------------------------------------------------------------------

    @contextmanager
    def handling(self, message: Message | Any, *, service: str = "") -> Iterator[None]:
        """A span around the handling of a message, which a Service opens by itself; a program that iterates
        over a subscription does so here."""
        batch: DeliveredBatch = message.batch
        group = getattr(batch.subscription, "group", None)
        attributes = _attributes(message.topic, "process", "process")
        if group:
            attributes["messaging.consumer.group.name"] = group
        began = time.perf_counter()
        failed: dict[str, str] = {}
        headers = message.headers
        origin = _extract(headers)
        producer = trace.get_current_span(origin).get_span_context()
        of_span: dict[str, Any] = {
            **attributes,
            "messaging.message.id": message.id,
            "messaging.landbridge.offset": message.offset,
            "messaging.landbridge.attempt": message.attempt,
        }
        if service:
            of_span["messaging.client.id"] = service
        try:
            with self._tracer.start_as_current_span(
                f"process {message.topic}",
                origin if producer.is_valid else None,
                SpanKind.CONSUMER,
                of_span,
                [Link(producer)] if producer.is_valid else None,
            ):
                yield
        except BaseException as error:
            failed = {"error.type": _kind_of(error)}
            raise
        finally:
            self._consumed.add(1, {**attributes, **failed})
            self._handling.record(time.perf_counter() - began, {**attributes, **failed})


class Sending:
    """A message that is being sent."""

    def __init__(self, span: trace.Span, headers: dict[str, HeaderValue]) -> None:
        self._span = span
        #: What the message has to carry.
        self.headers = headers

    def stored(self, receipt: StoredMessage) -> None:
        """Note in the span which message it was."""
        self._span.set_attribute("messaging.message.id", receipt.id)
        self._span.set_attribute("messaging.landbridge.offset", receipt.offset)
        self._span.set_status(StatusCode.OK)


def _attributes(topic: str, verb: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": verb,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


def _kind_of(error: BaseException) -> str:
    return getattr(error, "code", None) or type(error).__qualname__


def _extract(headers: Mapping[str, HeaderValue] | None) -> Context:
    """The trace that headers speak of. What is not of the W3C's form is no trace."""
    found = {name: headers[name] for name in TRACE_HEADERS if name in headers} if headers else {}
    carrier = {name: value for name, value in found.items() if isinstance(value, str)}
    return _W3C.extract(carrier, Context())


def _context(headers: Mapping[str, HeaderValue] | None) -> Context | None:
    """What a producer's span belongs to: the current span, or what the given headers say (as a gateway passes
    them on)."""
    if trace.get_current_span().get_span_context().is_valid:
        return None
    found = _extract(headers)
    return found if trace.get_current_span(found).get_span_context().is_valid else None
