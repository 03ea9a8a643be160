"""``landbridge console`` and ``landbridge letter``; and what ``landbridge up`` says of the console."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest

import landbridge.sync
from tests.cli.conftest import LIMIT, Place, Screen, Up, until
from tests.ports import free_port


@pytest.fixture(scope="module")
def with_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Up]]:
    place = Place(tmp_path_factory.mktemp("console"))
    with place.up("--http-port", str(free_port())) as up:
        yield place, up


def test_a_link_is_printed_and_works_once(with_http: tuple[Place, Up]) -> None:
    place, up = with_http
    link = place.call("console", "--print").out.strip()
    assert link.startswith(f"{up.ready['http']}/console/sign-in?code=")
    assert "Sign in as admin" in httpx.get(link, timeout=LIMIT).text
    told = place.call("console", "--json").json
    assert told["url"].startswith(f"{up.ready['http']}/console/sign-in?code=")
    assert told["within"] == 600
    given = place.call("console", "--url", f"{up.ready['http']}/", "--print")
    assert given.out.startswith(up.ready["http"] + "/console")


def test_a_browser_is_opened_where_there_is_one(with_http: tuple[Place, Up]) -> None:
    place, up = with_http
    opened: list[str] = []

    def open_it(url: str) -> bool:
        opened.append(url)
        return True

    with patch("webbrowser.open", open_it):
        result = place.call("console")
    assert (result.status, len(opened)) == (0, 1)
    assert opened[0].startswith(up.ready["http"])
    assert "code=" not in result.out + result.err
    with patch("webbrowser.open", lambda url: False):
        assert "/console/sign-in?code=" in place.call("console").out


def test_what_is_wrong_is_said(with_http: tuple[Place, Up], shared: Place) -> None:
    place, _ = with_http
    assert shared.call("console", "--json").error["hint"] == "start it with --http-port"
    gone = place.call("console", "--url", f"http://127.0.0.1:{free_port()}", "--json").error
    assert (gone["code"], gone["hint"]) == ("unreachable", "is this its HTTP port?")
    assert place.call("console", "--url", "nonsense", "--json").error["code"] == "bad_request"


def test_only_a_person_is_told_a_link_at_the_start(
    place: Place, screens: Callable[..., Screen], tmp_path: Path
) -> None:
    screen = screens(place, "up", "--port", "0", "--http-port", str(free_port()))
    text = screen.wait_for("Ctrl-C stops it")
    [link] = re.findall(r"http://\S+/console/sign-in\?code=\S+", text)
    assert httpx.get(link, timeout=LIMIT).status_code == 200
    assert "landbridge console" in text
    other = Place(tmp_path / "other")
    with other.up("--http-port", str(free_port())) as up:
        assert "sign_in" not in up.ready
        assert "code=" not in str(up.ready)


def test_letters_are_counted_listed_redriven_and_deleted(shared: Place, topic: str) -> None:
    with patch.dict("os.environ", shared.environment):
        bus = landbridge.sync.connect()
    with bus:
        bus.groups.create(topic, "g")
        for cause in ("late", "bad", "late"):
            bus.publish(topic, cause.encode())
        with bus.subscribe(topic, group="g") as messages:
            for _, message in zip(range(3), messages, strict=False):
                message.bury(message.payload.decode())
        until(lambda: sum(row.letters for row in bus.letters.summary(topic=topic).causes) == 3)
    counted = shared.call("letter", "summary", topic, "--json").json
    assert [(row["cause"], row["letters"]) for row in counted] == [("bad", 1), ("late", 2)]
    listed = shared.call("letter", "list", topic, "g", "--cause", "late", "--json").json
    assert [row["offset"] for row in listed] == [0, 2]
    tried = shared.call("letter", "redrive", topic, "g", "--cause", "late", "--dry-run")
    assert "2 letters would be redriven to g" in tried.err + tried.out
    assert shared.call("letter", "redrive", topic, "g", "--offset", "0", "--json").json["letters"] == 1
    assert shared.call("letter", "delete", topic, "g", "--json").json["letters"] == 2
    assert shared.call("letter", "summary", topic, "--json").json == []


def test_the_token_says_what_it_is(shared: Place) -> None:
    with patch.dict("os.environ", shared.environment):
        bus = landbridge.sync.connect()
    with bus:
        shown = bus.tokens.show()
        assert (shown.subject, shown.scopes) == ("admin", ["admin"])
