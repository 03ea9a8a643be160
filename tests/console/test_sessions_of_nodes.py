"""Sessions of the console where a terminal has several nodes, and whichever serves a request."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from landbridge.client.bus import Bus
from landbridge.console import kept
from landbridge.console.http import MOST_COOKIES, cookie_name
from landbridge.console.kept import ConsoleSecret
from landbridge.node.assembly import dial_to
from landbridge.node.console import ConsolePart
from landbridge.node.http_port import HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.site import Site
from landbridge.stores.journal.store import JournalStore
from landbridge.testing import attach, run_terminal
from landbridge.testing.cluster import Nodes, run_nodes
from tests.servers import name_of, shared_valkey
from tests.system.nodes import fleet_of
from tests.waiting import LIMIT

#: What the browser knows: behind it, a load balancer gives each request to a node.
HOST = "bus.example"


@dataclass
class Door:
    """The console of one node."""

    part: ConsolePart
    url: str


@asynccontextmanager
async def console(terminal: Any) -> AsyncIterator[Door]:
    whole = dial_to(terminal, is_part=True, is_whole=True)
    part = ConsolePart(terminal, dial_to(terminal), whole)
    site = Site(dial_to(terminal), console=part.app)
    port = HttpPort(site, Endpoint("127.0.0.1"), 0, None, most=64, hint="")
    terminal.http_url = port.url
    async with part.sampling(dial_to(terminal, is_part=True)):
        try:
            yield Door(part, port.url)
        finally:
            site.stop()
            await port.close()
            await site.close()


class Balanced:
    """A browser whose requests go to the nodes that a test names."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http, self.cookie = http, ""

    async def get(self, door: Any, path: str) -> httpx.Response:
        headers = {"host": HOST, "cookie": self.cookie}
        return await self.http.get(door.url + path, headers=headers)

    async def post(self, door: Any, path: str, **fields: str) -> httpx.Response:
        headers = {"host": HOST, "origin": f"http://{HOST}", "cookie": self.cookie, "console-module": "live"}
        answer = await self.http.post(door.url + path, data=fields, headers=headers)
        self.http.cookies.clear()
        return answer

    async def sign_in(self, door: Any, path: str) -> httpx.Response:
        answer = await self.post(door, "/console/sign-in", code=path.partition("code=")[2])
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    async def csrf(self, door: Door) -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', (await self.get(door, "/")).text)
        assert found is not None
        return found[1]


@pytest.fixture
async def browser() -> AsyncIterator[Balanced]:
    async with httpx.AsyncClient(timeout=LIMIT) as http:
        yield Balanced(http)


@pytest.fixture
async def nodes(crashes: list[Any]) -> AsyncIterator[Nodes]:
    async with run_nodes(("a", "b")) as running:
        yield running


@pytest.fixture
async def bus(nodes: Nodes) -> AsyncIterator[Bus]:
    async with attach(nodes["b"], patience=20) as connected:
        yield connected


@pytest.fixture
async def doors(nodes: Nodes, bus: Bus) -> AsyncIterator[tuple[Door, Door]]:
    async with AsyncExitStack() as stack:
        a, b = [await stack.enter_async_context(console(nodes[name])) for name in "ab"]
        yield a, b


async def token_of(bus: Bus) -> str:
    await bus.services.register("visitor", scopes=["observe", "operate"], credential=False)
    return (await bus.tokens.create("visitor", ["observe", "operate"])).token


async def test_every_node_serves_a_session_and_takes_its_forms(
    doors: tuple[Door, Door], bus: Bus, browser: Balanced
) -> None:
    a, b = doors
    # The link is made at one node, and used at the other one.
    path = await a.part.sessions.link(await token_of(bus))
    assert "as <strong>visitor</strong>" in (await browser.get(b, path)).text
    assert (await browser.sign_in(b, path)).status_code == 303
    for door in (a, b, a):
        assert (await browser.get(door, "/")).status_code == 200
    csrf = await browser.csrf(a)
    assert csrf == await browser.csrf(b)
    await bus.topics.create("orders")
    form = {"csrf": csrf, "name": "orders", "confirmed": "yes"}
    paused = await browser.post(b, "/console/actions/topic.pause", **form)
    assert paused.json()["outcome"] == "done"
    assert "<strong>Paused" in (await browser.get(a, "/console/topics/orders")).text


async def test_a_link_works_once_whichever_nodes_are_asked(
    doors: tuple[Door, Door], bus: Bus, browser: Balanced
) -> None:
    path = await doors[0].part.sessions.link(await token_of(bus))
    code = path.partition("code=")[2]
    tries = [door.part.sessions.sign_in(code) for door in doors for _ in range(3)]
    found = await asyncio.gather(*tries, return_exceptions=True)
    assert len([each for each in found if not isinstance(each, BaseException)]) == 1
    assert {type(each).__name__ for each in found if isinstance(each, BaseException)} == {"Unauthenticated"}


