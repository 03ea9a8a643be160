"""Feeds from the command line, served by ``landbridge up``."""

from __future__ import annotations

from pathlib import Path

import httpx

import landbridge
from tests.cli.conftest import Place, until
from tests.cli.test_webhooks import receiving
from tests.ports import free_port
from tests.receivers import OK, Received, says


def test_all_that_can_be_done_with_a_feed(tmp_path: Path) -> None:
    place = Place(tmp_path)

    def confirm(request: Received) -> bytes:
        if "hub.challenge=" not in request.path:
            return OK
        return says(200, body=request.path.partition("hub.challenge=")[2].partition("&")[0].encode())

    with (
        place.up("--allow-outgoing", "127.0.0.0/8", "--http-port", str(free_port())) as up,
        receiving() as receiver,
    ):
        receiver.answer = confirm
        base = up.ready["http"]
        feed = f"{base}/v1/feeds/news"
        assert place.call("websub", "feeds", "--json").json == []
        assert place.call("websub", "show", "news").status == landbridge.errors.UnknownFeed.exit_status
        made = place.call("websub", "open", "news", "--content-type", "text/plain", "--json")
        assert "made the topic news" in made.err
        opened = made.json
        assert (opened["options"]["content_type"], opened["path"]) == ("text/plain", "/v1/feeds/news")
        hub = httpx.head(feed).links["hub"]["url"]
        form = {
            "hub.mode": "subscribe",
            "hub.topic": feed,
            "hub.callback": receiver.url,
            "hub.secret": "s3cret",
        }
        assert httpx.post(hub, data=form).status_code == 202

        def state() -> list[str]:
            return [row["state"] for row in place.call("websub", "list", "news", "--json").json]

        until(lambda: state() == ["active"])
        (row,) = place.call("websub", "list", "--json").json
        assert place.call("publish", "news", "hello").status == 0
        until(lambda: b"hello" in receiver.bodies)
        until(lambda: place.call("websub", "show", "news", row["id"], "--json").json["delivered"] == 1)
        shown = place.call("websub", "show", "news", row["id"])
        assert "204" in shown.out
        assert "s3cret" not in shown.out
        assert receiver.url in place.call("websub", "list").out
        assert "news" in place.call("websub", "feeds").out
        assert "text/plain" in place.call("websub", "show", "news").out
        assert place.call("websub", "delete", "news", row["id"]).status == 0
        until(lambda: state() == [])
        assert "hub.mode=denied" in receiver.requests[-1].path
        assert place.call("websub", "open", "news", "--content-type", "message", "--ordered").status == 0
        options = place.call("websub", "show", "news", "--json").json["options"]
        assert (options["content_type"], options["ordered"]) == (None, True)
        assert place.call("websub", "close", "news").status == 0
        gone = place.call("websub", "close", "news", "--json")
        assert (gone.status, gone.error["code"]) == (104, "unknown_feed")
