"""Feeds and the hub by HTTP, and what a subscriber's library says of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask_websub.subscriber import (  # type: ignore[import-untyped]
    SQLite3SubscriberStorage,
    SQLite3TempSubscriberStorage,
    Subscriber,
    discover,
)
from werkzeug.serving import make_server

from landbridge.core.middleware.spec import RedactStage
from landbridge.gateways import websub as gateway
from landbridge.gateways.outgoing import OutgoingHttp, OutgoingLimits
from landbridge.node.assembly import dial_to
from landbridge.node.websub import hub_of
from tests.certificates import self_signed
from tests.contracts.web import Web, web
from tests.receivers import LOOPBACK
from tests.subscribers import Subscriber as OwnSubscriber
from tests.waiting import eventually


@asynccontextmanager
async def hub(**options: Any) -> AsyncIterator[Web]:
    async with web(**options) as site:
        http = OutgoingHttp(LOOPBACK, limits=OutgoingLimits(within=5.0))
        async with hub_of(site.terminal, dial_to(site.terminal), LOOPBACK, http):
            await site.bus.topics.create("news")
            yield site


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(gateway, "DENY_AGAIN", 0.01)


async def test_a_stranger_finds_the_hub_subscribes_and_reads(crashes: list[Any]) -> None:
    async with hub() as site, site.client("") as stranger, OwnSubscriber(secret="s") as subscriber:
        missing = await stranger.get("/v1/feeds/news")
        assert (missing.status_code, missing.json()["code"]) == (404, "unknown_feed")
        opened = await site.http.post("/v1/topics/news/feed", json={})
        assert (opened.status_code, opened.json()["path"]) == (200, "/v1/feeds/news")
        found = await stranger.head("/v1/feeds/news")
        assert (found.status_code, found.content) == (200, b"")
        assert found.headers["content-type"] == "application/octet-stream"
        hub_url, feed = found.links["hub"]["url"], found.links["self"]["url"]
        assert (hub_url, feed) == (f"{site.url}/v1/websub", f"{site.url}/v1/feeds/news")
        form = {"hub.mode": "subscribe", "hub.topic": feed, "hub.callback": subscriber.callback}
        asked = await stranger.post(hub_url, data=form | {"hub.secret": "s"})
        assert (asked.status_code, asked.content) == (202, b"")

        async def is_active() -> bool:
            rows = (await site.http.get("/v1/websub", params={"topic": "news"})).json()["subscriptions"]
            return [row["state"] for row in rows] == ["active"]

        while not await is_active():
            await asyncio.sleep(0.01)
        # Published to the feed, by whoever may publish to the topic.
        assert (await stranger.post(feed, content=b"no")).status_code == 401
        async with site.client(site.token("publish:news")) as publisher:
            posted = await publisher.post(feed, content=b"<p>", headers={"content-type": "text/html"})
            assert posted.status_code == 201
        await eventually(lambda: subscriber.got)
        assert subscriber.bodies == [b"<p>"]
        assert subscriber.is_signed(subscriber.got[0])
        assert subscriber.got[0].headers["content-type"] == "text/html"
        read = await stranger.get(feed)
        assert (read.content, read.headers["content-type"]) == (b"<p>", "text/html")
        assert "sandbox" in read.headers["content-security-policy"]
        again = await stranger.get(feed, headers={"if-none-match": read.headers["etag"]})
        assert (again.status_code, again.links["hub"]["url"]) == (304, hub_url)
        assert (
            await stranger.post(hub_url, data={"hub.mode": "publish", "hub.url": feed})
        ).status_code == 202
        assert (await stranger.get("/v1/feeds")).status_code == 401
        assert (await stranger.get("/v1/websub")).status_code == 401
        assert (await site.http.delete("/v1/topics/news/feed")).status_code == 200
        await eventually(lambda: subscriber.denied)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"hub.mode=subscribe", "application/x-www-form-urlencoded", 400),
        (b"{}", "application/json", 400),
        (
            b"hub.mode=subscribe&hub.topic=http://x/&hub.callback=http://a/",
            "application/x-www-form-urlencoded",
            404,
        ),
        (b"%ff=1", "application/x-www-form-urlencoded", 400),
        (b"\xff", "application/x-www-form-urlencoded", 400),
        (b"a&" * 65, "application/x-www-form-urlencoded", 400),
        (b"x" * (17 << 10), "application/x-www-form-urlencoded", 413),
    ],
)
async def test_what_is_no_form_of_the_hub(crashes: list[Any], body: bytes, kind: str, status: int) -> None:
    async with hub() as site, site.client("") as stranger:
        answer = await stranger.post("/v1/websub", content=body, headers={"content-type": kind})
        assert (answer.status_code, "code" in answer.json()) == (status, True)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1"])
async def test_a_page_in_a_browser_can_not_have_a_feed_sent_to_its_own_server(
    crashes: list[Any], origin: str
) -> None:
    async with hub() as site, site.client("") as browser:
        await site.bus.websub.open("news")
        form = {
            "hub.mode": "subscribe",
            "hub.topic": f"{site.url}/v1/feeds/news",
            "hub.callback": "http://a.example/",
        }
        answer = await browser.post("/v1/websub", data=form, headers={"origin": origin})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert await site.bus.websub.list() == []


class Judge:
    """The library Flask-WebSub as a subscriber, with its server in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.app = Flask("judge")
        path = str(folder / "judge.sqlite3")
        self.subscriber = Subscriber(SQLite3SubscriberStorage(path), SQLite3TempSubscriberStorage(path))
        self.app.register_blueprint(self.subscriber.build_blueprint(url_prefix="/callbacks"))
        self.said: list[tuple[str, Any]] = []
        self.subscriber.add_listener(lambda url, id, body: self.said.append(("content", body)))
        self.subscriber.add_success_handler(lambda url, id, mode: self.said.append((mode, url)))
        self.subscriber.add_error_handler(lambda url, id, why: self.said.append(("denied", why)))
        self.server = make_server("127.0.0.1", 0, self.app, threaded=True)

    async def do(self, work: Callable[[], Any]) -> Any:
        """In its application, in a thread."""

        def inside() -> Any:
            with self.app.test_request_context(base_url=f"http://127.0.0.1:{self.server.port}"):
                return work()

        return await asyncio.to_thread(inside)


