"""Requests to services by HTTP, with what the client prefers (RFC 7240)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from landbridge import Service, ServiceFailed
from landbridge.errors import NoResponder
from landbridge.gateways.http.asking import LONGEST_WAIT, Preference, preference
from tests.contracts.web import Web, web
from tests.waiting import LIMIT

PATH = "/v1/topics/prices.quote/requests"


class Quotes:
    """A service that replies when it may."""

    def __init__(self) -> None:
        self.may_reply = asyncio.Event()
        self.may_reply.set()
        self.service = Service("quotes")

        @self.service.on("prices.quote", reply=True)
        async def quote(order: dict[str, Any]) -> dict[str, Any]:
            await self.may_reply.wait()
            if "count" not in order:
                raise ServiceFailed("how many?", service_code="no_count", status=422)
            return {"price": 2 * order["count"]}


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Web]:
    async with web() as found:
        yield found


@pytest.fixture
async def quotes(site: Web) -> AsyncIterator[Quotes]:
    found = Quotes()
    async with found.service.running(site.bus), asyncio.timeout(LIMIT):
        while True:
            try:
                await site.bus.request("prices.quote", {"count": 1})
                break
            except NoResponder:
                await asyncio.sleep(0.01)
        yield found


async def test_a_client_waits_as_long_as_it_likes(site: Web, quotes: Quotes) -> None:
    plain = await site.http.post(PATH, json={"payload": {"count": 2}})
    assert (plain.status_code, plain.json()["value"]) == (200, {"price": 4})
    assert "preference-applied" not in plain.headers
    waited = await site.http.post(PATH, json={"payload": {"count": 2}}, headers={"prefer": "wait=20"})
    assert (waited.status_code, waited.json()) == (200, plain.json())
    assert waited.headers["preference-applied"] == "wait=20"
    quotes.may_reply.clear()
    late = await site.http.post(PATH, json={"payload": {"count": 2}}, headers={"prefer": "wait=1"})
    assert (late.status_code, late.json()["code"]) == (504, "timed_out")
    quotes.may_reply.set()


async def test_a_client_is_told_where_the_reply_will_be(site: Web, quotes: Quotes) -> None:
    quotes.may_reply.clear()
    asked = await site.http.post(
        PATH, json={"payload": {"count": 3}}, headers={"prefer": "respond-async, wait=1"}
    )
    assert (asked.status_code, asked.headers["preference-applied"]) == (202, "respond-async, wait=1")
    assert asked.headers["location"] == f"/v1/events/{asked.json()['id']}"
    assert (await site.http.get(asked.headers["location"])).json()["state"] == "pending"
    quotes.may_reply.set()
    outcome = await site.http.get(asked.headers["location"], params={"within": 30})
    assert (outcome.json()["state"], outcome.json()["value"]) == ("done", {"price": 6})
    soon = await site.http.post(
        PATH, json={"payload": {"count": 3}}, headers={"prefer": "respond-async, wait=30"}
    )
    assert (soon.status_code, soon.json()["value"]) == (200, {"price": 6})


@pytest.mark.parametrize("prefer", ["", "wait=20", "respond-async, wait=30"])
async def test_a_service_that_fails_says_so_itself(site: Web, quotes: Quotes, prefer: str) -> None:
    failed = await site.http.post(PATH, json={"payload": {}}, headers={"prefer": prefer})
    assert (failed.status_code, failed.json()["code"]) == (422, "no_count")
    assert (failed.json()["source"], failed.headers["content-type"]) == (
        "service",
        "application/problem+json",
    )


async def test_nobody_answers(site: Web) -> None:
    now = await site.http.post(PATH, json={"payload": 1}, headers={"prefer": "wait=20"})
    assert (now.status_code, now.json()["code"]) == (503, "no_responder")
    later = await site.http.post(
        PATH, json={"payload": 1, "timeout": 0.05}, headers={"prefer": "respond-async, wait=30"}
    )
    assert (later.status_code, later.json()["code"]) == (504, "timed_out")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], Preference()),
        (["wait=7"], Preference(7)),
        (["Respond-Async"], Preference(None, True)),
        (["respond-async; foo=bar", 'wait="10"'], Preference(10, True)),
        (["wait=5, wait=9"], Preference(5)),
        (["wait=100000"], Preference(LONGEST_WAIT)),
        (["wait=0"], Preference()),
        (["wait=-1, wait=x, wait, return=minimal, , =,\xe9"], Preference()),
    ],
)
def test_preferences_that_are_not_known_are_passed_over(lines: list[str], expected: Preference) -> None:
    assert preference([(b"prefer", line.encode("latin-1")) for line in lines]) == expected
