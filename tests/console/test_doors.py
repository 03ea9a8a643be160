"""Who is let in to the console, and what a stranger's page, form and text can't do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import structlog

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.console import sessions
from landbridge.core.time import SECOND
from landbridge.errors import Unauthenticated
from landbridge.node.assembly import dial_to
from landbridge.node.console import ConsolePart
from landbridge.node.http_port import HttpPort
from landbridge.node.listening import Endpoint
from landbridge.node.site import Site
from landbridge.testing import attach, run_terminal
from tests.waiting import LIMIT, eventually

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"


@dataclass
class Door:
    """A terminal with its console."""

    terminal: Terminal
    part: ConsolePart
    url: str
    bus: Bus

    def token(self, *scopes: str, subject: str = "shop", life: float = 3600.0) -> str:
        return self.terminal.issue_token(subject, list(scopes), life)

    @asynccontextmanager
    async def browser(self, *scopes: str, **options: Any) -> AsyncIterator[Browser]:
        """Somebody who has signed in with these scopes, or nobody yet."""
        async with httpx.AsyncClient(base_url=self.url, timeout=LIMIT) as http:
            found = Browser(http, self.url)
            if scopes:
                await found.sign_in(await self.part.sessions.link(self.token(*scopes, **options)))
            yield found


@dataclass
class Browser:
    http: httpx.AsyncClient
    url: str

    async def sign_in(self, path: str) -> httpx.Response:
        code = path.partition("code=")[2]
        return await self.http.post("/console/sign-in", data={"code": code}, headers={"origin": self.url})

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(path)

    async def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([^"]+)"', (await self.get("/")).text)
        assert found is not None
        return found[1]

    async def act(self, name: str, /, origin: str | None = "", **fields: Any) -> httpx.Response:
        """Send the form of an action, as the module does. ``origin``: "" for the console's own."""
        headers = {"console-module": "live"}
        if origin is not None:
            headers["origin"] = origin or self.url
        fields.setdefault("csrf", await self.csrf())
        return await self.http.post(f"/console/actions/{name}", data=fields, headers=headers)


@pytest.fixture
async def door(crashes: list[Any]) -> AsyncIterator[Door]:
    async with run_terminal() as terminal, attach(terminal) as bus:
        part = ConsolePart(terminal, dial_to(terminal))
        site = Site(dial_to(terminal), console=part.app)
        port = HttpPort(site, Endpoint("127.0.0.1"), 0, None, most=64, hint="")
        terminal.http_url = port.url
        async with part.sampling(dial_to(terminal, is_part=True)):
            try:
                yield Door(terminal, part, port.url, bus)
            finally:
                site.stop()
                await port.close()
                await site.close()


# -- signing in ------------------------------------------------------------------------------------


async def test_a_link_is_for_whoever_has_a_token_and_works_once(door: Door) -> None:
    async with door.browser() as browser:
        assert (await browser.http.post("/console/links")).status_code == 401
        bad = await browser.http.post("/console/links", headers={"authorization": "Bearer nonsense"})
        assert (bad.status_code, bad.json()["code"]) == (401, "unauthenticated")
        headers = {"authorization": f"Bearer {door.token('observe')}"}
        made = await browser.http.post("/console/links", headers=headers)
        assert made.status_code == 201
        path = made.json()["path"]
        # To look at the link, as previews of links do, doesn't use it up.
        for _ in range(2):
            seen = await browser.get(path)
            assert seen.status_code == 200
            assert "as <strong>shop</strong>" in seen.text
        signed_in = await browser.sign_in(path)
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/")
        cookie = signed_in.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert (await browser.get("/")).status_code == 200
    async with door.browser() as other:
        assert (await other.sign_in(path)).status_code == 401
        assert (await other.get("/")).status_code == 401