@contextmanager
def judging(folder: Path) -> Iterator[Judge]:
    judge = Judge(folder)
    thread = threading.Thread(target=judge.server.serve_forever)
    thread.start()
    try:
        yield judge
    finally:
        judge.server.shutdown()
        thread.join()
        judge.server.server_close()


async def test_a_subscribers_library_discovers_subscribes_verifies_and_renews(
    tmp_path: Path, crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TLS: the library gives secrets to no other hub, and drops content whose signature is wrong."""
    cert, key = self_signed(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(cert))
    async with hub(tls=(cert, key)) as site:
        await site.bus.websub.open("news")
        feed = f"{site.url}/v1/feeds/news"
        assert feed.startswith("https://")
        with judging(tmp_path) as judge:
            found = await asyncio.to_thread(discover, feed)
            assert found == {"hub_url": f"{site.url}/v1/websub", "topic_url": feed}
            id = await judge.do(lambda: judge.subscriber.subscribe(**found, lease_seconds=3600))
            await eventually(lambda: judge.said == [("subscribe", feed)])
            await _until_active(site)
            (row,) = await site.bus.websub.list()
            assert row.signed
            for number in range(5):
                await site.bus.publish("news", b"%d" % number)
            await eventually(lambda: len(judge.said) == 6)
            assert {body for _, body in judge.said[1:]} == {b"%d" % number for number in range(5)}
            await judge.do(lambda: judge.subscriber.renew(id))
            await eventually(lambda: judge.said[6:] == [("subscribe", feed)])
            await _until_active(site)
            await judge.do(lambda: judge.subscriber.unsubscribe(id))
            await eventually(lambda: judge.said[7:] == [("unsubscribe", feed)])
            while await site.bus.websub.list():
                await asyncio.sleep(0.01)
            await judge.do(lambda: judge.subscriber.subscribe(**found))
            await eventually(lambda: len(judge.said) == 9)
            await _until_active(site)
            await site.bus.websub.close("news")
            await eventually(lambda: judge.said[9:] == [("denied", "the feed is closed")])


async def _until_active(site: Web) -> None:
    while True:
        (row,) = await site.bus.websub.list()
        if row.state == "active" and not row.waits_for:
            return
        await asyncio.sleep(0.01)


async def test_a_stranger_reads_a_feed_as_its_consumers_do() -> None:
    async with hub() as site, site.client("") as stranger:
        stage = RedactStage(fields=("/card",), at="deliver")
        await site.bus.topics.update("news", middleware=[stage])
        await site.http.post("/v1/topics/news/feed", json={})
        await site.bus.publish("news", {"card": "4111"})
        assert (await stranger.get("/v1/feeds/news")).json() == {"card": "[redacted]"}
