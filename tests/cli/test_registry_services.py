"""``landbridge customer service``: from nothing to a message under a token of the registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.ports import free_port


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A terminal with its registry."""
    place = Place(tmp_path_factory.mktemp("services"))
    with place.up("--http-port", str(free_port())):
        yield place


def service(place: Place, *arguments: str) -> dict[str, object]:
    found: dict[str, object] = place.call("customer", "service", *arguments, "--json").json
    return found


def test_from_nothing_to_a_message_and_the_end_of_it(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "shop.key"
    told = place.call(
        "customer", "service", "register", "shop", "--scope", "publish:orders", "--write", str(file)
    )
    assert told.out.strip().endswith(f"its credential is in {file}")
    assert file.stat().st_mode & 0o777 == 0o600
    secret = file.read_text().strip()
    assert secret.startswith("lbsc1_")
    assert secret not in told.out + told.err
    token = place.call("customer", "service", "token", "shop", "--credential-file", str(file)).out.strip()
    assert token.count(".") == 2
    place.settings["LANDBRIDGE_TOKEN"] = token
    try:
        assert place.call("publish", "orders", '{"id": 1}').status == 0
        refused = place.call("publish", "mail", "x", "--json")
        assert refused.error["code"] == "forbidden"
        assert service(place, "suspend", "shop")["state"] == "suspended"
        assert place.call("publish", "orders", "x", "--json").error["code"] == "unauthenticated"
    finally:
        del place.settings["LANDBRIDGE_TOKEN"]
    refused = place.call("customer", "service", "token", "shop", "--credential-file", str(file), "--json")
    assert refused.error["code"] == "unauthenticated"
    assert service(place, "resume", "shop")["state"] == "active"
    again = place.call("customer", "service", "register", "other", "--write", str(file), "--json")
    assert "is a file" in again.error["message"]
    assert [row["name"] for row in place.call("customer", "service", "list", "--json").json] == ["shop"]


def test_describe_rotate_remove(place: Place, tmp_path: Path) -> None:
    described = tmp_path / "billing.json"
    endpoint = {"name": "quote", "topic": "prices.quote", "reply": True}
    described.write_text(json.dumps({"owner": "finance", "endpoints": [endpoint], "version": "1.0.0"}))
    made = service(
        place, "register", "billing", "--from", str(described), "--version", "1.2.0",
        "--scope", "subscribe:orders.#", "--scope", "publish:bills", "--metadata", "language=go",
        "--callback", "done=topic:outcomes",
    )  # fmt: skip
    shown = service(place, "show", str(made["service_id"]))
    assert (shown["owner"], shown["version"], shown["metadata"]) == ("finance", "1.2.0", {"language": "go"})
    assert shown["endpoints"][0]["topic"] == "prices.quote"  # type: ignore[index]
    assert "finance" in place.call("customer", "service", "show", "billing").out
    assert "billing" in place.call("customer", "service", "list").out
    assert service(place, "update", "billing", "--owner", "sales")["owner"] == "sales"
    assert place.call("customer", "service", "update", "billing").status == 2
    told = place.call("customer", "service", "rotate", "billing", "--overlap", "1h")
    fresh = told.out.splitlines()[1]
    place.settings["LANDBRIDGE_CREDENTIAL"] = str(made["credential"])
    try:
        narrow = service(place, "token", "billing", "--scope", "publish:bills", "--life", "1m")
        assert narrow["scopes"] == ["publish:bills"]
        service(place, "rotate", "billing", "--now")
        ended = place.call("customer", "service", "token", "billing", "--json")
        assert ended.error["code"] == "unauthenticated"
        place.settings["LANDBRIDGE_CREDENTIAL"] = fresh
        assert place.call("customer", "service", "token", "billing", "--json").error["code"]
    finally:
        del place.settings["LANDBRIDGE_CREDENTIAL"]
    assert "from" in place.call("customer", "service", "rotate-key").out
    assert service(place, "remove", "billing")["removed"] == "billing"
    assert place.call("customer", "service", "show", "billing", "--json").error["code"] == "unknown_service"
    described.write_text('{"colour": "red"}')
    wrong = place.call("customer", "service", "register", "x", "--from", str(described), "--json")
    assert "colour" in wrong.error["message"]


def test_without_a_credential_or_a_registry(place: Place) -> None:
    assert place.call("customer", "service", "token", "shop").status == 2
    empty = Place(place.folder / "empty")
    empty.settings["LANDBRIDGE_CREDENTIAL"] = "lbsc1_x"
    assert empty.call("customer", "service", "token", "shop", "--json").error["code"] == "bad_context"