async def test_a_link_grows_old(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LINK_LIFE", -1.0)
    async with door.browser() as browser:
        assert (
            await browser.sign_in(await door.part.sessions.link(door.token("observe")))
        ).status_code == 401


async def test_a_sign_in_from_another_site_is_refused(door: Door) -> None:
    code = (await door.part.sessions.link(door.token("observe"))).partition("code=")[2]
    async with door.browser() as browser:
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
            answer = await browser.http.post(
                "/console/sign-in", data={"code": code}, headers={"origin": origin}
            )
            assert answer.status_code == 403
        assert (await browser.http.post("/console/sign-in", data={"code": code})).status_code == 403
        large = {"code": "x" * 10_000}
        answer = await browser.http.post("/console/sign-in", data=large, headers={"origin": door.url})
        assert answer.status_code == 413


async def test_a_stranger_sends_no_large_form(door: Door) -> None:
    async with door.browser() as browser:
        for size, status in ((1 << 10, 401), (20 << 10, 413)):
            form = {"code": "x" * size}
            answer = await browser.http.post("/console/sign-in", data=form, headers={"origin": door.url})
            assert answer.status_code == status


async def test_who_is_signed_in_is_asked_before_a_link_changes_that(door: Door) -> None:
    path = await door.part.sessions.link(door.token("observe", subject="mallory"))
    async with door.browser() as stranger, door.browser("observe") as browser:
        assert "data-at-once" in (await stranger.get(path)).text
        page = (await browser.get(path)).text
        assert "data-at-once" not in page
        assert "Sign in as mallory" in page


async def test_a_link_on_a_page_of_another_site_does_not_change_who_is_signed_in(door: Door) -> None:
    """Such a request comes without the cookie; only the form that the page then sends has it."""
    path = await door.part.sessions.link(door.token("observe", subject="mallory"))
    async with door.browser() as without_cookie, door.browser("observe", subject="ana") as browser:
        page = (await without_cookie.get(path)).text
        form = dict(re.findall(r'name="(code|at_once)" value="([^"]+)"', page))
        assert set(form) == {"code", "at_once"}
        headers = {"origin": door.url}
        asked = await browser.http.post("/console/sign-in", data=form, headers=headers)
        assert asked.status_code == 200
        assert "Sign in as mallory" in asked.text
        assert "data-at-once" not in asked.text
        assert [each.subject for each in door.part.sessions._sessions.values()] == ["ana"]
        del form["at_once"]
        agreed = await browser.http.post("/console/sign-in", data=form, headers=headers)
        assert agreed.status_code == 303
        assert [each.subject for each in door.part.sessions._sessions.values()] == ["mallory"]


async def test_links_and_sessions_are_bounded(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_LINKS_EACH", 2)
    monkeypatch.setattr(sessions, "MOST_EACH", 2)
    table, token = door.part.sessions, door.token("observe")
    codes = [(await table.link(token)).partition("code=")[2] for _ in range(3)]
    assert [await table.waiting_for(code) for code in codes] == [None, "shop", "shop"]
    for code in codes[1:]:
        await table.sign_in(code)
    cookie, first = await table.sign_in((await table.link(token)).partition("code=")[2])
    assert len(table) == 2
    assert await table.find([cookie]) is first
    with pytest.raises(Unauthenticated):
        await table.sign_in(codes[0])


async def test_a_session_ends_with_its_token_and_by_signing_out(door: Door) -> None:
    await door.bus.services.register("visitor", scopes=["observe"], credential=False)
    token = (await door.bus.tokens.create("visitor", ["observe"])).token
    async with door.browser() as browser:
        await browser.sign_in(await door.part.sessions.link(token))
        assert (await browser.get("/")).status_code == 200
        await door.bus.tokens.revoke(subject="visitor")
        [session] = door.part.sessions._sessions.values()
        await eventually(lambda: session.is_over)
        gone = await browser.get("/console/topics")
        assert gone.status_code == 401
        assert "landbridge console" in gone.text
    async with door.browser("observe") as browser:
        csrf = await browser.csrf()
        headers = {"origin": door.url}
        wrong = await browser.http.post("/console/sign-out", data={"csrf": "x"}, headers=headers)
        assert wrong.status_code == 400
        left = await browser.http.post("/console/sign-out", data={"csrf": csrf}, headers=headers)
        assert "Max-Age=0" in left.headers["set-cookie"]
        assert (await browser.get("/")).status_code == 401


async def test_a_session_ends_when_nobody_uses_it(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async with door.browser("observe") as browser:
        [session] = door.part.sessions._sessions.values()
        session.used_at -= int((sessions.IDLE + 1) * SECOND)
        assert session.is_over
        session.streams = 1  # a page is open
        assert not session.is_over
        session.streams = 0
        # Another node has written down its use since then.
        assert (await browser.get("/")).status_code == 200
        [session] = door.part.sessions._sessions.values()
        monkeypatch.setattr(sessions, "IDLE", 0.0)
        assert (await browser.get("/")).status_code == 401


# -- every answer ------------------------------------------------------------------------------------


async def test_every_answer_has_the_policy_and_is_not_kept(door: Door) -> None:
    async with door.browser("admin") as browser:
        for path in (
            "/",
            "/console/topics",
            "/console/nothing",
            "/console/static/console.css",
            "/console/x/y",
        ):
            answer = await browser.get(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["x-content-type-options"] == "nosniff"
            if "static" not in path:
                assert answer.headers["cache-control"] == "no-store"
        assert (await browser.get("/console/nothing")).status_code == 404
        assert (await browser.get("/console/static/..%2fapp.py")).status_code == 404
        page = (await browser.get("/")).text
        assert not re.search(r"<[^>]+\s(style|on\w+)=", page)
        assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"(?!/console/static/)", page)
        for name in re.findall(r'"(/console/static/[^"]+)"', page):
            assert (await browser.get(name)).status_code == 200


async def test_the_paths_of_the_api_are_as_before(door: Door) -> None:
    headers = {"authorization": f"Bearer {door.token('admin')}"}
    async with httpx.AsyncClient(base_url=door.url, headers=headers, timeout=LIMIT) as http:
        assert (await http.get("/v1/terminal")).json()["http"] == door.url
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/docs")).status_code == 200
        assert (await http.get("/nothing")).json()["code"] == "not_found"
        shown = (await http.get("/v1/token")).json()
        assert (shown["subject"], shown["scopes"]) == ("shop", ["admin"])


# -- forms -------------------------------------------------------------------------------------------


async def test_a_form_of_another_page_is_refused(door: Door) -> None:
    await door.bus.topics.create("orders")
    async with door.browser("admin") as browser, door.browser("admin") as other:
        for origin in (None, "null", "https://evil.example", door.url + "0"):
            assert (
                await browser.act("topic.pause", origin, name="orders", confirmed="yes")
            ).status_code == 403
        for csrf in ("", "x", await other.csrf()):
            answer = await browser.act("topic.pause", name="orders", confirmed="yes", csrf=csrf)
            assert (answer.status_code, answer.json()["outcome"]) == (400, "refused")
        json = await browser.http.post(
            "/console/actions/topic.pause", json={"name": "orders"}, headers={"origin": door.url}
        )
        assert json.status_code == 400
        assert (await door.bus.topics.show("orders")).pause is None
        answer = await browser.act("topic.pause", name="orders", confirmed="yes")
        assert answer.json()["outcome"] == "done"
    assert (await door.bus.topics.show("orders")).pause is not None


async def test_what_is_destructive_is_confirmed_first(door: Door) -> None:
    await door.bus.publish("orders", b"1")
    await door.bus.groups.create("orders", "g")
    async with door.browser("admin") as browser:
        asked = (await browser.act("topic.delete", name="orders", force="true")).json()
        assert asked["outcome"] == "confirm"
        assert "1 of the messages were not settled" in asked["html"]
        assert (await door.bus.topics.show("orders")).messages == 1
        done = (await browser.act("topic.delete", name="orders", force="true", confirmed="yes")).json()
        assert (done["outcome"], done["to"]) == ("done", "/console/topics")
    names = [topic.name for topic in await door.bus.topics.list()]
    assert "orders" not in names


async def test_the_terminal_refuses_what_the_scopes_do_not_allow(door: Door) -> None:
    await door.bus.topics.create("orders")
    async with door.browser("observe") as viewer:
        assert "<button" not in (await viewer.get("/console/topics/orders")).text.partition("<main")[2]
        for name, fields in (
            ("topic.delete", {"name": "orders"}),
            ("topic.pause", {"name": "orders"}),
            ("group.create", {"topic": "orders", "name": "g"}),
            ("message.publish", {"topic": "orders", "payload": "1", "type": "text/plain"}),
            ("letter.redrive", {"topic": "orders", "group": "g"}),
        ):
            answer = await viewer.act(name, **fields, confirmed="yes")
            assert (answer.status_code, "forbidden" in answer.json()["html"]) == (403, True), name
        assert (await viewer.get("/console/topics/orders/messages")).status_code == 403
        assert (await viewer.get("/console/new-topic")).status_code == 403
    async with door.browser("subscribe:bills") as stranger:
        assert (await stranger.get("/console/topics/orders")).status_code == 403
        assert "orders" not in (await stranger.get("/console/topics")).text.partition("<main")[2].replace(
            'placeholder="orders"', ""
        ).replace("landbridge publish orders", "")
        assert "need the scope observe" in (await stranger.get("/")).text


async def test_a_change_is_in_the_audit_log_with_who_made_it(door: Door) -> None:
    await door.bus.topics.create("orders")
    async with door.browser("operate", subject="ana") as browser:
        await browser.act("topic.pause", name="orders", confirmed="yes", note="why")
    [entry] = [each for each in await door.bus.audit.list() if each.operation == "topic.pause"]
    assert (entry.who, entry.program, entry.origin) == ("ana", "console", "127.0.0.1")


async def test_a_form_goes_back_to_pages_of_the_console_alone(door: Door) -> None:
    await door.bus.topics.create("orders")
    async with door.browser("admin") as browser:
        csrf = await browser.csrf()
        for back, to in (
            ("/console/topics/orders", "/console/topics/orders"),
            ("https://evil.example/", "/"),
            ("//evil.example/console/topics", "/"),
            ("/v1/topics", "/"),
            ("\\\\evil.example", "/"),
            ("/console/topics?x=\r\nset-cookie: a=b", "/"),
            ("/console/topics/ü", "/"),
            ("//[", "/"),
            ("/console/topics/orders\nset-cookie: a=b", "/"),
            ("/console/topics/ö\u2028", "/"),
        ):
            answer = await browser.http.post(
                "/console/actions/topic.resume",
                data={"csrf": csrf, "name": "orders", "back": back},
                headers={"origin": door.url},
            )
            assert (answer.status_code, answer.headers["location"]) == (303, to)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/console/sign-in?" + "a=1&" * 40, 400),
        ("/console/stream?" + "a=1&" * 40, 400),
        ("/console/stream?page=//[", 400),
        ("/console/stream?page=%ff", 400),
        ("/console/topics/orders/messages?rule=" + "[" * 3000, 400),
    ],
)
async def test_an_address_that_cannot_be_read_is_refused(door: Door, path: str, status: int) -> None:
    await door.bus.topics.create("orders")
    async with door.browser("admin") as browser:
        assert (await browser.get(path)).status_code == status


# -- text of strangers -------------------------------------------------------------------------------


async def test_text_of_strangers_is_text(door: Door) -> None:
    bus = door.bus
    await bus.publish("orders", HOSTILE.encode(), key=HOSTILE, headers={"note": HOSTILE, HOSTILE: "x"})
    await bus.publish(
        "orders", b'{"a": "<script>alert(3)</script>", "<b>": 1}', headers={"lb-cause": HOSTILE}
    )
    await bus.groups.create("orders", "g")
    await bus.topics.pause("orders", note=HOSTILE)
    await bus.groups.pause("orders", "g", note=HOSTILE)
    async with door.browser("admin") as browser:
        for path in (
            "/console/topics", "/console/topics/orders", "/console/topics/orders/messages",
            "/console/topics/orders/messages/0", "/console/topics/orders/messages/1",
            "/console/topics/orders/publish?copy=0", "/console/topics/orders/settings",
            "/console/topics/orders/groups/g", "/console/dead-letters",
            "/console/where?topic=orders&offset=0",
            f"/console/topics?contains={HOSTILE}", f"/console/where?id={HOSTILE}&topic=orders",
            f"/console/topics/orders/messages?key={HOSTILE}", f"/console/{HOSTILE}",
            f"/console/topics/{HOSTILE}", "/console/topics/orders/messages?rule=<script>",
        ):  # fmt: skip
            page = (await browser.get(path)).text
            assert "<script>alert" not in page, path
            assert "<img" not in page, path
            assert "\u202e" not in page, path
        whole = (await browser.get("/console/topics/orders/messages/0")).text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in whole
        told = (await browser.act("topic.create", name=HOSTILE)).json()
        assert "<script>" not in told["html"]
        asked = (await browser.act("letter.redrive", topic="orders", group="g", cause=HOSTILE)).json()
        assert "<script>" not in asked["html"]


# -- the stream --------------------------------------------------------------------------------------


async def test_a_stream_sends_what_has_changed_and_ends_with_the_session(door: Door) -> None:
    await door.bus.topics.create("orders")
    async with door.browser("admin") as browser:
        seen: asyncio.Queue[str] = asyncio.Queue()

        async def follow() -> None:
            page = "/console/stream?page=/console/topics/orders"
            async with browser.http.stream("GET", page) as answer:
                assert answer.headers["content-type"] == "text/event-stream"
                async for line in answer.aiter_lines():
                    seen.put_nowait(line)

        task = asyncio.ensure_future(follow())

        async def until(text: str) -> str:
            async with asyncio.timeout(LIMIT):
                while text not in (line := await seen.get()):
                    pass
            return line

        assert '"name": "topic"' in await until("data: ")
        await browser.act("topic.pause", name="orders", confirmed="yes", note="the reason")
        await until("the reason")
        [session] = door.part.sessions._sessions.values()
        assert session.streams == 1
        await door.part.sessions.sign_out(session)
        await until("event: over")
        await task
        assert session.streams == 0
        assert "event: over" in (await browser.get("/console/stream?page=/")).text


async def test_streams_are_bounded_and_end_when_the_browser_leaves(door: Door, monkeypatch: Any) -> None:
    from landbridge.console import app

    monkeypatch.setattr(app, "MOST_STREAMS", 1)
    async with door.browser("admin") as browser:
        [session] = door.part.sessions._sessions.values()
        async with browser.http.stream("GET", "/console/stream?page=/") as answer:
            assert answer.status_code == 200
            await eventually(lambda: session.streams == 1)
            assert (await browser.get("/console/stream?page=/")).status_code == 429
        await eventually(lambda: session.streams == 0)
        assert (await browser.get("/console/stream?page=/console/new-topic")).status_code == 404


@pytest.mark.parametrize("origin", ["http://[", "http://]:1", "null", "x" * 3000])
async def test_an_origin_that_is_no_address_is_refused(door: Door, origin: str) -> None:
    async with door.browser() as stranger:
        with structlog.testing.capture_logs() as logged:
            refused = await stranger.http.post(
                "/console/sign-in", data={"code": "x"}, headers={"origin": origin}
            )
        assert refused.status_code == 403
        assert not [line for line in logged if line["log_level"] == "error"]


JUNK = ["x", "-1", "nan", "inf", "1e999", "9" * 30, "\u0661", "//evil", HOSTILE]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
async def test_junk_in_forms_and_addresses_is_refused(door: Door, junk: str) -> None:
    await door.bus.topics.create("orders")
    said = quote(junk, safe="")
    with structlog.testing.capture_logs() as logged:
        async with door.browser("admin") as browser:
            for path in (
                f"/console/rules-test?source=orders&match={said}&payload={said}",
                f"/console/topics/orders/messages?from={said}&rule={said}",
                f"/console/topics/orders/messages/{said}",
                f"/console/dead-letters/orders/g?after={said}",
                f"/console/audit?before={said}&after={said}",
            ):
                answer = await browser.get(path)
                assert answer.status_code < 500, path
                assert "<script>alert" not in answer.text
            for name, fields in {
                "message.publish": {"topic": "orders", "payload": "1", "priority": junk},
                "limits.set": {"limit": "max_payload", "value": junk},
                "webhook.replay": {"topic": "orders", "name": "shop", "start": junk, "since": junk},
                "group.seek": {"topic": "orders", "name": "g", "where": "offset", "at": junk},
            }.items():
                answer = await browser.act(name, confirmed="yes", **fields)
                assert 400 <= answer.status_code < 500 or answer.status_code == 200, name
    assert not [line for line in logged if line["log_level"] == "error"]


async def test_the_topics_of_the_bus_itself_are_shown_to_those_who_ask(door: Door) -> None:
    await door.bus.topics.create("orders")
    async with door.browser("admin") as browser:
        for address, are_shown in (
            ("/console/topics", False),
            ("/console/topics?own=yes", True),
            ("/console/topics?contains=audit", True),
        ):
            page = (await browser.get(address)).text
            assert (
                'href="/console/topics/%24audit"' in page or 'href="/console/topics/$audit"' in page
            ) == are_shown
            assert ('href="/console/topics/orders"' in page) == ("contains" not in address)
        topic = (await browser.get("/console/topics/orders")).text
        for path in ("dead-letters?topic=", "rules?source=", "webhooks?topic=", "mail?topic="):
            assert f"/console/{path}orders" in topic
