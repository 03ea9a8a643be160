"""A Service tells the terminal of itself, and runs whatever comes of that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import landbridge
from landbridge.broker.server import Terminal
from landbridge.client import registration
from landbridge.client.registration import Registration, names_of
from landbridge.client.service import Service
from landbridge.errors import BadName, BadRequest, UnknownService
from landbridge.testing import attach
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "HEARTBEAT_EVERY", 0.02)


def billing(**options: Any) -> Service:
    service = Service("billing", retry=landbridge.Retry(attempts=1), **options)

    @service.on("orders")
    async def bill(order: dict[str, int]) -> None:
        """Writes a bill.

        And more."""
        if order["id"] == 13:
            raise ValueError("an unlucky number")

    @service.on("returns")
    async def pay_back(order: dict[str, int]) -> None:
        pass

    return service


async def test_with_an_admin_s_token_a_service_registers_itself(
    terminal: Terminal, crashes: list[Any]
) -> None:
    options = {"version": "1.4.0", "description": "bills", "owner": "sales", "metadata": {"team": "x"}}
    service = billing(**options)
    async with attach(terminal, subject="root") as bus:
        with pytest.raises(UnknownService):
            await bus.services.show("billing")
        async with service.running(bus):
            for id in (1, 13, 2):
                await bus.publish("orders", {"id": id})
            await bus.publish("orders", b"not JSON")
            await eventually(lambda: service.registration.count(service.routes[0]).requests == 4)
            told = terminal.heartbeats.endpoints
            await eventually(lambda: bool(told("billing")) and told("billing")[0].requests == 4)
            stats = await bus.services.stats("billing")
            bill, pay_back = stats.endpoints
            assert (bill.name, bill.errors, pay_back.name, pay_back.requests) == ("bill", 2, "pay_back", 0)
            assert bill.processing > 0
            assert bill.p50 is not None
            assert pay_back.p99 is None
            assert stats.health == "ok"
            service.registration.health, service.registration.detail = "failing", "no printer"
            await eventually(lambda: terminal.heartbeats.health("billing") == "failing")
            shown = (await bus.services.show("billing")).options
            assert (shown.version, shown.description, shown.owner) == ("1.4.0", "bills", "sales")
            assert (shown.metadata, shown.scopes) == ({"team": "x"}, ())
            assert [(each.name, each.topic, each.description) for each in shown.endpoints] == [
                ("bill", "orders", "Writes a bill."), ("pay_back", "returns", ""),
            ]  # fmt: skip
            assert shown.subscribes == ("orders", "returns")
        assert not (await bus.services.show("billing")).credentials
    crashes.clear()


async def test_with_its_own_token_a_service_describes_itself(terminal: Terminal) -> None:
    async with attach(terminal, subject="root") as root:
        made = await root.services.register(
            "billing", owner="sales", scopes=["subscribe:orders", "subscribe:returns"]
        )
        assert made.credential
        service = billing(version="2.0.0", owner="somebody else")
        async with attach(terminal, token=made.credential) as bus, service.running(bus):
            await eventually(lambda: terminal.heartbeats.health("billing") == "ok")
            shown = (await root.services.show("billing")).options
            assert (shown.version, shown.owner) == ("2.0.0", "sales")
            assert len(shown.endpoints) == 2
            assert shown.scopes == ("subscribe:orders", "subscribe:returns")


async def test_a_service_whose_token_is_another_s_runs_all_the_same(terminal: Terminal) -> None:
    service = billing()
    scopes = ["subscribe:orders", "subscribe:returns", "publish:orders"]
    async with attach(terminal, subject="somebody", scopes=scopes) as bus, service.running(bus):
        await bus.publish("orders", {"id": 1})
        await eventually(lambda: service.registration.count(service.routes[0]).requests == 1)
    assert "billing" not in terminal.services.names()


async def test_a_service_runs_on_where_its_heartbeats_fail(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0

    def refuse(said: Any) -> None:
        nonlocal refused
        refused += 1
        raise BadRequest("not now")

    monkeypatch.setattr(terminal.heartbeats, "beat", refuse)
    service = billing()
    async with attach(terminal, subject="root") as bus, service.running(bus):
        await eventually(lambda: refused > 2)
        await bus.publish("orders", {"id": 1})
        await eventually(lambda: service.registration.count(service.routes[0]).requests == 1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"version": "new"}, BadRequest),
        ({"owner": "x" * 2001}, BadRequest),
        ({"metadata": {"a": 2}}, BadRequest),
    ],
)
def test_a_wrong_description_is_told_when_the_service_is_made(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Service("billing", **options)
    with pytest.raises(BadName):
        Service("a b")


def test_every_endpoint_has_a_name_of_its_own() -> None:
    class Handling:
        def __init__(self, name: str) -> None:
            async def handler() -> None: ...

            handler.__name__ = name
            self.handler, self.topics = handler, ("t",)

    routes = [Handling(name) for name in ("a", "a", "<lambda>", "é", "a", "", "x" * 300)]
    assert names_of(routes) == ["a", "a-2", "_lambda_", "_", "a-3", "handler", "x" * 100]


async def test_a_handler_that_is_cancelled_counts(terminal: Terminal) -> None:
    told = Registration("s", version="", description="", owner="", metadata={})
    task = asyncio.ensure_future(told.timed("route", lambda: asyncio.sleep(60)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert told.count("route").requests == 1
