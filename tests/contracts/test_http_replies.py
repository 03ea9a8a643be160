"""Replying by HTTP: a service in another language answers what it has pulled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from landbridge.errors import ServiceFailed
from tests.contracts.web import Web, web

ASK = "/v1/topics/prices/requests"


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Web]:
    async with web() as found:
        yield found


async def pulled(site: Web) -> str:
    [message] = await site.pull("prices", "quotes", wait=20)
    assert message["headers"]["lb-correlation"]
    return f"/v1/receipts/{message['receipt']}"


async def test_a_reply_by_receipt_answers_a_durable_request(site: Web) -> None:
    await site.bus.groups.create("prices", "quotes")
    asked = asyncio.ensure_future(
        site.http.post(ASK, json={"payload": {"product": "pen"}, "durable": True, "timeout": 30})
    )
    receipt = await pulled(site)
    replied = await site.http.post(f"{receipt}/reply", json={"price": 6})
    assert (replied.status_code, replied.content) == (204, b"")
    assert (await asked).json()["value"] == {"price": 6}
    again = await site.http.post(f"{receipt}/reply", json={"price": 7})
    assert (again.status_code, again.json()["code"]) == (409, "lease_lost")
    assert (await site.bus.groups.show("prices", "quotes")).lag == 0  # the reply has settled it


async def test_a_failure_by_receipt_is_the_callers(site: Web) -> None:
    await site.bus.groups.create("prices", "quotes")
    event = await site.bus.trigger("prices", {"product": "ink"})
    receipt = await pulled(site)
    replied = await site.http.post(f"{receipt}/reply?code=no_such_product&status=404", content="no ink")
    assert replied.status_code == 204
    outcome = await site.bus.outcome(event, wait=20)
    assert outcome.state == "failed"
    assert isinstance(outcome.error, ServiceFailed)
    assert (outcome.error.service_code, outcome.error.status, str(outcome.error)) == (
        "no_such_product",
        404,
        "no ink",
    )


async def test_what_is_no_reply_is_refused_and_settles_nothing(site: Web) -> None:
    await site.bus.publish("prices", {"n": 1})
    [message] = await site.pull("prices", "quotes", wait=20)
    path = f"/v1/receipts/{message['receipt']}"
    for query in ("", "?status=404", "?code=", "?code=x&status=200", "?cause=x"):
        refused = await site.http.post(f"{path}/reply{query}", json=1)
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_request"), query
    assert (await site.http.post(f"{path}/ack")).status_code == 204


async def test_json_that_curl_sends_without_a_type_stands_as_json(site: Web) -> None:
    curl = {"content-type": "application/x-www-form-urlencoded"}
    await site.http.post("/v1/topics/prices/messages", content=b'{"n": 1}', headers=curl)
    await site.http.post("/v1/topics/prices/messages", content=b"n=1", headers=curl)
    first, second = await site.pull("prices", "g", wait=20)
    assert (first["json"], second["text"]) == ({"n": 1}, "n=1")
