"""Telemetry: traces from producer to consumer, and the metrics of both, by OpenTelemetry's own exporters."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import landbridge
import landbridge.sync
from landbridge import Bus, Message, Retry, Service, Telemetry
from landbridge.broker.server import Terminal
from landbridge.errors import TooLarge
from landbridge.testing import attach
from tests.waiting import LIMIT, eventually


class Collected:
    """What a program's providers have got."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.telemetry = Telemetry(
            tracer_provider=self.tracers, meter_provider=MeterProvider(metric_readers=[self._reader])
        )

    def spans(self, name: str) -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def total(self, name: str, **wanted: str) -> int:
        return sum(
            point.value
            for point in self.points(name)
            if all(point.attributes.get(key.replace("_", ".")) == value for key, value in wanted.items())
        )


def header(context: Any) -> str:
    """The W3C header of a span."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@pytest.fixture
def collected() -> Collected:
    return Collected()


@asynccontextmanager
async def traced(terminal: Terminal, collected: Collected) -> AsyncIterator[Bus]:
    token = terminal.issue_token("test", ["admin"], 3600)
    async with landbridge.connect(terminal.url, token=token, telemetry=collected.telemetry) as bus:
        yield bus


async def test_a_trace_goes_on_through_handlers(terminal: Terminal, collected: Collected) -> None:
    service = Service("billing")
    seen: list[str] = []

    @service.on("orders")
    async def bill(order: dict[str, int], bus: Bus) -> None:
        await bus.publish("invoices", order)

    @service.on("invoices")
    def send(order: dict[str, int], message: Message) -> None:  # in a thread
        assert trace.get_current_span().get_span_context().is_valid
        seen.append(str(message.headers["traceparent"]))

    async with traced(terminal, collected) as bus, service.running(bus):
        with collected.tracers.get_tracer("test").start_as_current_span("checkout") as root:
            receipt = await bus.publish("orders", {"id": 1}, key="k", headers={"shop": "7"})
        await eventually(lambda: len(collected.spans("process invoices")) == 1)
    chain = [
        collected.spans(name)[0]
        for name in ("checkout", "publish orders", "process orders", "publish invoices", "process invoices")
    ]
    assert {span.context.trace_id for span in chain} == {root.get_span_context().trace_id}
    for before, after in pairwise(chain):
        assert after.parent.span_id == before.context.span_id
    _, published, processed, again, _ = chain
    assert (published.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert [link.context.span_id for link in processed.links] == [published.context.span_id]
    assert published.attributes["messaging.message.id"] == receipt.id
    assert processed.attributes["messaging.message.id"] == receipt.id
    assert processed.attributes["messaging.consumer.group.name"] == "billing"
    assert seen == [header(again.context)]


async def test_metrics_of_what_is_published_handled_and_failed(
    terminal: Terminal, collected: Collected, crashes: list[Any]
) -> None:
    service = Service("billing", retry=Retry(attempts=2, first=0.0))

    @service.on("orders")
    async def bill(payload: bytes) -> None:
        if payload == b"bad":
            raise ValueError("bad")

    async with traced(terminal, collected) as bus:
        for payload in (b"good", b"good", b"bad"):
            await bus.publish("orders", payload)
        with pytest.raises(TooLarge):
            await bus.publish("orders", bytes(bus.max_payload + 1))
        async with service.running(bus):
            await eventually(lambda: len(collected.spans("process orders")) == 4)
    sent, consumed = "messaging.client.sent.messages", "messaging.client.consumed.messages"
    assert collected.total(sent) == 4
    assert collected.total(sent, error_type="too_large") == 1
    assert collected.total(consumed) == 4
    assert collected.total(consumed, error_type="ValueError") == 2
    durations = collected.points("messaging.process.duration")
    assert sum(point.count for point in durations) == 4
    assert all(point.sum >= 0 for point in durations)
    assert sum(point.count for point in collected.points("messaging.client.operation.duration")) == 4
    failed = [span for span in collected.spans("process orders") if not span.status.is_ok]
    assert len(failed) == 2
    assert failed[0].status.status_code is StatusCode.ERROR
    assert failed[0].events[0].name == "exception"
    crashes.clear()


async def test_publishers_and_transactions_carry_the_current_trace(
    terminal: Terminal, collected: Collected
) -> None:
    async with traced(terminal, collected) as bus, bus.subscribe("orders", group="g") as subscription:
        with collected.tracers.get_tracer("test").start_as_current_span("import") as span:
            async with bus.publisher("orders") as publisher:
                await publisher.send(b"1", key="a")
                await publisher.send(b"2", headers={"traceparent": "mine"})
            async with bus.transaction() as transaction:
                await transaction.publish("orders", b"3")
        await bus.publish("orders", b"4")
        wanted = header(span.get_span_context())
        found: list[Any] = []
        for _ in range(4):
            message = await subscription.poll(LIMIT)
            assert message is not None
            found.append(message.headers.get("traceparent"))
            await message.ack()
        assert found[:3] == [wanted, "mine", wanted]
        assert found[3] not in (None, wanted)
        assert collected.total("messaging.client.sent.messages") == 4


async def test_a_message_of_an_iteration_is_handled_in_a_block(
    terminal: Terminal, collected: Collected
) -> None:
    async with traced(terminal, collected) as bus, bus.subscribe("orders", group="g") as subscription:
        await bus.publish("orders", b"1")
        message = await subscription.poll(LIMIT)
        assert message is not None
        with collected.telemetry.handling(message):
            await bus.publish("next", b"2")
    (process,) = collected.spans("process orders")
    (then,) = collected.spans("publish next")
    assert then.parent.span_id == process.context.span_id


@pytest.mark.parametrize(
    "headers",
    [{"traceparent": "nonsense"}, {"traceparent": 7}, {"traceparent": b"\xff"}, {"traceparent": "00-0-0-0"}],
)
async def test_headers_of_strangers_do_no_harm(
    terminal: Terminal, collected: Collected, headers: dict[str, Any]
) -> None:
    service = Service("billing")

    @service.on("orders")
    async def bill(payload: bytes) -> None: ...

    async with attach(terminal) as plain, traced(terminal, collected) as bus:
        await plain.publish("orders", b"x", headers=headers)
        async with service.running(bus):
            await eventually(lambda: collected.spans("process orders"))
    (span,) = collected.spans("process orders")
    assert span.parent is None
    assert not span.links


async def test_a_gateway_passes_a_trace_on(terminal: Terminal, collected: Collected) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with traced(terminal, collected) as bus:
        await bus.publish("orders", b"x", headers={"traceparent": given, "n": 1})
    (span,) = collected.spans("publish orders")
    assert f"{span.context.trace_id:032x}" == given.split("-")[1]
    assert f"{span.parent.span_id:016x}" == given.split("-")[2]


async def test_the_bus_without_async(terminal: Terminal, collected: Collected) -> None:
    token = terminal.issue_token("test", ["admin"], 3600)

    def work() -> list[Any]:
        tracer = collected.tracers.get_tracer("test")
        with landbridge.sync.connect(terminal.url, token=token, telemetry=collected.telemetry) as bus:
            with tracer.start_as_current_span("import") as span:
                bus.publish("orders", b"1")
                with bus.publisher("orders") as publisher:
                    publisher.send(b"2")
                with bus.transaction() as transaction:
                    transaction.publish("orders", b"3")
            with bus.subscribe("orders", group="g") as subscription:
                found = []
                for _ in range(3):
                    message = subscription.poll(LIMIT)
                    assert message is not None
                    with collected.telemetry.handling(message):
                        found.append(str(message.headers["traceparent"]).split("-")[1])
                    message.ack()
            return [*found, f"{span.get_span_context().trace_id:032x}"]

    assert len(set(await asyncio.to_thread(work))) == 1
    assert len(collected.spans("process orders")) == 3


async def test_requests_are_traced(
    terminal: Terminal, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    async def request(self: Any, topic: str, payload: Any, **options: Any) -> Any:
        sent.append(options["headers"])
        return payload

    monkeypatch.setattr(Bus, "request", request, raising=False)
    async with traced(terminal, collected) as bus:
        await bus.request("prices", 1, headers={"a": "b"})
    (span,) = collected.spans("request prices")
    assert sent == [{"a": "b", "traceparent": header(span.context)}]


def test_nothing_of_it_is_loaded_unless_it_is_asked_for() -> None:
    code = (
        "import sys, landbridge, landbridge.sync\n"
        "landbridge.connect('lb://127.0.0.1:1', token='x')\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n    landbridge.Telemetry\n"
        "except landbridge.errors.BadRequest as error:\n    print(error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "pip install 'landbridge[otel]'\n"