async def test_who_signs_out_at_one_node_is_signed_out_at_the_other(
    doors: tuple[Door, Door], bus: Bus, browser: Balanced
) -> None:
    a, b = doors
    await browser.sign_in(a, await a.part.sessions.link(await token_of(bus)))
    assert (await browser.get(b, "/")).status_code == 200
    left = await browser.post(a, "/console/sign-out", csrf=await browser.csrf(a))
    assert "Max-Age=0" in left.headers["set-cookie"]
    assert (await browser.get(a, "/")).status_code == 401
    await b.part.sessions.look()
    assert (await browser.get(b, "/")).status_code == 401


async def test_a_revoked_token_ends_the_session_at_every_node(
    doors: tuple[Door, Door], bus: Bus, browser: Balanced
) -> None:
    a, b = doors
    await browser.sign_in(a, await a.part.sessions.link(await token_of(bus)))
    await bus.tokens.revoke(subject="visitor")
    # The second node has not taken the session up yet.
    for door in (b, a):
        async with asyncio.timeout(LIMIT):
            while (await browser.get(door, "/")).status_code != 401:
                pass
    assert not await bus.documents.list(kept.SESSIONS)


async def test_a_request_of_a_stranger_asks_the_store_for_a_few_sessions_at_most(
    doors: tuple[Door, Door], browser: Balanced, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    read = kept.KeptDocuments.read

    async def counted(documents: Any, collection: str, key: str, kind: Any) -> Any:
        asked.append(key)
        return await read(documents, collection, key, kind)

    monkeypatch.setattr(kept.KeptDocuments, "read", counted)
    name = cookie_name({"headers": [(b"host", HOST.encode())], "scheme": "http"})
    browser.cookie = "; ".join(f"{name}={ConsoleSecret.new().text}" for _ in range(40))
    assert (await browser.get(doors[0], "/")).status_code == 401
    assert len(asked) == MOST_COOKIES


async def test_a_session_outlives_a_restart(browser: Balanced, tmp_path: Path, crashes: list[Any]) -> None:
    async with run_terminal(JournalStore(tmp_path / "bus")) as terminal, console(terminal) as door:
        async with attach(terminal) as bus:
            await browser.sign_in(door, await door.part.sessions.link(await token_of(bus)))
        csrf = await browser.csrf(door)
    async with run_terminal(JournalStore(tmp_path / "bus")) as terminal, console(terminal) as door:
        assert (await browser.get(door, "/")).status_code == 200
        assert await browser.csrf(door) == csrf


async def test_what_is_stored_is_worth_nothing_without_the_cookie(
    doors: tuple[Door, Door], bus: Bus, browser: Balanced
) -> None:
    a, _ = doors
    token = await token_of(bus)
    path = await a.part.sessions.link(token)
    code = path.partition("code=")[2]
    await a.part.sessions.link(token)
    await browser.sign_in(a, path)
    cookie = browser.cookie.partition("=")[2]
    stored = [row for name in (kept.SESSIONS, kept.LINKS) for row in await bus.documents.list(name)]
    assert len(stored) == 2
    for row in stored:
        text = json.dumps([row.key, row.value])
        raw = base64.b64decode(row.value["sealed"])
        assert not any(secret in text or secret.encode() in raw for secret in (token, code, cookie))
        assert ConsoleSecret.new().open(row.value["sealed"]) is None
    [session] = await bus.documents.list(kept.SESSIONS)
    assert ConsoleSecret(cookie).open(session.value["sealed"]) == token
    # Somebody who may write documents changes one: the session ends, and is nobody else's.
    value = {**session.value, "sealed": base64.b64encode(b"x" * 64).decode()}
    await bus.documents.update(kept.SESSIONS, session.key, value, version=session.version)
    for each in list(a.part.sessions._sessions.values()):
        await a.part.sessions._let_go(each)
    assert (await browser.get(a, "/")).status_code == 401
    assert not await bus.documents.list(kept.SESSIONS)


@pytest.mark.slow
async def test_a_session_goes_on_when_the_node_that_let_it_in_is_killed(
    browser: Balanced, tmp_path: Path
) -> None:
    """Real processes on a real server."""
    url = shared_valkey().url(name_of(tmp_path), units=4)
    async with fleet_of(url, tmp_path, 2, http=True) as fleet:
        first, second = (SimpleNamespace(url=f"http://127.0.0.1:{node.http_port}") for node in fleet.nodes)
        bearer = {"authorization": f"Bearer {fleet.token}"}
        made = await browser.http.post(f"{first.url}/console/links", headers=bearer)
        await browser.sign_in(first, made.json()["path"])
        assert (await browser.get(first, "/")).status_code == 200
        await fleet.nodes[0].kill()
        async with asyncio.timeout(LIMIT):
            # Until the second node has what the first one had, the answer is to try again, not to sign in.
            while (answer := await browser.get(second, "/console/topics")).status_code != 200:
                assert answer.status_code in (429, 503), answer.text
        await fleet.nodes[0].start()
        assert (await browser.get(first, "/console/topics")).status_code == 200
