"""The errors of all services in one topic, and no exception of a handler that ends a service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge import Service
from landbridge.broker.server import Terminal
from landbridge.core import faults
from landbridge.core.faults import BURST, PER_SECOND, Allowance
from landbridge.core.time import SECOND
from landbridge.errors import BadName, BadRequest, Forbidden, catalogue
from landbridge.testing import FakeClock, attach
from tests.waiting import Reader, eventually


class Odd:
    @classmethod
    def model_validate(cls, value: Any) -> Odd:
        raise ZeroDivisionError("in a validator")


async def reports(bus: Any, count: int) -> list[dict[str, Any]]:
    async with Reader(bus.subscribe(faults.TOPIC, group="check", start="earliest")) as reader:
        found = []
        for message in await reader.take(count):
            found.append({**message.json(), "key": message.key, "headers": message.headers})
            await message.ack()
        return found


async def test_a_failed_handler_reports_by_itself(terminal: Terminal, crashes: list[Any]) -> None:
    service = Service("billing")
    done: list[Any] = []

    @service.on("orders", group="billing", max_attempts=1)
    async def bill(value: Any) -> None:
        if value == "fail":
            raise LookupError("no such customer")
        done.append(value)

    async with attach(terminal) as admin, attach(terminal, subject="billing") as bus, service.running(bus):
        trace = "0af7651916cd43dd8448eb211c80319c"
        headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        receipt = await admin.publish("orders", '"fail"', headers=headers)
        await admin.publish("orders", b"secret, and no JSON")
        await admin.publish("orders", '"fine"')
        first, second = await reports(admin, 2)
        await eventually(lambda: done == ["fine"])
    assert first.items() >= {
        "service": "billing", "code": "failed", "status": 500, "text": "LookupError: no such customer",
        "endpoint": "bill", "topic": "orders", "offset": receipt.offset, "id": receipt.id, "trace_id": trace,
        "key": "billing",
    }.items()  # fmt: skip
    assert first["headers"] == {"service": "billing", "code": "failed", "status": 500}
    assert (second["code"], second["offset"]) == ("bad_payload", receipt.offset + 1)
    assert "secret" not in str(second)
    assert len(crashes) == 1
    crashes.clear()


@pytest.mark.parametrize(
    "raised", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
async def test_nothing_that_a_handler_raises_ends_its_service(
    terminal: Terminal, crashes: list[Any], raised: BaseException
) -> None:
    service = Service("fragile")
    seen: list[Any] = []

    @service.on("orders", max_attempts=1)
    async def handle(value: Any) -> None:
        seen.append(value)
        if value == 0:
            raise raised

    async with attach(terminal) as bus, service.running(bus):
        for value in range(3):
            await bus.publish("orders", value)
        await eventually(lambda: seen == [0, 1, 2])
        cursor = terminal.broker.table.group("orders", "fragile").delivery.cursor
        await eventually(lambda: cursor.floor == 3)
    assert len(crashes) == 1
    crashes.clear()


async def test_a_type_that_fails_in_its_own_way_ends_nothing(terminal: Terminal, crashes: list[Any]) -> None:
    service = Service("fragile")

    @service.on("orders", max_attempts=1)
    async def handle(value: Odd) -> None:
        raise AssertionError("never called")

    async with attach(terminal) as bus, service.running(bus):
        await bus.publish("orders", 1)
        (found,) = await reports(bus, 1)
    assert found["text"] == "ZeroDivisionError: in a validator"
    crashes.clear()


async def test_a_report_is_written_in_the_callers_name(terminal: Terminal) -> None:
    async with attach(terminal) as admin, attach(terminal, subject="shop", scopes=["publish:x"]) as shop:
        answer = await shop.errors.report("out_of_stock", "none left", status=409, endpoint="sell", offset=7)
        assert answer.stored
        (found,) = await reports(admin, 1)
        assert (found["service"], found["key"], found["code"], found["offset"]) == (
            "shop",
            "shop",
            "out_of_stock",
            7,
        )
        assert found["time"] > 0
        for wrong in (
            {"code": "a b"}, {"code": "x" * 201}, {"code": "x", "status": 200}, {"code": "x", "topic": "a b"},
            {"code": "x", "dropped": -1}, {"code": "x", "service": "other"}, {"code": "x", "payload": "y"},
            {"code": "x", "version": "v" * 201},
        ):  # fmt: skip
            with pytest.raises((BadRequest, BadName)):
                await shop.call("error.report", **wrong)
        with pytest.raises(Forbidden):
            await shop.publish(faults.TOPIC, b"{}")
        with pytest.raises(Forbidden):
            await shop.subscribe(faults.TOPIC).open()


async def test_too_many_reports_are_counted(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as admin, attach(timed, subject="noisy") as noisy:
        stored = [(await noisy.errors.report("failed")).stored for _ in range(BURST + 5)]
        assert stored == [True] * BURST + [False] * 5
        assert (await admin.errors.report("failed")).stored  # another service has an allowance of its own
        clock.advance(1.0)
        assert (await noisy.errors.report("failed", dropped=2)).stored
        found = await reports(admin, BURST + 2)
    assert found[-1]["dropped"] == 7
    assert timed.broker.totals.reports_dropped == 5


def test_an_allowance_fills_again_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    allowance = Allowance()
    assert [allowance.take("a", 0) for _ in range(BURST)] == [0] * BURST
    assert allowance.take("a", 0) is None
    assert allowance.take("a", int(SECOND / PER_SECOND)) == 1
    assert allowance.take("a", -SECOND) is None  # a clock that was set back gives nothing
    monkeypatch.setattr(faults, "MOST_SERVICES", 2)
    for name in "bcd":
        allowance.take(name, 0)
    assert len(allowance._services) == 2


async def test_the_catalogue_has_every_error(terminal: Terminal) -> None:
    async with attach(terminal, scopes=["publish:x"]) as bus:
        rows = (await bus.errors.list()).errors
    assert {row.code: (row.http_status, row.exit_status, row.retriable) for row in rows} == {
        kind.code: (kind.http_status, kind.exit_status, kind.retriable) for kind in catalogue()
    }
    assert all(row.description for row in rows)
